"""Calibration data without the sentences that they share with evaluation data.

What heads are chosen on, repaired with or tuned on must not be what they are measured on. Data are
compared sentence by sentence, whatever files they came in: each text of a pair, each query and each
document is a sentence of its own. A reordered, shortened or re-paired copy of a file has another
hash and other pairs, but the same sentences.

:class:`Examples` have their texts in ``first`` and ``second`` (None without pairs), and, for
retrieval, ``documents`` that answer the queries in ``first``. ``pick`` and ``with_documents`` keep
those of some indices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from headscope.data.corpus import Corpus
from headscope.data.examples import Examples
from headscope.data.sentences import text_key


def different_sentences(sentences: Iterable[str]) -> set[str]:
    """Return the keys of sentences, which ignore spaces and case; empty sentences have none."""
    return {text_key(text) for text in sentences} - {""}


@dataclass(frozen=True)
class Unshared:
    """Calibration data without shared sentences, and how many were left out."""

    examples: Examples
    dropped: int  # Number of examples and documents that were left out
    shared: int  # Number of different sentences of the evaluation data in the calibration data
    sentences: int  # Number of different sentences of the evaluation data
    #: Whether the data were left the same, since fewer than two examples would remain; then the
    #: caller warns.
    same: bool


def without_shared(examples: Examples, evaluation: Examples) -> Unshared:
    """Leave out every example that shares a sentence with the evaluation data.

    Documents that are shared go too, and with them a query without any relevant document left.
    """
    evaluation_sentences = _sentences_of(evaluation)
    common = evaluation_sentences & _sentences_of(examples)
    unshared_indices = []
    for i, first_text in enumerate(examples.first):
        texts = [first_text] if examples.second is None else [first_text, examples.second[i]]
        if common.isdisjoint(different_sentences(texts)):
            unshared_indices.append(i)
    unshared = examples.pick(unshared_indices)
    if examples.documents:
        unshared_documents = [
            i
            for i, document in enumerate(examples.documents)
            if common.isdisjoint(different_sentences([document]))
        ]
        unshared = unshared.with_documents(unshared_documents)
        unshared = unshared.pick([i for i in range(len(unshared)) if unshared.can_be_ranked(i)])
    dropped_examples = len(examples) - len(unshared)
    dropped_documents = len(examples.documents) - len(unshared.documents)
    too_few = bool(common) and len(unshared) < 2
    return Unshared(
        examples=examples if too_few else unshared,
        dropped=0 if too_few else dropped_examples + dropped_documents,
        shared=len(common),
        sentences=len(evaluation_sentences),
        same=too_few,
    )


def _sentences_of(examples: Examples) -> set[str]:
    """Return the different sentences of examples, documents included."""
    return different_sentences((*examples.texts, *examples.documents))


def lines_without_shared(text: Corpus, evaluation: Examples) -> Corpus:
    """Leave out the lines that are sentences of the evaluation data, unless that leaves none."""
    evaluation_sentences = _sentences_of(evaluation)

    def read() -> Iterator[str]:
        """Read the lines anew, as each pass over a corpus does."""
        return (
            line
            for line in text.lines()
            if evaluation_sentences.isdisjoint(different_sentences([line]))
        )

    n_lines = sum(1 for _ in read())
    return replace(text, n_sentences=n_lines, read=read) if n_lines else text
