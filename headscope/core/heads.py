"""A head and its name, ``L3H5``: layer and head count from zero, as before any pruning.

Heads outside an encoder name their stack too, those of a decoder alone included: ``decoder:L3H5``,
``cross:L3H5``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

_IN_NAME = ("layer", "head", "stack")  # Fields that stand in a head's name
_SHOWN = 6  # Fields of a head that its ``repr`` shows
_NAME = re.compile(r"(?:(encoder|decoder|cross):)?L(\d+)H(\d+)")


def head_name(layer: int, head: int, stack: str = "encoder") -> str:
    """Return ``L3H5`` for layer 3 and head 5; ``cross:L3H5`` outside the encoder."""
    return f"L{layer}H{head}" if stack == "encoder" else f"{stack}:L{layer}H{head}"


def layer_name(layer: int, stack: str = "encoder") -> str:
    """Return ``L3`` for layer 3; ``cross:L3`` outside the encoder."""
    return f"L{layer}" if stack == "encoder" else f"{stack}:L{layer}"


def layer_numbers(model: Mapping[str, Any]) -> list[int]:
    """Return the original numbers of a model's layers: 3 layers without layer 1 are [0, 2, 3].

    ``model`` is the description of a model in the provenance of a result.
    """
    removed = [layer for layer in model.get("removed_layers") or () if isinstance(layer, int)]
    n_before = int(model["n_layers"]) + len(removed)
    return [layer for layer in range(n_before) if layer not in removed]


def address_name(address: Sequence[Any]) -> str:
    """Return the name of (layer, head) or (stack, layer, head).

    Anything else, which a damaged file may hold, is written as it is.
    """
    if len(address) == 2:
        layer, head = address
        return head_name(layer, head)
    if len(address) == 3:
        stack, layer, head = address
        return head_name(layer, head, stack)
    return str(list(address))


def parse_head(name: str) -> tuple[int, int]:
    """Return layer and head of a name such as ``L3H5``; the stack before it is ignored."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not the name of a head, such as L3H5")
    return int(match[2]), int(match[3])


@dataclass(frozen=True)
class Head:
    """The fields that every result row about one head begins with."""

    layer: int  # Zero-based, in the unpruned model.
    head: int
    stack: str = field(default="encoder", kw_only=True)  # ``encoder``, ``decoder`` or ``cross``

    def __init_subclass__(cls) -> None:
        """Give subclasses this short ``repr``; ``dataclass`` would write hundreds of numbers.

        ``dataclass`` leaves a ``repr`` alone that a class has of its own.
        """
        type.__setattr__(cls, "__repr__", Head.__repr__)

    def __repr__(self) -> str:
        """One line: its name and the first numbers and words that are known of it."""
        known = []
        for f in fields(self):
            text = _in_words(getattr(self, f.name))
            if text and f.name not in _IN_NAME:
                known.append(f"{f.name}={text}")
        shown = ", ".join(known[:_SHOWN])
        more = ", ..." if len(known) > _SHOWN else ""
        return f"<{type(self).__name__} {self.name}: {shown}{more}>"

    @property
    def layer_name(self) -> str:
        """``L3``; ``cross:L3`` outside the encoder."""
        return layer_name(self.layer, self.stack)

    @property
    def name(self) -> str:
        """``L3H5``; ``cross:L3H5`` outside the encoder."""
        return head_name(self.layer, self.head, self.stack)


def _in_words(value: Any) -> str:
    """Write a number, an estimate's value, a word or words; anything else as an empty string."""
    value = getattr(value, "value", value)  # an estimate is a value with an interval
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, int | str):
        return str(value)[:40]
    if isinstance(value, tuple) and all(isinstance(item, str) for item in value):
        return "+".join(value)
    return ""
