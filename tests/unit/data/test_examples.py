"""Labelled files of every form, the line that an error names, and sentences that files share."""

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from headscope.core.errors import CorpusError
from headscope.data.corpus import as_plain
from headscope.data.examples import (
    Examples,
    read_labelled,
    read_pairs,
    read_texts,
    read_translations,
)
from headscope.data.unshared import lines_without_shared, without_shared


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


SAME = {
    "header.tsv": 'sentence\tlabel\na "b c\t1\nd, e\t0\n',
    "order.tsv": 'label\tidx\tsentence\n1\t7\ta "b c\n0\t8\td, e\n',
    "bare.tsv": 'a "b c\t1\n\nd, e\t0\n',
    "other.txt": 'a "b c\t1\nd, e\t0\n',
    "header.csv": 'Text,Label\n"a ""b c",1\n"d, e",0\n',
    "lines.jsonl": '{"text": "a \\"b c", "label": 1}\n\n{"sentence": "d, e", "label": "0"}\n',
}


@pytest.mark.parametrize("name", SAME)
def test_labelled_files_of_every_form_say_the_same(name, tmp_path):
    examples = read_labelled(written(tmp_path, name, SAME[name]))
    assert examples.first == ('a "b c', "d, e")
    assert examples.second is None
    assert examples.labels == ("1", "0")
    lines = SAME[name].splitlines()
    assert ["b c" in lines[examples.lines[0] - 1], "d, e" in lines[examples.lines[1] - 1]] == [
        True
    ] * 2


def test_pairs_with_a_class_or_with_scores(tmp_path):
    examples = read_labelled(written(tmp_path, "x.tsv", "a\tb\tyes\nc\td\tno\n"))
    assert (examples.first, examples.second, examples.labels) == (
        ("a", "c"),
        ("b", "d"),
        ("yes", "no"),
    )
    for text in (
        'One.,"Two, too.",5.0\nThree.,Four.,1\n',
        'sentence1,sentence2,score\nOne.,"Two, too.",5.0\nThree.,Four.,1\n',
        'score,sentence2,sentence1\n5.0,"Two, too.",One.\n1,Four.,Three.\n',
    ):
        examples = read_pairs(written(tmp_path, "x.csv", text))
        assert (examples.first, examples.second) == (("One.", "Three."), ("Two, too.", "Four."))
        assert examples.scores == (5.0, 1.0)
        assert examples.texts == ("One.", "Three.", "Two, too.", "Four.")


#: For each reader: what is wrong, the file's name, its text and what is said of it.
WRONG: dict[Any, list[tuple[str, str, str, str]]] = {
    read_labelled: [
        ("empty", "x.tsv", "", "no example"),
        ("no label column", "x.tsv", "sentence\nabc\ndef\n", "line 1: the header"),
        ("row too short", "x.tsv", "sentence\tlabel\na\t1\nb\n", "line 3: 1 column where .* 2"),
        ("one column", "x.tsv", "a\t1\nb\n", "line 2: 1 column where .* has 2"),
        ("constant", "x.tsv", "a\t1\nb\t1\n", "all 2 examples have the label '1'"),
        ("half paired", "x.tsv", "a\tc\t1\nb\t\t0\n", "line 2: no sentence2"),
        ("broken JSON", "x.jsonl", '{"a": 1\n', "line 1: not valid JSON"),
    ],
    read_pairs: [
        ("one line", "x.csv", "a,b,1\n", "one example"),
        ("score in words", "x.csv", "a,b,2\nc,d,high\n", "line 2: the score 'high'"),
        ("score is NaN", "x.csv", "a,b,2\nc,d,nan\n", "line 2: the score 'nan'"),
        ("open quote", "x.csv", 'a,b,2\n"c,d,3\n', "not valid CSV"),
    ],
    read_translations: [
        ("two", "x.tsv", "a\tb\nc\n", "line 2: 1 column where the first row has 2"),
        ("one", "x.tsv", "a\nb\n", r"line 1: 1 column where 2 are expected \(source, target\)"),
        ("no source", "x.tsv", "a\tb\n\t c\n", "line 2: no source; give every row source"),
        ("no column", "x.tsv", "source\tscore\na\tb\n", "line 1: the header has no column target"),
    ],
}
CASES = []
for read, cases in WRONG.items():
    CASES += [pytest.param(read, *row, id=case) for case, *row in cases]


@pytest.mark.parametrize(("read", "name", "text", "message"), CASES)
def test_wrong_files(read, name, text, message, tmp_path):
    path = written(tmp_path, name, text)
    with pytest.raises(CorpusError, match=message) as raised:
        read(path)
    assert name in str(raised.value)


def test_a_limit_draws_at_random_in_the_order_of_the_file(tmp_path):
    """Files are sorted; every row is as likely as another, and the seed says which."""
    path = written(tmp_path, "x.tsv", "".join(f"row {i}\t{i % 2}\n" for i in range(20)))
    drawn = [read_labelled(path).draw(5, seed) for seed in range(200)]
    for drawn_examples in drawn:
        places = [int(text.removeprefix("row ")) for text in drawn_examples.first]
        assert places == sorted(set(places))
        assert drawn_examples.lines == tuple(row + 1 for row in places)
        assert drawn_examples.labels == tuple(str(row % 2) for row in places)
    times = Counter(chain.from_iterable(drawn_examples.first for drawn_examples in drawn))
    assert (len(times), min(times.values()) > 25, max(times.values()) < 80) == (20, True, True)
    assert drawn[3] == read_labelled(path).draw(5, 3)
    assert drawn[3].drawn == "5 of 20 examples, chosen at random (seed 3)"
    assert read_labelled(path).draw(20, 3).drawn == read_labelled(path).draw(None, 3).drawn == ""
    lines = written(tmp_path, "x.txt", "".join(f"line {i}\n" for i in range(20)))
    texts = [read_texts(lines, 5, seed) for seed in range(2)]
    assert texts[0].first != texts[1].first
    assert texts[1] == read_texts(lines).draw(5, 1)


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("bare.tsv", "x\ty\n\n zu \ta, b\n", (1, 3)),
        ("turned.csv", 'Target,Source\ny,x\n"a, b",zu\n', (2, 3)),
        ("l.jsonl", '{"source": "x", "target": "y"}\n{"target": "a, b", "source": "zu"}', (1, 2)),
    ],
)
def test_translations_of_every_form_say_the_same(name, text, lines, tmp_path):
    examples = read_translations(written(tmp_path, name, text))
    assert (examples.first, examples.second, examples.labels) == (("x", "zu"), ("y", "a, b"), None)
    assert examples.lines == lines


def pairs(*texts: str) -> Examples:
    first, second = zip(*(text.split("|") for text in texts), strict=True)
    return Examples("pairs", "", first=first, second=second, scores=tuple(range(len(texts))))


TEST = pairs("A man plays.|Someone  makes music.", "It rained.|It was wet.")


def test_either_side_of_a_pair_counts_whatever_its_case_and_white_space():
    train = pairs(
        "Someone makes music. |A dog ran.",  # the second side of a test pair, now the first
        "A cat sat.|It\trained.",
        "A cat sat.|A dog ran.",
        "IT RAINED.|A dog ran.",  # case counts no more than white space does
        "She sat.|A dog ran.",
    )
    unshared = without_shared(train, TEST)
    assert unshared.examples.first == ("A cat sat.", "She sat.")
    assert unshared.examples.scores == (2, 4)
    assert (unshared.dropped, unshared.shared, unshared.sentences, unshared.same) == (
        3,
        2,
        4,
        False,
    )
    nothing = without_shared(train.pick([2, 4]), TEST)
    assert (nothing.dropped, nothing.shared, nothing.same) == (0, 0, False)


def test_where_nothing_would_be_left_everything_stays_and_is_told():
    unshared = without_shared(TEST, TEST)
    assert (unshared.examples, unshared.dropped, unshared.shared, unshared.same) == (
        TEST,
        0,
        4,
        True,
    )


@pytest.mark.parametrize("ordered", [False, True], ids=["retrieval", "rerank"])
def test_queries_and_documents_count(ordered):
    """A query goes if it is shared, or if no relevant document of its own is left."""
    train = Examples(
        "train",
        "",
        first=("what rained", "who plays", "where", "why"),
        documents=("It rained.", "A man plays.", "Here.", "There.", "So."),
        relevance=({2: 1.0}, {1: 1.0, 3: 0.0}, {1: 1.0, 3: 2.0}, {4: 1.0}),
        candidates=((0, 2), (1, 3), (1, 3, 4), (4, 0)) if ordered else None,
    )
    test = Examples("test", "", first=("what rained", "how"), documents=("A man plays.", "Now."))
    unshared = without_shared(train, test)
    # The second query loses its only relevant document; "why" keeps two that can be ordered.
    assert unshared.examples.first == ("where", "why")
    assert unshared.examples.documents == ("It rained.", "Here.", "There.", "So.")
    assert unshared.examples.relevance == ({2: 2.0}, {3: 1.0})
    assert unshared.examples.candidates == (((2, 3), (3, 0)) if ordered else None)
    assert (unshared.dropped, unshared.shared) == (2 + 1, 2)


def test_lines_of_a_text():
    text = as_plain(["It rained.", "One.", " It was wet.", "Two."])
    assert list(lines_without_shared(text, TEST).lines()) == ["One.", "Two."]
    assert lines_without_shared(text, TEST).n_sentences == 2
    same = as_plain(["It rained."])
    assert lines_without_shared(same, TEST) is same
