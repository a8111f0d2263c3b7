"""``headscope list``: the names that options take, read from the lists that the program uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headscope.core.errors import InputError, nearest
from headscope.core.safe_text import visible
from headscope.reports.result import Entry, ListResult

#: Everything that can be listed, by name: what it is, and the page of the docs about it.
KINDS = {
    "methods": ("ways to choose the heads that prune removes", "docs/definitions/pruning.md"),
    "tasks": ("what a model is measured by", "docs/tasks.md"),
    "roles": ("what heads can do, as classify finds it", "docs/definitions/roles.md"),
    "families": ("model types that are tested, and those that are refused", "docs/families.md"),
    "limits": ("what [limits] of a config file can ask of a report", "docs/config.md"),
}


def _entries(kind: str) -> Iterator[Entry]:
    """Yield everything of one kind; the program's own list is imported only now."""
    _, page = KINDS[kind]
    if kind == "methods":
        from headscope.pruning.options import METHODS

        for name, method in METHODS.items():
            yield Entry(name, method.words, method.source, page)
    elif kind == "tasks":
        from headscope.tasks.making import TASKS

        for name, task in TASKS.items():
            yield Entry(name, task.words, "", page)
    elif kind == "roles":
        from headscope.analyses.classify.roles import ROLES

        for role in ROLES:
            yield Entry(role.key, role.words, role.source, page)
    elif kind == "families":
        from headscope.models.layouts.families import COVERED, REFUSED

        for name, family in COVERED.items():
            words = f"covered: {', '.join(family.stacks)} (layout {family.layout})"
            yield Entry(name, words, "", "README.md")
        for name, reason in REFUSED.items():
            yield Entry(name, f"refused: {reason}", "", page)
    else:
        from headscope.reports.limit_kinds import LIMITS

        for name, (value, words) in LIMITS.items():
            yield Entry(name, f"{value}: {words}", "", page)


def entries_of(name: str | None = None) -> ListResult:
    """List everything of one kind; without a name, the kinds themselves."""
    if name is None:
        kinds = tuple(Entry(name, words, "", page) for name, (words, page) in KINDS.items())
        return ListResult("", kinds)
    if name not in KINDS:
        hint = nearest(name, KINDS, "there are")
        raise InputError(f"There is nothing called {visible(name)!r} to list; {hint}")
    return ListResult(name, tuple(_entries(name)))


def list_report(result: ListResult) -> Iterable[RenderableType]:
    """Show every entry, with the literature below its entry, and pages at the end."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for entry in result.entries:
        source = f"\n{entry.source}" if entry.source else ""
        table.add_row(entry.name, Text(entry.words).append(source, style="dim"))
    yield table
    if result.kind:
        pages = dict.fromkeys(entry.page for entry in result.entries)
        yield Text(f"\nMore in {' and '.join(pages)}.")
    else:
        yield Text(f"\nOne of them: headscope list {result.entries[0].name}")
