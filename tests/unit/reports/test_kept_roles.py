"""Only labelled heads kept: which ones, on what text, and what is left."""

import dataclasses
from typing import Any

import pytest
from tiny_models import tiny_bert, write_tiny

import headscope
from headscope.core.errors import InputError
from headscope.data.corpus import sample_corpus
from headscope.data.examples import sample_texts
from headscope.reports.claims import kept_roles
from headscope.reports.claims.kept_roles import halves, measure_kept_roles
from headscope.tasks.making import make_task, read_examples

#: Heads that are made to look labelled, whatever random weights do.
LABELLED = {(0, 1): "positional", (1, 2): "syntactic", (1, 3): "rare"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return headscope.load(str(tiny_bert(tmp_path_factory.mktemp("models") / "bert")))


@pytest.fixture(scope="module")
def classified(tiny: Any) -> headscope.ClassifyResult:
    """A classification with known roles, as if it came from another corpus."""
    measured = headscope.classify(tiny, limit=4)
    heads = []
    for head in measured.heads:
        role = LABELLED.get((head.layer, head.head))
        heads.append(dataclasses.replace(head, roles=("broad", role) if role else ("broad",)))
    corpus = dataclasses.replace(measured.corpus, sha256="other")
    return dataclasses.replace(measured, corpus=corpus, heads=tuple(heads))


def test_value_is_that_of_the_model_without_the_other_heads(tiny, classified, monkeypatch):
    learnt, rest = halves(sample_corpus(), sample_texts())
    seen = {" ".join(sentence.words) for sentence in learnt}
    assert len(seen) > 200
    assert len(rest.first) > 200
    assert not seen & set(rest.first), "no sentence is both classified on and measured"
    assert learnt.sha256 != sample_corpus().sha256
    drawn = []
    outputs_of = kept_roles.outputs_with_only

    def recorded(task: Any, loaded: Any, heads: Any) -> Any:
        drawn.append([(layer, head) for layer, head in heads])
        return outputs_of(task, loaded, heads)

    monkeypatch.setattr(kept_roles, "outputs_with_only", recorded)
    result = measure_kept_roles(tiny, classified, limit=12)
    assert set(result.kept) == set(LABELLED)
    not_labelled = [
        (h.layer, h.head) for h in classified.heads if (h.layer, h.head) not in LABELLED
    ]
    task = make_task("fidelity", rest.draw(12, 0), tiny)
    removed = task.value(task.outputs(headscope.remove_heads(tiny, not_labelled)))
    assert result.value == pytest.approx(removed, abs=1e-5)
    assert len(result.random) == 39
    assert result.sets == 4 * 6  # one of four heads in the first layer, two in the second
    assert 10 < len({round(value, 9) for value in result.random}) <= 24
    assert len(drawn) == 40  # the labelled heads, and 39 sets with as many in every layer
    for heads in drawn:
        assert len(set(heads)) == 3
        assert [layer for layer, _ in sorted(heads)] == [0, 1, 1]
    assert len(set(map(tuple, drawn))) > 10


def test_examples_that_were_classified_on_are_left_out(tiny, classified, tmp_path):
    """By sentence, whatever the file is called, and however its words are spaced and written."""
    words = [" ".join(sentence.words) for sentence in sample_corpus()]
    new_lines = [f"the dog {i} saw the cat" for i in range(20)]
    path = tmp_path / "data.txt"
    classified_lines = [text.upper().replace(" .", ".") for text in words[:5]]
    path.write_text("\n".join([*classified_lines, *new_lines]) + "\n")
    result = measure_kept_roles(tiny, classified, data=path, draws=2)
    assert (result.left_out, result.examples) == (len(classified_lines), 20)
    path.write_text("\n".join([*words[:21], *new_lines]) + "\n")
    with pytest.raises(InputError, match=r"More than half of the 41 examples .* classified on"):
        measure_kept_roles(tiny, classified, data=path)


def test_a_causal_model_is_measured_with_and_without_its_sinks(tmp_path):
    """A head that is a sink and something else stays; one that is a sink alone goes."""
    loaded = headscope.load(str(write_tiny(tmp_path / "gpt2", "gpt2")))
    texts = ["the cat sat on the mat", "a big red dog ran", "she saw it", "it is red and big"] * 3
    measured = headscope.classify(loaded, texts, validate=False)
    roles = {
        (0, 1): ("first_token",),
        (1, 2): ("first_token", "positional"),
        (1, 3): ("induction",),
    }
    heads = [
        dataclasses.replace(head, roles=roles.get((head.layer, head.head), ("broad",)))
        for head in measured.heads
    ]
    corpus = dataclasses.replace(measured.corpus, sha256="other")
    classified = dataclasses.replace(measured, corpus=corpus, heads=tuple(heads))
    data = tmp_path / "data.txt"
    data.write_text("\n".join(f"the dog {i} saw the cat" for i in range(8)) + "\n")
    result = measure_kept_roles(loaded, classified, data=data, draws=3)
    assert set(result.kept) == set(roles)
    assert result.counts == {
        "positional": 1,
        "syntactic": 0,
        "rare": 0,
        "induction": 1,
        "first_token": 2,
    }
    others = {(1, 2), (1, 3)}
    removed = [(h.layer, h.head) for h in heads if (h.layer, h.head) not in others]
    task = make_task("fidelity", read_examples("fidelity", data), loaded)
    value = task.value(task.outputs(headscope.remove_heads(loaded, removed)))
    assert result.without_sinks.kept == len(others)
    assert result.without_sinks.value == pytest.approx(value, abs=1e-5)
    assert len(result.without_sinks.random) == 3
