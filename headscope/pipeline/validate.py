"""``headscope validate``: the certificate as a result with its provenance."""

from __future__ import annotations

import dataclasses
from typing import Any

from headscope.core.errors import ValidationFailedError
from headscope.models.certificate import training_reason, validate_model
from headscope.models.loaded import LoadedModel
from headscope.results.validate import ValidationResult, ValidationSummary
from headscope.session.opening import Model, open_model, public_function
from headscope.session.provenance import provenance

__all__ = ["require_valid", "validate"]


@public_function
def validate(
    model: Model, *, command: str = "headscope.validate", **options: Any
) -> ValidationResult:
    """Prove that headscope's attention equals the model's, layer by layer, padded and not.

    Parameters
    ----------
    model : str, LoadedModel or transformers model
        A folder, hub id or ``demo``; or a model in memory.
    command : str
        Recorded in the result.
    **options
        ``dtype``, ``device``, ``revision``, ``allow_pickle``, as :func:`headscope.load` takes them.

    Returns
    -------
    ValidationResult
        ``passed`` says whether; ``reasons`` say why not. A failed certificate is not an exception.

    Raises
    ------
    InputError
        If the model cannot be opened.

    Examples
    --------
    >>> import headscope
    >>> headscope.validate("demo").passed
    True
    """
    loaded = open_model(model, need_tokenizer=False, **options)
    result = validate_model(loaded)
    return dataclasses.replace(result, provenance=provenance(loaded, command=command, seed=0))


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
