"""What is special to ``validate`` and ``classify``: fields, thresholds, causes, and pairs."""

import json
import re
import sys
from itertools import chain, product
from pathlib import Path

import pytest
from outcomes import fits, read_rows, strict_json
from tiny_models import some_pairs, write_pairs, write_tiny

import headscope
from headscope.analyses.classify.result import ClassifyResult
from headscope.cli.app import main
from headscope.core.errors import CheckpointError, ResumeError
from headscope.core.serialise import from_dict, to_json

#: (form, head, relation) of each word; the two sentences have pieces, punctuation and a subtype.
TREES = [
    [
        ("The", 2, "det"),
        ("zebra", 3, "nsubj"),
        ("saw", 0, "root"),
        ("a", 6, "det"),
        ("big", 6, "amod"),
        ("house", 3, "obj"),
        (".", 3, "punct"),
    ],
    [
        ("He", 3, "nsubj:pass"),
        ("was", 3, "aux:pass"),
        ("bitten", 0, "root"),
        ("by", 6, "case"),
        ("the", 6, "det"),
        ("wombat", 3, "obl:agent"),
        ("!", 3, "punct"),
    ],
]


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten times the two sentences."""
    lines: list[str] = []
    for tree in TREES * 10:
        for i, (form, head, relation) in enumerate(tree, start=1):
            lines.append("\t".join([str(i), form, *"____", str(head), relation, "_", "_"]))
        lines.append("")
    path = tmp_path_factory.mktemp("data") / "en_tiny-ud-test.conllu"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_failed_certificate_exits_with_3(run, unknown):
    outcome = run("validate", unknown, "--format", "json")
    assert outcome.code == 3
    assert outcome.stderr.startswith("headscope: validation failed: headscope knows no")
    assert outcome.stderr.count("\n") == 1
    result = strict_json(outcome.stdout)
    assert result["passed"] is False
    assert [check["calls"] for check in result["layers"]] == [0, 0]


def test_debug_shows_the_traceback(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["headscope", "validate", str(tmp_path), "--debug"])
    with pytest.raises(CheckpointError, match=r"config\.json"):
        main()


def test_a_treebank(run, model, treebank, tmp_path):
    call = ("classify", model, "--treebank", treebank)
    brief = run(*call, "--format", "json", "-o", tmp_path / "out").json
    result = strict_json((tmp_path / "out" / "classify.json").read_text())
    # What is printed without --verbose lacks details and reads back; the file has everything.
    assert (brief["brief"], result["brief"]) == (True, False)
    assert len(str(brief)) < len(str(result)) / 3
    for head, printed in zip(result["heads"], brief["heads"], strict=True):
        assert head["name"] == printed["name"] == f"L{head['layer']}H{head['head']}"
        assert printed["syntactic"] == [one for one in head["syntactic"] if one["labelled"]]
        assert printed["labels"] == head["labels"]
        assert printed["positional"]["score"] == head["positional"]["score"]
    assert from_dict(ClassifyResult, brief).heads[0].positional is not None
    assert result["control"]["swapped"] == {"labels": 0, "heads": 0}
    assert result["control"]["heads"] is None
    assert {"syntactic", "broad"} <= set(result["untestable"])
    corpus = result["corpus"]
    assert (corpus["sentences"], corpus["skipped"], corpus["language"]) == (20, 0, "en")
    assert corpus["frequencies"].startswith("wordfreq ")
    relations = [relation for _, _, relation in chain.from_iterable(TREES) if relation != "root"]
    edges = [relation.partition(":")[0] for relation in relations]
    ways = set(product(edges, ("dep->head", "head->dep")))
    for head in result["heads"]:
        scored = [(score["relation"], score["direction"]) for score in head["syntactic"]]
        assert len(scored) == len(set(scored))
        assert set(scored) == ways
        for score in head["syntactic"]:
            if score["direction"] == "dep->head":
                assert score["trials"] == 10 * edges.count(score["relation"])
        rare = head["rare"]
        assert rare["queries"] == 20 * 6  # zebra and wombat are the rarest
        assert 0 <= rare["rate"]["value"] <= rare["two_rarest"] <= 1
        assert rare["chance"] == pytest.approx(1 / 6)
    relations = read_rows((tmp_path / "out/relations.csv").read_text())
    assert len(relations) == 8 * 2 * len(set(edges))


def test_thresholds_and_limits_of_a_file_and_of_flags(run, model, treebank, tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text(
        f"[classify]\ntreebank = '{treebank}'\nlimit = 99\nseed = 5\nformat = 'json'\n"
        "[classify.thresholds]\npositional = 0.2\nbroad_relative = 0.5\n"
    )
    file = run("classify", model, "--config", path).json
    assert (file["corpus"]["sentences"], file["provenance"]["seed"]) == (20, 5)
    assert (file["thresholds"]["positional"], file["thresholds"]["broad_relative"]) == (0.2, 0.5)
    assert any("positional" in head["roles"] for head in file["heads"])
    flags = ("--limit", 3, "--seed", 6, "--threshold", "positional=0.9", "--no-validate")
    flagged = run("classify", model, *flags, "--config", path).json
    assert (flagged["corpus"]["sentences"], flagged["provenance"]["seed"]) == (3, 6)
    thresholds = flagged["thresholds"]
    assert (thresholds["positional"], thresholds["broad_relative"]) == (0.9, 0.5)
    assert not any("positional" in head["roles"] for head in flagged["heads"])
    # One sentence gives a mean no interval, and with q = 1 the mean is a label all the same.
    lenient = ("--limit", 1, "--threshold", "q=1", "--threshold", "special=0", "--verbose")
    assert "uniform" in run("classify", model, *lenient, "--no-validate").stdout
    assert flagged["validation"]["passed"] is None


def test_plain_text_has_no_syntactic_roles(run, model, tmp_path):
    out = tmp_path / "out"
    text = tmp_path / "lines.txt"
    counts = tmp_path / "counts.tsv"
    text.write_text("The zebra saw a big house.\n\nHe wasn't bitten; the wombat was!\n" * 5)
    counts.write_text("the\t9\nzebra\t1\n")
    call = ("classify", model, "--text", text, "--control", "--seed", 7)
    out.mkdir()
    (out / "relations.csv").write_text("of the run before")
    assert run(*call, f"--output={out}").code == 0
    # Files of the run before must not be taken for files of this one.
    names = {path.name for path in out.iterdir()}
    assert names == {"classify.json", "heads.csv", "roles.png", "roles.svg"}
    result = strict_json((out / "classify.json").read_text())
    assert all(head["syntactic"] == [] for head in result["heads"])
    assert (result["corpus"]["sentences"], result["corpus"]["trees"]) == (10, False)
    assert "the corpus itself" in result["corpus"]["frequencies"]
    control = result["control"]
    assert (control["seed"], control["heads"], control["roles"]["syntactic"]) == (7, 8, 0)
    result = run(*call, "--frequencies", counts, "--language", "en", "--format", "json").json
    assert result["corpus"]["frequencies"] == f"file {counts}"


def test_causes_are_written_and_a_resumed_run_ends_in_the_same_numbers(run, model, tmp_path):
    measured = {"ablate": True, "prefix_matching": True}
    options = [f"--{name.replace('_', '-')}" for name in measured]
    limits = ("--limit", "12", "--ablate-limit", "4", "-q", "--no-validate")
    done = run("classify", model, *options, *limits, "-o", tmp_path)
    assert done.code == 0, done.stderr
    fits(done.stdout)
    assert {"causes.png", "prefix_after.png"} <= {path.name for path in tmp_path.iterdir()}
    result = from_dict(ClassifyResult, strict_json((tmp_path / "classify.json").read_text()))
    rows = read_rows((tmp_path / "heads.csv").read_text())
    assert len(rows) == len(result.heads) == 8
    for row, head in zip(rows, result.heads, strict=True):
        assert float(row["zero_loss"]) == head.cause.zero.value
        _, high = head.cause.noise.interval or ("", "")  # unknown where rounding is all there is
        assert row["noise_high"] == str(high)
        assert float(row["after_gain"]) == head.prefix.after.gain.value
    settings = {"limit": 12, "ablate_limit": 4, "validate": False, "state": tmp_path / "state"}
    for _ in range(2):
        again = headscope.classify(str(model), resume=True, **settings, **measured)
        resumed = from_dict(ClassifyResult, json.loads(to_json(again)))
        for field in ("heads", "causes"):
            assert getattr(resumed, field) == getattr(result, field)
    thresholds = headscope.Thresholds(rare=0.2)
    with pytest.raises(ResumeError, match="thresholds differ"):
        headscope.classify(str(model), resume=True, thresholds=thresholds, **settings)


def test_every_stack_has_its_part(run, tmp_path):
    bart = write_tiny(tmp_path / "bart", "bart")
    table = write_pairs(tmp_path / "pairs.tsv", some_pairs(60, seed=5))
    out = tmp_path / "out"
    outcome = run("classify", bart, "--text", table, "--control", "-o", out)
    assert outcome.code == 0
    answers = re.split(r"(?=\d+ of \d+ (?:heads of the|cross-attention))", outcome.stdout)
    _, encoder, decoder, cross = answers
    assert "Read: 60 sources" in encoder
    assert "Read: 60 pairs" in decoder
    for section in (decoder, cross):
        # Behind the answer, and at the end, controls count the roles of any decoder.
        _, _, rest = section.partition("Read: ")
        roles, _, _ = rest.partition("Control: ")
        assert "syntactic" not in roles
        assert "rare" not in roles
    assert "monotonic" not in encoder + decoder
    result = from_dict(ClassifyResult, strict_json((out / "classify.json").read_text()))
    assert result.stacks == ("encoder", "decoder", "cross")
    rows = read_rows((out / "heads.csv").read_text())
    assert [row["stack"] for row in rows] == [head.stack for head in result.heads]
    assert float(rows[-1]["alignment"]) == result.heads[-1].alignment.score.value
    assert rows[-1]["positional_score"] == rows[-1]["rare_rate"] == ""
    files = {"classify.json", "heads.csv", "roles.png", "roles.svg"}
    files |= {"alignment.png", "alignment.svg"}
    assert {path.name for path in out.iterdir()} == files
    # The page has one map, and lists the roles of all stacks that the text exercises.
    outcome = run("report", bart, "--only", "classify", "--text", table, "-o", tmp_path / "report")
    assert outcome.code == 0, outcome.stderr
    page = (tmp_path / "report/report.html").read_text()
    assert 'data-head="L1H1"' in page
    assert 'data-head="cross:' not in page
    assert "cross: monotonic" in page
    assert "| cross: no role on this corpus |" in (tmp_path / "report/report.md").read_text()
