"""Which parameters a way of fine-tuning trains: norms, attention, everything, or equally many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from headscope.core.errors import UnsupportedModelError
from headscope.models.layouts.sites import STACKS
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.watched import is_norm


@dataclass(frozen=True)
class Chosen:
    """A parameter that is trained, some of its entries, or a change of it that has rank one."""

    parameter: nn.Parameter  # Of the model
    #: (n,): which of its entries, counted row by row; None for all of them.
    entries: Tensor | None = None
    #: How many numbers of a and b are trained where b a^T is added to a matrix: b's (rows) come
    #: first. None where the parameter itself is trained.
    rank_one: int | None = None

    def __len__(self) -> int:
        if self.rank_one is not None:
            return self.rank_one
        return self.parameter.numel() if self.entries is None else len(self.entries)


def choose(loaded: LoadedModel, way: str, seed: int = 0) -> list[Chosen]:
    """Return the encoder's parameters that one way of fine-tuning trains.

    ``head``: nothing. ``layernorm``: gains and biases of every norm. ``biases``, ``weights``: as
    many entries of the other biases, or of the layers' matrices, drawn at random. ``lora``: as many
    numbers of changes of rank one, of W_Q and W_V first, then of the other matrices of the layers,
    each in a random order. ``all_biases``: every bias, those of norms included. ``attention``: W_Q,
    W_K, W_V, W_O with their biases and what else the attention modules hold. ``all``: everything
    that the last states depend on; a pooler behind them, say, never gets a gradient.
    """
    if way == "head":
        return []
    used = _depended_on(loaded)

    def used_among(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Return which of some parameters are used, each once, in the order of the model."""
        ids = {id(p) for p in parameters}
        return [p for p in used if id(p) in ids]

    encoder = loaded.model.get_encoder() if loaded.encoder_decoder else loaded.model
    modules = list(encoder.modules())
    # NoNorm, of MobileBERT, is the gain and the bias of a LayerNorm alone.
    norm_modules = [m for m in modules if is_norm(m) or type(m).__name__ == "NoNorm"]
    norms = used_among(p for m in norm_modules for p in m.parameters(False))
    if not norms:
        raise UnsupportedModelError(
            f"{loaded.name} has no LayerNorm or RMSNorm with parameters, so transfer cannot "
            "train them."
        )
    if way in ("layernorm", "all"):
        return [Chosen(p) for p in (norms if way == "layernorm" else used)]
    stacks = ("encoder",) if loaded.encoder_decoder else STACKS
    sites = [site for site in loaded.sites if site.stack in stacks]
    norm_ids = {id(p) for p in norms}
    if way == "attention":
        maps = [m for p in (s.projections for s in sites) for m in (p.q, p.k, p.v, p.out)]
        owners = [*(site.module for site in sites), *(m.module for m in maps)]
        held = used_among(p for owner in owners for p in owner.parameters())
        return [Chosen(p) for p in held if id(p) not in norm_ids]
    tables = [m for m in modules if isinstance(m, nn.Embedding)]
    others = norm_ids | {id(p) for table in tables for p in table.parameters()}
    biases = [p for p in used if id(p) not in others and p.ndim == 1]
    # No embeddings, most of which are never read.
    matrices = [p for p in used if id(p) not in others and p.ndim > 1]
    if way == "all_biases":
        of_norms = [getattr(m, "bias", None) for m in norm_modules]
        every = used_among([*biases, *(bias for bias in of_norms if bias is not None)])
        if not every:
            raise UnsupportedModelError(f"{loaded.name} has no biases.")
        return [Chosen(p) for p in every]
    n = sum(p.numel() for p in norms)
    if way == "lora":  # the matrices that hold W_Q and W_V come first; fused ones hold W_K too
        projections = [site.projections for site in sites]
        first = {id(m.module.weight) for p in projections for m in (p.q, p.v)}
        return _rank_one(loaded, matrices, first, n, seed)
    return _drawn(loaded, biases if way == "biases" else matrices, n, way, seed)


def count(chosen: Sequence[Chosen]) -> int:
    """Return how many numbers are trained."""
    return sum(map(len, chosen))


def _depended_on(loaded: LoadedModel) -> list[nn.Parameter]:
    """Return the parameters that the last states depend on, found by one tiny backward pass."""
    parameters = list(loaded.model.parameters())
    before = [p.requires_grad for p in parameters]
    for p in parameters:
        p.requires_grad_(p.is_floating_point())
    ids, mask = loaded.pad([[loaded.vocab_size - 1, 0, loaded.vocab_size // 2]])
    with torch.enable_grad():
        hidden = loaded.forward(ids, mask)
        differentiable = [p for p in parameters if p.requires_grad]
        gradients = torch.autograd.grad(hidden.float().sum(), differentiable, allow_unused=True)
    for p, flag in zip(parameters, before, strict=True):
        p.requires_grad_(flag)
    return [p for p, g in zip(differentiable, gradients, strict=True) if g is not None]


def _drawn(
    loaded: LoadedModel, source: Sequence[nn.Parameter], n: int, way: str, seed: int
) -> list[Chosen]:
    """Draw ``n`` entries from parameters, all equally likely."""
    ends = np.cumsum([p.numel() for p in source], dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    if total < n:
        raise UnsupportedModelError(
            f"{loaded.name} has {n:,} parameters of norms, but only {total:,} other {way} to draw "
            "as many from."
        )
    rng = np.random.default_rng((abs(seed), 8))
    positions = np.sort(rng.choice(total, size=n, replace=False))
    owner = np.searchsorted(ends, positions, side="right")
    starts = np.concatenate([[0], ends[:-1]])
    return [
        Chosen(p, torch.from_numpy(positions[owner == i] - starts[i]).to(p.device))
        for i, p in enumerate(source)
        if (owner == i).any()
    ]


def _rank_one(
    loaded: LoadedModel, matrices: Sequence[nn.Parameter], first: set[int], n: int, seed: int
) -> list[Chosen]:
    """Choose matrices whose changes of rank one have ``n`` numbers; the last one is cut to fit."""
    flat = [p for p in matrices if p.ndim == 2]
    rng = np.random.default_rng((abs(seed), 10))
    order = sorted(rng.permutation(len(flat)).tolist(), key=lambda i: id(flat[i]) not in first)
    chosen: list[Chosen] = []
    for p in (flat[i] for i in order):
        if n > 0:
            chosen.append(Chosen(p, rank_one=min(n, sum(p.shape))))
            n -= len(chosen[-1])
    if n > 0:
        raise UnsupportedModelError(
            f"{loaded.name} has more parameters of norms than rank-one changes of all its matrices."
        )
    return chosen
