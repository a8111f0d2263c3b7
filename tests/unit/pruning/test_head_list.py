"""Heads as people write them."""

from __future__ import annotations

import pytest

from headscope.errors import InputError
from headscope.pruning.head_list import parse_heads

ENCODER = "encoder"
HEADS = {(ENCODER, 0): (0, 1, 2), (ENCODER, 1): (0, 2), (ENCODER, 2): ()}
ALL = {**HEADS, ("decoder", 0): (0, 1), ("cross", 0): (0, 1)}


def test_names_and_stars_are_read_once_each() -> None:
    assert parse_heads("L0H1, l1h* ,L0H1,", HEADS) == [
        (ENCODER, 0, 1),
        (ENCODER, 1, 0),
        (ENCODER, 1, 2),
    ]
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


def test_a_stack_is_named_where_there_are_several() -> None:
    found = parse_heads("cross:L0H1,encoder:L1H*,Decoder:l0h0", ALL)
    assert found == [("cross", 0, 1), ("decoder", 0, 0), (ENCODER, 1, 0), (ENCODER, 1, 2)]
    assert parse_heads("encoder:L0H1", HEADS) == [(ENCODER, 0, 1)]
    with pytest.raises(InputError, match="several stacks; write cross:L0H1"):
        parse_heads("L0H1", ALL)
    with pytest.raises(InputError, match="removed from encoder here"):
        parse_heads("cross:L0H1", HEADS)
    with pytest.raises(InputError, match="no layer 1; the model has L0 to L0"):
        parse_heads("cross:L1H1", ALL)
