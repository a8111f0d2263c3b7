"""``headscope flow``: what it finds, prints and refuses."""

import itertools
import json

import pytest
import torch
from families import tiny
from outcomes import fits
from tiny_models import tiny_tokenizer
from transformers import GPT2Config, GPT2Model

import headscope
from headscope.analyses.flow.result import FlowResult
from headscope.data.sentences import Sentence
from headscope.data.word_pieces import placed
from headscope.models.run.loaded import LoadedModel
from headscope.reports.registry import Sections

#: Different sentences of a tiny vocabulary; every second word hangs on the one before.
WORDS = ("the", "big", "dog", "saw", "a", "red", "cat", "on", "the", "mat", "and", "she", "ran")


def sentences(n: int = 60) -> list[Sentence]:
    drawn = []
    for i in range(n):
        words = (*WORDS[i % 5 : i % 5 + 5 + i % 4], WORDS[i % 6], WORDS[i % 11], ".")
        heads = (-1, *range(len(words) - 1))
        relations = ("root", *["dep"] * (len(words) - 2), "punct")
        drawn.append(Sentence(words, heads, relations))
    return drawn


def loaded(family: str) -> LoadedModel:
    model = headscope.wrap(tiny(family), tiny_tokenizer())
    model.model.resize_token_embeddings(len(tiny_tokenizer()))
    return model


@pytest.fixture(scope="module")
def flowed() -> FlowResult:
    return headscope.flow(loaded("bert"), sentences(), seed=3)


def test_every_head_has_every_number(flowed):
    places = [(head.layer, head.head) for head in flowed.heads]
    assert places == list(itertools.product(range(3), range(4)))
    read = flowed.sentences
    assert read.chosen_on == 30
    assert read.measured_on + read.repeated == 30
    assert flowed.not_measured == {}
    for head in flowed.heads:
        assert head.d_head == 8
        assert 0 < (head.wide() or 0) <= 1
        assert all(r2.value <= 1 for r2 in vars(head.recovery).values())
    assert flowed.control is not None
    assert flowed.control.seed == 3
    assert set(flowed.spectra) == {"gaussian", "fresh"}


def test_spectra_are_those_of_the_weights(flowed):
    layer = tiny("bert").encoder.layer[1].attention
    w_v = layer.self.value.weight.detach().double()[8:16]
    out = layer.output.dense.weight.detach().double()[:, 8:16]
    for spectrum, weight in ((flowed.heads[5].w_v, w_v), (flowed.heads[5].ov, out @ w_v)):
        expected = torch.linalg.svdvals(weight)[:8].tolist()
        assert spectrum.singular_values == pytest.approx(expected, rel=1e-5)


def test_text_and_what_is_written(run, model, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(sentence.text for sentence in sentences()))
    out = tmp_path / "out"
    outcome = run("flow", model, "--text", tmp_path / "text.txt", "--no-control", "-o", out)
    assert (outcome.code, outcome.stderr) == (0, "")
    fits(outcome.stdout)
    names = {path.name for path in out.iterdir()}
    assert names == {"flow.json", "flow.csv", "flow.png", "flow.svg"}
    assert json.loads((out / "flow.json").read_text())["control"] is None


def test_one_sentence_leaves_everything_but_the_weights_unknown():
    model = loaded("bert")
    result = headscope.flow(model, sentences(1))
    assert result.sentences.measured_on == 0
    assert result.recovery.value.value is None
    assert result.heads[0].wide() is not None
    judged = headscope.insights(model, sections=Sections(flow=result))
    assert judged[1].verdict == "not measured"


def test_a_decoder_is_measured():
    size = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    torch.manual_seed(0)
    model = GPT2Model(GPT2Config(vocab_size=len(tiny_tokenizer()), **size)).eval()
    result = headscope.flow(headscope.wrap(model, tiny_tokenizer()), sentences(), control=False)
    assert result.heads[0].stack == "decoder"
    assert result.heads[0].recovery.whole.value is not None


def test_small_batches_add_up_to_what_one_batch_does(flowed, monkeypatch):
    monkeypatch.setattr("headscope.session.texts.BATCH_TOKENS", 64)
    in_small_batches = headscope.flow(loaded("bert"), sentences(), seed=3, control=False)
    assert in_small_batches.sentences == flowed.sentences
    for head, same_head in zip(in_small_batches.heads, flowed.heads, strict=True):
        for target, r2 in vars(head.recovery).items():
            assert r2.value == pytest.approx(getattr(same_head.recovery, target).value, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "first", "last", "n"),
    [({}, 0, 59, 20), ({"limit": 30}, 0, 29, 30), ({"full": True}, 0, 59, 60)],
)
def test_a_long_corpus_is_read_evenly_up_to_a_limit_or_whole(options, first, last, n, monkeypatch):
    corpus = [
        Sentence((f"the {i}", "dog", "saw"), (-1, 0, 1), ("root", "dep", "dep")) for i in range(60)
    ]
    numbers_read: list[int] = []

    def watched(chosen):
        for sentence in chosen:
            numbers_read.append(int(sentence.words[0].removeprefix("the ")))
            yield sentence

    monkeypatch.setattr("headscope.analyses.flow.run.SENTENCES", 20)
    monkeypatch.setattr(
        "headscope.analyses.flow.passes.placed", lambda chosen: placed(watched(chosen))
    )
    headscope.flow(loaded("bert"), corpus, control=False, **options)
    in_first_pass = numbers_read[: len(numbers_read) // 2]
    assert len(in_first_pass) == len(set(in_first_pass)) == n
    assert in_first_pass[0] == first
    assert last - 2 <= in_first_pass[-1] <= last


def test_the_whole_corpus_and_a_limit_exclude_each_other():
    with pytest.raises(headscope.HeadscopeError, match="leave limit out"):
        headscope.flow("demo", limit=3, full=True)
