"""One fine-tuning: some of a model's parameters and a linear classifier, by Adam, stopped early."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscope.analyses.transfer.labelled import Frozen, Part, Reader, Tuned, in_buckets
from headscope.analyses.transfer.result import CurvePoint
from headscope.core.accumulator import Array, numpy
from headscope.core.widest import widest
from headscope.models.loaded import LoadedModel
from headscope.models.trainable import Chosen, choose
from headscope.stats.statistics import finite

__all__ = ["CLASSIFIER_RATE", "Budget", "OutOfTime", "Outcome", "Recipe", "fine_tune", "Updated"]

CLASSIFIER_RATE = 3e-3  # Learning rate of the classifier where more than the classifier is trained.
START = 0.02  # Standard deviation of the classifier's first weights (as BERT's).
WARM_UP = 0.1  # Share of the steps over which the rate rises from 0; it then falls to 0.
#: A training loss that ends this many times above its start has diverged. A run that learns nothing
#: ends about where it started: on one side or the other, as its last batches happen to be.
DIVERGED = 1.1
POOL = 8  # Batches that are sorted by length together, so that little is padded.


class OutOfTime(Exception):  # noqa: N818
    """The budget ended in the middle of a run, which then does not count."""


class Budget(Protocol):
    """What a run asks whether it may go on."""

    def check(self) -> None:
        """Raise :class:`OutOfTime` when the time is over."""


@dataclass(frozen=True)
class Recipe:
    """How a run is trained."""

    #: Learning rate: of the classifier where it is trained alone, else of everything else.
    rate: float
    steps: int  # Most steps, and examples of each.
    batch: int
    #: Steps between validations, and how many of them may bring nothing before a run stops.
    every: int
    patience: int


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    curve: tuple[CurvePoint, ...]  # By step.
    kept_step: int  # The one with the lowest validation loss.
    validation_loss: float  # There; infinite where no loss was finite.
    #: A loss was not finite, or the training loss ended more than a tenth above its start.
    diverged: bool
    #: From a part of the data to its classes (n,), as the model of that step has them.
    predict: Callable[[Part], Array] = field(repr=False)


def fine_tune(
    loaded: LoadedModel,
    way: str,
    parts: tuple[Part, Part],
    frozen: Frozen,
    recipe: Recipe,
    *,
    n_classes: int,
    seed: int,
    budget: Budget,
) -> Outcome:
    """Train what ``way`` says on the first part; keep the step that is best on the second."""
    generator = torch.Generator().manual_seed(seed)
    reader: Reader = frozen
    chosen: list[Chosen] = []
    if way != "head":
        own = dataclasses.replace(loaded, model=copy.deepcopy(loaded.model), sites=())
        own.network = own.model
        same = _same_modules(loaded, own)
        chosen = [
            dataclasses.replace(c, parameter=same[id(c.parameter)])
            for c in choose(loaded, way, seed)
        ]
        reader = Tuned(own, frozen.centre, frozen.scale)
        _train_only(own.model, chosen)
    weight = torch.randn(n_classes, len(frozen.centre), generator=generator) * START
    classifier = nn.Linear(len(frozen.centre), n_classes).to(frozen.centre)
    with torch.no_grad():
        classifier.weight.copy_(weight)
        classifier.bias.zero_()
    run = _Run(reader, classifier, Updated(chosen, seed), recipe, generator, budget)
    return run.train(*parts, frozen)


def _same_modules(loaded: LoadedModel, own: LoadedModel) -> dict[int, nn.Parameter]:
    """Return the copy's parameter by the original's id."""
    pairs = zip(loaded.model.parameters(), own.model.parameters(), strict=True)
    return {id(theirs): ours for theirs, ours in pairs}


def _train_only(model: nn.Module, chosen: Sequence[Chosen]) -> None:
    wanted = {id(c.parameter) for c in chosen}
    for p in model.parameters():
        p.requires_grad_(id(p) in wanted)


@dataclass
class _Run:
    """A run under way."""

    reader: Reader
    classifier: nn.Linear
    updated: Updated
    recipe: Recipe
    generator: torch.Generator
    budget: Budget
    kept: tuple[float, int, list[Tensor], list[Tensor]] | None = None

    def train(self, train: Part, validation: Part, frozen: Frozen) -> Outcome:
        """Train to the last step, or until validation brings nothing; go back to the best step."""
        curve = [self._start(train, validation, frozen)]
        losses: list[float] = []
        waited, step = 0, 0
        for step, places in zip(
            range(1, self.recipe.steps + 1), self._batches(train), strict=False
        ):
            losses.append(self._step(train, places, step))
            if not math.isfinite(losses[-1]):
                break
            if step % self.recipe.every == 0 or step == self.recipe.steps:
                self.budget.check()
                curve.append(self._point(step, losses, validation))
                losses = []
                waited = 0 if self.kept is not None and self.kept[1] == step else waited + 1
                if waited >= self.recipe.patience or curve[-1].validation_loss is None:
                    break
        if losses:  # broken off by a loss that is not finite
            curve.append(CurvePoint(step, None, None, self._accuracy(validation)[1]))
        return self._outcome(tuple(curve))

    def _start(self, train: Part, validation: Part, frozen: Frozen) -> CurvePoint:
        """Measure the untrained classifier on the frozen model, which the run starts from."""
        here, self.reader = self.reader, frozen
        start = self._accuracy(train)[0]
        point = self._point(0, [start], validation)
        self.reader = here
        return point

    def _point(self, step: int, losses: Sequence[float], validation: Part) -> CurvePoint:
        """Validate; keep this step if none before was as good."""
        loss, accuracy = self._accuracy(validation)
        if math.isfinite(loss) and (self.kept is None or loss < self.kept[0]):
            head = [p.detach().clone() for p in self.classifier.parameters()]
            self.kept = loss, step, self.updated.snapshot(), head
        return CurvePoint(step, finite(float(np.mean(losses))), finite(loss), accuracy)

    def _step(self, part: Part, places: Sequence[int], step: int) -> float:
        if step == 1:
            self._adam = self._optimiser()
        gold = part.labels[list(places)].to(self.classifier.weight.device)
        loss = F.cross_entropy(self.classifier(self.reader(part, places)), gold)
        value = loss.item()
        if math.isfinite(value):
            torch.autograd.backward([loss])
            self.updated.gather()
            factor = _schedule(step, self.recipe.steps)
            for group in self._adam.param_groups:
                group["lr"] = factor * group["peak"]
            self._adam.step()
            self._adam.zero_grad(set_to_none=True)
            self.updated.scatter()
        return value

    def _optimiser(self) -> torch.optim.Adam:
        tensors = self.updated.tensors
        peak = CLASSIFIER_RATE if tensors else self.recipe.rate
        groups = [{"params": list(self.classifier.parameters()), "peak": peak}]
        if tensors:
            groups.append({"params": tensors, "peak": self.recipe.rate})
        return torch.optim.Adam(groups, fused=True)

    def _batches(self, part: Part) -> Iterator[list[int]]:
        """Yield batches of about equal lengths without end; every example once a pass."""
        pool = POOL * self.recipe.batch
        while True:
            order = torch.randperm(len(part), generator=self.generator).tolist()
            for start in range(0, len(order), pool):
                near = sorted(order[start : start + pool], key=lambda i: len(part.rows[i]))
                cut = [
                    near[i : i + self.recipe.batch] for i in range(0, len(near), self.recipe.batch)
                ]
                for i in torch.randperm(len(cut), generator=self.generator).tolist():
                    yield cut[i]

    def _accuracy(self, part: Part) -> tuple[float, float]:
        """Return the mean loss, and the accuracy times 100."""
        logits = self._logits(part)
        gold = part.labels.to(logits.device)
        loss = float(F.cross_entropy(logits, gold))
        return loss, 100 * float(widest(logits.argmax(dim=1) == gold).mean())

    def _logits(self, part: Part) -> Tensor:
        """Return the classifier's outputs, (n, n_classes), in the order of the part."""
        found: dict[int, Tensor] = {}
        with torch.no_grad():
            for places in in_buckets(part, range(len(part))):
                found.update(zip(places, self.classifier(self.reader(part, places)), strict=True))
        return torch.stack([found[i] for i in range(len(part))])

    def _outcome(self, curve: tuple[CurvePoint, ...]) -> Outcome:
        loss, step = math.inf, 0
        if self.kept is not None:
            loss, step, tensors, head = self.kept
            self.updated.restore(tensors)
            with torch.no_grad():
                for p, value in zip(self.classifier.parameters(), head, strict=True):
                    p.copy_(value)
        start, end = curve[0].train_loss, curve[-1].train_loss
        lost = any(p.train_loss is None or p.validation_loss is None for p in curve)
        diverged = lost or (start is not None and end is not None and end > DIVERGED * start)

        def predict(part: Part) -> Array:
            return numpy(self._logits(part).argmax(dim=1))

        return Outcome(curve, step, loss, diverged, predict)


def _schedule(step: int, steps: int) -> float:
    """Return the factor of the rate: up over the first tenth of the steps, then down to 0."""
    rising = max(1, round(WARM_UP * steps))
    return min(step / rising, (steps - step + 1) / max(1, steps - rising + 1))


class _Vector(Protocol):
    """Numbers that are stepped in place of a parameter."""

    parameter: nn.Parameter
    vector: nn.Parameter

    def gradient(self, gradient: Tensor) -> Tensor:
        """Return the vector's gradient, given the parameter's."""

    def write(self) -> None:
        """Bring the parameter up to date."""


class _Entries:
    """Some entries of a parameter."""

    def __init__(self, parameter: nn.Parameter, entries: Tensor) -> None:
        self.parameter, self._entries = parameter, entries
        self.vector = nn.Parameter(parameter.detach().take(entries))

    def gradient(self, gradient: Tensor) -> Tensor:
        return gradient.take(self._entries)

    def write(self) -> None:
        self.parameter.put_(self._entries, self.vector)


class _RankOne:
    """``W + b a^T``: b starts at 0, a as a random direction; the first ``n`` numbers are free."""

    def __init__(self, parameter: nn.Parameter, n: int, rng: np.random.Generator) -> None:
        self.parameter, self._start = parameter, parameter.detach().clone()
        rows, columns = parameter.shape
        a = torch.from_numpy(rng.normal(size=columns) / np.sqrt(columns)).to(self._start)
        self._rows, self._factors = rows, torch.cat([self._start.new_zeros(rows), a])
        self.vector = nn.Parameter(self._factors[:n].clone())

    def gradient(self, gradient: Tensor) -> Tensor:
        b, a = self._now()
        return torch.cat([gradient @ a, gradient.T @ b])[: len(self.vector)]

    def write(self) -> None:
        b, a = self._now()
        self.parameter.copy_(self._start + torch.outer(b, a))

    def _now(self) -> tuple[Tensor, Tensor]:
        """Return b and a."""
        now = torch.cat([self.vector.detach(), self._factors[len(self.vector) :]])
        return now[: self._rows], now[self._rows :]


class Updated:
    """What the optimiser steps: whole parameters, or vectors that stand for some of their numbers.

    A vector's gradient is made of its parameter's before a step, and the parameter of the vector
    after it.
    """

    def __init__(self, chosen: Sequence[Chosen], seed: int) -> None:
        rng = np.random.default_rng((abs(seed), 11))
        self._vectors: list[_Vector] = []
        self.whole: list[nn.Parameter] = []
        for c in chosen:
            if c.rank_one is not None:
                self._vectors.append(_RankOne(c.parameter, c.rank_one, rng))
            elif c.entries is not None:
                self._vectors.append(_Entries(c.parameter, c.entries))
            else:
                self.whole.append(c.parameter)

    @property
    def tensors(self) -> list[nn.Parameter]:
        """What is stepped."""
        return [*self.whole, *(own.vector for own in self._vectors)]

    def gather(self) -> None:
        """Hand the gradients over to the vectors."""
        for own in self._vectors:
            if own.parameter.grad is not None:
                own.vector.grad = own.gradient(own.parameter.grad)
                own.parameter.grad = None

    def scatter(self) -> None:
        """Write the vectors back."""
        with torch.no_grad():
            for own in self._vectors:
                own.write()

    def snapshot(self) -> list[Tensor]:
        """Copy everything that is stepped."""
        return [tensor.detach().clone() for tensor in self.tensors]

    def restore(self, snapshot: Sequence[Tensor]) -> None:
        """Go back to a snapshot."""
        with torch.no_grad():
            for tensor, value in zip(self.tensors, snapshot, strict=True):
                tensor.copy_(value)
        self.scatter()
