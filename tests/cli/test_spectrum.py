"""What is special to ``headscope spectrum`` on the command line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outcomes import Command, read_rows, refused, strict_json
from scipy import stats
from tiny_models import tiny_bert

import headscope
from headscope.core.serialise import to_dict
from headscope.data.corpus import sample_corpus
from headscope.models.surgery.copies import random_twin


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    path.write_text("The zebra saw a big house.\n\nHe wasn't bitten; the wombat was!\n" * 30)
    return path


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """A classification of the tiny model in which L0H1 and L1H2 are positional."""
    classification = to_dict(
        headscope.classify(str(model), list(sample_corpus())[:40], language="en")
    )
    for head in classification["heads"]:
        named = (head["layer"], head["head"]) in ((0, 1), (1, 2))
        head["roles"] = ["positional"] if named else []
        head["primary"] = "positional" if named else "none"
        head["positional"]["offset"] = -1
    path = tmp_path_factory.mktemp("roles") / "classify.json"
    path.write_text(json.dumps(classification))
    return path


def parsed(run: Command, *arguments: str | Path) -> Any:
    return run("spectrum", *arguments, "--format", "json").json


def test_defaults_shortest_length_and_any_k(run, model, text):
    data = parsed(run, model, "--text", text)  # the limit of the model is below 128
    assert (data["length"], data["k"]) == (64, 16)
    assert (data["sampling"]["mode"], data["sampling"]["precision"]) == ("adaptive", 0.01)
    data = parsed(run, model, "--text", text, "-n", "4", "--sequences", "1", "--efficient")
    assert data["k"] == 1
    assert data["heads"][0]["share_at_k"]["low"] is None
    assert len(data["verdict"]["between"]) == 8  # one sequence gives no verdict
    data = parsed(run, model, "--text", text, "-n", "8", "--sequences", "2", "--k", "8")
    assert all(h["share_at_k"]["value"] == pytest.approx(1.0) for h in data["heads"])


def test_cheap_forms(run, model, text, tmp_path):
    call = ("spectrum", model, "--text", text, "-n", "16", "--sequences", "4", "-o", tmp_path)
    outcome = run(*call, "--efficient")
    assert outcome.code == 0
    assert "random weights not measured" in outcome.flat
    more = {f"spectrum_efficient.{kind}" for kind in ("csv", "png", "svg")}
    assert more < {path.name for path in tmp_path.iterdir()}
    rows = read_rows((tmp_path / "spectrum_efficient.csv").read_text())
    assert {row["form"] for row in rows} >= {"truncated", "bound", "random", "window"}
    assert all(float(row["error_low"]) <= float(row["error_high"]) for row in rows)
    table = run(*call, "--format", "csv").rows
    assert len(table) == 8
    assert not more & {path.name for path in tmp_path.iterdir()}  # to be taken for new


def test_random_weights_stand_beside_the_shares(run, model, text, tmp_path):
    arguments = (model, "--text", text, "-n", "16", "--sequences", "12")
    shown = run("spectrum", *arguments, "--control", "-v", "-o", tmp_path)
    data = strict_json((tmp_path / "spectrum.json").read_text())
    random = data["random_weights"]
    assert [draw["seed"] for draw in random["draws"]] == [0, 1, 2, 3, 4]
    assert sum(draw["sequences"] for draw in random["draws"]) == 12
    means = [draw["share_at_k"] for draw in random["draws"]]
    assert len(set(means)) == 5
    low, high = stats.t.interval(0.95, 4, sum(means) / 5, stats.sem(means))
    expected = {"value": sum(means) / 5, "low": low, "high": high}
    assert random["share_at_k"] == pytest.approx(expected)
    assert random["curve"][3] == pytest.approx(random["share_at_k"]["value"])
    assert "control: random weights" in shown.flat
    # The model's own numbers are the same with and without its control.
    assert parsed(run, *arguments)["heads"] == data["heads"]


def test_random_weights_are_those_of_fresh_models(model, text):
    """With two sequences, each initialisation is measured on one of them."""
    lines = text.read_text().splitlines()
    loaded = headscope.load(str(model))
    result = headscope.spectrum(loaded, lines, length=16, sequences=2, control=True)
    assert result.random_weights is not None
    for i, draw in enumerate(result.random_weights.draws):
        twin = random_twin(loaded, i)
        alone = headscope.spectrum(twin, lines, length=16, sequences=10**6).heads
        mean_share = np.mean([head.share_at_k.value for head in alone])
        assert draw.share_at_k == pytest.approx(mean_share, abs=0.05)
        assert draw.sequences == 1


def test_roles_come_from_a_classification_of_this_model(run, model, text, classified, tmp_path):
    options = ("--text", text, "-n", "16", "--sequences", "8")
    outcome = run("spectrum", model, *options, "--roles", classified)
    assert "L0H1 (previous token" in outcome.flat
    assert run("spectrum", model, *options).stdout.count("positional") <= 1  # only in the hint
    # The one in the folder of -o is found by itself, unless it is of another model.
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "classify.json").write_bytes(classified.read_bytes())
    data = parsed(run, model, *options, "-o", folder)
    assert data["roles"]["positional"] == {"L0H1": -1, "L1H2": -1}
    assert [h["role"] for h in data["heads"]][:3] == ["none", "positional", "none"]
    other = tiny_bert(tmp_path / "other", seed=1)
    assert parsed(run, other, *options, "-o", folder)["roles"] is None
    refused(run("spectrum", other, *options, "--roles", classified), "is of another model")
    broken = tmp_path / "broken.json"
    broken.write_text('{"heads": 3}')
    refused(run("spectrum", model, *options, "--roles", broken), "not a classification")
