"""Tagging words on tiny models, against plain transformers and seqeval itself."""

from pathlib import Path

import numpy as np
import pytest
import torch
from derivatives import check_derivatives
from seqeval.metrics import f1_score
from tiny_models import tiny_bert

import headscope
from headscope.core.errors import CorpusError, InputError
from headscope.data.annotated import read_tagged
from headscope.models.run.loaded import LoadedModel
from headscope.tasks import encoder_tasks
from headscope.tasks.making import make_task, read_examples

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
WORDS = ("the", "cat", "sees", "houses", "on", "mat", "zebra", "ran", "he", "big")


def conll(n: int) -> str:
    """CoNLL-2003's four columns, with tags that follow from the words' places."""
    rng = np.random.default_rng(3)
    lines = ["-DOCSTART- -X- -X- O", ""]
    for _ in range(n):
        size = int(rng.integers(2, 8))
        lines += [f"{rng.choice(WORDS)} NN I-NP {rng.choice(TAGS)}" for _ in range(size)]
        lines.append("")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    names = dict(enumerate(TAGS))
    numbers = {name: i for i, name in names.items()}
    folder = tmp_path_factory.mktemp("tagger") / "bert"
    made = tiny_bert(folder, task_head="token-classification", id2label=names, label2id=numbers)
    return headscope.load(str(made), task_head="auto", dtype="float64")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "test.txt"
    path.write_text(conll(24))
    return path


@torch.no_grad()
def test_tags_of_first_pieces(loaded, file):
    """One sentence at a time; F1 by seqeval of all sentences, accuracy by counting."""
    data = read_tagged(file)
    task = make_task("token-classification", data, loaded)
    predicted = []
    for words in data.words:
        given = loaded.tokenizer(list(words), is_split_into_words=True, return_tensors="pt")
        guess, places = loaded.network(**given).logits[0].argmax(-1), given.word_ids()
        predicted.append([TAGS[guess[places.index(i)]] for i in range(len(words))])
    assert any(len(row.ids) > len(row.masked) + 2 for row in task.rows)  # words of several pieces
    outputs = task.outputs(loaded)
    right = [list(tags) for tags in data.tags]
    pairs = [
        pair for rows in zip(right, predicted, strict=True) for pair in zip(*rows, strict=True)
    ]
    expected = {
        "entity_f1": 100 * f1_score(right, predicted),
        "word_accuracy": 100 * np.mean([a == b for a, b in pairs]),
    }
    assert 0 < expected["entity_f1"] < 100
    assert task.metrics(outputs) == pytest.approx(expected)
    assert (task.metric, task.n_examples) == ("entity_f1", 24)
    some = {name: values[:7] for name, values in outputs.items()}  # examples are sentences
    assert task.value(some) == pytest.approx(100 * f1_score(right[:7], predicted[:7]))
    assert task.interval(outputs).low < task.value(outputs) < task.interval(outputs).high


def test_parts_of_speech_are_counted_by_word(tmp_path):
    """UPOS of CoNLL-U, ranges and empty nodes passed over; no entity, so accuracy is the value."""
    rows = ["# text = the cat ran", "1-2\tthecat" + "\t_" * 8]
    rows += [
        f"{i}\t{w}\t_\t{t}" + "\t_" * 6
        for i, (w, t) in enumerate((("the", "DET"), ("cat", "NOUN"), ("ran", "VERB")), 1)
    ]
    rows.insert(3, "1.1\tgone" + "\t_" * 8)
    path = tmp_path / "test.conllu"
    path.write_text(("\n".join(rows) + "\n\n") * 3)
    data = read_examples("token-classification", path)
    assert data.words == (("the", "cat", "ran"),) * 3
    assert data.tags == (("DET", "NOUN", "VERB"),) * 3
    other = tmp_path / "test.conll"  # told by its columns
    other.write_text(path.read_text())
    assert read_tagged(other).tags == data.tags
    names = {0: "NOUN", 1: "VERB", 2: "det"}
    folder = tiny_bert(tmp_path / "m", task_head="token-classification", id2label=names)
    loaded = headscope.load(str(folder), task_head="auto")
    task = make_task("token-classification", data, loaded)
    assert list(task.table) == ["word_accuracy"]
    assert task.rows[0].gold == (2, 0, 1)
    with torch.no_grad():  # plant the answer
        loaded.network.classifier.weight.zero_()
        loaded.network.classifier.bias.copy_(torch.tensor([1.0, 0, 0]))
    outputs = task.outputs(loaded)
    assert task.value(outputs) == pytest.approx(100 / 3)
    assert task.degenerate(outputs) == "gives the same tag to every word"


def test_derivatives(loaded, file):
    task = make_task("token-classification", read_tagged(file).pick(range(6)), loaded)
    for labels in (True, False):
        check_derivatives(task, loaded, labels=labels)
    row = next(iter(task.loss_batches(loaded)))
    sizes = [len(task.rows[i].masked) for i in row._batch.index]
    found = row.embed(row.gates()).detach().reshape(row.size, -1, len(TAGS))
    for one, size in zip(found, sizes, strict=True):
        np.testing.assert_allclose(one[:size].exp().sum(-1), 1)
        assert not one[size:].any()


def test_refusals(loaded, file, tmp_path, monkeypatch):
    plain = headscope.load(str(tiny_bert(tmp_path / "plain")), task_head="auto")
    with pytest.raises(InputError, match="has no token-classification head"):
        make_task("token-classification", read_tagged(file), plain)
    prose = tmp_path / "prose.txt"
    prose.write_text("the cat sat on the mat\nhe ran\n")
    with pytest.raises(CorpusError, match="line 2: 2 columns where the first row has 6"):
        read_tagged(prose)
    prose.write_text("cat B-ORG\nran O\n\nhe O\n")
    with pytest.raises(
        InputError, match=r"prose.txt, line 1: .* has no tag 'B-ORG'; it has O, B-P"
    ):
        make_task("token-classification", read_tagged(prose), loaded)
    prose.write_text("cat O\nran O\n\nhe O\n")
    with pytest.raises(CorpusError, match="every word has the tag 'O'"):
        read_tagged(prose)
    monkeypatch.setattr(encoder_tasks, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"seqeval, which is not installed; .*\[tags\]"):
        make_task("token-classification", read_tagged(file), loaded)
