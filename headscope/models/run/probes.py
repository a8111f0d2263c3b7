"""The batches on which a certificate proves that our attention is the model's.

Short sentences with padding, on either side, and a long text without. :func:`probes` makes them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from headscope.core.errors import HeadscopeError
from headscope.data.pieces import unreadable
from headscope.models.run.loaded import LoadedModel

LONG = 256  # Tokens of the long probe, at least, where the model has room for them.
#: About fifty tokens in all.
_TEXTS = (
    "The old ferry left the harbour before dawn, and nobody on the quay could say who had "
    "untied it.",
    "She wrote it down.",
    "When the auditors asked for the ledgers of 1987, the clerk who kept the keys had retired.",
    "Why?",
)
_RANDOM_LENGTHS = (23, 7, 16, 3)


@dataclass(frozen=True)
class Probe:
    """One batch of the certificate."""

    name: str  # ``right-padded``, ``left-padded`` or ``unpadded``
    #: (batch, pos): on the model's device; the mask is 1 for tokens and 0 for padding.
    input_ids: Tensor
    attention_mask: Tensor
    #: (batch, target_pos): the same for the decoder of an encoder-decoder model.
    decoder_input_ids: Tensor | None = None
    decoder_attention_mask: Tensor | None = None

    @property
    def inputs(self) -> dict[str, Tensor]:
        """All tensors by the names of the model's arguments, without those that are None."""
        names = [field.name for field in fields(self) if field.name != "name"]
        tensors = {name: getattr(self, name) for name in names}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    @property
    def real(self) -> Tensor:
        """Positions of the model's last states that are no padding, (batch, pos), boolean."""
        last = self.decoder_attention_mask
        return (self.attention_mask if last is None else last).bool()

    def real_queries(self, stack: str) -> Tensor:
        """Return the query positions of a stack that are not padding, (batch, query_pos), bool."""
        return self.attention_mask.bool() if stack == "encoder" else self.real

    def real_keys(self, stack: str) -> Tensor:
        """Return the key positions of a stack that are not padding, (batch, key_pos), bool."""
        return self.attention_mask.bool() if stack == "cross" else self.real_queries(stack)

    @property
    def padded(self) -> int:
        """Positions that are padding."""
        masks = (self.attention_mask, self.decoder_attention_mask)
        return sum(int((mask == 0).sum()) for mask in masks if mask is not None)


def probes(loaded: LoadedModel) -> tuple[Probe, ...]:
    """Return batches of sentences (random ids without a tokenizer): short and padded, and long.

    The long one goes beyond every sliding window, where the model has room for that. A decoder
    reads the next sentence's tokens, so that the lengths differ.
    """
    longest = LONG
    for site in loaded.sites:
        if site.window is not None:
            longest = max(longest, 3 * site.window)
    longest = min(longest, loaded.max_length)
    if loaded.tokenizer is None:
        *short, long = _random_sequences(loaded, longest)
    else:
        *short, long = _sentences(loaded, longest)
    highest = max(max(ids) for ids in [*short, long])
    if highest >= loaded.vocab_size:
        raise HeadscopeError(
            f"The tokenizer of {loaded.name} gives token id {highest}, but the model's embedding "
            f"has {loaded.vocab_size} rows; tokenizer and weights do not belong together."
        )
    padded = _probe(loaded, "right-padded", [ids[: loaded.max_length] for ids in short])
    unpadded = _probe(loaded, "unpadded", [long])
    if getattr(loaded.tokenizer, "padding_side", "right") != "left":
        return padded, unpadded
    return padded, _left_padded(padded), unpadded


def _random_sequences(loaded: LoadedModel, longest: int) -> list[list[int]]:
    """Draw the token ids of a few short sequences and of one with ``longest`` tokens."""
    generator = torch.Generator().manual_seed(0)
    first = min(5, loaded.vocab_size - 1)  # behind the special tokens of most vocabularies
    sequences = []
    for length in (*_RANDOM_LENGTHS, longest):
        size = (min(length, loaded.max_length),)
        ids = torch.randint(first, loaded.vocab_size, size, generator=generator)
        sequences.append(ids.tolist())
    return sequences


def _sentences(loaded: LoadedModel, longest: int) -> list[list[int]]:
    """Read the token ids of a few short sentences and of a text of about ``longest`` tokens."""
    long_text = " ".join(_TEXTS * (longest // 50))  # _TEXTS have about fifty tokens
    texts = [*_TEXTS, long_text]
    try:
        encoded = loaded.tokenizer(texts, truncation=False, padding=False, verbose=False)
    except Exception as error:  # tokenizers raises no more special kind
        raise unreadable(loaded, error) from error
    sequences = [list(ids) for ids in encoded["input_ids"]]
    long = sequences[-1]
    if len(long) > longest:
        last_token = long[-1]  # special, in most families
        sequences[-1] = [*long[: longest - 1], last_token]
    return sequences


def _probe(loaded: LoadedModel, name: str, sequences: list[list[int]]) -> Probe:
    """Pad sequences to a batch.

    Where the encoder reads sequences a, b and c, the decoder reads b, c and three quarters of a.
    """
    ids, mask = loaded.pad(sequences)
    if loaded.start_id is None:
        return Probe(name, ids, mask)
    first = sequences[0]
    most_of_first = first[: max(1, len(first) * 3 // 4)]
    targets = [*sequences[1:], most_of_first]
    started = [[loaded.start_id, *target][: loaded.max_length] for target in targets]
    decoder_ids, decoder_mask = loaded.pad(started)
    return Probe(name, ids, mask, decoder_ids, decoder_mask)


def _left_padded(padded: Probe) -> Probe:
    """Move the padding of a batch before its sequences: tokens a b 0 0 -> 0 0 a b."""
    ids = padded.input_ids.clone()
    mask = padded.attention_mask.clone()
    for row, n_tokens in enumerate(padded.attention_mask.sum(1).tolist()):
        ids[row] = ids[row].roll(ids.shape[1] - n_tokens)
        mask[row] = mask[row].roll(mask.shape[1] - n_tokens)
    return replace(padded, name="left-padded", input_ids=ids, attention_mask=mask)
