"""The fields that begin the result of every command that runs a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headscope.models.certificate.validation import ValidationSummary
from headscope.show.shown import Shown


@dataclass(frozen=True, repr=False)
class Measured(Shown):
    """Where a result comes from, and whether it is about the model's own attention."""

    schema: int  # :data:`headscope.core.serialise.SCHEMA` when the result was made
    #: As :func:`headscope.session.provenance.provenance` describes the run.
    provenance: dict[str, Any]
    validation: ValidationSummary  # The certificate of the run
