"""``headscope list``: what there is to name, read from the lists that the program itself uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.core.errors import InputError, nearest
from headscope.core.safe_text import visible
from headscope.reports.result import Entry, ListResult

__all__ = ["KINDS", "entries_of", "list_report"]


@dataclass(frozen=True)
class Kind:
    """One kind of thing that can be listed."""

    words: str  # What they are, on one line
    page: str  # The page of the docs about them
    #: Yields all of them. It loads the list that they are in when it is called, not before.
    entries: Callable[[str], Iterator[Entry]]


def entries_of(kind: str | None = None) -> ListResult:
    """List everything of one kind."""
    if kind is None:
        kinds = (Entry(name, found.words, "", found.page) for name, found in KINDS.items())
        return ListResult("", tuple(kinds))
    if kind not in KINDS:
        hint = nearest(kind, KINDS, "there are")
        raise InputError(f"There is nothing called {visible(kind)!r} to list; {hint}")
    found = KINDS[kind]
    return ListResult(kind, tuple(found.entries(found.page)))


def _methods(page: str) -> Iterator[Entry]:
    from headscope.pruning.options import METHODS

    for name, method in METHODS.items():
        yield Entry(name, method.words, method.source, page)


def _tasks(page: str) -> Iterator[Entry]:
    from headscope.tasks.making import TASKS

    for name, task in TASKS.items():
        yield Entry(name, task.words, "", page)


def _roles(page: str) -> Iterator[Entry]:
    from headscope.core.roles import ROLES

    for role in ROLES:
        yield Entry(role.key, role.words, role.source, page)


def _families(page: str) -> Iterator[Entry]:
    from headscope.models.families import COVERED, REFUSED

    for name, found in COVERED.items():
        yield Entry(
            name, f"covered: {', '.join(found.stacks)} (layout {found.layout})", "", "README.md"
        )
    for name, reason in REFUSED.items():
        yield Entry(name, f"refused: {reason}", "", page)


def _limits(page: str) -> Iterator[Entry]:
    from headscope.reports.limits import described

    for name, kind, words in described():
        yield Entry(name, f"{kind}: {words}", "", page)


_LIMITS = Kind("what [limits] of a config file can ask of a report", "docs/config.md", _limits)
#: Everything that can be listed, by name.
KINDS = {
    "methods": Kind("ways to choose the heads that prune removes", "docs/prune.md", _methods),
    "tasks": Kind("what a model is measured by", "docs/prune.md", _tasks),
    "roles": Kind("what heads can do, as classify finds it", "docs/classify.md", _roles),
    "families": Kind(
        "model types that are tested, and those that are refused", "docs/families.md", _families
    ),
    "limits": _LIMITS,
    "gates": Kind("another word for limits", _LIMITS.page, _limits),
}


def list_report(result: ListResult) -> Iterator[RenderableType]:
    """Show every entry; the literature stands below what it is the source of, pages at the end."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for entry in result.entries:
        table.add_row(entry.name, _words(entry.words, entry.source))
    yield table
    if not result.kind:
        yield Text(f"\nOne of them: headscope list {result.entries[0].name}")
        return
    pages = dict.fromkeys(entry.page for entry in result.entries)
    yield Text(f"\nMore in {' and '.join(pages)}.")


def _words(words: str, source: str) -> Text:
    text = Text(words)
    return text.append(f"\n{source}", style="dim") if source else text
