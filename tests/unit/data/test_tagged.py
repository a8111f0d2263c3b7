"""Tagged words: the columns and exports in which such data are published, and what is refused."""

from pathlib import Path

import pytest

from headscope.core.errors import CorpusError
from headscope.data.annotated import read_tagged

ANNA = [["Anna", "lives", "in", "Bonn"], ["She", "ran"]]
TAGS = [["B-PER", "O", "O", "B-LOC"], ["O", "O"]]


def in_rows(row: str, comment: str = "", start: int = 1) -> str:
    """Write both sentences; ``row`` says how a word is written."""
    lines = []
    for words, tags in zip(ANNA, TAGS, strict=True):
        lines += [comment] if comment else []
        pairs = enumerate(zip(words, tags, strict=True), start=start)
        lines += [row.format(i=i, word=word, tag=tag) for i, (word, tag) in pairs]
        lines.append("")
    return "\n".join(lines)


SOURCE = "#\thttp://example.org/page\t[2010-01-01]"
HF = '{"tokens": ["Anna", "lives", "in", "Bonn"], "pos_tags": [1, 2, 3, 1], "ner_tags": %s}\n'
HF += '{"tokens": ["She", "ran"], "pos_tags": [4, 2], "ner_tags": %s}\n'
COLUMNS = {
    "conll2003.txt": "-DOCSTART- -X- -X- O\n\n" + in_rows("{word} NN B-NP {tag}"),
    "conll2002.txt": in_rows("{word} NC {tag}"),
    "wnut.conll": in_rows("{word}\t{tag}").replace("\n\n", "\n\t\n"),
    "germeval.tsv": in_rows("{i}\t{word}\t{tag}\tO", SOURCE),
    "germeval_inner.tsv": in_rows("{i}\t{word}\t{tag}\tB-LOCpart", SOURCE),
    "counted.tsv": in_rows("{i}\t{word}\t{tag}", SOURCE),
    "from_0.txt": in_rows("{i} {word} NN {tag}", start=0),
    "chunks.txt": in_rows("{i} {word} B-NP {tag}"),
    "multiconer.conll": in_rows("{word} _ _ {tag}", "# id 5f3 domain=en"),
    "wikiann.txt": in_rows("en:{word}\t{tag}"),
    "header.tsv": "Token\tTag\n" + in_rows("{word}\t{tag}"),
    "other_order.tsv": "id\tner\tword\tlemma\n" + in_rows("{i}\t{tag}\t{word}\tx"),
    "spaces.txt": in_rows("{word}  \t {tag}  "),
    "names.jsonl": HF.replace('"pos_tags"', '"x"') % ('["B-PER", "O", "O", "B-LOC"]', '["O", "O"]'),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_every_form_gives_the_same_words_and_tags(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(COLUMNS[name], encoding="utf-8")
    examples = read_tagged(path)
    assert [list(words) for words in examples.words or ()] == ANNA
    assert [list(tags) for tags in examples.tags or ()] == TAGS
    noted = {"germeval": "outer entities", "wikiann": "en: before each word"}
    expected = next((said for key, said in noted.items() if name.startswith(key)), None)
    assert [note for note in examples.notes if expected and expected in note] == list(
        examples.notes
    )
    assert bool(examples.notes) == bool(expected)


def test_words_with_spaces_and_the_word_that_is_a_hash(tmp_path: Path) -> None:
    path = tmp_path / "tags.txt"
    path.write_text("New York\tB-LOC\n#tag\tO\n#\tO\n\n#\tO\n10\u00a0000\tB-NUM\n")
    assert read_tagged(path).words == (("New York", "#tag", "#"), ("#", "10\u00a0000"))
    path.write_text("# a comment\n# O\n#tag O\nBonn B-LOC\n\n# O\nBonn B-LOC\n")
    assert read_tagged(path).words == (("#", "#tag", "Bonn"), ("#", "Bonn"))


def test_numbers_of_json_are_tags_by_number(tmp_path: Path) -> None:
    path = tmp_path / "test.json"
    path.write_text(HF % ("[1, 0, 0, 3]", "[0, 0]"))
    examples = read_tagged(path)
    assert examples.tags == (("1", "0", "0", "3"), ("0", "0"))
    assert examples.notes == ("Tags are those named ner_tags; others of the file are not read.",)


ONTONOTES = "bc/x 0 0 Who WP (TOP* - - - S *\nbc/x 0 1 ran VB * - - - S (0)\n\n"
REFUSED = {
    "#begin document (bc/x); part 000\n" + ONTONOTES * 2: "line 1: these are the columns of Onto",
    ONTONOTES * 2: "column 1 is the same throughout each sentence",
    "_ B-PER\n_ O\n\n_ O\n": "column 1 is the same .* so it holds no words",
    in_rows("{tag}\t{word}"): "the tags seem to stand before the words",
    "DET the\nNOUN cat\n\nDET a\nNOUN dog\n": "the tags seem to stand before the words",
    in_rows("{word} NN {tag} B-PER"): "the last two columns both have tags of entities",
    in_rows("{i} {word} NN {tag} B-PER"): "the last two columns both have tags of entities",
    in_rows("{word} {tag}").replace("\n\n", "\n"): "no blank line parts sentences, so its 6 words",
    in_rows("{word},{tag}"): "line 1: 1 column .tabs or white space split columns, commas do not",
    in_rows("{word}\t{tag}") + "Anna lives\n": "line 8: 1 column where the first row has 2",
    in_rows("{word}\t{tag} NN"): "line 1: the word is 'Anna' and its tag 'B-PER NN'",
    in_rows("{i} {word} {tag}").replace("3 in", "4 in"): "line 3: .* 4 stands where 3 should",
    "1 B-PER\n2 O\n\n1 O\n": "the first column counts the words, and only one column is left",
    in_rows("{word} {tag}").replace("B-", "Q-"): "follow no scheme of entities that is known",
    "word pos tag label\nAnna NN B-PER O\n\nran VB O O\n": "does not name one column of words",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_could_be_misread_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tags.txt"
    path.write_text(text)
    with pytest.raises(CorpusError, match=f"tags.txt.*{REFUSED[text]}"):
        read_tagged(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('[{"tokens": ["a"], "tags": ["O"]}]', "line 1: no JSON object"),
        (
            '{"text": "Anna ran", "labels": [[0, 4, "PER"]]}',
            "no list of words and one list of tags",
        ),
        ('{"tokens": ["a"], "tags": ["O"], "labels": ["O"]}', "no list of words and one list of"),
        ('{"tokens": ["a", "b"], "tags": ["O"]}', "tokens and tags are no lists of as many"),
        ('{"tokens": ["a"], "tags": [true]}', "tokens and tags are no lists of as many"),
    ],
)
def test_json_that_is_no_tagged_words(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "tags.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(CorpusError, match=f"tags.jsonl, .*{said}"):
        read_tagged(path)
