"""``headscope validate``: the certificate as a result with its provenance."""

from __future__ import annotations

import dataclasses

from headscope.analyses.validate.options import ValidateOptions
from headscope.core.errors import ValidationFailedError
from headscope.models.certificate import training_reason, validate_model
from headscope.models.loaded import LoadedModel
from headscope.results.validate import ValidationResult, ValidationSummary
from headscope.session.opening import Model, open_model
from headscope.session.provenance import provenance


def run(model: Model, options: ValidateOptions) -> ValidationResult:
    """Prove that headscope's attention equals the model's, layer by layer, padded and not."""
    loaded = open_model(model, need_tokenizer=False, **options.loading)
    result = validate_model(loaded)
    return dataclasses.replace(
        result, provenance=provenance(loaded, command=options.command, seed=0)
    )


def require_valid(loaded: LoadedModel, wanted: bool) -> ValidationSummary:
    """Validate before a measurement; again only when the weights have changed since."""
    if (training := training_reason(loaded)) is not None:
        raise ValidationFailedError(f"{loaded.name} cannot be measured: {training}.")
    if not wanted:
        return ValidationSummary(passed=None)
    result = validate_model(loaded)
    if not result.passed:
        raise ValidationFailedError(
            f"{loaded.name} fails validation, so nothing is reported on it: "
            f"{'; '.join(result.reasons[:3])}. See 'headscope validate {loaded.name}'."
        )
    return ValidationSummary.of(result)
