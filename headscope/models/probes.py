"""What the certificate runs on: short padded sentences, and one long sequence without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from headscope.data.pieces import unreadable
from headscope.errors import HeadscopeError
from headscope.models.loaded import LoadedModel

#: Tokens of the long probe, at least, where the model has room for them.
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
    """One batch."""

    name: str  # ``right-padded``, ``left-padded`` or ``unpadded``
    #: (batch, pos): on the model's device; the mask is 1 for tokens and 0 for padding.
    input_ids: Tensor
    attention_mask: Tensor
    #: (batch, target_pos): the same for the decoder of an encoder-decoder model.
    decoder_input_ids: Tensor | None = None
    decoder_attention_mask: Tensor | None = None

    @property
    def inputs(self) -> dict[str, Tensor]:
        """What the model is called with."""
        every = {part.name: getattr(self, part.name) for part in fields(self)[1:]}
        return {name: tensor for name, tensor in every.items() if tensor is not None}

    @property
    def real(self) -> Tensor:
        """Positions of the model's last states that are no padding, (batch, pos), boolean."""
        last = self.decoder_attention_mask
        return (self.attention_mask if last is None else last).bool()

    def real_queries(self, stack: str) -> Tensor:
        """Query positions of a stack that are no padding, (batch, query_pos), boolean."""
        return self.attention_mask.bool() if stack == "encoder" else self.real

    def real_keys(self, stack: str) -> Tensor:
        """Key positions of a stack that are no padding, (batch, key_pos), boolean."""
        return self.attention_mask.bool() if stack == "cross" else self.real_queries(stack)

    @property
    def padded(self) -> int:
        """Positions that are padding."""
        masks = (self.attention_mask, self.decoder_attention_mask)
        return sum(int((mask == 0).sum()) for mask in masks if mask is not None)


def probes(loaded: LoadedModel) -> tuple[Probe, ...]:
    """Return sentences, or random token ids where there is no tokenizer."""
    *short, long = _tokenized(loaded) if loaded.tokenizer is not None else _random(loaded)
    _check_ids(loaded, [*short, long])
    short = [ids[: loaded.max_length] for ids in short]
    padded = _probe(loaded, "right-padded", short)
    unpadded = _probe(loaded, "unpadded", [long])
    if getattr(loaded.tokenizer, "padding_side", "right") == "left":
        return padded, _left(padded), unpadded
    return padded, unpadded


def _probe(loaded: LoadedModel, name: str, sequences: list[list[int]]) -> Probe:
    """Pad sequences; a decoder reads the next one's tokens, so that the lengths differ."""
    ids, mask = loaded.pad(sequences)
    if loaded.start_id is None:
        return Probe(name, ids, mask)
    targets = [*sequences[1:], sequences[0][: max(1, len(sequences[0]) * 3 // 4)]]
    started = [[loaded.start_id, *target][: loaded.max_length] for target in targets]
    return Probe(name, ids, mask, *loaded.pad(started))


def _tokenized(loaded: LoadedModel) -> list[list[int]]:
    assert loaded.tokenizer is not None
    texts = [*_TEXT, " ".join(_TEXT * (_long(loaded) // 50))]
    try:
        encoded = loaded.tokenizer(texts, truncation=False, padding=False, verbose=False)
    except Exception as error:  # tokenizers raises no more special kind
        raise unreadable(loaded, error) from error
    *short, long = [list(ids) for ids in encoded["input_ids"]]
    room = _long(loaded)
    return [*short, long if len(long) <= room else long[: room - 1] + long[-1:]]


def _long(loaded: LoadedModel) -> int:
    """Tokens of the long probe: beyond every sliding window, where the model has room for that."""
    windows = [site.window for site in loaded.sites if site.window is not None]
    return min(max([LONG, *(3 * window for window in windows)]), loaded.max_length)


def _random(loaded: LoadedModel) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    low = min(5, loaded.vocab_size - 1)
    lengths = [min(n, loaded.max_length) for n in (*_RANDOM_LENGTHS, _long(loaded))]
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
    return replace(probe, name="left-padded", input_ids=ids, attention_mask=mask)
