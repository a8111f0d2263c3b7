"""``headscope rank`` as a user meets it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from tiny_models import tiny_bert
from transformers import AutoConfig

FILES = {
    "rank.json",
    "rank.csv",
    "cumulative_qk.png",
    "cumulative_qk.svg",
    "cumulative_ov.png",
    "cumulative_ov.svg",
    "effective_rank.png",
    "effective_rank.svg",
    "overlap.png",
    "overlap.svg",
}
SHARED = {f"shared_projections.{kind}" for kind in ("csv", "png", "svg")}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("the cat sat on the mat\n\nhe saw a dog\n" + "a b " * 50 + "\n")
    return path


def test_json_has_the_documented_shape(run, model: Path) -> None:
    done = run("rank", model, "--format", "json")
    assert done.code == 0, done.stderr
    data = json.loads(done.stdout)
    assert [(h["layer"], h["head"]) for h in data["heads"]] == [
        (layer, head) for layer in range(2) for head in range(4)
    ]
    for item in (*data["heads"], *data["layers"]):
        for name in ("qk", "ov", "w_q", "w_k"):
            found = item[name]
            assert set(found["dims"]) == {"90", "95", "99"}
            assert set(found["numerical_rank"]) == {"value", "rtol"}
            assert found["singular_values"] == sorted(found["singular_values"], reverse=True)
            assert found["stable_rank"] > 0
            assert found["effective_rank"] > 0
        assert 0 < item["asymmetry"] < 2
    assert set(data["controls"]) == {"gaussian", "fresh"}
    assert data["validation"]["passed"] is True


def test_csv_has_a_row_per_head_layer_and_matrix(run, model: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run("rank", model, "--format", "csv").stdout)))
    assert len(rows) == (8 + 2) * 4
    assert all(row["gaussian_dims90"] and row["fresh_dims90"] for row in rows)


def test_output_folder(run, model: Path, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("rank", model, "--share-projections", "4,8,16", "--text", text, "-o", out)
    assert done.code == 0, done.stderr
    assert {path.name for path in out.iterdir()} == FILES | SHARED
    data = json.loads((out / "rank.json").read_text())
    assert [width["width"] for width in data["shared"]["widths"]] == [4, 8, 16]
    assert data["text"]["lines"] == 2
    assert data["text"]["skipped"] == 1
    assert "1 skipped" in " ".join(done.stdout.split())
    # What a later run without widths does not write must not be left over.
    again = tmp_path / "again"
    for folder in (out, again):
        assert run("rank", model, "-o", folder).code == 0
        assert {path.name for path in folder.iterdir()} == FILES
    # The same run gives the same bytes, but for the time.
    for file in FILES - {"rank.json"}:
        assert (out / file).read_bytes() == (again / file).read_bytes(), file
    first, second = (json.loads((folder / "rank.json").read_text()) for folder in (out, again))
    for data in (first, second):
        del data["provenance"]["created"]
    assert first == second


def test_human_output_shows_controls_and_fits(run, model: Path) -> None:
    done = run("rank", model)
    assert done.code == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    for word in ("gaussian", "fresh", "L1H3", "numerical rank", "asym"):
        assert word in done.stdout


def test_share_sigma_needs_more_dimensions(run, model: Path) -> None:
    squared, plain = (
        json.loads(run("rank", model, "--share", share, "--format", "json").stdout)
        for share in ("sigma2", "sigma")
    )
    pairs = zip(squared["layers"], plain["layers"], strict=True)
    assert all(a["qk"]["dims"]["90"] < b["qk"]["dims"]["90"] for a, b in pairs)


def test_a_list_in_the_config_file(run, model: Path, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text('[rank]\nshare_projections = [4, 8]\nfresh = false\nformat = "json"\n')
    done = run("rank", model, "--config", config)
    assert done.code == 0, done.stderr
    data = json.loads(done.stdout)
    assert [width["width"] for width in data["shared"]["widths"]] == [4, 8]
    assert data["controls"]["fresh"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--share-projections", "4,x"), 2, "'4,x' is not a list of widths"),
        (("--share-projections", "0"), 1, "between 1 and n_heads * d_head = 32"),
        (("--share-projections", "8,33"), 1, "between 1 and n_heads * d_head = 32"),
        (("--rtol", "1.5"), 1, "rtol 1.5 is not between 0 and 1"),
        (("--control-seeds", "1"), 1, "give 2 or more"),
        (("--limit", "0", "--share-projections", "8"), 1, "give 1 line or more"),
        (("--text", "nowhere.txt"), 1, "There is no file nowhere.txt"),
        (("--share", "sigma3"), 2, "sigma3"),
    ],
)
def test_bad_input_says_what_and_how(run, model: Path, tmp_path: Path, arguments, code, says):
    out = tmp_path / "out"
    done = run("rank", model, *arguments, "-o", out)
    assert done.code == code
    assert says in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr
    assert not out.exists()


def test_text_that_never_fits(run, model: Path, tmp_path: Path) -> None:
    long = tmp_path / "long.txt"
    long.write_text("the cat sat on the mat " * 40 + "\n")
    done = run("rank", model, "--text", long)
    assert done.code == 1
    assert "No line of" in done.stderr


def test_relative_positions_in_the_config_are_refused(run, tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "relative")
    config = AutoConfig.from_pretrained(folder)
    config.position_embedding_type = "relative_key"
    config.save_pretrained(folder)
    done = run("rank", folder)
    assert done.code == 1
    assert "transformers 5 no longer computes" in done.stderr
    measured = run("rank", folder, "--no-validate")
    assert measured.code == 0
    assert "NOT the whole score" in measured.stdout


def test_rank_needs_no_tokenizer(run, tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path / "bare")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    assert run("rank", folder).code == 0
    done = run("rank", folder, "--share-projections", "8")
    assert done.code == 1
    assert "tokenizer" in done.stderr
