"""Reading heads as people write them: ``L0H1,L3H*``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from headscope.core.errors import InputError

_HEAD = re.compile(r"(?:(encoder|decoder|cross):)?L(\d+)H(\d+|\*)", re.IGNORECASE)
#: Stack, layer and head.
Name = tuple[str, int, int]


def parse_heads(text: str, heads: Mapping[tuple[str, int], Sequence[int]]) -> list[Name]:
    """Read a comma-separated list of heads; ``L3H*`` is every head of layer 3.

    Parameters
    ----------
    text : str
        Items of the form ``L3H5`` or ``L3H*``, in any case; ``cross:L3H5`` where the heads lie in
        several stacks.
    heads : mapping of (stack, layer) to sequence of int
        The heads that each layer has, by the names they were born with.

    Returns
    -------
    list of (stack, layer, head)
        Each once, sorted.

    Raises
    ------
    InputError
        If an item is no head, there is no such head, or the list is empty.
    """
    found: set[Name] = set()
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise InputError("No head is named; write heads as L0H1,L3H* (counted from zero).")
    for item in items:
        match = _HEAD.fullmatch(item)
        if match is None:
            raise InputError(f"{item!r} is not a head; write L0H1, or L3H* for all of layer 3.")
        found |= _expand(item, _stack(item, match[1], heads), int(match[2]), match[3], heads)
    return sorted(found)


def _stack(item: str, named: str | None, heads: Mapping[tuple[str, int], Sequence[int]]) -> str:
    stacks = list(dict.fromkeys(stack for stack, _ in heads))
    if named is None and len(stacks) > 1:
        raise InputError(
            f"{item}: the model has several stacks; write {stacks[-1]}:{item} "
            f"({', '.join(stacks)})."
        )
    stack = stacks[0] if named is None else named.lower()
    if stack not in stacks:
        raise InputError(f"{item}: heads are removed from {' and '.join(stacks)} here.")
    return stack


def _expand(
    item: str, stack: str, layer: int, head: str, heads: Mapping[tuple[str, int], Sequence[int]]
) -> set[Name]:
    if (stack, layer) not in heads:
        last = max(number for name, number in heads if name == stack)
        raise InputError(f"{item}: there is no layer {layer}; the model has L0 to L{last}.")
    there = heads[stack, layer]
    if head == "*":
        return {(stack, layer, number) for number in there}
    if int(head) not in there:
        raise InputError(f"{item}: layer {layer} has no head {head}; it has {_listed(there)}.")
    return {(stack, layer, int(head))}


def _listed(there: Sequence[int]) -> str:
    if not there:
        return "none left"
    if list(there) == list(range(len(there))):
        return f"H0 to H{len(there) - 1}"
    return ", ".join(f"H{number}" for number in there)
