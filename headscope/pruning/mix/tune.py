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
from headscope.models.products import fast_training
from headscope.tasks.base import Task

RATE, BATCH = 3e-4, 32
HELD_OUT = 10  # One text of so many
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
    held = list(range(0, n, HELD_OUT))
    train = [i for i in range(n) if i % HELD_OUT]
    targets = _outputs(whole, tasks[1], range(n))
    with fast_training(network), _trained(network) as parameters:
        optimiser = torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.0)
        best = before = _distance(student, task, held, targets)
        state, checked, steps = copy.deepcopy(network.state_dict()), 0, 0
        rng, prepared = random.Random(seed), clock() - start
        share = 0.0
        while share < 1:
            for group in optimiser.param_groups:
                group["lr"] = RATE * min(1.0, (steps + 1) / WARM) * math.cos(share * math.pi / 2)
            rows = sorted(rng.sample(train, min(BATCH, len(train))))
            loss = ((_embed(student, task, rows) - targets[rows]) ** 2).sum(-1).mean()
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


def _outputs(loaded: LoadedModel, task: Task, rows: Sequence[int]) -> Tensor:
    with torch.no_grad():
        parts = [_embed(loaded, task, rows[i : i + BATCH]) for i in range(0, len(rows), BATCH)]
    return torch.cat(parts)


def _distance(loaded: LoadedModel, task: Task, rows: Sequence[int], targets: Tensor) -> float:
    gap = _outputs(loaded, task, rows) - targets[list(rows)]
    return float((gap.double() ** 2).sum(-1).mean())
