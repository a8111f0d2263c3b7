"""Proof that our attention equals the model's."""

from headscope.analyses.validate.options import ValidateOptions
from headscope.models.certificate.validation import ValidationResult
from headscope.session.entry import entry

__all__ = ["ValidationResult", "validate"]

validate = entry(ValidateOptions, ValidationResult, "headscope.analyses.validate.run")
