"""``--max-drop`` as the docs show it, on models whose idle heads are planted."""

import itertools
import random
import re
import shlex
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from measuring import measured
from outcomes import refused
from tiny_models import tiny_bert
from torch.nn.functional import normalize

import headscope
from headscope.core.files import sha256_of_file
from headscope.core.serialise import from_dict
from headscope.pruning.options import PruneOptions
from headscope.pruning.result import PruneResult
from headscope.pruning.sources import open_sources
from headscope.reports.reading import Results
from headscope.reports.section_rows import rows_of
from headscope.stats.estimate import Estimate

#: Heads that do nothing: their rows of W_O are zeros. The others matter.
IDLE = {(0, 1), (1, 0), (1, 2), (2, 3), (3, 0)}
WORDS = ["the", "cat", "dog", "mat", "house", "sat", "ran", "saw", "big", "red", "he", "she", "it"]


def sentences(seed: int, n: int) -> list[str]:
    draw = random.Random(seed)
    return list(
        dict.fromkeys(" ".join(draw.choices(WORDS, k=draw.randint(4, 9))) for _ in range(n))
    )


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo with idle heads, and pairs whose gold score is the demo's own similarity."""
    folder = tmp_path_factory.mktemp("drop")
    loaded = headscope.load(str(tiny_bert(folder / "random", layers=4, heads=4, seed=3)))
    with torch.no_grad():
        for site in loaded.sites:
            for head in range(4):
                map_of_head = site.projections.out.weight.split(site.d_head, dim=1)[head]
                map_of_head *= 0.0 if (site.layer, head) in IDLE else 8.0
        loaded.network.save_pretrained(folder / "demo")
        loaded.tokenizer.save_pretrained(folder / "demo")
        for name, seed in (("stsb-dev.csv", 1), ("stsb-test.csv", 1), ("stsb-train.csv", 2)):
            texts = sentences(seed, 160)
            states = [
                loaded.forward(*loaded.pad([loaded.tokenizer(t)["input_ids"]])) for t in texts
            ]
            e = normalize(torch.stack([state[0].mean(dim=0) for state in states]), dim=-1)
            pairs = zip(
                texts[::2], texts[1::2], (e[::2] * e[1::2]).sum(dim=1).tolist(), strict=False
            )
            (folder / name).write_text("".join(f"{a},{b},{s}\n" for a, b, s in pairs))
    return folder


@pytest.fixture
def at_desk(desk: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for path in desk.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.setattr("headscope.models.load.source.demo_folder", lambda: desk / "demo")
    sha256 = sha256_of_file(desk / "demo" / "model.safetensors")
    monkeypatch.setattr("headscope.models.load.source.WEIGHTS_SHA256", sha256)
    monkeypatch.chdir(tmp_path)
    return tmp_path


WITHOUT_DATA = (
    "prune",
    "demo",
    "--task",
    "similarity",
    "--no-validate",
    "--calibration",
    "stsb-train.csv",
    "--method",
    "fisher",
)
PLAIN = (*WITHOUT_DATA, "--data", "stsb-test.csv")


def test_the_command_of_the_docs_removes_what_does_nothing(run, at_desk):
    page = (Path(__file__).parents[2] / "docs" / "prune.md").read_text(encoding="utf-8")
    text = page.split("## How many heads for at most half a point\n")[1].split("\n## ")[0]
    lines = re.findall(r"^headscope prune .*", text, re.M)
    shown = next(line for line in lines if "--save" in line)
    command = shown.partition(" #")[0]
    assert "--max-drop 0.5" in command
    result = run(*shlex.split(command)[1:], "--no-validate", "--format", "json").json
    assert {(layer, head) for layer, head in result["saved"]["heads_removed"]} == IDLE
    most = result["max_drop"]
    assert (most["count"], most["wanted"]) == (len(IDLE), 0.5)
    assert (result["data"]["examples"], most["left_out"]) == (80, 0)
    assert most["sequence"] == list(range(1, 16))
    assert [test["heads"] for test in most["looks"]] == list(range(1, len(IDLE) + 2))
    assert (most["method"], most["repair"], most["near"]) == ("surgeon", "surgeon", [])
    assert most["looks"][-1]["lost"] > 0.5
    # What stands on disk is the model of the curve's last point.
    (curve,) = [c for c in result["curves"] if c["method"] != "random"]
    assert [len(p["heads_removed"]) for p in curve["points"]] == [0, len(IDLE)]
    saved = result["saved"]
    point = curve["points"][1]
    assert point["difference"]["value"] == pytest.approx(0.0, abs=1e-6)
    assert saved["measured"] == pytest.approx(point["value"]["value"], abs=1e-4)
    small = headscope.load(saved["folder"])
    remaining: set[tuple[int, int]] = set()
    for site in small.sites:
        remaining |= {(site.layer, head) for head in site.head_ids}
    assert remaining == set(itertools.product(range(4), range(4))) - IDLE
    # The card's header says of these examples what the JSON says.
    (entry,) = ModelCard.load(Path(saved["folder"]) / "README.md").data.to_dict()["model-index"]
    (metric,) = entry["results"][0]["metrics"]
    said = metric["args"]
    change = Estimate(**point["difference"])
    assert metric["value"] == pytest.approx(point["value"]["value"], abs=5.1e-5)
    assert (said["examples"], said["max_drop"]) == (80, 0.5)
    assert said["full_model"] == pytest.approx(result["baseline"]["value"]["value"], abs=5.1e-5)
    assert said["difference"] == pytest.approx(change.value, abs=5.1e-5)
    # Heads that do nothing leave every ranking as it is: there is no interval to be put down.
    assert said.get("difference_interval") == (
        change.interval and pytest.approx(change.interval, abs=5.1e-5)
    )
    assert result["kept"]["value"] == point["value"]["value"]
    rows = rows_of(Results("x", prune=from_dict(PruneResult, result)))
    (confirmed,) = (row for row in rows if row.where == "confirmed to cost at most 0.5")
    assert (confirmed.name, confirmed.value) == ("heads removed", len(IDLE))
    # Of those that are left none can go.
    busy = ("prune", saved["folder"], *PLAIN[2:], "--repair", "none")
    refused(run(*busy, "--max-drop", "0", "--save", "none"), "No head can go for a loss of at")
    assert not (at_desk / "none").exists()


def test_calibration_pairs_that_are_measured_are_left_out(run, at_desk):
    """Ten evaluation pairs are calibration pairs too: these are not chosen on, and all are tested.

    With one file for both nothing could be chosen on else: then examples are left out of the test.
    """
    (at_desk / "both.csv").write_text(
        (at_desk / "stsb-test.csv").read_text()
        + "".join((at_desk / "stsb-train.csv").read_text().splitlines(keepends=True)[:10])
    )
    few = ("--data", "both.csv", "--max-drop", "0.5", "--repair", "none", "--format", "json")
    result = run(*WITHOUT_DATA, *few).json
    most = result["max_drop"]
    assert (most["count"], most["left_out"], most["near"]) == (len(IDLE), 0, [])
    assert result["data"]["examples"] == 90
    assert (result["calibration"]["examples"], result["calibration"]["dropped"]) == (70, 10)
    assert "its 10 examples with such a sentence are left out" in result["warnings"][0]
    same = ("--data", "stsb-train.csv", "--max-drop", "0.5")
    refused(run(*WITHOUT_DATA, *same), "Only 0 of the 80 examples")
    few = ("--calibration-limit", "20", "--repair", "none", "--format", "json")
    result = run(*WITHOUT_DATA, *same, *few).json
    left_out = result["max_drop"]["left_out"]
    assert left_out == 10
    assert "the tests leave out every example" in result["warnings"][0]
    # All values are of the 70 that are left.
    chosen = open_sources(
        "similarity",
        "stsb-train.csv",
        "stsb-train.csv",
        limit=None,
        calibration_limit=20,
        seed=0,
    ).calibration
    lines = (at_desk / "stsb-train.csv").read_text().splitlines(keepends=True)
    other_lines = [line for line in lines if line.split(",")[0] not in chosen.first]
    (at_desk / "others.csv").write_text("".join(other_lines))
    assert len(other_lines) == 70
    unpruned = measured("demo", "similarity", "others.csv")
    assert result["baseline"]["value"]["value"] == pytest.approx(unpruned.value.value, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_drop": -0.1}, "0 or more"),
        ({"max_drop": 0.5, "fractions": [0.5]}, "leave out fractions"),
        ({"max_drop": 0.5, "heads": "L0H0"}, "leave out fractions, step, heads"),
        ({"max_drop": 0.5, "methods": ["random"]}, "Random heads are a control"),
    ],
)
def test_what_contradicts_itself_is_refused(options, says):
    with pytest.raises(headscope.core.errors.InputError, match=says):
        PruneOptions(**options)


def test_too_few_examples_are_refused(run, at_desk):
    lines = (at_desk / "stsb-test.csv").read_text().splitlines(keepends=True)
    (at_desk / "few.csv").write_text("".join(lines[:59]))
    outcome = run(*WITHOUT_DATA, "--data", "few.csv", "--max-drop", "0.5")
    refused(outcome, "gives 59 examples, and max_drop needs 60")
