"""How differently heads look, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from headscope.stats.compared import Compare, Setting


@dataclass(frozen=True)
class Nearness:
    """Whether heads that share something look at the same: their mean distance and its controls."""

    group: str  # A role; ``primary``: the same primary role; ``layer``: the same layer
    heads: int  # That belong to it
    pairs: int  # Of two heads that belong together
    #: Mean divergence of these pairs, nats.
    mean: Annotated[float, Compare("mean distance")]
    dealt: float  # The same, mean over labels dealt at random among all heads: that of all pairs
    p: float  # One-sided: (1 + deals as near) / (1 + deals)
    p_adjusted: float = 1.0  # Benjamini-Hochberg over the groups
    #: ``in_layers...``: the same with labels dealt among the heads of each layer, which keeps what
    #: layers alone explain; None of ``layer``.
    in_layers: float | None = None
    in_layers_p: float | None = None
    in_layers_p_adjusted: float | None = None


@dataclass(frozen=True)
class HeadDistances:
    """Jensen-Shannon divergence between the rows of every two heads of one stack.

    Mean over the non-special tokens of the sentences, of whole rows, in nats: 0 for heads that look
    at the same, ln 2 = 0.693 for heads that share no key (Clark et al. 2019, arXiv:1906.04341).
    """

    stack: str
    sentences: Annotated[int, Setting("sentences of distances")]
    queries: int  # Tokens that the mean is taken over
    heads: tuple[str, ...]  # Names, in the order of ``places`` and ``distances``
    mean: Annotated[float, Compare("mean distance of heads")]  # Of all pairs
    random_weights: float | None  # The same with random weights; None unless --control ran
    nearness: Annotated[tuple[Nearness, ...], Compare(where="{0.group}")]
    plane: float | None  # Share of the heads' spread that ``places`` show
    #: Of each head, from classical scaling: squared distances are near to divergences.
    places: tuple[tuple[float, float], ...]
    distances: tuple[tuple[float, ...], ...]  # (n_heads, n_heads), six digits
