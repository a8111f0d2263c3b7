"""The control's sources: as long, from before, and never the same text."""

from __future__ import annotations

import random

from headscope.data.pair_rows import PairRow
from headscope.data.swapped_sources import with_swapped_sources


def row(index: int, source: tuple[int, ...]) -> PairRow:
    return PairRow(
        index=index,
        ids=(*source, 3),
        types=None,
        content=tuple(range(len(source))),
        decoder_ids=(2, 7),
        labels=(7, 3),
        decoder_content=(1,),
    )


def test_the_nearest_other_source_of_the_length_is_taken() -> None:
    sources = [(5, 6), (7,), (8, 9), (8, 9), (8, 9), (5, 6), (4,)]
    rows = [row(i, source) for i, source in enumerate(sources)]
    found = list(with_swapped_sources(rows))
    expected = [None, None, (5, 6), (5, 6), (5, 6), (8, 9), (7,)]
    assert [item and item.ids[:-1] for item in found] == expected
    assert all(item is None or item.labels == (7, 3) for item in found)


def test_skipped_pairs_are_no_sources_and_keep_their_place() -> None:
    rows = [row(0, (5, 6)), None, row(2, (8, 9))]
    first, second, third = with_swapped_sources(rows)
    assert first is None
    assert second is None
    assert third is not None
    assert third.ids == (5, 6, 3)


def test_against_a_search_through_all_that_came_before() -> None:
    rng = random.Random(3)
    sources = [tuple(rng.choices((5, 6), k=rng.randint(1, 3))) for _ in range(200)]
    found = list(with_swapped_sources(row(i, s) for i, s in enumerate(sources)))
    for i, (source, item) in enumerate(zip(sources, found, strict=True)):
        others = [s for s in sources[:i] if len(s) == len(source) and s != source]
        assert (item.ids[:-1] if item else None) == (others[-1] if others else None)
        assert item is None or item.index == i
