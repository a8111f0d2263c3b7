"""``headscope classify`` of encoder-decoder models: what is printed, written and refused."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from tiny_models import some_pairs, write_pairs, write_tiny

from headscope.results import SCHEMA, ClassifyResult, from_dict
from tests.cli.conftest import Run


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "bart", "bart")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("pairs") / "pairs.tsv", some_pairs(70, seed=5))


def test_every_stack_has_its_part(run: Run, bart: Path, table: Path) -> None:
    outcome = run("classify", bart, "--text", table, "--control")
    assert outcome.code == 0
    flat = " ".join(outcome.stdout.split())
    assert "70 pairs, 0 skipped" in flat
    encoder, rest = outcome.stdout.split("Decoder: 70 pairs")
    decoder, cross = rest.split("Cross-attention: ")
    assert "Encoder: 70 sources" in encoder
    assert "syn syntactic" in encoder
    for text in (decoder, cross):
        assert "syntactic" not in text
        assert "rare" not in text
        assert text.count("with random weights (seed 0), of 12 heads") == 1
    assert "monotonic" not in encoder + decoder
    for word in ("align", "swapped", "unif.", "spec.", "mono monotonic"):
        assert word in cross
    assert max(map(len, outcome.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("stack", "there", "absent"),
    [
        ("encoder", "heads of the encoder", "cross-attention"),
        ("decoder", "heads of the decoder", "heads of the encoder"),
        ("cross", "cross-attention heads", "frequencies from"),
    ],
)
def test_one_stack(run: Run, bart: Path, table: Path, stack: str, there: str, absent: str) -> None:
    outcome = run("classify", bart, "--text", table, "--stack", stack)
    assert outcome.code == 0
    assert there in " ".join(outcome.stdout.split())
    assert absent not in " ".join(outcome.stdout.split())


def test_json_and_csv(run: Run, bart: Path, table: Path) -> None:
    document = json.loads(run("classify", bart, "--text", table, "--format", "json").stdout)
    assert document["schema"] == SCHEMA
    result = from_dict(ClassifyResult, document)
    assert result.stacks == ("encoder", "decoder", "cross")
    rows = list(
        csv.DictReader(
            io.StringIO(run("classify", bart, "--text", table, "--format", "csv").stdout)
        )
    )
    assert [row["stack"] for row in rows] == [head.stack for head in result.heads]
    last, head = rows[-1], result.heads[-1]
    assert head.alignment is not None
    assert float(last["alignment"]) == head.alignment.score
    assert last["positional_score"] == last["rare_rate"] == ""


def test_the_folder_of_a_run_before_is_replaced(
    run: Run, bart: Path, table: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    run("classify", bart, "--text", table, "-o", folder)
    every = {"classify.json", "heads.csv", "roles.png", "roles.svg"}
    assert {path.name for path in folder.iterdir()} == every | {"alignment.png", "alignment.svg"}
    roles = (folder / "roles.svg").read_text()
    assert "cross:L2" in roles
    assert "decoder:L2" in roles
    run("classify", bart, "--text", table, "-o", folder, "--stack", "decoder")
    assert {path.name for path in folder.iterdir()} == every


def test_a_config_file_sets_the_stack(run: Run, bart: Path, table: Path, tmp_path: Path) -> None:
    config = tmp_path / "own.toml"
    config.write_text(f'[classify]\nstack = "cross"\ntext = "{table}"\n')
    document = json.loads(run("classify", bart, "--config", config, "--format", "json").stdout)
    assert {head["stack"] for head in document["heads"]} == {"cross"}


def test_a_report_shows_the_encoder(run: Run, bart: Path, table: Path, tmp_path: Path) -> None:
    """The page has one map, and lists the roles of all stacks."""
    options = ("--only", "validate,classify", "--text", table, "-o", tmp_path)
    outcome = run("report", bart, *options)
    assert outcome.code == 0, outcome.stderr
    page = (tmp_path / "report.html").read_text()
    assert 'data-head="L1H1"' in page
    assert 'data-head="cross:' not in page
    assert "cross: monotonic" in page
    assert "| cross: no role on this corpus |" in (tmp_path / "report.md").read_text()


def test_a_report_without_pairs(run: Run, bart: Path, tmp_path: Path) -> None:
    outcome = run("report", bart, "--only", "classify", "-o", tmp_path)
    assert outcome.code == 0, outcome.stderr
    assert 'data-head="L1H1"' in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--stack", "cross"), "reads pairs of source and target, and the corpus has sentences"),
        (("--stack", "all"), "give a table of pairs (.tsv, .csv or .jsonl)"),
        (("--stack", "sideways"), "'encoder', 'decoder', 'cross', 'all'"),
    ],
)
def test_refused(run: Run, bart: Path, options: tuple[str, ...], message: str) -> None:
    outcome = run("classify", bart, *options)
    assert outcome.code in (1, 2)
    assert message in " ".join(outcome.stderr.replace("│", " ").split())
    assert "Traceback" not in outcome.stderr


def test_a_broken_table(run: Run, bart: Path, tmp_path: Path) -> None:
    table = tmp_path / "half.tsv"
    table.write_text("a cat\tsat\n\tdog\n")
    outcome = run("classify", bart, "--text", table)
    assert outcome.code in (1, 2)
    assert "half.tsv, line 2: no source; give every row source and target." in outcome.stderr


def test_a_stack_that_the_model_lacks(run: Run) -> None:
    outcome = run("classify", "demo", "--stack", "decoder")
    assert (outcome.code, outcome.stdout) == (1, "")
    assert outcome.stderr == "headscope: demo has no stack 'decoder'; it has encoder.\n"
