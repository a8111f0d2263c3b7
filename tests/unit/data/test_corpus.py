"""Corpora, treebanks and plain text: what is read, what is passed over, where errors point."""

import hashlib
from contextlib import nullcontext
from pathlib import Path

import pytest

from headscope.core.errors import CorpusError
from headscope.data import corpus
from headscope.data.annotated import read_tagged
from headscope.data.corpus import as_corpus, as_plain, open_text, open_treebank
from headscope.data.examples import read_texts
from headscope.data.sentences import Sentence, split_words
from headscope.data.treebanks import read_treebank

TREE = "1\tBirds\t_\t_\t_\t_\t2\tnsubj\t_\t_\n2\tfly\t_\t_\t_\t_\t0\troot\t_\t_\n\n"
#: Ranges, empty nodes, comments, subtypes, a word with a space.
BANK = """\
# newdoc id = d1
# sent_id = 1
# text = vámonos al mar
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\t_\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj:pass\t_\t_
2.1\tya\tya\tADV\t_\t_\t_\t_\t1:advmod\t_
3-4\tal\t_\t_\t_\t_\t_\t_\t_\t_
3\ta\ta\tADP\t_\t_\t5\tcase\t_\t_
4\tel\tel\tDET\t_\t_\t5\tdet\t_\t_
5\tmar\tmar\tNOUN\t_\t_\t1\tobl:arg:x\t_\tSpaceAfter=No

# sent_id = 2
1\t20 000\t20000\tNUM\t_\t_\t0\troot\t_\t_

"""
SENTENCES = [
    Sentence(
        ("vamos", "nos", "a", "el", "mar"), (-1, 0, 4, 4, 0), ("root", "obj", "case", "det", "obl")
    ),
    Sentence(("20 000",), (-1,), ("root",)),
]


def written(folder: Path, data: bytes | str, name: str = "lines.txt") -> Path:
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def read(folder: Path, data: bytes | str) -> list[Sentence]:
    return list(read_treebank(written(folder, data, "bank.conllu")))


def test_forms_of_the_same_treebank(tmp_path):
    for form in (
        BANK,
        BANK.replace("\n", "\r\n"),
        "\ufeff" + BANK,
        BANK.rstrip("\n"),
        "\n\n" + BANK + "\n\n",
        BANK.replace("\n\n", "\n \t\n"),
    ):
        assert read(tmp_path, form) == SENTENCES, repr(form)


def test_odd_words_and_long_chains(tmp_path):
    rows = ["1\t#\t#\tSYM\t_\t_\t2\tdep\t_\t_", "2\t_\t_\tX\t_\t_\t0\troot\t_\t_"]
    assert read(tmp_path, "\n".join(rows))[0].words == ("#", "_")
    n = 3000  # a long chain is no cycle
    rows = [f"{i}\tw\t_\t_\t_\t_\t{(i + 1) % (n + 1)}\tdep\t_\t_" for i in range(1, n + 1)]
    assert len(read(tmp_path, "\n".join(rows))[0].words) == n


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("1\tvamos", "1\t"), 5),
        (("\t0\troot\t_\t_\n2\tnos", "\t6\troot\t_\t_\n2\tnos"), 5),
        (("\t1\tobl:arg:x", "\t5\tobl:arg:x"), 11),
        (("\t1\tobl:arg:x", "\t0\tobl:arg:x"), 11),
        (("1\t20 000", "2\t20 000"), 14),
        (("1\t20 000", "0\t20 000"), 14),
        (("2.1\tya", "2,1\tya"), 7),
        (("3-4\tal\t_", "3-4\tal"), 8),
    ],
)
def test_errors_name_the_line(change, line, tmp_path):
    assert BANK.count(change[0]) == 1
    with pytest.raises(CorpusError, match=rf"bank\.conllu, line {line}: "):
        read(tmp_path, BANK.replace(*change))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("The cat sat.", "The|cat|sat|."),
        ("don't  stop\t(now)", "don't|stop|(|now|)"),
        ("l\u2019eau d'une", "l\u2019eau|d'une"),
        ("'quoted' dogs'", "'|quoted|'|dogs|'"),
        ("well-known 3.14 $5", "well|-|known|3|.|14|$|5"),
        ("na\u00efve cafe\u0301 \u4f60\u597d", "na\u00efve|cafe\u0301|\u4f60\u597d"),
        ("wait... what?!", "wait|.|.|.|what|?|!"),
        ("\U0001f600 \u200b", "\U0001f600"),
        ("a\u200db\u00adc d\u200c e\u2060'f", "a\u200db\u00adc|d|e|'|f"),
        ("\u2764\ufe0f\U0001f44d\U0001f3fd x", "\u2764\ufe0f|\U0001f44d\U0001f3fd|x"),
        (
            "\U0001f468\u200d\U0001f469 \U0001f1e9\U0001f1ea!",
            "\U0001f468\u200d\U0001f469|\U0001f1e9\U0001f1ea|!",
        ),
        (" \u00a0\t", ""),
    ],
)
def test_splitting(line, words):
    assert split_words(line) == tuple(words.split("|") if words else ())


def test_files_are_read_again_and_again_one_sentence_at_a_time(tmp_path):
    data = b"\xef\xbb\xbfOne two.\r\n\n  \n\xe2\x80\x8b\nThree\nFour"
    path = written(tmp_path, data)
    text = open_text(path)
    expected = [Sentence(("One", "two", ".")), Sentence(("Three",)), Sentence(("Four",))]
    assert list(text) == list(text) == expected
    assert list(text.lines()) == list(text.lines()) == ["One two.", "Three", "Four"]
    assert list(text.first(2).lines()) == ["One two.", "Three"]
    assert (text.name, text.n_sentences, text.has_trees) == (str(path), 3, False)
    assert (text.sha256, text.language) == (hashlib.sha256(data).hexdigest(), None)
    stream = text.read()
    assert iter(stream) is stream, "the file is not held in memory"
    bank = open_treebank(written(tmp_path, TREE * 2, "bank.conllu"))
    tree = Sentence(("Birds", "fly"), (1, -1), ("nsubj", "root"))
    assert list(bank) == list(bank) == [tree] * 2
    assert list(bank.lines()) == ["Birds fly"] * 2
    assert (bank.n_sentences, bank.has_trees) == (2, True)
    broken = read_treebank(written(tmp_path, BANK + "not a row\n", "bank.conllu"))
    assert [next(broken), next(broken)] == SENTENCES
    with pytest.raises(CorpusError, match=r"bank\.conllu, line 16: 1 columns"):
        next(broken)


def test_language_of_a_file_name(tmp_path):
    known = {"en_ewt-ud-test.conllu": "en", "grc_perseus-ud-dev.conllu": "grc"}
    for name, language in {"my-en_ewt-ud-test.conllu": None, "de.conllu": None, **known}.items():
        assert open_treebank(written(tmp_path, TREE, name)).language == language, name


@pytest.mark.parametrize(("held", "passes"), [(3, 1), (2, 4)])
def test_a_small_treebank_is_read_once_and_a_larger_one_in_every_pass(
    tmp_path, monkeypatch, held, passes
):
    started = []

    def counted(path: Path):
        started.append(path)
        yield from read_treebank(path)

    monkeypatch.setattr(corpus, "HELD", held)
    monkeypatch.setattr(corpus, "read_treebank", counted)
    bank = open_treebank(written(tmp_path, TREE * 3, "bank.conllu"))
    assert bank.n_sentences == 3
    for _ in range(3):
        assert [sentence.words for sentence in bank] == [("Birds", "fly")] * 3
    assert len(started) == passes


def test_no_path_is_the_sample():
    """Whoever changes the sample changes every number that was ever measured on it."""
    corpus = as_corpus(None)
    assert corpus.sha256 == "a90b0241e55842b53e69e607cb1e288190f160d999eee92d7deaa9b2338dc9b1"
    assert corpus.name == "built-in sample (mostly generated)"
    assert (corpus.language, corpus.has_trees) == ("en", True)
    assert len(list(corpus)) == corpus.n_sentences


def test_paths_by_their_suffix_and_sentences_in_memory(tmp_path):
    for kind in (str, Path):
        assert as_corpus(kind(written(tmp_path, TREE, "a.conllu"))).has_trees
        assert not as_corpus(kind(written(tmp_path, "Birds fly"))).has_trees
    tree = Sentence(("Birds", "fly"), (1, -1), ("nsubj", "root"))
    corpus = as_corpus(["Birds fly.", "", tree])
    assert as_corpus(corpus) is corpus
    assert [s.words for s in corpus] == [("Birds", "fly", "."), ("Birds", "fly")]
    assert (corpus.n_sentences, corpus.has_trees) == (2, False)
    assert as_corpus([tree]).has_trees
    other = as_corpus(["Birds fly!", tree])
    assert corpus.sha256 == as_corpus(["Birds fly.", tree]).sha256 != other.sha256
    text = as_plain(["the cat", " ", "a dog"])
    assert list(text.lines()) == list(text.lines()) == ["the cat", "a dog"]


def test_a_table_as_a_text_is_its_sentences(tmp_path):
    for name, content, lines in (
        ("a.tsv", "source\ttarget\nein Haus\ta house\n", ["ein Haus"]),
        ("a.tsv", "ein Haus\ta house\nein Hund\ta dog\n", ["ein Haus", "ein Hund"]),
        ("a.csv", "A cat.,A dog.,3.5\n", ["A cat.", "A dog."]),
        ("a.jsonl", '{"text": "A cat."}\n', ["A cat."]),
        ("a.txt", "A cat.\tA dog.\n", ["A cat.\tA dog."]),
    ):
        plain = as_plain(written(tmp_path, content, name))
        assert ([*plain.lines()], plain.n_sentences) == (lines, len(lines))


def test_what_holds_no_text_or_cannot_be_read_is_refused(tmp_path):
    for nothing in ([], [" "], [Sentence(())]):
        with pytest.raises(CorpusError, match="no sentence"):
            as_corpus(nothing)
    for name, data in (("a.txt", b""), ("a.txt", b"\n \n\t\n"), ("a.tsv", b"sentence\tlabel\n")):
        with pytest.raises(CorpusError, match="holds no sentence"):
            as_plain(written(tmp_path, data, name))
    with pytest.raises(CorpusError, match="line 2: not UTF-8"):
        as_plain(written(tmp_path, b"fine\n\xff\xfe\n"))


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("{}\tcat\tcat\tNOUN\t_\t_\t0\troot\t_\t_", True),
        ("{}\tcat\tcat\tNOUN\t_\t_\t_\t_\t_\t_", True),  # a treebank whose trees are missing
        ("{}\tcat\tcat\tNOUN\t_\t_\t0\troot\t_", False),  # nine columns
        ("x{}\tcat\tcat\tNOUN\t_\t_\t0\troot\t_\t_", False),
        ("{}\tcat\tsat\ton\tthe\tmat\tand\tit\twas\tred", False),
        ("{} cats sat on the mat, and 10 dogs ran", False),
    ],
)
def test_columns_of_a_treebank_are_no_text(line, refused, tmp_path):
    path = written(tmp_path, "\n".join(["# a title", line.format(1), line.format(2)]))
    for reader in (open_text, read_texts):
        with pytest.raises(CorpusError, match="line 3: this looks") if refused else nullcontext():
            reader(path)


def row(number: object, form: str, head: int, misc: str = "_") -> str:
    relation = "root" if head == 0 else "dep"
    return f"{number}\t{form}\t_\tX\t_\t_\t{head}\t{relation}\t_\t{misc}"


def words_in(sentence: Sentence) -> list[str]:
    return [sentence.text[begin:stop] for begin, stop in sentence.spans]


def test_the_text_is_what_was_written(tmp_path):
    """As stated where the words stand in it, else joined as SpaceAfter says."""
    trees = read(tmp_path, BANK)
    assert [tree.text for tree in trees] == ["vámonos al mar", "20 000"]
    assert words_in(trees[0]) == ["vámonos", "vámonos", "al", "al", "mar"]
    assert trees[0].spans == ((0, 7), (0, 7), (8, 10), (8, 10), (11, 14))
    other = BANK.replace("# text = vámonos al mar", "# text = vámonos a la mar")
    for form in (other, BANK.replace("# text = vámonos al mar\n", "")):
        assert read(tmp_path, form)[0].text == "vámonos al mar", "another text than the words"
    rows = [
        row("1-2", "Don't", 0, "_").replace("\t0\troot", "\t_\t_"),
        row(1, "Do", 3),
        row(2, "n't", 3),
        row(3, "go", 0, "SpaceAfter=No"),
        row(4, "!", 3, "SpacesAfter=\\n"),
        row(5, "«", 3, "SpaceAfter=No|X=1"),
        row(6, "thành phố", 3, "SpaceAfter=No"),
    ]
    (joined,) = read(tmp_path, "\n".join(rows))
    assert joined.text == "Don't go! «thành phố"
    assert words_in(joined) == ["Do", "n't", "go", "!", "«", "thành phố"]
    (spaced,) = read(tmp_path, "\n".join(["# text =  Don't  go !« thành phố ", *rows]))
    assert words_in(spaced) == words_in(joined)
    assert spaced.text == "Don't  go !« thành phố"


def test_words_that_are_written_as_one_are_counted(tmp_path):
    note = open_treebank(written(tmp_path, BANK, "bank.conllu")).note
    assert "2 written words are 4 words of the trees" in note
    assert "vámonos: vamos + nos" in note
    assert not open_treebank(written(tmp_path, TREE, "plain.conllu")).note


@pytest.mark.parametrize("forms", ["__", "___", "_._", "_-__!"])
def test_a_treebank_without_its_words_is_refused(forms, tmp_path):
    rows = [row(i, form, i - 1) for i, form in enumerate(forms, start=1)]
    path = written(tmp_path, TREE + "\n".join(rows), "bank.conllu")
    for reader in (open_treebank, read_texts, read_tagged):
        with pytest.raises(CorpusError, match=r"line 4: the treebank's words are withheld"):
            reader(path)
    rows[0] = row(1, "a", 0)
    assert len(read(tmp_path, "\n".join(rows))) == 1, "a word is left"


def test_columns_in_another_order(tmp_path):
    """CoNLL-U Plus states its columns in the first line."""
    plus = "# global.columns = FORM ID DEPREL HEAD\nBirds\t1\tnsubj:x\t2\nfly\t2\troot\t0\n"
    tree = Sentence(("Birds", "fly"), (1, -1), ("nsubj", "root"))
    assert read(tmp_path, plus) == [tree]
    usual = "# global.columns = ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC\n" + TREE
    assert read(tmp_path, usual) == [tree]
    with pytest.raises(CorpusError, match=r"line 1: the columns have no FORM \(ID HEAD\)"):
        read(tmp_path, "# global.columns = ID HEAD\n1\t0\n")
    with pytest.raises(CorpusError, match=r"line 2: the head '_' is not a number"):
        read(tmp_path, "# global.columns = ID FORM\n1\tBirds\n")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["2-3\tab", "1\ta"], "row id 2-3 where 1 should follow"),
        (["1-9\tab", "1\ta"], "a row reaches to word 9 of 1"),
        (["2-1\tab", "1\ta"], "the row id 2-1 ends before it begins"),
        (["1-2\tab", "1\ta", "2-3\tbc", "2\tb", "3\tc"], "2-3 begins inside another such row"),
    ],
)
def test_written_words_have_their_place(rows, said, tmp_path):
    with pytest.raises(CorpusError, match=said):
        read(tmp_path, "\n".join(ids + "\t_" * 8 for ids in rows))
