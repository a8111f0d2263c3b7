"""Whether a model that was opened again puts out what the measured one does.

What is proven is that the *outputs* are equal as far as their type of numbers allows: states,
logits and embeddings of every evaluation text. A metric is no proof of it: a rank correlation or a
rate jumps where two values that are nearly equal swap, however small the difference of the outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.data.token_rows import Padded
from headscope.measures.metrics import Outputs
from headscope.models.deploy.opened import distance
from headscope.models.intervene import gated
from headscope.models.loaded import LoadedModel
from headscope.models.task_heads import Select
from headscope.pipeline.tasks import Task

__all__ = ["TOLERANCES", "Agreement", "compare"]

#: Largest difference of an output, relative to the largest output if that exceeds 1. Wider than the
#: limits of a few short texts in :mod:`headscope.models.deploy.opened`: this is the worst of all
#: evaluation texts, and zeros in place of a head are summed in another order (5e-6 on 1,500 pairs).
TOLERANCES = {"float64": 1e-8, "float32": 1e-4, "bfloat16": 6e-2, "float16": 1e-2}


@dataclass(frozen=True)
class Agreement:
    """What two models that should be the same put out.

    Attributes
    ----------
    outputs : mapping of str to array
        The second model's, example by example.
    largest : float
        Largest absolute difference of any state, logit or embedding; NaN if there is one.
    relative : float
        The same over the largest output of its batch, where that exceeds 1.
    """

    outputs: Outputs
    largest: float
    relative: float

    def holds(self, dtype: str) -> bool:
        """Whether the difference is one of rounding; a NaN is none."""
        return self.relative <= TOLERANCES[dtype]


def compare(
    task: Task, measured: LoadedModel, opened: LoadedModel, batches: Iterable[Padded] | None = None
) -> Agreement:
    """Run two models over the examples of a task side by side.

    Parameters
    ----------
    task : Task
        On the evaluation data.
    measured, opened : LoadedModel
        The model that was measured, and what was written of it, opened again.
    batches : iterable of Padded, optional
        All of the task's rows, in any order, if not as the task has them.
    """
    found: list[tuple[float, float]] = []
    embeds = task.name in ("fidelity", "similarity") and measured.pooling.problem is None

    def run(
        *inputs: Tensor, select: Select | None = None, **more: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        sides = []
        for model in (measured, opened):  # attention is routed in one model at a time
            with gated(model) as run_one:
                sides.append(run_one(*inputs, select=select, **more))
        (expected, logits), (here, other) = sides
        mask = more.get("decoder_attention_mask", inputs[1])
        found.append(distance(expected[mask.bool()], here[mask.bool()]))
        if logits is not None:
            assert other is not None
            found.append(distance(logits, other))
        if embeds:
            pairs = ((measured, expected), (opened, here))
            found.append(distance(*(m.pooling.embed(hidden, mask) for m, hidden in pairs)))
        return here, other

    outputs = task.outputs_of(run, task.batches(measured) if batches is None else batches)
    largest, relative = torch.tensor(found, dtype=torch.float64).max(dim=0).values.tolist()
    return Agreement(outputs, largest, relative)
