"""The heads of the trained transliteration model, on pairs of names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from scipy import stats
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import headscope
from headscope.results import ClassifyResult

MODEL, PAIRS = "models/ar-en-transliteration", "data/ar-en-test.tsv"


@pytest.fixture(scope="module")
def result(shared: Path) -> ClassifyResult:
    return headscope.classify(str(shared / MODEL), shared / PAIRS, control=True)


def test_what_was_read(result: ClassifyResult) -> None:
    read = {item.stack: (item.sentences, item.skipped) for item in result.corpus.by_stack}
    assert read == {"encoder": (1590, 0), "decoder": (1590, 0), "cross": (1586, 4)}
    assert set(result.untestable) >= {"cross:special", "cross:broad", "decoder:broad", "syntactic"}


def test_roles(result: ClassifyResult) -> None:
    roles = Counter((head.stack, role) for head in result.heads for role in head.roles)
    assert roles == {("cross", "monotonic"): 42, ("cross", "sharp"): 13}


def test_random_weights_earn_nothing(result: ClassifyResult) -> None:
    assert result.control is not None
    assert result.control.heads == 144
    counts = [counts.values() for counts in result.control.by_stack.values()]
    assert [sorted(values)[-2:] for values in counts] == [[0, 48]] * 3


def test_position_explains_most_of_the_alignment(result: ClassifyResult) -> None:
    """Names are short, and both scripts write them in one order."""
    gains = dict.fromkeys(range(6), 0.0)
    for head in result.only("cross").heads:
        assert head.alignment is not None
        assert head.alignment.score is not None
        assert head.alignment.swapped is not None
        gains[head.layer] += (head.alignment.score - head.alignment.swapped) / 8
    assert max(gains[0], gains[1]) < 0.01
    assert gains[5] > 0.08


def test_against_the_eager_model(result: ClassifyResult, shared: Path) -> None:
    """Mean rank correlation, name by name, of predicted letters and the letters looked at."""
    tokenizer = AutoTokenizer.from_pretrained(shared / MODEL)
    network = AutoModelForSeq2SeqLM.from_pretrained(
        shared / MODEL, attn_implementation="eager"
    ).eval()
    stop, start = network.config.eos_token_id, network.config.decoder_start_token_id
    lines = (shared / PAIRS).read_text(encoding="utf-8").splitlines()[:60]
    found, skipped = torch.zeros(6, 8, dtype=torch.float64), 0
    for line in lines:
        source, target = line.split("\t")
        keys = [x for x in tokenizer(source)["input_ids"] if x != stop]
        letters = [x for x in tokenizer(text_target=target)["input_ids"] if x != stop]
        if min(len(keys), len(letters)) < 3:
            skipped += 1
            continue
        with torch.no_grad():
            out = network(
                input_ids=torch.tensor([keys]),
                decoder_input_ids=torch.tensor([[start, *letters]]),
                output_attentions=True,
            )
        for layer, pattern in enumerate(out.cross_attentions):
            for head, rows in enumerate(pattern[0]):
                places = rows[: len(letters)].argmax(-1).tolist()
                if len(set(places)) > 1:
                    order = stats.spearmanr(range(len(places)), places).statistic
                    found[layer, head] += float(order)
    fast = headscope.classify(
        str(shared / MODEL), shared / PAIRS, limit=60, stack="cross", validate=False
    )
    for head in fast.heads:
        assert head.alignment is not None
        expected = float(found[head.layer, head.head]) / (60 - skipped)
        assert head.alignment.score == pytest.approx(expected, abs=1e-6)
