"""The table of families and the list of those refused, made from what is tested.

``PYTHONPATH=tests python -m family_table`` runs every command on every family, which takes an hour
or so, and writes both anew; with names of families (``llama``, ``"falcon (one key)"``) it runs the
commands on these alone, and leaves the others as they stand. What goes wrong is said at the end,
and then nothing is written.
"""

import gc
import re
import string
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from every_command import COMMANDS, Command, Files, opened, outcome
from families import COVERED, Family

from headscope.models.layouts.families import REFUSED
from headscope.models.run.loaded import LoadedModel

#: What stands before the commands that were run on every family.
RUN = "Each family runs these, unless its row says otherwise: "
#: Whether a command works, and the reason if not, or what it leaves out.
Cell = tuple[bool, str]
ROOT = Path(__file__).parents[1]
COMMAND = "PYTHONPATH=tests python -m family_table"
#: Where each table stands: the page, and the word in its markers.
PLACES = dict.fromkeys(("families", "refused"), ROOT / "docs" / "families.md")


def covered_table(names: Sequence[str] = ()) -> str:
    """One row for all families on which every command does the same.

    With ``names``, as the table shows them, only these families are run.

    Raises
    ------
    ExceptionGroup
        If commands raise something else than one of headscope's own sentences, after all ran.
    """
    before = standing_cells() if names else {}
    cells: list[tuple[Cell, ...]] = []
    errors: list[Exception] = []
    for family in COVERED:
        name = shown(family)
        if name in before and name not in names:
            cells.append(tuple(before[name].values()))
            continue
        print(name, file=sys.stderr, flush=True)
        cells.append(_cells(family, errors))
        gc.collect()
    if errors:
        raise ExceptionGroup("some commands neither work nor say why", errors)
    return table_of(cells)


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory()


def cell(loaded: LoadedModel, command: Command) -> Cell:
    """Say whether a command works on a family's tiny model, and the note that belongs to it."""
    return outcome(loaded, command, Files(Path(_folder().name)))


def _cells(family: Family, errors: list[Exception]) -> tuple[Cell, ...]:
    """Run all commands on a family; add what they raise to ``errors``."""
    loaded = opened(family)
    cells: list[Cell] = []
    for command in COMMANDS:
        try:
            cells.append(cell(loaded, command))
        except Exception as error:
            traceback.print_exc()
            error.add_note(f"{command.name} on {shown(family)}")
            errors.append(error)
    return tuple(cells)


def table_of(cells: Sequence[tuple[Cell, ...]]) -> str:
    """Write the table: ``cells`` are those of every family, in the order of ``COVERED``."""
    rows: dict[tuple[Cell, ...], list[str]] = {}
    for family, family_cells in zip(COVERED, cells, strict=True):
        rows.setdefault(family_cells, []).append(shown(family))
    notes: list[str] = []
    for family_cells in rows:
        notes += [note for _, note in family_cells if note]
    notes = list(dict.fromkeys(notes))  # each once
    marks = {
        note: f"({letter})" for note, letter in zip(notes, string.ascii_lowercase, strict=False)
    }
    header = ("families", "refused", "works, with a limit")
    lines = []
    for family_cells, names in rows.items():
        refused = _marked(family_cells, marks, works=False)
        limited = _marked(family_cells, marks, works=True)
        lines.append((", ".join(dict.fromkeys(names)), refused, limited))
    commands = ", ".join(f"`{command.name}`" for command in COMMANDS)
    text = f"{RUN}{commands}.\n\n{_markdown(header, lines)}"
    return text + "".join(f"\n{marks[note]} {note}.\n" for note in notes)


def _marked(cells: Sequence[Cell], marks: Mapping[str, str], *, works: bool) -> str:
    """Name the commands that are refused, or that work with a limit, each with its note's letter.

    ``cells`` are one family's, in the order of ``COMMANDS``.
    """
    named = [
        f"`{command.name}` {marks[note]}"
        for command, (command_works, note) in zip(COMMANDS, cells, strict=True)
        if note and command_works == works
    ]
    return ", ".join(named)


def standing_cells() -> dict[str, dict[str, Cell]]:
    """Read the page: what each command does by the name of the family, as shown, and its own."""
    commands, table, *notes = standing("families").split("\n\n")
    text = dict(note.strip().removesuffix(".").split(" ", 1) for note in notes)
    names = re.findall(r"`([^`]+)`", commands.removeprefix(RUN))
    _, _, *lines = map(_columns, table.strip().splitlines())
    cells = {}
    for families, refused, limited in lines:
        row_cells: dict[str, Cell] = dict.fromkeys(names, (True, ""))
        for works, marked in ((False, refused), (True, limited)):
            for name, mark in re.findall(r"`([^`]+)` (\(\w\))", marked):
                row_cells[name] = (works, text[mark])
        cells |= {family.strip(): row_cells for family in re.split(r", (?![^(]*\))", families)}
    return cells


def _columns(row: str) -> list[str]:
    """Cut a row of a Markdown table into its cells."""
    return [text.strip() for text in row.strip().removeprefix("|").removesuffix("|").split("|")]


def refused_table() -> str:
    """One row for each reason."""
    rows: dict[str, list[str]] = {}
    for family, reason in REFUSED.items():
        rows.setdefault(reason, []).append(family)
    return _markdown(
        ("families", "why"), ((", ".join(names), reason) for reason, names in rows.items())
    )


TABLES: dict[str, Callable[..., str]] = {"families": covered_table, "refused": refused_table}


def shown(family: Family) -> str:
    """Name a family as the table does."""
    return f"{family.kind} ({family.variant})" if family.variant else family.kind


def _markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    header = tuple(header)
    lines = [header, ("---",) * len(header), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines).replace("| --- ", "|---")


def markers(name: str) -> tuple[str, str]:
    """Return what stands before and after a table."""
    return f"<!-- {name}: {COMMAND} -->\n", f"<!-- /{name} -->\n"


def standing(name: str) -> str:
    """Return the table as its page has it."""
    first_line, last_line = markers(name)
    text = PLACES[name].read_text(encoding="utf-8")
    return text.partition(first_line)[2].partition(last_line)[0]


def write(name: str, *arguments: Sequence[str]) -> None:
    """Put the table between its markers."""
    first_line, last_line = markers(name)
    before, _, rest = PLACES[name].read_text(encoding="utf-8").partition(first_line)
    text = (
        f"{before}{first_line}{TABLES[name](*arguments)}{last_line}{rest.partition(last_line)[2]}"
    )
    PLACES[name].write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write("families", sys.argv[1:])
    write("refused")
