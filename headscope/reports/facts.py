"""What a result says, as facts that can be compared one by one with another result's.

Most are read off the marked fields of the result classes (``headscope.stats.compared``); what no
single field holds is added below, section by section. A fact has a key: the section, where it was
measured (``L3H5``, a curve's name) and what it is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from itertools import chain, repeat, zip_longest
from statistics import fmean
from typing import Any

from headscope.analyses.classify.result import ClassifyResult
from headscope.analyses.depth.result import DepthCurves, DepthResult
from headscope.analyses.explain.result import ExplainResult
from headscope.analyses.rank.result import RankResult
from headscope.analyses.spectrum.result import SpectrumResult
from headscope.core.heads import place_name
from headscope.core.serialise import to_dict
from headscope.pruning.result import Curve, PruneResult
from headscope.reports.reading import Results
from headscope.stats.compared import Compare, Setting, is_plain, marked
from headscope.stats.estimate import Estimate

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Number(Estimate):
    """A measured number, with its 95% interval where the result has one."""

    better: int = 0  # 1 where more is better, -1 where less is, 0 where neither is
    of_pruning: bool = False  # Whether it is the metric that pruning is judged by


@dataclass(frozen=True)
class Labels:
    """A set of labels (roles, relations, removed heads), and which one comes first if one does."""

    names: frozenset[str]
    primary: str = ""


#: A number, the points of a curve by name, a set of labels, or words such as a verdict.
Fact = Number | dict[str, Number] | Labels | str
Facts = dict[Key, Fact]
#: Where a fact of a section was measured, what it is called, and the fact itself.
Found = tuple[str, str, Fact]


def number(
    value: float | None,
    ends: Sequence[float | None] | None,
    better: int = 0,
    of_pruning: bool = False,
) -> Number:
    """Make a number with an interval from a file, which counts if it is two numbers in order."""
    low, high = ends if ends is not None and len(ends) == 2 else (None, None)
    if low is None or high is None or low > high:
        low = high = None
    return Number(value, low, high, better, of_pruning)


def facts_of(results: Results, sections: Iterable[str]) -> Facts:
    """Collect the facts of some sections."""
    facts: Facts = {}
    words = {True: "passed", False: "FAILED", None: "not asked for"}
    for section in sections:
        result = results.sections[section]
        if section in results.certificates:
            facts[section, "", "certificate"] = words[results.certificates[section].passed]
        more = _MORE_FACTS.get(section, lambda result: ())
        for where, name, fact in chain(_marked_facts(result), more(result)):
            facts[section, where, name] = fact
    return facts


def _marked_facts(row: Any, where: str = "", prefix: str = "") -> Iterator[Found]:
    """Yield the marked fields of a row, and those of the rows that it holds."""
    for name, mark in marked(type(row), Compare):
        value = getattr(row, name)
        called = name.replace("_", " ") if mark.name is None else mark.name
        beginning = mark.name or ""  # of the names of nested fields
        if mark.part and value is not None:
            value = getattr(value, mark.part)
        if mark.words or isinstance(value, str):
            text = mark.words.format(row).replace("None", "none") if mark.words else value
            yield mark.where or where, prefix + called, text
        elif isinstance(value, dict | tuple):
            rows = value.items() if isinstance(value, dict) else (("", item) for item in value)
            for key, item in rows:
                if item is None or _is_number(item):
                    yield where, f"{prefix}{beginning}{key}", _number(item, mark, row)
                else:
                    inner = mark.where.format(item, key=key) or where
                    yield from _marked_facts(item, inner, prefix + beginning.format(item, key=key))
        elif is_dataclass(value) and not _is_number(value):
            yield from _marked_facts(value, mark.where.format(value) or where, prefix + beginning)
        elif value is not None or mark.part or is_plain(row, name):
            fact = _number(value, mark, row)
            yield mark.where or where, prefix + called.format(row), fact


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Estimate)


def _number(value: Any, mark: Compare, row: Any) -> Number:
    """Make a number of a value, with the interval that it has or that other fields hold."""
    if isinstance(value, Estimate):
        return number(value.value, (value.low, value.high), mark.better)
    ends = [getattr(row, name) for name in mark.interval.split()]
    return number(value, ends[0] if len(ends) == 1 else ends, mark.better)


def settings_of(result: Any) -> dict[str, object]:
    """Return by name what a result was measured with, beyond its provenance."""
    settings = _marked_settings(result)
    if isinstance(result, ClassifyResult):
        corpus = result.corpus
        settings["pairs" if corpus.pairs else "sentences"] = corpus.sentences
        settings["stacks"] = ", ".join(result.stacks)
        settings |= {f"threshold {name}": value for name, value in result.thresholds.items()}
    if isinstance(result, PruneResult):
        settings |= {"examples": result.data.examples, "evaluation data": result.data.name}
        if result.calibration is not None:
            chosen_on = to_dict(result.calibration)
            del chosen_on["sha256"]
            settings["calibration"] = ", ".join(f"{k} {v}" for k, v in chosen_on.items())
    return settings


def _marked_settings(row: Any) -> dict[str, object]:
    settings: dict[str, object] = {}
    for name, mark in marked(type(row), Setting):
        value = getattr(row, name)
        if isinstance(value, dict):
            settings |= {key: value.get(key) for key in mark.keys or value}
        elif is_dataclass(value):
            settings |= _marked_settings(value)
        elif value is not None or is_plain(row, name):
            called = mark.name or name.replace("_", " ")
            settings[called] = list(value) if isinstance(value, tuple) else value
    return settings


#: Numbers of a head, and the role whose label gives each an interval.
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


def _classify(result: ClassifyResult) -> Iterator[Found]:
    for head in result.heads:
        # Which position, and which special token, belong to the role itself.
        details = {
            label.role: f" {label.detail}"
            for label in head.labels
            if label.detail and label.role in ("positional", "special")
        }
        roles = frozenset(role + details.get(role, "") for role in head.roles)
        yield head.name, "roles", Labels(roles, head.primary)
        relations = (f"{s.relation} {s.direction}" for s in head.syntactic if s.labelled)
        yield head.name, "relations", Labels(frozenset(relations))
        intervals = {label.role: label.score.interval for label in head.labels}
        if head.sharpness is not None:  # labelled or not
            intervals["sharp"] = head.sharpness.confidence.interval
        for name, role in _MEANS.items():
            value = getattr(head, name)
            if value is not None or name != "long_entropy":  # too little long text
                yield head.name, name.replace("_", " "), number(value, intervals.get(role))
    control = result.control
    if control is not None and control.swapped is not None:
        swapped = Number(control.swapped.labels)
        yield "swapped trees", "syntactic labels", swapped
    if control is not None and control.random_weights:
        stacks = control.by_stack or {"": control.roles}
        for stack, counts in stacks.items():
            where = f"random weights, {stack}" if stack else "random weights"
            for key, count in counts.items():
                if key != "heads":
                    yield where, f"{key} heads", Number(count)


def _half_width(error: float | None, n: int) -> float | None:
    """Return half of the interval (Student's t) of a mean over n sequences; None if unknown."""
    # Numpy and scipy take a tenth of a second, and most results need neither.
    from headscope.stats.statistics import finite, t_half_width

    return None if error is None else finite(float(t_half_width(error, n)))


def _depth(result: DepthResult) -> Iterator[Found]:
    models: list[tuple[str, DepthCurves]] = [("", result)]
    models += [("random weights: ", result.control)] if result.control is not None else []
    for prefix, curves in models:
        bare = "attention without layernorm"
        means = {**curves.variants, bare: curves.attention_without_layernorm}
        stds = {**curves.std, bare: curves.attention_without_layernorm_std}
        for variant, mean in means.items():
            root = math.sqrt(max(result.sequences, 1))
            halves = (
                _half_width(None if std is None else std / root, result.sequences)
                for std in stds.get(variant, ())
            )
            points = zip(mean, chain(halves, repeat(None)), strict=False)
            ratios = _by_layer(Number.around(*pair) for pair in points)
            yield prefix + variant, "ratio", ratios
        for part in curves.protected:
            rows = zip(part.mean, part.low, part.high, strict=False)
            share = _by_layer(number(value, ends) for value, *ends in rows)
            yield f"{prefix}{part.part} {part.way}", "share protected", share
        for variant, layers in curves.collapsed_after.items():
            text = "never" if layers is None else f"{layers} layers"
            yield prefix + variant, "collapsed after", text


def _by_layer(points: Iterable[Number]) -> dict[str, Number]:
    """Name each point of a curve: the embeddings, then the layers."""
    return {f"L{i - 1}" if i else "embeddings": point for i, point in enumerate(points)}


def _explain(result: ExplainResult) -> Iterator[Found]:
    yield "sentence", "head", result.name
    yield "sentence", "steps", ", ".join(step.key for step in result.steps)
    if (mix := result.step("mix")) is not None:
        table = mix.matrix("heads")
        for name, (share, *_) in zip(table.rows, table.values, strict=True):
            yield f"{name} of {result.name}", "share of the output", Number(share)


def _prune(result: PruneResult) -> Iterator[Found]:
    metric = result.metric
    better = result.sign
    unpruned = _pruned(result.baseline.value, better)
    yield "unpruned model", metric, unpruned
    yield from _prune_curves(result, result.curves, "")
    for stack in result.stacks:
        yield from _prune_curves(result, stack.curves, f"{stack.stack} alone, ")
    for area in result.areas:
        where = f"{area.stack} alone, {area.method}, {area.repair}"
        sign = 0 if area.method == "random" else better
        yield where, f"mean {metric}", _pruned(area.inner, sign)
    if (drop := result.max_drop) is not None:
        where = f"confirmed to cost at most {drop.wanted:g}"
        yield where, "heads removed", Number(drop.count, better=1)


def _pruned(value: Estimate, better: int) -> Number:
    return number(value.value, value.interval, better, of_pruning=True)


def _prune_curves(result: PruneResult, curves: Iterable[Curve], before: str) -> Iterator[Found]:
    """Yield every point of some curves; ``before`` says which heads could be removed."""
    for curve in curves:
        control = curve.method == "random"  # what random heads cost is no merit of the model
        for point in curve.points:
            percent = f"{100 * point.fraction:.1f}".removesuffix(".0")
            where = f"{before}{curve.name}, {percent}% removed"
            sign = 0 if control else result.sign
            yield where, result.metric, _pruned(point.value, sign)
            if not control:
                removed = frozenset(place_name(head) for head in point.heads_removed)
                yield where, "heads removed", Labels(removed)


def _rank(result: RankResult) -> Iterator[Found]:
    for layer in result.layers:
        for name in ("query", "key", "query_key"):
            values = [
                value
                for i, row in enumerate(getattr(layer.overlap, name))
                for j, value in enumerate(row)
                if name == "query_key" or i != j  # else the diagonal is 1
            ]
            overlap = Number(fmean(values) if values else None)
            yield f"layer {layer.layer}", f"overlap {name.replace('_', ' ')}", overlap


def _spectrum(result: SpectrumResult) -> Iterator[Found]:
    verdicts = dict.fromkeys(result.verdict.low_rank, "low rank")
    verdicts |= dict.fromkeys(result.verdict.not_low_rank, "not low rank")
    for head in result.heads:
        yield head.name, "verdict", verdicts.get(head.name, "between")
        rows = zip_longest(head.curve, head.curve_sem or ())
        points = {
            f"{i} largest": Number.around(value, _half_width(sem, result.sequences))
            for i, (value, sem) in enumerate(rows, start=1)
            if value is not None
        }
        yield head.name, "cumulative share", points


#: What no single field holds.
_MORE_FACTS: dict[str, Callable[[Any], Iterable[Found]]] = {
    "classify": _classify,
    "depth": _depth,
    "explain": _explain,
    "prune": _prune,
    "rank": _rank,
    "spectrum": _spectrum,
}
