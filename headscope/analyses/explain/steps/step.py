"""What one step of ``explain`` consists of, and what it is measured from."""

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
    run: SentenceRun  # The model's own run of the sentence
    padded: SentenceRun | None  # The same with padding behind it; None where there is no room
    head: int  # Its index among the heads that its layer has now
    tolerance: dict[str, float]  # Of the certificate, by what is compared
    ours: Computed  # What headscope computes
    after: ComputedAfter | None  # The same of what follows attention; None where it is not known

    @property
    def x(self) -> Tensor:
        """What the layer's queries are made from, (pos, d_model)."""
        return self.run.inputs.x_q[0]

    def check(self, what: str, ours: Tensor, model: Tensor | None, kind: str = "out") -> StepCheck:
        """Compare a tensor with the model's own, which has an axis of one example in front.

        ``kind`` names the tolerance. Where the model's own is None the difference is infinite.
        """
        all_rows = torch.ones(1, len(ours), dtype=torch.bool, device=ours.device)
        gap = largest_gap([(ours[None], model, all_rows)])
        return StepCheck(what, math.inf if gap is None else gap, self.tolerance[kind])

    def matrix(
        self,
        name: str,
        values: Tensor,
        columns: Sequence[str] = (),
        *,
        rows: Sequence[str] | None = None,
        known: Tensor | None = None,
    ) -> Matrix:
        """Keep all of a matrix, by default one row a token; None where ``known`` is False."""
        numbers = []
        all_known = torch.ones_like(values, dtype=torch.bool) if known is None else known
        exact = values.detach().cpu().double().tolist()
        for row, row_known in zip(exact, all_known.cpu().tolist(), strict=True):
            cells = zip(row, row_known, strict=True)
            numbers.append(tuple(rounded(value) if shown else None for value, shown in cells))
        return Matrix(
            name=name,
            shape=tuple(values.shape),
            rows=tuple(self.tokens if rows is None else rows),
            columns=tuple(columns),
            values=tuple(numbers),
        )


Numbers = dict[str, float | None]


class Measured(NamedTuple):
    """The content of a step."""

    numbers: Numbers
    matrices: Sequence[Matrix]
    checks: Sequence[StepCheck]


@dataclass(frozen=True)
class Step:
    """One step of the way from the sentence to the layer's output."""

    key: str
    title: str
    formula: str
    measure: Callable[[Trace], Measured]
    #: Says what the step does, with the numbers that were measured of it.
    words: Callable[[ExplainResult, ExplainStep], Iterator[str]]
