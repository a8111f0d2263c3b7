"""The facts of ``headscope validate``."""

from __future__ import annotations

from headscope.results.validate import ValidationResult
from headscope.verdicts.diff.facts.fact import Facts


def collect(result: ValidationResult, facts: Facts) -> None:
    """Add nothing: the certificate is a fact of every section."""


def settings(result: ValidationResult) -> dict[str, object]:
    """Return nothing: all settings are in the provenance."""
    return {}
