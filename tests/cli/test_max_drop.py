"""``--max-drop`` and ``--even`` as the docs show them, on models whose idle heads are planted."""

import json
import random
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from outcomes import refused
from tiny_models import tiny_bert
from torch.nn.functional import normalize

import headscope
from headscope.core.files import sha256_of_file
from headscope.core.serialise import from_dict, to_dict
from headscope.removal.metric_words import change_words, number
from headscope.pruning.options import PruneOptions
from headscope.pruning.result import PruneResult
from headscope.pruning.view import blocks, verdict
from headscope.reports.facts import facts_of
from headscope.reports.reading import Results
from headscope.show.blocks import Text

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
                part = site.projections.out.weight.split(site.d_head, dim=1)[head]
                part *= 0.0 if (site.layer, head) in IDLE else 8.0
        loaded.network.save_pretrained(folder / "demo")
        loaded.tokenizer.save_pretrained(folder / "demo")
        for name, seed in (("stsb-test.csv", 1), ("stsb-train.csv", 2)):
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
    monkeypatch.setattr("headscope.models.source.demo_folder", lambda: desk / "demo")
    sha256 = sha256_of_file(desk / "demo" / "model.safetensors")
    monkeypatch.setattr("headscope.models.source.WEIGHTS_SHA256", sha256)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_of_the_docs_removes_what_does_nothing(run, at_desk):
    page = (Path(__file__).parents[2] / "docs" / "prune.md").read_text(encoding="utf-8")
    text = page.split("## How many heads for at most half a point\n")[1].split("\n## ")[0]
    lines = re.findall(r"^headscope prune .*", text, re.M)
    shown = next(line for line in lines if "--save" in line and "--even" not in line)
    command = shown.partition(" #")[0]
    assert "--max-drop 0.5" in command
    result = run(*shlex.split(command)[1:], "--no-roles", "--no-validate", "--format", "json").json
    assert {(layer, head) for layer, head in result["saved"][0]["heads_removed"]} == IDLE
    most = result["max_drop"]
    assert (most["count"], most["wanted"]) == (len(IDLE), 0.5)
    assert (most["confirmed"]["examples"], most["left_out"]) == (80, 0)
    assert most["confirmed"]["difference"] == pytest.approx(0.0, abs=1e-6)
    assert most["sequence"] == list(range(1, 16))
    assert [look["heads"] for look in most["looks"]] == list(range(1, len(IDLE) + 2))
    assert (most["method"], most["repair"], most["near"]) == ("surgeon", "surgeon", [])
    assert most["one_more"]["heads"] == len(IDLE) + 1
    assert most["one_more"]["difference"] < -0.5
    assert most["one_more"]["step"] == pytest.approx(most["one_more"]["difference"], abs=1e-6)
    # What stands on disk is the model of the curve's last point.
    (curve,) = (c for c in result["curves"] if c["method"] != "random")
    assert [len(p["heads_removed"]) for p in curve["points"]] == [0, len(IDLE)]
    saved = result["saved"][0]
    assert saved["measured"] == pytest.approx(curve["points"][1]["value"], abs=1e-4)
    small = headscope.load(saved["folder"])
    kept = {(site.layer, head) for site in small.sites for head in site.head_ids}
    assert kept == {(layer, head) for layer in range(4) for head in range(4)} - IDLE
    # The card and its header say of these examples what the JSON and the terminal say.
    card = ModelCard.load(Path(saved["folder"]) / "README.md")
    part = most["confirmed"]
    (entry,) = card.data.to_dict()["model-index"]
    (metric,) = entry["results"][0]["metrics"]
    said = metric["args"]
    assert metric["value"] == pytest.approx(part["value"], abs=5.1e-5)
    assert (said["examples"], said["max_drop"]) == (part["examples"], 0.5)
    assert said["full_model"] == pytest.approx(part["baseline"], abs=5.1e-5)
    assert said["difference"] == pytest.approx(part["difference"], abs=5.1e-5)
    # Heads that do nothing leave every ranking as it is: there is no interval to be put down.
    assert said.get("difference_interval") == (part["ci"] and pytest.approx(part["ci"], abs=5.1e-5))
    assert result["kept"]["value"] == saved["value"] == part["value"]
    assert f"| this model | {number(part['value'], 'spearman')} |" in card.text
    most_lost = change_words("spearman", part["difference"], part["ci"])
    for sentence in (card.text, verdict(from_dict(PruneResult, result))):
        assert most_lost in sentence
        assert "confirmed to cost at most 0.50 points" in sentence
        assert "each on all 80 examples, up to the first refusal: 6 heads" in sentence


def test_even_takes_one_idle_head_of_each_layer(desk):
    told: list[tuple[int, int]] = []

    def progress(what: str, done: int, total: int) -> None:
        if what == "seconds":
            told.append((done, total))

    files = {"data": desk / "stsb-test.csv", "calibration": desk / "stsb-train.csv"}
    most = {"max_drop": 0.5, "even": True, "methods": ["fisher-joint"], "repairs": ["none"]}
    few = {"roles": False, "validate": False, "progress": progress}
    result = headscope.prune(str(desk / "demo"), task="similarity", **files, **most, **few)
    most = result.max_drop
    assert (most.per_layer, most.count) == (1, 4)
    point = result.curve(most.method, most.repair).points[1]
    assert Counter(layer for layer, _ in point.heads_removed) == dict.fromkeys(range(4), 1)
    assert set(point.heads_removed) < IDLE
    assert most.one_more.heads == 8
    (price,) = result.even
    assert (price.per_layer, price.heads) == (1, 4)
    assert price.difference == pytest.approx(price.value - price.uneven)
    assert price.difference == pytest.approx(0.0, abs=1e-6)  # four idle heads go either way
    # Something is left until the search ends.
    done, total = zip(*told, strict=True)
    assert list(done) == sorted(done)
    assert all(so_far < in_all for so_far, in_all in told[:-1])
    assert done[-1] == total[-1]
    # The result survives JSON and is shown.
    again = from_dict(PruneResult, json.loads(json.dumps(to_dict(result))))
    assert to_dict(again) == to_dict(result)
    assert (again.max_drop, again.even) == (result.max_drop, result.even)
    text = " ".join(block.text for block in blocks(result) if isinstance(block, Text))
    assert "4 of 16 heads (25%) are confirmed to cost at most 0.50 points" in text
    facts = facts_of(Results("x", prune=result), ["prune"])
    assert facts["prune", "confirmed to cost at most 0.5", "heads removed"].value == 4


PLAIN = (
    *("prune", "demo", "--task", "similarity", "--no-roles", "--no-validate"),
    *("--data", "stsb-test.csv", "--calibration", "stsb-train.csv", "--method", "fisher-joint"),
)


def test_what_even_costs_at_a_fraction(run, at_desk):
    """Half of each layer, beside half of all heads; both measured as anybody would."""
    half = ("--fraction", "0.5", "--repair", "none", "--format", "json")
    result = run(*PLAIN, *half, "--even").json
    (price,) = result["even"]
    (point,) = (p for p in result["curves"][0]["points"] if p["heads_removed"])
    assert Counter(layer for layer, _ in point["heads_removed"]) == dict.fromkeys(range(4), 2)
    assert (price["heads"], price["per_layer"], price["value"]) == (8, 2, point["value"])
    uneven = run(*PLAIN, *half).json["curves"][0]["points"][-1]
    assert price["uneven"] == uneven["value"]
    assert price["difference"] == pytest.approx(point["value"] - uneven["value"])
    assert price["ci"][0] <= price["difference"] <= price["ci"][1]


def test_calibration_pairs_that_are_measured_are_left_out(run, at_desk):
    """Ten evaluation pairs are calibration pairs too: these are not chosen on, and all are tested.

    With one file for both nothing could be chosen on else: then examples are left out of the test.
    """
    (at_desk / "both.csv").write_text(
        (at_desk / "stsb-test.csv").read_text()
        + "".join((at_desk / "stsb-train.csv").read_text().splitlines(keepends=True)[:10])
    )
    few = ("--data", "both.csv", "--max-drop", "0.5", "--repair", "none", "--format", "json")
    result = run(*PLAIN, *few).json
    most = result["max_drop"]
    assert (most["count"], most["left_out"], most["near"]) == (len(IDLE), 0, [])
    assert (result["data"]["examples"], most["confirmed"]["examples"]) == (90, 90)
    assert (result["calibration"]["examples"], result["calibration"]["dropped"]) == (70, 10)
    assert "its 10 examples with such a sentence are left out" in result["warnings"][0]
    same = run(*PLAIN, "--data", "stsb-train.csv", "--max-drop", "0.5")
    refused(same, "Only 0 of the 80 examples")


def test_a_least_fidelity_on_text_without_labels(run, at_desk):
    """The idle heads keep every embedding as it is; one head more does not."""
    (at_desk / "lines.txt").write_text("\n".join([*sentences(5, 90), *sentences(5, 3)]) + "\n")
    text = ("--fidelity-text", "lines.txt", "--repair", "none", "--format", "json")
    result = run(*PLAIN, "--max-drop", "99", *text, "--min-fidelity", "0.9999").json
    most = result["max_drop"]
    assert most["count"] == len(IDLE)
    found = most["fidelity"]
    assert (found["of"], found["sentences"], found["wanted"]) == ("cosine", 90, 0.9999)
    assert found["ci"] is None or found["ci"][0] > 0.9999
    last = most["looks"][-1]
    assert last["most_lost"] < 99
    assert last["least_fidelity"] < 0.9999


def test_a_bound_that_no_head_meets_saves_nothing(run, at_desk):
    arguments = ("--data", "stsb-test.csv", "--calibration", "stsb-train.csv", "--no-roles")
    idle = ",".join(f"L{layer}H{head}" for layer, head in sorted(IDLE))
    assert run("prune", "demo", *arguments, "--heads", idle, "--save", "busy").code == 0
    busy = ("prune", "busy", *arguments, "--repair", "none")
    refused(run(*busy, "--max-drop", "0", "--save", "small"), "No head can go for a loss of at")
    assert not (at_desk / "small").exists()
    # Layers of that model have different numbers of heads.
    refused(run(*busy, "--even", "--fraction", "0.5"), "between 2 and 3 heads")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_drop": -0.1}, "0 or more"),
        ({"max_drop": 0.5, "fractions": [0.5]}, "leave out fractions"),
        ({"max_drop": 0.5, "heads": "L0H0"}, "leave out fractions, step, heads"),
        ({"max_drop": 0.5, "methods": ["random"]}, "Random heads are a control"),
        ({"even": True, "heads": "L0H0"}, "even says how many"),
        ({"fidelity_text": "a.txt", "min_fidelity": 0.9}, "a second condition of max_drop"),
        ({"fidelity_text": "a.txt", "max_drop": 1.0}, "go together"),
    ],
)
def test_what_contradicts_itself_is_refused(options, says):
    with pytest.raises(headscope.core.errors.InputError, match=says):
        PruneOptions(**options)


def test_too_few_examples_are_refused(run, at_desk):
    lines = (at_desk / "stsb-test.csv").read_text().splitlines(keepends=True)
    (at_desk / "few.csv").write_text("".join(lines[:59]))
    found = run(*PLAIN, "--data", "few.csv", "--max-drop", "0.5")
    refused(found, "gives 59 examples, and max_drop needs 60")
