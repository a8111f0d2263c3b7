"""What follows attention in the layer: skip connection, LayerNorm and feed-forward network.

A :class:`Step` has two functions. ``measure`` takes a :class:`Trace`, one sentence in one layer,
and returns numbers, matrices and checks; ``words`` yields sentences that say what they mean.
``trace.matrix(name, values)`` makes a matrix of the result, ``trace.check(what, ours, model)``
compares a tensor with the model's own. These steps are measured where the layer could be taken
apart: then ``trace.after`` has our own numbers of it, and ``trace.run.after`` the model's.
"""

from __future__ import annotations

from collections.abc import Iterator

from headscope.analyses.explain.measure import ComputedAfter, mean_length, rounded
from headscope.analyses.explain.result import ExplainResult, ExplainStep
from headscope.analyses.explain.steps.step import Measured, Numbers, Step, Trace
from headscope.analyses.explain.words import counted, percent
from headscope.core.widest import widest
from headscope.models.anatomy.explain import AfterAttention

#: Name of the tolerance of the checks here: that of hidden states.
_TOLERANCE = "hidden"


def _after(trace: Trace) -> tuple[ComputedAfter, AfterAttention]:
    """Return our own numbers of what follows attention, and the model's."""
    assert trace.after is not None
    assert trace.run.after is not None
    return trace.after, trace.run.after


# --- 10: skip connection --------------------------------------------------------------------------


def _measure_skip(trace: Trace) -> Measured:
    ours, model = _after(trace)
    numbers: Numbers = {
        "length_skip": mean_length(ours.skip),
        "length_attention": mean_length(trace.ours.out),
        "length_sum": mean_length(ours.summed),
    }
    check = trace.check("sum of skip and attention", ours.summed, model.summed, kind=_TOLERANCE)
    matrix = trace.matrix("x + attention", ours.summed)
    return Measured(numbers=numbers, matrices=[matrix], checks=[check])


def _words_of_skip(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    numbers = step.numbers
    yield (
        "The layer does not replace its input, it adds to it. Mean length of a token's row: "
        f"{numbers['length_skip']:.2f} in the input, {numbers['length_attention']:.2f} in what "
        f"attention adds, {numbers['length_sum']:.2f} in the sum."
    )


SKIP = Step(
    key="skip",
    title="Skip connection",
    formula="y = x + output",
    measure=_measure_skip,
    words=_words_of_skip,
)


# --- 11: LayerNorm --------------------------------------------------------------------------------


def _measure_layernorm(trace: Trace) -> Measured:
    ours, model = _after(trace)
    # Standard deviation of each token's row, (pos,), before and after
    spread_before = widest(ours.summed).std(-1, correction=0)
    spread_after = widest(ours.normed).std(-1, correction=0)
    numbers: Numbers = {
        "spread_after": rounded(spread_after.mean()),
        "spread_before_low": rounded(spread_before.min()),
        "spread_before_high": rounded(spread_before.max()),
    }
    check = trace.check("after LayerNorm", ours.normed, model.normed, kind=_TOLERANCE)
    matrix = trace.matrix("LayerNorm", ours.normed)
    return Measured(numbers=numbers, matrices=[matrix], checks=[check])


def _words_of_layernorm(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    numbers = step.numbers
    if result.layer_norm == "pre":
        where = (
            "Pre-LN: only what the feed-forward network reads is normalised, the sum itself goes on"
        )
    else:
        where = "Post-LN: the sum itself is normalised"
    yield (
        f"{where}. Each token on its own: rows spread by {numbers['spread_before_low']:.2f} to "
        f"{numbers['spread_before_high']:.2f} before (standard deviation) and by "
        f"{numbers['spread_after']:.2f} on average after, where the learned gain has acted too."
    )


LAYERNORM = Step(
    key="layernorm",
    title="LayerNorm",
    formula="(y - mean) / standard deviation * gain + shift",
    measure=_measure_layernorm,
    words=_words_of_layernorm,
)


# --- 12: feed-forward network ---------------------------------------------------------------------


def _measure_ffn(trace: Trace) -> Measured:
    ours, model = _after(trace)
    numbers: Numbers = {
        "d_ff": ours.hidden.shape[-1],
        "parameters": ours.parameters,
        "active": rounded(widest(ours.hidden > 0).mean()),  # share of the units above 0
    }
    check = trace.check("the layer's output", ours.layer_out, model.layer_out, kind=_TOLERANCE)
    matrix = trace.matrix("layer output", ours.layer_out)
    return Measured(numbers=numbers, matrices=[matrix], checks=[check])


def _words_of_ffn(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    numbers = step.numbers
    d_ff = counted(numbers["d_ff"])
    weights = result.step("weights")
    attention_parameters = None
    if weights is not None:
        attention_parameters = weights.numbers["parameters_layer"]
    times = (numbers["parameters"] or 0.0) / (attention_parameters or 1.0)
    rest = "its skip" if result.layer_norm == "pre" else "its skip and a second LayerNorm"
    yield (
        f"Each token on its own again: {result.d_model} -> {d_ff} -> {result.d_model} numbers, "
        f"{counted(numbers['parameters'])} weights ({times:.1f} times those of attention); "
        f"{percent(numbers['active'])} of the {d_ff} units are above 0. With {rest} this is the "
        "layer's output."
    )


FFN = Step(
    key="ffn",
    title="Feed-forward network",
    formula="f(y) = activation(y W_1 + b_1) W_2 + b_2",
    measure=_measure_ffn,
    words=_words_of_ffn,
)
