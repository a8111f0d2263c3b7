"""One fine-tuning: some of a model's parameters and a linear classifier, by Adam, stopped early."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import register_parametrization

from headscope.analyses.transfer.labelled import Frozen, Part, Reader, Tuned, in_buckets
from headscope.analyses.transfer.result import CurvePoint
from headscope.core.accumulator import Array, numpy
from headscope.core.widest import widest
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.trainable import Chosen, choose
from headscope.stats.statistics import finite

CLASSIFIER_RATE = 3e-3  # Learning rate of the classifier where more than the classifier is trained.
START = 0.02  # Standard deviation of the classifier's first weights (as BERT's).
WARM_UP = 0.1  # Share of the steps over which the rate rises from 0; it then falls to 0.
#: A training loss that ends this many times above its start has diverged. A run that learns nothing
#: ends about where it started: on one side or the other, as its last batches happen to be.
DIVERGED = 1.1
POOL = 8  # Batches that are sorted by length together, so that little is padded.


class OutOfTime(Exception):  # noqa: N818
    """The budget ended in the middle of a run, which then does not count."""


@dataclass(frozen=True)
class Recipe:
    """How a run is trained."""

    #: Learning rate: of the classifier where it is trained alone, else of everything else.
    rate: float
    steps: int  # at most
    batch: int  # examples of a step
    every: int  # steps between validations
    patience: int  # validations that may bring nothing before a run stops


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    curve: tuple[CurvePoint, ...]  # by step
    kept_step: int  # the one with the lowest validation loss
    validation_loss: float  # there; infinite where no loss was finite
    #: A loss was not finite, or the training loss ended more than a tenth above its start.
    diverged: bool
    #: From a part of the data to its classes (n,), as the model of that step has them.
    predict: Callable[[Part], Array] = field(repr=False)


def fine_tune(
    loaded: LoadedModel,
    variant: str,
    parts: tuple[Part, Part],
    frozen: Frozen,
    recipe: Recipe,
    *,
    n_classes: int,
    seed: int,
    check_time: Callable[[], None],
) -> Outcome:
    """Train the variant's parameters on the first part; keep the step best on the second."""
    generator = torch.Generator().manual_seed(seed)
    reader: Reader = frozen
    trained: list[nn.Parameter] = []
    if variant != "head":
        own, trained = trainable_copy(loaded, choose(loaded, variant, seed), seed)
        reader = Tuned(own, frozen.centre, frozen.scale)
    weight = torch.randn(n_classes, len(frozen.centre), generator=generator) * START
    classifier = nn.Linear(len(frozen.centre), n_classes).to(frozen.centre)
    with torch.no_grad():
        classifier.weight.copy_(weight)
        classifier.bias.zero_()
    run = _Run(reader, classifier, trained, recipe, generator, check_time)
    return run.train(*parts, frozen)


def trainable_copy(
    loaded: LoadedModel, chosen: Sequence[Chosen], seed: int
) -> tuple[LoadedModel, list[nn.Parameter]]:
    """Copy a model, and return what an optimiser steps of the copy; the rest of it is frozen.

    Whole parameters are stepped themselves. Some entries of a parameter, or a change of rank one,
    are vectors of their own that the parameter is computed from whenever it is used.
    """
    own = dataclasses.replace(loaded, model=copy.deepcopy(loaded.model), sites=())
    own.network = own.model
    pairs = zip(loaded.model.parameters(), own.model.parameters(), strict=True)
    copies = {id(original): parameter for original, parameter in pairs}
    holders: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in own.model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            holders.setdefault(id(parameter), []).append((module, name))
            parameter.requires_grad_(False)
    rng = np.random.default_rng((abs(seed), 11))
    whole, vectors = list[nn.Parameter](), list[nn.Parameter]()
    for c in chosen:
        parameter = copies[id(c.parameter)]
        change: _RankOne | _Entries
        if c.rank_one is not None:
            change = _RankOne(parameter, c.rank_one, rng)
        elif c.entries is not None:
            change = _Entries(parameter, c.entries)
        else:
            whole.append(parameter.requires_grad_())
            continue
        vectors.append(change.vector)
        for module, name in holders[id(parameter)]:
            register_parametrization(module, name, change)
    return own, [*whole, *vectors]


class _Entries(nn.Module):
    """Some entries of a parameter, in a vector."""

    def __init__(self, parameter: nn.Parameter, entries: Tensor) -> None:
        super().__init__()
        self._entries = entries
        self.vector = nn.Parameter(parameter.detach().take(entries))

    def forward(self, parameter: Tensor) -> Tensor:
        return parameter.put(self._entries, self.vector)


class _RankOne(nn.Module):
    """``W + b a^T``: b starts at 0, a as a random direction; the first ``n`` numbers are free."""

    def __init__(self, parameter: nn.Parameter, n: int, rng: np.random.Generator) -> None:
        super().__init__()
        rows, columns = parameter.shape
        a = torch.from_numpy(rng.normal(size=columns) / np.sqrt(columns)).to(parameter)
        start = torch.cat([a.new_zeros(rows), a])
        self.vector, self._rest, self._rows = nn.Parameter(start[:n]), start[n:], rows

    def forward(self, parameter: Tensor) -> Tensor:
        both = torch.cat([self.vector, self._rest])
        return parameter + torch.outer(both[: self._rows], both[self._rows :])


class _Run:
    """A run under way."""

    def __init__(
        self,
        reader: Reader,
        classifier: nn.Linear,
        trained: list[nn.Parameter],
        recipe: Recipe,
        generator: torch.Generator,
        check_time: Callable[[], None],
    ) -> None:
        self.reader, self.classifier = reader, classifier
        self.recipe, self.generator, self.check_time = recipe, generator, check_time
        self.tensors = [*trained, *classifier.parameters()]
        peak = CLASSIFIER_RATE if trained else recipe.rate
        groups = [{"params": list(classifier.parameters()), "peak": peak}]
        if trained:
            groups.append({"params": trained, "peak": recipe.rate})
        self.adam = torch.optim.Adam(groups, fused=True)
        self.losses: list[float] = []  # since the last validation
        #: Loss, step, and the tensors of that step.
        self.best: tuple[float, int, list[Tensor]] | None = None

    def train(self, train: Part, validation: Part, frozen: Frozen) -> Outcome:
        """Train to the last step, or until validation brings nothing; go back to the best step."""
        recipe, tuned = self.recipe, self.reader
        self.reader = frozen  # The run starts from the untrained classifier on the frozen model.
        self.losses = [self._evaluate(train)[0]]
        curve = [self._validate(0, validation)]
        self.reader = tuned
        waited, step = 0, 0
        for step, rows in zip(range(1, recipe.steps + 1), self._batches(train), strict=False):
            self.losses.append(self._step(train, rows, step))
            if not math.isfinite(self.losses[-1]):
                curve.append(CurvePoint(step, None, None, self._evaluate(validation)[1]))
                break
            if step % recipe.every == 0 or step == recipe.steps:
                self.check_time()
                curve.append(self._validate(step, validation))
                waited = 0 if self.best is not None and self.best[1] == step else waited + 1
                if waited >= recipe.patience or curve[-1].validation_loss is None:
                    break
        loss, kept_step = math.inf, 0
        if self.best is not None:
            loss, kept_step, tensors = self.best
            with torch.no_grad():
                for tensor, value in zip(self.tensors, tensors, strict=True):
                    tensor.copy_(value)
        start, end = curve[0].train_loss, curve[-1].train_loss
        lost = any(p.train_loss is None or p.validation_loss is None for p in curve)
        diverged = lost or (start is not None and end is not None and end > DIVERGED * start)

        def predict(part: Part) -> Array:
            return numpy(self._logits(part).argmax(dim=1))

        return Outcome(tuple(curve), kept_step, loss, diverged, predict)

    def _validate(self, step: int, validation: Part) -> CurvePoint:
        """Validate; keep this step if none before was as good."""
        loss, accuracy = self._evaluate(validation)
        if math.isfinite(loss) and (self.best is None or loss < self.best[0]):
            self.best = loss, step, [tensor.detach().clone() for tensor in self.tensors]
        mean, self.losses = float(np.mean(self.losses)), []
        return CurvePoint(step, finite(mean), finite(loss), accuracy)

    def _step(self, part: Part, rows: Sequence[int], step: int) -> float:
        gold = part.labels[list(rows)].to(self.classifier.weight.device)
        loss = F.cross_entropy(self.classifier(self.reader(part, rows)), gold)
        value = loss.item()
        if math.isfinite(value):
            torch.autograd.backward([loss])
            # The rate rises over the first tenth of the steps, then falls to 0.
            steps = self.recipe.steps
            rising = max(1, round(WARM_UP * steps))
            factor = min(step / rising, (steps - step + 1) / max(1, steps - rising + 1))
            for group in self.adam.param_groups:
                group["lr"] = factor * group["peak"]
            self.adam.step()
            self.adam.zero_grad(set_to_none=True)
        return value

    def _batches(self, part: Part) -> Iterator[list[int]]:
        """Yield batches of about equal lengths without end; every example once a pass."""
        batch = self.recipe.batch
        while True:
            order = torch.randperm(len(part), generator=self.generator).tolist()
            for start in range(0, len(order), POOL * batch):
                near = order[start : start + POOL * batch]
                near.sort(key=lambda i: len(part.rows[i]))
                cut = [near[i : i + batch] for i in range(0, len(near), batch)]
                for i in torch.randperm(len(cut), generator=self.generator).tolist():
                    yield cut[i]

    def _evaluate(self, part: Part) -> tuple[float, float]:
        """Return the mean loss, and the accuracy times 100."""
        logits = self._logits(part)
        gold = part.labels.to(logits.device)
        loss = float(F.cross_entropy(logits, gold))
        return loss, 100 * float(widest(logits.argmax(dim=1) == gold).mean())

    def _logits(self, part: Part) -> Tensor:
        """Return the classifier's outputs, (n, n_classes), in the order of the part."""
        logits: dict[int, Tensor] = {}
        with torch.no_grad():
            for rows in in_buckets(part, range(len(part))):
                logits.update(zip(rows, self.classifier(self.reader(part, rows)), strict=True))
        return torch.stack([logits[i] for i in range(len(part))])
