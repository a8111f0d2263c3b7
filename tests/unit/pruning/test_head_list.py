"""Heads as people write them."""

from __future__ import annotations

import pytest

from headscope.errors import InputError
from headscope.pruning.head_list import parse_heads

HEADS = {0: (0, 1, 2), 1: (0, 2), 2: ()}


def test_names_and_stars_are_read_once_each() -> None:
    assert parse_heads("L0H1, l1h* ,L0H1,", HEADS) == [(0, 1), (1, 0), (1, 2)]
    assert parse_heads("L2H*", HEADS) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "No head"),
        (",", "No head"),
        ("H1", "not a head"),
        ("L0H1;L0H2", "not a head"),
        ("L0H-1", "not a head"),
        ("L3H0", "no layer 3"),
        ("L0H3", "H0 to H2"),
        ("L1H1", "H0, H2"),
        ("L2H0", "none left"),
    ],
)
def test_slips_are_named(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_heads(text, HEADS)
