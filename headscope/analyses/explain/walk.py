"""Everything that is computed of one layer on one sentence, beside what the model computed."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.analyses.explain.measure import Attended, attend, feed_forward, layer_norm, mix
from headscope.analyses.explain.result import ExplainStep, Matrix, StepCheck
from headscope.attention import AttentionWeights, default_scale
from headscope.core.widest import widest
from headscope.models.evidence import largest_gap
from headscope.models.explain import Layer, Rest, Run
from headscope.models.layouts import Heads

__all__ = [
    "Computed",
    "Walk",
    "compared",
    "compute",
    "corner",
    "made_step",
    "matrix",
    "rounded",
    "rest_steps",
]

CORNER = 8  # Rows and columns that are shown of a learned matrix.


@dataclass(frozen=True)
class Computed:
    """Our own numbers of one layer, all heads, without the axis of examples."""

    weights: AttentionWeights  # Of the layer.
    heads: Heads  # q, k, v (n_heads, pos, d_head) as the weights make them.
    placed: Heads  # The same with positions in them.
    bias: Tensor | None  # (n_heads, query_pos, key_pos). What the family adds to the scores.
    scale: float  # What multiplies the products.
    attended: Attended  # Products, scores, pattern and z.

    @property
    def rotated(self) -> bool:
        """Whether positions turn q and k."""
        return not torch.equal(self.placed.q, self.heads.q)


def compute(layer: Layer) -> Computed:
    """Compute one layer from what it was called with and from its weights alone."""
    site, weights = layer.site, layer.weights()
    made = site.canonical(layer.inputs, weights)
    placed = layer.placed(made)
    added = layer.bias(placed)
    bias = None if added is None else added.expand(len(placed.q), site.n_heads, -1, -1)[0]
    scale = default_scale(site.d_head) if site.scale is None else site.scale
    attended = attend(*(t[0] for t in placed), scale=scale, bias=bias, allowed=layer.allowed[0])
    first, then = (Heads(*(t[0] for t in heads)) for heads in (made, placed))
    return Computed(weights, first, then, bias, scale, attended)


@dataclass(frozen=True)
class Walk:
    """One sentence, one layer, one head: what the steps are made from."""

    tokens: tuple[str, ...]  # Special tokens included.
    run: Run  # The model's own run of the sentence.
    #: The same with padding behind the sentence; None where there is no room for it.
    padded: Run | None
    place: int  # Of the head among those that its layer has now.
    tolerance: dict[str, float]  # Of the certificate, by what is compared.

    @property
    def layer(self) -> Layer:
        """The layer in the model's own run."""
        return self.run.layer

    @property
    def x(self) -> Tensor:
        """What the layer's queries are made from, (pos, d_model)."""
        return self.layer.inputs.x_q[0]

    @property
    def allowed(self) -> Tensor:
        """Which keys each query may see, (query_pos, key_pos)."""
        return self.layer.allowed[0]

    @functools.cached_property
    def ours(self) -> Computed:
        """What headscope computes."""
        return compute(self.layer)

    @functools.cached_property
    def mixed(self) -> tuple[Tensor, Tensor]:
        """What each head adds, (n_heads, pos, d_model), and the sum of all, (pos, d_model)."""
        beside = self.layer.beside()
        return mix(self.ours.attended.z, self.ours.weights, None if beside is None else beside[0])

    def check(self, what: str, ours: Tensor, own: Tensor | None, kind: str) -> StepCheck:
        """Hold one tensor against the model's own."""
        return compared(what, ours, own, self.tolerance[kind])


def made_step(
    number: int,
    key: str,
    numbers: Mapping[str, float | None],
    matrices: Sequence[Matrix],
    checks: Sequence[StepCheck],
) -> ExplainStep:
    """Put a step together; counts become floats, as a file that is read back has them."""
    floats = {name: None if value is None else float(value) for name, value in numbers.items()}
    return ExplainStep(number, key, floats, tuple(matrices), tuple(checks))


def compared(what: str, ours: Tensor, own: Tensor | None, tolerance: float) -> StepCheck:
    """Hold one tensor against the model's own; what cannot be compared differs without bound."""
    every = torch.ones(len(ours), dtype=torch.bool, device=ours.device)
    gap = largest_gap([(ours, own, every)])
    return StepCheck(what, math.inf if gap is None else gap, tolerance)


def matrix(
    name: str,
    values: Tensor,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    known: Tensor | None = None,
) -> Matrix:
    """Keep all of a matrix; None where ``known``, of its shape, is False."""
    kept = values.detach().cpu().double()
    shown = torch.ones_like(kept, dtype=torch.bool) if known is None else known.cpu()
    numbers = tuple(
        tuple(rounded(v) if k else None for v, k in zip(line, ok, strict=True))
        for line, ok in zip(kept.tolist(), shown.tolist(), strict=True)
    )
    return Matrix(name, tuple(values.shape), tuple(rows), tuple(columns), numbers)


def corner(name: str, values: Tensor) -> Matrix:
    """Keep the first rows and columns of a learned matrix, or the first numbers of a bias."""
    whole = values if values.dim() == 2 else values[None]
    kept = matrix(name, whole[:CORNER, :CORNER])
    return Matrix(name, tuple(whole.shape), (), (), kept.values)


def rounded(value: float) -> float:
    """Return a number with four significant digits; a rounded zero has no sign."""
    return float(f"{value:.4g}") + 0.0


def rest_steps(walk: Walk, rest: Rest, first: int) -> Iterator[ExplainStep]:
    """Yield the steps in order; ``first`` is the number of the first one."""
    skip, (_, out) = rest.layer_in[0], walk.mixed
    summed = skip + out
    normed = layer_norm(summed, *rest.norm)
    hidden, network = feed_forward(normed, rest.up, rest.activation, rest.down)
    after = summed + network if rest.norm_first else layer_norm(normed + network, *rest.last)
    yield made_step(
        first,
        "skip",
        {
            "length_skip": _length(skip),
            "length_attention": _length(out),
            "length_sum": _length(summed),
        },
        (matrix("x + attention", summed, walk.tokens),),
        (walk.check("sum of skip and attention", summed, rest.summed[0], "hidden"),),
    )
    spread = widest(summed).std(-1, correction=0)
    yield made_step(
        first + 1,
        "layernorm",
        {
            "spread_before": rounded(float(spread.mean())),
            "spread_after": rounded(float(widest(normed).std(-1, correction=0).mean())),
            "spread_before_low": rounded(float(spread.min())),
            "spread_before_high": rounded(float(spread.max())),
            "epsilon": rest.norm.epsilon,
        },
        (matrix("LayerNorm", normed, walk.tokens),),
        (walk.check("after LayerNorm", normed, rest.normed[0], "hidden"),),
    )
    yield made_step(
        first + 2,
        "ffn",
        {
            "d_ff": hidden.shape[-1],
            "parameters": rest.up.W.numel() + rest.down.W.numel(),
            "active": rounded(float(widest(hidden > 0).mean())),
            "length_ffn": _length(network),
            "length_out": _length(after),
        },
        (matrix("layer output", after, walk.tokens),),
        (walk.check("the layer's output", after, rest.layer_out[0], "hidden"),),
    )


def _length(x: Tensor) -> float:
    """Return the mean length of the tokens' vectors."""
    return rounded(float(widest(x).norm(dim=-1).mean()))
