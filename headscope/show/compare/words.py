"""What the terminal, Markdown and the page say of reports side by side."""

from __future__ import annotations

from collections.abc import Iterator

from headscope.results.compare import Compared, ComparedCell, CompareResult, Unlike

__all__ = ["ALIKE", "cell_text", "control_text", "described", "short_name", "unlike_lines"]

#: Said where nothing but the models may differ.
ALIKE = "The reports were measured alike: schema, data, seeds and settings are the same."
_CAPTIONS = {"schema": "DIFFERENT SCHEMA", "data": "DIFFERENT DATA"}


def described(report: Compared) -> str:
    """Say which model a report is of, and how well our attention equals its own."""
    weights = f", weights {report.weights_sha256[:8]}" if report.weights_sha256 else ""
    family = f"{report.family}, " if report.family else ""
    text = f"{report.name} ({report.place}): {family}{report.size}{weights}; {report.certificate}"
    return f"{text}; without {', '.join(report.missing)}" if report.missing else text


def short_name(report: Compared) -> str:
    """Return the last part of a model's path or hub id."""
    return report.name.rstrip("/").rpartition("/")[2] or report.name


def unlike_lines(result: CompareResult) -> Iterator[tuple[str, str]]:
    """Say what else differs between the runs, what matters most first: a caption, and who has what.

    Nothing where only the model differs.
    """
    for row in result.unlike:
        caption = _CAPTIONS.get(row.what, f"Setting {row.name}")
        yield f"{caption} ({', '.join(row.sections)})", _who(result, row)


def _who(result: CompareResult, row: Unlike) -> str:
    """Write each value once, after the reports that have it."""
    holders: dict[str, list[str]] = {}
    for report, value in zip(result.reports, row.values, strict=True):
        holders.setdefault(value, []).append(report.label)
    return "; ".join(f"{', '.join(labels)}: {value}" for value, labels in holders.items())


def cell_text(cell: ComparedCell | None) -> str:
    """Write a value as it stands in a table."""
    return "-" if cell is None else cell.text


def control_text(cell: ComparedCell | None) -> str:
    """Write the controls of a value; nothing where there is none."""
    return "" if cell is None or cell.control == "-" else cell.control
