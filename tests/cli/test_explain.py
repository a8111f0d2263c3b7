"""``headscope explain`` on the command line: what it prints and writes, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_models import tiny_bert

Run = Callable[..., Any]

ROOT = Path(__file__).parents[2]
SENTENCE = "the big dog saw a red cat"


def refused(outcome: Any, code: int, *words: str) -> None:
    assert outcome.code == code, outcome
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("headscope: ")
    assert outcome.stderr.count("\n") == 1
    for word in words:
        assert word in outcome.stderr, (word, outcome.stderr)


def test_the_terminal_shows_every_step_and_its_check_in_80_columns(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = run("explain", model, SENTENCE, "--layer", 1, "--head", 2)
    assert (outcome.code, outcome.stderr) == (0, "")
    assert max(map(len, outcome.stdout.splitlines())) <= 80
    assert "\x1b" not in outcome.stdout  # no colour is needed to read it
    for number in range(1, 13):
        assert f"\n{number}. " in outcome.stdout
    assert outcome.stdout.count("Check: ") == 14
    assert outcome.stdout.count("largest difference") == 14
    text = " ".join(outcome.stdout.split())
    for word in (
        "L1H2, as asked for",
        "1/sqrt(d_head) = 1/sqrt(8)",
        "divide by the square root of the sequence length",
        "each head sees a slice of the embedding",
        "attention explains the output",
        "not over the queries",
        "All 14 checks against the model passed",
    ):
        assert word in text, word


def test_long_sentences_and_odd_tokens_stay_within_80_columns(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = run("explain", model, "\u732b\u304c \U0001f600 [bold]a[/bold] " + "cat dog " * 12)
    assert outcome.code == 0, outcome.stderr
    from rich.cells import cell_len

    assert max(map(cell_len, outcome.stdout.splitlines())) <= 80
    assert "first 14 of" in outcome.stdout


def test_json_and_csv_are_the_same_numbers(run: Run, model: Path) -> None:
    arguments = ("explain", model, SENTENCE, "--layer", 0, "--head", 1)
    data = json.loads(run(*arguments, "--format", "json").stdout)
    rows = list(csv.DictReader(io.StringIO(run(*arguments, "--format", "csv").stdout)))
    n = len(data["tokens"])
    assert (data["layer"], data["head"], data["sentence"]) == (0, 1, SENTENCE)
    assert len(rows) == n * n
    pattern = next(
        m["values"] for s in data["steps"] for m in s["matrices"] if m["name"] == "pattern"
    )
    weights = np.array([float(row["weight"]) for row in rows]).reshape(n, n)
    np.testing.assert_allclose(weights, pattern)
    assert [row["key"] for row in rows[:n]] == data["tokens"]
    assert set(data["patterns"]) == {f"L{layer}H{head}" for layer in (0, 1) for head in range(4)}


def test_the_folder_holds_the_page_the_figure_and_the_tables(
    run: Run, model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert run("explain", model, "<b>the</b> cat & dog", "-o", out, "-q").code == 0
    names = {path.name for path in out.iterdir()}
    kinds = {f"explain.{kind}" for kind in ("json", "csv", "html", "png", "svg")}
    assert names == {*kinds, "explain-heads.csv"}
    page = (out / "explain.html").read_text(encoding="utf-8")
    assert "<b>the" not in page
    assert 'class="arrows"' in page
    assert not re.search(r"""(?:src|href)=["'](?!#|data:,)""", page)
    assert page.count('<details class="step" open>') == 12
    assert (out / "explain.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("the cat", "--layer", 2), 1, ("no layer 2", "0 to 1")),
        (("the cat", "--layer", -1), 1, ("no layer -1",)),
        (("the cat", "--layer", 0, "--head", 4), 1, ("no head 4", "0 to 3")),
        (("the cat", "--head", 1), 1, ("no layer is given",)),
        (("",), 1, ("sentence is empty",)),
        ((" \n ",), 1, ("sentence is empty",)),
        (("\u200b",), 1, ("makes no token",)),
        (("cat " * 63,), 1, ("65 tokens", "at most 64")),
        (("\ud800",), 1, ("lone surrogate",)),
    ],
)
def test_what_cannot_be_explained(
    run: Run, model: Path, arguments: tuple[Any, ...], code: int, words: tuple[str, ...]
) -> None:
    refused(run("explain", model, *arguments), code, *words)


def test_a_sentence_is_required(run: Run, model: Path) -> None:
    outcome = run("explain", model)
    assert outcome.code == 2
    assert "SENTENCE" in outcome.stderr


def test_removed_heads_and_long_models_have_sentences_of_their_own(
    run: Run, tmp_path: Path
) -> None:
    import headscope

    whole = headscope.load(str(tiny_bert(tmp_path / "whole", max_position_embeddings=128)))
    cut = headscope.remove_heads(whole, [(0, 1), *((1, head) for head in range(4))])
    headscope.save(cut, tmp_path / "cut")
    refused(run("explain", tmp_path / "cut", "a cat", "--layer", 0, "--head", 1), 1, "was removed")
    refused(run("explain", tmp_path / "cut", "a cat", "--layer", 1), 1, "Every head of layer 1")
    refused(run("explain", tmp_path / "cut", "cat " * 70), 1, "explain reads at most 64")
    assert run("explain", tmp_path / "cut", "a cat").code == 0


def test_a_step_that_differs_from_the_model_ends_with_exit_code_3(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headscope.pipeline.explain import walk

    attend = walk.attend
    monkeypatch.setattr(
        walk, "attend", lambda *heads, scale, **more: attend(*heads, scale=2 * scale, **more)
    )
    refused(run("explain", model, SENTENCE), 3, "Step 5 of explain", "tolerance")


def test_a_report_explains_a_sentence_of_the_sample_or_that_of_its_table(
    run: Run, model: Path, tmp_path: Path
) -> None:
    out, table = tmp_path / "out", tmp_path / "s.toml"
    assert run("report", model, "--only", "explain", "-o", out).code == 0
    document = json.loads((out / "report.json").read_text())
    assert document["explain"]["sentence"] == document["samples"][0]["text"]
    assert document["settings"] == {"explain": {}}
    table.write_text(f'[explain]\nsentence = "{SENTENCE}"\nlayer = 1\n')
    done = run("report", model, "--only", "explain", "--config", table, "-o", out)
    assert done.code == 0, done.stderr
    document = json.loads((out / "report.json").read_text())
    assert (document["explain"]["sentence"], document["explain"]["layer"]) == (SENTENCE, 1)
    assert document["settings"] == {"explain": {"layer": 1, "sentence": SENTENCE}}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert 'href="#explain"' in page
    assert "Entropy on the explained sentence" in page
    assert (out / "explain.html").is_file()
    diff = run("diff", out, out)
    assert (diff.code, diff.stdout) == (0, "")


def test_the_config_file_states_the_defaults(run: Run) -> None:
    shown = tomllib.loads(run("config", "show", "explain").stdout)["explain"]
    stated = tomllib.loads((ROOT / "configs" / "explain.toml").read_text())["explain"]
    assert shown == {**stated, "debug": False}
