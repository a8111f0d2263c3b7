"""headscope prune on the command line: contract, files, hand-picked heads, bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from families import tiny
from tiny_models import VOCABULARY, tiny_bert, tiny_tokenizer

import headscope

Run = Callable[..., Any]

PAIRS = [
    ("the cat sat on the mat", "the big cat sat", 4.0),
    ("a dog ran", "the dog ran to the house", 3.5),
    ("he saw it", "she was in the house", 0.5),
    ("the red house is big", "the dogs ran", 0.0),
    ("it was red", "it is red", 4.5),
    ("she sat", "a mat", 1.0),
]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Evaluation and calibration pairs."""
    folder = tmp_path_factory.mktemp("pairs")
    paths = folder / "test.csv", folder / "train.csv"
    for path, end in zip(paths, ("", " was it"), strict=True):
        rows = [(a + end, b + end, score) for a, b, score in PAIRS]
        path.write_text("".join(f"{a},{b},{score}\n" for a, b, score in rows), encoding="utf-8")
    return paths


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two different texts."""
    folder = tmp_path_factory.mktemp("lines")
    first, second = folder / "a.txt", folder / "b.txt"
    first.write_text("\n".join(a for a, _, _ in PAIRS) + "\n", encoding="utf-8")
    second.write_text("\n".join(b for _, b, _ in PAIRS) + "\n", encoding="utf-8")
    return first, second


def test_json_has_the_promised_shape(run: Run, model: Path, pairs: tuple[Path, Path]) -> None:
    names = (
        "fisher-joint",
        "fisher",
        "importance-token",
        "importance-example",
        "magnitude",
        "ablation",
        "random",
    )
    found = run(
        "prune",
        model,
        "--task",
        "similarity",
        "--data",
        pairs[0],
        "--calibration",
        pairs[1],
        *(word for name in names for word in ("--method", name)),
        "--step",
        "0.5",
        "--ablation",
        "--no-roles",
        "--format",
        "json",
    )
    assert found.code == 0, found.stderr
    result = json.loads(found.stdout)
    assert (result["task"], result["metric"]) == ("similarity", "spearman")
    assert result["baseline"]["ci"] is None  # six pairs tell no interval
    assert {(c["method"], c["repair"]) for c in result["curves"]} == {
        *((name, repair) for name in names[:-1] for repair in ("none", "scale")),
        ("random", "none"),
    }
    for curve in result["curves"]:
        assert [len(p["heads_removed"]) for p in curve["points"]] == [0, 4, 8]
        assert [p["fraction"] for p in curve["points"]] == [0.0, 0.5, 1.0]
        assert curve["points"][0]["value"] == result["baseline"]["value"]
    assert {s["method"] for s in result["scores"]} == set(names[:-1])
    assert all(len(s["values"]) == 2 and len(s["values"][0]) == 4 for s in result["scores"])
    passes = {s["method"]: s["passes"] for s in result["scores"]}
    for name in ("fisher", "importance-token", "importance-example"):
        assert passes[name] == {"forward": 1, "backward": 1}
    assert len(result["ablation"]) == 8
    assert [row["layer"] for row in result["kept_alone"]] == [0, 1]
    assert result["warnings"] == []
    assert result["validation"]["passed"] is True
    draws = result["curves"][-1]["points"][1]["draws"]
    assert len({draw["seed"] for draw in draws}) == 5


def test_same_seed_gives_the_same_bytes(run: Run, model: Path, lines: tuple[Path, Path]) -> None:
    def once(seed: int) -> dict[str, object]:
        found = run(
            "prune",
            model,
            "--data",
            lines[0],
            "--calibration",
            lines[1],
            "--step",
            "0.5",
            "--method",
            "gates",
            "--method",
            "topk",
            "--method",
            "random",
            "--no-roles",
            "--seed",
            seed,
            "--format",
            "json",
        )
        result = json.loads(found.stdout)
        del result["provenance"]["created"]
        return result

    first = once(1)
    assert first == once(1)
    assert first["curves"] != once(2)["curves"]


def test_files_and_heads_by_hand(
    run: Run, model: Path, lines: tuple[Path, Path], tmp_path: Path
) -> None:
    found = run(
        "prune",
        model,
        "--data",
        lines[0],
        "--calibration",
        lines[1],
        "--step",
        "0.5",
        "--ablation",
        "-o",
        tmp_path / "out",
    )
    assert found.code == 0, found.stderr
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"prune.json", "curves.csv", "scores.csv", "ablation.csv", "kept_alone.csv"} <= names
    assert {"curves.png", "curves.svg", "scores.png", "ablation.svg"} <= names
    by_hand = run("prune", model, "--data", lines[0], "--heads", "L0H1,L1H*", "--format", "json")
    result = json.loads(by_hand.stdout)
    (curve,) = result["curves"]
    (point,) = curve["points"]
    assert (curve["method"], curve["repair"]) == ("manual", "none")
    assert point["heads_removed"] == [[0, 1], [1, 0], [1, 1], [1, 2], [1, 3]]
    assert result["calibration"] is None
    expected = headscope.measure(str(model), "fidelity", lines[0], without="L0H1,L1H*")
    assert point["value"] == pytest.approx(expected.value, abs=1e-9)


def test_the_saved_model_is_the_measured_model(
    run: Run, model: Path, lines: tuple[Path, Path], tmp_path: Path
) -> None:
    for repair in ("none", "scale", "mean", "refit"):
        folder, dense = tmp_path / f"small-{repair}", tmp_path / f"dense-{repair}"
        found = run(
            "prune",
            model,
            "--data",
            lines[0],
            "--calibration",
            lines[1],
            "--method",
            "fisher-joint",
            "--fraction",
            "0.5",
            "--repair",
            repair,
            "--save",
            folder,
            "--save-dense",
            dense,
            "--no-roles",
            "--format",
            "json",
        )
        assert found.code == 0, found.stderr
        value = json.loads(found.stdout)["curves"][0]["points"][1]["value"]
        full = headscope.load(str(model))
        for saved in (folder, dense):
            small = headscope.load(str(saved))
            again = headscope.measure(small, "fidelity", lines[0], reference=full)
            assert again.value == pytest.approx(value, abs=1e-5)
    small = headscope.load(str(tmp_path / "small-none"))
    assert sum(site.n_heads for site in small.sites) == 4


def test_a_pruned_model_is_pruned_further_by_its_old_names(
    run: Run, model: Path, lines: tuple[Path, Path], tmp_path: Path
) -> None:
    assert (
        run(
            "prune", model, "--data", lines[0], "--heads", "L0H0,L1H2", "--save", tmp_path / "once"
        ).code
        == 0
    )
    gone = run("prune", tmp_path / "once", "--data", lines[0], "--heads", "L0H0")
    assert gone.code == 1
    assert "no head 0" in gone.stderr
    found = run(
        "prune", tmp_path / "once", "--data", lines[0], "--heads", "L0H3", "--format", "json"
    )
    assert json.loads(found.stdout)["curves"][0]["points"][0]["heads_removed"] == [[0, 3]]


def test_heads_that_put_out_nothing_go_first(tmp_path: Path, lines: tuple[Path, Path]) -> None:
    folder = tiny_bert(tmp_path / "planted", layers=2, heads=4, seed=5)
    loaded = headscope.load(str(folder))
    with torch.no_grad():
        for layer, head in ((0, 1), (0, 3), (1, 2)):
            loaded.sites[layer].projections.out.weight[:, 8 * head : 8 * head + 8] = 0.0
    for method in ("fisher", "fisher-joint", "ablation", "gates", "topk", "magnitude"):
        found = headscope.prune(
            loaded,
            data=lines[0],
            calibration=lines[1],
            methods=[method],
            fractions=[3 / 8],
            repairs=["none"],
            roles=False,
        )
        point = found.curve(method).points[1]
        if method != "magnitude":  # large q, k and v can hide that W_O is empty
            assert point.heads_removed == ((0, 1), (0, 3), (1, 2)), method
            assert point.value == pytest.approx(1.0, abs=1e-6)


def test_shared_layers_are_decided_once(lines: tuple[Path, Path]) -> None:
    loaded = headscope.wrap(tiny("albert", vocab_size=len(VOCABULARY)), tiny_tokenizer())
    found = headscope.prune(loaded, data=lines[0], heads="L0H1")
    removed = found.curves[0].points[0].heads_removed
    assert found.shared_layers
    assert len(removed) > 1
    assert {head for _, head in removed} == {1}


def test_sentences_of_both_sets_are_counted(run: Run, model: Path, tmp_path: Path) -> None:
    """By sentence: neither the file, nor the pairs, nor the white space are the same."""
    evaluation, chosen = tmp_path / "test.csv", tmp_path / "train.csv"
    evaluation.write_text("".join(f"{a},{b},{score}\n" for a, b, score in PAIRS))
    seen, beside = PAIRS[0][1].replace(" ", "  "), PAIRS[3][0]
    rows = [(f"{a} was it", f"{b} was it", score) for a, b, score in PAIRS]
    rows += [(f" {seen} ", "it was the cat", 2.0), ("she ran", beside, 2.5)]
    chosen.write_text("".join(f"{a},{b},{score}\n" for a, b, score in rows))
    words = (
        "prune",
        model,
        "--task",
        "similarity",
        "--data",
        evaluation,
        "--fraction",
        "0.5",
        "--no-roles",
    )
    found = run(*words, "--calibration", chosen)
    assert found.code == 0, found.stderr
    assert "2 of the 12 different sentences" in " ".join(found.stdout.split())
    result = json.loads(run(*words, "--calibration", chosen, "--format", "json").stdout)
    (warning,) = result["warnings"]
    assert "(16.7%)" in warning
    same = json.loads(run(*words, "--calibration", evaluation, "--format", "json").stdout)
    assert "12 of the 12" in same["warnings"][0]


@pytest.mark.parametrize("task", ["fidelity", "similarity", "mlm", "classification"])
def test_a_model_that_puts_out_nothing_loses_nothing_and_says_so(
    tmp_path: Path, pairs: tuple[Path, Path], lines: tuple[Path, Path], task: str
) -> None:
    head = task if task in ("mlm", "classification") else None
    loaded = headscope.load(str(tiny_bert(tmp_path / "m", task_head=head)), task_head=head)
    with torch.no_grad():
        for module in (m for m in loaded.network.modules() if isinstance(m, torch.nn.LayerNorm)):
            module.weight.zero_()
            module.bias.zero_()
    if task == "classification":
        for path, other in zip(("a.tsv", "b.tsv"), lines, strict=True):
            texts = other.read_text().splitlines()
            rows = "".join(f"{text}\t{i % 2}\n" for i, text in enumerate(texts))
            (tmp_path / path).write_text(rows)
    data = {
        "fidelity": lines,
        "similarity": pairs,
        "mlm": lines,
        "classification": (tmp_path / "a.tsv", tmp_path / "b.tsv"),
    }[task]
    if task == "mlm":
        for path, other in zip(("c.txt", "d.txt"), lines, strict=True):
            (tmp_path / path).write_text(other.read_text() * 20)
        data = (tmp_path / "c.txt", tmp_path / "d.txt")
    found = headscope.prune(
        loaded,
        task=task,
        data=data[0],
        calibration=data[1],
        step=0.5,
        roles=False,
        repairs=["none", "scale", "refit"],
    )
    assert "means anything" in found.warnings[-1]
    values = {point.value for curve in found.curves for point in curve.points}
    assert values == {found.baseline.value}
    if task == "fidelity":
        assert values == {1.0}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--heads", "L9H0"], "no layer 9"),
        (["--heads", "L0H7"], "no head 7"),
        (["--heads", "L0H*,L1H*"], "every head"),
        (["--heads", "banana"], "not a head"),
        (["--heads", ""], "No head"),
        (["--keep-roles", "banana"], "no role"),
        (["--heads", "L0H1", "--keep-roles", "special"], "not both"),
        (["--heads", "L0H1", "--method", "fisher"], "leave out"),
        (["--method", "banana"], "no method"),
        (["--method", "importance-token"], "label"),
        (["--fraction", "1.5"], "between 0 and 1"),
        (["--fraction", "nan"], "between 0 and 1"),
        (["--step", "0"], "step"),
        (["--draws", "2"], "5 or more"),
        (["--calibration-limit", "1"], "2 or more"),
        (["--method", "roles", "--no-roles"], "what the heads do"),
        (["--save", "out"], "one model"),
        (["--fraction", "1", "--method", "fisher", "--save", "out"], "everything"),
        (["--roles", "missing.json"], "cannot be read"),
        (["--task", "mlm"], "head"),
        (["--task", "classification"], "labels"),
        (["--task", "similarity"], "labels"),
        (["--calibration", "{one}"], "one example"),
        (["--task", "similarity", "--data", "{constant}"], "score"),
    ],
)
def test_slips_are_named_in_one_sentence(
    run: Run,
    model: Path,
    tmp_path: Path,
    arguments: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text("the cat sat\n", encoding="utf-8")
    (tmp_path / "constant.csv").write_text("a cat,a dog,2\nthe mat,it,2\n", encoding="utf-8")
    places = {"one": tmp_path / "one.txt", "constant": tmp_path / "constant.csv"}
    words = [word.format(**places) for word in arguments]
    found = run("prune", model, *words)
    assert found.code == 1, found.stdout[-500:]
    assert says in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_help_shows_examples(run: Run) -> None:
    found = run("prune", "--help")
    assert found.code == 0
    assert "headscope prune demo" in found.stdout
