"""``headscope flow``: what it finds, prints and refuses."""

import json

import pytest
import torch
from families import tiny
from outcomes import fits
from tiny_models import tiny_tokenizer
from transformers import GPT2Config, GPT2Model

import headscope
from headscope.analyses.flow.result import FlowResult
from headscope.data.files import Sentence
from headscope.data.word_pieces import placed
from headscope.models.run.loaded import LoadedModel
from headscope.reports.registry import Sections

#: Different sentences of a tiny vocabulary; every second word hangs on the one before.
WORDS = ("the", "big", "dog", "saw", "a", "red", "cat", "on", "the", "mat", "and", "she", "ran")


def sentences(n: int = 60) -> list[Sentence]:
    found = []
    for i in range(n):
        words = (*WORDS[i % 5 : i % 5 + 5 + i % 4], WORDS[i % 6], WORDS[i % 11], ".")
        heads = (-1, *range(len(words) - 1))
        relations = ("root", *["dep"] * (len(words) - 2), "punct")
        found.append(Sentence(words, heads, relations))
    return found


def loaded(family: str) -> LoadedModel:
    found = headscope.wrap(tiny(family), tiny_tokenizer())
    found.model.resize_token_embeddings(len(tiny_tokenizer()))
    return found


@pytest.fixture(scope="module")
def flowed() -> FlowResult:
    return headscope.flow(loaded("bert"), sentences(), seed=3)


def test_every_head_has_every_number(flowed):
    names = [head.name for head in flowed.heads]
    assert names == [f"L{i}H{j}" for i in range(3) for j in range(4)]
    read = flowed.sentences
    assert read.chosen_on == 30
    assert read.measured_on + read.repeated == 30
    assert flowed.not_measured == {}
    for head in flowed.heads:
        assert head.d_head == 8
        assert 0 < (head.wide() or 0) <= 1
        assert all(found.value <= 1 for found in vars(head.recovery).values())
    assert flowed.control is not None
    assert flowed.control.seed == 3
    assert set(flowed.spectra) == {"gaussian", "fresh"}
    # Spectra are those of the weights.
    layer = tiny("bert").encoder.layer[1].attention
    w_v = layer.self.value.weight.detach().double()[8:16]
    out = layer.output.dense.weight.detach().double()[:, 8:16]
    for part, weight in ((flowed.heads[5].w_v, w_v), (flowed.heads[5].ov, out @ w_v)):
        expected = torch.linalg.svdvals(weight)[:8].tolist()
        assert part.singular_values == pytest.approx(expected, rel=1e-5)


def test_text_and_what_is_written(run, model, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(sentence.text for sentence in sentences()))
    out = tmp_path / "out"
    found = run("flow", model, "--text", tmp_path / "text.txt", "--no-control", "-o", out)
    assert (found.code, found.stderr) == (0, "")
    fits(found.stdout)
    names = {path.name for path in out.iterdir()}
    assert names == {"flow.json", "flow.csv", "flow.png", "flow.svg"}
    assert json.loads((out / "flow.json").read_text())["control"] is None


def test_one_sentence_leaves_everything_but_the_weights_unknown():
    model = loaded("bert")
    found = headscope.flow(model, sentences(1))
    assert found.sentences.measured_on == 0
    assert found.recovery.value.value is None
    assert found.heads[0].wide() is not None
    judged = headscope.insights(model, sections=Sections(flow=found))
    assert judged[1].verdict == "not measured"


def test_a_decoder_is_measured():
    size = {"n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    torch.manual_seed(0)
    model = GPT2Model(GPT2Config(vocab_size=len(tiny_tokenizer()), **size)).eval()
    found = headscope.flow(headscope.wrap(model, tiny_tokenizer()), sentences(), control=False)
    assert found.heads[0].stack == "decoder"
    assert found.heads[0].recovery.whole.value is not None


def test_small_batches_add_up_to_what_one_batch_does(flowed, monkeypatch):
    monkeypatch.setattr("headscope.session.texts.BATCH_TOKENS", 64)
    found = headscope.flow(loaded("bert"), sentences(), seed=3, control=False)
    assert found.sentences == flowed.sentences
    for one, other in zip(found.heads, flowed.heads, strict=True):
        for target, r2 in vars(one.recovery).items():
            assert r2.value == pytest.approx(getattr(other.recovery, target).value, rel=1e-6)


@pytest.mark.parametrize(
    ("asked", "first", "last", "n"),
    [({}, 0, 59, 20), ({"limit": 30}, 0, 29, 30), ({"full": True}, 0, 59, 60)],
)
def test_a_long_corpus_is_read_evenly_up_to_a_limit_or_whole(asked, first, last, n, monkeypatch):
    corpus = [
        Sentence((f"the {i}", "dog", "saw"), (-1, 0, 1), ("root", "dep", "dep")) for i in range(60)
    ]
    read: list[int] = []
    monkeypatch.setattr("headscope.analyses.flow.run.SENTENCES", 20)
    monkeypatch.setattr(
        "headscope.analyses.flow.passes.placed",
        lambda chosen: placed([read.append(int(s.words[0][4:])) or s for s in chosen]),
    )
    headscope.flow(loaded("bert"), corpus, control=False, **asked)
    of_one_pass = read[: len(read) // 2]
    assert len(of_one_pass) == len(set(of_one_pass)) == n
    assert of_one_pass[0] == first
    assert last - 2 <= of_one_pass[-1] <= last


def test_the_whole_corpus_and_a_limit_exclude_each_other():
    with pytest.raises(headscope.HeadscopeError, match="leave limit out"):
        headscope.flow("demo", limit=3, full=True)
