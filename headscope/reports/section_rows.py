"""Results as rows: what ``headscope diff`` and the limits of a report compare.

A *row* is one thing that was measured: ``classify``, at ``L3H5``, ``entropy``, 1.2. Most rows are
one field of a result each, whose type is marked with ``Compare``: ``marked_rows`` yields these. The
functions below yield those rows that are made of several fields, such as a head's roles (labels and
their details), or each point of a curve. ``_MORE_ROWS`` at the end names the function of each
section, which takes its result; :func:`rows_of` puts everything together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any

from headscope.analyses.classify.result import ClassifyResult, HeadResult
from headscope.analyses.classify.roles import role_of
from headscope.analyses.depth.result import DepthCurves, DepthResult
from headscope.analyses.explain.result import ExplainResult
from headscope.analyses.rank.result import RankResult
from headscope.analyses.spectrum.result import SpectrumResult
from headscope.core.heads import address_name
from headscope.pruning.result import Curve, PruneResult
from headscope.reports.reading import Results
from headscope.reports.rows import Row, marked_rows, number_row
from headscope.stats.estimate import Estimate

_CERTIFICATE = {True: "passed", False: "FAILED", None: "not asked for"}


def rows_of(results: Results) -> tuple[Row, ...]:
    """Collect the rows of all sections; of two with the same key the later one counts."""
    rows: dict[tuple[str, ...], Row] = {}
    for section, result in results.sections.items():
        for row in _rows_of_section(section, result, results):
            rows[row.key] = row
    return tuple(rows.values())


def _rows_of_section(section: str, result: Any, results: Results) -> Iterator[Row]:
    """Yield whether our attention equals the model's, then what the result itself says."""
    certificate = results.certificates.get(section)
    if certificate is not None:
        yield Row(section, "", "certificate", words=_CERTIFICATE[certificate.passed])
    yield from marked_rows(section, result)
    if section in _MORE_ROWS:
        yield from _MORE_ROWS[section](result)


# --- classify ---

#: Numbers of a head, and the role that is earned by this very number: its label has an interval
#: for it. Empty: no role's score is this number, so it has no interval.
_MEANS = {
    "confidence": "sharp",
    "entropy": "",
    "relative_entropy": "",
    "special_mass": "special",
    "first_special_mass": "",
    "last_special_mass": "",
    "punctuation_mass": "punctuation",
    "self_rate": "self",
    "duplicate_rate": "duplicate",
    "long_entropy": "broad",
}


def _classify_rows(result: ClassifyResult) -> Iterator[Row]:
    """Yield what each head does, then how many labels the controls have: swapped and random."""
    for head in result.heads:
        yield from _head_rows(head)
    control = result.control
    if control is None:
        return
    if control.swapped is not None:
        n_labels = control.swapped.labels
        yield Row("classify", "swapped trees", "syntactic labels", value=n_labels)
    if control.random_weights:
        random_labels = tuple(control.false_positives)
        where = "random weights"
        # Not compared by ``diff``, which compares the counts below: for limits alone.
        yield Row("classify", where, "false positives", labels=random_labels, compared=False)
        for stack, counts in (control.by_stack or {"": control.roles}).items():
            stack_where = f"{where}, {stack}" if stack else where
            for role, count in counts.items():
                if role != "heads":  # beside the roles: how many heads were measured
                    yield Row("classify", stack_where, f"{role} heads", value=count)


def _head_rows(head: HeadResult) -> Iterator[Row]:
    """Yield the roles of a head, its syntactic relations, and the means over its attention."""
    # Figures show a role by its ``mark``, such as "broad". A role without one is shown by its
    # detail: which position, which special token. Here the detail follows it: "positional -1".
    details = {
        label.role: label.detail
        for label in head.labels
        if label.detail and not role_of(label.role).mark
    }
    roles = {f"{role} {details[role]}" if role in details else role for role in head.roles}
    yield _labels_row("classify", head.name, "roles", roles, primary=head.primary)

    relations = {
        f"{score.relation} {score.direction}" for score in head.syntactic if score.labelled
    }
    yield _labels_row("classify", head.name, "relations", relations)

    scores = {label.role: label.score for label in head.labels}
    if head.sharpness is not None:  # labelled or not
        scores["sharp"] = head.sharpness.confidence
    for field, role in _MEANS.items():
        value = getattr(head, field)
        if value is None and field == "long_entropy":  # too little long text
            continue
        interval = scores.get(role, Estimate(None))
        number = Estimate(value, interval.low, interval.high)
        yield number_row("classify", head.name, field.replace("_", " "), number)


def _labels_row(
    section: str, where: str, name: str, labels: Iterable[str], primary: str = ""
) -> Row:
    """Make a row of labels, sorted, each once."""
    return Row(section, where, name, labels=tuple(sorted(set(labels))), primary=primary)


# --- depth ---


def _depth_rows(result: DepthResult) -> Iterator[Row]:
    """Yield the curves of the model, and those of random weights."""
    yield from _depth_curves(result, result.sequences)
    if result.control is not None:
        yield from _depth_curves(result.control, result.sequences, "random weights: ")


def _depth_curves(curves: DepthCurves, sequences: int, prefix: str = "") -> Iterator[Row]:
    """Yield how alike tokens are after each layer, in each variant of one model.

    ``prefix`` begins the names of the variants, unless it is the model itself.
    """
    bare = "attention without layernorm"
    means = {**curves.variants, bare: curves.attention_without_layernorm}
    deviations = {**curves.std, bare: curves.attention_without_layernorm_std}
    root = math.sqrt(max(sequences, 1))
    for variant, ratios in means.items():
        errors = [std if std is None else std / root for std in deviations.get(variant, ())]
        yield from _by_layer(prefix + variant, "ratio", _points(ratios, errors, sequences))
    for share in curves.protected:
        # Read from a file, a result may have curves of unequal length: points that all three have.
        rows = zip(share.mean, share.low, share.high, strict=False)
        numbers = [Estimate(mean, low, high) for mean, low, high in rows]
        yield from _by_layer(f"{prefix}{share.part} {share.way}", "share protected", numbers)
    for variant, layers in curves.collapsed_after.items():
        words = "never" if layers is None else f"{layers} layers"
        yield Row("depth", prefix + variant, "collapsed after", words=words)


def _points(
    means: Sequence[float | None], errors: Sequence[float | None], sequences: int
) -> list[Estimate]:
    """Give each mean over sequences its 95% interval (Student's t), where its error is known."""
    # Numpy and scipy take a tenth of a second, and most results need neither.
    from headscope.stats.statistics import finite, t_half_width

    numbers = []
    for i, mean in enumerate(means):
        error = errors[i] if i < len(errors) else None
        half_width = None if error is None else finite(float(t_half_width(error, sequences)))
        numbers.append(Estimate.around(mean, half_width))
    return numbers


def _by_layer(where: str, name: str, points: Iterable[Estimate]) -> Iterator[Row]:
    """Yield the points of a curve: the embeddings, then the layers."""
    for depth, number in enumerate(points):
        point = f"L{depth - 1}" if depth else "embeddings"
        yield number_row("depth", where, name, number, point=point)


# --- explain ---


def _explain_rows(result: ExplainResult) -> Iterator[Row]:
    """Yield which head and steps are shown, and the share of the output that each head writes."""
    yield Row("explain", "sentence", "head", words=result.name)
    yield Row("explain", "sentence", "steps", words=", ".join(step.key for step in result.steps))
    mix = result.step("mix")
    if mix is None:
        return
    table = mix.matrix("heads")
    for head, values in zip(table.rows, table.values, strict=True):
        where = f"{head} of {result.name}"
        yield Row("explain", where, "share of the output", value=values[0])


# --- prune ---


def _prune_rows(result: PruneResult) -> Iterator[Row]:
    """Yield the metric: unpruned, along curves, and its mean over each; how many heads can go."""
    unpruned = "unpruned model"
    # Not compared by ``diff``: for limits alone.
    yield Row("prune", unpruned, "heads", value=result.n_heads, compared=False)
    yield _metric_row(result, unpruned, result.baseline.value, better=result.sign)
    for curve in result.curves:
        yield from _pruning_curve(result, curve)
    for stack in result.stacks:
        for curve in stack.curves:
            yield from _pruning_curve(result, curve, stack.stack)
    for area in result.areas:  # ``inner``: the metric's mean over shares, both ends left out
        where = f"{area.stack} alone, {area.method}, {area.repair}"
        better = 0 if area.method == "random" else result.sign
        name = f"mean {result.metric}"
        yield number_row("prune", where, name, area.inner, better=better, of_pruning=True)
    if result.max_drop is not None:
        where = f"confirmed to cost at most {result.max_drop.wanted:g}"
        yield Row("prune", where, "heads removed", value=result.max_drop.count, better=1)


def _metric_row(result: PruneResult, where: str, number: Estimate, **fields: Any) -> Row:
    # ``of_pruning``: this is the metric that pruning is judged by; rules may bound its loss.
    return number_row("prune", where, result.metric, number, of_pruning=True, **fields)


def _pruning_curve(result: PruneResult, curve: Curve, stack: str = "") -> Iterator[Row]:
    """Yield the metric at every point of a curve, and the heads that are removed there.

    What random heads cost is no merit of the model: there neither more nor less is better. A
    ``stack`` is named where only its heads could be removed.
    """
    is_control = curve.method == "random"
    curve_name = f"{stack} alone, {curve.name}" if stack else curve.name
    for point in curve.points:
        percent = f"{100 * point.fraction:.1f}".removesuffix(".0")
        where = f"{curve_name}, {percent}% removed"
        yield _metric_row(
            result,
            where,
            point.value,
            better=0 if is_control else result.sign,
            # Limits go by shares of all heads; a stack's fraction is one of its own heads.
            removed_share=None if stack else point.fraction,
        )
        if not is_control:
            heads = [address_name(head) for head in point.heads_removed]
            yield _labels_row("prune", where, "heads removed", heads)


# --- rank and spectrum ---


def _rank_rows(result: RankResult) -> Iterator[Row]:
    """Yield how far the heads of a layer share dimensions: means over pairs of heads."""
    for layer in result.layers:
        where = f"layer {layer.layer}"
        for field in ("query", "key", "query_key"):
            values = _pairs_of_heads(getattr(layer.overlap, field), diagonal=field == "query_key")
            mean = fmean(values) if values else None
            yield Row("rank", where, f"overlap {field.replace('_', ' ')}", value=mean)


def _pairs_of_heads(overlaps: Sequence[Sequence[float]], *, diagonal: bool) -> list[float]:
    """List the entries of a matrix heads x heads, with or without those of a head with itself."""
    values: list[float] = []
    for i, row in enumerate(overlaps):
        values += [value for j, value in enumerate(row) if diagonal or i != j]
    return values


def _spectrum_rows(result: SpectrumResult) -> Iterator[Row]:
    """Yield the verdict of each head, and its curve of cumulative shares."""
    verdicts = dict.fromkeys(result.verdict.low_rank, "low rank")
    verdicts |= dict.fromkeys(result.verdict.not_low_rank, "not low rank")
    for head in result.heads:
        yield Row("spectrum", head.name, "verdict", words=verdicts.get(head.name, "between"))
        numbers = _points(head.curve, head.curve_sem or (), result.sequences)
        for largest, number in enumerate(numbers, start=1):
            point = f"{largest} largest"
            yield number_row("spectrum", head.name, "cumulative share", number, point=point)


_MORE_ROWS: dict[str, Callable[[Any], Iterator[Row]]] = {
    "classify": _classify_rows,
    "depth": _depth_rows,
    "explain": _explain_rows,
    "prune": _prune_rows,
    "rank": _rank_rows,
    "spectrum": _spectrum_rows,
}
