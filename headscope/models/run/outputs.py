"""The states and logits of a model on a few short texts, and whether another one has the same.

Every model that is written to a folder is compared so with the model in memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headscope.models.run.loaded import LoadedModel

#: Largest difference of a state or logit, relative to the largest if that exceeds 1.
TOLERANCES = {"float64": 1e-5, "float32": 1e-5, "bfloat16": 5e-2, "float16": 1e-2}
#: Of different lengths, so that there is padding.
TEXTS = (
    "The committee will publish its report on the new bridge in March.",
    "He said that nobody had seen the letters before they were sold.",
    "Rain again.",
)
#: For a model without a tokenizer: token ids as shares of its vocabulary.
_SHARES = ((0.9, 0.1, 0.5, 0.3, 0.7, 0.2), (0.4, 0.6, 0.8), (0.25,))
_LONGEST = 32  # Most tokens that are read of a text.


def outputs(loaded: LoadedModel) -> list[Tensor]:
    """Return last states and logits at all tokens of the texts, in float64 on the CPU.

    A decoder reads the texts in the reverse order.
    """
    if loaded.tokenizer is not None:
        rows = [ids[:_LONGEST] for ids in loaded.tokenizer(list(TEXTS))["input_ids"]]
    else:
        rows = [[int(share * loaded.vocab_size) for share in shares] for shares in _SHARES]
    rows = [row[: loaded.max_length - 1] for row in rows]  # a decoder reads one token more
    ids, mask = loaded.pad(rows)
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    real = mask.bool()
    if loaded.start_id is not None:
        starts = [[loaded.start_id, *row] for row in reversed(rows)]
        decoder_ids, decoder_mask = loaded.pad(starts)
        inputs |= {"decoder_input_ids": decoder_ids, "decoder_attention_mask": decoder_mask}
        real = decoder_mask.bool()
    with torch.no_grad():
        hidden, logits = loaded.run(**inputs)
    tensors = [hidden[real]]
    if logits is not None:
        tensors.append(logits[real] if logits.dim() == 3 else logits)
    return [tensor.cpu().double() for tensor in tensors]


def agree(expected: Sequence[Tensor], actual: Sequence[Tensor], limit: float) -> bool:
    """Whether results differ by at most ``limit``, relative to the largest if that exceeds 1."""
    for tensor, other in zip(expected, actual, strict=True):
        _, relative = distance(tensor, other)
        if not relative <= limit:
            return False
    return True


def computes_the_same(loaded: LoadedModel, network: Any) -> bool:
    """Whether another network gives the states and logits of a model on a few texts."""
    network = network.to(loaded.device).eval()
    base = getattr(network, "base_model", network)  # without its task head
    other = dataclasses.replace(loaded, model=base, network=network, sites=())
    return agree(outputs(loaded), outputs(other), TOLERANCES[loaded.dtype])


def distance(expected: Tensor, actual: Tensor) -> tuple[float, float]:
    """Return the largest absolute difference, and its ratio to max(1, largest output).

    NaN where the shapes differ, which is below no limit.
    """
    if expected.shape != actual.shape:
        return math.nan, math.nan
    if not expected.numel():
        return 0.0, 0.0
    largest = float((expected.double() - actual.double()).abs().max())
    return largest, largest / max(1.0, float(expected.abs().max()))
