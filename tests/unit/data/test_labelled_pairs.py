"""Labelled pairs and alignments, from files to sentences, and what is said of bad ones."""

from pathlib import Path

import pytest
from tiny_models import TextOnly

from headscope.core.errors import CorpusError
from headscope.data.corpus import AlignedPair, as_corpus, corpus_of_pairs, open_pairs
from headscope.data.files import Sentence
from headscope.data.pairs import (
    collate_aligned,
    encode_aligned,
    open_labelled,
    straight,
    with_alignments,
)
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
    found = {sentence.text: set(sentence.pairs or ()) for sentence in corpus}
    assert found == {"a b c": {(0, 1, "x"), (1, 2, "y:z")}, "d e f": {(2, 0, "x")}}
    assert (corpus.n_sentences, set(corpus.labels)) == (2, {"x", "y:z"})
    assert not (corpus.characters)
    assert not (corpus.has_trees)


def test_copies_of_a_text_are_one_sentence_in_blocks_too(tmp_path: Path) -> None:
    blocks = "a b\t0\t1\tx\n\na b\n\na  b\t1\t0\tx\na b\t0\t1\tx\n\n\nc d\t0\t1\tx\n"
    found = {sentence.text: sentence.pairs for sentence in open_labelled(written(tmp_path, blocks))}
    assert found == {"a b": ((0, 1, "x"), (1, 0, "x")), "c d": ((0, 1, "x"),)}


def test_halves_and_controls_of_pairs_go_by_text(tmp_path: Path) -> None:
    """Texts that differ in case alone are one text; the control has another one."""
    texts = ["a b", "A b", "c d", "a B", "e f", "C d"]
    rows = "".join(f"{text}\t0\t1\tx\n" for text in texts)
    found = list(placed(open_labelled(written(tmp_path, rows))))
    assert [item.half for item in found] == [0, 0, 1, 0, 0, 1]
    swapped = [item.swapped and item.swapped.text for item in found]
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
        ("0-0 1-1\n0-0\n", "holds no pair; .* table of source and target"),
    ],
)
def test_bad_pairs_are_named_by_their_line(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(CorpusError, match=f"pairs.tsv.*{said}"):
        open_labelled(path)


TABLE = "the cat\tle chat noir\nblack\tnoir\nno dog\tpas de chien\na cow\tune vache rousse\n"


def test_alignments_of_a_table(tmp_path: Path) -> None:
    table = written(tmp_path, TABLE, "table.tsv")
    links = written(tmp_path, "0-0 1-1 1?2\n0-0\n\n0-0 1-1 1p2 1-1\n", "table.align")
    corpus = with_alignments(open_pairs(table), links)
    assert corpus.aligned is not None
    first, second, third, last = corpus.aligned()
    assert first.words == (((0, 3), (4, 7)), ((0, 2), (3, 7), (8, 12)))
    assert first.links == ((0, 0, True), (1, 1, True), (1, 2, False)) == last.links
    assert [pair.half for pair in corpus.aligned()] == [0, 1, 0, 1]
    # The control: of the pair before with as many words on both sides.
    assert (first.swapped, second.swapped, third.swapped) == ((), (), first.links)
    assert last.swapped == third.links == ()
    assert corpus.labels_of("cross") == ("aligned",)
    assert corpus.labels_of("encoder") == ()
    assert corpus.sources.labels_of("encoder") == ()
    assert corpus.sha256 != open_pairs(table).sha256


def test_alignments_of_texts_that_come_again(tmp_path: Path) -> None:
    """Pairs that share a text lie in one half; a row that repeats both texts is left out."""
    rows = [("a b", "x y"), ("c d", "z u"), ("A b", "x  y"), ("a b", "v w"), ("e f", "v w")]
    table = written(tmp_path, "".join(f"{s}\t{t}\n" for s, t in rows), "table.tsv")
    links = written(tmp_path, "0-0\n1-1\n0-1\n1-0\n0-0 1-1\n", "table.align")
    corpus = with_alignments(open_pairs(table), links)
    assert (corpus.n_pairs, corpus.pairs and len(list(corpus.pairs()))) == (4, 4)
    assert corpus.note == "Rows that repeat an earlier pair of texts are left out: 1 of 5."
    assert corpus.aligned is not None
    found = list(corpus.aligned())
    assert [pair.half for pair in found] == [0, 1, 0, 0]
    assert [pair.swapped for pair in found] == [(), found[0].links, *[found[1].links] * 2]


def test_sides_without_spaces_are_counted_in_characters(tmp_path: Path) -> None:
    corpus = corpus_of_pairs("memory", "0", lambda: iter([("ab", "x y"), ("c", "z")]))
    corpus = with_alignments(corpus, written(tmp_path, "0-0 1-1\n0-0\n"))
    assert corpus.aligned is not None
    assert [[len(side) for side in pair.words] for pair in corpus.aligned()] == [[2, 2], [1, 1]]


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ("0-0\n0-0\n\n", r"has 3 lines, and .* 4 pairs"),
        ("0-0\n0-0\n0-0\n2-0\n", r"line 4: the link 2-0 names word 2 of the source, which has 2"),
        ("0-0\n0-0\n0-0\n0-3\n", r"line 4: the link 0-3 names word 3 of the target, which has 3"),
        ("0-0\n0:0\n0-0\n0-0\n", r"line 2: '0:0' is no link"),
        ("0-0\n\n0-0\n\n", r"line 4: .* none of those has a pair of words"),
    ],
)
def test_bad_alignments_are_named_by_their_line(tmp_path: Path, links: str, said: str) -> None:
    table = written(tmp_path, TABLE, "table.tsv")
    path = written(tmp_path, links)
    with pytest.raises(CorpusError, match=f"pairs.tsv.*{said}"):
        with_alignments(open_pairs(table), path)
    with pytest.raises(CorpusError, match=r"holds sentences.*table of source and target"):
        with_alignments(as_corpus(None), path)


@pytest.mark.parametrize(("n_source", "n_target"), [(1, 1), (1, 4), (5, 1), (5, 5), (4, 7), (9, 3)])
def test_the_straight_line_joins_the_ends(n_source: int, n_target: int) -> None:
    line = straight(n_source, n_target, n_target).tolist()
    share = (n_source - 1) / max(n_target - 1, 1)
    assert line == [int(i * share + 0.5) for i in range(n_target)]


def test_a_word_without_a_piece_is_left_out_with_its_links():
    """Its pair is kept, and so are all other links."""
    words = ((0, 3), (4, 5), (6, 9)), ((0, 1), (2, 5), (6, 7))
    links = ((0, 0, True), (1, 1, True), (2, 1, False), (2, 2, True))
    pair = AlignedPair("the \u200b cat", "a cat \u200b", words, links, 0, ((1, 0, True),))
    (row,) = encode_aligned(TextOnly(), [pair], Ends(2, 3))
    assert row is not None
    assert row.pair.links == ((0, 0, True), (2, 1, False))
    assert row.pair.swapped == ()
    batch = collate_aligned([row], pad_id=0)
    assert batch.words is not None
    assert batch.words.pieces.tolist() == [[1, 0, 1]]
    assert batch.words.queries.tolist() == [[True, True, False]]
    assert batch.words.possible.nonzero().tolist() == [[0, 0, 0], [0, 1, 2]]
    assert batch.words.sure.nonzero().tolist() == [[0, 0, 0]]
