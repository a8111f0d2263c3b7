"""Labelled files of every form, and the line that an error names."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headscope.core.errors import CorpusError, InputError
from headscope.data.examples import (
    class_ids,
    read_labelled,
    read_pairs,
    read_texts,
    read_translations,
)


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


SAME = {
    "header.tsv": 'sentence\tlabel\na "b c\t1\nd, e\t0\n',
    "order.tsv": 'label\tidx\tsentence\n1\t7\ta "b c\n0\t8\td, e\n',
    "bare.tsv": 'a "b c\t1\n\nd, e\t0\n',
    "other.txt": 'a "b c\t1\nd, e\t0\n',
    "header.csv": 'Text,Label\n"a ""b c",1\n"d, e",0\n',
    "bare.csv": '"a ""b c",1\n"d, e",0\n',
    "lines.jsonl": '{"text": "a \\"b c", "label": 1}\n\n{"sentence": "d, e", "label": "0"}\n',
}


@pytest.mark.parametrize("name", SAME)
def test_labelled_files_of_every_form_say_the_same(name, tmp_path):
    found = read_labelled(written(tmp_path, name, SAME[name]))
    assert found.first == ('a "b c', "d, e")
    assert found.second is None
    assert found.labels == ("1", "0")
    lines = SAME[name].splitlines()
    assert ["b c" in lines[found.lines[0] - 1], "d, e" in lines[found.lines[1] - 1]] == [True] * 2


def test_pairs_with_a_class_or_with_scores(tmp_path):
    found = read_labelled(written(tmp_path, "x.tsv", "a\tb\tyes\nc\td\tno\n"))
    assert (found.first, found.second, found.labels) == (("a", "c"), ("b", "d"), ("yes", "no"))
    for text in (
        'One.,"Two, too.",5.0\nThree.,Four.,1\n',
        'sentence1,sentence2,score\nOne.,"Two, too.",5.0\nThree.,Four.,1\n',
        'score,sentence2,sentence1\n5.0,"Two, too.",One.\n1,Four.,Three.\n',
    ):
        found = read_pairs(written(tmp_path, "x.csv", text))
        assert (found.first, found.second) == (("One.", "Three."), ("Two, too.", "Four."))
        assert found.scores == (5.0, 1.0)
        assert found.texts == ("One.", "Three.", "Two, too.", "Four.")


#: For each reader: what is wrong, the file's name, its text and what is said of it.
WRONG: dict[Any, list[tuple[str, str, str, str]]] = {
    read_labelled: [
        ("no such file", "gone.tsv", "", "no file"),
        ("empty", "x.tsv", "", "no example"),
        ("no label column", "x.tsv", "sentence\nabc\ndef\n", "line 1: the header"),
        ("row too short", "x.tsv", "sentence\tlabel\na\t1\nb\n", "line 3: no label"),
        ("one column", "x.tsv", "a\t1\nb\n", "line 2: 1 column where 2 or 3"),
        ("constant", "x.tsv", "a\t1\nb\t1\n", "all 2 examples have the label '1'"),
        ("half paired", "x.tsv", "a\tc\t1\nb\t\t0\n", "line 2: no sentence2"),
        ("broken JSON", "x.jsonl", '{"a": 1\n', "line 1: not valid JSON"),
    ],
    read_pairs: [
        ("one line", "x.csv", "a,b,1\n", "one example"),
        ("constant score", "x.csv", "a,b,2\nc,d,2.0\n", "all 2 pairs have the score 2"),
        ("score in words", "x.csv", "a,b,2\nc,d,high\n", "line 2: the score 'high'"),
        ("score is NaN", "x.csv", "a,b,2\nc,d,nan\n", "line 2: the score 'nan'"),
        ("open quote", "x.csv", 'a,b,2\n"c,d,3\n', "not valid CSV"),
    ],
    read_texts: [("one line of text", "x.txt", "a\n", "one example")],
    read_translations: [
        ("two", "x.tsv", "a\tb\nc\n", r"line 2: 1 column where 2 are expected \(source, target\)"),
        ("no source", "x.tsv", "a\tb\n\t c\n", "line 2: no source; give every row source"),
        ("no target", "x.tsv", "source\ttarget\na\tb\nc\t \n", "line 3: no target"),
        ("no column", "x.tsv", "source\tscore\na\tb\n", "line 1: the header has no column target"),
    ],
}
CASES = [pytest.param(read, *row, id=case) for read, cases in WRONG.items() for case, *row in cases]


@pytest.mark.parametrize(("read", "name", "text", "message"), CASES)
def test_wrong_files(read, name, text, message, tmp_path):
    if name != "gone.tsv":
        written(tmp_path, name, text)
    with pytest.raises(CorpusError, match=message) as raised:
        read(tmp_path / name)
    assert name in str(raised.value)


def test_a_limit_draws_at_random_in_the_order_of_the_file(tmp_path):
    """Files are sorted; every row is as likely as another, and the seed says which."""
    path = written(tmp_path, "x.tsv", "".join(f"{i}\t{i % 2}\n" for i in range(20)))
    drawn = [read_labelled(path).draw(5, seed) for seed in range(200)]
    for found in drawn:
        places = [int(text) for text in found.first]
        assert places == sorted(set(places))
        assert found.lines == tuple(place + 1 for place in places)
        assert found.labels == tuple(str(place % 2) for place in places)
    times = Counter(text for found in drawn for text in found.first)
    assert (len(times), min(times.values()) > 25, max(times.values()) < 80) == (20, True, True)
    assert drawn[3] == read_labelled(path).draw(5, 3)
    assert drawn[3].drawn == "5 of 20 examples, chosen at random (seed 3)"
    assert read_labelled(path).draw(20, 3).drawn == read_labelled(path).draw(None, 3).drawn == ""
    lines = written(tmp_path, "x.txt", "".join(f"line {i}\n" for i in range(20)))
    texts = [read_texts(lines, 5, seed) for seed in range(2)]
    assert texts[0].first != texts[1].first
    assert texts[1] == read_texts(lines).draw(5, 1)


def test_labels_by_name_and_number(tmp_path):
    names = {0: "negative", 1: "Positive"}
    path = written(tmp_path, "x.tsv", "a\t1\nb\tNEGATIVE\nc\tpositive\nd\t0.0\n")
    assert class_ids(read_labelled(path), names) == (1, 0, 1, 0)
    path = written(tmp_path, "x.tsv", "a\t1\nb\t2\n")
    with pytest.raises(InputError, match=r"line 2: the model has no class '2'; it knows 0 \(nega"):
        class_ids(read_labelled(path), names)


TRANSLATIONS = {
    "bare.tsv": 'aus "x"\tfrom "x"\n\n zu \tto, too\n',
    "header.tsv": 'source\ttarget\naus "x"\tfrom "x"\nzu\tto, too\n',
    "turned.tsv": 'Target\tSource\nfrom "x"\taus "x"\nto, too\tzu\n',
    "bare.csv": '"aus ""x""","from ""x"""\nzu, "to, too"\n'.replace(', "', ',"'),
    "lines.jsonl": '{"source": "aus \\"x\\"", "target": "from \\"x\\""}\n'
    '{"target": "to, too", "source": "zu"}\n',
}


@pytest.mark.parametrize("name", TRANSLATIONS)
def test_translations_of_every_form_say_the_same(name, tmp_path):
    found = read_translations(written(tmp_path, name, TRANSLATIONS[name]))
    assert found.first == ('aus "x"', "zu")
    assert found.second == ('from "x"', "to, too")
    lines = TRANSLATIONS[name].splitlines()
    assert ["aus" in lines[found.lines[0] - 1], "zu" in lines[found.lines[1] - 1]] == [True] * 2
    assert found.labels is None
