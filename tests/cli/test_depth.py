"""``headscope depth`` on the command line: what it prints and writes, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from tiny_models import tiny_bert

from headscope.cli.app import app

Run = Callable[..., Any]

ROOT = Path(__file__).parents[2]
VARIANTS = {"attention", "attention+ffn", "attention+skip", "full", "full-without-layernorm"}
#: Ten windows of 32 tokens, or a few more, in the tiny models' vocabulary.
LINES = "the big dog saw a red cat on the mat and she ran to the house\n" * 25


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(LINES)
    return path


@pytest.fixture
def measured(run: Run, model: Path, text: Path) -> dict[str, Any]:
    outcome = run("depth", model, "--text", text, "--length", 32, "--format", "json")
    assert (outcome.code, outcome.stderr) == (0, "")
    return parsed(outcome.stdout)


def parsed(text: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in the JSON")

    result: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return result


def refused(outcome: Any, code: int, *words: str) -> None:
    assert outcome.code == code, outcome
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("headscope: ")
    assert outcome.stderr.count("\n") == 1
    for word in words:
        assert word in outcome.stderr, (word, outcome.stderr)


# --- what it tells ------------------------------------------------------------------------------


def test_json_has_every_variant_at_every_point(measured: dict[str, Any]) -> None:
    for curves in (measured, measured["control"]):
        assert set(curves["variants"]) == set(curves["std"]) == VARIANTS
        for name in VARIANTS:
            assert len(curves["variants"][name]) == len(curves["std"][name]) == 3
        embeddings = {curves["variants"][name][0] for name in VARIANTS}
        assert len(embeddings) == 1
        assert {(p["part"], p["way"]) for p in curves["protected"]} == {
            (part, way) for part in ("skip", "ffn", "layernorm") for way in ("removed", "added")
        }
        assert all(p["mean"][0] == 0 for p in curves["protected"])
    assert measured["layer_norm"] == "post"
    assert measured["length"] == 32
    assert 10 <= measured["sequences"] == measured["available"] <= 20
    assert 0 <= measured["decomposition"]["max_abs"] <= measured["decomposition"]["tolerance"]
    assert measured["validation"]["passed"] is True
    assert measured["provenance"]["dtype"] == "float64"
    assert measured["provenance"]["data"]["sha256"]


def test_same_seed_gives_the_same_bytes(run: Run, model: Path, text: Path) -> None:
    def once(seed: int) -> str:
        outcome = run(
            "depth",
            model,
            "--text",
            text,
            "--length",
            32,
            "--format",
            "json",
            "--sequences",
            3,
            "--seed",
            seed,
        )
        return re.sub(r'"created": "[^"]*"', '"created": ""', outcome.stdout)

    first = once(0)
    assert once(0) == first
    other = json.loads(once(1))["control"]["variants"]["full"]
    assert other != json.loads(first)["control"]["variants"]["full"]


def test_report_is_eighty_columns_and_says_the_verdict(run: Run, model: Path, text: Path) -> None:
    outcome = run("depth", model, "--text", text, "--length", 32)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert max(map(len, outcome.stdout.splitlines())) <= 80
    flat = " ".join(outcome.stdout.split())
    assert "Attention alone" in flat
    assert "The full model still has" in flat
    assert "the skip connection" in flat
    assert "post-LN" in flat
    assert "Control: with random weights (seed 0)" in flat


def test_one_window_has_no_spread(run: Run, model: Path, text: Path) -> None:
    common = ("depth", model, "--text", text, "--length", 32, "--sequences", 1, "--no-control")
    result = parsed(run(*common, "--format", "json").stdout)
    assert result["control"] is None
    assert result["sequences"] == 1
    assert all(value is None for value in result["std"]["full"])
    assert all(value is not None for value in result["variants"]["full"])
    shown = run(*common).stdout
    assert "nan" not in shown
    assert "not run" in shown


def test_states_that_overflow_are_null(run: Run, tmp_path: Path, text: Path) -> None:
    """Without LayerNorm the feed-forward network of this model multiplies by 10^16 a layer."""
    from safetensors.torch import load_file, save_file

    folder, out = tiny_bert(tmp_path / "model", layers=5), tmp_path / "out"
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        if name.endswith(("intermediate.dense.weight", "output.dense.weight")):
            weights[name] *= 1.0 if "attention" in name else 1e8
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    common = ("depth", folder, "--text", text, "--length", 32, "--dtype", "float32")
    result = parsed(run(*common, "-o", out, "--log", "--format", "json").stdout)
    assert result["variants"]["full-without-layernorm"][-1] is None
    assert all(value is not None for value in result["variants"]["full"])
    shown = run(*common)
    assert (shown.code, shown.stderr) == (0, "")
    assert "nan" not in shown.stdout
    assert "overflow" in shown.stdout


def test_csv_and_folder(run: Run, model: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = run(
        "depth",
        model,
        "--text",
        text,
        "--length",
        32,
        "--sequences",
        4,
        "--log",
        "-o",
        out,
        "--format",
        "csv",
    )
    assert (outcome.code, outcome.stderr) == (0, "")
    rows = list(csv.DictReader(io.StringIO(outcome.stdout)))
    assert len(rows) == 2 * 6 * 3  # model and control, variants, points
    assert {row["variant"] for row in rows} == VARIANTS | {"attention-without-layernorm"}
    assert sorted(path.name for path in out.iterdir()) == [
        "depth.csv",
        "depth.json",
        "depth.png",
        "depth.svg",
        "protected.csv",
        "protected.png",
        "protected.svg",
    ]
    assert (out / "depth.csv").read_text() == outcome.stdout
    result = parsed((out / "depth.json").read_text())
    assert "--log" not in result["provenance"]["command"]
    full = [row for row in rows if (row["weights"], row["variant"]) == ("model", "full")]
    assert [float(row["ratio"]) for row in full] == result["variants"]["full"]


def test_config_file_holds_every_option_at_its_default(run: Run, model: Path, text: Path) -> None:
    path = ROOT / "configs" / "depth.toml"
    listed = set(re.findall(r"^(?:# )?(\w+) = ", path.read_text(), re.MULTILINE))
    command = typer.main.get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    names = {param.name for param in command.commands["depth"].params}
    assert listed == names - {"model", "config", "debug"}
    common = ("--text", text, "--length", 32, "--sequences", 2, "--format", "json")
    with_file = parsed(run("depth", model, *common, "--config", path).stdout)
    without = parsed(run("depth", model, *common).stdout)
    assert with_file["variants"] == without["variants"]
    assert tomllib.loads(path.read_text())["depth"]["sequences"] == 32


@pytest.mark.parametrize(
    ("family", "placement"),
    [
        ("roberta", "post"),
        ("electra", "post"),
        ("albert", "post"),
        ("distilbert", "post"),
        ("roberta-prelayernorm", "pre"),
    ],
)
def test_families(family: str, placement: str, run: Run, tmp_path: Path, text: Path) -> None:
    folder = other_family(family, tmp_path / "model")
    outcome = run(
        "depth", folder, "--text", text, "--length", 24, "--sequences", 3, "--format", "json"
    )
    assert (outcome.code, outcome.stderr) == (0, "")
    result = parsed(outcome.stdout)
    assert result["layer_norm"] == placement
    assert len(result["variants"]["full"]) == 4
    assert result["decomposition"]["max_abs"] < 1e-12


def other_family(family: str, folder: Path) -> Path:
    import torch
    from tiny_models import VOCABULARY, tiny_tokenizer
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family,
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=64,
        **({"hidden_dim": 24} if family == "distilbert" else {}),
    )
    AutoModel.from_config(config).save_pretrained(folder)
    tiny_tokenizer(40).save_pretrained(folder)
    return folder


# --- what it refuses ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--length", 3), ("length is 3", "4")),
        (("--length", 0), ("length is 0",)),
        (("--length", -5), ("length is -5",)),
        (("--length", 65), ("65", "at most 64")),
        (("--length", 32, "--sequences", 0), ("sequences", "1")),
        (("--length", 32, "--sequences", -1), ("sequences", "1")),
        (("--length", 32, "--seed", 2**63), ("64 bits",)),
    ],
)
def test_bad_numbers(
    arguments: tuple[Any, ...],
    words: tuple[str, ...],
    run: Run,
    model: Path,
    text: Path,
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    refused(run("depth", model, "--text", text, *arguments, "-o", out), 1, *words)
    assert not out.exists()


def test_text_too_short_for_one_window(run: Run, model: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.txt"
    short.write_text("the cat sat on the mat\n")
    refused(run("depth", model, "--text", short, "--length", 32), 1, "too short", "short.txt")


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff\xfe caf\xe9\n"])
def test_unreadable_text(content: bytes | None, run: Run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    refused(run("depth", model, "--text", path, "--length", 32), 1, "text.txt")


def test_model_whose_attention_is_not_known(run: Run, unknown: Path, text: Path) -> None:
    refused(run("depth", unknown, "--text", text, "--length", 32), 3, "fails validation")
    refused(
        run("depth", unknown, "--text", text, "--length", 32, "--no-validate"), 1, "apart", "ctrl"
    )


def test_model_without_tokenizer(run: Run, tmp_path: Path, text: Path) -> None:
    folder = tiny_bert(tmp_path / "model")
    for path in folder.glob("tokenizer*"):
        path.unlink()
    refused(run("depth", folder, "--text", text, "--length", 32), 1, "tokenizer")
