"""A head and its name, ``L3H5``: layer and head count from zero, as before any pruning."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Head", "head_name", "parse_head"]

_NAME = re.compile(r"L(\d+)H(\d+)")


def head_name(layer: int, head: int) -> str:
    """Return ``L3H5`` for layer 3 and head 5."""
    return f"L{layer}H{head}"


def parse_head(name: str) -> tuple[int, int]:
    """Return layer and head of a name such as ``L3H5``.

    Raises
    ------
    ValueError
        If the text is no such name.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not the name of a head, such as L3H5")
    return int(match[1]), int(match[2])


@dataclass(frozen=True)
class Head:
    """What a row about one head begins with.

    Attributes
    ----------
    layer, head : int
        Zero-based, in the unpruned model.
    """

    layer: int
    head: int

    @property
    def name(self) -> str:
        """``L3H5``."""
        return head_name(self.layer, self.head)
