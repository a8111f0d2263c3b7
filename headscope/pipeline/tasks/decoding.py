"""Greedy decoding: at each step the likeliest token, until the end token or a limit."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headscope.data.pair_rows import Ends
from headscope.models.routing import quiet_transformers


def token_limit(longest: int, limit: int) -> int:
    """Say how many tokens a model may write for one source.

    Twice the longest target and ten more: a good model is never cut short, and one that has lost
    its end token is stopped.
    """
    return min(limit, 2 * longest + 10)


def decode_greedily(
    network: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    *,
    ends: Ends,
    pad_id: int,
    max_new_tokens: int,
) -> list[list[int]]:
    """Let an encoder-decoder model write, token by token, with cached keys and values.

    What else the checkpoint says about generation holds (forced first and last tokens, suppressed
    tokens, penalties), but not its beams, sampling and lengths.

    One pass of the encoder, then one step of the decoder for each token of the longest output.
    """
    settings = _greedy(network.generation_config, ends, pad_id, max_new_tokens)
    with quiet_transformers(), torch.no_grad():
        written = network.generate(
            input_ids=input_ids, attention_mask=attention_mask, generation_config=settings
        )
    stops = _stops(settings.eos_token_id)
    return [_until(row[1:], stops) for row in written.tolist()]


def _greedy(config: Any, ends: Ends, pad_id: int, max_new_tokens: int) -> Any:
    """Copy a checkpoint's generation settings, with greedy decoding and our limits."""
    settings = copy.deepcopy(config)
    # A setting that is None would be filled from the checkpoint again.
    settings.update(
        do_sample=False,
        num_beams=1,
        num_return_sequences=1,
        early_stopping=False,
        length_penalty=1.0,
        min_new_tokens=0,
        max_new_tokens=max_new_tokens,
        use_cache=True,
        return_dict_in_generate=False,
        decoder_start_token_id=ends.start,
        pad_token_id=pad_id,
    )
    if settings.eos_token_id is None:
        settings.eos_token_id = ends.stop
    return settings


def _stops(eos: int | Sequence[int]) -> set[int]:
    return {eos} if isinstance(eos, int) else set(eos)


def _until(ids: Sequence[int], stops: set[int]) -> list[int]:
    """Take the tokens before the first stop token."""
    end = next((i for i, token in enumerate(ids) if token in stops), len(ids))
    return list(ids[:end])


def text_of(tokenizer: Any, ids: Sequence[int]) -> str:
    """Spell tokens as text, without special tokens and surrounding white space."""
    text: str = tokenizer.decode(list(ids), skip_special_tokens=True)
    return text.strip()
