"""The model that ``prune`` keeps: the commands as help and docs show them, and what is on disk."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import shlex
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from tiny_models import tiny_bert, write_translator

import headscope
from headscope.cli.prune import EXAMPLES
from headscope.data.examples import sample_texts
from headscope.errors import ArtefactError
from headscope.models.saving import write_model
from headscope.pipeline.classify import classify
from headscope.pipeline.prune import PruneOptions
from headscope.pipeline.prune.sources import open_sources
from headscope.pipeline.prune.speed import benchmark
from headscope.results import PruneResult, to_json

Run = Callable[..., Any]
DOCS = Path(__file__).parents[2] / "docs" / "prune.md"
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


def shown() -> list[str]:
    """Every command of the help's examples and of the page's first block."""
    page = re.search(r"^```sh\n(.*?)^```$", DOCS.read_text(encoding="utf-8"), re.M | re.S)
    assert page is not None
    lines = [line.partition(" #")[0].strip() for line in page[1].splitlines()]
    commands = [*re.findall(r"`(headscope prune .*?)`", EXAMPLES), *lines]
    return list(dict.fromkeys(commands))


SHOWN = shown()
SAVING = [command for command in SHOWN if "--save" in command]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in place of the demo, and tiny ones of the names that examples use."""
    folder = tmp_path_factory.mktemp("kept")
    for name, head in (("demo", None), ("my-bert", None), ("my-sst2", "classification")):
        tiny_bert(folder / name, layers=4, heads=4, seed=3, task_head=head)
    tiny_bert(folder / "my-mlm", layers=2, heads=4, seed=4, task_head="mlm")
    write_translator(folder / "my-marian")
    return folder


@pytest.fixture
def desk(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with everything that the examples name.

    The words of a command stay as they are; ``demo`` is small and random here, the built-in sample
    48 sentences, and a benchmark one short shape. The real demo model is in tests/real.
    """
    for name in ("my-bert", "my-sst2", "my-mlm", "my-marian", "pairs.tsv", "others.tsv"):
        (tmp_path / name).symlink_to(models / name)
    for name, other in (("a.tsv", "pairs.tsv"), ("b.tsv", "others.tsv")):
        (tmp_path / name).symlink_to(models / other)
    for name, end in (
        *(("stsb-test.csv", ""), ("stsb-train.csv", " was it")),
        *(("test.csv", ""), ("train.csv", " was it")),
    ):
        text = "".join(f"{a}{end},{b}{end},{score}\n" for a, b, score in PAIRS)
        (tmp_path / name).write_text(text, encoding="utf-8")
    for name, end in (("test.tsv", ""), ("train.tsv", " was it")):
        text = "".join(f"{a}{end}\t{i % 2}\n" for i, (a, _, _) in enumerate(PAIRS))
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr("headscope.models.source.demo_folder", lambda: models / "demo")
    parts = "headscope.pipeline.prune"
    monkeypatch.setattr(f"{parts}.sources.sample_texts", lambda: sample_texts(48))
    monkeypatch.setattr(f"{parts}.run.classify", partial(classify, limit=48))
    monkeypatch.setattr(
        f"{parts}.keeping.benchmark", partial(benchmark, lengths=(8,), batch_sizes=(1,))
    )
    monkeypatch.setattr(f"{parts}.speed._SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(command: str) -> list[str]:
    return shlex.split(command)[1:]


def point_of(result: dict[str, Any], method: str, repair: str) -> dict[str, Any]:
    """The last point of a curve of a result."""
    (curve,) = (c for c in result["curves"] if (c["method"], c["repair"]) == (method, repair))
    found: dict[str, Any] = curve["points"][-1]
    return found


def check_folder(result: dict[str, Any], saved: dict[str, Any]) -> None:
    """What is on disk is the named curve's model: its heads, and its value measured again."""
    point = point_of(result, saved["method"], saved["repair"])
    assert saved["method"] != "random"
    assert saved["heads_removed"] == point["heads_removed"]
    assert saved["value"] == point["value"]
    assert saved["measured"] == pytest.approx(point["value"], abs=1e-4)
    manifest = json.loads((Path(saved["folder"]) / "headscope.json").read_text())
    assert (manifest["method"], manifest["repair"]) == (saved["method"], saved["repair"])
    removed = [
        [layer, head]
        for entry in manifest["attention"]
        for layer in entry["layers"]
        for head in entry["removed"]
    ]
    assert sorted(removed) == point["heads_removed"]
    check_card(result, saved)
    small = headscope.load(saved["folder"], task_head="auto")
    if saved["form"] == "compact":
        kept = [[site.layer, head] for site in small.sites for head in site.head_ids]
        assert len(kept) + len(removed) == result["n_heads"]
        assert not [head for head in kept if head in point["heads_removed"]]
    assert value_of(result, small) == pytest.approx(point["value"], abs=1e-4)


def check_card(result: dict[str, Any], saved: dict[str, Any]) -> None:
    """The hub's own reader finds the measured value, the heads, the speed and the command."""
    card = ModelCard.load(Path(saved["folder"]) / "README.md")
    (entry,) = card.data.to_dict()["model-index"]
    (metric,) = entry["results"][0]["metrics"]
    assert metric["value"] == pytest.approx(saved["value"], abs=1e-6)
    assert metric["args"]["examples"] == result["data"]["examples"]
    assert (entry["results"][0]["dataset"]["name"]) == Path(result["data"]["name"]).name
    removed = card.text.partition("## Heads removed")[2].partition("\n## ")[0]
    assert len(re.findall(r"\bH\d+", removed)) == len(saved["heads_removed"])
    assert re.search(r"\| \d+ x \d+ \| torch \|( [\d.]+ \|){4}", card.text)
    assert f"repair `{saved['repair']}`" in card.text
    assert result["provenance"]["command"] in card.text


def value_of(result: dict[str, Any], small: Any) -> float:
    """Measure a loaded model on the data of a result, as a script of the user's would."""
    source = result["provenance"]["model"]["id"]
    full = headscope.load(source, task_head="auto")
    if result["data"]["name"].startswith("built-in"):
        task = open_sources(PruneOptions()).evaluation_for(full)
        return task.value(task.outputs(small))
    data = result["data"]["name"]
    return headscope.measure(small, result["task"], data, reference=full).value


def test_help_and_docs_show_saving_with_and_without_a_method() -> None:
    assert "headscope prune demo --fraction 0.5 --save smaller" in SAVING
    assert any("--method" in command for command in SAVING)
    assert any("--heads" in command for command in SAVING)


@pytest.mark.parametrize("command", [c for c in SHOWN if "--keep-roles" not in c])
def test_what_is_shown_runs_as_it_stands(run: Run, desk: Path, command: str) -> None:
    found = run(*words(command))
    assert found.code == 0, found.stderr
    if command in SAVING:
        folder = re.search(r"--save (\S+)", command)
        assert folder is not None
        assert "Loaded again and measured" in " ".join(found.stdout.split())
        assert sum(site.n_heads for site in headscope.load(folder[1]).sites) < 16


@pytest.mark.parametrize("command", SAVING)
def test_the_saved_folder_is_the_model_that_is_named(run: Run, desk: Path, command: str) -> None:
    found = run(*words(command), "--save-dense", "dense", "--format", "json")
    assert found.code == 0, found.stderr
    result = json.loads(found.stdout)
    kept = result["kept"]
    assert kept["value"] == point_of(result, kept["method"], kept["repair"])["value"]
    assert [saved["form"] for saved in result["saved"]] == ["compact", "dense"]
    for saved in result["saved"]:
        assert (saved["method"], saved["repair"]) == (kept["method"], kept["repair"])
        check_folder(result, saved)
    if "--benchmark" in command:
        left = result["n_heads"] - len(result["saved"][0]["heads_removed"])
        assert result["speed"]["heads_pruned"] == left


SIMILAR = (
    "--task",
    "similarity",
    "--data",
    "stsb-test.csv",
    "--calibration",
    "stsb-train.csv",
    "--no-roles",
    "--format",
    "json",
)


def test_of_several_the_best_on_the_calibration_data_is_kept(run: Run, desk: Path) -> None:
    methods = [w for m in ("random", "magnitude", "fisher", "ablation") for w in ("--method", m)]
    found = run(
        "prune",
        "demo",
        *SIMILAR,
        *methods,
        "--repair",
        "none",
        "--fraction",
        "0.5",
        "--save",
        "small",
    )
    assert found.code == 0, found.stderr
    result = json.loads(found.stdout)
    candidates = result["kept"]["candidates"]
    assert [c["method"] for c in candidates] == ["magnitude", "fisher", "ablation"]
    for candidate in candidates:
        heads = point_of(result, candidate["method"], "none")["heads_removed"]
        there = headscope.measure(
            "demo", "similarity", "stsb-train.csv", without=",".join(f"L{x}H{y}" for x, y in heads)
        )
        assert candidate["value"] == pytest.approx(there.value, abs=1e-6)
    best = max(candidates, key=lambda c: c["value"])
    assert result["kept"]["method"] == best["method"]
    check_folder(result, result["saved"][0])


def test_the_lowest_loss_is_the_best(run: Run, desk: Path) -> None:
    (desk / "a.txt").write_text("\n".join(a for a, _, _ in PAIRS * 9), encoding="utf-8")
    (desk / "b.txt").write_text("\n".join(b for _, b, _ in PAIRS * 9), encoding="utf-8")
    found = run(
        "prune",
        "my-mlm",
        "--task",
        "mlm",
        "--data",
        "a.txt",
        "--calibration",
        "b.txt",
        "--fraction",
        "0.5",
        "--method",
        "magnitude",
        "--method",
        "fisher",
        "--save",
        "small",
        "--no-roles",
        "--format",
        "json",
    )
    assert found.code == 0, found.stderr
    result = json.loads(found.stdout)
    assert result["higher_is_better"] is False
    values = [c["value"] for c in result["kept"]["candidates"]]
    assert len(set(values)) > 1
    best = result["kept"]["candidates"][values.index(min(values))]
    assert (result["kept"]["method"], result["kept"]["repair"]) == (best["method"], best["repair"])
    check_folder(result, result["saved"][0])


def test_heads_kept_by_role_are_saved_and_not_the_random_ones_beside_them(
    run: Run, desk: Path
) -> None:
    found = classify("demo", limit=48)
    heads = (
        dataclasses.replace(head, roles=("rare",) if head.head == 1 else ()) for head in found.heads
    )
    text = to_json(dataclasses.replace(found, heads=tuple(heads)))
    (desk / "classify.json").write_text(text, encoding="utf-8")
    found = run(
        "prune",
        "demo",
        "--data",
        "stsb-test.csv",
        "--keep-roles",
        "rare",
        "--roles",
        "classify.json",
        "--save",
        "small",
        "--format",
        "json",
    )
    assert found.code == 0, found.stderr
    result = json.loads(found.stdout)
    assert [c["method"] for c in result["curves"]] == ["manual", "random"]
    assert all(head != 1 for _, head in result["saved"][0]["heads_removed"])
    check_folder(result, result["saved"][0])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--method", "random", "--fraction", "0.5"], "control"),
        (["--method", "random", "--fraction", "0.5", "--fraction", "0.25"], "control"),
        (["--fraction", "0.5", "--fraction", "0.25"], "one fraction"),
        ([], "one fraction"),
        (["--fraction", "0"], "removes nothing"),
        (["--fraction", "0.01"], "so small"),
        (["--fraction", "0.99"], "so large"),
    ],
)
def test_what_names_no_single_model_is_refused(
    run: Run, desk: Path, arguments: list[str], says: str
) -> None:
    for save in (["--save", "small"], ["--save-dense", "small"], ["--benchmark"]):
        found = run("prune", "demo", *SIMILAR, *arguments, *save)
        assert found.code == 1
        assert says in found.stderr
        assert len(found.stderr.strip().splitlines()) == 1
        assert not (desk / "small").exists()


def spoil(
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Any], Any],
    *,
    which: str = "attention.output.dense.weight",
    from_call: int = 1,
) -> None:
    """Let the weights of W_O, or others, change on their way to the disk, from some folder on."""
    calls = count(1)

    def spoiled(loaded: Any, room: Path, *args: Any, **kwargs: Any) -> str:
        opens = write_model(loaded, room, *args, **kwargs)
        if next(calls) >= from_call:
            weights = load_file(room / "model.safetensors")
            for name in weights:
                if name.endswith(which):
                    weights[name] = change(weights[name])
            save_file(weights, room / "model.safetensors", metadata={"format": "pt"})
        return opens

    monkeypatch.setattr("headscope.pipeline.prune.keeping.write_model", spoiled)


BY_HAND = ("prune", "demo", *SIMILAR, "--no-validate", "--heads", "L0H1,L2H3")


def test_a_folder_that_would_hold_another_model_is_refused_before_the_run(
    run: Run, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(*BY_HAND, "--save", "small").code == 0
    before = (desk / "small" / "model.safetensors").read_bytes()
    spoil(monkeypatch, lambda weight: weight * 3.0)
    found = run(*BY_HAND, "--save", "small")
    assert (found.code, found.stdout) == (1, "")
    assert "puts out something else" in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
    assert (desk / "small" / "model.safetensors").read_bytes() == before


def test_a_folder_that_fails_at_the_end_takes_nothing_else_with_it(
    run: Run, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two folders are tried and one is written; what stands in the fourth is another model."""
    assert run(*BY_HAND, "--save-dense", "two").code == 0
    before = (desk / "two" / "model.safetensors").read_bytes()
    spoil(monkeypatch, lambda weight: weight * 3.0, from_call=4)
    found = run(*BY_HAND, "--save", "one", "--save-dense", "two", "-o", "out")
    assert found.code == 1
    assert "save_dense could not be made" in found.stderr
    assert "puts out something else" in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
    result = json.loads(found.stdout)
    assert json.loads((desk / "out" / "prune.json").read_text()) == result
    assert [saved["folder"] for saved in result["saved"]] == ["one"]
    check_folder(result, result["saved"][0])
    (failed,) = result["failed"]
    assert (failed["option"], failed["folder"]) == ("save_dense", "two")
    assert (desk / "two" / "model.safetensors").read_bytes() == before
    assert {path.name for path in desk.iterdir() if path.name.startswith(".")} == set()


def test_whatever_a_folder_fails_of_the_numbers_are_kept(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count(1)

    def full_disk(*args: Any, **kwargs: Any) -> str:
        if next(calls) == 2:
            raise OSError(28, "No space left on device")
        return write_model(*args, **kwargs)

    monkeypatch.setattr("headscope.pipeline.prune.keeping.write_model", full_disk)
    with pytest.raises(ArtefactError, match="No space left") as failed:
        headscope.prune("demo", heads="L0H1", limit=8, roles=False, validate=False, save="small")
    found = failed.value.result
    assert isinstance(found, PruneResult)
    assert found.curves[0].points[0].heads_removed == ((0, 1),)
    assert found.saved == ()
    assert not (desk / "small").exists()


def test_near_ties_that_swap_are_no_reason_to_refuse(
    run: Run, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without positions, sentences whose words change places embed alike: there is no order.

    Positions of the size that a float32 may be off by give one, whichever, and the correlation with
    gold jumps by far more than any output changed.
    """
    loaded = headscope.load("demo")
    with torch.no_grad():
        loaded.model.embeddings.position_embeddings.weight.zero_()
    loaded.network.save_pretrained(desk / "bag")
    loaded.tokenizer.save_pretrained(desk / "bag")
    words, text = ["the", "cat", "sat", "on", "a", "mat", "and", "it", "was", "red"], ""
    for i in range(12):
        draw = random.Random(i)
        first, second = draw.sample(words, 6), draw.sample(words, 4)
        for gold in (0.0, 5.0):
            text += f"{' '.join(draw.sample(first, 6))},{' '.join(second)},{gold + i / 12}\n"
    (desk / "ties.csv").write_text(text, encoding="utf-8")
    noise = torch.Generator().manual_seed(0)

    def off(weight: torch.Tensor) -> torch.Tensor:
        return weight + 1e-6 * torch.randn(weight.shape, generator=noise)

    spoil(monkeypatch, off, which="position_embeddings.weight")
    found = run(
        *("prune", "bag", "--task", "similarity", "--data", "ties.csv", "--heads", "L0H1"),
        *("--no-roles", "--no-validate", "--save", "small", "--format", "json"),
    )
    assert found.code == 0, found.stderr
    (saved,) = json.loads(found.stdout)["saved"]
    assert abs(saved["measured"] - saved["value"]) > 1e-3, "no near-tie swapped"
    assert saved["max_difference"] < 1e-4


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--save", "a", "--save-dense", "a/b"), "lies inside another folder"),
        (("--save", "out", "-o", "out"), "is, or lies in, one that a model is saved in"),
        (("--save", "a", "-o", "a/results"), "is, or lies in, one that a model is saved in"),
        (("--save", "stsb-test.csv/small"), "cannot be made"),
        (("--save", "full-disk"), "make room"),
    ],
)
def test_what_could_not_be_written_at_the_end_is_refused_before_the_run(
    run: Run, desk: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], says: str
) -> None:
    monkeypatch.setattr("headscope.pipeline.prune.run.run", None)  # nothing is measured
    if "full-disk" in more:
        full = SimpleNamespace(free=100)
        monkeypatch.setattr("headscope.pipeline.prune.keeping.shutil.disk_usage", lambda _: full)
    before = {path.name for path in desk.iterdir()}
    found = run(*BY_HAND, *more)
    assert (found.code, found.stdout) == (1, "")
    assert says in found.stderr
    assert {path.name for path in desk.iterdir()} == before


def test_half_precision_is_measured_as_it_is_saved(run: Run, desk: Path) -> None:
    found = run(
        "prune",
        "demo",
        "--data",
        "stsb-test.csv",
        "--calibration",
        "stsb-train.csv",
        "--fraction",
        "0.5",
        "--dtype",
        "bfloat16",
        "--no-roles",
        "--save",
        "small",
        "--no-validate",
        "--format",
        "json",
    )
    assert found.code == 0, found.stderr
    (saved,) = json.loads(found.stdout)["saved"]
    assert saved["measured"] == pytest.approx(saved["value"], abs=1e-4)
