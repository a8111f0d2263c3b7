"""Repeat README's run of shrink: build its two texts from published data, and run the command.

``python tests/bench/flagship.py DATA FOLDER`` writes ``sentences.txt`` (what a smaller model is
trained and calibrated on) and ``elsewhere.txt`` (text of other kinds, only looked at) into FOLDER
and runs shrink there; with ``--texts`` it only writes them. DATA holds the files that
CONTRIBUTING.md lists: STS-B, English-EWT, WikiText-2 and ``books.txt``, novels of Project
Gutenberg. The run takes 12 minutes and 2.5 GB on two cores. The texts are of the kinds and sizes
of the measured run's, but not the same lines: its script was not kept.
"""

import csv
import random
import re
import subprocess
import sys
from pathlib import Path

COMMAND = (
    "shrink demo --task similarity --data stsb-en-dev.csv --text sentences.txt "
    "--other-text elsewhere.txt --speed 6 --save small"
)
SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”\u2019]?\s+(?=[\"“A-Z])")


def sts_sentences(path: Path) -> list[str]:
    """Return both sentences of every other pair of STS-B's training part."""
    with path.open(encoding="utf-8", newline="") as file:
        pairs = list(csv.reader(file))[::2]
    return [sentence for pair in pairs for sentence in pair[:2]]


def treebank_sentences(path: Path) -> list[str]:
    """Return the text of each sentence of a treebank."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")]


def novel_sentences(text: str) -> list[str]:
    """Return sentences of 4 to 40 words from hard-wrapped paragraphs."""
    sentences: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        sentences += SENTENCE_END.split(" ".join(paragraph.split()))
    return [sentence for sentence in sentences if 4 <= len(sentence.split()) <= 40]


def wiki_lines(path: Path) -> list[str]:
    """Return WikiText-2's sentences of 4 to 40 words, without headings and unknown words."""
    lines = path.read_text(encoding="utf-8").splitlines()
    sentences: list[str] = []
    for line in lines:
        if not line.strip().startswith("="):
            sentences += line.strip().split(" . ")
    return [s for s in sentences if 4 <= len(s.split()) <= 40 and "<unk>" not in s]


def texts(data: Path) -> dict[str, list[str]]:
    """Return the lines of both files; no line is in both, and none comes twice."""
    rng = random.Random(0)
    novels = (data / "books.txt").read_text(encoding="utf-8")
    half = len(novels) // 2
    trained = sts_sentences(data / "stsb-en-train.csv")
    trained += treebank_sentences(data / "en_ewt-ud-dev.conllu")
    trained += rng.sample(novel_sentences(novels[:half]), 6000)
    trained += rng.sample(wiki_lines(data / "wikitext-2-valid.txt"), 2000)
    other = treebank_sentences(data / "en_ewt-ud-test.conllu")
    other += rng.sample(novel_sentences(novels[half:]), 6000)
    other += rng.sample(wiki_lines(data / "wikitext-2-test.txt"), 2000)
    trained = list(dict.fromkeys(trained))
    rng.shuffle(trained)
    seen = set(trained)
    return {
        "sentences.txt": trained,
        "elsewhere.txt": [line for line in dict.fromkeys(other) if line not in seen],
    }


def main(data: Path, folder: Path, *, run: bool) -> None:
    """Write the texts, and run shrink on them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in texts(data).items():
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{folder / name}: {len(lines):,} lines")
    scored = folder / "stsb-en-dev.csv"
    scored.write_bytes((data / scored.name).read_bytes())
    print(f"headscope {COMMAND}")
    if run:
        program = [sys.executable, "-m", "headscope", *COMMAND.split()]
        sys.exit(subprocess.run(program, cwd=folder, check=False).returncode)


if __name__ == "__main__":
    places = [Path(word) for word in sys.argv[1:] if word != "--texts"]
    if len(places) != 2:
        sys.exit(__doc__)
    main(places[0], places[1], run="--texts" not in sys.argv)
