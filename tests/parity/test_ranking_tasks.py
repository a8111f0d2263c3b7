"""Retrieval and reranking against plain transformers; every task, from its heads to a folder."""

import dataclasses
import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from derivatives import check_derivatives
from measuring import measured
from scipy import stats
from tiny_models import tiny_bert

import headscope
from headscope.core.errors import CorpusError, InputError
from headscope.data.queries import (
    best_by_bm25,
    read_rerank,
    read_retrieval,
    thinned,
    with_candidates,
)
from headscope.models.run.loaded import LoadedModel
from headscope.pruning.sentences import changed_sentence
from headscope.tasks.making import make_task, read_examples

NOUNS = ("cat", "dog", "mat", "house")
DOCUMENTS = [f"the {a} {verb} on the {b}" for a, b, verb in product(NOUNS, NOUNS, ("sat", "ran"))]
QUERIES = [f"a big {a} saw it" for a in NOUNS]
QUERIES += [f"red {a} and {b}" for a, b in product(NOUNS, NOUNS)]


def grades_of(query: int) -> dict[int, int]:
    return {(7 * query + step) % len(DOCUMENTS): grade for step, grade in ((0, 2), (3, 1), (5, 0))}


@pytest.fixture(scope="module")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beir")
    corpus = [
        {"_id": f"d{i}", "title": text.split()[0], "text": " ".join(text.split()[1:])}
        for i, text in enumerate(DOCUMENTS)
    ]
    queries = [{"_id": f"q{i}", "text": text} for i, text in enumerate(QUERIES)]
    queries.append({"_id": "nobody", "text": "the house"})  # without any relevant document
    for name, items in (("corpus", corpus), ("queries", queries)):
        lines = "\n".join(json.dumps(item) for item in items)
        (folder / f"{name}.jsonl").write_text(lines)
    (folder / "qrels").mkdir()
    rows = []
    for query in range(len(QUERIES)):
        grades = grades_of(query)
        rows += [f"q{query}\td{document}\t{grade}" for document, grade in grades.items()]
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(rows))
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return headscope.load(str(tiny_bert(tmp_path_factory.mktemp("m") / "b")), dtype="float64")


@pytest.fixture(scope="module")
def crossed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cross") / "encoder"
    return tiny_bert(folder, task_head="classification", num_labels=1)


def slow_ndcg(order: list[int], grades: dict[int, int]) -> float:
    gain = sum(grades.get(d, 0) / math.log2(i + 2) for i, d in enumerate(order[:10]))
    best = sorted(grades.values(), reverse=True)[:10]
    return gain / sum(g / math.log2(i + 2) for i, g in enumerate(best))


@torch.no_grad()
def test_retrieval_is_ndcg_of_cosines(bert, beir):
    """Embeddings one text at a time, sorted by python; also without some heads."""

    def embedded(text: str) -> Any:
        ids = torch.tensor([bert.tokenizer(text)["input_ids"]])
        return bert.model(input_ids=ids).last_hidden_state[0].mean(0).numpy()

    documents = [embedded(text) for text in DOCUMENTS]
    expected = []
    firsts = []
    for i, text in enumerate(QUERIES):
        query = embedded(text)
        cosines = [query @ d / np.linalg.norm(query) / np.linalg.norm(d) for d in documents]
        order = sorted(range(len(DOCUMENTS)), key=lambda d: -cosines[d])
        relevant = {d for d, grade in grades_of(i).items() if grade}
        expected.append((slow_ndcg(order, grades_of(i)), len(relevant & {*order[:10]}) / 2))
        firsts.append(order[:10])
    task = make_task("retrieval", read_examples("retrieval", beir), bert)
    assert (task.n_examples, len(task.rows_of_examples)) == (len(QUERIES), len(QUERIES))
    assert "1 of 21 queries are left out: they have no document that is relevant" in task.notes[0]
    outputs = task.outputs(bert)
    np.testing.assert_allclose(np.stack([outputs["ndcg"], outputs["recall"]], 1), expected)
    assert outputs["top"].tolist() == firsts
    metrics = task.metrics(outputs)
    assert metrics["ndcg_at_10"] == pytest.approx(100 * np.mean([e[0] for e in expected]))
    assert (metrics["top_10_changed"], task.changed(outputs)) == (0, ())
    gates = torch.ones(2, 4, dtype=torch.float64)
    gates[0] = 0
    pruned = task.outputs(bert, gates)
    moved = [f"q{i}" for i, top in enumerate(pruned["top"].tolist()) if {*top} != {*firsts[i]}]
    assert moved
    assert task.changed(pruned) == tuple(moved)
    assert task.metrics(pruned)["top_10_changed"] == pytest.approx(100 * len(moved) / len(QUERIES))
    half = {name: values[3:9] for name, values in pruned.items()}  # as a search halves queries
    assert set(task.changed(half)) == {*moved} & {f"q{i}" for i in range(3, 9)}


def test_another_split_and_equal_documents(bert, beir, tmp_path):
    """A file of qrels names its split; equal documents are tied, and the first comes first."""
    train = beir / "qrels" / "train.tsv"
    train.write_text("query-id\tcorpus-id\tscore\nq1\td2\t1\nq3\td5\t1\nq3\tgone\t1\n")
    data = read_retrieval(train)
    assert (data.ids, data.relevance) == (("q1", "q3"), ({2: 1.0}, {5: 1.0}))
    assert "1 of 3 judgements" in data.notes[0]
    same = dataclasses.replace(data, documents=(*DOCUMENTS, *reversed(DOCUMENTS)))
    top = make_task("retrieval", same, bert).outputs(bert)["top"]
    alone = make_task("retrieval", data, bert).outputs(bert)["top"]
    last = 2 * len(DOCUMENTS) - 1
    for row, row_alone in zip(top.tolist(), alone.tolist(), strict=True):
        first_five = row_alone[:5]
        assert row[::2] == first_five
        assert row[1::2] == [last - document for document in first_five]


def test_bm25_by_hand():
    documents = ["cat cat dog", "dog", "mat on the mat", "CAT"]
    n = len(documents)
    mean = (3 + 1 + 4 + 1) / 4

    def score(query: str, text: str) -> float:
        words = text.lower().split()
        total = 0.0
        for word in query.split():
            df = sum(word in other.lower().split() for other in documents)
            tf = words.count(word)
            idf = math.log(1 + (n - df + 0.5) / (df + 0.5))
            total += idf * tf * 2.2 / (tf + 1.2 * (0.25 + 0.75 * len(words) / mean))
        return total

    for query in ("cat", "dog mat", "the cat"):
        order = sorted(range(n), key=lambda d, q=query: (-score(q, documents[d]), d))
        assert next(best_by_bm25([query], documents, 3)) == tuple(order[:3])


def test_rerank_is_the_order_of_logits(crossed, beir):
    loaded = headscope.load(str(crossed), task_head="auto", dtype="float64")
    data = with_candidates(read_rerank(beir).pick(range(12)))
    assert all(
        len(places) == 20 and {*grades} <= {*places}
        for places, grades in zip(data.candidates, data.relevance, strict=True)
    )
    task = make_task("rerank", data, loaded)
    gates = torch.ones(2, 4, dtype=torch.float64)
    gates[1, :3] = 0

    def scored(query: int, document: int) -> float:
        inputs = loaded.tokenizer(QUERIES[query], DOCUMENTS[document], return_tensors="pt")
        with torch.no_grad():
            return float(loaded.network(**inputs).logits[0, 0])

    scores = [[scored(q, d) for d in places] for q, places in enumerate(data.candidates)]
    expected = []
    for q, (places, scores_of_query) in enumerate(zip(data.candidates, scores, strict=True)):
        order = [
            d for _, d in sorted(zip(scores_of_query, places, strict=True), key=lambda x: -x[0])
        ]
        expected.append(slow_ndcg(order, grades_of(q)))
    full = task.outputs(loaded)
    np.testing.assert_allclose(full["ndcg"], expected)
    assert task.metrics(full) == pytest.approx(
        {"ndcg_at_10": 100 * np.mean(expected), "kendall_tau": 100}
    )
    assert [task.metric, len(task.rows_of_examples), task.n_examples] == ["ndcg_at_10", 12, 12]
    compact = headscope.remove_heads(loaded, [(1, 0), (1, 1), (1, 2)])
    pruned = task.outputs(loaded, gates)
    again = task.outputs(compact)
    np.testing.assert_allclose(pruned["tau"], again["tau"])
    with torch.no_grad():
        for q, places in enumerate(data.candidates):
            rows = [loaded.tokenizer(QUERIES[q], DOCUMENTS[d], return_tensors="pt") for d in places]
            other = [float(compact.network(**row).logits[0, 0]) for row in rows]
            assert pruned["tau"][q] == pytest.approx(stats.kendalltau(scores[q], other).statistic)


def test_rerank_without_labels_and_its_rows(crossed, tmp_path):
    path = tmp_path / "rows.tsv"
    rows = [f"{QUERIES[i % 9]}\t{text}" for i, text in enumerate(DOCUMENTS)] + ["alone\tthe cat"]
    path.write_text("\n".join(rows))
    loaded = headscope.load(str(crossed), task_head="auto")
    task = make_task("rerank", read_rerank(path), loaded)
    assert (task.metric, task.n_examples, task.has_labels) == ("kendall_tau", 9, False)
    assert "1 of 10 queries are left out: they have only one document." in task.notes
    assert task.value(task.outputs(loaded)) == 100
    assert 5 <= sum(map(len, thinned(task.data, 20, 0).candidates)) <= 10


@pytest.mark.parametrize("task", ["retrieval", "rerank"])
def test_derivatives(task, bert, crossed, beir):
    loaded = bert
    if task == "rerank":
        loaded = headscope.load(str(crossed), task_head="auto", dtype="float64")
    task_of_model = make_task(task, read_examples(task, beir, 5), loaded)
    for labels in (True, False):
        check_derivatives(task_of_model, loaded, labels=labels)


def test_refusals(bert, crossed, beir, tmp_path):
    with pytest.raises(InputError, match="has no classification head"):
        make_task("rerank", read_rerank(beir), bert)
    two = tiny_bert(tmp_path / "two", task_head="classification")
    with pytest.raises(InputError, match="has 2 outputs; the task rerank needs a cross-encoder"):
        make_task(
            "rerank", read_examples("rerank", beir, 3), headscope.load(str(two), task_head="auto")
        )
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match=r"holds no corpus.jsonl"):
        read_retrieval(tmp_path / "empty")
    rows = tmp_path / "rows.tsv"
    rows.write_text("the cat\tthe dog\nthe cat\ta mat\nit\tthe mat\n")
    with pytest.raises(CorpusError, match="does not say which documents are relevant"):
        read_retrieval(rows)
    rows.write_text("the cat\tthe dog\tgood\nit\tthe mat\t1\n")
    with pytest.raises(CorpusError, match=r"line 1: this reads like a header"):
        read_rerank(rows)


# --- every task of queries, tags and questions ----------------------------------------------------

TEXTS = [f"the {a} {b} on the {c}" for a in ("cat", "dog", "mat", "house") for b in ("sat", "ran",
         "was") for c in ("big mat", "red house")]  # fmt: skip
MANY = [f"{TEXTS[i % 24]} {i}" for i in range(64)]
TAGS = ("O", "B-PER", "I-PER")


@dataclasses.dataclass(frozen=True)
class Case:
    task: str
    metric: str
    file: str
    head: str | None = None
    sizes: Any = None


CASES = (
    Case("retrieval", "ndcg_at_10", "rows.tsv"),
    Case("rerank", "ndcg_at_10", "rows.tsv", "classification", {"num_labels": 1}),
    Case("rerank", "kendall_tau", "plain.tsv", "classification", {"num_labels": 1}),
    Case(
        "token-classification",
        "entity_f1",
        "tags.txt",
        "token-classification",
        {"id2label": dict(enumerate(TAGS))},
    ),
    Case("question-answering", "answer_f1", "squad.json", "question-answering"),
)
each_case = pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.task}, {c.metric}")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rows = [
        (f"a {TEXTS[i % 24].split()[1]} {i}", TEXTS[(i + 5 * j) % 24], int(j == 0))
        for i in range(64)
        for j in range(3)
    ]
    (folder / "rows.tsv").write_text("\n".join("\t".join(map(str, row)) for row in rows))
    (folder / "plain.tsv").write_text("\n".join("\t".join(row[:2]) for row in rows))
    tagged = []
    for i, text in enumerate(MANY):
        lines = [f"{word} {TAGS[(i + j) % 3]}" for j, word in enumerate(text.split())]
        tagged.append("\n".join(lines))
    (folder / "tags.txt").write_text("\n\n".join(tagged))
    paragraphs = []
    for i, text in enumerate(MANY):
        answer = text.split()[1]
        impossible = i % 4 == 0
        answers = [] if impossible else [{"text": answer, "answer_start": text.index(answer)}]
        question = {
            "id": str(i),
            "question": f"is {i} it ?",
            "is_impossible": impossible,
            "answers": answers,
        }
        paragraphs.append({"context": text, "qas": [question]})
    (folder / "squad.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    opened: dict[str, Any] = {}

    def open_(case: Case) -> Any:
        if case.task not in opened:
            folder = tmp_path_factory.mktemp("models") / case.task
            tiny_bert(folder, task_head=case.head, **(case.sizes or {}))
            opened[case.task] = headscope.load(str(folder), task_head="auto")
        return opened[case.task]

    return open_


@each_case
def test_heads_are_chosen_removed_and_saved(case, files, model, tmp_path):
    """With labels where there are some; a folder that loads again."""
    names = ["fisher", "magnitude"]
    names += ["importance-token"] if case.metric != "kendall_tau" else ["surgeon"]
    data = files / case.file
    few = {"data": data, "calibration": data, "task": case.task}
    few |= {"limit": 16, "calibration_limit": 24}
    result = headscope.prune(
        model(case), **few, methods=[*names, "random"], fractions=[0.5], repairs=["none"]
    )
    assert (result.metric, result.baseline.value) == (case.metric, result.curves[0].points[0].value)
    assert [curve.method for curve in result.curves] == [*names, "random"]
    changed = [c.points[1] for c in result.curves[:-1]]
    assert any(point.difference.value for point in changed)
    assert all(point.p_value <= 1 for point in changed)
    assert all((point.changed is None) == (case.task != "retrieval") for point in changed)
    said = changed_sentence(result)
    assert ("of 16 queries find other documents" in said) == (case.task == "retrieval")
    if case.metric == "kendall_tau":
        assert result.baseline.value.value == 100
        with pytest.raises(InputError, match="label"):
            headscope.prune(model(case), **few, methods=["importance-token"], fractions=[0.5])
    made = tmp_path / "small"
    headscope.prune(model(case), **few, heads="L0H1,L1H2", save=made)
    small = measured(str(made), case.task, data, limit=16)
    less = measured(model(case), case.task, data, without="L0H1,L1H2", limit=16)
    assert small.value.value == pytest.approx(
        less.value.value if case.metric != "kendall_tau" else 100, abs=1e-3
    )


@pytest.mark.parametrize("case", CASES[2:4], ids=lambda c: c.metric)
def test_each_head_removed_alone(case, files, model):
    """The causes of classify: losses are those of pruned models, measured by the task."""
    result = headscope.classify(
        model(case),
        ablate=True,
        task=case.task,
        data=files / case.file,
        limit=24,
        control=False,
        ablate_limit=16,
    )
    causes = result.causes
    assert (causes.task, causes.metric) == (case.task, case.metric)
    assert causes.estimate == ("first-order" if case.metric != "kendall_tau" else "squared")
    assert all(head.cause.zero.value is not None for head in result.heads)
    assert any(head.cause.zero.value for head in result.heads)


def test_plain_text_calibrates(files, model):
    """The sample stands in where no calibration file is given, as for classification."""
    case = CASES[1]
    few = {"limit": 16, "calibration_limit": 8}
    few |= {"methods": ["fisher"], "repairs": ["none"], "fractions": [0.5]}
    result = headscope.prune(model(case), task=case.task, data=files / case.file, **few)
    assert result.calibration.task == "fidelity"
