"""Greedy decoding against a loop that runs the whole decoder anew for every token."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PegasusConfig,
    PegasusForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

from headscope.data.pair_rows import Ends
from headscope.models.gating import gated
from headscope.models.loading import wrap
from headscope.pipeline.tasks.decoding import decode_greedily, text_of, token_limit

SIZE, PAD, START, STEPS = 40, 0, 1, 12
STACKS = {"layers": 2, "attention_heads": 4, "ffn_dim": 32}
SMALL = {
    **{f"{stack}_{name}": n for stack in ("encoder", "decoder") for name, n in STACKS.items()},
    **{"max_position_embeddings": 32, "pad_token_id": PAD, "init_std": 0.7},
}
T5 = {"d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4, "initializer_factor": 3.0}
MAKERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bart": (BartForConditionalGeneration, BartConfig, SMALL),
    "marian": (MarianMTModel, MarianConfig, SMALL),
    "pegasus": (PegasusForConditionalGeneration, PegasusConfig, SMALL),
    "t5": (T5ForConditionalGeneration, T5Config, T5),
}
#: Of different lengths, so that the shorter ones are padded.
SOURCES = [[7, 8, 9, 10, 11, 12], [5, 6], [20, 21, 22, 23], [30]]


def tiny(family: str) -> Any:
    torch.manual_seed(3)
    network, config, settings = MAKERS[family]
    common = {"vocab_size": SIZE, "d_model": 16, "tie_word_embeddings": False}
    ids = {"bos_token_id": 3, "eos_token_id": 2, "decoder_start_token_id": START}
    made = network(config(**common, **settings, **ids, forced_eos_token_id=None)).eval()
    # What a checkpoint may ask for and greedy decoding does without.
    made.generation_config.update(num_beams=4, do_sample=True, temperature=0.7, max_length=3)
    made.generation_config.update(min_length=11, length_penalty=2.0, early_stopping=True)
    made.generation_config.update(eos_token_id=None, forced_eos_token_id=None)
    return made


@torch.no_grad()
def written_slowly(
    network: Any, source: list[int], steps: int, *, forced: dict[int, int], again: bool
) -> list[int]:
    """Write one source's tokens, without padding, batch or cache; the end token is one of many.

    Unless ``again``, no token is written twice.
    """
    ids = [START]
    for step in range(steps):
        logits = network(
            input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([ids]), use_cache=False
        ).logits[0, -1]
        allowed = [token for token in range(SIZE) if again or token not in {PAD, *ids}]
        best = max(allowed, key=lambda token: float(logits[token]))
        ids.append(forced.get(step, best))
    return ids[1:]


def before(ids: list[int], *stops: int) -> list[int]:
    return list(itertools.takewhile(lambda token: token not in stops, ids))


def written(network: Any, stop: int, limit: int = STEPS) -> list[list[int]]:
    longest = max(map(len, SOURCES))
    padded = torch.tensor([ids + [PAD] * (longest - len(ids)) for ids in SOURCES])
    mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in SOURCES])
    ends = Ends(START, stop)
    return decode_greedily(network, padded, mask, ends=ends, pad_id=PAD, max_new_tokens=limit)


@pytest.mark.parametrize("family", MAKERS)
def test_as_a_plain_loop(family: str) -> None:
    """Free and with a forced first token, and with cached keys and values through our attention."""
    for forced in ({}, {0: 17}):
        network = tiny(family)
        # Random models repeat themselves; what a checkpoint forbids stays forbidden.
        network.generation_config.update(bad_words_ids=[[PAD]], no_repeat_ngram_size=1)
        network.generation_config.forced_bos_token_id = forced.get(0)
        settings = network.generation_config.to_dict()
        slow = [written_slowly(network, ids, STEPS, forced=forced, again=False) for ids in SOURCES]
        # Any token can be the end token: one that some source reaches late and another never does.
        stop = next(
            token
            for token in slow[0][3:]
            if token not in slow[0][:3] and not all(token in ids for ids in slow)
        )
        expected = [before(ids, stop) for ids in slow]
        assert len({tuple(ids) for ids in expected}) == len(SOURCES)
        assert any(len(ids) == STEPS for ids in expected)
        assert written(network, stop) == expected
        assert written(network, stop, limit=3) == [ids[:3] for ids in expected]
        loaded = wrap(network)
        with gated(loaded, torch.ones(loaded.n_layers, loaded.n_heads)):
            assert written(network, stop) == expected
        with gated(loaded, torch.zeros(loaded.n_layers, loaded.n_heads)):
            assert written(network, stop) != expected
        assert network.generation_config.to_dict() == settings


def test_the_checkpoints_own_end_tokens() -> None:
    network = tiny("bart")
    slow = [written_slowly(network, ids, STEPS, forced={}, again=True) for ids in SOURCES]
    network.generation_config.eos_token_id = [slow[0][4], slow[1][2]]
    expected = [before(ids, slow[0][4], slow[1][2]) for ids in slow]
    assert written(network, SIZE - 1) == expected
    assert min(map(len, expected)) < STEPS


def test_how_much_may_be_written_and_as_what_text() -> None:
    assert [token_limit(12, 256), token_limit(12, 20), token_limit(1, 512)] == [34, 20, 12]

    class Speller:
        def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
            assert skip_special_tokens
            return " " + " ".join(map(str, ids)) + "\n"

    assert text_of(Speller(), [1, 2]) == "1 2"
