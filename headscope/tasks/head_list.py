"""Reading heads as people write them: ``L0H1,L3H*``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from headscope.core.errors import InputError

_HEAD = re.compile(r"(?:(encoder|decoder|cross):)?L(\d+)H(\d+|\*)", re.IGNORECASE)
Name = tuple[str, int, int]  # Stack, layer and head.


def parse_heads(text: str, heads: Mapping[tuple[str, int], Sequence[int]]) -> list[Name]:
    """Read a comma-separated list of heads, each once and sorted; ``L3H*`` is all of layer 3.

    Where the heads lie in several stacks an item names its own: ``cross:L3H5``. ``heads`` are those
    that each (stack, layer) has, by their original numbers.
    """
    names: set[Name] = set()
    stacks = list(dict.fromkeys(stack for stack, _ in heads))
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise InputError("No head is named; write heads as L0H1,L3H* (counted from zero).")
    for item in items:
        match = _HEAD.fullmatch(item)
        if match is None:
            raise InputError(f"{item!r} is not a head; write L0H1, or L3H* for all of layer 3.")
        if match[1] is None and len(stacks) > 1:
            raise InputError(
                f"{item}: the model has several stacks; write {stacks[-1]}:{item} "
                f"({', '.join(stacks)})."
            )
        stack = stacks[0] if match[1] is None else match[1].lower()
        layer, head = int(match[2]), match[3]
        if stack not in stacks:
            raise InputError(f"{item}: heads are removed from {' and '.join(stacks)} here.")
        if (stack, layer) not in heads:
            last = max(number for name, number in heads if name == stack)
            raise InputError(f"{item}: there is no layer {layer}; the model has L0 to L{last}.")
        numbers = heads[stack, layer]
        if head != "*" and int(head) not in numbers:
            raise InputError(
                f"{item}: layer {layer} has no head {head}; it has {_listed(numbers)}."
            )
        names |= {(stack, layer, number) for number in (numbers if head == "*" else [int(head)])}
    return sorted(names)


def _listed(numbers: Sequence[int]) -> str:
    if not numbers:
        return "none left"
    if list(numbers) == list(range(len(numbers))):
        return f"H0 to H{len(numbers) - 1}"
    return ", ".join(f"H{number}" for number in numbers)
