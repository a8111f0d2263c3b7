"""Calibration data without the sentences that they share with evaluation data.

What heads are chosen on, repaired with or tuned on must not be what they are measured on. Data are
compared sentence by sentence, whatever files they came in: each side of a pair, each query and each
document is a sentence of its own. A reordered, shortened or re-paired copy of a file has another
hash and other pairs, but the same sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from headscope.data.corpus import PlainText
from headscope.data.examples import Examples
from headscope.data.queries import with_documents


def normalised(sentences: Iterable[str]) -> set[str]:
    """Return the different sentences; runs of white space are one space, and none at the ends."""
    return {" ".join(text.split()) for text in sentences} - {""}


def sentences_of(examples: Examples) -> set[str]:
    """Return every different sentence of some examples, queries and documents included."""
    return normalised((*examples.texts, *examples.documents))


@dataclass(frozen=True)
class Unshared:
    """What is left of calibration data, and what was left out of them."""

    examples: Examples
    dropped: int  # Examples, and documents, that hold a shared sentence
    shared: int  # Different sentences of the evaluation data that the calibration data hold
    sentences: int  # Different sentences of the evaluation data
    #: Whether fewer than two examples would be left; then none was left out, and the caller warns.
    same: bool


def without_shared(examples: Examples, evaluation: Examples) -> Unshared:
    """Leave out every example that shares a sentence with the evaluation data.

    Documents that are shared go too; a query stays if a document that is relevant to it does.
    """
    theirs = sentences_of(evaluation)
    common = theirs & sentences_of(examples)
    second = examples.second or ("",) * len(examples)
    both = zip(examples.first, second, strict=True)
    rows = [i for i, pair in enumerate(both) if common.isdisjoint(normalised(pair))]
    left, places = examples.pick(rows), range(len(examples.documents))
    if examples.documents:
        places_left = [i for i in places if common.isdisjoint(normalised([examples.documents[i]]))]
        left = with_documents(left, places_left)
        left = left.pick([i for i in range(len(left)) if _can_be_ranked(left, i)])
    if common and len(left) < 2:
        return Unshared(examples, 0, len(common), len(theirs), same=True)
    dropped = len(examples) - len(left) + len(examples.documents) - len(left.documents)
    return Unshared(left, dropped, len(common), len(theirs), same=False)


def lines_without_shared(text: PlainText, evaluation: Examples) -> PlainText:
    """Leave out the lines that are sentences of the evaluation data, unless that leaves none."""
    theirs = sentences_of(evaluation)

    def read() -> Iterator[str]:
        return (line for line in text if theirs.isdisjoint(normalised([line])))

    n_lines = sum(1 for _ in read())
    return replace(text, n_lines=n_lines, read=read) if n_lines else text


def _can_be_ranked(examples: Examples, query: int) -> bool:
    """Whether a query has a relevant document, where that is known, and two that are ordered."""
    relevance, candidates = examples.relevance, examples.candidates
    if relevance is not None and max(relevance[query].values(), default=0.0) <= 0:
        return False
    return candidates is None or len(candidates[query]) > 1
