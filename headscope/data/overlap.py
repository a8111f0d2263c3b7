"""How many sentences of one set of data stand in another one too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Overlap:
    """Different sentences of a set of data, and how many of them another set has.

    Attributes
    ----------
    shared, sentences : int
        Sentences that both sets have, and sentences of the first set.
    """

    shared: int
    sentences: int

    @property
    def share(self) -> float:
        """Shared / sentences, 0 where there is none."""
        return self.shared / self.sentences if self.sentences else 0.0


def overlap(sentences: Iterable[str], others: Iterable[str]) -> Overlap:
    """Compare two sets of data sentence by sentence, whatever files they came in.

    Each side of a pair is a sentence of its own: a reordered, shortened or re-paired copy of a file
    has another hash and other pairs, but the same sentences. Runs of white space count as one
    space, and none at the ends.
    """
    ours, theirs = ({" ".join(text.split()) for text in texts} for texts in (sentences, others))
    ours.discard("")
    return Overlap(len(ours & theirs), len(ours))
