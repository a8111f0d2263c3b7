"""Examples that a task is measured on: labelled sentences, scored pairs, translations, or text.

:class:`Examples` holds those of any task; the functions behind it read them from files. Queries
with documents are read in :mod:`~headscope.data.queries`, tagged words and questions in
:mod:`~headscope.data.annotated`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from headscope.core.errors import CorpusError, TooFewExamplesError
from headscope.core.files import sha256_of_file
from headscope.data.columns import LABELS, PAIRS, SCORES, SINGLE, Columns, Record
from headscope.data.corpus import as_corpus
from headscope.data.tables import TRANSLATIONS, notes_on, number_in, read_records

#: Tasks that the built-in sample cannot show, and what their file holds.
TASK_FILES = {
    "classification": "labels",
    "similarity": "labels",
    "seq2seq": "sources and targets",
    "retrieval": "queries, documents and relevance",
    "rerank": "queries and documents",
    "token-classification": "tagged words",
    "question-answering": "questions, contexts and answers",
}
#: Tasks that read windows of running text, and how many sentences a window counts for where text
#: is limited; other limits count windows.
WINDOWED = {"mlm": 2, "lm": 4, "lm-accuracy": 4}
_LABELLED = Columns(
    names={"label": LABELS},
    order={2: ("sentence", "label"), 3: ("sentence", "sentence2", "label")},
    needed=("sentence", "label"),
    text_columns=("sentence", "sentence2"),
    tables=(*SINGLE, *PAIRS),
    may_be_empty=("label",),
)
#: Sentences of a pair with their similarity.
SCORED = Columns(
    names={"score": SCORES},
    order={3: ("sentence1", "sentence2", "score")},
    needed=("sentence1", "sentence2", "score"),
    text_columns=("sentence1", "sentence2"),
    tables=PAIRS,
)


#: Fields of :class:`Examples` that have an entry for each example.
_OF_EACH_EXAMPLE = (
    "first",
    "second",
    "labels",
    "against",
    "scores",
    "lines",
    "ids",
    "relevance",
    "candidates",
    "words",
    "tags",
    "answers",
)


@dataclass(frozen=True)
class Examples:
    """Sentences or pairs of them, with the right labels, scores or answers where they are known.

    A field that a task does not need is None or empty.
    """

    name: str  # The path as given, or ``built-in sample``
    sha256: str  # Of the file's bytes
    #: The sentences, or the first sentence of each pair, or what is to be translated
    first: tuple[str, ...]
    second: tuple[str, ...] | None = None  # The other sentence of each pair, or the translation
    labels: tuple[str, ...] | None = None  # Class names or numbers, as the file spells them
    #: Every different label, or tag, of the whole file, where only some examples are here
    all_labels: tuple[str, ...] = ()
    #: Of each prompt in ``first``: the token that the one in ``labels`` is compared with
    against: tuple[str, ...] | None = None
    scores: tuple[float, ...] | None = None  # Gold similarities
    lines: tuple[int, ...] = ()  # Where each example stands in the file; empty for the sample
    ids: tuple[str, ...] | None = None  # The file's own name of each query or question
    documents: tuple[str, ...] = ()  # That answer the queries in ``first``, the same for all
    #: Of each query: the grades of the documents that were judged for it, by their indices in
    #: ``documents``
    relevance: tuple[Mapping[int, float], ...] | None = None
    #: Of each query: indices of the documents that are to be ordered for it
    candidates: tuple[tuple[int, ...], ...] | None = None
    words: tuple[tuple[str, ...], ...] | None = None  # Of each sentence: its words
    tags: tuple[tuple[str, ...], ...] | None = None  # Of each sentence: the tags of its words
    #: Of each question in ``first``: where each right answer begins in the context, which is in
    #: ``second``, and its text; empty for a question that has none
    answers: tuple[tuple[tuple[int, str], ...], ...] | None = None
    may_have_no_answer: bool = False  # Whether any question of the file has no answer
    #: Whether each text stands alone: a sentence of a treebank or a cell of a table, no line of
    #: running text
    apart: bool = False
    notes: tuple[str, ...] = ()  # Sentences that say what was left out of the file
    drawn: str = ""  # ``60 of 1,379 examples, chosen at random (seed 0)``; empty where all are here

    def __len__(self) -> int:
        return len(self.first)

    @property
    def texts(self) -> tuple[str, ...]:
        """Every different sentence once, in the order of first appearance."""
        return tuple(dict.fromkeys(self.first + (self.second or ())))

    def draw(self, limit: int | None, seed: int) -> Examples:
        """Return examples chosen at random, in their order; all of them without a limit."""
        if limit is None or limit >= len(self):
            return self
        rows = sorted(random.Random(seed).sample(range(len(self)), limit))
        drawn = f"{limit:,} of {len(self):,} examples, chosen at random (seed {seed})"
        return replace(self.pick(rows), drawn=drawn)

    def pick(self, rows: Iterable[int]) -> Examples:
        """Return some examples, by their indices, with everything that is known of each."""
        rows = tuple(rows)
        columns: dict[str, Any] = {}
        for name in _OF_EACH_EXAMPLE:
            column = getattr(self, name)
            if column:
                columns[name] = tuple(column[i] for i in rows)
        return replace(self, **columns, all_labels=self.labels_of_file)

    @property
    def labels_of_file(self) -> tuple[str, ...]:
        """Every different label, or tag, of the file that these examples were taken from."""
        if self.all_labels:
            return self.all_labels
        labels = self.labels or ()
        tags = chain.from_iterable(self.tags or ())
        return tuple(dict.fromkeys((*labels, *tags)))

    def with_documents(self, indices: Sequence[int]) -> Examples:
        """Keep some documents, and the judgements and candidates among them, renumbered.

        ``indices`` (2, 5) make document 2 the new document 0, and 5 the new 1.
        """
        new_index = {index: i for i, index in enumerate(indices)}
        relevance = None
        if self.relevance is not None:
            relevance = tuple(
                {new_index[index]: grade for index, grade in grades.items() if index in new_index}
                for grades in self.relevance
            )
        candidates = None
        if self.candidates is not None:
            candidates = tuple(
                tuple(new_index[index] for index in indices_of_query if index in new_index)
                for indices_of_query in self.candidates
            )
        documents = tuple(self.documents[index] for index in indices)
        return replace(self, documents=documents, relevance=relevance, candidates=candidates)

    def can_be_ranked(self, query: int, fewest: int = 2) -> bool:
        """Whether a query can be measured.

        Where relevance is known, it has a relevant document; where its candidates are known, they
        are ``fewest`` or more.
        """
        if self.relevance is not None:
            best_grade = max(self.relevance[query].values(), default=0.0)
            if best_grade <= 0:
                return False
        return self.candidates is None or len(self.candidates[query]) >= fewest

    def where(self, i: int) -> str:
        """Say where example ``i`` stands."""
        return f"{self.name}, line {self.lines[i]}" if self.lines else f"{self.name}, {i + 1}"


def read_labelled(path: str | Path) -> Examples:
    """Read sentences (or pairs) with a class: columns sentence[, sentence2], label."""
    examples, rows = _read(path, _LABELLED, "sentence")
    labels = tuple(cells.get("label", "").strip() for _, cells in rows)
    if len(set(labels)) == 1:
        raise CorpusError(
            f"{path}: all {len(labels)} examples have the label {labels[0]!r}, so nothing can be "
            "told from them; give examples of every class."
        )
    second = tuple(cells.get("sentence2", "") for _, cells in rows)
    paired = [bool(text.strip()) for text in second]
    if any(paired) and not all(paired):
        line = rows[paired.index(False)][0]
        raise CorpusError(f"{path}, line {line}: no sentence2, though other rows have one.")
    return replace(examples, second=second if all(paired) else None, labels=labels)


def read_pairs(path: str | Path) -> Examples:
    """Read sentence pairs with a similarity: columns sentence1, sentence2, score."""
    examples, rows = _read(path, SCORED, "sentence1", "sentence2")
    scores = [number_in(Path(path), line, "score", cells["score"]) for line, cells in rows]
    if len(set(scores)) == 1:
        raise CorpusError(
            f"{path}: all {len(scores)} pairs have the score {scores[0]:g}, so no correlation "
            "with them exists; give pairs of different similarity."
        )
    return replace(examples, scores=tuple(scores))


def read_translations(path: str | Path) -> Examples:
    """Read texts with what a model should make of them: columns source, target.

    The sources are ``first`` of what is returned, the targets ``second``. Without a header line, a
    row of two columns is a source and its target. White space around either is no part of it.
    """
    examples, _ = _read(path, TRANSLATIONS, "source", "target")
    sources = tuple(text.strip() for text in examples.first)
    targets = tuple(text.strip() for text in examples.second or ())
    return replace(examples, first=sources, second=targets)


def _read(
    path: str | Path, columns: Columns, first: str, second: str | None = None
) -> tuple[Examples, list[Record]]:
    """Read a table whose columns ``first`` and ``second`` hold texts.

    Returns examples with these texts alone, and the rows of the table, for the columns besides.
    """
    path = Path(path)
    rows = list(read_records(path, columns))
    check_size(path, len(rows))
    examples = Examples(
        name=str(path),
        sha256=sha256_of_file(path),
        first=tuple(cells[first] for _, cells in rows),
        second=None if second is None else tuple(cells[second] for _, cells in rows),
        lines=tuple(line for line, _ in rows),
        notes=notes_on(path, columns),
    )
    return examples, rows


def read_texts(path: str | Path | None, limit: int | None = None, seed: int = 0) -> Examples:
    """Read text without labels: lines, a treebank's sentences, or the sentences of a table.

    With a limit so many of them are chosen at random, in their order.
    """
    text = as_corpus(path)
    check_size(text.name, min(text.n_sentences, limit or text.n_sentences))
    examples = Examples(
        name=text.name,
        sha256=text.sha256,
        first=tuple(text.lines()),
        apart=text.has_trees or text.table is not None,
        notes=text.notes,
    )
    return examples.draw(limit, seed)


def sample_texts(limit: int | None = None, seed: int = 0) -> Examples:
    """Return the sentences of the built-in sample, or some of them, chosen at random."""
    return read_texts(None, limit, seed)


def check_size(name: str | Path, n: int) -> None:
    """Refuse less than two examples."""
    if n < 2:
        count = "one example" if n else "no example"
        raise TooFewExamplesError(
            f"{name} holds {count}; at least two (better hundreds) are needed to measure anything."
        )
