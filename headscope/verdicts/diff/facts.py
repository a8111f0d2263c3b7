"""What a result says, as facts that can be compared one by one with another result's.

Each fact has a key: the section, where it was measured (``L3H5``, ``layer 2``, a curve's name) and
what it is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from statistics import fmean
from typing import Any

from headscope.results import (
    ClassifyResult,
    ControlResult,
    DepthCurves,
    DepthResult,
    HeadRank,
    HeadResult,
    InsightsResult,
    LayerRank,
    MatrixRank,
    MeanSem,
    Point,
    PruneResult,
    RankResult,
    SpectrumHead,
    SpectrumResult,
)
from headscope.results.rank import MATRICES
from headscope.results.roles import ROLES
from headscope.verdicts.reading import Results

__all__ = ["Facts", "Interval", "Key", "Labels", "Number", "facts_of"]

Key = tuple[str, str, str]
Interval = tuple[float, float]

_Z = 1.959963984540054  # a 95% normal interval is this many standard errors to either side
#: The number of a head that each role's label gives an interval to.
_MEAN_OF = {
    "special": "special_mass",
    "punctuation": "punctuation_mass",
    "broad": "entropy",
    "self": "self_rate",
    "duplicate": "duplicate_rate",
}
_PLAIN = (
    "confidence",
    "entropy",
    "relative_entropy",
    "special_mass",
    "first_special_mass",
    "last_special_mass",
    "punctuation_mass",
    "self_rate",
    "duplicate_rate",
)


@dataclass(frozen=True)
class Number:
    """A measured number.

    Attributes
    ----------
    value : float or None
    interval : tuple of two floats, or None
        95%.
    sign : int
        1 where more is better, -1 where less is, 0 where neither is.
    """

    value: float | None
    interval: Interval | None = None
    sign: int = 0


@dataclass(frozen=True)
class Labels:
    """A set of labels, and the first of them where there is one."""

    names: frozenset[str]
    primary: str = ""


@dataclass
class Facts:
    """All facts of a result, or of several.

    Attributes
    ----------
    numbers, metrics : dict of Key to Number
        ``metrics`` are what pruning is judged by.
    curves : dict of Key to dict of str to Number
        By the name of each point.
    labels : dict of Key to Labels
    texts : dict of Key to str
    """

    numbers: dict[Key, Number] = field(default_factory=dict)
    metrics: dict[Key, Number] = field(default_factory=dict)
    curves: dict[Key, dict[str, Number]] = field(default_factory=dict)
    labels: dict[Key, Labels] = field(default_factory=dict)
    texts: dict[Key, str] = field(default_factory=dict)


def facts_of(results: Results, sections: Iterable[str]) -> Facts:
    """Collect the facts of some sections."""
    facts = Facts()
    for section in sections:
        result = results.sections[section]
        _certificate(section, result, facts)
        _COLLECT[section](result, facts)
    return facts


def _certificate(section: str, result: Any, facts: Facts) -> None:
    holder = result if section == "validate" else getattr(result, "validation", None)
    if holder is not None:
        words = {True: "passed", False: "FAILED", None: "not asked for"}
        facts.texts[section, "", "certificate"] = words[holder.passed]


def _pair(interval: Sequence[float | None] | None) -> Interval | None:
    """Return an interval, or None where it is no pair of numbers in order."""
    if interval is None or len(interval) != 2 or None in interval:
        return None
    low, high = map(float, interval)  # type: ignore[arg-type]
    return (low, high) if low <= high else None


def _mean(found: MeanSem | None) -> Number:
    if found is None or found.sem is None:
        return Number(found.mean if found else None)
    return Number(found.mean, _around(found.mean, _Z * found.sem))


def _around(value: float, half: float | None) -> Interval | None:
    return None if half is None or half < 0 else (value - half, value + half)


def _words(name: str) -> str:
    return name.replace("_", " ")


# --- classify -----------------------------------------------------------------------------------


def _classify(result: ClassifyResult, facts: Facts) -> None:
    for head in result.heads:
        facts.labels["classify", head.name, "roles"] = Labels(_roles(head), head.primary)
        relations = frozenset(f"{s.relation} {s.direction}" for s in head.syntactic if s.labelled)
        facts.labels["classify", head.name, "relations"] = Labels(relations)
        for name, number in _head_numbers(head):
            facts.numbers["classify", head.name, name] = number
    if result.control is not None:
        _control(result.control, facts)


def _control(control: ControlResult, facts: Facts) -> None:
    if control.swapped is not None:
        labels = Number(control.swapped.labels)
        facts.numbers["classify", "swapped trees", "syntactic labels"] = labels
    if control.random_weights:
        for name in (role.key for role in ROLES):
            count = Number(getattr(control, name))
            facts.numbers["classify", "random weights", f"{name} heads"] = count


def _roles(head: HeadResult) -> frozenset[str]:
    """A head's roles; which position and which special token belong to the role itself."""
    details = {
        label.role: f" {label.detail}"
        for label in head.labels
        if label.role in ("positional", "special") and label.detail
    }
    return frozenset(role + details.get(role, "") for role in head.roles)


def _head_numbers(head: HeadResult) -> Iterable[tuple[str, Number]]:
    yield "positional score", Number(head.positional.score, _pair(head.positional.interval))
    yield "rare-word rate", Number(head.rare.rate, _pair(head.rare.interval))
    for score in head.syntactic:
        name = f"{score.relation} {score.direction}"
        yield name, Number(score.accuracy, _pair(score.interval))
    intervals = {
        _MEAN_OF[label.role]: _pair(label.interval)
        for label in head.labels
        if label.role in _MEAN_OF
    }
    for name in _PLAIN:
        yield _words(name), Number(getattr(head, name), intervals.get(name))


# --- rank ---------------------------------------------------------------------------------------


def _rank(result: RankResult, facts: Facts) -> None:
    rows: list[tuple[str, HeadRank | LayerRank]] = [(head.name, head) for head in result.heads]
    rows += [(f"layer {layer.layer}", layer) for layer in result.layers]
    for where, row in rows:
        for matrix in (*MATRICES, "qk_data"):
            _matrix(where, matrix, getattr(row, matrix), facts)
        facts.numbers["rank", where, "asymmetry"] = Number(row.asymmetry)
    for head in result.heads:
        if head.pattern_asymmetry is not None:
            pattern = _mean(head.pattern_asymmetry)
            facts.numbers["rank", head.name, "asymmetry of patterns"] = pattern
    for layer in result.layers:
        for name in ("query", "key", "query_key"):
            overlap = _overlap(getattr(layer.overlap, name), every=name == "query_key")
            facts.numbers["rank", f"layer {layer.layer}", f"overlap {_words(name)}"] = overlap
    _shared(result, facts)


def _matrix(where: str, matrix: str, found: MatrixRank | None, facts: Facts) -> None:
    if found is None:
        return
    values: dict[str, float | None] = {
        "numerical": found.numerical_rank.value,
        "stable": found.stable_rank,
        "effective": found.effective_rank,
        **{f"dims {share}": dims for share, dims in found.dims.items()},
    }
    for name, value in values.items():
        facts.numbers["rank", where, f"{matrix} {name}"] = Number(value)


def _overlap(rows: Sequence[Sequence[float]], *, every: bool) -> Number:
    values = [v for i, row in enumerate(rows) for j, v in enumerate(row) if every or i != j]
    return Number(fmean(values) if values else None)


def _shared(result: RankResult, facts: Facts) -> None:
    if result.shared is None:
        return
    for item in result.shared.widths:
        where = f"shared width {item.width}"
        facts.numbers["rank", where, "score error"] = Number(item.score_error)
        fidelity = Number(item.fidelity, _pair(item.fidelity_interval), 1)
        facts.numbers["rank", where, "fidelity"] = fidelity
    facts.texts["rank", "shared projections", "knee"] = str(result.shared.knee or "none")


# --- spectrum -----------------------------------------------------------------------------------


def _spectrum(result: SpectrumResult, facts: Facts) -> None:
    verdicts = dict.fromkeys(result.verdict.low_rank, "low rank")
    verdicts |= dict.fromkeys(result.verdict.not_low_rank, "not low rank")
    for head in result.heads:
        facts.texts["spectrum", head.name, "verdict"] = verdicts.get(head.name, "between")
        share = head.share_at_k.mean
        facts.numbers["spectrum", head.name, "share at k"] = Number(
            share, _around(share, head.half_width)
        )
        facts.numbers["spectrum", head.name, "share of squares at k"] = _mean(head.share_sq_at_k)
        facts.curves["spectrum", head.name, "cumulative share"] = _cumulative(head)
    for point in result.efficient.points if result.efficient else ():
        where = f"{point.form} of size {point.size}"
        facts.numbers["spectrum", where, "fidelity"] = _mean(point.fidelity)
        facts.numbers["spectrum", where, "error"] = Number(point.error)


def _cumulative(head: SpectrumHead) -> dict[str, Number]:
    sems = head.curve_sem or ()
    return {
        f"{i} largest": Number(value, _around(value, None if sem is None else _Z * sem))
        for i, (value, sem) in enumerate(zip_longest(head.curve, sems), start=1)
        if value is not None
    }


# --- depth --------------------------------------------------------------------------------------


def _depth(result: DepthResult, facts: Facts) -> None:
    _depth_curves(result, "", result.sequences, facts)
    if result.control is not None:
        _depth_curves(result.control, "random weights: ", result.sequences, facts)


def _depth_curves(curves: DepthCurves, prefix: str, windows: int, facts: Facts) -> None:
    bare = "attention without layernorm"
    means = {**curves.variants, bare: curves.attention_without_layernorm}
    stds = {**curves.std, bare: curves.attention_without_layernorm_std}
    for variant, mean in means.items():
        halves = [_half(std, windows) for std in stds.get(variant, ())]
        pairs = zip(mean, chain(halves, [None] * len(mean)), strict=False)
        facts.curves["depth", prefix + variant, "ratio"] = {
            _depth_name(i): Number(value, None if value is None else _around(value, half))
            for i, (value, half) in enumerate(pairs)
        }
    for part in curves.protected:
        facts.curves["depth", f"{prefix}{part.part} {part.way}", "share protected"] = {
            _depth_name(i): Number(value, _pair((low, high)))
            for i, (value, low, high) in enumerate(
                zip(part.mean, part.low, part.high, strict=False)
            )
        }
    for variant, layers in curves.collapsed_after.items():
        text = "never" if layers is None else f"{layers} layers"
        facts.texts["depth", prefix + variant, "collapsed after"] = text


def _half(std: float | None, windows: int) -> float | None:
    return None if std is None or windows < 2 else _Z * std / math.sqrt(windows)


def _depth_name(point: int) -> str:
    return "embeddings" if point == 0 else f"L{point - 1}"


# --- prune --------------------------------------------------------------------------------------


def _prune(result: PruneResult, facts: Facts) -> None:
    sign = 1 if result.higher_is_better else -1
    whole = Number(result.baseline.value, _pair(result.baseline.ci), sign)
    facts.metrics["prune", "unpruned model", result.metric] = whole
    for curve in result.curves:
        repair = "" if curve.repair == "none" else f" + {curve.repair}"
        control = curve.method == "random"  # what random heads cost is no merit of the model
        for point in curve.points:
            where = f"{curve.method}{repair}, {_percent(point.fraction)} removed"
            value = Number(point.value, _pair(point.ci), 0 if control else sign)
            facts.metrics["prune", where, result.metric] = value
            if not control:
                facts.labels["prune", where, "heads removed"] = Labels(_removed(point))
    for row in result.ablation:
        alone = Number(row.value, _pair(row.ci))
        facts.numbers["prune", f"without L{row.layer}H{row.head}", result.metric] = alone
    for kept in result.kept_alone:
        alone = Number(kept.value, _pair(kept.ci))
        facts.numbers["prune", f"layer {kept.layer} with one head", result.metric] = alone


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}".removesuffix(".0") + "%"


def _removed(point: Point) -> frozenset[str]:
    return frozenset("L" + "H".join(map(str, place)) for place in point.heads_removed)


# --- insights -----------------------------------------------------------------------------------


def _insights(result: InsightsResult, facts: Facts) -> None:
    for insight in result.insights:
        facts.texts["insights", f"insight {insight.number}", "verdict"] = insight.verdict


_COLLECT: Mapping[str, Callable[[Any, Facts], None]] = {
    "validate": lambda result, facts: None,
    "classify": _classify,
    "rank": _rank,
    "spectrum": _spectrum,
    "depth": _depth,
    "prune": _prune,
    "insights": _insights,
}
