"""A tokenizer that does not fit the model, its class or a text is said everywhere."""

import json
import shutil
from typing import Any

import pytest
from tiny_models import SPECIAL, VOCABULARY, tiny_bert

import headscope
from headscope.core.errors import CorpusError
from headscope.session.tokenizer_fit import FEWEST_PIECES, MOST_UNKNOWN, fit_warnings

KNOWN = "the cat sat on the mat"  # six pieces
SNOWMAN = "\N{SNOWMAN}"  # no piece of the tiny vocabulary


@pytest.fixture(scope="module")
def five(model, tmp_path_factory):
    """A model whose tokenizer has the five special tokens and nothing else."""
    folder = shutil.copytree(model, tmp_path_factory.mktemp("five") / "five")
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {p: i for p, i in vocabulary.items() if i < len(SPECIAL)}
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


#: Functions that read words, texts, windows and examples, and what they need to be quick.
READING: dict[str, dict[str, Any]] = {
    "classify": {"limit": 8},
    "explain": {"sentence": KNOWN},
    "attribute": {"first": KNOWN, "second": KNOWN},
    "spectrum": {"length": 16, "sequences": 2},
    "linear": {"sentences": 2},
    "prune": {"heads": "L0H0", "limit": 8},
}


def test_a_text_of_which_nothing_is_known_is_refused(five):
    loaded = headscope.load(str(five))
    for name, options in READING.items():
        with pytest.raises(CorpusError, match=r"five knows no piece of the text \(it has 5 pieces"):
            getattr(headscope, name)(loaded, **options)


def test_another_size_is_said_where_no_text_is_read(run, five):
    words = f"has 5 pieces and the model's embedding {len(VOCABULARY)} rows"
    for command in (("validate", five), ("rank", five, "--no-fresh")):
        assert words in run(*command).flat
    provenance = json.loads(run(*command, "--format", "json").stdout)["provenance"]
    assert provenance["tokenizer"]["unknown_share"] is None
    assert len(provenance["warnings"]) == 1


@pytest.mark.parametrize(
    ("pieces", "share", "warnings"),
    [(750, 0.0299, 0), (749, 0.0, 1), (1001, 0.0, 1), (1000, 0.03, 1), (10, 0.5, 2)],
)
def test_when_it_is_said(pieces, share, warnings):
    assert (FEWEST_PIECES, MOST_UNKNOWN) == (0.75, 0.03)
    fit = {"pieces": pieces, "embeddings": 1000, "texts": 9, "unknown_share": share}
    assert len(list(fit_warnings(fit, "model", "data"))) == warnings


def test_the_share_stands_in_every_output(run, model, tmp_path):
    text = tmp_path / "lines.txt"
    out = tmp_path / "out"
    text.write_text(f"{KNOWN} {SNOWMAN}\n" * 40, encoding="utf-8")  # one piece of seven is unknown
    words = f"{text}: the tokenizer does not know 14.3% of the pieces of the 40 texts"
    table = run("rank", model, "--text", text, "--no-fresh", "--format", "csv")
    assert words in table.stderr
    assert "Warning" not in table.stdout
    done = run("report", model, "--text", text, "--only", "rank", "-o", out)
    assert done.code == 0, done.stderr
    for name in ("report.md", "report.html"):
        page = (out / name).read_text(encoding="utf-8").replace("\\", "")
        assert page.count("14.3% of the pieces of") == 1, name
    document = json.loads((out / "report.json").read_text())
    provenance = document["rank"]["provenance"]
    assert provenance["tokenizer"]["unknown_share"] == pytest.approx(1 / 7)
    assert words in document["provenance"]["warnings"][0]
    # A text that is known warns of nothing.
    provenance = run("classify", model, "--limit", 4, "--format", "json").json["provenance"]
    assert provenance["warnings"] == []


def _edited(folder, **changes):
    """Change tokenizer.json of a model, and let it name BertTokenizer."""
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    return folder


def test_the_file_is_read_and_the_class_is_said_by_every_command(run, model, tmp_path):
    """transformers builds BertTokenizer anew, without the replacement that the file asks for."""
    folder = shutil.copytree(model, tmp_path / "m")
    replacing = [
        {"type": "Lowercase"},
        {"type": "Replace", "pattern": {"String": "x"}, "content": "big"},
    ]
    _edited(folder, normalizer={"type": "Sequence", "normalizers": replacing})
    text = tmp_path / "lines.txt"
    saved = tmp_path / "saved"
    text.write_text("the cat sat on a mat\nshe ran to the house\n" * 6, encoding="utf-8")
    commands = (
        ("explain", folder, "x dog"),
        ("validate", folder),
        ("rank", folder, "--no-fresh"),
        ("prune", folder, "--heads", "L0H0", "--data", text, "--save", saved),
    )
    for command in commands:
        done = run(*command, "--format", "json")
        (said,) = [each for each in done.json["provenance"]["warnings"] if "tokenizer.json" in each]
        assert "'Foxes' is read as f ##o ##b ##i ##g ##e ##s; BertTokenizer of" in said
        assert said.endswith("would read f ##o ##x ##e ##s.")
    assert said.replace(" ", "") in run(*commands[0]).flat.replace(" ", "")
    again = run("explain", saved, "x dog", "--format", "json").json
    assert again["tokens"] == ["[CLS]", "big", "dog", "[SEP]"]
    assert again["provenance"]["warnings"] == []


def test_capitals_that_no_text_gives_are_counted(run, tmp_path):
    words = [*VOCABULARY, "Berlin", "Anna", "##A"]
    folder = tiny_bert(tmp_path / "m", vocab_size=len(words))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    explained = run("explain", folder, "Anna saw Berlin", "--format", "json").json
    (said,) = explained["provenance"]["warnings"]
    counted = f"3 of {len(set(words))} pieces can never be given because of capitals"
    assert f"{counted} (Berlin, Anna, ##A)" in said
    assert "set do_lower_case to false in its tokenizer_config.json" in said
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    explained = run("explain", folder, "Anna saw Berlin", "--format", "json").json
    assert explained["tokens"] == ["[CLS]", "Anna", "saw", "Berlin", "[SEP]"]
    assert explained["provenance"]["warnings"] == []
