"""What a result says, as facts that can be compared one by one with another result's.

Most are read off the marked fields of the result classes (``headscope.stats.compared``); what no
single field holds is added below, section by section. A fact has a key: the section, where it was
measured (``L3H5``, a curve's name) and what it is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from itertools import chain, repeat, zip_longest
from statistics import fmean
from typing import Any

from headscope.analyses.classify.result import ClassifyResult, HeadResult
from headscope.analyses.depth.result import DepthCurves, DepthResult
from headscope.analyses.explain.result import ExplainResult
from headscope.analyses.rank.result import RankResult
from headscope.analyses.spectrum.result import SpectrumResult
from headscope.core.heads import place_name
from headscope.core.roles import ROLES
from headscope.core.serialise import to_dict
from headscope.models.validation import certificate_of
from headscope.pruning.result import Curve, PruneResult
from headscope.reports.reading import Results
from headscope.stats.compared import Compare, Setting, is_plain, marked
from headscope.stats.estimate import Estimate, Z
from headscope.stats.ranks import MeanSem

__all__ = ["Z", "Facts", "Interval", "Key", "Labels", "Number", "facts_of", "settings_of"]

Key = tuple[str, str, str]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Number:
    """A measured number and its 95% interval, where the result has them."""

    value: float | None
    interval: Interval | None = None
    better: int = 0  # 1 where more is better, -1 where less is, 0 where neither is

    @classmethod
    def within(
        cls, value: float | None, interval: Sequence[float | None] | None, better: int = 0
    ) -> Number:
        """Make one with an interval from a file, which counts if it is two numbers in order."""
        low, high = interval if interval is not None and len(interval) == 2 else (None, None)
        if low is None or high is None or low > high:
            return cls(value, None, better)
        return cls(value, (low, high), better)

    @classmethod
    def around(cls, value: float | None, half: float | None) -> Number:
        """Make one with half of its interval, which counts if it is 0 or more."""
        if value is None or half is None or half < 0:
            return cls(value)
        return cls(value, (value - half, value + half))


@dataclass(frozen=True)
class Labels:
    """A set of labels, and which of them comes first, where one does."""

    names: frozenset[str]
    primary: str = ""


@dataclass
class Facts:
    """All facts of some results; the next to be added belong to ``section``."""

    section: str = ""
    numbers: dict[Key, Number] = field(default_factory=dict)
    metrics: dict[Key, Number] = field(default_factory=dict)  # What pruning is judged by
    curves: dict[Key, Mapping[str, Number]] = field(default_factory=dict)  # Points by name
    labels: dict[Key, Labels] = field(default_factory=dict)  # Roles, relations, removed heads
    texts: dict[Key, str] = field(default_factory=dict)  # Verdicts and the like

    def number(self, where: str, name: str, number: Number) -> None:
        """Add a number."""
        self.numbers[self.section, where, name] = number

    def metric(self, where: str, name: str, number: Number) -> None:
        """Add a number that pruning is judged by."""
        self.metrics[self.section, where, name] = number

    def curve(self, where: str, name: str, points: Mapping[str, Number]) -> None:
        """Add a curve by the names of its points."""
        self.curves[self.section, where, name] = points

    def label(self, where: str, name: str, names: Iterable[str], primary: str = "") -> None:
        """Add a set of labels."""
        self.labels[self.section, where, name] = Labels(frozenset(names), primary)

    def text(self, where: str, name: str, text: str) -> None:
        """Add a word or two."""
        self.texts[self.section, where, name] = text


def facts_of(results: Results, sections: Iterable[str]) -> Facts:
    """Collect the facts of some sections."""
    facts = Facts()
    words = {True: "passed", False: "FAILED", None: "not asked for"}
    for section in sections:
        facts.section, result = section, results.sections[section]
        if (certificate := certificate_of(result)) is not None:
            facts.text("", "certificate", words[certificate.passed])
        _walk(result, facts)
        if section in _MORE_FACTS:
            _MORE_FACTS[section](result, facts)
    return facts


def _walk(row: Any, facts: Facts, where: str = "", prefix: str = "") -> None:
    """Add the marked fields of a row, and those of the rows that it holds."""
    for name, mark in marked(type(row), Compare):
        value = getattr(row, name)
        called = name.replace("_", " ") if mark.name is None else mark.name
        beginning = mark.name or ""  # of the names of nested fields
        if mark.part and value is not None:
            value = getattr(value, mark.part)
        if mark.words or isinstance(value, str):
            text = mark.words.format(row).replace("None", "none") if mark.words else value
            facts.text(mark.where or where, prefix + called, text)
        elif isinstance(value, dict | tuple):
            rows = value.items() if isinstance(value, dict) else (("", item) for item in value)
            for key, item in rows:
                if item is None or _is_number(item):
                    facts.number(where, f"{prefix}{beginning}{key}", _number(item, mark, row))
                elif mark.unless is None or getattr(item, mark.unless[0]) != mark.unless[1]:
                    inner = mark.where.format(item, key=key) or where
                    _walk(item, facts, inner, prefix + beginning.format(item, key=key))
        elif is_dataclass(value) and not _is_number(value):
            _walk(value, facts, mark.where.format(value) or where, prefix + beginning)
        elif value is not None or mark.part or is_plain(row, name):
            number = _number(value, mark, row)
            facts.number(mark.where or where, prefix + called.format(row), number)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Estimate | MeanSem)


def _number(value: Any, mark: Compare, row: Any) -> Number:
    """Make a number of a value, with the interval that it has or that other fields hold."""
    interval: Any = None
    if isinstance(value, Estimate):
        value, interval = value.value, (value.low, value.high)
    elif isinstance(value, MeanSem):
        half = None if value.sem is None else Z * value.sem
        if mark.interval == "half_width":
            half = row.half_width
        return Number.around(value.mean, half)
    elif mark.interval:
        ends = [getattr(row, name) for name in mark.interval.split()]
        interval = ends if len(ends) == 2 else ends[0]
    return Number.within(value, interval, mark.better)


def settings_of(result: Any) -> dict[str, object]:
    """Return by name what a result was measured with, beyond its provenance."""
    settings = _settings(result)
    if isinstance(result, ClassifyResult):
        corpus = result.corpus
        settings |= {
            "pairs" if corpus.pairs else "sentences": corpus.sentences,
            "stacks": ", ".join(result.stacks),
            **({"norm-weighted": True} if result.norms is not None else {}),
            **{f"threshold {name}": value for name, value in result.thresholds.items()},
        }
    if isinstance(result, PruneResult):
        settings |= {"examples": result.data.examples, "evaluation data": result.data.name}
        if result.calibration is not None:
            chosen_on = to_dict(result.calibration)
            del chosen_on["sha256"]
            settings["calibration"] = ", ".join(f"{k} {v}" for k, v in chosen_on.items())
    return settings


def _settings(row: Any) -> dict[str, object]:
    settings: dict[str, object] = {}
    for name, mark in marked(type(row), Setting):
        value = getattr(row, name)
        if isinstance(value, dict):
            settings |= {key: value.get(key) for key in mark.keys or value}
        elif is_dataclass(value):
            settings |= _settings(value)
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


def _classify(result: ClassifyResult, facts: Facts) -> None:
    for head in result.heads:
        relations = (f"{s.relation} {s.direction}" for s in head.syntactic if s.labelled)
        facts.label(head.name, "roles", _roles(head), head.primary)
        facts.label(head.name, "relations", relations)
        intervals = {label.role: label.interval for label in head.labels}
        if head.sharpness is not None:  # labelled or not
            intervals["sharp"] = head.sharpness.interval
        for name, role in _MEANS.items():
            value = getattr(head, name)
            if value is not None or name != "long_entropy":  # files of earlier versions lack it
                number = Number.within(value, intervals.get(role))
                facts.number(head.name, name.replace("_", " "), number)
    control = result.control
    if control is not None and control.swapped is not None:
        facts.number("swapped trees", "syntactic labels", Number(control.swapped.labels))
    if control is not None and control.random_weights:
        stacks = control.by_stack or {"": {r.key: getattr(control, r.key) for r in ROLES}}
        for stack, counts in stacks.items():
            where = f"random weights, {stack}" if stack else "random weights"
            for key in (role.key for role in ROLES):
                if (count := counts.get(key)) is not None:
                    facts.number(where, f"{key} heads", Number(count))


def _roles(head: HeadResult) -> Iterator[str]:
    """A head's roles; which position and which special token belong to the role itself."""
    details = {label.role: label.detail for label in head.labels if label.detail}
    for role in head.roles:
        detail = details.get(role) if role in ("positional", "special") else ""
        yield f"{role} {detail}" if detail else role


def _depth(result: DepthResult, facts: Facts) -> None:
    _depth_curves(result, "", result.sequences, facts)
    if result.control is not None:
        _depth_curves(result.control, "random weights: ", result.sequences, facts)


def _depth_curves(curves: DepthCurves, prefix: str, windows: int, facts: Facts) -> None:
    bare = "attention without layernorm"
    means = {**curves.variants, bare: curves.attention_without_layernorm}
    stds = {**curves.std, bare: curves.attention_without_layernorm_std}
    for variant, mean in means.items():
        halves = (
            None if std is None or windows < 2 else Z * std / math.sqrt(windows)
            for std in stds.get(variant, ())
        )
        points = zip(mean, chain(halves, repeat(None)), strict=False)
        facts.curve(prefix + variant, "ratio", _by_layer(Number.around(*pair) for pair in points))
    for part in curves.protected:
        rows = zip(part.mean, part.low, part.high, strict=False)
        share = _by_layer(Number.within(value, (low, high)) for value, low, high in rows)
        facts.curve(f"{prefix}{part.part} {part.way}", "share protected", share)
    for variant, layers in curves.collapsed_after.items():
        text = "never" if layers is None else f"{layers} layers"
        facts.text(prefix + variant, "collapsed after", text)


def _by_layer(points: Iterable[Number]) -> dict[str, Number]:
    """Name each point of a curve: the embeddings, then the layers."""
    return {f"L{i - 1}" if i else "embeddings": point for i, point in enumerate(points)}


def _explain(result: ExplainResult, facts: Facts) -> None:
    facts.text("sentence", "head", result.name)
    facts.text("sentence", "steps", ", ".join(step.key for step in result.steps))
    if (mix := result.step("mix")) is not None:
        table = mix.matrix("heads")
        for name, (share, *_) in zip(table.rows, table.values, strict=True):
            facts.number(f"{name} of {result.name}", "share of the output", Number(share))


def _prune(result: PruneResult, facts: Facts) -> None:
    metric, better = result.metric, result.sign
    whole = Number.within(result.baseline.value, result.baseline.ci, better)
    facts.metric("unpruned model", metric, whole)
    _prune_curves(result, facts, result.curves, "")
    for stack in result.stacks:
        _prune_curves(result, facts, stack.curves, f"{stack.stack} alone, ")
    for area in result.areas:
        where = f"{area.stack} alone, {area.method}, {area.repair}"
        sign = 0 if area.method == "random" else better
        facts.metric(where, f"mean {metric}", Number.within(area.value, area.ci, sign))
    if (drop := result.max_drop) is not None:
        where = f"confirmed to cost at most {drop.wanted:g}"
        facts.number(where, "heads removed", Number(drop.count, None, 1))
    for price in result.even:
        where = f"{price.method}, {price.repair}, {price.per_layer} heads from every layer"
        even = Number.within(price.difference, price.ci, better)
        facts.number(where, f"{metric} against uneven layers", even)
    for row in result.ablation:
        facts.number(f"without {row.name}", metric, Number.within(row.value, row.ci))
    for kept in result.kept_alone:
        where = f"layer {kept.layer} with one head"
        facts.number(where, metric, Number.within(kept.value, kept.ci))


def _prune_curves(result: PruneResult, facts: Facts, curves: Sequence[Curve], before: str) -> None:
    """Add every point of some curves; ``before`` says which heads could be removed."""
    for curve in curves:
        control = curve.method == "random"  # what random heads cost is no merit of the model
        for point in curve.points:
            percent = f"{100 * point.fraction:.1f}".removesuffix(".0")
            where = f"{before}{curve.name}, {percent}% removed"
            value = Number.within(point.value, point.ci, 0 if control else result.sign)
            facts.metric(where, result.metric, value)
            if not control:
                removed = (place_name(place) for place in point.heads_removed)
                facts.label(where, "heads removed", removed)


def _rank(result: RankResult, facts: Facts) -> None:
    for layer in result.layers:
        for name in ("query", "key", "query_key"):
            every = name == "query_key"  # else the diagonal is 1
            values = [
                value
                for i, row in enumerate(getattr(layer.overlap, name))
                for j, value in enumerate(row)
                if every or i != j
            ]
            overlap = Number(fmean(values) if values else None)
            facts.number(f"layer {layer.layer}", f"overlap {name.replace('_', ' ')}", overlap)


def _spectrum(result: SpectrumResult, facts: Facts) -> None:
    verdicts = dict.fromkeys(result.verdict.low_rank, "low rank")
    verdicts |= dict.fromkeys(result.verdict.not_low_rank, "not low rank")
    for head in result.heads:
        facts.text(head.name, "verdict", verdicts.get(head.name, "between"))
        points = {
            f"{i} largest": Number.around(value, None if sem is None else Z * sem)
            for i, (value, sem) in enumerate(zip_longest(head.curve, head.curve_sem or ()), start=1)
            if value is not None
        }
        facts.curve(head.name, "cumulative share", points)


#: What no single field holds.
_MORE_FACTS: dict[str, Callable[[Any, Facts], None]] = {
    "classify": _classify,
    "depth": _depth,
    "explain": _explain,
    "prune": _prune,
    "rank": _rank,
    "spectrum": _spectrum,
}
