"""The three steps after attention: skip, LayerNorm and feed-forward network."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from headscope.core.widest import widest
from headscope.measures.explain import feed_forward, layer_norm
from headscope.models.explain import Rest
from headscope.pipeline.explain.walk import Walk, made_step, matrix, rounded
from headscope.results.explain import ExplainStep

__all__ = ["rest_steps"]


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
