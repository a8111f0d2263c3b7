"""Heads as people write them."""

import pytest

from headscope.core.errors import InputError
from headscope.tasks.units import parse_heads

ENCODER = "encoder"
HEADS = {(ENCODER, 0): (0, 1, 2), (ENCODER, 1): (0, 2), (ENCODER, 2): ()}
ALL = {**HEADS, ("decoder", 0): (0, 1), ("cross", 0): (0, 1)}


def test_names_and_stars_are_read_once_each():
    found = parse_heads("L0H1, l1h* ,L0H1,", HEADS)
    assert found == [(ENCODER, 0, 1), (ENCODER, 1, 0), (ENCODER, 1, 2)]
    assert parse_heads("L2H*", HEADS) == []


@pytest.mark.parametrize(
    ("heads", "text", "says"),
    [
        *((HEADS, text, "No head") for text in ("", ",")),
        *((HEADS, text, "not a head") for text in ("H1", "L0H1;L0H2", "L0H-1")),
        *((HEADS, "L3H0", "no layer 3"), (HEADS, "L0H3", "H0 to H2"), (HEADS, "L1H1", "H0, H2")),
        *((HEADS, "L2H0", "none left"), (HEADS, "cross:L0H1", "removed from encoder here")),
        (ALL, "L0H1", "several stacks; write cross:L0H1"),
        (ALL, "cross:L1H1", "no layer 1; the model has L0 to L0"),
    ],
)
def test_slips_are_named(heads, text, says):
    with pytest.raises(InputError, match=says):
        parse_heads(text, heads)


def test_a_stack_is_named_where_there_are_several():
    found = parse_heads("cross:L0H1,encoder:L1H*,Decoder:l0h0", ALL)
    assert found == [("cross", 0, 1), ("decoder", 0, 0), (ENCODER, 1, 0), (ENCODER, 1, 2)]
    assert parse_heads("encoder:L0H1", HEADS) == [(ENCODER, 0, 1)]
