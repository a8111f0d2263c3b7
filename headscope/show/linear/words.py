"""The sentences that say what ``linear`` found."""

from __future__ import annotations

from headscope.results.linear import HeadCorrelation, LinearResult
from headscope.show.cells import decimal, joined, mean_of, p_text
from headscope.show.estimates import ranged

#: What the numbers of a correlation are called.
NUMBERS = {
    "coherence": "key coherence",
    "coherence_centred": "coherence without the keys' mean",
    "entropy": "pattern entropy",
}
READOUTS = {
    "sum": "sum of fast weights",
    "scaled-sum": "sum, best scale",
    "least-squares": "best linear readout",
    "softmax": "softmax",
}


def loss_sentence(result: LinearResult) -> str:
    """Say what the model loses without its softmax."""
    linear, even = result.form("linear"), result.form("even")
    text = (
        "Without softmax everywhere, each head at its best scale: similarity of the embeddings to "
        f"the original {ranged(linear.whole_scaled.cosine, 2)} (if every head gives one constant "
        f"output {ranged(result.mean_output.cosine, 2)})"
    )
    if result.task is not None:
        before, after = result.task.baseline.value, linear.whole_scaled.metric
        text += f", {result.task.metric} {decimal(before, 1)} to {decimal(after, 1)}"
    return (
        f"{text}. A head's output then errs by {ranged(linear.mean.scaled, 2)} of its spread (1: "
        f"no better than a constant; even attention {ranged(even.mean.scaled, 2)}; mean of heads)."
    )


def forms_sentence(result: LinearResult) -> str:
    """Say which feature map comes nearest."""
    forms = [form for form in result.forms if form.mean.form != "even"]
    known = [form for form in forms if form.whole_scaled.cosine.value is not None]
    if not known:
        return ""
    best = max(known, key=lambda form: form.whole_scaled.cosine.value or 0.0)
    return (
        f"The nearest of the feature maps is {best.mean.form}: error "
        f"{ranged(best.mean.scaled, 2)}, cosine {ranged(best.whole_scaled.cosine)} at its best "
        f"scale and {ranged(best.whole.cosine)} as it is."
    )


def correlation_sentence(result: LinearResult) -> str:
    """Say whether key coherence predicts the error within layers, beside the controls."""
    first = result.correlations[0]
    found = f"Key coherence and that error of the heads of a layer: {correlation_text(first)}"
    sides = {1: "they rise together", -1: "one falls as the other rises", 0: "no relation shows"}
    side = sides[_side(first)] if first.spearman.interval else "not measured"
    others = [
        f"{NUMBERS[row.number]} {correlation_text(row)}"
        for row in result.correlations[1:3]
        if row.spearman.value is not None
    ]
    text = f"{found}: {side}."
    if others:
        text += f" Beside it {joined(others)}."
    if result.control is not None:
        text += f" With random weights {correlation_text(result.control.correlations[0])}."
    return text


def correlation_text(row: HeadCorrelation) -> str:
    """Write Spearman's correlation with its interval and p."""
    if row.spearman.interval is None:
        few = "one layer" if row.layers == 1 else f"{row.layers} layers"
        return f"{decimal(row.spearman.value, 2)} (Spearman; no interval from {few})"
    return f"{ranged(row.spearman, 2)} (Spearman, {row.layers} layers; p {p_text(row.p)})"


def _side(row: HeadCorrelation) -> int:
    interval = row.spearman.interval
    if interval is None:
        return 0
    return int(interval[0] > 0) - int(interval[1] < 0)


def coherence_sentence(result: LinearResult) -> str:
    """Say how alike keys are."""
    means = [mean_coherence(result, name) for name in ("coherence", "coherence_centred")]
    text = (
        f"Two keys of a sentence have a mean |cosine| of {decimal(means[0], 2)}, "
        f"{decimal(means[1], 2)} without the keys' mean; random directions "
        f"{result.random_coherence:.2f}"
    )
    if result.control is not None:
        text += f", random weights {decimal(result.control.coherence, 2)}"
    return f"{text}."


def mean_coherence(result: LinearResult, name: str) -> float | None:
    """Return a coherence, mean over heads."""
    return mean_of(getattr(head, name).value for head in result.heads)


def memory_sentence(result: LinearResult) -> str:
    """Say what is read back from own keys, beside random weights."""
    own = result.stored
    text = (
        "Values stored under a sentence's own keys come back with an error of "
        f"{ranged(own.linear, 3)} by the linear sum, {ranged(own.softmax_own, 3)} by a softmax as "
        f"sharp as the head's own scores and {ranged(own.softmax, 3)} by one of beta sqrt(d_head) "
        f"(mean over heads; the best linear readout {decimal(own.least_squares.value)})."
    )
    if result.control is None:
        return text
    return (
        f"{text} With random weights linear minus softmax is "
        f"{ranged(result.control.stored.difference, 3)}; here it is {ranged(own.difference, 3)} "
        f"(difference {ranged(result.control.over_random, 3)})."
    )


def notes(result: LinearResult) -> list[str]:
    """Say what the numbers leave out."""
    found = []
    if result.bias_left_out:
        found.append(
            "The model adds to its scores what depends on positions; no linear form can, so part "
            "of the error is the lost bias and not the lost softmax."
        )
    if result.left_out:
        found.append(f"Left out: {joined(result.left_out)}, which no text alone shows.")
    return found
