"""One fine-tuning: some of a model's parameters and a linear classifier, by Adam, stopped early.

:func:`fine_tune` is the entry point. An ``Embed`` takes examples and some of their indices, and
gives the embeddings that the classifier reads, (indices, d).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscope.analyses.transfer import TransferOptions
from headscope.analyses.transfer.embeddings import Embed, FrozenEmbeddings, length_buckets
from headscope.analyses.transfer.labelled import Split
from headscope.analyses.transfer.result import CurvePoint
from headscope.analyses.transfer.trainable_copy import trainable_copy
from headscope.core.accumulator import Array, numpy
from headscope.core.widest import widest
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.trainable import choose
from headscope.stats.statistics import finite

CLASSIFIER_RATE = 3e-3  # Learning rate of the classifier where more than the classifier is trained.
START = 0.02  # Standard deviation of the classifier's first weights, as in BERT
WARM_UP = 0.1  # Share of the steps over which the rate rises from 0; it then falls to 0.
#: A run has diverged if its training loss ends at more than so many times its start. A run that
#: learns nothing ends a little above or below its start, as its last batches happen to be.
DIVERGED = 1.1
VALIDATIONS = 5  # How often a run validates, if it is not stopped early
POOL = 8  # So many batches are sorted by length together, so that little is padded


class OutOfTime(Exception):  # noqa: N818
    """The budget ended in the middle of a run, which then does not count."""


@dataclass(frozen=True)
class Outcome:
    """What one fine-tuning came to."""

    curve: tuple[CurvePoint, ...]  # By step
    kept_step: int  # The one with the lowest validation loss
    validation_loss: float  # At that step; infinite where no loss was finite
    #: A loss was not finite, or the training loss ended more than a tenth above its start.
    diverged: bool
    #: Returns the classes of some examples, (n,), by the model of that step
    predict: Callable[[Split], Array] = field(repr=False)


def fine_tune(
    loaded: LoadedModel,
    variant: str,
    frozen: FrozenEmbeddings,
    options: TransferOptions,
    *,
    train: Split,
    validation: Split,
    rate: float,
    n_classes: int,
    seed: int,
    check_time: Callable[[], None],
) -> Outcome:
    """Train the variant's parameters; keep the step that is best on the validation examples.

    Training ends with the last step, or after ``options.patience`` validations without a lower
    loss.

    Parameters
    ----------
    loaded : LoadedModel
        Left as it is.
    variant : str
        What is trained beside the classifier, as :func:`choose` names it; ``head`` for nothing.
    frozen : FrozenEmbeddings
        Embeddings by ``loaded``.
    options : TransferOptions
        Steps, batch size and patience are taken from them.
    train, validation : Split
        Training examples, and those that the step is chosen by.
    rate : float
        Learning rate of the variant's parameters; in the variant ``head`` of the classifier, which
        else has its own.
    n_classes : int
        Outputs of the classifier.
    seed : int
        Of the classifier's start, the order of examples, and what the variant draws.
    check_time : callable
        Called before each validation; may raise :class:`OutOfTime`.
    """
    # what is trained
    generator = torch.Generator().manual_seed(seed)
    embed: Embed = frozen
    tuned_parameters: list[nn.Parameter] = []
    if variant != "head":
        tuned, tuned_parameters = trainable_copy(loaded, choose(loaded, variant, seed), seed)
        embed = frozen.in_units(tuned)
    classifier = _classifier(frozen, n_classes, generator)
    progress = _Progress(classifier, [*tuned_parameters, *classifier.parameters()], validation)
    groups = [_group(classifier.parameters(), CLASSIFIER_RATE if tuned_parameters else rate)]
    if tuned_parameters:
        groups.append(_group(tuned_parameters, rate))
    adam = torch.optim.Adam(groups, fused=True)

    # the start: the untrained classifier on the frozen model
    progress.losses.append(_evaluate(frozen, classifier, train).loss)
    progress.validate(frozen, 0)

    # steps
    steps = options.steps
    between_validations = math.ceil(steps / VALIDATIONS)
    n_waited = 0
    batches = _batches(train, options.batch, generator)
    for step, indices in zip(range(1, steps + 1), batches, strict=False):
        labels = train.labels[indices].to(frozen.centre.device)
        loss = F.cross_entropy(classifier(embed(train, indices)), labels)
        progress.losses.append(loss.item())
        if not math.isfinite(progress.losses[-1]):
            progress.stop_without_loss(embed, step)
            break
        torch.autograd.backward([loss])
        for group in adam.param_groups:
            group["lr"] = _share_of_rate(step, steps) * group["peak"]
        adam.step()
        adam.zero_grad(set_to_none=True)
        if step % between_validations == 0 or step == steps:
            check_time()
            progress.validate(embed, step)
            n_waited = 0 if progress.best_step == step else n_waited + 1
            if n_waited >= options.patience or progress.curve[-1].validation_loss is None:
                break

    # the best step
    progress.restore_best()

    def predict(examples: Split) -> Array:
        return numpy(_logits(embed, classifier, examples).argmax(dim=1))

    return Outcome(
        curve=tuple(progress.curve),
        kept_step=progress.best_step or 0,
        validation_loss=progress.best_loss,
        diverged=_diverged(progress.curve),
        predict=predict,
    )


def _classifier(frozen: FrozenEmbeddings, n_classes: int, generator: torch.Generator) -> nn.Linear:
    """Make a linear classifier with random weights, on the frozen model's device."""
    width = len(frozen.centre)
    weight = torch.randn(n_classes, width, generator=generator) * START
    classifier = nn.Linear(width, n_classes).to(frozen.centre)
    with torch.no_grad():
        classifier.weight.copy_(weight)
        classifier.bias.zero_()
    return classifier


def _group(parameters: Iterable[nn.Parameter], rate: float) -> dict[str, Any]:
    """Make a group of parameters for an optimiser; ``peak`` is its highest learning rate."""
    return {"params": list(parameters), "peak": rate}


def _share_of_rate(step: int, steps: int) -> float:
    """Return the share of its peak that the learning rate has at a step, counted from 1.

    It rises over the first :data:`WARM_UP` of the steps, then falls to 0: of 20 steps 1/2, 1,
    18/19, 17/19, ..., 1/19.
    """
    rising = max(1, round(WARM_UP * steps))
    falling = (steps - step + 1) / max(1, steps - rising + 1)
    return min(step / rising, falling)


def _diverged(curve: Sequence[CurvePoint]) -> bool:
    """Whether a loss was not finite, or training ended clearly above its start."""
    if any(point.train_loss is None or point.validation_loss is None for point in curve):
        return True
    first = curve[0].train_loss
    last = curve[-1].train_loss
    return first is not None and last is not None and last > DIVERGED * first


class _Progress:
    """What a run has reached: its curve, and the tensors of the step that validated best."""

    def __init__(
        self, classifier: nn.Linear, tensors: Sequence[nn.Parameter], validation: Split
    ) -> None:
        self._classifier = classifier
        self._tensors = tensors
        self._validation = validation
        self._best_tensors: list[Tensor] | None = None
        self.best_step: int | None = None  # None where no validation loss was finite
        self.best_loss = math.inf
        self.curve: list[CurvePoint] = []
        self.losses: list[float] = []  # Training losses since the last validation

    def validate(self, embed: Embed, step: int) -> None:
        """Add a point to the curve; remember the tensors if no step before had as low a loss."""
        loss, accuracy = _evaluate(embed, self._classifier, self._validation)
        if math.isfinite(loss) and loss < self.best_loss:
            self.best_loss = loss
            self.best_step = step
            self._best_tensors = [tensor.detach().clone() for tensor in self._tensors]
        mean_loss = finite(float(np.mean(self.losses)))
        self.curve.append(CurvePoint(step, mean_loss, finite(loss), accuracy))
        self.losses.clear()

    def stop_without_loss(self, embed: Embed, step: int) -> None:
        """Add a last point, where the training loss is not finite any more."""
        _, accuracy = _evaluate(embed, self._classifier, self._validation)
        self.curve.append(CurvePoint(step, None, None, accuracy))

    def restore_best(self) -> None:
        """Set the trained tensors to what they were at the best step, if there was one."""
        if self._best_tensors is None:
            return
        with torch.no_grad():
            for tensor, value in zip(self._tensors, self._best_tensors, strict=True):
                tensor.copy_(value)


class _Evaluation(NamedTuple):
    """How good a classifier is on some examples."""

    loss: float  # Mean cross-entropy in nats
    accuracy: float  # Times 100


def _evaluate(embed: Embed, classifier: nn.Linear, examples: Split) -> _Evaluation:
    """Return the mean loss, and the accuracy times 100."""
    logits = _logits(embed, classifier, examples)
    labels = examples.labels.to(logits.device)
    loss = float(F.cross_entropy(logits, labels))
    return _Evaluation(loss, 100 * float(widest(logits.argmax(dim=1) == labels).mean()))


def _batches(train: Split, size: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Yield batches of texts of about equal lengths, as indices, without end.

    Every example comes once in each pass.
    """
    while True:
        order = torch.randperm(len(train), generator=generator).tolist()
        for start in range(0, len(order), POOL * size):
            pool = order[start : start + POOL * size]
            pool.sort(key=lambda i: len(train.rows[i]))
            batches = [pool[i : i + size] for i in range(0, len(pool), size)]
            for i in torch.randperm(len(batches), generator=generator).tolist():
                yield batches[i]


def _logits(embed: Embed, classifier: nn.Linear, examples: Split) -> Tensor:
    """Return the classifier's outputs, (n, n_classes), in the order of the examples."""
    logits: dict[int, Tensor] = {}
    with torch.no_grad():
        for indices in length_buckets(examples, range(len(examples))):
            logits.update(zip(indices, classifier(embed(examples, indices)), strict=True))
    return torch.stack([logits[i] for i in range(len(examples))])
