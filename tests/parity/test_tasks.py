"""Tasks on tiny models, against the same metric computed through plain transformers."""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from derivatives import check_derivatives
from scipy import special, stats
from tiny_models import tiny_bert
from torch import Tensor

import headscope
from headscope.core.errors import CorpusError, InputError
from headscope.data.examples import Examples
from headscope.models.run.loaded import LoadedModel
from headscope.tasks.base import Task
from headscope.tasks.making import make_task, read_examples

SENTENCES = [
    "the cat sat on the mat",
    "a big red dog ran",
    "she saw it",
    "he was in the house of the big cat and ran to a red mat",
    "it was a house",
    "the dogs ran",
]
Open = Callable[..., tuple[LoadedModel, Task]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, Path]:
    folder = tmp_path_factory.mktemp("tasks")
    folders = {h: tiny_bert(folder / str(h), task_head=h) for h in (None, "mlm", "classification")}
    kinds = {
        "labels": (3, "multi_label_classification"),
        "score": (1, None),
        "numbers": (3, "regression"),
    }
    for name, (n, kind) in kinds.items():
        outputs = {"num_labels": n, "problem_type": kind}
        folders[name] = tiny_bert(folder / name, task_head="classification", **outputs)
    return folders


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    scored = zip(
        SENTENCES, SENTENCES[2:] + SENTENCES[:2], (0.0, 1.0, 2.5, 3.0, 3.0, 5.0), strict=True
    )
    texts = {
        "fidelity.txt": SENTENCES,
        "mlm.txt": SENTENCES * 12,
        "classification.tsv": [f"{text}\t{i % 2}" for i, text in enumerate(SENTENCES)],
        "similarity.csv": [f"{a},{b},{score}" for a, b, score in scored],
    }
    folder = tmp_path_factory.mktemp("examples")
    for name, lines in texts.items():
        (folder / name).write_text("\n".join(lines))
    return {name.partition(".")[0]: folder / name for name in texts}


@pytest.fixture(scope="module")
def opened(models: dict[str | None, Path], files: dict[str, Path]) -> Open:
    @functools.cache
    def load(head: str | None) -> LoadedModel:
        return headscope.load(str(models[head]), task_head="auto", dtype="float64")

    def open_(task: str, head: str | None = None) -> tuple[LoadedModel, Task]:
        return load(head), make_task(task, read_examples(task, files[task]), load(head))

    return open_


@torch.no_grad()
def logits_of(loaded: LoadedModel, row: Any) -> Tensor:
    return loaded.network(input_ids=torch.tensor([row.ids])).logits[0]


def test_similarity_is_spearman_of_cosines(opened, files):
    """Of the means of last states, one sentence at a time: no padding, no batches."""
    loaded, task = opened("similarity")
    lines = [line.split(",") for line in files["similarity"].read_text().splitlines()]
    cosines = []
    for line in lines:
        with torch.no_grad():
            ids = [torch.tensor([loaded.tokenizer(text)["input_ids"]]) for text in line[:2]]
            states = [loaded.model(input_ids=x).last_hidden_state[0] for x in ids]
        a = states[0].mean(0).numpy()
        b = states[1].mean(0).numpy()
        cosines.append(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)))
    outputs = task.outputs(loaded)
    np.testing.assert_allclose(outputs["similarity"], cosines, atol=1e-6)
    expected = 100 * stats.spearmanr(cosines, [float(line[2]) for line in lines])[0]
    assert task.value(outputs) == pytest.approx(expected)
    assert (task.metric, task.n_examples, len(task.rows)) == ("spearman", 6, 6)


def test_classification_is_the_models_own_answer(opened):
    loaded, task = opened("classification", "classification")
    answers = [int(logits_of(loaded, row).argmax()) for row in task.rows]
    assert [list(row.ids) for row in task.rows] == loaded.tokenizer(SENTENCES)["input_ids"]
    outputs = task.outputs(loaded)
    assert outputs["predicted"].tolist() == answers
    hits = [a == i % 2 for i, a in enumerate(answers)]
    assert task.value(outputs) == pytest.approx(100 * np.mean(hits))
    assert set(task.metrics(outputs)) == {"accuracy", "f1", "matthews"}


def test_mlm_is_cross_entropy_at_the_masks(opened):
    loaded, task = opened("mlm", "mlm")
    nll = []
    hits = []
    for row in task.rows:
        logits = logits_of(loaded, row)
        for position, gold in zip(row.masked, row.gold, strict=True):
            nll.append(-float(logits[position].log_softmax(0)[gold]))
            hits.append(int(logits[position].argmax()) == gold)
    metrics = task.metrics(task.outputs(loaded))
    assert metrics == pytest.approx({"loss": np.mean(nll), "masked_accuracy": 100 * np.mean(hits)})
    assert not task.higher_is_better


def one_by_one(full: Tensor, other: Tensor, head: str) -> float:
    """The distance of the outputs of one text, by SciPy."""
    if head == "score":
        return float((other - full) ** 2)
    if head == "labels":
        pairs = zip(special.expit(full.numpy()), special.expit(other.numpy()), strict=True)
        return sum(stats.entropy([p, 1 - p], [q, 1 - q]) for p, q in pairs)
    return float(stats.entropy(special.softmax(full.numpy()), special.softmax(other.numpy())))


@pytest.mark.parametrize("head", [None, "classification", "mlm", "labels", "score"])
def test_fidelity_of_a_model_to_itself_and_to_a_pruned_one(head, opened):
    loaded, task = opened("fidelity", head)
    same = task.metrics(task.outputs(loaded))
    name = "squared_change" if head == "score" else "kl"
    assert same == pytest.approx({"cosine": 1.0, name: 0.0} if head else {"cosine": 1.0}, abs=1e-9)
    compact = headscope.remove_heads(loaded, [(0, 1), (1, 2)])
    outputs = task.outputs(compact)
    cosines = []
    divergences = []
    for row in task.rows:
        ids = torch.tensor([row.ids])
        with torch.no_grad():
            a, p = loaded.run(ids, torch.ones_like(ids))
            b, q = compact.run(ids, torch.ones_like(ids))
        cosines.append(float(torch.cosine_similarity(a[0].mean(0), b[0].mean(0), dim=0)))
        if p is not None:
            places = [(p[0, i], q[0, i]) for i in row.masked] if head == "mlm" else [(p[0], q[0])]
            divergences.append(np.mean([one_by_one(*pair, head) for pair in places]))
    np.testing.assert_allclose(outputs["cosine"], cosines)
    assert 0.0 < task.value(outputs) < 1.0
    if head:
        np.testing.assert_allclose(outputs[name], divergences)
        assert min(divergences) > 1e-5


@pytest.mark.parametrize(
    ("task", "head", "labels"),
    [
        ("fidelity", None, False),
        ("fidelity", "classification", False),
        ("fidelity", "labels", False),
        ("fidelity", "score", False),
        ("similarity", "score", True),
        ("similarity", "score", False),
        ("mlm", "mlm", True),
        ("mlm", "mlm", False),
        ("classification", "classification", True),
        ("similarity", None, True),
    ],
)
def test_derivatives(task, head, labels, opened):
    loaded, task_of_model = opened(task, head)
    check_derivatives(task_of_model, loaded, labels=labels)


@torch.no_grad()
@pytest.mark.parametrize("head", [None, "classification", "labels", "score", "numbers"])
def test_half_the_squared_distance_of_e_is_the_label_free_loss(head, opened):
    """To second order: what fisher and surgeon measure is what gates lower."""
    loaded, task = opened("fidelity", head)
    for batch in task.loss_batches(loaded, labels=False):
        full = batch.gates().detach()
        less = full - 1e-3 * torch.rand(full.shape, generator=torch.Generator().manual_seed(0))
        moved = (batch.embed(less) - batch.embed(full)).square().sum(-1) / 2
        torch.testing.assert_close(moved, batch.loss(less), rtol=0.02, atol=0.0)
    if head in ("score", "numbers"):  # the change of numbers counts in units of their spread
        logits = task.distance.logits().numpy()
        np.testing.assert_allclose(task.distance.spread.numpy(), logits.std(axis=0))
    for batch in task.loss_batches(loaded, labels=False, value_only=True):
        unit = batch.embed(batch.gates().detach())
        torch.testing.assert_close(unit.norm(dim=-1), torch.ones(batch.size).to(unit))


@pytest.mark.parametrize(
    ("task", "head", "message"),
    [
        ("mlm", None, "no masked-language-model head: its checkpoint holds BertModel"),
        ("classification", "mlm", "no classification head: its checkpoint holds BertForMaskedLM"),
    ],
)
def test_no_head_for_a_task(task, head, message, opened, models):
    with pytest.raises(InputError, match=message):
        opened(task, head)
    with pytest.raises(InputError, match=message):
        headscope.load(str(models[head]), task_head=task)


def test_a_head_for_regression_is_no_classifier(files, tmp_path):
    folder = tiny_bert(tmp_path / "regression", task_head="classification", num_labels=1)
    loaded = headscope.load(str(folder), task_head="auto")
    examples = read_examples("classification", files["classification"])
    with pytest.raises(InputError, match=r"one of several classes \(its outputs: 1, numbers\)"):
        make_task("classification", examples, loaded)


def test_a_cross_encoder_is_measured_by_its_score_of_each_pair(opened, files):
    """One pair at a time through the plain network: both texts in one input."""
    loaded, task = opened("similarity", "score")
    lines = [line.split(",") for line in files["similarity"].read_text().splitlines()]
    scores = []
    for first, second, _ in lines:
        pair = loaded.tokenizer(first, second, return_tensors="pt")
        with torch.no_grad():
            scores.append(loaded.network(**pair).logits.item())
    outputs = task.outputs(loaded)
    np.testing.assert_allclose(outputs["similarity"], scores, atol=1e-6)
    gold = [float(line[2]) for line in lines]
    assert task.value(outputs) == pytest.approx(100 * stats.spearmanr(scores, gold)[0])
    assert "cross-encoder" in task.notes[0]
    own_scores = Examples(
        "own", "", *zip(*(line[:2] for line in lines), strict=True), scores=tuple(scores)
    )
    ideal = make_task("similarity", own_scores, loaded)
    assert ideal.value(ideal.outputs(loaded)) == pytest.approx(100)
    # Its loss is nothing where the gold scores are its own, on whatever scale.
    other = replace(own_scores, scores=tuple(3 * score - 7 for score in scores))
    for batch in make_task("similarity", other, loaded).loss_batches(loaded):
        np.testing.assert_allclose(batch.loss(batch.gates().detach()), 0, atol=1e-12)


@pytest.mark.parametrize("head", ["classification", "labels"])
def test_a_head_that_is_not_read_is_said(head, opened):
    _, task = opened("similarity", head)
    assert "The classification head" in task.notes[0]
    assert "is not read: what is compared are embeddings" in task.notes[0]


def test_unknown_names_and_missing_files():
    for task, limit, message in (
        ("translation", None, "no task 'translation'; choose from fidelity"),
        ("similarity", None, "needs a file with labels"),
        ("seq2seq", None, "needs a file with sources and targets"),
        ("fidelity", 1, "limit is 1"),
    ):
        with pytest.raises(InputError, match=message):
            read_examples(task, None, limit)


def test_too_long_examples_are_skipped_and_counted(tmp_path, models):
    long = "cat " * 70
    loaded = headscope.load(str(models[None]))
    (tmp_path / "x.csv").write_text(f"a,b,1\n{long},c,2\nthe,a,3\n")
    task = make_task("similarity", read_examples("similarity", tmp_path / "x.csv"), loaded)
    assert (task.n_examples, task.skipped) == (2, 1)
    assert len(task.outputs(loaded)["similarity"]) == 2
    (tmp_path / "y.txt").write_text(f"{long}\n{long} a\nb\n")
    with pytest.raises(CorpusError, match="1 of 3 texts fit the model's limit of 64"):
        make_task("fidelity", read_examples("fidelity", tmp_path / "y.txt"), loaded)
