"""What a report says of its run as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headscope.reports.result import ReportResult
from headscope.show.cells import tiny
from headscope.show.view import view_of


def certificate(report: ReportResult) -> str:
    """Say whether our attention equals the model's."""
    found = report.validate
    summaries = (getattr(result, "validation", None) for result in report.sections.values())
    summary: Any = found or next(filter(None, summaries), None)
    if summary is None or summary.passed is None:
        return "Not validated: nothing proves that our attention equals the model's."
    if not summary.passed:
        why = "; ".join(found.reasons) if found is not None else "see headscope validate"
        return f"Validation FAILED, so nothing is reported on this model: {why}."
    return (
        f"Validated: our attention equals the model's own to {tiny(summary.max_abs_hidden)} on the "
        "last hidden state."
    )


def key_numbers(report: ReportResult) -> Iterator[tuple[str, str, str]]:
    """Yield what the report leads with: what it is, this model's value, the controls'."""
    for name, result in report.sections.items():
        for found in view_of(name).key_numbers(result):
            yield found.what, found.text, found.control


def settings_rows(report: ReportResult) -> list[tuple[str, str, str]]:
    """Return (section, setting, value) of everything that differs from the defaults."""
    return [
        (section, name, str(value))
        for section, table in report.settings.items()
        for name, value in table.items()
    ]
