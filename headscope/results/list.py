"""What ``headscope list`` lists, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headscope.results.serialise import SCHEMA

if TYPE_CHECKING:
    import pandas

__all__ = ["Entry", "ListResult"]


@dataclass(frozen=True)
class Entry:
    """One thing that can be named on the command line, in a config file or in Python."""

    name: str  # As it is written there
    words: str  # What it is, on one line
    source: str  # The literature that it comes from; empty where there is none
    page: str  # The page of the docs that defines it


@dataclass(frozen=True)
class ListResult:
    """Everything of one kind."""

    kind: str  # What was asked for, such as ``methods``; empty for the kinds themselves
    entries: tuple[Entry, ...]  # In the order of the list that the program itself reads
    schema: int = SCHEMA  # Version of the JSON's fields

    def to_frame(self) -> pandas.DataFrame:
        """One row per entry (pandas)."""
        import pandas as pd

        rows = (vars(entry) for entry in self.entries)
        return pd.DataFrame(rows, columns=["name", "words", "source", "page"])
