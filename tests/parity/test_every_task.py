"""Every task of queries, tags and questions, from choosing heads to a folder that loads."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tiny_models import tiny_bert

import headscope
from headscope.core.errors import InputError
from headscope.pruning.sentences import changed_sentence

TEXTS = [f"the {a} {b} on the {c}" for a in ("cat", "dog", "mat", "house") for b in ("sat", "ran",
         "was") for c in ("big mat", "red house")]  # fmt: skip
MANY = [f"{TEXTS[i % 24]} {i}" for i in range(64)]
TAGS = ("O", "B-PER", "I-PER")


@dataclass(frozen=True)
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
        *("token-classification", "entity_f1", "tags.txt", "token-classification"),
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
    tagged = ["\n".join(f"{w} {TAGS[(i + j) % 3]}" for j, w in enumerate(text.split()))
              for i, text in enumerate(MANY)]  # fmt: skip
    (folder / "tags.txt").write_text("\n\n".join(tagged))
    paragraphs = []
    for i, text in enumerate(MANY):
        answer = text.split()[1]
        question = {"id": str(i), "question": f"is {i} it ?", "is_impossible": i % 4 == 0}
        question["answers"] = [{"text": answer, "answer_start": text.index(answer)}] * (i % 4 > 0)
        paragraphs.append({"context": text, "qas": [question]})
    (folder / "squad.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, Any] = {}

    def open_(case: Case) -> Any:
        if case.task not in made:
            folder = tmp_path_factory.mktemp("models") / case.task
            tiny_bert(folder, task_head=case.head, **(case.sizes or {}))
            made[case.task] = headscope.load(str(folder), task_head="auto")
        return made[case.task]

    return open_


@each_case
def test_heads_are_chosen_removed_and_saved(case, files, model, tmp_path):
    """With labels where there are some; a folder that loads again."""
    names = ["fisher", "magnitude"]
    names += ["importance-token"] if case.metric != "kendall_tau" else ["surgeon"]
    data = files / case.file
    few = {"data": data, "calibration": data, "task": case.task, "ablation": False, "roles": False}
    few |= {"limit": 16, "calibration_limit": 24}
    found = headscope.prune(
        model(case), **few, methods=[*names, "random"], fractions=[0.5], repairs=["none"]
    )
    assert (found.metric, found.baseline.value) == (case.metric, found.curves[0].points[0].value)
    assert [curve.method for curve in found.curves] == [*names, "random"]
    changed = [c.points[1] for c in found.curves[:-1]]
    assert any(point.difference.value for point in changed)
    assert all(point.p_value <= 1 for point in changed)
    assert all((point.changed is None) == (case.task != "retrieval") for point in changed)
    said = changed_sentence(found)
    assert ("of 16 queries find other documents" in said) == (case.task == "retrieval")
    if case.metric == "kendall_tau":
        assert found.baseline.value.value == 100
        with pytest.raises(InputError, match="label"):
            headscope.prune(model(case), **few, methods=["importance-token"], fractions=[0.5])
    made = tmp_path / "small"
    headscope.prune(model(case), **few, heads="L0H1,L1H2", save=made)
    measured = headscope.measure(str(made), case.task, data, limit=16)
    whole = headscope.measure(model(case), case.task, data, without="L0H1,L1H2", limit=16)
    assert measured.value.value == pytest.approx(
        whole.value.value if case.metric != "kendall_tau" else 100, abs=1e-3
    )


def test_as_many_as_a_largest_drop_allows(files, model):
    """No example is tested on that has a sentence which heads were chosen on."""
    case, data = CASES[0], files / CASES[0].file
    options = {"task": case.task, "methods": ["fisher"], "repairs": ["none"], "max_drop": 90.0}
    options |= {"calibration_limit": 24, "ablation": False, "roles": False}
    tags, of_tags = files / CASES[3].file, {**options, "task": CASES[3].task}
    with pytest.raises(InputError, match="share no sentence with the calibration data"):
        headscope.prune(model(CASES[3]), data=tags, calibration=tags, **of_tags)
    found = headscope.prune(model(case), data=data, calibration=data, **options)
    assert found.max_drop is not None
    assert found.max_drop.left_out == 4
    assert found.measured_examples + found.max_drop.left_out == 64
    assert found.max_drop.count >= 1


@pytest.mark.parametrize("case", CASES[2:4], ids=lambda c: c.metric)
def test_each_head_removed_alone(case, files, model):
    """The causes of classify: losses are those of pruned models, measured by the task."""
    found = headscope.classify(
        model(case),
        ablate=True,
        task=case.task,
        data=files / case.file,
        limit=24,
        control=False,
        ablate_limit=16,
    )
    causes = found.causes
    assert (causes.task, causes.metric) == (case.task, case.metric)
    assert causes.estimate == ("first-order" if case.metric != "kendall_tau" else "squared")
    assert all(head.cause.zero.value is not None for head in found.heads)
    assert any(head.cause.zero.value for head in found.heads)


def test_plain_text_calibrates(files, model):
    """The sample stands in where no calibration file is given, as for classification."""
    case = CASES[1]
    found = headscope.prune(
        model(case),
        task=case.task,
        data=files / case.file,
        methods=["fisher"],
        fractions=[0.5],
        limit=16,
        calibration_limit=8,
        ablation=False,
        roles=False,
        repairs=["none"],
    )
    assert found.calibration.task == "fidelity"
