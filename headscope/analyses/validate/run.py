"""``headscope validate``: the certificate as a result with its provenance."""

from __future__ import annotations

import dataclasses

from headscope.analyses.validate.options import ValidateOptions
from headscope.models.certificate import validate_model
from headscope.models.validation import ValidationResult
from headscope.session.opening import Model, open_model
from headscope.session.provenance import provenance


def run(model: Model, options: ValidateOptions) -> ValidationResult:
    """Prove that headscope's attention equals the model's, layer by layer, padded and not."""
    loaded = open_model(model, need_tokenizer=False, **options.loading)
    result = validate_model(loaded)
    return dataclasses.replace(
        result, provenance=provenance(loaded, command=options.command, seed=0)
    )
