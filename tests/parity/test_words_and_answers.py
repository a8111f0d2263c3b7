"""Tagging words and answering questions on tiny models: seqeval, a slow scorer, planted answers."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from derivatives import check_derivatives
from seqeval.metrics import f1_score
from tiny_models import WORDS, tiny_bert

import headscope
from headscope.core.errors import CorpusError, InputError
from headscope.data.annotated import read_questions, read_tagged
from headscope.models.run.loaded import LoadedModel
from headscope.tasks.making import make_task, read_examples

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
WRITTEN = ("the", "cat", "sees", "houses", "on", "mat", "zebra", "ran", "he", "big")


def conll(n: int) -> str:
    """CoNLL-2003's four columns, with tags that follow from the words' places."""
    rng = np.random.default_rng(3)
    lines = ["-DOCSTART- -X- -X- O", ""]
    for _ in range(n):
        size = int(rng.integers(2, 8))
        lines += [f"{rng.choice(WRITTEN)} NN I-NP {rng.choice(TAGS)}" for _ in range(size)]
        lines.append("")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    names = dict(enumerate(TAGS))
    numbers = {name: i for i, name in names.items()}
    folder = tmp_path_factory.mktemp("tagger") / "bert"
    model_folder = tiny_bert(
        folder, task_head="token-classification", id2label=names, label2id=numbers
    )
    return headscope.load(str(model_folder), task_head="auto", dtype="float64")


@pytest.fixture
def tagged(tmp_path: Path) -> Path:
    path = tmp_path / "test.txt"
    path.write_text(conll(24))
    return path


@torch.no_grad()
def test_tags_of_first_pieces(tagger, tagged):
    """One sentence at a time; F1 by seqeval of all sentences, accuracy by counting."""
    data = read_tagged(tagged)
    task = make_task("token-classification", data, tagger)
    predicted = []
    for words in data.words:
        inputs = tagger.tokenizer(list(words), is_split_into_words=True, return_tensors="pt")
        guess = tagger.network(**inputs).logits[0].argmax(-1)
        places = inputs.word_ids()
        predicted.append([TAGS[guess[places.index(i)]] for i in range(len(words))])
    assert any(len(row.ids) > len(row.masked) + 2 for row in task.rows)  # words of several pieces
    outputs = task.outputs(tagger)
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


def test_entities_of_labels_in_another_scheme(tmp_path, tagged):
    """A model of BILOU on a file of IOB: seqeval reads both once L- and U- are called E- and S-."""
    labels = ["O", *(f"{mark}-{kind}" for kind in ("PER", "LOC") for mark in "BILU")]
    names = dict(enumerate(labels))
    numbers = {name: i for i, name in names.items()}
    model_folder = tiny_bert(
        tmp_path / "m", task_head="token-classification", id2label=names, label2id=numbers
    )
    model = headscope.load(str(model_folder), task_head="auto", dtype="float64")
    data = read_tagged(tagged)
    task = make_task("token-classification", data, model)
    (note,) = task.notes
    assert note.startswith("Entities are read by the scheme IOB")
    assert note.endswith("The file's tags were rewritten in the model's scheme, BILOU.")
    predicted = []
    as_bioes = str.maketrans("LU", "ES")
    for words in data.words:
        inputs = model.tokenizer(list(words), is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            guess = model.network(**inputs).logits[0].argmax(-1)
            places = inputs.word_ids()
        tags = [labels[guess[places.index(i)]] for i in range(len(words))]
        predicted.append([tag[:1].translate(as_bioes) + tag[1:] for tag in tags])
    expected = 100 * f1_score([list(tags) for tags in data.tags], predicted)
    assert 0 < expected < 100
    outputs = task.outputs(model)
    assert task.value(outputs) == pytest.approx(expected)
    assert task.metrics(outputs)["word_accuracy"] > 0


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


def test_derivatives_of_tags(tagger, tagged):
    task = make_task("token-classification", read_tagged(tagged).pick(range(6)), tagger)
    for labels in (True, False):
        check_derivatives(task, tagger, labels=labels)
    row = next(iter(task.loss_batches(tagger)))
    sizes = [len(task.rows[i].masked) for i in row.batch.index]
    outputs = row.embed(row.gates()).detach().reshape(row.size, -1, len(TAGS))
    for one, size in zip(outputs, sizes, strict=True):
        np.testing.assert_allclose(one[:size].exp().sum(-1), 1)
        assert not one[size:].any()


def test_files_and_models_that_do_not_tag(loaded, tagger, tagged, tmp_path):
    with pytest.raises(InputError, match="has no token-classification head"):
        make_task("token-classification", read_tagged(tagged), loaded)
    prose = tmp_path / "prose.txt"
    prose.write_text("the cat sat on the mat\nhe ran\n")
    with pytest.raises(CorpusError, match="line 2: 2 columns where the first row has 6"):
        read_tagged(prose)
    prose.write_text("cat B-ORG\nran O\n\nhe O\n")
    with pytest.raises(
        InputError, match=r"prose.txt, line 1: .* has no tag 'B-ORG'; it knows 0 .O., 1 .B-P"
    ):
        make_task("token-classification", read_tagged(prose), tagger)
    prose.write_text("cat O\nran O\n\nhe O\n")
    with pytest.raises(CorpusError, match="every word has the tag 'O'"):
        read_tagged(prose)


PLAIN = [word for word in WORDS if word.isalpha()]


def questions(n: int, impossible: bool) -> list[tuple[str, str, list[str]]]:
    rng = np.random.default_rng(5)
    examples = []
    for i in range(n):
        words = list(rng.choice(PLAIN, int(rng.integers(8, 120))))
        start = int(rng.integers(0, len(words) - 3))
        answers = [" ".join(words[start : start + 2]), words[start]]
        context = " ".join(words)
        none = impossible and i % 3 == 0
        examples.append((f"is {words[start]} it ?", context, [] if none else answers))
    return examples


def write(path: Path, examples: list[tuple[str, str, list[str]]]) -> Path:
    paragraphs = []
    for i, (question, context, answers) in enumerate(examples):
        item: dict[str, Any] = {"id": f"q{i}", "question": question, "is_impossible": not answers}
        item["answers"] = [{"text": a, "answer_start": context.index(a)} for a in answers]
        item["plausible_answers"] = [{"text": "cat", "answer_start": 0}]
        paragraphs.append({"context": context, "qas": [item]})
    path.write_text(json.dumps({"version": "v2.0", "data": [{"paragraphs": paragraphs}]}))
    return path


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tiny_bert(tmp_path_factory.mktemp("qa") / "bert", task_head="question-answering")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return headscope.load(str(folder), task_head="auto", dtype="float64")


def slow_f1(answer: str, gold: str) -> float:
    """SQuAD's, word by word: each word of the answer uses up one of the right answer."""

    def words(text: str) -> list[str]:
        without_punctuation = re.sub(r"[!-/:-@\[-`{-~]", "", text.lower())
        return [word for word in without_punctuation.split() if word not in ("a", "an", "the")]

    ours = words(answer)
    gold_words = words(gold)
    if not ours or not gold_words:
        return float(ours == gold_words)
    unmatched = gold_words[:]
    hits = 0
    for word in ours:
        if word in unmatched:
            unmatched.remove(word)
            hits += 1
    if not hits:
        return 0.0
    precision = hits / len(ours)
    recall = hits / len(gold_words)
    return 2 * precision * recall / (precision + recall)


@torch.no_grad()
def slow_answer(loaded: LoadedModel, question: str, context: str, may_have_none: bool) -> str:
    """Ask window by window, made by the tokenizer itself, over every span of every window."""
    n_question = len(loaded.tokenizer(question)["input_ids"]) + 1
    windows = loaded.tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=64,
        stride=(64 - n_question) // 2,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    best = -np.inf
    text = ""
    none = np.inf
    for w, encoding in enumerate(windows.encodings):
        out = loaded.network(
            input_ids=torch.tensor([encoding.ids]), token_type_ids=torch.tensor([encoding.type_ids])
        )
        start = out.start_logits[0].numpy()
        end_logits = out.end_logits[0].numpy()
        none = min(none, start[0] + end_logits[0])
        inside = [i for i, text_number in enumerate(encoding.sequence_ids) if text_number == 1]
        for i, j in itertools.product(inside, inside):
            if i <= j < i + 30 and start[i] + end_logits[j] > best + 1e-12:
                offsets = windows["offset_mapping"][w]
                best = start[i] + end_logits[j]
                text = context[offsets[i][0] : offsets[j][1]]
    return "" if may_have_none and none > best else text


@pytest.mark.parametrize("impossible", [False, True], ids=["v1.1", "v2"])
def test_answers_of_a_slow_reader(loaded, tmp_path, impossible):
    examples = questions(12, impossible)
    task = make_task(
        "question-answering", read_questions(write(tmp_path / "d.json", examples)), loaded
    )
    assert len(task.rows) > len(task.rows_of_examples) == task.n_examples == 12
    outputs = task.outputs(loaded)
    answers = [slow_answer(loaded, q, c, impossible) for q, c, _ in examples]
    assert task.answers(outputs) == answers
    f1 = [
        max(slow_f1(a, g) for g in gold or [""])
        for a, (*_, gold) in zip(answers, examples, strict=True)
    ]
    exact = [value == 1 for value in f1]  # no answer here has its words in another order
    assert task.metrics(outputs) == pytest.approx(
        {"answer_f1": 100 * np.mean(f1), "exact_match": 100 * np.mean(exact)}
    )
    assert task.metric == "answer_f1"
    assert task.degenerate(outputs) is None
    same = {name: values[:1].repeat(12, 0) for name, values in outputs.items()}
    assert task.degenerate(same) == "gives every question the same answer"


def test_resamples_draw_paragraphs(loaded, tmp_path):
    """Many questions on few paragraphs: the interval is that of the paragraphs' own sums."""
    examples = []
    contexts = [c for _, c, _ in questions(12, False)]
    for i, context in enumerate(contexts):
        words = context.split()
        examples += [(f"is {w} it ?", context, [w]) for w in words[: 2 + 3 * (i % 3)]]
    task = make_task(
        "question-answering", read_questions(write(tmp_path / "d.json", examples)), loaded
    )
    outputs = dict(task.outputs(loaded))
    owner = np.array([contexts.index(c) for _, c, _ in examples])
    rng = np.random.default_rng(0)
    outputs["f1"] = np.clip(
        rng.normal(0.5, 0.3, 12)[owner] + rng.normal(0, 0.05, len(examples)), 0, 1
    )
    estimate = task.interval(outputs)
    # The delta method for a ratio of sums over paragraphs, the sampled unit.
    mean = outputs["f1"].mean()
    sums = np.bincount(owner, weights=outputs["f1"] - mean, minlength=12)
    error = 100 * np.sqrt((sums**2).sum() * 12 / 11) / len(examples)
    assert estimate.high - estimate.low == pytest.approx(2 * 2.2 * error, rel=0.2)
    alone = task.interval({**outputs, "cluster": np.arange(len(examples))})
    assert alone.high - alone.low < 0.6 * (estimate.high - estimate.low)
    better = {**outputs, "f1": outputs["f1"] + np.where(owner == 0, 0.1, 0.0)}
    change = task.change(outputs, better)
    assert change.examples == len(examples)
    assert change.low <= 0 < change.high  # of one paragraph out of twelve


def test_derivatives_of_answers(loaded, tmp_path):
    examples = questions(5, True)
    task = make_task(
        "question-answering", read_questions(write(tmp_path / "d.json", examples)), loaded
    )
    for labels in (True, False):
        check_derivatives(task, loaded, labels=labels)
    batch = next(iter(task.loss_batches(loaded)))
    embedded = batch.embed(batch.gates()).detach()
    np.testing.assert_allclose((embedded**2).sum(-1), 2)  # two distributions


def log_probabilities(outputs: Any) -> torch.Tensor:
    """Of where an answer begins and ends, (2, pos), or of the tags of tokens, (pos, tags)."""
    if "start_logits" in outputs:
        return torch.cat([outputs.start_logits, outputs.end_logits]).log_softmax(-1)
    return outputs.logits[0, 1:-1].log_softmax(-1)


def test_fidelity_of_heads_that_answer_or_tag(loaded, tagger, tmp_path):
    """The KL of a head's outputs is that of plain transformers, text by text."""
    texts = ["the cat sat on the mat", "a big red dog ran", "she saw it"]
    (tmp_path / "t.txt").write_text("\n".join(texts))
    for model in (loaded, tagger):
        data = read_examples("fidelity", tmp_path / "t.txt")
        task = make_task("fidelity", data, model)
        other = headscope.remove_heads(model, [(0, 1), (1, 2)])
        expected = []
        for text in texts:
            inputs = model.tokenizer(text, return_tensors="pt")
            with torch.no_grad():
                p = log_probabilities(model.network(**inputs))
                q = log_probabilities(other.network(**inputs))
            expected.append(float((p.exp() * (p - q)).sum(-1).mean()))
        np.testing.assert_allclose(task.outputs(other)["kl"], expected, rtol=1e-6)


def test_files_and_models_that_do_not_answer(loaded, tagger, tmp_path):
    path = write(tmp_path / "d.json", questions(4, False))
    with pytest.raises(InputError, match="has no question-answering head"):
        make_task("question-answering", read_questions(path), tagger)
    path.write_text("the cat\tthe dog\t1\n")
    with pytest.raises(CorpusError, match="is not JSON in the form of SQuAD"):
        read_questions(path)
    path.write_text('{"data": [{"paragraphs": [{"context": "a cat", "qas": [{"id": "x"}]}]}]}')
    with pytest.raises(CorpusError, match=r"question 'x': not in the form of SQuAD"):
        read_questions(path)
    long = [("is it " * 40, "the cat", ["cat"])] * 3
    with pytest.raises(CorpusError, match=r"0 of 3 examples .* fit the model"):
        make_task("question-answering", read_questions(write(path, long)), loaded)
