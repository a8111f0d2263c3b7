"""Greedy decoding against a loop that runs the whole decoder anew for every token."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from families import COVERED
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

import headscope
from headscope.data.pair_rows import Ends
from headscope.models.gating import gated
from headscope.models.loading import wrap
from headscope.pipeline.tasks.decoding import decode_greedily, text_of, token_limit

SIZE, PAD, START, STEPS = 40, 0, 1, 12
SMALL = {
    "vocab_size": SIZE,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 32,
    "pad_token_id": PAD,
    "init_std": 0.7,
    "tie_word_embeddings": False,
}
T5 = {
    "vocab_size": SIZE,
    "d_model": 16,
    "d_kv": 4,
    "d_ff": 32,
    "num_layers": 2,
    "num_heads": 4,
    "tie_word_embeddings": False,
}
MAKERS = {
    "bart": (BartForConditionalGeneration, BartConfig, SMALL),
    "marian": (MarianMTModel, MarianConfig, SMALL),
    "pegasus": (PegasusForConditionalGeneration, PegasusConfig, SMALL),
    "t5": (T5ForConditionalGeneration, T5Config, {**T5, "initializer_factor": 3.0}),
}
#: Of different lengths, so that the shorter ones are padded.
SOURCES = [[7, 8, 9, 10, 11, 12], [5, 6], [20, 21, 22, 23], [30]]


def tiny(family: str) -> Any:
    torch.manual_seed(3)
    network, config, settings = MAKERS[family]
    ids = {"bos_token_id": 3, "eos_token_id": 2, "decoder_start_token_id": START}
    made = network(config(**settings, **ids, forced_eos_token_id=None)).eval()
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
            input_ids=torch.tensor([source]),
            decoder_input_ids=torch.tensor([ids]),
            use_cache=False,
        ).logits[0, -1]
        allowed = [token for token in range(SIZE) if again or token not in {PAD, *ids}]
        best = max(allowed, key=lambda token: float(logits[token]))
        ids.append(forced.get(step, best))
    return ids[1:]


def before(ids: list[int], stop: int) -> list[int]:
    return ids[: ids.index(stop)] if stop in ids else ids


def written(network: Any, stop: int, limit: int = STEPS) -> list[list[int]]:
    longest = max(map(len, SOURCES))
    padded = torch.tensor([ids + [PAD] * (longest - len(ids)) for ids in SOURCES])
    mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in SOURCES])
    ends = Ends(START, stop)
    return decode_greedily(network, padded, mask, ends=ends, pad_id=PAD, max_new_tokens=limit)


@pytest.mark.parametrize("forced", [{}, {0: 17}], ids=["free", "forced first token"])
@pytest.mark.parametrize("family", MAKERS)
def test_as_a_plain_loop(family: str, forced: dict[int, int]) -> None:
    network = tiny(family)
    # Random models repeat themselves; what a checkpoint forbids stays forbidden.
    network.generation_config.update(bad_words_ids=[[PAD]], no_repeat_ngram_size=1)
    network.generation_config.forced_bos_token_id = forced.get(0)
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


@pytest.mark.parametrize("family", MAKERS)
def test_through_our_attention(family: str) -> None:
    """With cached keys and values; a head that is gated away changes what is written."""
    network = tiny(family)
    network.generation_config.update(bad_words_ids=[[PAD]], no_repeat_ngram_size=1)
    expected = written(network, SIZE - 1)
    loaded = wrap(network)
    with gated(loaded, torch.ones(loaded.n_layers, loaded.n_heads)):
        assert written(network, SIZE - 1) == expected
    with gated(loaded, torch.zeros(loaded.n_layers, loaded.n_heads)):
        assert written(network, SIZE - 1) != expected


def test_limits_are_ours_and_the_settings_are_left_alone() -> None:
    network = tiny("marian")
    before_ = network.generation_config.to_dict()
    assert {len(ids) for ids in written(network, SIZE - 1, limit=5)} == {5}
    assert network.generation_config.to_dict() == before_


def test_the_checkpoints_own_end_tokens() -> None:
    network = tiny("bart")
    slow = [written_slowly(network, ids, STEPS, forced={}, again=True) for ids in SOURCES]
    network.generation_config.eos_token_id = [slow[0][4], slow[1][2]]
    expected = [before(before(ids, slow[0][4]), slow[1][2]) for ids in slow]
    assert written(network, SIZE - 1) == expected
    assert min(map(len, expected)) < STEPS


@pytest.mark.parametrize(
    ("longest", "limit", "expected"), [(12, 256, 34), (12, 20, 20), (1, 512, 12)]
)
def test_how_much_may_be_written(longest: int, limit: int, expected: int) -> None:
    assert token_limit(longest, limit) == expected


def test_text_has_no_white_space_around_it() -> None:
    class Speller:
        def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
            assert skip_special_tokens
            return " " + " ".join(map(str, ids)) + "\n"

    assert text_of(Speller(), [1, 2]) == "1 2"


@pytest.mark.parametrize("family", ["bart", "marian", "t5"])
def test_a_decoder_whose_first_layer_has_no_head_decodes_as_without_a_cache(family: str) -> None:
    """transformers counts what was decoded by the first layer's keys, of which there are none."""
    known = next(item for item in COVERED if item.name == family)
    layers = {"num_layers": 2, "num_decoder_layers": 2} if family == "t5" else {}
    loaded = headscope.wrap(known.model(**layers))
    heads = [*(("decoder", 0, head) for head in range(4)), ("cross", 1, 2)]
    cut = headscope.remove_heads(loaded, heads)
    ids, mask = loaded.pad([[5, 6, 7, 8, 9], [11, 12, 13]])
    options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "num_beams": 1}
    plainly = cut.network.generate(input_ids=ids, use_cache=False, **options)
    assert torch.equal(cut.network.generate(input_ids=ids, **options), plainly)
    assert loaded.network.config.use_cache is not False
