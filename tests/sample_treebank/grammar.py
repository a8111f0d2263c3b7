"""Generate the sample treebank: a seeded grammar beside hand-annotated sentences.

``PYTHONPATH=tests python -m sample_treebank.grammar`` writes the ``sample.conllu`` of the package.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from headscope.data.corpus import SAMPLE
from sample_treebank.phrases import Context
from sample_treebank.sentences import DECK
from sample_treebank.tree import Node, punct, to_conllu

N_GENERATED = 444
SEED = 1729
_SHORTEST, _LONGEST = 4, 34
_ANNOTATED = Path(__file__).with_name("annotated.conllu")


def generate(n_sentences: int, seed: int) -> Iterator[str]:
    """Yield generated sentences as CoNLL-U blocks.

    The kinds of sentence come from a shuffled deck rather than from independent draws, so
    that the rare ones keep their share in a small treebank.

    Parameters
    ----------
    n_sentences
        How many sentences to generate; no two of them have the same text.
    seed
        Seed of the generator; the same seed gives the same sentences.

    Yields
    ------
    str
        One block with its comments and the closing blank line.
    """
    rng = random.Random(seed)
    usage: Counter[str] = Counter()
    seen: set[str] = set()
    deck: list[int] = []
    while len(seen) < n_sentences:
        if not deck:
            deck = list(range(len(DECK)))
            rng.shuffle(deck)
        kind = deck.pop()
        block = _one(rng, usage, seen, kind, f"gen-{len(seen) + 1:04d}")
        yield block


def _one(rng: random.Random, usage: Counter[str], seen: set[str], kind: int, name: str) -> str:
    """Draw sentences of a kind until one has a fair length and is new."""
    while True:
        root = finished(DECK[kind](Context(rng, usage)))
        block = to_conllu(root, name)
        text = block.splitlines()[1]
        length = block.count("\n") - 3
        if _SHORTEST <= length <= _LONGEST and text not in seen:
            seen.add(text)
            return block


def finished(root: Node) -> Node:
    """Close a sentence with a full stop unless it has its own closing mark."""
    root.deprel = "root"
    last = list(root.words())[-1]
    closed = last.form in {"?", "!", ".", '"'}
    return root if closed else root.after(punct("."), "punct")


def build() -> str:
    """Return the whole treebank: the annotated sentences, then the generated ones."""
    annotated = _ANNOTATED.read_text(encoding="utf-8")
    return annotated + "".join(generate(N_GENERATED, SEED))


def main() -> None:
    """Write the treebank into the package."""
    SAMPLE.write_text(build(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
