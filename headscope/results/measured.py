"""What the result of every command that runs a model carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headscope.results.validate import ValidationSummary

__all__ = ["Measured", "warnings_of"]


def warnings_of(*results: Any) -> tuple[str, ...]:
    """Return what a reader of some results has to be warned of, each once; nothing of old files."""
    origins = (getattr(result, "provenance", None) or {} for result in results)
    found = (str(text) for origin in origins for text in origin.get("warnings") or ())
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class Measured:
    """Where a result comes from, and whether it is about the model's own attention."""

    #: Version of the JSON's fields, :data:`headscope.results.SCHEMA` when it was written.
    schema: int
    #: Versions, model, weights' SHA-256, data, what the tokenizer knows of them, warnings, seed,
    #: dtype, device, command.
    provenance: dict[str, Any]
    validation: ValidationSummary  # The certificate of the run
