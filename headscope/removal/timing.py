"""Passes of several models that take turns, each with the seconds that it took.

Another program, or a warm processor, changes the speed of a machine for seconds at a time. Models
that take turns see the same of it, so what is compared is always what ran side by side.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from headscope.artefacts.onnx_session import RuntimeFile
from headscope.core.accumulator import Array
from headscope.data.token_rows import Padded
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import own_implementation, use_implementation

Pass = Callable[[], object]  # One whole pass of one model over one batch
Clock = Callable[[], float]  # Seconds since any moment


@contextmanager
def passes(
    models: Sequence[LoadedModel | RuntimeFile], batches: Sequence[Padded]
) -> Iterator[list[list[Pass]]]:
    """Yield what runs each model on each batch, as a user would: without gradients.

    The attention is transformers' own: SDPA, or eager of a family that has no other.

    The pooling belongs to a pass, as it does to an exported graph.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        for model in models:
            if isinstance(model, LoadedModel):
                own = own_implementation(model.network)
                stack.enter_context(use_implementation(model.network, own))
        yield [
            [
                partial(_pass, model, batch)
                if isinstance(model, LoadedModel)
                else partial(model.run, *batch.inputs)
                for batch in batches
            ]
            for model in models
        ]


def in_turns(
    runs: Sequence[Sequence[Pass]],
    *,
    fewest: int,
    most: int,
    seconds: float,
    clock: Clock = time.perf_counter,
    did: Callable[[int], object] = lambda rounds: None,
) -> Array:
    """Return the seconds of every pass, (rounds, models, batches).

    In each round every model runs each of its batches once, after one pass over its first batch
    that is not counted, since the model before has filled the caches with its own weights. The
    order of the models turns round from round to round. No round is started after ``seconds``, once
    there are ``fewest``; that never depends on which model was faster. ``did`` is told how many
    rounds are done.
    """
    for run in runs:  # the first pass of a shape compiles products
        for each in run:
            each()
    rounds: list[list[list[float]]] = []
    start = clock()
    while len(rounds) < fewest or (len(rounds) < most and clock() - start < seconds):
        spent: list[list[float]] = [[] for _ in runs]
        order = range(len(runs)) if len(rounds) % 2 else reversed(range(len(runs)))
        for i in order:
            runs[i][0]()
            for each in runs[i]:
                began = clock()
                each()
                spent[i].append(clock() - began)
        rounds.append(spent)
        did(len(rounds))
    return np.array(rounds)


def wait(device: torch.device) -> None:
    """Let a device that works on its own finish."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _pass(loaded: LoadedModel, batch: Padded) -> None:
    decoder: dict[str, Any] = {**batch.decoder_inputs}
    hidden, logits = loaded.run(*batch.inputs, **decoder)
    if logits is None:
        loaded.pooling.embed(hidden, batch.hidden_mask)
    wait(hidden.device)
