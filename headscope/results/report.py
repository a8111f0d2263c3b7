"""What ``headscope report`` gathered, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headscope.results.sections import Sections

__all__ = ["ReportResult", "SamplePatterns"]


@dataclass(frozen=True)
class SamplePatterns:
    """One sentence and every head's attention pattern on it."""

    text: str  # The sentence as it stands in the data
    tokens: tuple[str, ...]  # Special tokens included
    patterns: dict[str, tuple[tuple[float, ...], ...]]  # By head (``L3H5``), rounded to two digits


@dataclass(frozen=True)
class ReportResult(Sections):
    """Every command's result on one model; a section that was not run is None."""

    schema: int  # As in :class:`headscope.results.Measured`.
    provenance: dict[str, Any]
    settings: dict[str, dict[str, Any]]  # By section, what differs from the defaults.
    left_out: dict[str, str]  # Sections that this model does not allow, and why.
    keys: dict[str, str]  # By section, a hash of everything that its result depends on.
    samples: tuple[SamplePatterns, ...] = ()  # Patterns that the page shows.
    #: Sections that were taken from the previous run; not part of the file.
    reused: tuple[str, ...] = field(default=(), compare=False)
