"""The random sets that ``serve`` compares switched-off heads with."""

import itertools

from headscope.live.random_sets import matched_sets


def test_random_sets_have_as_many_heads_in_the_same_layers():
    heads = list(itertools.product(range(3), range(4)))
    switched_off = [(0, 1), (2, 0), (2, 3)]
    sets = matched_sets(switched_off, heads, 15, seed=2)
    assert len({frozenset(drawn) for drawn in sets}) == 15
    assert frozenset(switched_off) not in map(frozenset, sets)
    assert all(sorted(row for row, _ in drawn) == [0, 2, 2] for drawn in sets)


def test_there_are_no_more_sets_than_the_layers_have():
    heads = list(itertools.product(range(3), range(4)))
    four_times_six = matched_sets([(0, 1), (2, 0), (2, 3)], heads, 1000, seed=2)
    assert len(four_times_six) == 4 * 6 - 1  # all but the set itself
    whole_layer = [(1, i) for i in range(4)]
    assert matched_sets(whole_layer, heads, 5, seed=2) == []
