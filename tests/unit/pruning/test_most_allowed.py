"""Bisection against a slow scan of every number."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from headscope.pruning.most_allowed import most_allowed


@given(st.integers(0, 300), st.integers(-5, 305), st.integers(0, 300))
def test_where_losses_rise_it_is_what_a_scan_finds(most: int, limit: int, start: int) -> None:
    start = min(start, most)
    scanned = [n for n in range(start + 1, most + 1) if n <= limit]
    asked: list[int] = []

    def allowed(n: int) -> bool:
        asked.append(n)
        return n <= limit

    assert most_allowed(most, allowed, start) == max(scanned, default=start)
    assert all(start < n <= most for n in asked)
    assert len(set(asked)) <= math.log2(most - start + 1) + 3


@given(st.lists(st.booleans(), max_size=80))
def test_of_any_answers_it_is_allowed_and_the_next_two_are_not(answers: list[bool]) -> None:
    table = dict(enumerate([True, *answers]))
    found = most_allowed(len(answers), table.__getitem__)
    assert table[found]
    assert not table.get(found + 1, False)
    assert not table.get(found + 2, False)


def test_a_single_loss_that_is_too_large_does_not_end_the_search() -> None:
    allowed = {1, 2, 3, 4, 6, 7}
    assert most_allowed(12, allowed.__contains__) == 7
