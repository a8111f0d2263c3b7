"""Which parameters a way of fine-tuning trains: norms, attention, everything, or equally many."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from headscope.errors import UnsupportedModelError
from headscope.models.layouts.sites import AttentionSite
from headscope.models.loaded import LoadedModel

__all__ = ["TRAINED", "Chosen", "choose", "count", "is_norm"]

#: Ways of fine-tuning; every one trains the classifier on top too.
TRAINED = ("head", "layernorm", "biases", "weights", "lora", "all_biases", "attention", "all")
#: Classes of transformers that normalise with a gain: LayerNorm, T5LayerNorm, LlamaRMSNorm, ....
_NORM = re.compile(r"(layer_?|rms_?|no)norm$", re.IGNORECASE)


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
    """Return what one way of fine-tuning trains of the encoder, the classifier apart."""
    if way == "head":
        return []
    parts = _Parts(loaded)
    if way == "layernorm":
        return [Chosen(p) for p in parts.norms]
    if way == "attention":
        return [Chosen(p) for p in parts.attention]
    if way == "all":
        return [Chosen(p) for p in parts.used]
    if way == "all_biases":
        if not parts.all_biases:
            raise UnsupportedModelError(f"{loaded.name} has no biases.")
        return [Chosen(p) for p in parts.all_biases]
    n = sum(p.numel() for p in parts.norms)
    if way == "lora":
        return _rank_one(loaded, parts, n, seed)
    return _drawn(loaded, parts.biases if way == "biases" else parts.matrices, n, way, seed)


def count(chosen: Sequence[Chosen]) -> int:
    """Return how many numbers are trained."""
    return sum(map(len, chosen))


def is_norm(module: nn.Module) -> bool:
    """Whether a module normalises its input and has parameters for that."""
    known = isinstance(module, nn.LayerNorm | nn.RMSNorm) or _NORM.search(type(module).__name__)
    return bool(known) and any(True for _ in module.parameters(recurse=False))


class _Parts:
    """The encoder's parameters by kind; those that its last states do not depend on are left out.

    A pooler behind the last state, say, never gets a gradient.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._encoder = loaded.model.get_encoder() if loaded.encoder_decoder else loaded.model
        self.used = _depended_on(loaded)
        self.norms = self._kept(p for m in self._modules(is_norm) for p in m.parameters(False))
        if not self.norms:
            raise UnsupportedModelError(
                f"{loaded.name} has no LayerNorm or RMSNorm with parameters, so transfer cannot "
                "train them."
            )
        tables = self._modules(lambda m: isinstance(m, nn.Embedding))
        self._tables = {id(p) for table in tables for p in table.parameters()}
        self._norm_ids = {id(p) for p in self.norms}

    @property
    def attention(self) -> list[nn.Parameter]:
        """What the attention modules hold, norms apart."""
        found = [p for owner in self._attention_modules() for p in owner.parameters()]
        return [p for p in self._kept(found) if id(p) not in self._norm_ids]

    @property
    def biases(self) -> list[nn.Parameter]:
        """Biases of linear maps."""
        return [p for p in self._others() if p.ndim == 1]

    @property
    def matrices(self) -> list[nn.Parameter]:
        """Weights of linear maps and convolutions; no embeddings, most of which are never read."""
        return [p for p in self._others() if p.ndim > 1]

    @property
    def all_biases(self) -> list[nn.Parameter]:
        """Every bias, those of norms included."""
        own = [
            bias for m in self._modules(is_norm) if (bias := getattr(m, "bias", None)) is not None
        ]
        return self._kept([*self.biases, *own])

    @property
    def queries_and_values(self) -> list[nn.Parameter]:
        """The matrices that hold W_Q and W_V; fused ones hold W_K too."""
        maps = [site.projections for site in self._sites()]
        return self._kept(m.module.weight for own in maps for m in (own.q, own.v))

    def _others(self) -> Iterator[nn.Parameter]:
        return (p for p in self.used if id(p) not in self._norm_ids | self._tables)

    def _attention_modules(self) -> Iterator[nn.Module]:
        for site in self._sites():
            maps = site.projections
            yield site.module
            yield from (m.module for m in (maps.q, maps.k, maps.v, maps.out))

    def _sites(self) -> Iterator[AttentionSite]:
        for site in self._loaded.sites:
            if site.stack == "encoder" or not self._loaded.encoder_decoder:
                yield site

    def _modules(self, wanted: Callable[[nn.Module], bool]) -> list[nn.Module]:
        return [m for m in self._encoder.modules() if wanted(m)]

    def _kept(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Keep each parameter once, and only what is used; in the order of the model."""
        ids = {id(p) for p in parameters}
        return [p for p in self.used if id(p) in ids]


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
        found = torch.autograd.grad(hidden.float().sum(), differentiable, allow_unused=True)
    for p, flag in zip(parameters, before, strict=True):
        p.requires_grad_(flag)
    return [p for p, g in zip(differentiable, found, strict=True) if g is not None]


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
    places = np.sort(rng.choice(total, size=n, replace=False))
    owner = np.searchsorted(ends, places, side="right")
    starts = np.concatenate([[0], ends[:-1]])
    return [
        Chosen(p, torch.from_numpy(places[owner == i] - starts[i]).to(p.device))
        for i, p in enumerate(source)
        if (owner == i).any()
    ]


def _rank_one(loaded: LoadedModel, parts: _Parts, n: int, seed: int) -> list[Chosen]:
    """Choose matrices whose changes of rank one have ``n`` numbers; the last one is cut to fit."""
    flat = [p for p in parts.matrices if p.ndim == 2]
    first = {id(p) for p in parts.queries_and_values}
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
