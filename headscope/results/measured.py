"""What the result of every command that runs a model carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headscope.results.validate import ValidationSummary

__all__ = ["Measured"]


@dataclass(frozen=True)
class Measured:
    """Where a result comes from, and whether it is about the model's own attention.

    Attributes
    ----------
    schema : int
        Version of the JSON's fields, :data:`headscope.results.SCHEMA` when it was written.
    provenance : dict
        Versions, model, weights' SHA-256, data, seed, dtype, device, command.
    validation : ValidationSummary
        The certificate of the run.
    """

    schema: int
    provenance: dict[str, Any]
    validation: ValidationSummary
