"""What ``headscope compare`` laid side by side, as values."""

from __future__ import annotations

from dataclasses import dataclass

from headscope.results.serialise import SCHEMA
from headscope.stats.estimate import Estimate

__all__ = ["CompareResult", "Compared", "ComparedCell", "ComparedRow", "Unlike"]


@dataclass(frozen=True)
class Compared:
    """One of the reports."""

    label: str  # What tables call it: ``A``, ``B`` and so on
    name: str  # The model, as the report has it
    place: str  # The file or folder, as the user gave it
    family: str  # The model's ``model_type``; empty where the report does not say it
    size: str  # Layers and heads, and how many of them were removed
    weights_sha256: str  # Hash of the weights; empty where the report does not say it
    certificate: str  # Whether our attention equals the model's, in words
    missing: tuple[str, ...] = ()  # Sections that others have and this one does not


@dataclass(frozen=True)
class ComparedCell:
    """What one report says of one row."""

    text: str  # The value, with its interval
    control: str  # The controls' values; "-" where there is none
    number: Estimate  # The value as a number, with its 95% interval; without any for words


@dataclass(frozen=True)
class ComparedRow:
    """One thing that the reports say."""

    section: str  # Where it comes from, such as ``depth``
    what: str  # What it is
    #: In the order of the reports; None where one does not say it.
    cells: tuple[ComparedCell | None, ...]


@dataclass(frozen=True)
class Unlike:
    """Something that should be equal for numbers to be comparable, and is not."""

    what: str  # ``schema``, ``data`` or ``setting``
    name: str  # Which setting; empty for the others
    sections: tuple[str, ...]  # The results that it concerns
    #: What each report has, in their order; ``-`` where one lacks these sections.
    values: tuple[str, ...]


@dataclass(frozen=True)
class CompareResult:
    """Several models' reports as one table."""

    reports: tuple[Compared, ...]  # In the order in which they were given
    rows: tuple[ComparedRow, ...]  # By section, in the order of a report
    #: To be read first: what else differs between the runs besides the model.
    unlike: tuple[Unlike, ...]
    schema: int = SCHEMA  # Version of the JSON's fields
