"""Labelled examples for training, validation and test, tokenised for a model.

:func:`read` reads the texts, :func:`tokenised_splits` tokenises them and splits the validation part
off, and :func:`subset` draws the training examples of one run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.transfer import TransferOptions
from headscope.core.accumulator import Array
from headscope.core.errors import CorpusError, InputError
from headscope.core.files import sha256_of
from headscope.data.examples import Examples, read_labelled
from headscope.data.labels import with_labels
from headscope.data.reversed_phrases import TASK, reversed_phrases
from headscope.data.sentences import split_words
from headscope.data.token_rows import Row, encode_rows
from headscope.models.run.loaded import LoadedModel

#: One in VALIDATION training examples is used for validation, at most MOST_VALIDATION of them.
VALIDATION = 5
MOST_VALIDATION = 100
FEWEST = 10  # Fewest examples of the training file, and of the test file


@dataclass(frozen=True)
class Source:
    """The texts and labels that were read."""

    name: str  # Of both files together, for the result's provenance
    sha256: str  # Of both files together
    task: str  # What is classified
    train: Examples  # Training examples that the test does not have
    test: Examples
    shared: int  # Training examples that were left out, since the test has them too

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what was not read of either file."""
        return tuple(dict.fromkeys((*self.train.notes, *self.test.notes)))


@dataclass(frozen=True)
class Split:
    """The training, validation or test examples, as a model reads them."""

    rows: tuple[Row, ...]  # The token ids of each text, or pair of texts
    labels: Tensor  # (n,): class numbers
    words: tuple[tuple[str, ...], ...]  # The words of each, for a baseline without a model

    def __len__(self) -> int:
        return len(self.rows)

    def pick(self, indices: Sequence[int]) -> Split:
        """Return some of the examples."""
        rows = tuple(self.rows[i] for i in indices)
        return Split(rows, self.labels[list(indices)], tuple(self.words[i] for i in indices))


@dataclass(frozen=True)
class Labelled:
    """Examples for training, validation and test; no example is in two of them."""

    classes: tuple[str, ...]  # Names, in the order of the class numbers
    train: Split
    validation: Split  # Chooses the step and the learning rate
    test: Split  # Measures the accuracy
    dropped: int  # Training examples left out: shared with the test, or too long for the model


def read(options: TransferOptions) -> Source:
    """Read both files, or make the built-in task; draw at most as many examples as the limits."""
    training, testing, task = _read_files(options)

    # leave out training examples whose texts a test example has
    tested = set(_compared_texts(testing))
    unshared = [i for i, texts in enumerate(_compared_texts(training)) if texts not in tested]
    if len(unshared) < FEWEST:
        raise CorpusError(
            f"{training.name} has {len(unshared)} examples that {testing.name} does not have too; "
            f"give {FEWEST} or more."
        )
    name = training.name
    if training.name != testing.name:
        name = f"{training.name} and {testing.name}"
    return Source(
        name=name,
        sha256=sha256_of(training.sha256 + testing.sha256),
        task=task,
        train=_drawn(training.pick(unshared), options.train_limit, options.seed),
        test=_drawn(testing, options.test_limit, options.seed),
        shared=len(training) - len(unshared),
    )


def _read_files(options: TransferOptions) -> tuple[Examples, Examples, str]:
    """Read the training and test examples, and say what is classified; by default a built-in task.

    Raises
    ------
    InputError
        If one file is given alone, or a limit is too small.
    CorpusError
        If the test has a label that the training examples lack.
    """
    train = options.train
    test = options.test
    if (train is None) != (test is None):
        raise InputError("Give both train and test, or neither for the built-in task.")
    limits = {"train_limit": options.train_limit, "test_limit": options.test_limit}
    for name, limit in limits.items():
        if limit and limit < FEWEST:
            raise InputError(f"{name} is {limit}; give {FEWEST} examples or more, or 0 for all.")
    if train is None or test is None:
        training, testing = reversed_phrases()
        task = TASK
    else:
        training = with_labels(read_labelled(train), None)
        testing = with_labels(read_labelled(test), None)
        task = f"{Path(train).name} -> {Path(test).name}"
    unknown = sorted(set(testing.labels or ()) - set(training.labels or ()))
    if unknown:
        raise CorpusError(
            f"{testing.name} has the label {unknown[0]!r}, which {training.name} lacks: a "
            "classifier cannot learn it. Use the same labels in both files."
        )
    return training, testing, task


def _compared_texts(examples: Examples) -> list[tuple[str, str]]:
    """Return both texts of every example, without extra spaces: ``("a cat", "it sat")``.

    The second one is empty where an example has one text.
    """
    return [
        (" ".join(first.split()), " ".join(second.split()))
        for first, second in zip(examples.first, _second_texts(examples), strict=True)
    ]


def _second_texts(examples: Examples) -> Sequence[str]:
    """Return the second text of every example; empty ones where examples have one text."""
    return [""] * len(examples) if examples.second is None else examples.second


def _drawn(examples: Examples, limit: int, seed: int) -> Examples:
    """Draw ``limit`` examples at random, 0 for all: a file may be sorted by class."""
    if limit == 0 or limit >= len(examples):
        return examples
    drawn = np.random.default_rng((abs(seed), 1)).permutation(len(examples))[:limit]
    return examples.pick(np.sort(drawn).tolist())


def tokenised_splits(source: Source, loaded: LoadedModel, seed: int) -> Labelled:
    """Tokenise all examples, and split the validation part off the training examples."""
    classes = tuple(sorted(set(source.train.labels or ()) | set(source.test.labels or ())))
    encoded = _encoded(source.train, loaded, classes)
    order = np.random.default_rng((abs(seed), 2)).permutation(len(encoded)).tolist()
    n_validation = min(len(encoded) // VALIDATION, MOST_VALIDATION)
    return Labelled(
        classes=classes,
        train=encoded.pick(sorted(order[n_validation:])),
        validation=encoded.pick(sorted(order[:n_validation])),
        test=_encoded(source.test, loaded, classes),
        dropped=source.shared + len(source.train) - len(encoded),
    )


def _encoded(examples: Examples, loaded: LoadedModel, classes: Sequence[str]) -> Split:
    """Tokenise examples; those that are too long for the model are left out."""
    texts = [loaded.pooling.prompt + text for text in examples.first]
    encoded = enumerate(encode_rows(loaded, texts, examples.second))
    rows = [dataclasses.replace(row, index=i) for i, row in encoded if row is not None]
    if len(rows) < FEWEST:
        raise CorpusError(
            f"{len(rows)} examples of {examples.name} can be used; give {FEWEST} or more that fit "
            f"the model's limit of {loaded.max_length} tokens."
        )
    labels = examples.labels or ()
    second = _second_texts(examples)
    words: list[tuple[str, ...]] = []
    for row in rows:
        # "a cat", "it sat" -> ("a", "cat", "2:it", "2:sat")
        words_of_first = [word.lower() for word in split_words(examples.first[row.index])]
        words_of_second = [f"2:{word.lower()}" for word in split_words(second[row.index])]
        words.append((*words_of_first, *words_of_second))
    numbers = torch.tensor([classes.index(labels[row.index]) for row in rows])
    return Split(tuple(rows), numbers, tuple(words))


def subset(train: Split, size: int, seed: int) -> Split:
    """Draw the training examples of one run: for one seed, a smaller size is part of a larger."""
    order: Array = np.random.default_rng((abs(seed), 3)).permutation(len(train))
    return train.pick(order[:size].tolist())
