"""What a run reads: evaluation data, training text, text of another kind, without overlap."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from headscope.core.errors import InputError
from headscope.core.files import sha256_of
from headscope.data.examples import Examples, read_texts, sample_texts
from headscope.data.token_rows import Row, encode_rows
from headscope.data.unshared import without_shared
from headscope.models.run.loaded import LoadedModel
from headscope.tasks.base import Task
from headscope.tasks.making import make_task, read_examples
from headscope.tasks.text_rows import masked, tokenised

#: Fewer sentences than this teach little.
FEW = 2000
MOST = 10_000  # Texts of another kind that are read
MOST_TRAINING = 200_000  # Texts that train: ten times what five minutes on a CPU get through
#: Tasks whose models read plain sentences, one by one, whatever their data are.
_SENTENCES = ("fidelity", "mlm", "retrieval")


@dataclass
class Texts:
    """Everything that was read, and the rows of tokens that the models of a run make of it.

    All of them are the whole model with fewer parts, so they read every text alike.
    """

    task: str
    limit: int | None
    seed: int
    evaluation: Examples
    training: Examples  # Without any sentence of the evaluation data
    other: Examples | None  # Text of another kind, without a sentence of either
    names: tuple[str, ...]  # Names of the files that train
    plain: bool  # Whether plain sentences train, not pairs or tagged words
    dropped: int  # Training sentences that were left out, since they are in the data
    warnings: list[str] = field(default_factory=list)
    _rows: list[Row] | None = None
    _other_rows: list[Row] | None = None

    def evaluation_task(self, model: LoadedModel) -> Task:
        """Tokenise the evaluation data."""
        return make_task(self.task, self.evaluation, model, seed=self.seed, limit=self.limit)

    def other_rows(self, model: LoadedModel) -> list[Row]:
        """Return text of another kind as the models read it, in random order.

        Of many texts :data:`MOST` are drawn; what is too long for the model is left out.
        """
        if self._other_rows is None:
            texts = self.other.texts if self.other else ()
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
            self._rows = self._tokenised(model) if len(self.training) else []
        return self._rows

    def _tokenised(self, model: LoadedModel) -> list[Row]:
        """Tokenise the training text; what is too long is left out of it, with a warning."""
        if not self.plain:
            task = make_task(self.task, self.training, model, seed=self.seed + 1)
            return list(task.rows)
        prompt = _prompt(model)
        texts = self.training.texts
        prompted = [prompt + text for text in texts]
        if self.task == "mlm":
            rows, _ = tokenised(model, prompted)
            return masked(rows, model, self.seed + 1)
        encoded = list(encode_rows(model, prompted, None))
        fitting = [i for i, row in enumerate(encoded) if row is not None]
        if len(fitting) < 2:
            raise InputError(
                "Some training texts do not fit the model; leave the longest ones out of the text."
            )
        if len(fitting) < len(encoded):
            self.warnings.append(
                f"{len(encoded) - len(fitting):,} lines of {self.training.name} are longer than "
                "the model reads and were left out (nothing is ever cut)."
            )
        self.training = dataclasses.replace(
            self.training, first=tuple(texts[i] for i in fitting), second=None
        )
        rows = [row for row in encoded if row is not None]
        return [dataclasses.replace(row, index=i) for i, row in enumerate(rows)]


def _prompt(model: LoadedModel) -> str:
    """Return what stands before every text of a model that embeds."""
    return "" if model.task_head else model.pooling.prompt


def read_all(
    task: str,
    data: str | Path | Examples | None,
    text: Sequence[str | Path],
    other_text: str | Path | None,
    *,
    limit: int | None,
    seed: int,
    trains: bool,
    distils: bool,
    calibrates: bool = True,
    reads_pairs: bool = False,
) -> Texts:
    """Read every file, and leave out of each text the sentences of what it must not share.

    ``trains`` says that a smaller model is wanted, ``distils`` that it is trained for some minutes,
    ``calibrates`` that anything is made at all: a folder that is only checked needs no such text;
    ``reads_pairs`` that the model is a cross-encoder, which reads no sentence alone.
    """
    first_half, second_half = _sample_halves(seed)

    # what judges
    evaluation = _evaluation(task, data, second_half, limit=limit, seed=seed)

    # what trains and calibrates
    plain = _reads_sentences(task, evaluation, reads_pairs=reads_pairs)
    if not plain and not text and trains:
        raise InputError(
            f"The task {task} is trained on examples of its own kind; give them by text "
            "(labels in them are not used)."
        )
    files: list[Examples] = []
    training = Examples("", "", first=())
    if calibrates:
        files = [read_texts(path) if plain else read_examples(task, path) for path in text]
        training = _training(files, plain=plain, half=first_half, evaluation=evaluation)
    apart = without_shared(training, evaluation)
    if apart.same and text:
        raise InputError(
            f"{training.name} holds nothing but sentences of the evaluation data, on which nothing "
            "may be trained or calibrated; give other text."
        )
    training, warnings = _drawn_training(apart.examples, plain=plain, distils=distils, seed=seed)

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
    """Read what judges; for a task without labels by default one half of the sample."""
    if data is None and task in ("fidelity", "mlm"):
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
    """Join files of sentences; by default the other half of the sample.

    Examples of another kind come from one file, or they are the evaluation data themselves.
    """
    if plain:
        named = dataclasses.replace(half, name=f"{half.name}, the other half")
        return _joined(files or [named])
    if len(files) > 1:
        raise InputError("Several files of pairs cannot be joined; give one text.")
    return files[0] if files else evaluation


def _drawn_training(
    training: Examples, *, plain: bool, distils: bool, seed: int
) -> tuple[Examples, list[str]]:
    """Draw from a training text that is too long; returns it with warnings about its length."""
    warnings: list[str] = []
    if plain and len(training) > MOST_TRAINING:
        warnings.append(
            f"Only {MOST_TRAINING:,} of the {len(training):,} texts of {training.name} are read "
            "for training, chosen at random."
        )
        training = training.draw(MOST_TRAINING, seed)
    if distils and len(training) < FEW:
        warnings.append(
            f"Only {len(training):,} sentences to train on: give some thousand of the kind that "
            "the model will read (--text), without labels."
        )
    return training, warnings


def _other_text(
    path: str | Path | None, half: Examples, training: Examples, evaluation: Examples
) -> Examples | None:
    """Read text of another kind, by default one half of the sample, without what both others have.

    None where fewer than two texts are left.
    """
    text = read_texts(path) if path else half
    untrained = without_shared(text, training).examples
    unseen = without_shared(untrained, evaluation)
    too_few = unseen.same or len(unseen.examples) < 2
    return None if too_few else unseen.examples


def _sample_halves(seed: int) -> tuple[Examples, Examples]:
    """Split the built-in sample at random: by default one half trains, and the other judges."""
    sample = sample_texts()
    order = random.Random(seed).sample(range(len(sample)), len(sample))
    return sample.pick(sorted(order[::2])), sample.pick(sorted(order[1::2]))


def _joined(texts: Sequence[Examples]) -> Examples:
    """Put the lines of several texts behind each other, each line once."""
    lines = dict.fromkeys(chain.from_iterable(text.texts for text in texts))
    return Examples(
        name=" + ".join(text.name for text in texts),
        sha256=sha256_of("".join(text.sha256 for text in texts)),
        first=tuple(lines),
    )
