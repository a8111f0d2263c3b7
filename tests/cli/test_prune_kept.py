"""The model that ``prune`` keeps: the commands as help and docs show them, and what is on disk."""

import dataclasses
import itertools
import json
import random
import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from measuring import measured
from outcomes import refused
from safetensors.torch import load_file, save_file
from tiny_models import tiny_bert

import headscope
from headscope import classify
from headscope.artefacts.saving import write_model
from headscope.core.files import sha256_of_file
from headscope.core.serialise import to_json
from headscope.data.examples import sample_texts
from headscope.models.run.loaded import LoadedModel
from headscope.pruning.options import PruneOptions
from headscope.pruning.sources import open_sources
from headscope.tasks import calibration
from headscope.tasks.making import make_task

PARTS = "headscope.pruning"
PAIRS = [
    ("the cat sat on the mat", "the big cat sat", 4.0),
    ("a dog ran", "the dog ran to the house", 3.5),
    ("he saw it", "she was in the house", 0.5),
    ("the red house is big", "the dogs ran", 0.0),
    ("it was red", "it is red", 4.5),
    ("she sat", "a mat", 1.0),
    ("on the house he sat", "he sat on it", 3.0),
    ("the mat is red", "a big dog saw the cat", 0.8),
]


#: In commands that others run: seq2seq and heads by hand (tests/cli/test_prune.py), roles (below),
#: and a curve of more points.
OTHERS = ("--keep-roles", "--heads", "seq2seq", "lm", "--step")


def shown() -> list[str]:
    """Every command of the help and of the page's first block that differs by more than names."""
    text = (Path(__file__).parents[2] / "docs" / "prune.md").read_text(encoding="utf-8")
    page = re.search(r"^```sh\n(.*?)^```$", text, re.M | re.S)
    assert page is not None
    lines = [line.partition(" #")[0].strip() for line in page[1].splitlines()]
    commands: dict[object, str] = {}
    names = {"--save", "smaller", "small", "-o", "out/", "--calibration"}
    for command in (*PruneOptions.examples, *lines):
        words = [word for word in shlex.split(command) if not word.endswith((".tsv", ".csv"))]
        if not {*words} & {*OTHERS}:
            commands[frozenset(words) - names] = command
    return list(commands.values())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in place of the demo, and tiny ones of the names that examples use."""
    folder = tmp_path_factory.mktemp("kept")
    tiny_bert(folder / "demo", seed=3)
    tiny_bert(folder / "my-sst2", seed=3, task_head="classification")
    tiny_bert(folder / "my-mlm", seed=4, task_head="mlm")
    return folder


@pytest.fixture
def desk(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with everything that the examples name.

    The words of a command stay as they are; ``demo`` is small and random here, the built-in sample
    24 sentences. The real demo model is in tests/real.
    """
    for name in ("my-sst2", "my-mlm"):
        (tmp_path / name).symlink_to(models / name)
    for split, ending in (("test", ""), ("train", " was it")):
        pairs = "".join(f"{a}{ending},{b}{ending},{score}\n" for a, b, score in PAIRS)
        for name in (f"stsb-{split}.csv", f"{split}.csv"):
            (tmp_path / name).write_text(pairs, encoding="utf-8")
        classes = "".join(f"{a}{ending}\t{i % 2}\n" for i, (a, _, _) in enumerate(PAIRS))
        (tmp_path / f"{split}.tsv").write_text(classes, encoding="utf-8")
    (tmp_path / "scifact" / "qrels").mkdir(parents=True)
    for name, texts in (
        ("queries", [b for _, b, _ in PAIRS]),
        ("corpus", [a for a, _, _ in PAIRS]),
    ):
        rows = [{"_id": str(i), "title": "", "text": text} for i, text in enumerate(texts)]
        path = tmp_path / "scifact" / f"{name}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    judged = "".join(f"{i}\t{i}\t1\n" for i in range(len(PAIRS)))
    (tmp_path / "scifact" / "qrels" / "test.tsv").write_text(
        f"query-id\tcorpus-id\tscore\n{judged}"
    )
    monkeypatch.setattr("headscope.models.load.source.demo_folder", lambda: models / "demo")
    sha256 = sha256_of_file(models / "demo" / "model.safetensors")
    monkeypatch.setattr("headscope.models.load.source.WEIGHTS_SHA256", sha256)
    monkeypatch.setattr(f"{PARTS}.sources.sample_texts", lambda: sample_texts(24))
    read = calibration.read_texts
    monkeypatch.setattr(
        calibration, "read_texts", lambda source: read(source) if source else sample_texts(24)
    )
    monkeypatch.setattr(f"{PARTS}.run.classify", partial(classify, limit=16))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def point_of(result: dict[str, Any], method: str, repair: str) -> dict[str, Any]:
    """The last point of a curve of a result."""
    (curve,) = [c for c in result["curves"] if (c["method"], c["repair"]) == (method, repair)]
    point: dict[str, Any] = curve["points"][-1]
    return point


def check_folder(result: dict[str, Any]) -> None:
    """What is on disk is the kept curve's model: its heads, and its value measured again."""
    saved = result["saved"]
    kept_model = result["kept"]
    point = point_of(result, kept_model["method"], kept_model["repair"])
    assert kept_model["method"] != "random"
    assert saved["heads_removed"] == point["heads_removed"]
    assert kept_model["value"] == point["value"]["value"]
    assert saved["measured"] == pytest.approx(point["value"]["value"], abs=1e-4)
    manifest = json.loads((Path(saved["folder"]) / "headscope.json").read_text())
    assert (manifest["method"], manifest["repair"]) == (kept_model["method"], kept_model["repair"])
    removed: list[list[int]] = []
    for entry in manifest["attention"]:
        removed += map(list, itertools.product(entry["layers"], entry["removed"]))
    assert sorted(removed) == point["heads_removed"]
    small = headscope.load(saved["folder"], task_head="auto")
    remaining: list[list[int]] = []
    for site in small.sites:
        remaining += [[site.layer, head] for head in site.head_ids]
    assert len(remaining) + len(removed) == result["n_heads"]
    assert not [head for head in remaining if head in point["heads_removed"]]
    # Measured on the data of the result, as a script of the user's would.
    full = headscope.load(result["provenance"]["model"]["id"], task_head="auto")
    data = result["data"]["name"]
    if data.startswith("built-in"):
        half = open_sources("fidelity", None, None, limit=None, calibration_limit=1024, seed=0)
        task = make_task("fidelity", half.data, full)
        value = task.value(task.outputs(small))
    else:
        value = measured(small, result["task"], data, reference=full).value.value
    assert value == pytest.approx(point["value"]["value"], abs=1e-4)


@pytest.mark.parametrize("command", shown())
def test_what_is_shown_runs_and_saves_the_model_that_is_named(run, desk, command):
    saving = "--save" in command
    folder = ("-o", "out") if saving else ()
    outcome = run(*shlex.split(command)[1:], *folder)
    assert outcome.code == 0, outcome.stderr
    if not saving:
        return
    result = json.loads((desk / "out" / "prune.json").read_text())
    saved = result["saved"]
    assert saved["folder"] == re.search(r"--save (\S+)", command)[1]
    check_folder(result)
    speed = result["speed"]
    full = n_parameters(headscope.load(shlex.split(command)[2]))
    small = n_parameters(headscope.load(saved["folder"]))
    assert speed["parameters_full"] - speed["parameters_pruned"] == full - small > 0


def n_parameters(model: LoadedModel) -> int:
    return sum(parameter.numel() for parameter in model.network.parameters())


SIMILAR = (
    "--task",
    "similarity",
    "--data",
    "stsb-test.csv",
    "--calibration",
    "stsb-train.csv",
    "--format",
    "json",
)
SAVE = ("--fraction", "0.5", "--save", "small")


def test_of_several_the_best_on_the_calibration_data_is_kept(run, desk):
    methods: list[str] = []
    for method in ("random", "magnitude", "fisher", "ablation"):
        methods += ["--method", method]
    result = run("prune", "demo", *SIMILAR, *methods, "--repair", "none", *SAVE).json
    candidates = result["kept"]["candidates"]
    assert [c["method"] for c in candidates] == ["magnitude", "fisher", "ablation"]
    for candidate in candidates:
        heads = point_of(result, candidate["method"], "none")["heads_removed"]
        without = ",".join(f"L{x}H{y}" for x, y in heads)
        there = measured("demo", "similarity", "stsb-train.csv", without=without)
        assert candidate["value"] == pytest.approx(there.value.value, abs=1e-6)
    best = max(candidates, key=lambda c: c["value"])
    assert result["kept"]["method"] == best["method"]
    check_folder(result)


def test_the_lowest_loss_is_the_best(run, desk):
    for k, name in enumerate(("a.txt", "b.txt")):
        (desk / name).write_text("\n".join(pair[k] for pair in PAIRS * 9), encoding="utf-8")
    data = ("--task", "mlm", "--data", "a.txt", "--calibration", "b.txt")
    methods = ("--method", "magnitude", "--method", "fisher", "--format", "json")
    result = run("prune", "my-mlm", *data, *methods, *SAVE).json
    assert result["higher_is_better"] is False
    values = [c["value"] for c in result["kept"]["candidates"]]
    assert len(set(values)) > 1
    best = result["kept"]["candidates"][values.index(min(values))]
    assert (result["kept"]["method"], result["kept"]["repair"]) == (best["method"], best["repair"])
    check_folder(result)


def test_heads_kept_by_role_are_saved_and_not_the_random_ones_beside_them(run, desk):
    classified = classify("demo", limit=16)
    roles = {0: (), 1: ("rare",)}
    heads = tuple(dataclasses.replace(h, roles=roles.get(h.head, ())) for h in classified.heads)
    text = to_json(dataclasses.replace(classified, heads=heads))
    (desk / "classify.json").write_text(text, encoding="utf-8")
    roles = ("--keep-roles", "rare", "--roles", "classify.json", "--save", "small")
    result = run("prune", "demo", "--data", "stsb-test.csv", *roles, "--format", "json").json
    assert [c["method"] for c in result["curves"]] == ["manual", "random"]
    assert all(head != 1 for _, head in result["saved"]["heads_removed"])
    check_folder(result)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--method", "random", "--fraction", "0.5", "--fraction", "0.25"], "control"),
        (["--fraction", "0.5", "--fraction", "0.25"], "one fraction"),
        (["--fraction", "0.01"], "so small"),
        (["--fraction", "0.99"], "so large"),
    ],
)
def test_what_names_no_single_model_is_refused(run, desk, arguments, says):
    code = 1 if says.startswith("so ") else 2  # how many heads that is, the model says
    refused(run("prune", "demo", *SIMILAR, *arguments, "--save", "small"), says, code=code)
    assert not (desk / "small").exists()


def spoil(
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Any], Any],
    *,
    which: str = "attention.output.dense.weight",
) -> None:
    """Let the weights of W_O, or others, change on their way to the disk."""

    def spoiled(loaded: Any, folder: Path, *args: Any, **kwargs: Any) -> str:
        opens = write_model(loaded, folder, *args, **kwargs)
        weights = load_file(folder / "model.safetensors")
        for name in weights:
            if name.endswith(which):
                weights[name] = change(weights[name])
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return opens

    monkeypatch.setattr(f"{PARTS}.keep.write_model", spoiled)


BY_HAND = ("prune", "demo", *SIMILAR, "--no-validate", "--heads", "L0H1,L1H3")


def test_a_folder_that_cannot_be_saved_or_holds_another_model_is_refused(run, desk, monkeypatch):
    """What was there stays, and the numbers are kept."""
    assert run(*BY_HAND, "--save", "small").code == 0
    before = (desk / "small" / "model.safetensors").read_bytes()

    def full_disk(*args: Any, **kwargs: Any) -> str:
        raise OSError(28, "No space left on device")

    for says in ("puts out something else", "the disk is full"):
        if says == "the disk is full":
            monkeypatch.setattr(f"{PARTS}.keep.write_model", full_disk)
        else:
            spoil(monkeypatch, lambda weight: weight * 3.0)
        outcome = run(*BY_HAND, "--save", "small", "-o", "out")
        assert outcome.code == 1
        assert says in outcome.stderr
        assert len(outcome.stderr.strip().splitlines()) == 1
        result = json.loads(outcome.stdout)
        assert json.loads((desk / "out" / "prune.json").read_text()) == result
        assert (result["saved"], result["kept"]["method"]) == (None, "manual")
        assert point_of(result, "manual", "none")["heads_removed"] == [[0, 1], [1, 3]]
        assert (desk / "small" / "model.safetensors").read_bytes() == before
        assert {path.name for path in desk.iterdir() if path.name.startswith(".")} == set()


def test_near_ties_that_swap_are_no_reason_to_refuse(run, desk, monkeypatch):
    """Without positions, sentences whose words change places embed alike: there is no order.

    Positions of the size that a float32 may be off by give one, whichever, and the correlation with
    gold jumps by far more than any output changed.
    """
    loaded = headscope.load("demo")
    with torch.no_grad():
        loaded.model.embeddings.position_embeddings.weight.zero_()
    loaded.network.save_pretrained(desk / "bag")
    loaded.tokenizer.save_pretrained(desk / "bag")
    words = ["the", "cat", "sat", "on", "a", "mat", "and", "it", "was", "red"]
    text = ""
    for i in range(12):
        draw = random.Random(i)
        first = draw.sample(words, 6)
        second = draw.sample(words, 4)
        for gold in (0.0, 5.0):
            text += f"{' '.join(draw.sample(first, 6))},{' '.join(second)},{gold + i / 12}\n"
    (desk / "ties.csv").write_text(text, encoding="utf-8")
    noise = torch.Generator().manual_seed(0)

    def off(weight: torch.Tensor) -> torch.Tensor:
        return weight + 3e-6 * torch.randn(weight.shape, generator=noise)

    spoil(monkeypatch, off, which="position_embeddings.weight")
    call = ("prune", "bag", "--task", "similarity", "--data", "ties.csv", "--heads", "L0H1")
    more = ("--no-validate", "--save", "small", "--format", "json")
    result = run(*call, *more).json
    saved = result["saved"]
    assert abs(saved["measured"] - result["kept"]["value"]) > 1e-3, "no near-tie swapped"
    assert saved["max_difference"] < 1e-4


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--save", "a", "-o", "a/results"), "lies in, the one that the model is"),
        (("--save", "stsb-test.csv/small"), "cannot be made"),
    ],
)
def test_what_could_not_be_written_at_the_end_is_refused_before_the_run(
    run, desk, monkeypatch, more, says
):
    monkeypatch.setattr(f"{PARTS}.run.run_curves", None)  # nothing is measured
    before = {path.name for path in desk.iterdir()}
    refused(run(*BY_HAND, *more), says, code=2 if "-o" in more else 1)
    assert {path.name for path in desk.iterdir()} == before


def test_half_precision_is_measured_as_it_is_saved(run, desk):
    data = ("--data", "stsb-test.csv", "--calibration", "stsb-train.csv", "--dtype", "bfloat16")
    more = ("--no-validate", "--format", "json")
    result = run("prune", "demo", *data, *more, *SAVE).json
    assert result["saved"]["measured"] == pytest.approx(result["kept"]["value"], abs=1e-4)
