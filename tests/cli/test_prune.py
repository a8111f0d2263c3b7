"""headscope prune on the command line: what is measured, hand-picked heads, bad input."""

from pathlib import Path
from typing import Any

import pytest
import torch
from outcomes import refused
from tiny_models import tiny_bert

import headscope

PAIRS = [
    ("the cat sat on the mat", "the big cat sat", 4.0),
    ("a dog ran", "the dog ran to the house", 3.5),
    ("he saw it", "she was in the house", 0.5),
    ("the red house is big", "the dogs ran", 0.0),
    ("it was red", "it is red", 4.5),
    ("she sat", "a mat", 1.0),
]
JSON = ("--no-roles", "--format", "json")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Evaluation and calibration data of every task."""
    folder = tmp_path_factory.mktemp("data")
    found = {}
    for i, end in enumerate(("", " was it")):
        a, b = ([f"{pair[k]}{end if k else ''}" for pair in PAIRS] for k in (0, 1))
        lines = (a, [text.removesuffix(end) for text in b])[i]
        for task, text in (
            ("similarity", "".join(f"{x}{end},{y}{end},{s}\n" for x, y, s in PAIRS)),
            ("fidelity", "".join(f"{line}\n" for line in lines)),
            ("mlm", "".join(f"{line}\n" for line in lines) * 20),
            ("classification", "".join(f"{line}\t{k % 2}\n" for k, line in enumerate(lines))),
        ):
            suffix = {"similarity": "csv", "classification": "tsv"}.get(task, "txt")
            path = folder / f"{task}-{i}.{suffix}"
            path.write_text(text, encoding="utf-8")
            found[task] = (*found.get(task, ()), path)
    return found


def data(files: dict[str, tuple[Path, Path]], task: str = "fidelity") -> tuple[object, ...]:
    return ("--task", task, "--data", files[task][0], "--calibration", files[task][1])


def test_json_has_the_promised_shape(run, model, files):
    ours = ("fisher-joint", "fisher", "importance-token", "importance-example", "magnitude")
    names = (*ours, "ablation", "random")
    words = [word for name in names for word in ("--method", name)]
    call = ("prune", model, *data(files, "similarity"), *words, "--step", "0.5", "--ablation")
    result = run(*call, *JSON).json
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
    draws = result["curves"][-1]["points"][1]["draws"]
    assert len({draw["seed"] for draw in draws}) == 5


def test_same_seed_gives_the_same_result(run, model, files):
    methods = ("--method", "gates", "--method", "topk", "--method", "random", "--step", "0.5")

    def measured(seed: int) -> Any:
        result = run("prune", model, *data(files), *methods, "--seed", seed, *JSON).json
        del result["provenance"]["created"]
        return result

    first = measured(1)
    assert first == measured(1)
    assert first["curves"] != measured(2)["curves"]


def test_heads_by_hand_also_of_a_pruned_model(run, model, files, tmp_path):
    call = ("prune", model, "--data", files["fidelity"][0], "--format", "json")
    result = run(*call, "--heads", "L0H1,L1H*").json
    (curve,) = result["curves"]
    (point,) = curve["points"]
    assert (curve["method"], curve["repair"]) == ("manual", "none")
    assert point["heads_removed"] == [[0, 1], [1, 0], [1, 1], [1, 2], [1, 3]]
    assert result["calibration"] is None
    expected = headscope.measure(str(model), "fidelity", files["fidelity"][0], without="L0H1,L1H*")
    assert point["value"] == pytest.approx(expected.value, abs=1e-9)
    assert run(*call, "--heads", "L0H0,L1H2", "--save", tmp_path / "less").code == 0
    again = ("prune", tmp_path / "less", *call[2:])
    refused(run(*again, "--heads", "L0H0"), "no head 0")
    found = run(*again, "--heads", "L0H3").json
    assert found["curves"][0]["points"][0]["heads_removed"] == [[0, 3]]


@pytest.mark.parametrize("repair", ["mean", "refit"])
def test_the_repaired_model_is_the_measured_model(repair, run, model, files, tmp_path):
    folders = (tmp_path / "small", tmp_path / "dense")
    save = ("--save", folders[0], "--save-dense", folders[1], "--fraction", "0.5")
    call = ("prune", model, *data(files), "--method", "fisher-joint", "--repair", repair)
    value = run(*call, *save, *JSON).json["curves"][0]["points"][1]["value"]
    full = headscope.load(str(model))
    for folder in folders:
        small = headscope.load(str(folder))
        again = headscope.measure(small, "fidelity", files["fidelity"][0], reference=full)
        assert again.value == pytest.approx(value, abs=1e-5)
    assert sum(site.n_heads for site in headscope.load(str(folders[0])).sites) == 4


@pytest.mark.parametrize("method", ["fisher", "fisher-joint", "ablation", "gates", "topk"])
def test_heads_that_put_out_nothing_go_first(method, tmp_path, files):
    loaded = headscope.load(str(tiny_bert(tmp_path / "planted", layers=2, heads=4, seed=5)))
    with torch.no_grad():
        for layer, head in ((0, 1), (0, 3), (1, 2)):
            loaded.sites[layer].projections.out.weight[:, 8 * head : 8 * head + 8] = 0.0
    test, train = files["fidelity"]
    few = {"methods": [method], "fractions": [3 / 8], "repairs": ["none"], "roles": False}
    point = headscope.prune(loaded, data=test, calibration=train, **few).curve(method).points[1]
    assert point.heads_removed == ((0, 1), (0, 3), (1, 2))
    assert point.value == pytest.approx(1.0, abs=1e-6)


def test_sentences_of_both_sets_are_counted(run, model, files, tmp_path):
    """By sentence: neither the file, nor the pairs, nor the white space are the same."""
    evaluation, chosen = files["similarity"][0], tmp_path / "train.csv"
    seen, beside = PAIRS[0][1].replace(" ", "  "), PAIRS[3][0]
    rows = [(f"{a} was it", f"{b} was it", score) for a, b, score in PAIRS]
    rows += [(f" {seen} ", "it was the cat", 2.0), ("she ran", beside, 2.5)]
    chosen.write_text("".join(f"{a},{b},{score}\n" for a, b, score in rows))
    call = ("prune", model, "--task", "similarity", "--data", evaluation, "--fraction", "0.5")
    call += ("--method", "magnitude", "--no-ablation")
    found = run(*call, "--no-roles", "--calibration", chosen)
    assert found.code == 0, found.stderr
    assert "2 of the 12 different sentences" in found.flat
    assert "(16.7%)" in found.flat
    (same, *_) = run(*call, *JSON, "--calibration", evaluation).json["warnings"]
    assert "12 of the 12" in same


@pytest.mark.parametrize("task", ["fidelity", "similarity", "mlm", "classification"])
def test_a_model_that_puts_out_nothing_loses_nothing_and_says_so(tmp_path, files, task):
    head = task if task in ("mlm", "classification") else None
    loaded = headscope.load(str(tiny_bert(tmp_path / "m", task_head=head)), task_head=head)
    with torch.no_grad():
        for module in (m for m in loaded.network.modules() if isinstance(m, torch.nn.LayerNorm)):
            module.weight.zero_()
            module.bias.zero_()
    few = {"step": 0.5, "roles": False, "repairs": ["none", "scale", "refit"]}
    test, train = files[task]
    found = headscope.prune(loaded, task=task, data=test, calibration=train, **few)
    assert "means anything" in found.warnings[-1]
    values = {point.value for curve in found.curves for point in curve.points}
    assert values == {found.baseline.value}
    if task == "fidelity":
        assert values == {1.0}
