"""Labels as a model's classes: one reading for a file; rows without a label."""

import random
from pathlib import Path

import pytest

from headscope.core.errors import CorpusError, InputError
from headscope.data.examples import Examples, read_labelled
from headscope.data.labels import class_ids, class_number, read_alike, tag_ids, with_labels

STARS = {i: str(i + 1) for i in range(5)}
MOODS = {0: "negative", 1: "Positive"}
DEFAULT = {0: "LABEL_0", 1: "LABEL_1"}
NLI = {0: "entailment", 1: "neutral", 2: "contradiction"}


def labelled(*labels: str) -> Examples:
    texts = tuple(f"text {i}" for i in range(len(labels)))
    lines = tuple(range(2, 2 + len(labels)))
    return Examples("x.tsv", "", first=texts, labels=labels, lines=lines)


@pytest.mark.parametrize(
    ("names", "labels", "numbers"),
    [
        (MOODS, ["NEGATIVE", "positive"], [0, 1]),
        (MOODS, ["1", "0.0", "1."], [1, 0, 1]),
        (STARS, list("01234"), [0, 1, 2, 3, 4]),  # 0 is no name, so all are numbers
        (STARS, list("12345"), [0, 1, 2, 3, 4]),  # 5 is no number, so all are names
        (STARS, ["1.0", "3.0"], [1, 3]),
        ({0: "0", 1: "1"}, ["1", "0"], [1, 0]),  # both fit, and agree
        (DEFAULT, ["LABEL_1", "label_0"], [1, 0]),
        (DEFAULT, ["true", "False"], [1, 0]),
        ({0: "True", 1: "False"}, ["true", "false"], [0, 1]),
        ({0: "us", 1: "US"}, ["US", "us"], [1, 0]),
        ({0: "-1", 1: "0", 2: "1"}, ["-1", "0", "1"], [0, 1, 2]),
    ],
)
def test_all_labels_have_one_reading(names, labels, numbers):
    examples = with_labels(labelled(*labels), names)
    assert examples.labels == tuple(labels)
    assert class_ids(examples, names) == tuple(numbers)


@pytest.mark.parametrize(
    ("names", "labels", "says"),
    [
        (
            STARS,
            list("1234"),
            "1, 2, 3, 4 mean other class .* as names .1 is 0, .* than as numbers",
        ),
        (MOODS, ["1", "negative"], "line 2: '1' is the number .* 'negative' .*line 3. the name"),
        (MOODS, ["negative", "2"], r"line 3: the model has no class '2'; it knows 0 \(negative\)"),
        (MOODS, ["true", "false"], "line 2: the model has no class 'true'"),
        ({0: "us", 1: "US"}, ["Us", "US"], "line 2: the model has no class 'Us'"),
        (MOODS, ["1_0", "0"], "line 2: the model has no class '1_0'"),
    ],
)
def test_labels_without_one_reading_are_refused(names, labels, says):
    with pytest.raises(InputError, match=f"x.tsv.*{says}"):
        class_ids(labelled(*labels), names)


def test_the_whole_file_says_how_a_part_is_read():
    """A draw without 0 and without 5 would fit both readings."""
    all_examples = labelled(*"0123401234")
    for seed in range(20):
        few_examples = all_examples.draw(3, seed)
        assert class_ids(few_examples, STARS) == tuple(
            int(label) for label in few_examples.labels or ()
        )
    assert all_examples.pick([1, 2]).pick([0]).labels_of_file == tuple("01234")


def test_evaluation_and_calibration_are_read_alike():
    numbers = labelled(*"0123")
    either = labelled(*"1234")
    names = labelled(*"2345")
    for evaluation, other in ((numbers, either), (either, numbers)):
        evaluation_and_calibration = read_alike(evaluation, other)
        ids = [class_ids(examples, STARS) for examples in evaluation_and_calibration]
        assert ids == [tuple(map(int, e.labels or ())) for e in evaluation_and_calibration]
    with pytest.raises(InputError, match=r"'5'|'0'"):
        class_ids(read_alike(numbers, names)[0], STARS)


@pytest.mark.parametrize("mark", ["-", "-1", "", "-1.0"])
def test_rows_without_a_label_are_left_out_and_counted(mark):
    examples = labelled("0", mark, "1", "2", mark)
    with_a_label = with_labels(examples, NLI)
    assert (with_a_label.labels, with_a_label.lines) == (("0", "1", "2"), (2, 4, 5))
    assert with_a_label.notes == (
        f"x.tsv: 2 of 5 examples have no label ({mark!r}) and are left out.",
    )
    assert class_ids(with_a_label, NLI) == (0, 1, 2)
    with pytest.raises(CorpusError, match="3 of 4 examples have no label"):
        with_labels(labelled(mark, "1", mark, mark), NLI)


def test_without_a_model_minus_one_beside_numbers_may_be_a_class():
    with pytest.raises(CorpusError, match="line 2: the label -1 may be a class"):
        with_labels(labelled("-1", "0", "1"), None)
    assert with_labels(labelled("-1", "yes", "no"), None).labels == ("yes", "no")
    assert with_labels(labelled("-", "0", "1"), None).labels == ("0", "1")


def test_empty_cells_and_null_are_no_label(tmp_path: Path):
    (tmp_path / "x.tsv").write_text("sentence\tlabel\na b\t1\nc d\t\ne f\t0\n")
    assert read_labelled(tmp_path / "x.tsv").labels == ("1", "", "0")
    rows = '{"text": "a", "label": 1}\n{"text": "b", "label": null}\n{"text": "c", "label": 0}\n'
    (tmp_path / "x.jsonl").write_text(rows)
    assert read_labelled(tmp_path / "x.jsonl").labels == ("1", "", "0")


def test_tags_are_read_as_labels_are():
    def tagged(*rows: str) -> Examples:
        tags = tuple(tuple(row.split()) for row in rows)
        return Examples("t.txt", "", first=tuple(rows), tags=tags, lines=(1, 4))

    assert tag_ids(tagged("0 1", "2 0"), {0: "1", 1: "2", 2: "3"}, "m") == [(0, 1), (2, 0)]
    assert tag_ids(tagged("noun -", "NOUN noun"), {0: "NOUN", 1: "-"}, "m") == [(0, 1), (0, 0)]
    with pytest.raises(InputError, match=r"t.txt, line 4: m has no tag 'X'; it knows 0 .NOUN., "):
        tag_ids(tagged("NOUN VERB", "X VERB"), {0: "NOUN", 1: "VERB"}, "m")
    with pytest.raises(InputError, match="0, 1, 2 mean other tag numbers of m as names"):
        tag_ids(tagged("0 1", "2 0"), {0: "1", 1: "2", 2: "0"}, "m")


def test_random_files_are_read_by_every_label_or_refused():
    """An oracle that tries both readings on every label."""
    rng = random.Random(0)
    read = refused = 0
    for _ in range(300):
        names = dict(enumerate(rng.sample(["0", "1", "2", "a", "b", "A"], 3)))
        labels = rng.choices(["0", "1", "2", "a", "b"], k=rng.randint(2, 4))
        unique = {n.lower(): i for i, n in names.items()}
        exact = {n: i for i, n in names.items()}
        folds = [n.lower() for n in names.values()]
        by_name = [
            exact.get(x, unique.get(x) if folds.count(x.lower()) == 1 else None) for x in labels
        ]
        by_number = [int(x) if x in "012" else None for x in labels]
        readings = {tuple(ids) for ids in (by_name, by_number) if None not in ids}
        if len(readings) == 1:
            assert class_ids(labelled(*labels), names) == readings.pop()
            read += 1
        else:
            with pytest.raises(InputError):
                class_ids(labelled(*labels), names)
            refused += 1
    assert min(read, refused) > 50


def test_one_label_that_a_user_names():
    assert class_number("positive", MOODS, "m") == class_number("1", MOODS, "m") == 1
    assert (class_number("5", STARS, "m"), class_number("0", STARS, "m")) == (4, 0)
    with pytest.raises(InputError, match="label 2 means another class number of m as name"):
        class_number("2", STARS, "m")
    with pytest.raises(InputError, match=r"m has no class 'so'; it knows 0 .negative., 1 "):
        class_number("so", MOODS, "m")
