"""Tables: which column is what, by their headers or without one, and files that are no table."""

import gzip
import json
from pathlib import Path

import pytest

from headscope.core.errors import CorpusError
from headscope.data.corpus import open_text
from headscope.data.examples import read_labelled, read_pairs, read_translations
from headscope.data.queries import read_rerank

A = "the first one"
B = "the second one"
C = "another first"
D = "another second"


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def of_cells(header: str, *rows: str) -> str:
    """A table of tabs, with the header's names and the rows' cells written between bars."""
    return "\n".join("\t".join(line.split("|")) for line in (header, *rows)) + "\n"


def of_objects(*rows: dict[str, object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


MNLI = "index|promptID|pairID|genre|sentence1_binary_parse|sentence2_binary_parse|sentence1_parse|"
MNLI += "sentence2_parse|sentence1|sentence2|label1|label2|label3|label4|label5|gold_label"
SNLI = "gold_label|sentence1_binary_parse|sentence2_binary_parse|sentence1_parse|sentence2_parse|"
SNLI += "sentence1|sentence2|captionID|pairID|label1|label2|label3|label4|label5"
TREE = "( x ( y z ) )|( x ( y z ) )|(ROOT (S x))|(ROOT (S x))"
#: As GLUE and SuperGLUE have them, and as their copies in Hugging Face's datasets do; made-up rows.
PAIRS = {
    "MNLI": of_cells(
        MNLI,
        f"0|31193|31193n|fiction|{TREE}|{A}|{B}|neutral|entailment|x|x|x|entailment",
        f"1|31194|31194n|fiction|{TREE}|{C}|{D}|neutral|entailment|x|x|x|neutral",
    ),
    "SNLI": of_cells(
        SNLI,
        f"entailment|{TREE}|{A}|{B}|4705.jpg#2|4705.jpg#2r1n|entailment||||",
        f"neutral|{TREE}|{C}|{D}|4705.jpg#2|4705.jpg#2r1n|neutral|x|x|x|x",
    ),
    "QQP": of_cells(
        "id|qid1|qid2|question1|question2|is_duplicate", f"0|1|2|{A}|{B}|1", f"1|3|4|{C}|{D}|0"
    ),
    "MRPC": of_cells(
        "Quality|#1 ID|#2 ID|#1 String|#2 String", f"1|70|71|{A}|{B}", f"0|72|73|{C}|{D}"
    ),
    "RTE": of_cells(
        "index|sentence1|sentence2|label",
        f"0|{A}|{B}|entailment",
        f"1|{C}|{D}|not_entailment",
    ),
    "QNLI": of_cells(
        "index|question|sentence|label", f"0|{A}|{B}|entailment", f"1|{C}|{D}|not_entailment"
    ),
    "WNLI": of_cells("index|sentence1|sentence2|label", f"0|{A}|{B}|1", f"1|{C}|{D}|0"),
    "SICK": of_cells(
        "pair_ID|sentence_A|sentence_B|relatedness_score|entailment_judgment",
        f"1|{A}|{B}|4.5|NEUTRAL",
        f"2|{C}|{D}|3.2|ENTAILMENT",
    ),
}
#: What Hugging Face's copies call the columns of each, with label and idx beside them.
COPIES = {
    "mnli": ("premise", "hypothesis"),
    "snli": ("premise", "hypothesis"),
    "qqp": ("question1", "question2"),
    "mrpc": ("sentence1", "sentence2"),
    "rte": ("sentence1", "sentence2"),
    "qnli": ("question", "sentence"),
    "wnli": ("sentence1", "sentence2"),
    "boolq": ("question", "passage"),
    "qnli, turned": ("sentence", "question"),
    "a pair of texts": ("text", "text_pair"),
    "numbered": ("Sentence 1", "SENTENCE-2"),
    "lettered": ("text_a", "text_b"),
}
BOOLQ = of_objects(
    {"question": A, "title": "a title of some words", "answer": True, "passage": B},
    {"question": C, "title": "a title of some words", "answer": False, "passage": D},
)


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_glue(name, tmp_path):
    examples = read_labelled(written(tmp_path, "x.tsv", PAIRS[name]))
    assert (examples.first, examples.second) == ((A, C), (B, D))
    rows = [line.split("\t") for line in PAIRS[name].splitlines()]
    label = (
        next(c for c in ("gold_label", "label", "is_duplicate", "Quality") if c in rows[0])
        if (name != "SICK")
        else "entailment_judgment"
    )
    assert examples.labels == tuple(row[rows[0].index(label)] for row in rows[1:])
    assert examples.notes == ()
    texts = list(open_text(tmp_path / "x.tsv").lines())
    assert texts == [A, B, C, D]


@pytest.mark.parametrize("name", COPIES)
def test_pairs_as_copies_have_them(name, tmp_path):
    first, second = COPIES[name]
    rows = [
        {first: A, second: B, "label": 1, "idx": 0},
        {first: C, second: D, "label": 0, "idx": 1},
    ]
    examples = read_labelled(written(tmp_path, "x.jsonl", of_objects(*rows)))
    turned = name == "qnli, turned"  # the question is the first text, wherever it stands
    assert (examples.first, examples.second) == (((B, D), (A, C)) if turned else ((A, C), (B, D)))
    assert examples.labels == ("1", "0")
    cells = of_cells(f"{first}|{second}|label|idx", f"{A}|{B}|1|0", f"{C}|{D}|0|1")
    assert read_labelled(written(tmp_path, "x.tsv", cells)).second == examples.second


def test_single_texts_and_scores_of_glue(tmp_path):
    sst2 = of_cells("sentence|label", f"{A}|1", f"{B}|0")
    assert read_labelled(written(tmp_path, "sst2.tsv", sst2)).second is None
    boolq = read_labelled(written(tmp_path, "boolq.jsonl", BOOLQ))
    assert (boolq.first, boolq.second, boolq.labels) == ((A, C), (B, D), ("true", "false"))
    assert boolq.notes == ()
    stsb = of_cells(
        "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2|score",
        f"0|main|MSR|2012|1|none|none|{A}|{B}|5.000",
        f"1|main|MSR|2012|4|none|none|{C}|{D}|3.800",
    )
    examples = read_pairs(written(tmp_path, "stsb.tsv", stsb))
    assert (examples.first, examples.second, examples.scores) == ((A, C), (B, D), (5.0, 3.8))
    copy = [{"sentence1": A, "sentence2": B, "label": 5, "idx": 0}]
    copy += [{"sentence1": C, "sentence2": D, "label": 3.8, "idx": 1}]
    assert read_pairs(written(tmp_path, "x.json", json.dumps(copy))).scores == (5.0, 3.8)
    sick = read_pairs(written(tmp_path, "sick.tsv", PAIRS["SICK"]))
    assert sick.scores == (4.5, 3.2)


ROWS = [f"{A}|{B}|0", f"{C}|{D}|1", "yet a first|yet a second|1"]
#: A header over two texts and a number; the words that the refusal has to name.
UNCLEAR = {
    "premise|sentence|label": "'premise', 'sentence' could each be the text",
    "premise|question|label": "'premise', 'question' could each be the text",
    "text|subject|label": "'text', 'subject' could each be the text",
    "title|text|label": "'title', 'text' could each be the text",
    "sentence|sentence|label": "'sentence' and 'sentence' could each be the sentence",
    "Satz|Satz2|Urteil": r"none of its names is known \(Satz, Satz2, Urteil\)",
    "tweet|reply|label": "the header has no column sentence",
    "hypothesis|parse|label": "the header has no column sentence",
}


@pytest.mark.parametrize("header", UNCLEAR)
def test_texts_that_a_header_does_not_tell_apart_are_refused(header, tmp_path):
    path = written(tmp_path, "x.tsv", of_cells(header, *ROWS))
    with pytest.raises(CorpusError, match=UNCLEAR[header]) as raised:
        read_labelled(path)
    assert "line 1" in str(raised.value)
    with pytest.raises(CorpusError, match=UNCLEAR[header]):
        open_text(path)


@pytest.mark.parametrize(
    ("read", "header"),
    [
        (read_pairs, "sentence1|sentence2|label|score"),
        (read_pairs, "sentence1|sentence2|score|similarity"),
        (read_labelled, "sentence1|sentence2|label|gold_label"),
        (read_labelled, "sentence1|sentence2|label|class"),
        (read_rerank, "query|document|label|score"),
    ],
)
def test_two_columns_for_one_place_are_refused(read, header, tmp_path):
    path = written(tmp_path, "x.tsv", of_cells(header, f"{A}|{B}|0|1", f"{C}|{D}|1|0"))
    with pytest.raises(CorpusError, match=r"could each be the (label|score); leave one of them"):
        read(path)
    if read is read_pairs and "label" in header:  # a score is no class
        assert read_labelled(path).labels == ("0", "1")


NUMBERED = [f"{100 + i}|the cat sat on the mat {i}|en" for i in range(12)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ids.csv", "id,tweet\n100,the cat sat there\n101,a dog ran on\n102,it rained a lot\n"),
        ("ids.tsv", of_cells("nr|tweet|lang", *NUMBERED)),
        ("no-header.tsv", of_cells(*NUMBERED)),
        (
            "pairs.tsv",
            of_cells("Deutsch|Englisch", *(f"das Haus {i}|the house {i}" for i in "012")),
        ),
        (
            "script.tsv",
            "arabic\tenglish\n\u0622\u0627\taa\n\u0622\u0631\u062b\u0631\tarthur\n",
        ),
        ("one.csv", "tweet\nthe cat sat\na dog ran\nit rained\n"),
        ("commas.csv", "Hello, world\nIt rains, and it pours\nA dog, a cat\n"),
        ("semicolons.csv", "the cat sat;1\na dog ran;0\n"),
        ("sheet.csv", "sep=;\nsentence;label\nthe cat sat;1\na dog ran;0\n"),
        ("table.txt", "sentence\tlabel\nthe cat sat\t1\n"),
        ("json.txt", '{"text": "the cat sat"}\n{"text": "a dog ran"}\n'),
    ],
)
def test_a_first_row_that_may_be_a_header_is_never_text(name, text, tmp_path):
    with pytest.raises(CorpusError, match=f"{name}, line [12]: .*(name the |name it|take)"):
        open_text(written(tmp_path, name, text))


def test_rows_without_a_header_are_read_where_they_are_clear(tmp_path):
    names = "\u0622\u0627\taa\n\u0622\u0631\u062b\u0631\tarthur\n\u0622\u0632\u0627\tasa\n"
    examples = read_translations(written(tmp_path, "names.tsv", names))
    assert examples.second == ("aa", "arthur", "asa")
    assert open_text(tmp_path / "names.tsv").n_sentences == 3
    words = (
        "good\tpos\nbad acting and a worse script\tneg\nso nice to watch\tpos\nno good film\tneg\n"
    )
    assert read_labelled(written(tmp_path, "w.tsv", words)).first[0] == "good"
    for rows in (
        "Hi\tpositive\na b c\tnegative\nd e f\tpositive\n",
        "a b\tpositive\nc d\tnegative\n",
    ):
        labels = read_labelled(written(tmp_path, "moods.tsv", rows)).labels or ()
        assert labels[:2] == ("positive", "negative")  # which are names of columns elsewhere
    lines = "It rained.\nThe sun shines again\nno wind\n"
    assert list(open_text(written(tmp_path, "l.csv", lines)).lines()) == lines.split("\n")[:3]


def test_a_row_of_another_width_is_refused_by_its_line(tmp_path):
    for name, text, line in (
        ("labels.csv", 'label,text\n1,"Good, and fast"\n0,Bad\n1,Good, but slow\n', 4),
        ("wide.tsv", "sentence\tlabel\nthe cat\t1\tmore\na dog\t0\n", 2),
        ("narrow.tsv", "sentence\tlabel\tid\nthe cat\t1\t2\na dog\t0\n", 3),
        ("lines.csv", "Hello, world\nIt rains, and it pours\nNo comma here\n", 3),
    ):
        for read in (read_labelled, open_text):
            with pytest.raises(CorpusError, match=f"{name}, line {line}: . columns? where the fir"):
                read(written(tmp_path, name, text))


LABELLED = [("the cat; it sat", "1"), ('a "dog", ran', "0"), ("it was\u2028so\x0cwet\x85 and", "1")]


def test_other_ways_to_write_the_same_table(tmp_path):
    """Endings, separators, line ends and encodings; a table is what its rows say."""
    quoted = [f'"{text.replace(chr(34), 2 * chr(34))}"' for text, _ in LABELLED]
    labels = [label for _, label in LABELLED]
    objects = [{"text": text, "label": int(label)} for text, label in LABELLED]
    tabs = "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in LABELLED)
    semicolons = "".join(
        f"{a};{b}\n" for a, b in zip(["Text", *quoted], ["Label", *labels], strict=True)
    )
    files = {
        "x.csv": semicolons.replace('";', '",').replace("Text;", "Text,").encode(),
        "semicolons.csv": semicolons.encode(),
        "tabs.csv": semicolons.replace('";', '"\t').replace("Text;", "Text\t").encode(),
        "x.jsonl": of_objects(*objects).encode(),
        "x.ndjson": of_objects(*objects).encode(),
        "x.json": of_objects(*objects).encode(),
        "array.json": json.dumps(objects, indent=1).encode(),
        "array.jsonl": json.dumps(objects).encode(),
        "x.tsv": tabs.encode(),
        "mac.tsv": tabs.replace("\n", "\r").encode(),
        "dos.tsv": tabs.replace("\n", "\r\n").encode(),
        "marked.tsv": tabs.encode("utf-8-sig"),
        "utf-16.tsv": tabs.encode("utf-16"),
        "utf-16-be.tsv": b"\xfe\xff" + tabs.encode("utf-16-be"),
        "utf-32.tsv": tabs.encode("utf-32"),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        examples = read_labelled(tmp_path / name)
        assert [*zip(examples.first, examples.labels or (), strict=True)] == LABELLED, name
        assert [*open_text(tmp_path / name).lines()] == [text for text, _ in LABELLED], name


def test_the_line_of_an_object_in_an_array(tmp_path):
    rows = '[\n{"text": "a b", "label": 1},\n\n {"text": "c",\n "label": 0}, {"text": ""}]\n'
    path = written(tmp_path, "x.json", rows)
    with pytest.raises(CorpusError, match=r"line 5: .*no column label"):
        read_labelled(path)
    examples = read_labelled(written(tmp_path, "x.json", rows.replace(', {"text": ""}', "")))
    assert examples.lines == (2, 4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"data": [{"paragraphs": []}]}', "is no table: its rows lie within 'data'"),
        ('{"text": ["a", "b"], "label": [0, 1]}', "line 1: 'text' holds several values"),
        ('[{"text": "a"} {"text": "b"}]', "line 1: not valid JSON .no comma or bracket"),
        ('[{"text": "a"}] x', "line 1: not valid JSON .text behind the array"),
        ('[{"text": "a"},\n{"text": x}]', "line 2: not valid JSON"),
        ('{\n"text": "a"\n}', "line 1: not valid JSON .*an object a line, or one array"),
        ("[1, 2]", "line 1: not a JSON object"),
        (
            '{"satz": "a"}\n{"satz": "b"}',
            r"line 1: .* no column sentence \(it has satz",
        ),
    ],
)
def test_json_that_holds_no_rows_is_refused(text, says, tmp_path):
    with pytest.raises(CorpusError, match=says):
        open_text(written(tmp_path, "x.json", text))


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        (
            "x.tsv.gz",
            gzip.compress(b"sentence\tlabel\n", mtime=0),
            "is compressed .gzip., not text; unpack",
        ),
        ("x.xlsx", b"PK\x03\x04\x14\x00", "is a spreadsheet or a zip archive, not text; save"),
        ("x.parquet", b"PAR1\x15\x04\x15", "is a Parquet table, not text; save its rows as JSON"),
        ("x.txt", "a b\nc d\n".encode("utf-16-le"), "is not UTF-8: .* UTF-16 without a byte order"),
        ("x.txt", b"\xff\xfea\x00b", "begins as UTF-16, but what follows line 0 is not"),
        ("x.csv", b"sentence,label\na,1\n\xe4,0\n", "line 3: not UTF-8"),
    ],
)
def test_files_that_are_no_text(name, data, says, tmp_path):
    (tmp_path / name).write_bytes(data)
    for read in (open_text, read_labelled, read_translations):
        with pytest.raises(CorpusError, match=says):
            read(tmp_path / name)


def test_a_cell_may_be_longer_than_the_limit_of_csv(tmp_path):
    long = "word " * 40_000
    text = f'sentence,label\n"{long}",1\n"it, too",0\n'
    assert read_labelled(written(tmp_path, "x.csv", text)).first[0] == long


def test_what_is_not_read_of_a_table_is_said(tmp_path):
    extra = of_cells("text|Begründung|id|label", f"{A}|weil es so war|1|0", f"{B}|nun ja doch|2|1")
    examples = read_labelled(written(tmp_path, "x.tsv", extra))
    assert examples.notes == (
        f"{tmp_path}/x.tsv: columns that hold text are not read: 'Begründung'.",
    )
    assert open_text(tmp_path / "x.tsv").notes == examples.notes
    quoted = of_cells("text|label", 'so "it" is|0', '"she said ""no"" twice"|1')
    (note,) = read_labelled(written(tmp_path, "q.tsv", quoted)).notes
    assert '"she said ""no"" twice"' in note
    for name, text, says in (
        ("header.tsv", '"sentence"\t"label"\n"a b"\t"1"\n', "line 1: the names stand in quotes"),
        ("commas.tsv", "sentence,label\na b,1\n", "line 1: the header has commas between"),
    ):
        with pytest.raises(CorpusError, match=says):
            read_labelled(written(tmp_path, name, text))


def test_rows_of_queries_are_told_from_scored_pairs(tmp_path):
    rows = ["cats|all about cats|2", "cats|on dogs|0", "dogs|on dogs|1", "dogs|all about cats|0"]
    for header in ("query|document|label", "question|passage|relevance"):
        examples = read_rerank(written(tmp_path, "x.tsv", of_cells(header, *rows)))
        assert (examples.first, len(examples.documents)) == (("cats", "dogs"), 2)
    assert read_rerank(written(tmp_path, "bare.tsv", of_cells(*rows))).first == ("cats", "dogs")
    scored = ["it rained|it was wet|4.5", "a dog|a cat|1.2", "he left|he went away|5.0"]
    with pytest.raises(CorpusError, match="no header and scores with fractions; name the columns"):
        read_rerank(written(tmp_path, "scored.tsv", of_cells(*scored)))
    named = of_cells("sentence1|sentence2|score", *scored)
    examples = read_rerank(written(tmp_path, "scored.tsv", named))
    assert examples.first == ("it rained", "he left")
