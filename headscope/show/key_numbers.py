"""The few numbers that a report leads with, each beside its control."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from headscope.results import ReportResult
from headscope.results.roles import ROLES
from headscope.show.cells import ratio_text, tiny
from headscope.show.prune.words import number

__all__ = ["certificate", "key_numbers", "role_counts", "settings_rows"]


def certificate(report: ReportResult) -> str:
    """Say whether our attention equals the model's."""
    found = report.validate
    summary: Any = found or next((s.validation for s in report.sections.values()), None)
    if summary is None or summary.passed is None:
        return "Not validated: nothing proves that our attention equals the model's."
    if not summary.passed:
        why = "; ".join(found.reasons) if found is not None else "see headscope validate"
        return f"Validation FAILED, so nothing is reported on this model: {why}."
    return (
        f"Validated: our attention equals the model's own to {tiny(summary.max_abs_hidden)} on the "
        "last hidden state."
    )


def role_counts(report: ReportResult) -> list[tuple[str, str, int, str]]:
    """Return (role, its name, heads, heads of the control) for every role that a head can have."""
    result = report.classify
    if result is None:
        return []
    counts = Counter(role for head in result.heads for role in head.roles)
    control = result.control
    known: dict[str, int] = {}
    if control is not None and control.random_weights:
        known = {role.key: getattr(control, role.key) for role in ROLES}
    rows = [(r.key, r.name, counts[r.key], str(known.get(r.key, "-"))) for r in ROLES]
    without = sum(not head.roles for head in result.heads)
    return [*rows, ("none", "no role on this corpus", without, "-")]


def key_numbers(report: ReportResult) -> Iterator[tuple[str, str, str]]:
    """Yield (what, this model, control)."""
    yield from _rank(report)
    yield from _spectrum(report)
    yield from _depth(report)
    yield from _prune(report)


def _rank(report: ReportResult) -> Iterator[tuple[str, str, str]]:
    result = report.rank
    if result is None:
        return
    for kind, rows in (("one head", result.heads), ("all heads of a layer", result.layers)):
        mine = _mean([row.qk.dims["90"] for row in rows])
        controls = []
        for name, control in result.controls.items():
            values = []
            for row in rows:
                known = control.of(result.heads_of(row.layer)) if control else None
                table = (known.heads if kind == "one head" else known.layers) if known else None
                values.append(table["qk"].dims["90"] if table else None)
            if any(value is not None for value in values):
                controls.append(f"{name} {_mean(values)}")
        yield f"dims90 of W_Q W_K^T, {kind}", mine, ", ".join(controls) or "-"


def _spectrum(report: ReportResult) -> Iterator[tuple[str, str, str]]:
    result = report.spectrum
    if result is not None and result.heads:
        share = sum(head.share_at_k.mean for head in result.heads) / len(result.heads)
        control = f"random scores {result.controls['random-logits'].share_at_k:.3f}"
        if result.random_weights is not None:
            mean = result.random_weights.share_at_k.mean
            control = f"random weights {mean:.3f}, {control}"
        yield (
            f"share of the {result.k} largest of {result.length} singular values, mean of heads",
            f"{share:.3f}",
            control,
        )


def _depth(report: ReportResult) -> Iterator[tuple[str, str, str]]:
    result = report.depth
    if result is None:
        return
    for name, text in (("attention", "attention only"), ("full", "full model")):
        control = "-"
        if result.control is not None:
            control = f"random weights {ratio_text(result.control.variants[name][-1])}"
        yield (
            f"residual after the last layer, {text}",
            ratio_text(result.variants[name][-1]),
            control,
        )


def _prune(report: ReportResult) -> Iterator[tuple[str, str, str]]:
    """The point nearest to half of the heads removed, best method against random heads."""
    result = report.prune
    if result is None or not result.curves:
        return
    sign = 1 if result.higher_is_better else -1
    at_half = [
        (curve, min(curve.points, key=lambda p: abs(p.fraction - 0.5)))
        for curve in result.curves
        if curve.points
    ]
    chosen = [item for item in at_half if item[0].method != "random"]
    if not chosen:
        return
    curve, point = max(chosen, key=lambda item: sign * item[1].value)
    random = next((p for c, p in at_half if c.method == "random"), None)
    repair = "" if curve.repair == "none" else f" + {curve.repair}"
    yield (
        f"{result.metric} with {point.fraction:.0%} of heads removed ({curve.method}{repair})",
        f"{number(point.value, result.metric)} (whole model "
        f"{number(result.baseline.value, result.metric)})",
        "-" if random is None else f"random heads {number(random.value, result.metric)}",
    )


def settings_rows(report: ReportResult) -> list[tuple[str, str, str]]:
    """Return (section, setting, value) of everything that differs from the defaults."""
    return [
        (section, name, str(value))
        for section, table in report.settings.items()
        for name, value in table.items()
    ]


def _mean(values: list[Any]) -> str:
    known = [float(value) for value in values if value is not None]
    return f"{sum(known) / len(known):.1f}" if known else "-"
