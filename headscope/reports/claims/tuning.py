"""Sentences of the three claims on fine-tuning (8, 9 and 10) about a ``transfer`` run.

``headscope transfer`` fine-tunes *variants* of a model, each training other parameters, with
several seeds, from pretrained and from random weights, at several sizes of the training data. A
*cell* is one variant from one start at one size; its learning rate is the best of a grid, if it was
searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headscope.analyses.transfer.result import TransferCell, TransferResult
from headscope.reports.claims.intervals import shown

NOT_REACHED = "not reached"  # In place of the numbers of a cell whose runs the time budget left out

#: How sentences call variants; others go by their own names.
_NAMES = {
    "layernorm": "LayerNorm only",
    "head": "head only",
    "lora": "rank-1 LoRA",
    "all": "everything",
}
#: Why a cell's best learning rate is not known, by the value of ``cell.optimum``.
_UNSETTLED = {
    "edge": "The best learning rate lies at the edge of the grid that was searched",
    "not searched": "No learning rate was searched for",
}


def accuracies_and_budget(transfer: TransferResult, variants: Sequence[str], size: int) -> str:
    """Say how accurate variants are, and how many runs the time budget reached if not all."""
    return (
        f"Accuracy on '{transfer.task}', {size} training examples: "
        f"{accuracies(transfer, variants, size)}. {runs_reached(transfer)}"
    )


def accuracies(
    transfer: TransferResult, variants: Iterable[str], size: int, weights: str = "pretrained"
) -> str:
    """List the accuracy of variants with intervals; those that were not reached are left out."""
    texts = []
    for variant in variants:
        cell = transfer.cell(variant, weights, size)
        if cell is not None:
            texts.append(f"{_name_of(cell)} {shown(cell.accuracy, '.1f')}")
    return ", ".join(texts)


def runs_reached(transfer: TransferResult) -> str:
    """Say how many runs the budget reached; nothing where it reached all."""
    if not transfer.missed:
        return ""
    reached = len(transfer.runs)
    planned = reached + len(transfer.missed)
    return f"The budget of {transfer.budget:g} s reached {reached} of {planned} runs."


def unsettled(
    transfer: TransferResult, variants: Sequence[str], size: int, random: Sequence[str] = ()
) -> str:
    """Name the cells whose best learning rate is not known; empty where all are known.

    The cells are those of ``variants`` from pretrained weights and of ``random`` from random ones.
    """
    cells = [transfer.cell(variant, "pretrained", size) for variant in variants]
    cells += [transfer.cell(variant, "random", size) for variant in random]
    sentences = []
    for optimum, reason in _UNSETTLED.items():
        names = []
        for cell in cells:
            if cell is not None and cell.optimum == optimum:
                start = " from random weights" if cell.weights == "random" else ""
                names.append(f"{_name_of(cell)}{start} ({cell.rate:g})")
        if names:
            sentences.append(f"{reason}: {', '.join(names)}.")
    return " ".join(sentences)


def _name_of(cell: TransferCell) -> str:
    """Name a cell's variant as a reader would."""
    return _NAMES.get(cell.variant, cell.variant)
