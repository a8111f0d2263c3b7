"""Schemes of tags: every one by its rules, and a file's tags in those of a model's labels.

Oracles: seqeval, in its default mode and (where tags are well formed) in its strict one.
"""

import random
import warnings
from collections.abc import Iterator
from itertools import product

import pytest
from seqeval import scheme as strict
from seqeval.metrics.sequence_labeling import get_entities

from headscope.core.errors import CorpusError, InputError
from headscope.data.entities import Entity, Scheme, in_labels_of, scheme_of_file, scheme_of_model
from headscope.data.examples import Examples

TYPES = ("PER", "LOC")


def scheme_with(letters: str) -> Scheme:
    marks = {f"{letter}-{kind}": (letter, kind) for letter, kind in product(letters, TYPES)}
    return Scheme(letters, marks)


def drawn_entities(n: int) -> Iterator[tuple[int, set[Entity]]]:
    """Sentences whose entities often touch each other."""
    rng = random.Random(0)
    for _ in range(n):
        n_words = rng.randint(1, 10)
        word = 0
        entities: set[Entity] = set()
        while word < n_words:
            last = min(n_words - 1, word + rng.randint(0, 2))
            if rng.random() < 0.7:
                entities.add((rng.choice(TYPES), word, last))
                word = last
            word += 1
        yield n_words, entities


@pytest.mark.parametrize("letters", ["I", "IB", "IE", "BIES"])
def test_any_tags_are_read_as_seqeval_reads_them(letters: str) -> None:
    rng = random.Random(1)
    scheme = scheme_with(letters)
    tags = ["O", *scheme.marks]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2000):
            sentence = [rng.choice(tags) for _ in range(rng.randint(1, 8))]
            assert scheme.entities(sentence) == set(get_entities(sentence)), sentence


@pytest.mark.parametrize(
    ("letters", "oracle"),
    [
        ("IB", "IOB2"),
        ("IE", "IOE2"),
        ("BIES", "IOBES"),
        ("BILU", "BILOU"),
        ("BMES", ""),
        ("BMEW", ""),
    ],
)
def test_what_is_written_is_read(letters: str, oracle: str) -> None:
    scheme = scheme_with(letters)
    for n_words, entities in drawn_entities(500):
        written = scheme.written(entities, n_words, "O")
        assert None not in written
        tags = [tag for tag in written if tag is not None]
        assert scheme.entities(tags) == entities
        if oracle:
            seqeval_entities = strict.Tokens(tags, getattr(strict, oracle)).entities
            assert {(e.tag, e.start, e.end - 1) for e in seqeval_entities} == entities


def test_iob1_marks_only_what_touches_its_type() -> None:
    scheme = scheme_with("IB")
    for n_words, entities in drawn_entities(500):
        tags = ["O"] * n_words
        for kind, first, last in entities:
            tags[first : last + 1] = [f"I-{kind}"] * (last - first + 1)
            if any(other[0] == kind and other[2] == first - 1 for other in entities):
                tags[first] = f"B-{kind}"
        assert scheme.entities(tags) == entities
        # seqeval's strict IOB1 agrees where no B- follows another B-, which it joins to nothing.
        seqeval_entities = strict.Tokens(tags, strict.IOB1).entities
        assert {(e.tag, e.start, e.end - 1) for e in seqeval_entities} <= entities


@pytest.mark.parametrize(
    ("tags", "name", "entities"),
    [
        ("B-PER I-PER B-PER O", "IOB2", {("PER", 0, 1), ("PER", 2, 2)}),
        ("I-PER I-PER B-PER O", "IOB1", {("PER", 0, 1), ("PER", 2, 2)}),
        ("I-PER O B-PER O", "IOB (rules 1 and 2 mixed)", {("PER", 0, 0), ("PER", 2, 2)}),
        ("I-PER I-PER I-LOC O", "IO", {("PER", 0, 1), ("LOC", 2, 2)}),
        ("I-PER E-PER E-PER O", "IOE2", {("PER", 0, 1), ("PER", 2, 2)}),
        ("I-PER E-PER I-PER O", "IOE1", {("PER", 0, 1), ("PER", 2, 2)}),
        ("S-PER S-PER B-PER E-PER", "BIOES", {("PER", 0, 0), ("PER", 1, 1), ("PER", 2, 3)}),
        ("U-PER U-PER B-PER L-PER O", "BILOU", {("PER", 0, 0), ("PER", 1, 1), ("PER", 2, 3)}),
        ("B-PER M-PER E-PER S-PER O", "BMES", {("PER", 0, 2), ("PER", 3, 3)}),
        ("W-PER W-PER B-PER E-PER O", "BMEWO", {("PER", 0, 0), ("PER", 1, 1), ("PER", 2, 3)}),
        ("B M E S B E", "BMES", {("", 0, 2), ("", 3, 3), ("", 4, 5)}),
        ("B_PER I_PER O O", "IOB2", {("PER", 0, 1)}),
        ("PER-U PER-U O O", "BILOU", {("PER", 0, 0), ("PER", 1, 1)}),
        ("b-per i-per o o", "IOB2", {("per", 0, 1)}),
        ("art-film art-film O O O", "IO", {("art-film", 0, 1)}),
        ("FIRST_NAME LAST_NAME O O O", "IO", {("FIRST_NAME", 0, 0), ("LAST_NAME", 1, 1)}),
        ("E-mail url O O O", "IO", {("E-mail", 0, 0), ("url", 1, 1)}),
    ],
)
def test_schemes_are_told_by_their_marks(tags: str, name: str, entities: set[Entity]) -> None:
    scheme = scheme_of_file("f.txt", [tags.split()])
    assert scheme is not None
    assert (scheme.name, scheme.entities(tags.split())) == (name, entities)


@pytest.mark.parametrize(
    "tags", ["NOUN VERB X", "Pi3-i Ncms-b Vm", "N V O S L M U E", "S-NOM S-ACC V-FIN", "0 1 2"]
)
def test_tags_of_words_mark_no_entities(tags: str) -> None:
    assert scheme_of_file("f.txt", [tags.split()]) is None


@pytest.mark.parametrize(
    "tags",
    [
        "X-PER O",
        "B-PER D-PER O",
        "B-PER MISC O",
        "HB-PER B-PER O",
        "START-PER END-PER O",
        "PER-begin PER-inside O",
        "B-PER L-PER S-PER O",
        "PER-B PER-I MISC O",
    ],
)
def test_an_unknown_scheme_is_refused(tags: str) -> None:
    with pytest.raises(CorpusError, match=r"^f.txt: the tags .* follow no scheme .* BILOU, BMES"):
        scheme_of_file("f.txt", [tags.split()])


def test_labels_of_models() -> None:
    padded = scheme_of_model("m", ["[PAD]", "O", "B-PER", "I-PER", "X", "[CLS]", "LABEL_7"])
    assert padded is not None
    assert (padded.name, {*padded.marks}) == ("IOB", {"B-PER", "I-PER"})
    assert scheme_of_model("m", ["LABEL_0", "LABEL_1"]) is None
    assert scheme_of_model("m", ["NOUN", "VERB"]) is None
    with pytest.raises(InputError, match=r"the labels of m: the tags .* follow no scheme"):
        scheme_of_model("m", ["O", "B-PER", "Q-PER"])


def tagged(*sentences: str) -> Examples:
    tags = tuple(tuple(sentence.split()) for sentence in sentences)
    words = tuple(tuple("w" for _ in row) for row in tags)
    return Examples("f.txt", "", first=("w",) * len(tags), lines=(1, 9), words=words, tags=tags)


def labels(marks: str) -> dict[int, str]:
    return dict(enumerate(["O", *(f"{mark}-{kind}" for kind, mark in product(TYPES, marks))]))


IOB2 = "B-PER I-PER I-PER B-PER O B-LOC B-LOC I-LOC"


@pytest.mark.parametrize(
    ("marks", "written"),
    [
        ("BI", IOB2),
        ("BIES", "B-PER I-PER E-PER S-PER O S-LOC B-LOC E-LOC"),
        ("BILU", "B-PER I-PER L-PER U-PER O U-LOC B-LOC L-LOC"),
        ("BMES", "B-PER M-PER E-PER S-PER O S-LOC B-LOC E-LOC"),
        ("BIS", "B-PER I-PER I-PER S-PER O S-LOC B-LOC I-LOC"),
        ("IE", "I-PER I-PER E-PER E-PER O E-LOC I-LOC E-LOC"),
    ],
)
def test_a_file_is_rewritten_in_the_scheme_of_the_labels(marks: str, written: str) -> None:
    """There and back: the labels' scheme changes the spelling, and no entity."""
    examples, scheme = in_labels_of(tagged(IOB2), labels(marks), "m")
    assert examples.tags == (tuple(written.split()),)
    assert scheme is not None
    assert scheme.entities(written.split()) == scheme_with("IB").entities(IOB2.split())
    (note,) = examples.notes
    assert note.startswith("Entities are read by the scheme IOB2.")
    assert ("rewritten" in note) == (marks != "BI")
    back, _ = in_labels_of(tagged(written), labels("BI"), "m")
    assert back.tags == (tuple(IOB2.split()),)


def test_labels_that_cannot_tell_neighbours_apart() -> None:
    examples, scheme = in_labels_of(tagged(IOB2), {0: "O", 1: "I-PER", 2: "I-LOC"}, "m")
    assert examples.tags == (("I-PER",) * 4 + ("O",) + ("I-LOC",) * 3,)
    assert scheme is not None
    assert "2 entities follow another of their type without a gap" in examples.notes[0]
    types, _ = in_labels_of(tagged(IOB2), {0: "O", 1: "per", 2: "loc"}, "m")
    assert types.tags == (("per",) * 4 + ("O",) + ("loc",) * 3,)


def test_what_is_not_rewritten() -> None:
    numbers, scheme = in_labels_of(tagged("1 2 0", "1 0 0"), labels("BIES"), "m")
    assert numbers.tags == (("1", "2", "0"), ("1", "0", "0"))
    assert scheme is not None
    assert scheme.name == "BIOES"
    # A type that the model lacks is left to be named as it stands in the file.
    assert in_labels_of(tagged("B-ORG O"), labels("BIES"), "m")[0].tags == (("B-ORG", "O"),)
    iob1, _ = in_labels_of(tagged("I-PER B-PER O"), labels("BI"), "m")
    assert iob1.tags == (("I-PER", "B-PER", "O"),)
    assert "IOB1" in iob1.notes[0]
    assert "a model of IOB2 loses" in iob1.notes[1]
    assert in_labels_of(tagged("NOUN VERB"), labels("BI"), "m") == (tagged("NOUN VERB"), None)
    few = {0: "O", 1: "B-PER", 2: "E-PER", 3: "S-PER"}
    with pytest.raises(InputError, match=r"f.txt, line 9: m has no label .* word 2 .*'I-PER'"):
        in_labels_of(tagged("B-PER O", "B-PER I-PER I-PER"), few, "m")
