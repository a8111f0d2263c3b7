"""What a run of ``shrink`` reads: evaluation data, training text and text of another kind.

The evaluation data judge the models. The training text distils them and calibrates 8 bits; no
sentence of it is in the evaluation data. The text of another kind, on which models are compared
too, has no sentence of either.

:func:`read_all` reads them; the :class:`Texts` that it returns tokenises them when asked.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from headscope.core.errors import InputError
from headscope.core.files import sha256_of
from headscope.data.examples import WINDOWED, Examples, read_texts, sample_texts
from headscope.data.token_rows import Row, encode_rows, row_of_next_tokens
from headscope.data.unshared import without_shared
from headscope.models.run.loaded import LoadedModel
from headscope.tasks.base import Task
from headscope.tasks.making import make_task, read_examples
from headscope.tasks.text_rows import masked, tokenised

FEW = 2000  # Fewer sentences than this teach little
MOST = 10_000  # Texts of another kind that are read, at most
#: Training texts that are read, at most: ten times what five minutes on a CPU get through.
MOST_TRAINING = 200_000
#: Tasks whose models read plain sentences, one by one, whatever the form of their data.
_SENTENCES = ("fidelity", "retrieval", *WINDOWED)


@dataclass
class Texts:
    """Everything that was read, and the token ids of each text, a :class:`Row`.

    All models of a run are the whole one with fewer parts, so they tokenise every text alike: rows
    are made once and kept.
    """

    task: str  # By which the models are measured
    limit: int | None  # How many examples were drawn of the evaluation data; None for all
    seed: int
    evaluation: Examples
    training: Examples
    other: Examples | None  # Text of another kind
    names: tuple[str, ...]  # Names of the files of training text; empty for the built-in sample
    plain: bool  # Whether the training text is plain sentences, not pairs or tagged words
    dropped: int  # Training sentences that were left out, since the evaluation data have them
    warnings: list[str] = field(default_factory=list)
    _rows: list[Row] | None = None  # Of the training text; None before it is tokenised
    _other_rows: list[Row] | None = None  # Of the text of another kind

    def training_warnings(self) -> tuple[str, ...]:
        """Warn that a model which was trained has seen few sentences."""
        n = len(self.training)
        if n >= FEW:
            return ()
        return (
            f"Only {n:,} sentences to train on: give some thousand of the kind that the model will "
            "read (--text), without labels.",
        )

    def evaluation_task(self, model: LoadedModel) -> Task:
        """Tokenise the evaluation data."""
        return make_task(self.task, self.evaluation, model, seed=self.seed, limit=self.limit)

    def other_rows(self, model: LoadedModel) -> list[Row]:
        """Return text of another kind as the models read it, in random order.

        Of many texts :data:`MOST` are drawn; what is too long for the model is left out.
        """
        if self._other_rows is None:
            texts = () if self.other is None else self.other.texts
            drawn = random.Random(self.seed).sample(texts, min(len(texts), MOST))
            prompt = _prompt(model)
            self._other_rows, _ = tokenised(model, [prompt + text for text in drawn])
        return self._other_rows

    def training_rows(self, model: LoadedModel) -> list[Row]:
        """Return the training text as the models read it; empty where nothing trains or calibrates.

        Raises
        ------
        InputError
            If fewer than two texts fit the model.
        """
        if self._rows is None:
            self._rows = self._tokenised_training(model) if len(self.training) > 0 else []
        return self._rows

    def _tokenised_training(self, model: LoadedModel) -> list[Row]:
        """Tokenise the training text; lines that are too long are left out, with a warning."""
        # examples of the task's own kind, as the task reads them
        if not self.plain:
            task = make_task(self.task, self.training, model, seed=self.seed + 1)
            return list(task.rows)

        # plain sentences, with the tokens that the model is to predict
        prompt = _prompt(model)
        texts = self.training.texts
        prompted = [prompt + text for text in texts]
        if self.task == "mlm":
            rows, _ = tokenised(model, prompted)
            return masked(rows, model, self.seed + 1)
        if model.task_head == "causal" and self.task in ("fidelity", *WINDOWED):
            rows, _ = tokenised(model, prompted)
            return [row_of_next_tokens(row) for row in rows if len(row.content) > 1]
        encoded = list(encode_rows(model, prompted, None))  # None for a line that is too long
        fitting = [i for i, row in enumerate(encoded) if row is not None]
        if len(fitting) < 2:
            raise InputError(
                "Some training texts do not fit the model; leave the longest ones out of the text."
            )
        if len(fitting) < len(encoded):
            self.warnings.append(
                f"Left out of {self.training.name}, since longer than the model reads: "
                f"{len(encoded) - len(fitting):,} of {len(encoded):,} lines (nothing is ever cut)."
            )
        self.training = dataclasses.replace(
            self.training, first=tuple(texts[i] for i in fitting), second=None
        )
        rows = [row for row in encoded if row is not None]
        return [dataclasses.replace(row, index=i) for i, row in enumerate(rows)]


def _prompt(model: LoadedModel) -> str:
    """Return the prompt that stands before every text of a model that embeds, if it has one."""
    return model.pooling.prompt if model.task_head is None else ""


def read_all(
    task: str,
    data: str | Path | Examples | None,
    text: Sequence[str | Path],
    other_text: str | Path | None,
    *,
    limit: int | None,
    seed: int,
    trains: bool,
    calibrates: bool = True,
    reads_pairs: bool = False,
) -> Texts:
    """Read every file, and leave out of each text the sentences that it must not share.

    Parameters
    ----------
    task : str
        By which the models are measured.
    data, text, other_text
        The evaluation data, files of training text, and a file of text of another kind; None, or no
        file, for the built-in sample.
    limit : int or None
        How many examples are drawn of the evaluation data.
    seed : int
        Of what is drawn.
    trains : bool
        Whether a smaller model is to be made.
    calibrates : bool
        Whether any model is made: a folder that is only checked needs no training text.
    reads_pairs : bool
        Whether the model is a cross-encoder, which reads pairs of texts, never one alone.
    """
    first_half, second_half = _sample_halves(seed)

    # evaluation data
    evaluation = _evaluation(task, data, second_half, limit=limit, seed=seed)

    # training text
    plain = _reads_sentences(task, evaluation, reads_pairs=reads_pairs)
    if not plain and not text and trains:
        raise InputError(
            f"The task {task} is trained on examples of its own kind; give them by text "
            "(labels in them are not used)."
        )
    files: list[Examples] = []
    training = Examples(name="", sha256="", first=())
    if calibrates:
        files = [read_texts(path) if plain else read_examples(task, path) for path in text]
        training = _training(files, plain=plain, half=first_half, evaluation=evaluation)
    apart = without_shared(training, evaluation)
    if apart.same and text:  # fewer than two sentences would be left
        raise InputError(
            f"{training.name} holds nothing but sentences of the evaluation data, on which nothing "
            "may be trained or calibrated; give other text."
        )
    training, warnings = _drawn_training(apart.examples, plain=plain, seed=seed)

    return Texts(
        task=task,
        limit=limit,
        seed=seed,
        evaluation=evaluation,
        training=training,
        other=_other_text(other_text, second_half, training, evaluation),
        names=tuple(file.name for file in files),
        plain=plain,
        dropped=apart.dropped,
        warnings=warnings,
    )


def _evaluation(
    task: str,
    data: str | Path | Examples | None,
    half: Examples,
    *,
    limit: int | None,
    seed: int,
) -> Examples:
    """Read the evaluation data; for a task without labels by default ``half`` of the sample."""
    if data is None and task in ("fidelity", *WINDOWED):
        named = dataclasses.replace(half, name=f"{half.name}, one half")
        return named.draw(limit, seed)
    return read_examples(task, data, limit, seed)


def _reads_sentences(task: str, evaluation: Examples, *, reads_pairs: bool) -> bool:
    """Whether a task's model reads plain sentences, one by one."""
    if task == "classification":
        return evaluation.second is None
    if task == "similarity":
        return not reads_pairs
    return task in _SENTENCES


def _training(
    files: Sequence[Examples], *, plain: bool, half: Examples, evaluation: Examples
) -> Examples:
    """Join files of plain sentences; by default take ``half`` of the sample.

    Examples of another kind come from one file. By default they are the evaluation data, which then
    calibrate 8 bits; nothing is trained on them.
    """
    if plain:
        named = dataclasses.replace(half, name=f"{half.name}, the other half")
        return _joined(files or [named])
    if len(files) > 1:
        raise InputError("Several files of pairs cannot be joined; give one text.")
    return files[0] if files else evaluation


def _drawn_training(training: Examples, *, plain: bool, seed: int) -> tuple[Examples, list[str]]:
    """Draw sentences of a training text that is too long; returns warnings about its length too."""
    warnings: list[str] = []
    if plain and len(training) > MOST_TRAINING:
        warnings.append(
            f"Only {MOST_TRAINING:,} of the {len(training):,} texts of {training.name} are read "
            "for training, chosen at random."
        )
        training = training.draw(MOST_TRAINING, seed)
    return training, warnings


def _other_text(
    path: str | Path | None, half: Examples, training: Examples, evaluation: Examples
) -> Examples | None:
    """Read text of another kind, by default ``half`` of the sample.

    Sentences of the training text or of the evaluation data are left out; None where fewer than two
    are left.
    """
    text = half if path is None else read_texts(path)
    untrained = without_shared(text, training).examples
    unseen = without_shared(untrained, evaluation)
    if unseen.same or len(unseen.examples) < 2:  # ``same``: the evaluation data hold nearly all
        return None
    return unseen.examples


def _sample_halves(seed: int) -> tuple[Examples, Examples]:
    """Split the built-in sample at random: by default the first half trains, the second judges."""
    sample = sample_texts()
    order = random.Random(seed).sample(range(len(sample)), len(sample))
    return sample.pick(sorted(order[::2])), sample.pick(sorted(order[1::2]))


def _joined(texts: Sequence[Examples]) -> Examples:
    """Join the lines of several texts, each line once."""
    lines = dict.fromkeys(chain.from_iterable(text.texts for text in texts))
    return Examples(
        name=" + ".join(text.name for text in texts),
        sha256=sha256_of("".join(text.sha256 for text in texts)),
        first=tuple(lines),
    )
