"""What commands say of a file's labels: rows without one, and classes in another order."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tiny_models import tiny_bert, tiny_tokenizer
from transformers import AutoModelForSequenceClassification

import headscope
from headscope.data.examples import Examples
from headscope.stats.statistics import below_chance
from headscope.tasks.making import make_task

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "mat",
    "house",
    "sat",
    "ran",
    "saw",
    "big",
    "red",
    "she",
    "he",
    "it",
]
TEXTS = [" ".join(random.Random(i).choices(WORDS, k=6)) for i in range(24)]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny classifier that predicts both of its classes."""
    folder = tiny_bert(tmp_path_factory.mktemp("model"), task_head="classification", num_labels=2)
    network: Any = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = network(**tiny_tokenizer()(TEXTS, padding=True, return_tensors="pt")).logits
        network.classifier.bias -= logits.median(dim=0).values
    network.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def right(classifier: Path) -> list[int]:
    """The classes that it predicts, as transformers runs it."""
    network: Any = AutoModelForSequenceClassification.from_pretrained(classifier).eval()
    with torch.no_grad():
        encoded = tiny_tokenizer()(TEXTS, padding=True, return_tensors="pt")
        classes: list[int] = network(**encoded).logits.argmax(dim=-1).tolist()
    assert min(classes.count(0), classes.count(1)) > 5
    return classes


def written(path: Path, labels: list[Any]) -> Path:
    rows = [f"{text}\t{label}\n" for text, label in zip(TEXTS, labels, strict=True)]
    path.write_text("sentence\tlabel\n" + "".join(rows))
    return path


WITHOUT = "6 of 24 examples have no label ('-') and are left out."


@pytest.mark.parametrize(
    "words",
    [
        ["prune", "--heads", "L0H0"],
        ["symmetric", "--sentences", 2],
        ["classify", "--limit", 8, "--ablate", "--ablate-limit", 12],
    ],
    ids=lambda words: words[0],
)
def test_a_command_says_what_it_left_out_and_what_is_doubtful(
    words, classifier, right, run, tmp_path
):
    command, *options = words
    flipped: list[Any] = [1 - label for label in right]
    flipped[::4] = ["-"] * 6
    options += ["--task", "classification", "--data", written(tmp_path / "x.tsv", flipped)]
    said = run(command, classifier, *options).flat
    if command != "classify":  # there the examples are dealt into halves first
        assert WITHOUT in said
    assert "have no label ('-') and are left out" in said
    assert "is significantly below chance" in said
    assert "may be numbered in another order" in said


def test_nothing_is_said_of_labels_that_are_right(classifier, right, run, tmp_path):
    data = written(tmp_path / "x.tsv", right)
    words = ("prune", classifier, "--task", "classification", "--data", data, "--heads", "L0H0")
    result = run(*words, "--format", "json").json
    assert (result["baseline"]["metrics"]["accuracy"], result["warnings"]) == (100.0, [])
    labels = list(map(str, right))
    labels[::4] = ["-1"] * 6
    written(data, labels)
    result = run(*words, "--format", "json").json
    assert result["data"]["examples"] == 18
    assert [warning.endswith(WITHOUT.replace("-", "-1")) for warning in result["warnings"]] == [
        True
    ]


@pytest.mark.parametrize("seed", range(3))
def test_chance_is_that_of_the_models_own_guesses(seed):
    rng = np.random.default_rng(seed)
    predicted = rng.choice(3, 40, p=[0.6, 0.3, 0.1])
    gold = rng.choice(3, 40)
    right = int((predicted == gold).sum())
    chance, p = below_chance(right, np.bincount(predicted), np.bincount(gold))
    meeting = np.mean(predicted[:, None] == gold[None, :])
    assert chance == pytest.approx(meeting)
    assert p == pytest.approx(stats.binom.cdf(right, 40, meeting))


def test_tags_in_another_order_are_doubtful(tmp_path):
    names = {0: "NOUN", 1: "VERB", 2: "DET"}
    folder = tiny_bert(
        tmp_path / "m", task_head="token-classification", num_labels=3, id2label=names
    )
    loaded = headscope.load(str(folder), task_head="auto")
    words = tuple(tuple(text.split()) for text in TEXTS)

    def tagged(tags: list[tuple[str, ...]]) -> Any:
        data = Examples("tags", "", first=tuple(TEXTS), words=words, tags=tuple(tags))
        return make_task("token-classification", data, loaded)

    rows = tagged([("NOUN",) * len(row) for row in words]).rows
    with torch.no_grad():
        logits = [loaded.network(torch.tensor([row.ids])).logits[0] for row in rows]
    guesses = [scores.argmax(dim=-1) for scores in logits]
    in_order = []
    turned = []
    for row, guess in zip(rows, guesses, strict=True):
        numbers = guess[list(row.masked)].tolist()
        in_order.append(tuple(names[i] for i in numbers))
        turned.append(tuple(names[(i + 1) % 3] for i in numbers))
    for ordered_rows, doubtful in ((in_order, False), (turned, True)):
        task = tagged(ordered_rows)
        outputs = task.outputs(loaded)
        assert task.value(outputs) == (0.0 if doubtful else 100.0)
        says = "".join(task.doubts(outputs))
        assert ("the tags of tags may be numbered in another order" in says) == doubtful
