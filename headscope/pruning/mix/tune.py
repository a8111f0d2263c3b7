"""Distillation: a smaller model learns the whole model's own outputs, from text without labels.

The loss is the squared distance between both models' outputs of a text, the vectors that units are
chosen by as well (for embeddings of length 1 it is 2 - 2 cosine). A tenth of the text is held out;
the weights that were nearest on it are kept, those before tuning among them.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headscope.data.token_rows import padded
from headscope.models.compact import as_before
from headscope.models.loaded import LoadedModel
from headscope.models.loading import wrap
from headscope.models.products import fast_products, fast_training
from headscope.tasks.base import Task

RATE, BATCH = 3e-4, 32
HELD_OUT, MOST_HELD = 10, 512  # One text of so many is held out, and so many at most
CHECKS = 6  # Looks at the held-out text during the time that is allowed
WARM = 50  # Steps until the full rate


@dataclasses.dataclass(frozen=True)
class Distilled:
    """A tuned model, and how near it came."""

    model: LoadedModel
    before: float  # Mean squared distance on held-out text
    after: float
    steps: int
    minutes: float
    sentences: int  # That were trained on


def distil(
    small: LoadedModel,
    whole: LoadedModel,
    tasks: tuple[Task, Task],
    minutes: float,
    *,
    seed: int = 0,
    tell: Callable[[float], object] = lambda share: None,
    clock: Callable[[], float] = time.monotonic,
) -> Distilled:
    """Train all weights of ``small`` for some minutes; both models stay as they are.

    ``tasks`` hold the same text, tokenised for the small model and for the whole one, whose
    vocabularies may differ.
    """
    start = clock()
    network = copy.deepcopy(small.network)
    student = as_before(wrap(network, small.tokenizer, name=small.name), small)
    task, n = tasks[0], len(tasks[0].rows)
    rng = random.Random(seed)
    held = sorted(rng.sample(range(n), max(1, min(MOST_HELD, n // HELD_OUT))))
    others = set(range(n)).difference(held)
    # Neighbours in length make batches with little padding.
    train = sorted(others, key=lambda i: (len(task.rows[i]), i)) or held
    targets = _Targets(whole, tasks[1])
    with (
        fast_products(whole.network),
        fast_training(network),
        _trained(network) as parameters,
    ):
        optimiser = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.0)
        best = before = _distance(student, task, held, targets)
        state, checked, steps = copy.deepcopy(network.state_dict()), 0, 0
        prepared = clock() - start
        share = 0.0
        while share < 1:
            for group in optimiser.param_groups:
                group["lr"] = RATE * min(1.0, (steps + 1) / WARM) * math.cos(share * math.pi / 2)
            first = rng.randrange(max(1, len(train) - BATCH + 1))
            rows = train[first : first + BATCH]
            loss = ((_embed(student, task, rows) - targets(rows)) ** 2).sum(-1).mean()
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            steps += 1
            share = min(1.0, (clock() - start - prepared) / max(60 * minutes - prepared, 1e-9))
            tell(share)
            if share * CHECKS >= checked + 1:
                checked += 1
                if (now := _distance(student, task, held, targets)) < best:
                    best, state = now, copy.deepcopy(network.state_dict())
        network.load_state_dict(state)
    return Distilled(student, before, best, steps, (clock() - start) / 60, len(train))


@contextmanager
def _trained(network: nn.Module) -> Iterator[list[nn.Parameter]]:
    """Yield the parameters with gradients switched on, and switch them off again.

    Tables of embeddings stay as they are: most of their rows are in none of the texts.
    """
    tables = {id(m.weight) for m in network.modules() if isinstance(m, nn.Embedding)}
    parameters = [p for p in network.parameters() if p.is_floating_point() and id(p) not in tables]
    for p in parameters:
        p.requires_grad_(True)
    try:
        with torch.enable_grad():
            yield parameters
    finally:
        for p in parameters:
            p.requires_grad_(False)


def _embed(loaded: LoadedModel, task: Task, rows: Sequence[int]) -> Tensor:
    batch = padded([task.rows[i] for i in rows], loaded.pad_id, loaded.device)
    return task.embed(loaded.run, batch)


class _Targets:
    """The whole model's outputs, each computed when it is first asked for."""

    def __init__(self, whole: LoadedModel, task: Task) -> None:
        self._whole, self._task = whole, task
        self._known: dict[int, Tensor] = {}

    def __call__(self, rows: Sequence[int]) -> Tensor:
        """Return those of some rows, (rows, d)."""
        missing = [i for i in rows if i not in self._known]
        if missing:
            with torch.no_grad():
                found = _embed(self._whole, self._task, missing)
            self._known.update(zip(missing, found, strict=True))
        return torch.stack([self._known[i] for i in rows])


def _distance(loaded: LoadedModel, task: Task, rows: Sequence[int], targets: _Targets) -> float:
    total = 0.0
    for first in range(0, len(rows), BATCH):
        part = rows[first : first + BATCH]
        with torch.no_grad():
            gap = _embed(loaded, task, part) - targets(part)
        total += float((gap.double() ** 2).sum())
    return total / len(rows)
