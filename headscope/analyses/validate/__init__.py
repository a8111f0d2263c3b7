"""Proof that our attention equals the model's: the options of ``headscope validate``.

The last line makes ``headscope.validate(model, ...)`` of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headscope.models.certificate.validation import ValidationResult
from headscope.session.entry import entry
from headscope.session.options import ModelOptions

__all__ = ["ValidateOptions", "ValidationResult", "validate"]


@dataclass(frozen=True, kw_only=True)
class ValidateOptions(ModelOptions):
    """Check that our attention equals the model's: layer by layer, with and without padding.

    Compared with the model's own eager and SDPA runs, and with float32 from recorded queries and
    keys. Exits with 3 when anything is off.

    Examples
    --------
    >>> import headscope
    >>> headscope.validate("demo").passed
    True
    """

    examples: ClassVar[tuple[str, ...]] = ("headscope validate demo",)


validate = entry(ValidateOptions, ValidationResult, "headscope.analyses.validate.run")
