"""What one step of ``explain`` consists of (:class:`Step`), and what it is measured from.

That is a :class:`Trace`: the model's own numbers of one sentence in one layer, and ours besides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from headscope.analyses.explain.measure import Computed, ComputedAfter, rounded
from headscope.analyses.explain.result import ExplainResult, ExplainStep, Matrix, StepCheck
from headscope.models.anatomy.explain import SentenceRun
from headscope.models.certificate.whole_runs import largest_gap


@dataclass(frozen=True)
class Trace:
    """One sentence, one layer, one head: what the steps are measured from."""

    tokens: tuple[str, ...]  # Special tokens included
    #: The model's own run of the sentence, its numbers in the layer that is explained: ``record``
    #: (scores, pattern, z and output of attention), ``heads`` (q, k, v), ``allowed`` (which keys
    #: each query may see) and ``after`` (what follows attention). All have an axis of one example.
    run: SentenceRun
    padded: SentenceRun | None  # Another run, with padding behind; None where there is no room
    head: int  # The explained head: its index among the heads that its layer has now
    #: Largest difference from the model that is accepted: ``pattern``, ``out``, ``hidden``.
    tolerance: dict[str, float]
    ours: Computed  # What headscope computes of attention, all heads, without the axis of examples
    after: ComputedAfter | None  # What headscope computes of the rest of the layer; None if unknown

    @property
    def x(self) -> Tensor:
        """What the layer's queries are made from, (pos, d_model)."""
        return self.run.inputs.x_q[0]

    def check(self, what: str, ours: Tensor, model: Tensor | None, kind: str = "out") -> StepCheck:
        """Compare a tensor with the model's own, which has an axis of one example in front.

        ``kind`` names the tolerance. Where the model's own is None, or has another shape, the
        difference is infinite.
        """
        every_row = torch.ones(1, len(ours), dtype=torch.bool, device=ours.device)
        gap = largest_gap(ours[None], model, every_row)
        if gap is None:
            gap = math.inf
        return StepCheck(what, gap, self.tolerance[kind])

    def matrix(
        self,
        name: str,
        values: Tensor,
        columns: Sequence[str] = (),
        *,
        rows: Sequence[str] | None = None,
        known: Tensor | None = None,
    ) -> Matrix:
        """Make a matrix of a result, with rounded numbers; by default its rows are the tokens.

        Where ``known`` is False, a boolean matrix of the same shape, there is None.
        """
        if known is None:
            known = torch.ones_like(values, dtype=torch.bool)
        if rows is None:
            rows = self.tokens
        exact_rows = values.detach().cpu().double().tolist()
        rounded_rows = []
        for row, row_known in zip(exact_rows, known.cpu().tolist(), strict=True):
            cells = zip(row, row_known, strict=True)
            rounded_rows.append(
                tuple(rounded(value) if is_known else None for value, is_known in cells)
            )
        return Matrix(
            name=name,
            shape=tuple(values.shape),
            rows=tuple(rows),
            columns=tuple(columns),
            values=tuple(rounded_rows),
        )


Numbers = dict[str, float | None]


class Measured(NamedTuple):
    """What a step has measured."""

    numbers: Numbers  # By name
    matrices: Sequence[Matrix]
    checks: Sequence[StepCheck]  # Our tensors compared with the model's


@dataclass(frozen=True)
class Step:
    """One step of the way from the sentence to the layer's output."""

    key: str  # Such as ``scores``
    title: str
    formula: str
    measure: Callable[[Trace], Measured]
    #: Yields sentences that say what the step does, with the numbers that it has measured.
    words: Callable[[ExplainResult, ExplainStep], Iterator[str]]
