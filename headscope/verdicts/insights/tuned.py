"""What the claims about fine-tuning say in the same words."""

from __future__ import annotations

from collections.abc import Iterable

from headscope.results.transfer import TransferResult
from headscope.verdicts.insights.intervals import Estimate

__all__ = ["accuracies", "reached", "unsettled"]

_NAMES = {
    "layernorm": "LayerNorm only",
    "head": "head only",
    "lora": "rank-1 LoRA",
    "all": "everything",
}


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


def unsettled(
    found: TransferResult, variants: Iterable[str], size: int, random: Iterable[str] = ()
) -> str:
    """Name the cells whose best learning rate is not known; empty where all are known."""
    wanted = [(name, "pretrained") for name in variants] + [(name, "random") for name in random]
    cells = (found.cell(*kind, size) for kind in wanted)
    open_ends: dict[str, list[str]] = {"edge": [], "not searched": []}
    for cell in cells:
        if cell is not None and cell.optimum in open_ends:
            start = " from random weights" if cell.weights == "random" else ""
            name = _NAMES.get(cell.variant, cell.variant) + start
            open_ends[cell.optimum].append(f"{name} ({cell.rate:g})")
    texts = {
        "edge": "The best learning rate lies at the edge of the grid that was searched",
        "not searched": "No learning rate was searched for",
    }
    return " ".join(
        f"{texts[kind]}: {', '.join(names)}." for kind, names in open_ends.items() if names
    )


def reached(found: TransferResult) -> str:
    """Say how many runs the budget reached; nothing where it reached all."""
    if not found.missed:
        return ""
    done, wanted = len(found.runs), len(found.runs) + len(found.missed)
    return f"The budget of {found.budget:g} s reached {done} of {wanted} runs."
