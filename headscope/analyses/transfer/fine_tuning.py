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

from headscope.analyses.transfer import TransferOptions
from headscope.analyses.transfer.labelled import Part
from headscope.analyses.transfer.result import CurvePoint
from headscope.core.accumulator import Array, numpy
from headscope.core.rounding import ROUNDING
from headscope.core.widest import widest
from headscope.data.batches import buckets
from headscope.data.token_rows import padded
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.trainable import Chosen, choose
from headscope.stats.statistics import finite

CLASSIFIER_RATE = 3e-3  # Learning rate of the classifier where more than the classifier is trained.
START = 0.02  # Standard deviation of the classifier's first weights (as BERT's).
WARM_UP = 0.1  # Share of the steps over which the rate rises from 0; it then falls to 0.
#: A training loss that ends this many times above its start has diverged. A run that learns nothing
#: ends about where it started: on one side or the other, as its last batches happen to be.
DIVERGED = 1.1
VALIDATIONS = 5  # How often a run validates, if it is not stopped early.
POOL = 8  # Batches that are sorted by length together, so that little is padded.


class OutOfTime(Exception):  # noqa: N818
    """The budget ended in the middle of a run, which then does not count."""


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


#: Turns examples of a part, by index, into what the classifier reads: (indices, d).
Embed = Callable[[Part, Sequence[int]], Tensor]


class Frozen:
    """Embeddings by a model as it is, each text once; in units of the training examples."""

    def __init__(self, loaded: LoadedModel, train: Part, cache: dict[object, Tensor]) -> None:
        self._loaded = loaded
        self._cache = cache
        embedded = self._of(train, range(len(train)))
        self.centre = embedded.mean(dim=0)
        spread = embedded.std(dim=0, correction=0)
        # A dimension that varies by rounding alone is not scaled up, so that its noise stays small.
        rounding = ROUNDING * embedded.abs().max().clamp(min=1e-12)
        unit = spread.max() if spread.max() > rounding else rounding / ROUNDING
        self.scale = torch.where(spread <= torch.maximum(rounding, 1e-6 * unit), unit, spread)

    def __call__(self, part: Part, indices: Sequence[int]) -> Tensor:
        """Look up some examples."""
        return (self._of(part, indices) - self.centre) / self.scale

    def in_units(self, tuned: LoadedModel) -> Embed:
        """Embed by a model whose parameters may change, in the same units."""
        return lambda part, rows: (_embed(tuned, part, rows) - self.centre) / self.scale

    def _of(self, part: Part, indices: Sequence[int]) -> Tensor:
        keys = {i: (part.rows[i].ids, part.rows[i].types) for i in indices}
        new = [i for i, key in keys.items() if key not in self._cache]
        with torch.no_grad():
            for batch in _buckets(part, new):
                for i, embedded in zip(batch, _embed(self._loaded, part, batch), strict=True):
                    self._cache[keys[i]] = embedded
        return torch.stack([self._cache[keys[i]] for i in indices])


def _embed(loaded: LoadedModel, part: Part, indices: Sequence[int]) -> Tensor:
    """Run the model over some examples."""
    batch = padded([part.rows[i] for i in indices], loaded.pad_id, loaded.device)
    hidden, _ = loaded.run(*batch.inputs)
    return loaded.pooling.embed(hidden, batch.hidden_mask)


def _buckets(part: Part, indices: Sequence[int]) -> Iterator[list[int]]:
    """Yield batches of similar lengths."""
    for batch in buckets([dataclasses.replace(part.rows[i], index=i) for i in indices]):
        yield [row.index for row in batch]


def fine_tune(
    loaded: LoadedModel,
    variant: str,
    parts: tuple[Part, Part],
    frozen: Frozen,
    options: TransferOptions,
    *,
    rate: float,
    n_classes: int,
    seed: int,
    check_time: Callable[[], None],
) -> Outcome:
    """Train the variant's parameters on the first part; keep the step best on the second.

    ``rate`` is that of the classifier where it is trained alone, else of everything else. Training
    ends with the last step, or where validation brings nothing for a while. ``check_time`` is
    called before each validation, and may raise :class:`OutOfTime`.
    """
    train, validation = parts
    steps = options.steps
    every = -(-options.steps // VALIDATIONS)
    generator = torch.Generator().manual_seed(seed)
    embed: Embed = frozen
    trained: list[nn.Parameter] = []
    if variant != "head":
        tuned, trained = trainable_copy(loaded, choose(loaded, variant, seed), seed)
        embed = frozen.in_units(tuned)
    weight = torch.randn(n_classes, len(frozen.centre), generator=generator) * START
    classifier = nn.Linear(len(frozen.centre), n_classes).to(frozen.centre)
    with torch.no_grad():
        classifier.weight.copy_(weight)
        classifier.bias.zero_()
    tensors = [*trained, *classifier.parameters()]
    groups = [(classifier.parameters(), CLASSIFIER_RATE if trained else rate), (trained, rate)]
    adam = torch.optim.Adam(
        [{"params": params, "peak": peak} for group, peak in groups if (params := list(group))],
        fused=True,
    )
    best: tuple[float, int, list[Tensor]] | None = None  # loss, step, and the tensors then
    curve: list[CurvePoint] = []
    losses: list[float] = []  # since the last validation

    def evaluate(embed: Embed, part: Part) -> tuple[float, float]:
        """Return the mean loss, and the accuracy times 100."""
        logits = _logits(embed, classifier, part)
        gold = part.labels.to(logits.device)
        loss = float(F.cross_entropy(logits, gold))
        return loss, 100 * float(widest(logits.argmax(dim=1) == gold).mean())

    def validate(embed: Embed, step: int) -> None:
        """Validate; keep this step if none before was as good."""
        nonlocal best
        loss, accuracy = evaluate(embed, validation)
        if math.isfinite(loss) and (best is None or loss < best[0]):
            best = loss, step, [tensor.detach().clone() for tensor in tensors]
        curve.append(CurvePoint(step, finite(float(np.mean(losses))), finite(loss), accuracy))
        losses.clear()

    # The run starts from the untrained classifier on the frozen model.
    losses.append(evaluate(frozen, train)[0])
    validate(frozen, 0)
    waited = 0
    rising = max(1, round(WARM_UP * steps))
    batches = _batches(train, options.batch, generator)
    for step, rows in zip(range(1, steps + 1), batches, strict=False):
        gold = train.labels[rows].to(frozen.centre.device)
        loss = F.cross_entropy(classifier(embed(train, rows)), gold)
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            curve.append(CurvePoint(step, None, None, evaluate(embed, validation)[1]))
            break
        torch.autograd.backward([loss])
        left = (steps - step + 1) / max(1, steps - rising + 1)
        for group in adam.param_groups:
            group["lr"] = min(step / rising, left) * group["peak"]
        adam.step()
        adam.zero_grad(set_to_none=True)
        if step % every == 0 or step == steps:
            check_time()
            validate(embed, step)
            waited = 0 if best is not None and best[1] == step else waited + 1
            if waited >= options.patience or curve[-1].validation_loss is None:
                break
    best_loss, best_step, values = best or (math.inf, 0, tensors)
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)
    start = curve[0].train_loss
    end = curve[-1].train_loss
    lost = any(p.train_loss is None or p.validation_loss is None for p in curve)
    diverged = lost or (start is not None and end is not None and end > DIVERGED * start)

    def predict(part: Part) -> Array:
        return numpy(_logits(embed, classifier, part).argmax(dim=1))

    return Outcome(tuple(curve), best_step, best_loss, diverged, predict)


def _batches(part: Part, batch: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Yield batches of about equal lengths without end; every example once a pass."""
    while True:
        order = torch.randperm(len(part), generator=generator).tolist()
        for start in range(0, len(order), POOL * batch):
            pool = order[start : start + POOL * batch]
            pool.sort(key=lambda i: len(part.rows[i]))
            cut = [pool[i : i + batch] for i in range(0, len(pool), batch)]
            for i in torch.randperm(len(cut), generator=generator).tolist():
                yield cut[i]


def _logits(embed: Embed, classifier: nn.Linear, part: Part) -> Tensor:
    """Return the classifier's outputs, (n, n_classes), in the order of the part."""
    logits: dict[int, Tensor] = {}
    with torch.no_grad():
        for rows in _buckets(part, range(len(part))):
            logits.update(zip(rows, classifier(embed(part, rows)), strict=True))
    return torch.stack([logits[i] for i in range(len(part))])


def trainable_copy(
    loaded: LoadedModel, chosen: Sequence[Chosen], seed: int
) -> tuple[LoadedModel, list[nn.Parameter]]:
    """Copy a model, and return what an optimiser steps of the copy; the rest of it is frozen.

    Whole parameters are stepped themselves. For some entries of a parameter, or a rank-one change,
    the optimiser steps a vector, and the parameter is computed from it whenever it is used.
    """
    copied = dataclasses.replace(loaded, model=copy.deepcopy(loaded.model), sites=())
    copied.network = copied.model
    pairs = zip(loaded.model.parameters(), copied.model.parameters(), strict=True)
    copies = {id(original): parameter for original, parameter in pairs}
    holders: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in copied.model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            holders.setdefault(id(parameter), []).append((module, name))
            parameter.requires_grad_(False)
    rng = np.random.default_rng((abs(seed), 11))
    parameters: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for c in chosen:
        parameter = copies[id(c.parameter)]
        change: _RankOne | _Entries
        if c.rank_one is not None:
            change = _RankOne(parameter, c.rank_one, rng)
        elif c.entries is not None:
            change = _Entries(parameter, c.entries)
        else:
            parameters.append(parameter.requires_grad_())
            continue
        vectors.append(change.vector)
        for module, name in holders[id(parameter)]:
            register_parametrization(module, name, change)
    return copied, [*parameters, *vectors]


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
        self.vector = nn.Parameter(start[:n])
        self._rest = start[n:]
        self._rows = rows

    def forward(self, parameter: Tensor) -> Tensor:
        both = torch.cat([self.vector, self._rest])
        return parameter + torch.outer(both[: self._rows], both[self._rows :])
