"""``headscope spectrum`` from the command line: shapes, files, sentences, bad input."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tiny_models import tiny_bert

from headscope.results import SpectrumResult, from_dict, to_dict

Run = Callable[..., Any]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    path.write_text("The zebra saw a big house.\n\nHe wasn't bitten; the wombat was!\n" * 30)
    return path


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """A classification of the tiny model in which L0H1 and L1H2 are positional."""
    import headscope
    from headscope.data.corpus import sample_corpus

    found = to_dict(headscope.classify(str(model), list(sample_corpus())[:40], language="en"))
    for head in found["heads"]:
        named = (head["layer"], head["head"]) in ((0, 1), (1, 2))
        head["roles"] = ["positional"] if named else []
        head["primary"] = "positional" if named else "none"
        head["positional"]["offset"] = -1
    path = tmp_path_factory.mktemp("roles") / "classify.json"
    path.write_text(json.dumps(found))
    return path


def parsed(run: Run, *arguments: str | Path) -> dict[str, Any]:
    outcome = run("spectrum", *arguments, "--format", "json")
    assert (outcome.code, outcome.stderr) == (0, "")
    data: dict[str, Any] = json.loads(outcome.stdout)
    return data


def test_json_has_the_promised_shape(run: Run, model: Path, text: Path) -> None:
    data = parsed(run, model, "--text", text, "--length", "16", "--sequences", "6")
    assert (data["length"], data["sequences"], data["k"]) == (16, 6, 4)
    assert [(h["layer"], h["head"]) for h in data["heads"]] == [
        (layer, head) for layer in range(2) for head in range(4)
    ]
    for head in data["heads"]:
        assert set(head["share_at_k"]) == {"mean", "sem"}
        for name in ("curve", "curve_sq"):
            assert len(head[name]) == 16
            assert head[name] == sorted(head[name])
            assert head[name][-1] == pytest.approx(1.0)
        assert head["share_at_k"]["mean"] == head["curve"][3]
        assert head["share_sq_at_k"]["mean"] == head["curve_sq"][3]
        assert head["curve_sem"][3] == head["share_at_k"]["sem"]
    assert set(data["controls"]) == {"uniform", "identity", "previous-token", "random-logits"}
    assert data["controls"]["identity"]["share_at_k"] == 0.25
    assert data["validation"]["passed"] is True
    assert data["provenance"]["data"]["name"] == str(text)
    assert data["efficient"] is None
    assert to_dict(from_dict(SpectrumResult, data)) == data


def test_defaults(run: Run, model: Path) -> None:
    """The built-in sample, the model's limit where it is below 128, precision 0.01."""
    data = parsed(run, model)
    assert (data["length"], data["k"]) == (64, 16)
    assert data["sampling"]["mode"] == "adaptive"
    assert data["sampling"]["precision"] == 0.01
    assert data["provenance"]["data"]["name"] == "built-in sample (mostly generated)"


def test_shortest_length_and_any_k(run: Run, model: Path, text: Path) -> None:
    data = parsed(run, model, "--text", text, "-n", "4", "--sequences", "1", "--efficient")
    assert data["k"] == 1
    assert data["heads"][0]["share_at_k"]["sem"] is None
    assert data["heads"][0]["curve_sem"] is None
    assert len(data["verdict"]["between"]) == 8
    data = parsed(run, model, "--text", text, "-n", "8", "--sequences", "2", "--k", "8")
    assert all(h["share_at_k"]["mean"] == pytest.approx(1.0) for h in data["heads"])


def test_people_see_verdict_map_and_controls(run: Run, model: Path, text: Path) -> None:
    outcome = run("spectrum", model, "--text", text, "-n", "16", "--sequences", "9", "--efficient")
    assert outcome.code == 0
    out = outcome.stdout
    assert "Low rank holds for" in out
    assert "random scores" in out
    assert "control: previous-token" in out
    assert "truncated P" in out
    assert "bound: best rank-k z" in out
    assert "best projection" not in out
    assert "5 draws" in " ".join(out.split())
    assert "random weights not measured" in out
    assert max(map(len, out.splitlines())) <= 80


def test_random_weights_stand_beside_the_shares(run: Run, model: Path, text: Path) -> None:
    arguments = (model, "--text", text, "-n", "16", "--sequences", "12", "--control")
    data = parsed(run, *arguments)
    random = data["random_weights"]
    assert [draw["seed"] for draw in random["draws"]] == [0, 1, 2, 3, 4]
    assert sum(draw["sequences"] for draw in random["draws"]) == 12
    means = [draw["share_at_k"] for draw in random["draws"]]
    assert len(set(means)) == 5
    assert random["share_at_k"]["mean"] == pytest.approx(sum(means) / 5)
    low, high = stats.t.interval(0.95, 4, sum(means) / 5, stats.sem(means))
    assert random["half_width"] == pytest.approx((high - low) / 2)
    assert random["heads"] == 8
    assert all(0 <= draw["above"] <= 8 for draw in random["draws"])
    assert random["curve"][3] == pytest.approx(random["share_at_k"]["mean"])
    shown = " ".join(run("spectrum", *arguments).stdout.split())
    assert (
        "with random weights (5 initialisations, the same sequences dealt out to them) the mean"
        in shown
    )
    assert "control: random weights" in shown
    assert data["random_weights"] == parsed(run, *arguments)["random_weights"]
    # The model's own numbers are the same with and without its control.
    assert parsed(run, *arguments[:-1])["heads"] == data["heads"]


def test_random_weights_are_those_of_fresh_models(run: Run, model: Path, text: Path) -> None:
    """With two sequences, each initialisation is measured on one of them."""
    import headscope
    from headscope.models.control import random_twin

    lines = text.read_text().splitlines()
    loaded = headscope.load(str(model))
    found = headscope.spectrum(loaded, lines, length=16, sequences=2, control=True).random_weights
    assert found is not None
    for i, draw in enumerate(found.draws):
        twin = random_twin(loaded, i)
        alone = headscope.spectrum(twin, lines, length=16, sequences=10**6).heads
        whole = np.mean([head.share_at_k.mean for head in alone])
        assert draw.share_at_k == pytest.approx(whole, abs=0.05)
        assert draw.sequences == 1


def test_a_single_sequence_gives_no_verdict(run: Run, model: Path, text: Path) -> None:
    outcome = run("spectrum", model, "--text", text, "-n", "16", "--sequences", "1")
    assert outcome.code == 0
    assert "no head is called low rank" in outcome.stdout
    assert "1 sequence of exactly 16" in " ".join(outcome.stdout.split())
    one = run("spectrum", model, "--text", text, "-n", "16", "--sequences", "1", "--control")
    assert "too little was measured for an interval" in " ".join(one.stdout.split())


def test_csv(run: Run, model: Path, text: Path) -> None:
    arguments = ("spectrum", model, "--text", text, "-n", "16", "--sequences", "3")
    rows = list(csv.DictReader(io.StringIO(run(*arguments, "--format", "csv").stdout)))
    assert len(rows) == 8
    assert all(0.25 <= float(row["share_at_k"]) <= 1 for row in rows)


def test_verdict_names_positional_heads(
    run: Run, model: Path, text: Path, classified: Path, tmp_path: Path
) -> None:
    arguments = ("spectrum", model, "--text", text, "-n", "16", "--sequences", "9")
    outcome = run(*arguments, "--roles", classified)
    assert outcome.code == 0
    out = " ".join(outcome.stdout.split())
    assert "L0H1 (previous token" in out
    assert "positional" in out
    data = parsed(run, *arguments[1:], "--roles", classified)
    assert data["roles"]["positional"] == {"L0H1": -1, "L1H2": -1}
    assert [h["role"] for h in data["heads"]][:3] == ["none", "positional", "none"]
    # The one in the folder of -o is found by itself.
    (tmp_path / "classify.json").write_bytes(classified.read_bytes())
    found = parsed(run, *arguments[1:], "-o", tmp_path)
    assert found["roles"] == data["roles"]
    assert run(*arguments).stdout.count("positional") <= 1  # only in the hint


def test_files(run: Run, model: Path, text: Path, tmp_path: Path) -> None:
    arguments = ("spectrum", model, "--text", text, "-n", "16", "--sequences", "5", "-o", tmp_path)
    assert run(*arguments, "--efficient").code == 0
    pictures = {
        f"spectrum_{name}.{kind}"
        for name in ("curves", "map", "map_sq", "efficient")
        for kind in ("png", "svg")
    }
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"spectrum.json", "spectrum.csv", "spectrum_efficient.csv", *pictures}
    rows = list(csv.DictReader((tmp_path / "spectrum_efficient.csv").open()))
    assert {row["form"] for row in rows} >= {"truncated", "bound", "random", "window"}
    assert all(float(row["half_width"]) >= 0 for row in rows)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert run(*arguments, "--efficient").code == 0
    for path in tmp_path.iterdir():
        old, new = (
            re.sub(rb'"created": "[^"]*"', b"", x) for x in (first[path.name], path.read_bytes())
        )
        assert old == new
    assert run(*arguments).code == 0  # nothing of the cheap forms is left to be taken for new
    assert not [path for path in tmp_path.iterdir() if "efficient" in path.name]


def test_config_file_changes_nothing_at_its_defaults(run: Run, model: Path, text: Path) -> None:
    options = ("--text", text, "-n", "16", "--sequences", "3")
    plain = parsed(run, model, *options)
    configured = parsed(run, model, *options, "--config", ROOT / "configs" / "spectrum.toml")
    for result in (plain, configured):
        result.pop("provenance")
    assert plain == configured


# --- bad input ----------------------------------------------------------------------------------

BAD = [
    (("-n", "3"), 1, "give 4 tokens or more"),
    (("-n", "-1"), 1, "give 4 tokens or more"),
    (("-n", "65"), 1, "takes at most 64 tokens"),
    (("-n", "16", "--k", "17"), 1, "there are 16 singular values"),
    (("--k", "0"), 1, "k is 0"),
    (("--sequences", "0"), 1, "give 1 or more"),
    (("--sequences", "5", "--precision", "0.1"), 1, "either"),
    (("--precision", "0"), 1, "between 0 and 1"),
    (("--precision", "nan"), 1, "between 0 and 1"),
    (("--low-rank", "1.5"), 1, "between 0 and 1"),
    (("--roles", "missing.json"), 1, "missing.json cannot be read"),
    (("--text", "missing.txt"), 1, "no file missing.txt"),
    (("--resume",), 1, "nothing to resume"),
    (("--sequences", "x"), 2, "integer"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), BAD)
def test_bad_input_is_one_clear_sentence(
    arguments: tuple[str, ...], code: int, message: str, run: Run, model: Path, tmp_path: Path
) -> None:
    folder = () if "--resume" in arguments else ("-o", tmp_path / "new" / "folder")
    outcome = run("spectrum", model, *arguments, *folder)
    assert (outcome.code, outcome.stdout) == (code, "")
    assert message in outcome.stderr
    if code == 1:
        assert len(outcome.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_text_too_short_for_one_sequence(run: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("the cat sat\n")
    outcome = run("spectrum", model, "--text", path, "-n", "16")
    assert outcome.code == 1
    assert "too short: it has 3 tokens, and one sequence of 16 takes 14" in outcome.stderr


def test_classification_of_another_model(
    run: Run, model: Path, text: Path, classified: Path, tmp_path: Path
) -> None:
    other = tiny_bert(tmp_path / "other", seed=1)
    arguments = ("--text", text, "-n", "16", "--sequences", "2")
    outcome = run("spectrum", other, *arguments, "--roles", classified)
    assert outcome.code == 1
    assert "is of another model" in outcome.stderr
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "classify.json").write_bytes(classified.read_bytes())
    assert parsed(run, other, *arguments, "-o", folder)["roles"] is None
    for content in ("", "[]", "{}", '{"heads": 3}', "null"):
        broken = tmp_path / "broken.json"
        broken.write_text(content)
        outcome = run("spectrum", model, *arguments, "--roles", broken)
        assert outcome.code == 1
        assert "not a classification" in outcome.stderr


def test_a_model_whose_attention_is_not_known_is_refused(
    run: Run, unknown: Path, text: Path
) -> None:
    outcome = run("spectrum", unknown, "--text", text, "-n", "16")
    assert (outcome.code, outcome.stdout) == (3, "")
    assert "fails validation" in outcome.stderr
