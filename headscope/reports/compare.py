"""Two reports or more side by side: the key numbers of each, and what else differs.

The rows of this table are the few numbers that each section's view leads with. With rules, what
changed from the first report to each other one is found row by row, as ``diff`` does.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from itertools import count, islice, product
from pathlib import Path

from headscope.analyses.classify.cards import head_sentence, mark_of
from headscope.analyses.classify.result import ClassifyResult
from headscope.commands import SECTIONS
from headscope.core.errors import InputError
from headscope.core.safe_text import visible
from headscope.core.serialise import to_dict
from headscope.reports.agreement import agreements, role_p_values
from headscope.reports.baseline import measurements_of
from headscope.reports.changes import TOLERANCE, apart, changes_between
from headscope.reports.conditions import conditions_of, size_of, unequal_conditions
from headscope.reports.reading import Results, read_results, results_of
from headscope.reports.result import (
    Compared,
    ComparedCell,
    ComparedHead,
    ComparedRow,
    CompareResult,
    DiffResult,
    ReportResult,
    Unlike,
)
from headscope.reports.rules import Rule, parse_rules, with_fired
from headscope.show.cells import tiny
from headscope.show.view import NOT_TESTABLE, KeyNumber, view_of

_SIGNIFICANT = 0.05  # Adjusted p below which counts of roles clearly differ


def compare(
    reports: Sequence[str | Path | ReportResult],
    *,
    fail_on: Sequence[str] = (),
    tolerance: float = TOLERANCE,
) -> CompareResult:
    """Compare several models' reports: the key numbers of each, with their intervals.

    Parameters
    ----------
    reports : list of str, Path or result
        Two or more: folders of reports, their ``report.json``, or what :func:`headscope.report`
        (or one command, such as :func:`headscope.classify`) returned.
    fail_on : list of str, optional
        Rules such as ``role-lost`` and ``metric-drop=2%``: the result then holds what changed from
        the first report to each other one, and which rules fired.
    tolerance : float, default 0.01
        Share of a number (of 1, where it is smaller) that it may differ where it has no interval.

    Returns
    -------
    CompareResult
        Frozen raw values; ``.to_frame()`` gives pandas.

    Raises
    ------
    InputError
        For fewer than two reports, or for what cannot be read as one.
    """
    if isinstance(reports, str | Path):
        raise InputError("Comparing takes a list of two reports or more; give them in one list.")
    return side_by_side(
        [_read(report) for report in reports], parse_rules(fail_on), tolerance=tolerance
    )


def _read(report: str | Path | ReportResult) -> Results:
    """Read a report from its folder or file, or take the result that was handed over."""
    if isinstance(report, str | Path):
        return read_results(Path(report))
    return results_of(to_dict(report), str(report.provenance["model"]["id"]))


def side_by_side(
    reports: Sequence[Results], rules: Sequence[Rule] = (), *, tolerance: float = TOLERANCE
) -> CompareResult:
    """Compare reports: each section's key numbers, and what else its view compares.

    With ``rules``, the changes from the first report to each other one are checked.
    """
    if len(reports) < 2:
        raise InputError("Comparing takes two reports or more; give another.")
    rows: list[ComparedRow] = []
    for section in SECTIONS:
        rows += _rows_of_section(section, reports)
    if not any(_is_shared(row) for row in rows):
        contents = [
            f"{visible(report.name)} has {', '.join(report.sections)}" for report in reports
        ]
        raise InputError(f"These reports have nothing in common to compare: {'; '.join(contents)}.")
    sections = _sections_of(reports)
    letters = list(islice(_letters(), len(reports)))
    return CompareResult(
        reports=tuple(
            _described(label, report, sections)
            for label, report in zip(letters, reports, strict=True)
        ),
        rows=tuple(rows),
        unlike=unlike(reports),
        changes=_changes(reports, rules, tolerance) if rules else (),
        agreement=agreements(reports, letters),
    )


def unlike(reports: Sequence[Results]) -> tuple[Unlike, ...]:
    """List what is not the same in all reports that have a section, besides the model."""
    runs = [
        {section: conditions_of(report, section) for section in report.sections}
        for report in reports
    ]
    return tuple(unequal_conditions(runs, _sections_of(reports), same_model=False))


def _sections_of(reports: Sequence[Results]) -> list[str]:
    """List the sections that any of the reports has, in the order of a report."""
    return [name for name in SECTIONS if any(name in report.sections for report in reports)]


def _changes(
    reports: Sequence[Results], rules: Sequence[Rule], tolerance: float
) -> tuple[DiffResult, ...]:
    """Return what changed from the first report to each other one, with the rules that fired."""
    first = measurements_of(reports[0])
    changes = []
    for report in reports[1:]:
        diff = changes_between(first, measurements_of(report), tolerance=tolerance)
        changes.append(with_fired(diff, rules))
    return tuple(changes)


def _letters() -> Iterator[str]:
    """Yield A to Z, then AA, AB and so on: what tables call the reports."""
    for length in count(1):
        for letters in product(string.ascii_uppercase, repeat=length):
            yield "".join(letters)


# --- the rows of the table ---


def _rows_of_section(section: str, reports: Sequence[Results]) -> list[ComparedRow]:
    """Return a row for each number that a report leads with, in the order of the first one."""
    columns = [_key_numbers(section, report) for report in reports]
    role_of: dict[str, str] = {}  # by the name of a row, empty where it counts no heads
    for column in columns:
        role_of |= {name: number.role for name, number in column.items()}
    p_values = role_p_values(reports) if section == "classify" else {}
    rows = []
    for name, role in role_of.items():
        cells = [_cell(column.get(name)) for column in columns]
        rows.append(ComparedRow(section, name, tuple(cells), p_adjusted=p_values.get(role)))
    return rows


def _cell(number: KeyNumber | None) -> ComparedCell | None:
    """Return what a report says in one row; None where it says nothing."""
    if number is None:
        return None
    return ComparedCell(number.text, number.control, number.number)


def _is_shared(row: ComparedRow) -> bool:
    return len(row.cells) - row.cells.count(None) >= 2


def _key_numbers(section: str, report: Results) -> dict[str, KeyNumber]:
    """Return by name what a section leads with, and what its view only compares."""
    result = report.sections.get(section)
    if result is None:
        return {}
    view = view_of(section)
    try:
        numbers = [*view.compared(result), *view.key_numbers(result)]
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        # The file's fields have the right types, but what stands in them does not fit together.
        raise InputError(
            f"{visible(report.name)} ({section}) is damaged: it lacks something that its key "
            "numbers are made of; measure it again."
        ) from None
    return {number.what: number for number in numbers}


def can_differ(row: ComparedRow) -> bool:
    """Whether :func:`is_apart` could say of a row that the reports clearly differ.

    Of a number without an interval, of counts of different heads, and of roles that are not
    testable, it never could.
    """
    if row.p_adjusted is not None:
        return True
    cells = [cell for cell in row.cells if cell is not None]
    if any(cell.text == NOT_TESTABLE for cell in cells):
        return False
    if all(cell.number.value is None for cell in cells):
        return True
    return all(cell.number.interval is not None for cell in cells)


def is_apart(row: ComparedRow) -> bool:
    """Whether the reports that have a row clearly differ: by intervals, a paired test, or words."""
    if row.p_adjusted is not None:
        return row.p_adjusted < _SIGNIFICANT
    cells = [cell for cell in row.cells if cell is not None]
    intervals = [cell.number.interval for cell in cells]
    known = [interval for interval in intervals if interval is not None]
    if known and len(known) == len(cells):
        return apart(known)
    are_words = all(cell.number.value is None for cell in cells)
    return are_words and len({cell.text for cell in cells}) > 1


def is_changed(row: ComparedRow) -> bool:
    """Whether all reports have a row and it changed: beyond its intervals, where it has any."""
    cells = [cell for cell in row.cells if cell is not None]
    if any(cell.number.interval is not None for cell in cells):
        return is_apart(row)
    return len(cells) == len(row.cells) and len({cell.text for cell in cells}) > 1


# --- the reports ---


def _described(label: str, report: Results, sections: Sequence[str]) -> Compared:
    """Say which model a report is of, and whether our attention equals the model's."""
    model = _model_of(report)
    return Compared(
        label=label,
        name=str(model.get("id") or "unknown model"),
        place=report.name,
        family=str(model.get("family") or ""),
        size=size_of(model),
        weights_sha256=str(model.get("weights_sha256") or ""),
        certificate=_certificate(report),
        missing=tuple(name for name in sections if name not in report.sections),
        heads=_heads(report),
    )


def _model_of(report: Results) -> dict[str, object]:
    """Return what the first section that says it records of the model."""
    for raw in report.raw.values():
        provenance = raw.get("provenance")
        model = provenance.get("model") if isinstance(provenance, dict) else None
        if isinstance(model, dict):
            return model
    return {}


def _certificate(report: Results) -> str:
    """Say in words whether our attention equals the model's; a failure is said before all else."""
    certificates = report.certificates
    failed = [name for name, certificate in certificates.items() if certificate.passed is False]
    if failed:
        return f"validation FAILED ({', '.join(failed)})"
    unknown = [name for name, certificate in certificates.items() if certificate.passed is None]
    if unknown:
        return f"not validated ({', '.join(unknown)})"
    errors = [certificate.max_abs_hidden for certificate in certificates.values()]
    known = [error for error in errors if error is not None]
    if not known:
        return "no certificate"
    return f"checked against the model: differs by at most {tiny(max(known))}"


def _heads(report: Results) -> tuple[ComparedHead, ...]:
    """Return the heads of the first stack that was classified, with their pictures."""
    classified = report.sections.get("classify")
    if not isinstance(classified, ClassifyResult) or not classified.heads:
        return ()
    try:
        return tuple(
            ComparedHead(
                layer=head.layer,
                head=head.head,
                stack=head.stack,
                primary=head.primary,
                mark=mark_of(head),
                sentence=head_sentence(head),
                mean_pattern=head.mean_pattern,
            )
            for head in classified.only(classified.stacks[0]).heads
        )
    except (LookupError, TypeError, ValueError, AttributeError):  # a damaged file has no map
        return ()
