"""A tokenizer that does not belong to the model, or does not know a text, is said everywhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import SPECIAL, VOCABULARY, tiny_bert, tiny_tokenizer

import headscope
from headscope.data.pieces import count_unknown, encodings_of
from headscope.data.plain import as_plain
from headscope.errors import CorpusError
from headscope.models.loaded import LoadedModel
from headscope.pipeline.tokenizer_fit import FEWEST_PIECES, MOST_UNKNOWN, fit_of, fit_warnings
from headscope.results import SECTIONS

Run = Callable[..., Any]
KNOWN = "the cat sat on the mat"  # six pieces
SNOWMAN = "\N{SNOWMAN}"  # no piece of the tiny vocabulary


def cut(folder: Path, keep: int) -> Path:
    """Leave the first pieces of a model's vocabulary."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {piece: i for piece, i in vocabulary.items() if i < keep}
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def five(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer has the special tokens and nothing else."""
    copy = tmp_path_factory.mktemp("five") / "five"
    return cut(shutil.copytree(model, copy), len(SPECIAL))


@pytest.fixture(scope="module")
def loaded(five: Path) -> LoadedModel:
    return headscope.load(str(five))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """One piece of seven is unknown."""
    path = tmp_path / "lines.txt"
    path.write_text(f"{KNOWN} {SNOWMAN}\n" * 40, encoding="utf-8")
    return path


#: What every function needs to be given to read a text, and to be quick if it did.
READING: dict[str, dict[str, Any]] = {
    "classify": {"limit": 8},
    "rank": {"text": as_plain([KNOWN] * 8), "fresh": False},
    "explain": {"sentence": KNOWN},
    "spectrum": {"length": 16, "sequences": 2},
    "depth": {"length": 16, "sequences": 2},
    "flow": {"limit": 24},
    "transfer": {"budget": 1.0},
    "linear": {"sentences": 2},
    "symmetric": {"sentences": 2},
    "prune": {"heads": "L0H0", "roles": False, "limit": 8},
    "insights": {"skip": ["transfer"]},
    "report": {"only": ["flow"], "settings": {"flow": {"limit": 24}}},
    "scores": {"limit": 8},
    "measure": {"limit": 8},
}


@pytest.mark.parametrize("name", READING)
def test_a_text_of_which_nothing_is_known_is_refused(name: str, loaded: LoadedModel) -> None:
    with pytest.raises(CorpusError, match=r"five knows no piece of the text \(it has 5 pieces, "):
        getattr(headscope, name)(loaded, **READING[name])


def test_every_command_that_reads_is_tried() -> None:
    assert {*SECTIONS} - {"validate"} <= set(READING)


def test_a_tokenizer_that_fails_is_one_sentence(run: Run, model: Path, tmp_path: Path) -> None:
    broken = cut(shutil.copytree(model, tmp_path / "broken"), 1)  # not even an unknown token
    outcome = run("classify", broken, "--limit", 4)
    assert outcome.code == 1
    assert "broken cannot read the text" in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_another_size_is_said_where_no_text_is_read(run: Run, five: Path) -> None:
    words = f"has 5 pieces and the model's embedding {len(VOCABULARY)} rows"
    for command in (("validate", five), ("rank", five, "--no-fresh")):
        outcome = run(*command)
        assert outcome.code == 0
        assert words in " ".join(outcome.stdout.split())
        found = json.loads(run(*command, "--format", "json").stdout)["provenance"]
        assert found["tokenizer"]["unknown_share"] is None
        assert len(found["warnings"]) == 1


@pytest.mark.parametrize(
    ("pieces", "share", "warnings"),
    [
        (1000, None, 0),
        (750, 0.0299, 0),
        (749, 0.0, 1),
        (1001, 0.0, 1),
        (1000, 0.03, 1),
        (10, 0.5, 2),
    ],
)
def test_when_it_is_said(pieces: int, share: float | None, warnings: int) -> None:
    assert (FEWEST_PIECES, MOST_UNKNOWN) == (0.75, 0.03)
    fit = {"pieces": pieces, "embeddings": 1000, "texts": 9, "unknown_share": share}
    assert len(list(fit_warnings(fit, "model", "data"))) == warnings


def test_the_share_stands_in_every_output(
    run: Run, model: Path, text: Path, tmp_path: Path
) -> None:
    words = f"does not know 14.3% of the pieces of {text} (its first 40 texts)"
    call = ("rank", model, "--text", text, "--no-fresh")
    human = run(*call, "-o", tmp_path / "out")
    assert "Warning: The tokenizer" in human.stdout
    assert words.replace(" ", "") in "".join(human.stdout.split())
    table = run(*call, "--format", "csv")
    assert words in table.stderr
    assert "Warning" not in table.stdout
    data = json.loads(run(*call, "--format", "json").stdout)
    assert data["provenance"]["tokenizer"]["unknown_share"] == pytest.approx(1 / 7)
    assert words in data["provenance"]["warnings"][0]
    folder = tmp_path / "report"
    report = run("report", model, "--text", text, "--only", "rank", "-o", folder)
    assert words.replace(" ", "") in "".join(report.stdout.split())
    for name in ("report.md", "report.html"):
        page = (folder / name).read_text(encoding="utf-8").replace("\\", "")
        assert page.count("14.3% of the pieces of") == 1, name
    assert words in json.loads((folder / "report.json").read_text())["provenance"]["warnings"][0]


def test_a_text_that_is_known_warns_of_nothing(run: Run, model: Path) -> None:
    outcome = run("classify", model, "--limit", 4, "--format", "json")
    found = json.loads(outcome.stdout)["provenance"]
    assert found["warnings"] == []
    assert found["tokenizer"]["embeddings"] == len(VOCABULARY)
    assert found["tokenizer"]["texts"] == 512


def test_every_kind_of_data_is_counted(tmp_path: Path) -> None:
    """Words, lines, pairs and tables hold the same unknown piece: by hand, one of so many."""
    tiny = headscope.load(str(tiny_bert(tmp_path / "model")))
    for kind, pieces in _kinds(tmp_path).items():
        assert fit_of(tiny, kind)["unknown_share"] == pytest.approx(1 / pieces), kind  # type: ignore[index]


def _kinds(folder: Path) -> dict[Any, int]:
    from headscope.data.corpus import as_corpus
    from headscope.data.examples import Examples
    from headscope.data.pair_corpus import pairs_in_memory

    lines = [KNOWN, f"{KNOWN} {SNOWMAN}"]
    examples = Examples("pairs", "", first=(KNOWN,), second=(SNOWMAN,))
    return {
        as_corpus(lines): 13,
        as_plain(lines): 13,
        pairs_in_memory([(KNOWN, SNOWMAN)]): 7,
        examples: 7,
    }


def test_special_tokens_are_no_pieces() -> None:
    class Text:
        tokenizer, name, vocab_size, max_length = tiny_tokenizer(), "tiny", len(VOCABULARY), 64

    (both,) = encodings_of(Text(), [f"{KNOWN} {SNOWMAN}"])
    assert len(both.ids) == 9
    assert count_unknown(Text.tokenizer, both) == (1, 7)
