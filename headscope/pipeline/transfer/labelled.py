"""Labelled examples in three parts: training, validation and test, tokenised for a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headscope.core.errors import CorpusError, InputError
from headscope.core.files import sha256_of
from headscope.data.examples import Examples, read_labelled
from headscope.data.reversed_phrases import TASK, reversed_phrases
from headscope.data.sentence import split_words
from headscope.data.token_rows import Row, encode_rows
from headscope.measures.accumulator import Array
from headscope.models.loaded import LoadedModel
from headscope.tasks.making import select

__all__ = ["Labelled", "Part", "Source", "label", "read"]

#: One of so many training examples validates, and the most that do.
VALIDATION, MOST_VALIDATION = 5, 100
#: Fewest examples of the training file, and of the test file.
FEWEST = 10


@dataclass(frozen=True)
class Source:
    """What was read.

    Attributes
    ----------
    name, sha256 : str
        Of both files together, for the result's provenance.
    task : str
        What is classified.
    train, test : Examples
        As they were read, not shared.
    shared : int
        Training examples that were left out, as the test has them too.
    """

    name: str
    sha256: str
    task: str
    train: Examples
    test: Examples
    shared: int


@dataclass(frozen=True)
class Part:
    """Examples as a model reads them.

    Attributes
    ----------
    rows : tuple of Row
        Token ids of each.
    labels : Tensor, (n,), int64
        Class numbers.
    words : tuple of tuple of str
        What a baseline without a model reads.
    """

    rows: tuple[Row, ...]
    labels: Tensor
    words: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def of(self, places: Sequence[int]) -> Part:
        """Return some of the examples."""
        rows, words = ([column[i] for i in places] for column in (self.rows, self.words))
        return Part(tuple(rows), self.labels[list(places)], tuple(words))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Labelled:
    """The three parts, which share no example.

    Attributes
    ----------
    classes : tuple of str
        In the order of their numbers.
    train, validation, test : Part
        What is trained on, what chooses step and rate, what accuracy is of.
    dropped : int
        Training examples that are in no part.
    """

    classes: tuple[str, ...]
    train: Part
    validation: Part
    test: Part
    dropped: int


def read(
    train: str | Path | None,
    test: str | Path | None,
    *,
    train_limit: int,
    test_limit: int,
    seed: int,
) -> Source:
    """Read both files, or derive the built-in task; draw at most as many examples as the limits.

    Raises
    ------
    InputError
        If only one file is given, or a limit leaves too little.
    CorpusError
        If a file cannot be read, or the test has a class that the training file lacks.
    """
    if (train is None) != (test is None):
        raise InputError("Give both train and test, or neither for the built-in task.")
    for name, limit in (("train_limit", train_limit), ("test_limit", test_limit)):
        if limit and limit < FEWEST:
            raise InputError(f"{name} is {limit}; give {FEWEST} examples or more, or 0 for all.")
    if train is None or test is None:
        ours, theirs = reversed_phrases()
        task = TASK
    else:
        ours, theirs = read_labelled(train), read_labelled(test)
        task = f"{Path(train).name} -> {Path(test).name}"
    _check_classes(ours, theirs)
    own, shared = _without_shared(ours, theirs)
    drawn = _drawn(own, train_limit, seed), _drawn(theirs, test_limit, seed)
    same = ours.name if ours.name == theirs.name else f"{ours.name} and {theirs.name}"
    return Source(same, sha256_of(ours.sha256 + theirs.sha256), task, *drawn, shared)


def _check_classes(train: Examples, test: Examples) -> None:
    unknown = sorted(set(test.labels or ()) - set(train.labels or ()))
    if unknown:
        raise CorpusError(
            f"{test.name} has the label {unknown[0]!r}, which {train.name} lacks: a classifier "
            "cannot learn it. Use the same labels in both files."
        )


def _without_shared(train: Examples, test: Examples) -> tuple[Examples, int]:
    """Leave out training examples with the texts of a test example."""
    known = set(_texts(test))
    kept = [i for i, text in enumerate(_texts(train)) if text not in known]
    return select(train, kept), len(train) - len(kept)


def _texts(examples: Examples) -> list[tuple[str, str]]:
    second = examples.second or ("",) * len(examples)
    return [
        (" ".join(a.split()), " ".join(b.split()))
        for a, b in zip(examples.first, second, strict=True)
    ]


def _drawn(examples: Examples, limit: int, seed: int) -> Examples:
    """Draw examples at random: the first lines of a file may be sorted by class."""
    if not limit or limit >= len(examples):
        return examples
    places = np.random.default_rng((abs(seed), 1)).permutation(len(examples))[:limit]
    return select(examples, np.sort(places).tolist())


def label(source: Source, loaded: LoadedModel, seed: int) -> Labelled:
    """Tokenise all examples, and split the validation part off the training examples.

    Raises
    ------
    CorpusError
        If too few examples fit the model.
    """
    classes = tuple(sorted(set(source.train.labels or ()) | set(source.test.labels or ())))
    train, test = (_encoded(part, loaded, classes) for part in (source.train, source.test))
    dropped = source.shared + len(source.train) - len(train)
    order = np.random.default_rng((abs(seed), 2)).permutation(len(train)).tolist()
    held = min(len(train) // VALIDATION, MOST_VALIDATION)
    parts = train.of(sorted(order[held:])), train.of(sorted(order[:held]))
    return Labelled(classes, *parts, test, dropped)


def _encoded(examples: Examples, loaded: LoadedModel, classes: Sequence[str]) -> Part:
    prompt = loaded.pooling.prompt
    texts = [prompt + text for text in examples.first]
    rows = list(encode_rows(loaded, texts, examples.second))
    kept = [i for i, row in enumerate(rows) if row is not None]
    if len(kept) < FEWEST:
        raise CorpusError(
            f"{len(kept)} examples of {examples.name} can be used; give {FEWEST} or more that fit "
            f"the model's limit of {loaded.max_length} tokens."
        )
    numbers = {name: i for i, name in enumerate(classes)}
    labels, second = examples.labels or (), examples.second or ("",) * len(examples)
    return Part(
        tuple(dataclasses.replace(row, index=i) for i in kept if (row := rows[i]) is not None),
        torch.tensor([numbers[labels[i]] for i in kept]),
        tuple(_words(examples.first[i], second[i]) for i in kept),
    )


def _words(first: str, second: str) -> tuple[str, ...]:
    """Return the words of a text; those of a second one are told apart from the first one's."""
    own = tuple(word.lower() for word in split_words(first))
    return own + tuple(f"2:{word.lower()}" for word in split_words(second))


def subset(train: Part, size: int, seed: int) -> Part:
    """Return the training examples of one run: a smaller size is part of a larger one."""
    order: Array = np.random.default_rng((abs(seed), 3)).permutation(len(train))
    return train.of(order[:size].tolist())
