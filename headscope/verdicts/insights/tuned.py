"""What the claims about fine-tuning say in the same words."""

from __future__ import annotations

from collections.abc import Iterable

from headscope.results import TransferResult
from headscope.verdicts.insights.intervals import Estimate

__all__ = ["accuracies", "reached"]

_NAMES = {"layernorm": "LayerNorm only", "head": "head only", "all": "everything"}


def accuracies(
    found: TransferResult, variants: Iterable[str], size: int, weights: str = "pretrained"
) -> str:
    """List the accuracy of variants with intervals; those that were not reached are left out."""
    cells = (found.cell(variant, weights, size) for variant in variants)
    parts = [
        f"{_NAMES.get(cell.variant, cell.variant)} "
        f"{cell.accuracy:.1f} {Estimate(cell.accuracy, cell.low, cell.high).interval('.1f')}"
        for cell in cells
        if cell is not None
    ]
    return ", ".join(parts)


def reached(found: TransferResult) -> str:
    """Say how many runs the budget reached; nothing where it reached all."""
    if not found.missed:
        return ""
    done, wanted = len(found.runs), len(found.runs) + len(found.missed)
    return f"The budget of {found.budget:g} s reached {done} of {wanted} runs."
