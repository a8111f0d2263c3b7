"""The task seq2seq and greedy decoding, pair by pair, against what transformers itself gives."""

import itertools
import sys
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch
import transformers as hf
from derivatives import check_derivatives
from tiny_models import SPECIAL, VOCABULARY, framed_tokenizer, tiny_bert
from torch import Tensor

import headscope
from headscope.core.errors import InputError
from headscope.data.examples import Examples
from headscope.data.token_rows import Ends
from headscope.models.run.intervene import gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.wrapping import wrap
from headscope.tasks.seq2seq import Seq2Seq, decode_greedily, ends_of

PAD = SPECIAL.index("[PAD]")
CLS = SPECIAL.index("[CLS]")
SEP = SPECIAL.index("[SEP]")
SOURCES = ("the cat sat on the mat", "a big red dog ran", "she saw it", "he", "a dog", "it")
TARGETS = ("the mat sat on the cat", "ran red", "it saw a big big house", "she", "dog", "a")
COMMON = {"d_model": 16, "tie_word_embeddings": False, "forced_eos_token_id": None}
SMALL: dict[str, Any] = {
    **{"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 32},
    **{"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 32},
    **{"max_position_embeddings": 32, "pad_token_id": PAD},
}


def opened(seed: int = 0, spread: float = 0.5) -> LoadedModel:
    torch.manual_seed(seed)
    special_ids = {"decoder_start_token_id": CLS, "bos_token_id": CLS, "eos_token_id": SEP}
    config = hf.BartConfig(
        vocab_size=len(VOCABULARY), init_std=spread, **SMALL, **COMMON, **special_ids
    )
    network = hf.BartForConditionalGeneration(config)
    return wrap(network.double(), framed_tokenizer("$A [SEP]"), name="tiny")


def made(loaded: LoadedModel, sources: tuple[str, ...] = SOURCES) -> Seq2Seq:
    targets = TARGETS[: len(sources)]
    return Seq2Seq(Examples("x.tsv", "0", first=sources, second=targets), loaded)


@torch.no_grad()
def alone(loaded: LoadedModel, source: str, target: str) -> tuple[Tensor, Tensor, list[int]]:
    """Last decoder states and log-probabilities of one pair without padding, and its labels."""
    vocabulary = {piece: i for i, piece in enumerate(VOCABULARY)}
    ids = [[vocabulary[word] for word in text.split()] for text in (source, target)]
    labels = [*ids[1], SEP]
    output = loaded.network(
        input_ids=torch.tensor([[*ids[0], SEP]]),
        decoder_input_ids=torch.tensor([[CLS, *ids[1]]]),
        output_hidden_states=True,
    )
    return output.decoder_hidden_states[-1][0], output.logits[0].log_softmax(-1), labels


def in_order(task: Seq2Seq, loaded: LoadedModel, *, labels: bool, kind: str) -> list[Any]:
    """A loss or embedding of every example, in the order of the examples."""
    by_example: list[Any] = [None] * task.n_examples
    batches = zip(task.batches(loaded), task.loss_batches(loaded, labels=labels), strict=True)
    for padded, batch in batches:
        ones = torch.ones(loaded.n_layers, loaded.n_heads)
        values = batch.loss(ones) if kind == "loss" else batch.embed(ones)
        for i, value in zip(padded.index.tolist(), values, strict=True):
            by_example[i] = value.tolist()
    return by_example


def test_token_accuracy_is_the_share_of_guessed_tokens():
    """On a model whose output bias favours a few frequent words."""
    loaded = opened(seed=2, spread=0.1)
    for word in ("[SEP]", "the", "a", "it", "cat", "big"):
        loaded.network.final_logits_bias[0, VOCABULARY.index(word)] = 1.0
    task = made(loaded)
    outputs = task.outputs(loaded)
    guesses = []
    expected = []
    for source, target in zip(SOURCES, TARGETS, strict=True):
        _, scores, labels = alone(loaded, source, target)
        guesses.append([row.index(max(row)) for row in scores.tolist()])
        expected.append(sum(a == b for a, b in zip(guesses[-1], labels, strict=True)))
    assert sum(expected) >= 2
    assert len(set(expected)) > 1
    np.testing.assert_array_equal(outputs["correct"], expected)
    sizes = [len(target.split()) + 1 for target in TARGETS]
    np.testing.assert_array_equal(outputs["tokens"], sizes)
    assert task.value(outputs) == pytest.approx(100 * sum(expected) / sum(sizes))
    for name, extreme in (("least_guess", min), ("most_guess", max)):
        assert outputs[name].tolist() == [extreme(tokens) for tokens in guesses]
    assert task.metric == "token_accuracy"
    assert task.metrics(outputs) == {"token_accuracy": task.value(outputs)}


def test_losses_and_embeddings_are_those_of_single_pairs():
    full = opened()
    other = opened()
    for parameter in other.network.model.decoder.layers.parameters():
        parameter.data *= 1.3
    task = made(full)
    cross_entropies = []
    divergences = []
    embeddings = []
    longest = max(len(target.split()) + 1 for target in TARGETS)
    for source, target in zip(SOURCES, TARGETS, strict=True):
        states, p, labels = alone(full, source, target)
        q = alone(other, source, target)[1]
        log_p = [float(row[label]) for row, label in zip(p, labels, strict=True)]
        cross_entropies.append(-sum(log_p) / len(labels))
        divergences.append(float((p.exp() * (p - q)).sum() / len(p)))
        # The decoder's states end to end, with zeros up to the longest target.
        embedding = torch.zeros(longest, states.shape[1], dtype=states.dtype)
        embedding[: len(states)] = states / len(states) ** 0.5
        embeddings.append(embedding.flatten().tolist())
    values = in_order(task, full, labels=True, kind="loss")
    np.testing.assert_allclose(values, cross_entropies, rtol=1e-9)
    assert max(in_order(task, full, labels=False, kind="loss")) < 1e-12
    values = in_order(task, other, labels=False, kind="loss")
    np.testing.assert_allclose(values, divergences, rtol=1e-9)
    values = in_order(task, full, labels=False, kind="embed")
    np.testing.assert_allclose(values, embeddings, atol=1e-12)


@pytest.mark.parametrize("labels", [True, False])
def test_derivatives(labels):
    loaded = opened()
    check_derivatives(made(loaded), loaded, labels=labels)


def test_texts_are_decoded_and_judged_where_asked_for(monkeypatch):
    loaded = opened()
    task = made(loaded)
    texts = task.decode(loaded)
    assert len(set(texts)) > 3
    limit = 2 * max(len(target.split()) + 1 for target in TARGETS) + 10
    for source, text in zip(SOURCES, texts, strict=True):
        ids = torch.tensor([loaded.tokenizer(source).input_ids])
        alone = loaded.network.generate(ids, num_beams=1, max_new_tokens=limit)
        assert text == loaded.tokenizer.decode(alone[0], skip_special_tokens=True).strip()
    # Targets that the model writes, and some that it does not.
    expected = (texts[0], f" {texts[1]} ", "the cat sat on the mat", *texts[3:5], "house")
    monkeypatch.setattr("headscope.tasks.seq2seq.bleu_unit", lambda _: "13a")
    judged = made(loaded)
    judged._targets = tuple(text.strip() for text in expected)
    outputs = judged.outputs(loaded, all_metrics=True)
    metrics = judged.metrics(outputs)
    assert list(metrics) == ["token_accuracy", "exact_match", "bleu"]
    assert outputs["exact"].tolist() == [1, 1, 0, 1, 1, 0]
    assert metrics["exact_match"] == pytest.approx(100 * 4 / 6)
    stripped = [text.strip() for text in expected]
    assert metrics["bleu"] == pytest.approx(sacrebleu.corpus_bleu(texts, [stripped]).score)
    assert "exact" not in judged.outputs(loaded)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    task = made(loaded)
    metrics = task.metrics(task.outputs(loaded, all_metrics=True))
    assert list(metrics) == ["token_accuracy", "exact_match"]


def test_a_model_that_writes_one_thing_is_degenerate():
    loaded = opened()
    task = made(loaded)
    assert task.degenerate(task.outputs(loaded)) is None
    loaded.network.final_logits_bias[0, VOCABULARY.index("big")] = 1e4
    assert task.degenerate(task.outputs(loaded)) == "gives the same token at every position"
    outputs = task.outputs(loaded, all_metrics=True)
    assert task.degenerate(outputs) == "writes the same text for every source"


def test_where_targets_start_and_end(tmp_path):
    loaded = opened()
    assert (ends_of(loaded).start, ends_of(loaded).stop) == (CLS, SEP)
    configs = (loaded.network.config, loaded.network.generation_config)
    for settings in configs:
        settings.decoder_start_token_id = None
        settings.bos_token_id = 7
        settings.eos_token_id = [SEP, 9]
    assert (ends_of(loaded).start, ends_of(loaded).stop) == (7, SEP)
    for settings in configs:
        settings.eos_token_id = None
    with pytest.raises(InputError, match="config of tiny has no eos_token_id"):
        ends_of(loaded)
    encoder = headscope.load(str(tiny_bert(tmp_path)), task_head="auto")
    with pytest.raises(InputError, match=r"\(bert\) is no encoder-decoder model"):
        made(encoder)


SIZE = 40
START = 1
STEPS = 12
#: Of different lengths, so that the shorter ones are padded.
ROWS = [[7, 8, 9, 10, 11, 12], [5, 6], [20, 21, 22, 23], [30]]


@torch.no_grad()
def written_slowly(network: Any, source: list[int]) -> list[int]:
    """Write one source's tokens, none of them twice, without padding, batch or cache."""
    ids = [START]
    for _ in range(STEPS):
        logits = network(
            input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([ids]), use_cache=False
        ).logits[0, -1]
        allowed = [token for token in range(SIZE) if token not in {PAD, *ids}]
        ids.append(max(allowed, key=lambda token: float(logits[token])))
    return ids[1:]


def before(ids: list[int], *stops: int) -> list[int]:
    return list(itertools.takewhile(lambda token: token not in stops, ids))


def written(network: Any, stop: int, limit: int = STEPS) -> list[list[int]]:
    longest = max(map(len, ROWS))
    padded = torch.tensor([ids + [PAD] * (longest - len(ids)) for ids in ROWS])
    options = {"target_ends": Ends(START, stop), "pad_id": PAD, "max_new_tokens": limit}
    return decode_greedily(network, padded, (padded != PAD).long(), **options)


def test_texts_are_written_as_by_a_plain_loop():
    """Whatever the checkpoint asks for, and with keys and values cached through our attention."""
    torch.manual_seed(3)
    ids = {"bos_token_id": 3, "eos_token_id": 2, "decoder_start_token_id": START}
    config = hf.BartConfig(vocab_size=SIZE, init_std=0.7, **SMALL, **COMMON, **ids)
    network = hf.BartForConditionalGeneration(config).eval()
    settings = network.generation_config
    # What a checkpoint may ask for and greedy decoding does without.
    settings.update(num_beams=4, do_sample=True, temperature=0.7, max_length=3, min_length=11)
    settings.update(length_penalty=2.0, early_stopping=True, eos_token_id=None)
    # Random models repeat themselves; what a checkpoint forbids stays forbidden.
    settings.update(bad_words_ids=[[PAD]], no_repeat_ngram_size=1, forced_eos_token_id=None)
    settings_before = settings.to_dict()
    slow = [written_slowly(network, ids) for ids in ROWS]
    # Any token can be the end token: one that some source reaches late and another never does.
    stop = next(
        token
        for token in slow[0][3:]
        if token not in slow[0][:3] and not all(token in ids for ids in slow)
    )
    expected = [before(ids, stop) for ids in slow]
    assert any(len(ids) == STEPS for ids in expected)
    assert written(network, stop) == expected
    assert written(network, stop, limit=3) == [ids[:3] for ids in expected]
    loaded = wrap(network)
    with gated(loaded, torch.ones(loaded.n_layers, loaded.n_heads)):
        assert written(network, stop) == expected
    with gated(loaded, torch.zeros(loaded.n_layers, loaded.n_heads)):
        assert written(network, stop) != expected
    assert settings.to_dict() == settings_before
    # The checkpoint's own end tokens hold.
    settings.eos_token_id = [slow[0][4], slow[1][2]]
    assert written(network, SIZE - 1) == [before(ids, slow[0][4], slow[1][2]) for ids in slow]
