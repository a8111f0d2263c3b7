"""Which parameters a way of fine-tuning trains: norms, attention, everything, or equally many.

:func:`choose` is the entry point: it takes the name of a way, such as ``layernorm``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

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
    #: (n,): which of its entries are trained, counted row by row: of a 2 x 3 matrix [1, 4] are
    #: (0, 1) and (1, 1). None for all of them.
    entries: Tensor | None = None
    #: Where b a^T is added to a matrix (rows, columns): how many of the rows + columns numbers of b
    #: and a are trained, b's first. None where the parameter itself is trained.
    rank_one: int | None = None

    def __len__(self) -> int:
        """Return how many numbers are trained."""
        if self.rank_one is not None:
            return self.rank_one
        return self.parameter.numel() if self.entries is None else len(self.entries)


def choose(loaded: LoadedModel, way: str, seed: int = 0) -> list[Chosen]:
    """Return the encoder's parameters that one way of fine-tuning trains.

    - ``head``: nothing.
    - ``layernorm``: gains and biases of every norm.
    - ``biases``, ``weights``: as many numbers as ``layernorm`` trains: entries of the other biases,
      or of the layers' matrices, drawn at random.
    - ``lora``: as many numbers again: changes of rank one, of W_Q and W_V first, then of the other
      matrices of the layers, each in a random order.
    - ``all_biases``: every bias, those of norms included.
    - ``attention``: W_Q, W_K, W_V, W_O with their biases and what else the attention modules hold.
    - ``all``: everything that the last hidden states depend on: not a pooler behind them, say,
      which would never get a gradient.

    Raises
    ------
    UnsupportedModelError
        If the model has no parameters of this kind, or too few of them.
    """
    if way == "head":
        return []
    parameters = _Parameters(loaded)
    norms = parameters.norms
    if not norms:
        raise UnsupportedModelError(
            f"{loaded.name} has no LayerNorm or RMSNorm with parameters, so transfer cannot "
            "train them."
        )
    if way == "all":
        return [Chosen(p) for p in parameters.used]
    if way == "layernorm":
        return [Chosen(p) for p in norms]
    if way == "attention":
        return [Chosen(p) for p in parameters.attention]
    if way == "all_biases":
        if not parameters.all_biases:
            raise UnsupportedModelError(f"{loaded.name} has no biases.")
        return [Chosen(p) for p in parameters.all_biases]
    # as many numbers as the norms have
    n_of_norms = sum(p.numel() for p in norms)
    if way == "lora":
        first = parameters.queries_and_values
        return _rank_one(loaded, parameters.matrices, first, n_of_norms, seed)
    source = parameters.biases if way == "biases" else parameters.matrices
    return _drawn(loaded, source, n_of_norms, way, seed)


class _Parameters:
    """The parameters of an encoder by kind, each once, in the order of the model.

    Only those that the last hidden states depend on. A parameter is hashed by its identity, so that
    sets of parameters say which ones they hold, not which values.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.used = _depended_on(loaded)
        encoder = loaded.model.get_encoder() if loaded.encoder_decoder else loaded.model
        self._modules = list(encoder.modules())
        stacks = ("encoder",) if loaded.encoder_decoder else STACKS
        self._sites = [site for site in loaded.sites if site.stack in stacks]

    def _used_among(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Return which of some parameters are used, in the order of the model."""
        candidates = set(parameters)
        return [p for p in self.used if p in candidates]

    @cached_property
    def _norm_modules(self) -> list[nn.Module]:
        # NoNorm, of MobileBERT, is the gain and the bias of a LayerNorm alone.
        return [m for m in self._modules if is_norm(m) or type(m).__name__ == "NoNorm"]

    @cached_property
    def norms(self) -> list[nn.Parameter]:
        """Gains and biases of every norm."""
        of_norms = (module.parameters(recurse=False) for module in self._norm_modules)
        return self._used_among(chain.from_iterable(of_norms))

    @cached_property
    def attention(self) -> list[nn.Parameter]:
        """W_Q, W_K, W_V, W_O with their biases, and what else attention modules hold; no norms."""
        modules: list[nn.Module] = []
        for site in self._sites:
            modules.append(site.module)
            maps = site.projections
            modules += [linear.module for linear in (maps.q, maps.k, maps.v, maps.out)]
        in_attention = self._used_among(chain.from_iterable(m.parameters() for m in modules))
        norms = set(self.norms)
        return [p for p in in_attention if p not in norms]

    @cached_property
    def _of_layers(self) -> list[nn.Parameter]:
        """Parameters that belong to no norm and to no table of embeddings.

        Most rows of a table are never read in a fine-tuning: tokens that no text has.
        """
        tables = [m for m in self._modules if isinstance(m, nn.Embedding)]
        of_tables = chain.from_iterable(table.parameters() for table in tables)
        excluded = {*self.norms, *of_tables}
        return [p for p in self.used if p not in excluded]

    @cached_property
    def biases(self) -> list[nn.Parameter]:
        """Biases of linear maps."""
        return [p for p in self._of_layers if p.ndim == 1]

    @cached_property
    def matrices(self) -> list[nn.Parameter]:
        """Linear maps of the layers."""
        return [p for p in self._of_layers if p.ndim > 1]

    @cached_property
    def all_biases(self) -> list[nn.Parameter]:
        """Every bias, those of norms included."""
        all_biases = list(self.biases)
        for norm in self._norm_modules:
            bias = getattr(norm, "bias", None)  # an RMSNorm has none
            if isinstance(bias, nn.Parameter):
                all_biases.append(bias)
        return self._used_among(all_biases)

    @property
    def queries_and_values(self) -> set[nn.Parameter]:
        """The stored matrices of W_Q and W_V; a fused one holds W_K too."""
        matrices: set[nn.Parameter] = set()
        for site in self._sites:
            for linear in (site.projections.q, site.projections.v):
                matrices.add(linear.module.weight)
        return matrices


def count(chosen: Sequence[Chosen]) -> int:
    """Return how many numbers are trained."""
    return sum(map(len, chosen))


def _depended_on(loaded: LoadedModel) -> list[nn.Parameter]:
    """Return the parameters that the last hidden states depend on.

    A tiny forward pass is differentiated: what they do not depend on gets no gradient.
    """
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
    """Draw ``n`` entries from parameters, all equally likely.

    The entries of all parameters are numbered on: of parameters with 4 and 6 entries, number 5 is
    entry 1 of the second.
    """
    bounds = np.cumsum([0, *(p.numel() for p in source)], dtype=np.int64)  # 0, 4, 10
    total = int(bounds[-1])
    if total < n:
        raise UnsupportedModelError(
            f"{loaded.name} has {n:,} parameters of norms, but only {total:,} other {way} to draw "
            "as many from."
        )
    rng = np.random.default_rng((abs(seed), 8))
    positions = np.sort(rng.choice(total, size=n, replace=False))
    chosen: list[Chosen] = []
    for parameter, start, stop in zip(source, bounds[:-1], bounds[1:], strict=True):
        entries = positions[(positions >= start) & (positions < stop)] - start
        if len(entries):
            chosen.append(Chosen(parameter, torch.from_numpy(entries).to(parameter.device)))
    return chosen


def _rank_one(
    loaded: LoadedModel,
    matrices: Sequence[nn.Parameter],
    first: set[nn.Parameter],
    n: int,
    seed: int,
) -> list[Chosen]:
    """Choose matrices whose changes of rank one have ``n`` numbers together.

    In a random order, the matrices in ``first`` before the others. Of the last one only as many
    numbers are trained as are missing to ``n``.
    """
    two_dimensional = [p for p in matrices if p.ndim == 2]
    rng = np.random.default_rng((abs(seed), 10))
    shuffled = [two_dimensional[i] for i in rng.permutation(len(two_dimensional))]
    before = [p for p in shuffled if p in first]
    after = [p for p in shuffled if p not in first]
    chosen: list[Chosen] = []
    n_missing = n
    for matrix in (*before, *after):
        if n_missing > 0:
            rows, columns = matrix.shape
            change = Chosen(matrix, rank_one=min(n_missing, rows + columns))
            chosen.append(change)
            n_missing -= len(change)
    if n_missing > 0:
        raise UnsupportedModelError(
            f"{loaded.name} has more parameters of norms than rank-one changes of all its matrices."
        )
    return chosen
