"""Options whose values make no sense: one sentence that says so, and no folder.

The golden record (``wrong/*``) has a slip of each other kind.
"""

import shlex
from pathlib import Path

import pytest
from outcomes import refused

LONG_TEXT = ("the cat sat on the mat " * 40 + "\n").encode()
FILES = {
    "long.txt": LONG_TEXT,
    "constant.csv": b"a cat,a dog,2\nthe mat,it,2\n",
    "pairs.tsv": b"a cat\ta dog\nit sat\tthe mat\n",
    "rows.tsv": b"a cat\tthe mat\t1\na dog\tthe mat\t1\na cat\ta dog\t0\na dog\tit\t0\n",
    "tags.txt": b"the DET\ncat NOUN\n\nit PRON\n",
    "squad.json": b'{"data": [{"paragraphs": []}]}',
    "quick.toml": b"[classify]\nlimit = 24\n",
}
#: Words after the model, and what is said of them; exit 1 where a file or the model has to be read,
#: 2 where the words alone are wrong.
Row = tuple[str | list[str], str] | tuple[str | list[str], str, int]
SLIPS: dict[str, list[Row]] = {
    "transfer": [
        ("--sizes 64,many", "'64,many' is not a list of sizes", 2),
        ("--sizes 64 --sizes=128", "--sizes is given 2 times and takes one value", 2),
    ],
    "classify": [
        ("--stack sideways", "decoder, cross", 2),
        ("--threshold positional", "NAME=VALUE", 2),
        ("--threshold positional=nan", "nan", 2),
        ("--threshold positional=0.8 --threshold positional=0.9", "positional is given twice", 2),
        ("--threshold syntactic_relative=perhaps", "true or false", 2),
        ("--ablate --ablate-limit 1", "needs two examples or more"),
        ("--ablate --task rerank --data rows.tsv", "rows.tsv holds 2 examples"),
    ],
    "depth": [
        ("--length 3", "length is 3; give 4"),
        ("--control --no-control", "--control and --no-control exclude each other", 2),
    ],
    "explain": [
        ("'the cat' --layer 0 --head 4", "no head 4"),
        (["\u200b"], "makes no token"),
        (["cat " * 63], "65 tokens"),
        (["\ud800"], "lone surrogate"),
    ],
    "attribute": [
        ("'the cat' --data x.csv", "give one of them", 2),
        ("'the cat' --against 'a dog'", "give two texts"),
        (["the cat", "cat " * 63], "longer than the 64 tokens"),
    ],
    "insights": [("--skip transfers", "no section 'transfers' to skip", 2)],
    "prune": [
        ("--keep-roles banana", "no role"),
        ("--method importance-token", "label"),
        ("--draws 2", "5 or more", 2),
        ("--save out", "one model", 2),
        ("--fraction 1 --method fisher --save out", "everything", 2),
        ("--task seq2seq --data pairs.tsv --heads L0H0", "is no encoder-decoder model"),
        ("--task similarity --data constant.csv", "score"),
        ("--task retrieval", "needs a file with queries, documents and relevance", 2),
        ("--task rerank --data squad.json", "squad.json is no table"),
        ("--task token-classification --data tags.txt", "has no token-classification head"),
        ("--task token-classification --data constant.csv", "give a word a line with its tag"),
        ("--task question-answering --data squad.json", "squad.json holds no example"),
        ("--save out --method fisher", "give one fraction", 2),
    ],
    "rank": [
        ("--share-projections 8,33", "between 1 and n_heads * d_head = 32"),
        ("--rtol 1.5", "rtol is 1.5; give a number between 0 and 1", 2),
        ("--limit 0 --share-projections 8", "give 1 line or more", 2),
        ("--seed -1", "--seed is -1; give 0 or more", 2),
        ("--text long.txt", "No line of"),
    ],
    "report": [
        ("--only classify,insights --draws 5 --config quick.toml", "39 or more", 2),
    ],
    "spectrum": [
        ("-n 16 --k 17", "there are 16 singular values"),
        ("--precision 0", "between 0 and 1", 2),
        ("--roles missing.json", "missing.json cannot be read"),
    ],
}


@pytest.mark.parametrize(
    ("command", "words", "says", "code"),
    [
        pytest.param(command, *(*row, 1)[:3], id=f"{command} {ascii(row[0])[:40]}")
        for command, rows in SLIPS.items()
        for row in rows
    ],
)
def test_slips(command, words, says, code, run, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, data in FILES.items():
        Path(name).write_bytes(data)
    arguments = words if isinstance(words, list) else shlex.split(words)
    refused(run(command, model, "-o", "made/out", *arguments), says, code=code)
    assert not Path("made").exists()
    assert not Path("out").exists()
