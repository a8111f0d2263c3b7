"""What tests of ``shrink`` share: texts that tiny models read, a clock, a measured model."""

import dataclasses
import itertools

import numpy as np
import torch
from tiny_models import WORDS

from headscope.data.token_rows import encode_rows, padded
from headscope.shrinking.distil import output_of
from headscope.shrinking.result import MeasuredModel
from headscope.stats.estimate import Estimate

_PIECES = [word for word in WORDS if not word.startswith("#")]


def sentences(n, seed=0):
    """Random sentences of words that the tiny tokenizer knows, at most ``n``, all different."""
    rng = np.random.default_rng(seed)
    lines = [" ".join(rng.choice(_PIECES, rng.integers(4, 9))) for _ in range(n)]
    return list(dict.fromkeys(lines))


def rows_of(model):
    """Texts to train on, as a model reads them."""
    return list(encode_rows(model, sentences(120), None))


def outputs(model, texts):
    """What a model puts out for each text: its embedding, or its head's logits."""
    rows = list(encode_rows(model, texts, None))
    with torch.no_grad():
        return output_of(model, padded(rows, model.pad_id, model.device))


def clock(step=1.0):
    """A clock that goes on by ``step`` seconds each time it is read."""
    ticks = itertools.count()
    return lambda: step * next(ticks)


_MODEL = MeasuredModel(
    layers=(0, 1),
    neurons=64,
    runtime="openvino",
    precision="int8",
    megabytes=20.0,
    ms=Estimate(1.0, 0.9, 1.1),
    speed=Estimate(3.0, 2.9, 3.1),
    value=Estimate(80.0),
    change=Estimate(-0.1, -0.4, 0.2),
    most_lost=0.4,
    metrics={},
)


def measured_model(**changes):
    """A model three times as fast as the whole one, that may lose 0.4."""
    return dataclasses.replace(_MODEL, **changes)
