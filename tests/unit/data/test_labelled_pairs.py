"""Labelled pairs, from files to sentences, and what is said of bad ones."""

from pathlib import Path

import pytest
from tiny_models import TextOnly

from headscope.core.errors import CorpusError
from headscope.data.corpus import LabelledTexts
from headscope.data.cross_pairs import collate_labelled, encode_labelled, words_on_line
from headscope.data.pairs import open_labelled
from headscope.data.sentences import Sentence
from headscope.data.token_rows import Ends
from headscope.data.word_pieces import placed

TWO = "a b c\t0\t1\tx\nd e f\t2\t0\tx\n"


def written(folder: Path, text: str, name: str = "pairs.tsv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("rows", [slice(None), slice(None, None, -1)])
def test_rows_with_the_same_text_are_one_sentence(tmp_path: Path, rows: slice) -> None:
    lines = ["a b c\t0\t1\tx", "d e f\t2\t0\tx", "a b c\t1\t2\ty:z", "a b c\t0\t1\tx"][rows]
    corpus = open_labelled(written(tmp_path, "\n".join(lines)))
    pairs_of = {sentence.text: set(sentence.pairs or ()) for sentence in corpus}
    assert pairs_of == {"a b c": {(0, 1, "x"), (1, 2, "y:z")}, "d e f": {(2, 0, "x")}}
    assert (corpus.n_sentences, set(corpus.labels)) == (2, {"x", "y:z"})
    assert not (corpus.characters)
    assert not (corpus.has_trees)


def test_copies_of_a_text_are_one_sentence_in_blocks_too(tmp_path: Path) -> None:
    blocks = "a b\t0\t1\tx\n\na b\n\na  b\t1\t0\tx\na b\t0\t1\tx\n\n\nc d\t0\t1\tx\n"
    pairs_of = {
        sentence.text: sentence.pairs for sentence in open_labelled(written(tmp_path, blocks))
    }
    assert pairs_of == {"a b": ((0, 1, "x"), (1, 0, "x")), "c d": ((0, 1, "x"),)}


def test_halves_and_controls_of_pairs_go_by_text(tmp_path: Path) -> None:
    """Texts that differ in case alone are one text; the control has another one."""
    texts = ["a b", "A b", "c d", "a B", "e f", "C d"]
    rows = "".join(f"{text}\t0\t1\tx\n" for text in texts)
    items = list(placed(open_labelled(written(tmp_path, rows))))
    assert [item.half for item in items] == [0, 0, 1, 0, 0, 1]
    swapped = [item.swapped and item.swapped.text for item in items]
    assert swapped == [None, None, "A b", "c d", "a B", "e f"]
    # Sentences of a treebank are halved by their index, and their controls differ all the same.
    trees = [Sentence(tuple(text.split()), (-1, 0), ("root", "x")) for text in texts]
    assert [item.half for item in placed(trees)] == [0, 1] * 3
    assert [item.swapped and item.swapped.text for item in placed(trees)] == swapped
    with pytest.raises(CorpusError, match="none of those has a pair"):
        open_labelled(written(tmp_path, "".join(f"{text}\t0\t1\tx\n" for text in texts[:2])))


def test_headers_json_and_characters(tmp_path: Path) -> None:
    header = "label\ttext\tto\tfrom\nx\ta b\t1\t0\nx\tc d\t1\t0\n"
    rows = [(0, 1, "x")]
    assert [list(s.pairs or ()) for s in open_labelled(written(tmp_path, header))] == [rows, rows]
    lines = '{"text": "MKV", "from": 0, "to": 2, "label": "contact"}\n'
    lines += '{"text": "KM", "from": 1, "to": 0, "label": "contact"}\n'
    corpus = open_labelled(written(tmp_path, lines, "contacts.jsonl"))
    assert [s.words for s in corpus] == [("M", "K", "V"), ("K", "M")]
    assert corpus.characters


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TWO + "a b c\t3\t1\tx\n", r"line 3: from is '3', but the text has 3 words .* 0 to 2"),
        (TWO + "a b c\t0\t-1\tx\n", r"line 3: to is '-1'"),
        (TWO + f"a b c\t{'9' * 5000}\t1\tx\n", r"line 3: from is '999"),
        (TWO + "a b c\t2\t2\tx\n", r"line 3: both ends of the pair are 'c', word 2; .* pieces"),
        (TWO + "a b c\t2\t1\t\n", r"line 3: no label"),
        (TWO + "a b c\t1\tx\n", r"line 3: 3 columns where .* has 4"),
        (TWO + "a b c\t0\t1\tx\x07\n", r"line 3: the label .* cannot be shown"),
        ("a b c\t0\t1\tx\na b c\t1\t2\ty\n", r"line 2: .* none of those has a pair"),
        ("0-0 1-1\n0-0\n", "holds no pair; .* or of source, target"),
    ],
)
def test_bad_pairs_are_named_by_their_line(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(CorpusError, match=f"pairs.tsv.*{said}"):
        open_labelled(path)


def cross_rows(*rows: str) -> str:
    return "source\ttarget\tfrom\tto\tlabel\n" + "".join(f"{row}\n" for row in rows)


def test_pairs_of_source_and_target(tmp_path: Path) -> None:
    """``from`` counts words of the target, ``to`` words of the source."""
    rows = [
        "the cat\tle chat noir\t0\t0\tx",
        "the cat\tle chat noir\t1\t1\ty",
        "black\tnoir\t0\t0\tx",
        "no dog\tpas de chien\t\t\t",
        "a cow\tune vache rousse\t2\t1\tx",
        "a cow\tune vache rousse\t2\t1\tx",
    ]
    corpus = open_labelled(written(tmp_path, cross_rows(*rows)))
    assert corpus.labelled is not None
    first, second, third, last = corpus.labelled()
    assert first.source_words == ((0, 3), (4, 7))
    assert first.target_words == ((0, 2), (3, 7), (8, 12))
    assert first.pairs == ((0, 0, "x"), (1, 1, "y"))
    assert last.pairs == ((2, 1, "x"),)
    assert [texts.half for texts in corpus.labelled()] == [0, 1, 0, 1]
    # The control: of the example before with as many words on both sides.
    assert (first.swapped, second.swapped, third.swapped) == ((), (), first.pairs)
    assert last.swapped == third.pairs == ()
    assert corpus.labels_of("cross") == ("x", "y")
    assert corpus.labels_of("encoder") == ()
    assert corpus.sources.labels_of("encoder") == ()
    assert (corpus.n_pairs, len(list(corpus.pairs()))) == (4, 4)


def test_sources_and_targets_that_come_again(tmp_path: Path) -> None:
    """Examples that share a text lie in one half; a copy but for case and spaces is left out."""
    texts = ["a b\tx y", "c d\tz u", "A b\tx  y", "a b\tv w", "e f\tv w"]
    rows = [f"{text}\t0\t1\tx" for text in texts]
    corpus = open_labelled(written(tmp_path, cross_rows(*rows)))
    assert corpus.labelled is not None
    read = list(corpus.labelled())
    assert [texts.half for texts in read] == [0, 1, 0, 0]
    assert [texts.swapped for texts in read] == [(), read[0].pairs, *[read[1].pairs] * 2]


def test_a_later_example_joins_two_groups(tmp_path: Path) -> None:
    """The third has the source of the first and the target of the second: all lie in one half."""
    texts = ["a b\tx y", "c d\tz u", "a b\tz u", "e f\tv w"]
    rows = [f"{text}\t0\t1\tx" for text in texts]
    corpus = open_labelled(written(tmp_path, cross_rows(*rows)))
    assert corpus.labelled is not None
    assert [texts.half for texts in corpus.labelled()] == [0, 0, 0, 1]


def test_sides_without_spaces_are_counted_in_characters(tmp_path: Path) -> None:
    corpus = open_labelled(written(tmp_path, cross_rows("ab\tx y\t0\t1\tx", "c\tz\t0\t0\tx")))
    assert corpus.labelled is not None
    read = [(len(texts.source_words), len(texts.target_words)) for texts in corpus.labelled()]
    assert read == [(2, 2), (1, 1)]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["a b\tx y z\t3\t0\tx"], r"line 2: from is '3', but the text has 3 words"),
        (["a b\tx y z\t0\t2\tx"], r"line 2: to is '2', but the text has 2 words"),
        (["a b\tx y z\t0\t\tx"], r"line 2: no to; give every row source, target, from"),
        (["a b\t\t0\t0\tx"], r"line 2: no target"),
        (["a b\tx y\t0\t0\tx", "c d\tx z\t\t\t"], "line 3: .* none of those has a pair"),
        (["a b\tx y\t\t\t"], "holds no pair"),
    ],
)
def test_bad_pairs_of_source_and_target_are_named_by_their_line(
    tmp_path: Path, rows: list[str], said: str
) -> None:
    with pytest.raises(CorpusError, match=f"pairs.tsv.*{said}"):
        open_labelled(written(tmp_path, cross_rows(*rows)))


@pytest.mark.parametrize(("n_source", "n_target"), [(1, 1), (1, 4), (5, 1), (5, 5), (4, 7), (9, 3)])
def test_the_words_on_line_line_joins_the_ends(n_source: int, n_target: int) -> None:
    line = words_on_line(n_source, n_target, n_target).tolist()
    share = (n_source - 1) / max(n_target - 1, 1)
    assert line == [int(i * share + 0.5) for i in range(n_target)]


def test_a_word_without_a_piece_is_left_out_with_its_pairs():
    """Its texts are kept, and so are all other pairs."""
    texts = LabelledTexts(
        source="the \u200b cat",
        target="a cat \u200b",
        source_words=((0, 3), (4, 5), (6, 9)),
        target_words=((0, 1), (2, 5), (6, 7)),
        pairs=((0, 0, "x"), (1, 1, "x"), (1, 2, "x"), (2, 2, "x")),
        half=0,
        swapped=((0, 1, "x"),),
    )
    (row,) = encode_labelled(TextOnly(), [texts], Ends(2, 3))
    assert row is not None
    assert row.texts.pairs == ((0, 0, "x"), (1, 2, "x"))
    assert row.texts.swapped == ()
    batch = collate_labelled([row], pad_id=0)
    assert batch.words is not None
    assert batch.words.pieces.tolist() == [[1, 0, 1]]
    assert batch.words.queries.tolist() == [[True, True, False]]
    edges = batch.words.edges
    assert list(zip(edges.query.tolist(), edges.target.tolist(), strict=True)) == [(0, 0), (1, 2)]
