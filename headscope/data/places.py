"""Where a sentence stands in its corpus: its half, and whose tree it is given as a control."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from headscope.data.encode import EncodedSentence
from headscope.data.sentence import Sentence


def placed(
    sentences: Iterable[Sentence], encoded: Iterable[EncodedSentence | None]
) -> Iterator[EncodedSentence | None]:
    """Add to each encoded sentence its half and the sentence whose tree it is scored against.

    Labels are chosen on one half of a corpus (even zero-based indices) and confirmed on the other.
    As a control each sentence is scored against the tree of the sentence before it that has as many
    words; the first of each length has none. Skipped sentences, None in ``encoded`` and in what is
    yielded, count for both.
    """
    before: dict[int, Sentence] = {}
    for index, (sentence, item) in enumerate(zip(sentences, encoded, strict=True)):
        length = len(sentence.words)
        if item is not None:
            item = dataclasses.replace(item, half=index % 2, swapped=before.get(length))
        before[length] = sentence
        yield item
