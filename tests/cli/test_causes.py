"""What classify adds where it is asked for: on the command line, in files, reports and diff."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import headscope
from headscope.errors import ResumeError
from headscope.results import ClassifyResult, from_dict, to_json
from headscope.show.cells import to_csv
from headscope.verdicts.diff.facts import collector_of
from headscope.verdicts.diff.facts.fact import Facts

ASKED = ("--ablate", "--ablate-limit", "8", "--prefix-matching", "--norm-weighted", "--limit", "40")


@pytest.fixture(scope="module")
def result(model: Path) -> ClassifyResult:
    asked = {"ablate": True, "prefix_matching": True, "norm_weighted": True}
    return headscope.classify(str(model), limit=40, ablate_limit=8, validate=False, **asked)


def test_the_terminal_and_the_files_have_it(run: Any, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("classify", model, *ASKED, "-q", "--no-validate", "-o", out)
    assert done.code == 0, done.stderr
    for said in ("Heads removed one at a time", "after it (induction)", "by norms"):
        assert said in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert {"causes.png", "causes.svg", "prefix_matching.png"} <= {x.name for x in out.iterdir()}
    # Without these the figures of the run before would be another run's.
    done = run("classify", model, "--limit", "40", "-q", "--no-validate", "-o", out)
    assert done.code == 0
    assert not {"causes.png", "prefix_matching.png"} & {path.name for path in out.iterdir()}
    assert "zero_loss" not in (out / "heads.csv").read_text()


def test_the_table_of_heads_has_columns(result: ClassifyResult) -> None:
    rows = list(csv.DictReader(to_csv(result).splitlines()))
    assert len(rows) == len(result.heads) == 8
    for row, head in zip(rows, result.heads, strict=True):
        assert head.cause is not None
        assert head.prefix is not None
        assert float(row["zero_loss"]) == head.cause.zero.loss
        _, high = head.cause.noise.interval or ("", "")  # unknown where rounding is all there is
        assert row["noise_high"] == str(high)
        assert float(row["after_gain"]) == head.prefix.after.gain


def test_old_files_still_open(result: ClassifyResult) -> None:
    document = json.loads(to_json(result))
    for name in ("causes", "prefix", "norms"):
        del document[name]
    for head in document["heads"]:
        del head["cause"], head["prefix"]
    old = from_dict(ClassifyResult, document)
    assert old.causes is old.prefix is old.norms is None
    assert all(head.cause is None for head in old.heads)
    assert "zero_loss" not in old.to_frame().columns


def test_diff_knows_the_new_numbers(result: ClassifyResult) -> None:
    facts = Facts().of("classify")
    collector_of("classify").collect(result, facts)
    number = facts.numbers["classify", "L1H2", "loss when removed, zero"]
    cause = result.heads[6].cause
    assert cause is not None
    assert (number.value, number.interval) == (cause.zero.loss, cause.zero.interval)
    assert ("classify", "L1H2", "repeated tokens, after") in facts.numbers
    assert ("classify", "removed, zero", "gradients' rank correlation") in facts.numbers
    settings = collector_of("classify").settings(result)
    assert result.causes is not None
    assert settings["removal examples"] == result.causes.examples
    assert settings["norm-weighted"] is True


def test_a_report_has_the_parts_and_the_cards(run: Any, model: Path, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("[classify]\nablate_limit = 8\nlimit = 20\ncontrol = false\n")
    done = run(
        *("report", model, "--only", "classify", "-q", "--no-validate"),
        *("--config", tmp_path / "c.toml", "-o", tmp_path / "r"),
    )
    assert done.code == 0, done.stderr
    page = (tmp_path / "r" / "report.html").read_text()
    for anchor in ("causes", "prefix"):
        assert f'id="{anchor}"' in page or f'aria-labelledby="{anchor}"' in page
    assert "Loss when removed" in page
    written = (tmp_path / "r" / "report.md").read_text()
    assert "## Heads removed one at a time" in written
    assert "the head with a role costs more" in written or "any role" not in written


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ablate", "--ablate-limit", "1"), "needs two examples or more"),
        (("--ablate", "--task", "classification"), "needs a file with labels"),
        (("--ablate", "--task", "mlm"), "head"),
    ],
)
def test_bad_input_is_one_sentence(
    run: Any, model: Path, options: tuple[Any, ...], message: str
) -> None:
    done = run("classify", model, *options, "-q", "--no-validate", "--limit", "8")
    assert done.code != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_resumed_run_ends_in_the_same_numbers(
    result: ClassifyResult, model: Path, tmp_path: Path
) -> None:
    given = {"limit": 40, "ablate_limit": 8, "validate": False, "state": tmp_path / "state"}
    asked = {"ablate": True, "prefix_matching": True, "norm_weighted": True}
    for _ in range(2):
        again = headscope.classify(str(model), resume=True, **given, **asked)
        assert again.heads == result.heads
        assert (again.causes, again.norms) == (result.causes, result.norms)
    with pytest.raises(ResumeError, match="norms differ"):
        headscope.classify(str(model), resume=True, **given)
