"""What a run reads: evaluation data, training text, text of another kind, without overlap."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headscope.core.errors import InputError
from headscope.core.files import sha256_of
from headscope.data.examples import Examples, read_texts, sample_texts, without_shared
from headscope.data.token_rows import Row, encode_rows
from headscope.models.run.loaded import LoadedModel
from headscope.tasks.base import Task
from headscope.tasks.making import make_task, read_examples
from headscope.tasks.text_rows import masked, tokenised

#: Fewer sentences than this teach little.
FEW = 2000
MOST = 10_000  # Texts of another kind that are read
MOST_TRAINING = 200_000  # Texts that train: ten times what five minutes on a CPU get through
#: Tasks whose models read plain sentences, one by one.
_SENTENCES = ("fidelity", "mlm", "similarity", "retrieval", "classification")


@dataclass
class Texts:
    """Everything that was read, and the rows that a model makes of it."""

    task: str
    limit: int | None
    seed: int
    evaluation: Examples
    training: Examples  # Without any sentence of the evaluation data
    other: Examples | None  # Text of another kind, without a sentence of either
    names: tuple[str, ...]  # Of the files that train
    plain: bool  # Whether plain sentences train, not pairs or tagged words
    dropped: int  # Training sentences that were left out, since they are in the data
    warnings: list[str] = field(default_factory=list)
    _rows: dict[int, list[Row]] = field(default_factory=dict)
    _other_rows: dict[int, list[Row]] = field(default_factory=dict)

    def evaluation_task(self, model: LoadedModel) -> Task:
        """Tokenise the evaluation data."""
        return make_task(self.task, self.evaluation, model, seed=self.seed, limit=self.limit)

    def other_rows(self, model: LoadedModel) -> list[Row]:
        """Return text of another kind as a model reads it, in random order.

        Random texts of it, MOST at most; what is too long for the model is left out.
        """
        key = model.vocab_size
        texts = self.other.texts if self.other else ()
        if key not in self._other_rows:
            prompt = "" if model.task_head else model.pooling.prompt
            drawn = random.Random(self.seed).sample(texts, min(len(texts), MOST))
            self._other_rows[key], _ = tokenised(model, [prompt + text for text in drawn])
        return self._other_rows[key]

    def rows(self, model: LoadedModel) -> list[Row]:
        """Tokenise the training text for a model; row i is the same text for every vocabulary.

        Empty where nothing is trained or calibrated.
        """
        if not len(self.training):
            return []
        if model.vocab_size not in self._rows:
            self._rows[model.vocab_size] = self._tokenised(model)
        return self._rows[model.vocab_size]

    def _tokenised(self, model: LoadedModel) -> list[Row]:
        examples = self.training
        if not self.plain:
            return list(make_task(self.task, examples, model, seed=self.seed + 1).rows)
        prompt = "" if model.task_head else model.pooling.prompt
        plain = examples.texts
        texts = [prompt + text for text in plain]
        if self.task == "mlm":
            rows, _ = tokenised(model, texts)
            return masked(rows, model, self.seed + 1)
        encoded = list(encode_rows(model, texts, None))
        first = next(iter(self._rows.values()), None)
        if first is None:  # the whole model's vocabulary comes first, and says which texts fit
            fitting = [i for i, row in enumerate(encoded) if row is not None]
            if longer := len(encoded) - len(fitting):
                self.warnings.append(
                    f"{longer:,} lines of {examples.name} are longer than the model reads and were "
                    "left out (nothing is ever cut)."
                )
            self.training = examples = dataclasses.replace(
                examples, first=tuple(plain[i] for i in fitting), second=None
            )
            encoded = [encoded[i] for i in fitting]
        rows = [row for row in encoded if row is not None]
        if len(rows) < 2 or (first is not None and len(rows) != len(first)):
            raise InputError(
                "Some training texts do not fit the model; leave the longest ones out of the text."
            )
        return [dataclasses.replace(row, index=i) for i, row in enumerate(rows)]


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
    warnings = list[str]()
    sample = sample_texts()
    order = random.Random(seed).sample(range(len(sample)), len(sample))
    half, rest = (sample.pick(sorted(part)) for part in (order[::2], order[1::2]))
    if data is None and task in ("fidelity", "mlm"):
        evaluation = dataclasses.replace(rest, name=f"{sample.name}, one half")
        evaluation = evaluation.draw(limit, seed)
    else:
        evaluation = read_examples(task, data, limit, seed)
    plain = task in _SENTENCES and (task != "classification" or evaluation.second is None)
    plain = plain and not (task == "similarity" and reads_pairs)
    if not plain and not text and trains:
        raise InputError(
            f"The task {task} is trained on examples of its own kind; give them by text "
            "(labels in them are not used)."
        )
    if not calibrates:
        training = Examples("", "", first=())
        names = tuple[str, ...]()
    elif not plain:
        parts = [read_examples(task, path) for path in text]
        if len(parts) > 1:
            raise InputError("Several files of pairs cannot be joined; give one text.")
        training = (parts or [evaluation])[0]
        names = tuple(part.name for part in parts)
    else:
        read = [read_texts(path) for path in text]
        names = tuple(part.name for part in read)
        read = read or [dataclasses.replace(half, name=f"{sample.name}, the other half")]
        lines = tuple(dict.fromkeys(line for part in read for line in part.texts))
        digest = sha256_of("".join(part.sha256 for part in read))
        training = Examples(" + ".join(part.name for part in read), digest, first=lines)
    apart = without_shared(training, evaluation)
    if apart.same and text:
        raise InputError(
            f"{training.name} holds nothing but sentences of the evaluation data, on which nothing "
            "may be trained or calibrated; give other text."
        )
    training = apart.examples
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
    other = without_shared(read_texts(other_text) if other_text else rest, training).examples
    unseen = without_shared(other, evaluation)
    others = None if unseen.same or len(unseen.examples) < 2 else unseen.examples
    return Texts(
        task, limit, seed, evaluation, training, others, names, plain, apart.dropped, warnings
    )
