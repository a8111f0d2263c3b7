"""headscope prune on the command line: what is measured, hand-picked heads, and seq2seq."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from measuring import measured
from outcomes import Command, fits, read_rows, refused
from tiny_models import tiny_bert, write_translator

import headscope
from headscope.core.serialise import from_dict
from headscope.pruning import view as page
from headscope.pruning.result import PruneResult
from headscope.pruning.sentences import stacks_sentence
from headscope.show.blocks import Text

PAIRS = [
    ("the cat sat on the mat", "the big cat sat was it"),
    ("a dog ran", "the dog ran to the house was it"),
    ("he saw it", "she was in the house was it"),
    ("the red house is big", "the dogs ran was it"),
    ("it was red", "it is red was it"),
    ("she sat", "a mat was it"),
]
JSON = ("--format", "json")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Evaluation and calibration data of both tasks."""
    folder = tmp_path_factory.mktemp("data")
    paths: dict[str, tuple[Path, Path]] = {}
    for task, times in (("fidelity", 1), ("mlm", 20)):
        for i, lines in enumerate(zip(*PAIRS, strict=True)):
            path = folder / f"{task}-{i}.txt"
            path.write_text("".join(f"{line}\n" for line in lines) * times, encoding="utf-8")
            paths[task] = (*paths.get(task, ()), path)
    return paths


def data(files: dict[str, tuple[Path, Path]]) -> tuple[object, ...]:
    return ("--data", files["fidelity"][0], "--calibration", files["fidelity"][1])


def test_same_seed_gives_the_same_result(run, model, files):
    methods = ("--method", "gates", "--method", "random", "--fraction", "0.5")

    def pruned(seed: int) -> Any:
        result = run("prune", model, *data(files), *methods, "--seed", seed, *JSON).json
        del result["provenance"]["created"]
        return result

    first = pruned(1)
    assert first == pruned(1)
    assert first["curves"] != pruned(2)["curves"]


def test_heads_by_hand_also_of_a_pruned_model(run, model, files, tmp_path):
    call = ("prune", model, "--data", files["fidelity"][0], *JSON)
    result = run(*call, "--heads", "L0H1,L1H*").json
    curve, random = result["curves"]
    assert (random["method"], len(random["points"][0]["draws"])) == ("random", 5)
    (point,) = curve["points"]
    assert (curve["method"], curve["repair"]) == ("manual", "none")
    assert point["heads_removed"] == [[0, 1], [1, 0], [1, 1], [1, 2], [1, 3]]
    assert result["calibration"] is None
    expected = measured(str(model), "fidelity", files["fidelity"][0], without="L0H1,L1H*")
    assert point["value"]["value"] == pytest.approx(expected.value.value, abs=1e-9)
    assert run(*call, "--heads", "L0H0,L1H2", "--save", tmp_path / "less").code == 0
    again = ("prune", tmp_path / "less", *call[2:])
    refused(run(*again, "--heads", "L0H0"), "no head 0")
    result = run(*again, "--heads", "L0H3").json
    assert result["curves"][0]["points"][0]["heads_removed"] == [[0, 3]]


@pytest.mark.parametrize("method", ["ablation", "gates"])  # fisher: test_max_drop.py
def test_heads_that_put_out_nothing_go_first(method, tmp_path, files):
    loaded = headscope.load(str(tiny_bert(tmp_path / "planted", layers=2, heads=4, seed=5)))
    with torch.no_grad():
        for layer, head in ((0, 1), (0, 3), (1, 2)):
            loaded.sites[layer].projections.out.weight[:, 8 * head : 8 * head + 8] = 0.0
    test, train = files["fidelity"]
    few = {"methods": [method], "fractions": [3 / 8], "repairs": ["none"]}
    point = headscope.prune(loaded, data=test, calibration=train, **few).curve(method).points[1]
    assert point.heads_removed == ((0, 1), (0, 3), (1, 2))
    assert point.value.value == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("task", ["fidelity", "mlm"])
def test_a_model_that_puts_out_nothing_loses_nothing_and_says_so(tmp_path, files, task):
    head = "mlm" if task == "mlm" else None
    loaded = headscope.load(str(tiny_bert(tmp_path / "m", task_head=head)), task_head=head)
    with torch.no_grad():
        for module in (m for m in loaded.network.modules() if isinstance(m, torch.nn.LayerNorm)):
            module.weight.zero_()
            module.bias.zero_()
    few = {"fractions": [0.5], "repairs": ["none", "scale", "surgeon"]}
    test, train = files[task]
    result = headscope.prune(loaded, task=task, data=test, calibration=train, **few)
    assert "means anything" in result.warnings[-1]
    values: set[float | None] = set()
    for curve in result.curves:
        values |= {point.value.value for point in curve.points}
    assert values == {result.baseline.value.value}
    if task == "fidelity":
        assert values == {1.0}


STACKS = ("encoder", "decoder", "cross")


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Marian; pairs.tsv and others.tsv lie beside it."""
    return write_translator(tmp_path_factory.mktemp("translator") / "model")


def seq2seq(translator: Path, *more: object) -> tuple[object, ...]:
    folder = translator.parent
    data = ("--data", folder / "pairs.tsv", "--calibration", folder / "others.tsv")
    return ("prune", translator, "--task", "seq2seq", *data, "--dtype", "float64", *more)


@pytest.fixture(scope="module")
def folder(translator: Path, tmp_path_factory: pytest.TempPathFactory, run: Command) -> Path:
    """All stacks, half of the heads and all."""
    out = tmp_path_factory.mktemp("out") / "found"
    done = run(*seq2seq(translator, "--step", "0.5", "--verbose", "-o", out))
    assert done.code == 0, done.stderr
    (out / "printed.txt").write_text(done.stdout)
    return out


@pytest.fixture(scope="module")
def result(folder: Path) -> PruneResult:
    return from_dict(PruneResult, json.loads((folder / "prune.json").read_text()))


def test_the_terminal_shows_every_stack(result, folder):
    printed = (folder / "printed.txt").read_text()
    fits(printed)
    text = " ".join(printed.split())
    for stack in result.stacks:
        point = stack.curves[0].points[1]
        change = stack.curves[0].points[1].difference
        value = f"{point.value.value:.2f} [{point.value.low:.1f}, {point.value.high:.1f}]"
        lost = f"{change.value:+.2f} [{change.low:+.1f}, {change.high:+.1f}]"
        assert f"{stack.stack} surgeon 50% {value} {lost}" in text
    assert stacks_sentence(result) in text


def test_files_name_the_stacks(result, folder):
    rows = read_rows((folder / "curves.csv").read_text())
    assert {row["stack"] for row in rows} == {"all", *STACKS}
    assert all(row["exact_match"] for row in rows if row["method"] != "random")
    scores = read_rows((folder / "scores.csv").read_text())
    heads = [(row["stack"], int(row["layer"]), int(row["head"])) for row in scores]
    assert heads == list(itertools.product(STACKS, range(2), range(4)))
    areas = read_rows((folder / "areas.csv").read_text())
    curves = 2  # surgeon, and random heads
    assert [row["less"] for row in areas].count("") == 3 * curves
    assert len(areas) == 3 * curves + 6 * curves
    names = ("L0", "L1", "decoder:L0", "decoder:L1", "cross:L0", "cross:L1")
    assert result.scores[0].names == names


def test_the_page_shows_the_encoders_heads(result):
    places = list(itertools.product(range(2), range(4)))
    cards = {(card.layer, card.head): card for card in page.cards(result, places)}
    scores = {(0, h): v for h, v in enumerate(result.scores[0].values[0])}
    scores |= {(1, h): v for h, v in enumerate(result.scores[0].values[1])}
    order = sorted(scores, key=lambda address: -scores[address])
    for rank, address in enumerate(order, start=1):
        assert cards[address].values == {"importance": rank}
    half = {head[1:] for head in result.curves[0].points[1].heads_removed if head[0] == "encoder"}
    removed_at = {address: dict(card.facts)["First removed"] for address, card in cards.items()}
    assert {address for address, text in removed_at.items() if text.startswith("at 50%")} == half
    assert Text(stacks_sentence(result)) in page.blocks(result)
