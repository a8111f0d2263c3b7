"""What the certificate runs on: short padded sentences, and one long sequence without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.errors import HeadscopeError
from headscope.models.loading import LoadedModel

#: Tokens of the long probe, where the model has room for them.
LONG = 256
_TEXT = (
    "The old ferry left the harbour before dawn, and nobody on the quay could say who had "
    "untied it.",
    "She wrote it down.",
    "When the auditors asked for the ledgers of 1987, the clerk who kept the keys had retired.",
    "Why?",
)
_RANDOM_LENGTHS = (23, 7, 16, 3)


@dataclass(frozen=True)
class Probe:
    """One batch.

    Attributes
    ----------
    name : str
        ``right-padded``, ``left-padded`` or ``unpadded``.
    input_ids, attention_mask : Tensor, (batch, pos)
        On the model's device; the mask is 1 for tokens and 0 for padding.
    """

    name: str
    input_ids: Tensor
    attention_mask: Tensor

    @property
    def real(self) -> Tensor:
        """Positions that are no padding, (batch, pos), boolean."""
        return self.attention_mask.bool()

    @property
    def padded(self) -> int:
        """Positions that are padding."""
        return int((~self.real).sum())


def probes(loaded: LoadedModel) -> tuple[Probe, ...]:
    """Return sentences, or random token ids where there is no tokenizer.

    Raises
    ------
    HeadscopeError
        If the tokenizer gives ids that the model does not have.
    """
    *short, long = _tokenized(loaded) if loaded.tokenizer is not None else _random(loaded)
    _check_ids(loaded, [*short, long])
    padded = Probe("right-padded", *loaded.pad([ids[: loaded.max_length] for ids in short]))
    unpadded = Probe("unpadded", *loaded.pad([long]))
    if getattr(loaded.tokenizer, "padding_side", "right") == "left":
        return padded, _left(padded), unpadded
    return padded, unpadded


def _tokenized(loaded: LoadedModel) -> list[list[int]]:
    assert loaded.tokenizer is not None
    texts = [*_TEXT, " ".join(_TEXT * (LONG // 50))]
    encoded = loaded.tokenizer(texts, truncation=False, padding=False, verbose=False)["input_ids"]
    *short, long = [list(ids) for ids in encoded]
    room = min(LONG, loaded.max_length)
    return [*short, long if len(long) <= room else long[: room - 1] + long[-1:]]


def _random(loaded: LoadedModel) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    low = min(5, loaded.vocab_size - 1)
    lengths = [min(n, loaded.max_length) for n in (*_RANDOM_LENGTHS, LONG)]
    return [
        torch.randint(low, loaded.vocab_size, (n,), generator=generator).tolist() for n in lengths
    ]


def _check_ids(loaded: LoadedModel, sequences: Sequence[Sequence[int]]) -> None:
    highest = max(max(ids) for ids in sequences)
    if highest >= loaded.vocab_size:
        raise HeadscopeError(
            f"The tokenizer of {loaded.name} gives token id {highest}, but the model's embedding "
            f"has {loaded.vocab_size} rows; tokenizer and weights do not belong together."
        )


def _left(probe: Probe) -> Probe:
    """Move the padding of every sequence to its front."""
    ids, mask = probe.input_ids.clone(), probe.attention_mask.clone()
    for row, n in enumerate(probe.attention_mask.sum(1).tolist()):
        ids[row] = ids[row].roll(ids.shape[1] - n)
        mask[row] = mask[row].roll(mask.shape[1] - n)
    return Probe("left-padded", ids, mask)
