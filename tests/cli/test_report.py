"""``headscope report`` from the command line, on a tiny model."""

import json
import re
import shutil
from pathlib import Path

from headscope.reports.registry import SECTIONS


def timeless(folder: Path) -> dict[str, bytes]:
    """Every file's bytes, without what ``created`` says, on the page too."""
    created = re.compile(rb'"created": "[^"]*"')
    return {path.name: created.sub(b"", path.read_bytes()) for path in sorted(folder.iterdir())}


def test_a_whole_report_is_the_same_twice_and_leaves_no_files_of_sections_that_are_gone(
    run, model, quick, tmp_path
):
    out = tmp_path / "report"
    alone = tmp_path / "alone"
    call = ("report", model, "--config", quick, "-o", out)
    limits = "[limits]\nvalidation = true\nmax_without_role = 8\n"
    more = "[explain]\nlayer = 1\n[insights.thresholds]\nasymmetry = 1.9\n"
    quick.write_text(quick.read_text() + limits + more)
    first = run(*call)
    assert first.code == 0, first.stderr
    document = json.loads((out / "report.json").read_text())
    assert all(document[name] for name in SECTIONS)
    assert document["settings"]["classify"] == {"limit": 16, "ablate_limit": 4, "control": False}
    assert (document["settings"]["explain"], document["explain"]["layer"]) == ({"layer": 1}, 1)
    assert document["explain"]["sentence"] == document["samples"][0]["text"]
    before = timeless(out)
    assert {"report.html", "report.md", "heads.csv", "roles.png", "curves.csv"} <= set(before)
    assert not [name for name in before if name.startswith(".")]

    claims = document["insights"]["insights"]  # judged by the thresholds of the file
    assert [item["number"] for item in claims] == list(range(11))
    for item in claims:
        assert item["verdict"] != "not measured yet"  # 4: "not applicable"
        assert item["claim"]
        assert item["rule"]
    assert claims[0]["verdict"] == "does not hold"
    assert document["insights"]["thresholds"]["asymmetry"] == 1.9

    run("depth", model, "--config", quick, "-q", "-o", alone)  # a section is the command's own
    section = document["depth"]
    alone_result = json.loads((alone / "depth.json").read_text())
    for result in (section, alone_result):
        del result["provenance"]["created"], result["provenance"]["command"]
    assert section == alone_result

    (out / "notes.txt").write_text("mine")
    (out / "depth.csv").write_text("edited by hand")
    again = run(*call, "--only", "validate,rank")
    assert again.code == 3, "max_without_role needs a result of classify"
    after = timeless(out)
    assert set(before) - set(after) >= {"heads.csv", "curves.csv", "flow.csv"}
    assert (after["notes.txt"], after["depth.csv"]) == (b"mine", b"edited by hand")
    assert after["rank.csv"] == before["rank.csv"]


def test_a_limit_fails_after_the_report_of_a_hostile_folder_is_written(
    run, model, quick, tmp_path, monkeypatch
):
    summary = tmp_path / "summary.md"
    out = tmp_path / "report"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    folder = tmp_path / "a|b <img src=x onerror=alert(1)> @octocat \u202ertl"
    shutil.copytree(model, folder)
    quick.write_text(quick.read_text() + "[limits]\nmin_positional = 3\nmetric_min = 0.5\n")
    done = run("report", folder, "--config", quick, "--only", "validate,classify", "-q", "-o", out)
    assert done.code == 3
    assert done.stderr == (
        "headscope: 2 limits failed: min_positional = 3: 0 heads are positional; metric_min = 0.5: "
        "the report has no result of prune.\n"
    )
    page = (out / "report.html").read_text()
    text = (out / "report.md").read_text()
    assert summary.read_text() == "before\n" + text
    assert "<img" not in page  # nothing of the folder's name is markup
    assert "\u202e" not in page + text
    assert not re.search(r"<img|@octocat|(?<!\\)\|b ", text)


def test_a_model_that_is_not_known_gets_its_certificate_and_nothing_else(
    run, unknown, quick, tmp_path
):
    out = tmp_path / "report"
    for only in ((), ("--only", "classify")):
        done = run("report", unknown, "--config", quick, "-o", out, *only)
        assert done.code == 3
        assert "fails validation" in done.stderr
        document = json.loads((out / "report.json").read_text())
        assert document["validate"]["passed"] is False
        assert document["classify"] is None
        assert "Validation FAILED" in (out / "report.html").read_text()


def test_sentences_of_ones_own_are_on_the_page_or_refused_before_anything_is_measured(
    run, model, tmp_path
):
    out = tmp_path / "report"
    words = ("the cat sat", "a dog & <b>")
    flags = ["--sentence", words[0], "--sentence", words[1]]
    ended = run("report", model, "--only", "validate", *flags, "-o", out)
    assert ended.code == 0, ended.stderr
    samples = json.loads((out / "report.json").read_text())["samples"]
    assert [sample["text"] for sample in samples] == list(words)
    assert all(len(s["patterns"]["L0H0"]) == len(s["tokens"]) for s in samples)
    page = (out / "report.html").read_text()
    assert "a dog &amp; &lt;b&gt;" in page
    for wrong, says in ((" ", "is empty"), ("cat " * 80, "reads at most")):
        refused = run("report", model, "--sentence", wrong, "-o", tmp_path / "none")
        assert refused.code == 1
        assert says in " ".join(refused.stderr.split())
    assert not (tmp_path / "none").exists()
