"""headscope prune --task seq2seq on the command line: what is printed, written and refused."""

import json
from pathlib import Path

import pytest
from outcomes import Command, fits, read_rows, refused
from tiny_models import write_translator

from headscope.results import PruneResult, from_dict
from headscope.show.prune import page
from headscope.show.prune.words import stacks_sentence

STACKS = ("encoder", "decoder", "cross")


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Marian; pairs.tsv and others.tsv lie beside it."""
    return write_translator(tmp_path_factory.mktemp("translator") / "model")


def words(translator: Path, *more: object) -> tuple[object, ...]:
    folder = translator.parent
    data = ("--data", folder / "pairs.tsv", "--calibration", folder / "others.tsv")
    return ("prune", translator, "--task", "seq2seq", *data, "--dtype", "float64", *more)


@pytest.fixture(scope="module")
def folder(translator: Path, tmp_path_factory: pytest.TempPathFactory, once: Command) -> Path:
    """All stacks, half of the heads and all, with the tables of single heads."""
    out = tmp_path_factory.mktemp("out") / "found"
    done = once(*words(translator, "--step", "0.5", "--ablation", "-o", out))
    assert done.code == 0, done.stderr
    (out / "printed.txt").write_text(done.stdout)
    return out


@pytest.fixture(scope="module")
def found(folder: Path) -> PruneResult:
    return from_dict(PruneResult, json.loads((folder / "prune.json").read_text()))


def test_the_terminal_shows_the_stacks_side_by_side(found, folder):
    fits((folder / "printed.txt").read_text())
    lines = (folder / "printed.txt").read_text().splitlines()
    text = " ".join(" ".join(lines).split())
    start = ["removed", "by", "heads", "encoder", "95%"]
    (head,) = (i for i, line in enumerate(lines) if line.split()[:5] == start)
    row = lines[head + 1].split()
    points = [stack.curves[0].points[1] for stack in found.stacks]
    assert row[:2] == ["fisher-joint", "50%"]
    cells = [f"{x:.1f}" for p in points for x in (p.value, *p.ci)]
    assert row[2:] == cells
    area = next(a for a in found.areas if a.stack == "cross" and a.method == "fisher-joint")
    value, ci = area.compared
    assert f"{value:.2f} {ci[0]:.1f} {ci[1]:.1f}" in text
    gap = next(g for g in found.gaps if (g.stack, g.other) == ("encoder", "cross"))
    value, ci = gap.compared
    mark = "*" if ci[0] > 0 or ci[1] < 0 else ""
    assert f"{value:+.1f}{mark} {ci[0]:+.1f} {ci[1]:+.1f}" in text
    assert stacks_sentence(found) in text


def test_files_name_the_stacks(found, folder):
    rows = read_rows((folder / "curves.csv").read_text())
    assert {row["stack"] for row in rows} == {"all", *STACKS}
    assert all(row["exact_match"] for row in rows if row["method"] != "random")
    scores = read_rows((folder / "scores.csv").read_text())
    places = [(row["stack"], int(row["layer"]), int(row["head"])) for row in scores]
    assert places == [(s, layer, head) for s in STACKS for layer in range(2) for head in range(4)]
    areas = read_rows((folder / "areas.csv").read_text())
    curves = 3  # fisher-joint with and without scale, and random heads
    assert [row["less"] for row in areas].count("") == 3 * curves
    assert len(areas) == 3 * curves + 6 * curves
    assert found.scores[0].names == ("L0", "L1", *(f"{s}:L{i}" for s in STACKS[1:] for i in (0, 1)))


def test_the_page_shows_the_encoders_heads(found):
    places = [(layer, head) for layer in range(2) for head in range(4)]
    cards = {(card.layer, card.head): card for card in page.facts(found, places)}
    scores = {(0, h): v for h, v in enumerate(found.scores[0].values[0])}
    scores |= {(1, h): v for h, v in enumerate(found.scores[0].values[1])}
    order = sorted(scores, key=lambda place: -scores[place])
    for rank, place in enumerate(order, start=1):
        assert cards[place].values == {"importance": rank}
    half = {head[1:] for head in found.curves[0].points[1].heads_removed if head[0] == "encoder"}
    said = {place: dict(card.facts)["First removed"] for place, card in cards.items()}
    assert {place for place, text in said.items() if text.startswith("at 50%")} == half
    assert stacks_sentence(found) in page.section(found).texts


def test_a_stack_alone_by_hand_and_saved(run, translator, tmp_path):
    by_hand = run(*words(translator, "--heads", "cross:L0H1,cross:L1H*"))
    assert "these 5 of 24 heads" in by_hand.stdout
    more = ("--stack", "cross", "--fraction", "0.5", "--repair", "none", "--save", tmp_path / "s")
    saved = run(*words(translator, *more, "--benchmark"))
    assert saved.code == 0, saved.stderr
    assert "Kept    fisher-joint: 4 of 8 heads removed" in saved.stdout
    assert "Speed   8 against 4 heads" in saved.stdout
    again = run("prune", tmp_path / "s", *words(translator)[2:], "--heads", "encoder:L0H0")
    assert again.code == 0, again.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--task seq2seq --data {pairs}", "give a calibration file"),
        ("--task seq2seq --data {one} --heads cross:L0H0", "one example"),
        ("--task seq2seq --data {pairs} --heads L0H0", "several stacks"),
        ("--task seq2seq --data {pairs} --keep-roles rare", "give roles"),
    ],
)
def test_slips_are_named_in_one_sentence(run, translator, tmp_path, arguments, says):
    (tmp_path / "one.tsv").write_text("the cat\ta dog\n")
    places = {"one": tmp_path / "one.tsv", "pairs": translator.parent / "pairs.tsv"}
    given = [word.format(**places) for word in arguments.split()]
    refused(run("prune", translator, "--dtype", "float64", *given), says)
