"""Reading heads as people write them: ``L0H1,L3H*``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from headscope.errors import InputError

_HEAD = re.compile(r"L(\d+)H(\d+|\*)", re.IGNORECASE)


def parse_heads(text: str, heads: Mapping[int, Sequence[int]]) -> list[tuple[int, int]]:
    """Read a comma-separated list of heads; ``L3H*`` is every head of layer 3.

    Parameters
    ----------
    text : str
        Items of the form ``L3H5`` or ``L3H*``, in any case.
    heads : mapping of int to sequence of int
        The heads that each layer has, by the names they were born with.

    Returns
    -------
    list of (layer, head)
        Each once, sorted.

    Raises
    ------
    InputError
        If an item is no head, there is no such head, or the list is empty.
    """
    found: set[tuple[int, int]] = set()
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise InputError("No head is named; write heads as L0H1,L3H* (counted from zero).")
    for item in items:
        match = _HEAD.fullmatch(item)
        if match is None:
            raise InputError(f"{item!r} is not a head; write L0H1, or L3H* for all of layer 3.")
        found |= _expand(item, int(match[1]), match[2], heads)
    return sorted(found)


def _expand(
    item: str, layer: int, head: str, heads: Mapping[int, Sequence[int]]
) -> set[tuple[int, int]]:
    if layer not in heads:
        raise InputError(
            f"{item}: there is no layer {layer}; the model has L0 to L{max(heads, default=0)}."
        )
    there = heads[layer]
    if head == "*":
        return {(layer, number) for number in there}
    if int(head) not in there:
        raise InputError(f"{item}: layer {layer} has no head {head}; it has {_listed(there)}.")
    return {(layer, int(head))}


def _listed(there: Sequence[int]) -> str:
    if not there:
        return "none left"
    if list(there) == list(range(len(there))):
        return f"H0 to H{len(there) - 1}"
    return ", ".join(f"H{number}" for number in there)
