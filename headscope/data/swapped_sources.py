"""A control: every target is given the source of another pair."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from headscope.data.pair_rows import PairRow


def with_swapped_sources(rows: Iterable[PairRow | None]) -> Iterator[PairRow | None]:
    """Give each pair the nearest source before it that has as many content tokens.

    A source that is the same text does not count as another. The first of each length has none and
    becomes None; so does what was None.
    """
    # Of each length the latest source, and the latest before it that differs.
    before: dict[int, tuple[PairRow, ...]] = {}
    for row in rows:
        if row is None:
            yield None
            continue
        known = before.get(len(row.content), ())
        other = next((item for item in known if item.ids != row.ids), None)
        yield None if other is None else _with_source(row, other)
        if not known or known[0].ids != row.ids:
            before[len(row.content)] = (row, *known[:1])


def _with_source(row: PairRow, other: PairRow) -> PairRow:
    return dataclasses.replace(row, ids=other.ids, content=other.content)
