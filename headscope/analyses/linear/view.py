"""What is shown of ``linear``: what heads lose without the softmax, and whether keys explain it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headscope.analyses.linear.result import HeadCorrelation, LinearResult
from headscope.show import blocks as b
from headscope.show.cells import decimal, joined, mean_of, model_name, p_text
from headscope.show.estimates import ranged, run_lines
from headscope.show.metric_names import SHORT_NAMES
from headscope.show.page.parts import Card, Place, Scale
from headscope.show.view import KeyNumber, next_step, view

#: What the properties of heads are called that are correlated with errors.
PROPERTY_NAMES = {
    "coherence": "key coherence",
    "coherence_centred": "coherence without the keys' mean",
    "entropy": "pattern entropy",
}
#: What each readout of stored values is called.
READOUT_NAMES = {
    "scaled-sum": "sum of fast weights, best scale",
    "least-squares": "best linear readout",
    "softmax": "softmax",
}


def blocks(result: LinearResult) -> Iterator[b.Block]:
    """Show the feature maps, the heads, the correlations, and stored keys."""
    linear = result.form("linear")  # The softmax removed
    even = result.form("even")  # The baseline: every key has the same weight
    yield b.Text(_lead_sentence(result), "lead")
    yield b.HeadMap(
        "Error of each head's output without the softmax",
        "0 = exact, 1 = as bad as a constant output; mean "
        f"{ranged(linear.mean.scaled, 2)}, with even attention {ranged(even.mean.scaled, 2)}",
        {(head.layer_name, head.head): head.error("linear").scaled.value for head in result.heads},
        digits=2,
    )
    yield _forms_table(result)
    yield b.Text(_coherence_sentence(result), on=b.VERBOSE | b.PAGE)
    yield b.Text(correlation_sentence(result))
    yield _coherence_panels(result)
    yield _correlations_table(result)
    yield from _stored_keys(result)
    if result.bias_left_out:
        yield b.Text(
            "The model adds to its scores what depends on positions; no linear form can, so part "
            "of the error is the lost bias and not the lost softmax."
        )
    if result.softcap is not None:
        yield b.Text(
            f"The model bounds its scores by a soft cap of {result.softcap:g} before the softmax; "
            "the weights of a linear form have no bound, so part of the error is the lost cap."
        )
    if result.left_out:
        yield b.Text(f"Left out: {joined(result.left_out)}, which no text alone shows.")
    yield b.Text(run_lines(result), "soft", on=b.TERMINAL)
    yield next_step(result, "do heads need the direction of their scores?", "symmetric {}")


def _lead_sentence(result: LinearResult) -> str:
    """Say how near the outputs stay without the softmax in all heads, beside constant outputs."""
    linear = result.form("linear").whole_scaled
    metric = ""
    if result.task is not None:
        digits = 1 if result.task.higher_is_better else 2  # of points, or of nats
        before = decimal(result.task.baseline.value, digits)
        name = SHORT_NAMES.get(result.task.metric, result.task.metric)
        metric = f", {name} {before} to {decimal(linear.metric, digits)}"
    return (
        f"Without softmax everywhere: similarity to the original {ranged(linear.cosine, 2)}"
        f"{metric}. If every head gave one constant output, the similarity would be "
        f"{ranged(result.mean_output.cosine, 2)}."
    )


def _coherence_sentence(result: LinearResult) -> str:
    """Say how alike two keys of a sentence are, beside random directions and weights."""
    random = f"{result.random_coherence:.2f}"
    if result.control is not None:
        random += f", random weights {decimal(result.control.coherence, 2)}"
    raw = mean_of(head.coherence.value for head in result.heads)
    centred = mean_of(head.coherence_centred.value for head in result.heads)
    return (
        f"Two keys of a sentence have a mean |cosine| of {decimal(raw, 2)}, {decimal(centred, 2)} "
        f"without the keys' mean; random directions {random}."
    )


def _forms_table(result: LinearResult) -> b.Table:
    """Write the errors and effects of every form in all heads, and of constant outputs."""
    rows: list[tuple[object, ...]] = []
    for form in result.forms:
        mean = form.mean
        cosine = form.whole_scaled.cosine
        metric = form.whole_scaled.metric
        rows.append((mean.form, mean.error.value, mean.scaled, cosine, metric))
    constant = result.mean_output
    rows.append(("constant output", 1.0, 1.0, constant.cosine, constant.metric))
    task = () if result.task is None else (result.task.metric,)
    titles = ("all heads", "error", "best scale", "similarity", *task)
    columns = [(title, i, 2) for i, title in enumerate(titles)]
    return b.Table(columns, rows, on=b.VERBOSE | b.PAGE)


def _correlations_table(result: LinearResult) -> b.Table:
    """Write every correlation of the model, and the first three of random weights."""
    correlations = [("", correlation) for correlation in result.correlations]
    if result.control is not None:
        random_correlations = result.control.correlations[:3]
        correlations += [("random: ", correlation) for correlation in random_correlations]
    rows: list[tuple[object, ...]] = []
    for prefix, correlation in correlations:
        name = PROPERTY_NAMES[correlation.number].replace("without the keys' mean", "centred")
        constant = f" | {correlation.given}" if correlation.given else ""
        fit = "as it is" if correlation.fit == "error" else correlation.fit
        rows.append(
            (
                f"{prefix}{name}{constant}",
                f"{correlation.form}, {fit}",
                correlation.spearman,
                correlation.pearson.value,
                correlation.p,
            )
        )
    columns: list[b.Column] = [
        ("within layers", 0, str),
        ("with error of", 1, str),
        ("Spearman", 2, 2),
        ("Pearson", 3, 2),
        ("p", 4, p_text),
    ]
    return b.Table(columns, rows, on=b.VERBOSE | b.PAGE)


def _coherence_panels(result: LinearResult) -> b.Panels:
    """Draw every head's error against the coherence of its keys, and against its entropy."""
    layers = list(dict.fromkeys(head.layer_name for head in result.heads))  # each once
    errors = [head.error("linear").scaled.value for head in result.heads]
    groups = [layers.index(head.layer_name) for head in result.heads]
    panels: list[b.Chart] = []
    for name, title in PROPERTY_NAMES.items():
        correlation = next(each for each in result.correlations if each.number == name)
        x = [getattr(head, name).value for head in result.heads]  # ``head.coherence``, say
        random = {} if name == "entropy" else {"random directions": result.random_coherence}
        panels.append(
            b.Chart(
                f"Spearman {ranged(correlation.spearman, 2)}",
                title,
                "" if panels else "error without softmax, best scale",  # on the first alone
                [b.Series("heads", x, errors, "points", groups=groups)],
                levels={"constant output": 1.0},
                x_levels=random,
            )
        )
    return b.Panels(
        f"Do heads with similar keys lose more? {len(result.heads)} heads of {model_name(result)}, "
        "correlations within layers",
        panels,
        "linear_coherence",
        across=3,
        size=(10.0, 3.8),
        alt="Error of each head without softmax, at its best scale, by the coherence of its keys "
        "and by its entropy; the numbers are in linear.csv.",
        groups=("layer", layers),
        on=b.PAGE,
    )


def _stored_keys(result: LinearResult) -> Iterator[b.Block]:
    """Show how well values stored under a sentence's keys, and under N keys, are read back.

    Beside the errors for N keys stands what random keys give, by its closed form.
    """
    stored = result.stored
    text = (
        "Values stored under a sentence's own keys come back with an error of "
        f"{ranged(stored.linear, 3)} by the linear sum, {ranged(stored.softmax_own, 3)} by a "
        f"softmax as sharp as the head's own scores and {ranged(stored.softmax, 3)} by one of beta "
        f"sqrt(d_head) (mean over heads; the best linear readout "
        f"{decimal(stored.least_squares.value)})."
    )
    if result.control is not None:
        text += (
            " With random weights linear minus softmax is "
            f"{ranged(result.control.stored.difference, 3)}; here it is "
            f"{ranged(stored.difference, 3)} (difference {ranged(result.control.over_random, 3)})."
        )
    yield b.Text(text, on=b.VERBOSE | b.PAGE)
    columns: list[b.Column] = [
        ("N keys", "keys", str),
        ("d", "width", str),
        ("readout", lambda row: READOUT_NAMES[row.readout], str),
        ("error", "error", 3),
        ("random keys", "random", 3),
    ]
    if result.memory:
        yield b.Table(columns, result.memory, on=b.VERBOSE | b.PAGE)


def correlation_sentence(result: LinearResult) -> str:
    """Say whether key coherence predicts the error within layers, with the controls."""
    first = result.correlations[0]
    text = (
        f"Heads whose keys are more alike {_what_heads_lose(first)} than others of their layer: "
        f"{correlation_text(first)}"
    )
    if result.control is not None:
        text += f"; with random weights {correlation_text(result.control.correlations[0])}"
    return f"{text}."


def _what_heads_lose(correlation: HeadCorrelation) -> str:
    """Say from the interval of a correlation with the error whether such heads lose more."""
    if correlation.spearman.interval is None:
        return "cannot be told to lose more"
    low, high = correlation.spearman.interval
    if low > 0:
        return "lose more"
    return "lose less" if high < 0 else "do not clearly lose more"


def correlation_text(correlation: HeadCorrelation) -> str:
    """Write Spearman's correlation with its interval and p."""
    spearman = correlation.spearman
    n_layers = correlation.layers
    if spearman.interval is None:
        few = "one layer" if n_layers == 1 else f"{n_layers} layers"
        return f"{decimal(spearman.value, 2)} (Spearman; no interval from {few})"
    return f"{ranged(spearman, 2)} (Spearman, {n_layers} layers; p {p_text(correlation.p)})"


def _cards(result: LinearResult, places: Sequence[Place]) -> Iterator[Card]:
    """Yield a card for each head: its error without the softmax, how similar its keys are."""
    for head in result.heads:
        error = head.error("linear")
        text = (
            f"error {ranged(error.scaled, 2)} without the softmax at its best scale (even "
            f"attention {ranged(head.error('even').scaled, 2)}, constant output 1)"
        )
        keys = (
            f"mean |cosine| {ranged(head.coherence, 2)}, {ranged(head.coherence_centred, 2)} "
            f"without their mean (random directions {decimal(result.random_coherence, 2)})"
        )
        yield Card(
            head.layer,
            head.head,
            facts=[("Linear", text), ("Keys", keys)],
            values={"coherence": head.coherence.value, "linear": error.scaled.value},
        )


def _key_numbers(result: LinearResult) -> Iterator[KeyNumber]:
    """Yield the cosine without the softmax, and the correlation of coherence and error."""
    linear = result.form("linear")
    cosine = linear.whole_scaled.cosine
    yield KeyNumber(
        "cosine without the softmax, best scales",
        ranged(cosine),
        f"constant outputs {decimal(result.mean_output.cosine.value)}",
        cosine,
    )
    control = "-"
    if result.control is not None:
        control = f"random weights {ranged(result.control.correlations[0].spearman, 2)}"
    spearman = result.correlations[0].spearman
    yield KeyNumber(
        "key coherence and error without softmax, Spearman within layers",
        ranged(spearman, 2),
        control,
        spearman,
    )


VIEW = view(
    "What would attention do without the softmax?",
    blocks,
    {
        "linear": LinearResult.to_frame,
        "linear_forms": LinearResult.forms_frame,
        "linear_correlations": LinearResult.correlations_frame,
        "linear_memory": LinearResult.memory_frame,
    },
    cards=_cards,
    scales=(
        Scale("coherence", "Coherence of its keys"),
        Scale("linear", "Error without the softmax, best scale"),
    ),
    key_numbers=_key_numbers,
    term="linear attention",
)
