"""Tasks of one pass: fidelity, masked words, classes, similarity, and tags of words."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.core.accumulator import Array
from headscope.core.errors import CorpusError, InputError
from headscope.core.rounding import above
from headscope.data.annotated import has_entities
from headscope.data.examples import Examples, class_ids
from headscope.data.files import Sentence
from headscope.data.pieces import encode_words, placed
from headscope.data.token_rows import Padded, Row, encode_rows, mask_row, window_rows
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.pooling import cosine, wide
from headscope.models.run.task_heads import Select
from headscope.stats.metrics import (
    CountedF1,
    Metric,
    Outputs,
    accuracy,
    macro_f1,
    matthews,
    mean_of,
    ratio_of,
    spearman,
    token_rate,
)
from headscope.tasks.base import Taken, Task, TokenTask, need_logits, numbered

#: Tokens of a window of the ``mlm`` task, special tokens included, and windows unless limited.
WINDOW, WINDOWS = 64, 256
#: What WikiText and Penn Treebank write in place of a rare word: no text, so nothing to predict.
_TAKEN_OUT = "<unk>"
#: Entities of each sentence that are predicted and right, predicted, and right.
_ENTITIES = ("entities_hit", "entities_predicted", "entities_right")


def tokenised(
    loaded: LoadedModel, first: Sequence[str], second: Sequence[str] | None = None
) -> tuple[list[Row], list[int]]:
    """Return rows numbered from 0, and the positions of the texts that fit the model."""
    rows, fitting = numbered(encode_rows(loaded, first, second))
    if len(rows) < 2:
        raise CorpusError(
            f"{len(rows)} of {len(first)} texts fit the model's limit of {loaded.max_length} "
            "tokens; give two or more different ones that do (nothing is ever cut)."
        )
    return rows, fitting


def masked(rows: Sequence[Row], loaded: LoadedModel, seed: int) -> list[Row]:
    """Mask 15% of the tokens of each row."""
    mask_id = getattr(loaded.tokenizer, "mask_token_id", None)
    if mask_id is None:
        raise InputError(f"The tokenizer of {loaded.name} has no mask token; mlm needs one.")
    return [mask_row(row, int(mask_id), seed) for row in rows]


def notes_of(loaded: LoadedModel, rows: Sequence[Row]) -> tuple[str, ...]:
    """Say where texts are read otherwise than a user of the model may expect."""
    prompt, limit = loaded.pooling.prompt, loaded.pooling.max_length
    notes = []
    if prompt:
        notes.append(
            f"Every text is read after the default prompt of the model's folder, {prompt!r}."
        )
    longer = 0 if limit is None else sum(len(row) > limit for row in rows)
    if longer:
        notes.append(
            f"{longer:,} of {len(rows):,} texts are longer than the {limit} tokens at which "
            "SentenceTransformer cuts the texts of this model; here they are read whole."
        )
    return (*notes, *loaded.pooling.notes)


class Fidelity(Task):
    """Mean cosine of embeddings and, for a model with a head, mean KL of its outputs.

    A masked language model reads text with 15% of the tokens masked, and its KL is taken there;
    that of a head for tags is a mean over tokens, that of a head for answers the mean of the KL of
    where they begin and where they end.
    """

    name = "fidelity"
    words = "cosine of embeddings (or KL of outputs) to the whole model's own; any text"
    has_labels = False
    alone = True  # the whole model's outputs are made at first use
    identifying = "cosine"

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        # With a head it is the head's outputs that count, and its texts have no prompt.
        prompt = "" if loaded.task_head else loaded.pooling.prompt
        rows, _ = tokenised(loaded, [prompt + text for text in examples.texts])
        rows = masked(rows, loaded, self._seed) if loaded.task_head == "mlm" else rows
        if loaded.task_head == "token-classification":  # every token has a tag that can be compared
            rows = [
                replace(row, masked=row.content, gold=tuple(row.ids[i] for i in row.content))
                for row in rows
            ]
        self.notes = () if loaded.task_head else notes_of(loaded, rows)
        # Text runs the encoder of an encoder-decoder model, and not its head.
        has_outputs = loaded.task_head is not None and not loaded.encoder_decoder
        self.table = {name: mean_of(name) for name in ("cosine", "kl")[: 1 + has_outputs]}
        return rows, len(rows), len(examples.texts)

    def _select(self, batch: Padded) -> Select | None:
        return self.distance.select(batch)

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        distances = self.distance.measure(batch, hidden, logits)
        return {**distances, "cosine": distances["cosine"].clamp(max=1.0)}  # rounding exceeds it

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where the reference embeddings are the same for every text."""
        return "gives every text the same embedding" if self.distance.constant() else None

    def _label_free_loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        distances = self.distance.measure(batch, hidden, logits)
        return 1 - distances["cosine"] + distances.get("kl", 0.0)


class MaskedLM(TokenTask):
    """Mean negative log-probability (nats) of masked tokens, and how many are guessed right."""

    name = "mlm"
    words = "loss at masked tokens; any text, and a model with that head"
    head = "mlm"
    higher_is_better = False
    same_guess = "guesses the same token at every mask"
    identifying = "nll"
    table = {  # noqa: RUF012  (never changed)
        "loss": ratio_of("nll", "tokens"),
        "masked_accuracy": token_rate("correct", "tokens"),
    }

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        length, count = min(WINDOW, loaded.max_length), self._limit or WINDOWS
        lines = (line.replace(_TAKEN_OUT, " ") for line in examples.first)
        rows = window_rows(loaded, lines, length=length, count=count)
        if len(rows) < 2:
            raise CorpusError(
                f"{examples.name} has not enough text for two windows of {length} tokens; give "
                "more."
            )
        return masked(rows, loaded, self._seed), len(rows), len(rows)

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        scores = wide(need_logits(logits)[0])
        nll = F.cross_entropy(scores, batch.gold, reduction="none")
        total = nll.new_zeros(len(batch.index)).index_add(0, batch.masked[0], nll)
        return {"nll": total, **super()._read(batch, hidden, logits)}


class Classification(Task):
    """Accuracy, macro F1 and Matthews correlation of the largest logit, all times 100."""

    name = "classification"
    words = "accuracy; labelled sentences or pairs, and a model with that head"
    head = "classification"
    table = {"accuracy": accuracy, "f1": macro_f1, "matthews": matthews}  # noqa: RUF012

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        config = loaded.network.config
        kind = config.problem_type
        if config.num_labels < 2 or kind in ("regression", "multi_label_classification"):
            raise InputError(
                f"The head of {loaded.name} does not choose one of several classes "
                f"({config.num_labels} outputs, {kind or 'regression'}); the task classification "
                "needs one that does."
            )
        names = {int(number): str(name) for number, name in config.id2label.items()}
        labels = class_ids(examples, names)
        rows, fitting = tokenised(loaded, examples.first, examples.second)
        self._labels = np.array([labels[i] for i in fitting])
        return rows, len(rows), len(examples)

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        return {"predicted": need_logits(logits).argmax(dim=-1)}

    def _by_example(self, by_row: dict[str, Array]) -> dict[str, Array]:
        return {**by_row, "label": self._labels}

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where one class is predicted whatever is read."""
        same = np.ptp(outputs["predicted"]) == 0
        return "predicts one class for every example" if same else None

    def _loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        scores = wide(need_logits(logits))
        gold = torch.as_tensor(self._labels[batch.index], device=scores.device)
        return F.cross_entropy(scores, gold, reduction="none")

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        return wide(need_logits(logits)).log_softmax(dim=-1)


class Similarity(Task):
    """Spearman correlation (x100) of gold scores with the cosine of embeddings.

    Reimers & Gurevych 2019, arXiv:1908.10084.
    """

    name = "similarity"
    words = "Spearman correlation of cosines with people's scores; scored pairs"
    table = {"spearman": spearman}  # noqa: RUF012
    identifying = "similarity"

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        texts = examples.texts
        rows, fitting = tokenised(loaded, [loaded.pooling.prompt + text for text in texts])
        row_of = {texts[i]: row.index for i, row in zip(fitting, rows, strict=True)}
        pairs, gold = [], []
        both = zip(examples.first, examples.second or (), examples.scores or (), strict=True)
        for first, second, score in both:
            if first in row_of and second in row_of:
                pairs.append((row_of[first], row_of[second]))
                gold.append(score)
        if len(set(gold)) < 2:
            raise CorpusError(
                f"{examples.name}: {len(examples) - len(pairs)} of {len(examples)} pairs are "
                "longer than the model's limit, and the rest have no two different scores."
            )
        self.notes = notes_of(loaded, rows)
        self._pairs, self._gold = np.array(pairs), np.array(gold)
        return rows, len(pairs), len(examples)

    @property
    def rows_of_examples(self) -> Sequence[Sequence[Row]]:
        """Both sentences of each pair."""
        return [(self.rows[first], self.rows[second]) for first, second in self._pairs.tolist()]

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        embedding = self.pooling.embed(hidden, batch.attention_mask)
        return {"embedding": F.normalize(embedding.float(), dim=-1)}

    def _by_example(self, by_row: dict[str, Array]) -> dict[str, Array]:
        first, second = (by_row["embedding"][side].astype(float) for side in self._pairs.T)
        zero = ~(first.any(axis=1) | second.any(axis=1))  # two equal states, if empty ones
        return {"similarity": (first * second).sum(axis=1) + zero, "gold": self._gold}

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where no pair is more similar than another."""
        if above(outputs["similarity"].max(), outputs["similarity"].min()):
            return None
        return "gives every pair the same similarity, so its correlation is set to 0"

    def _sets(self) -> Sequence[Sequence[Row]]:
        return self.rows_of_examples

    def _loss_of_sets(
        self, sets: list[int], batch: Padded, hidden: Tensor, logits: Tensor | None
    ) -> Tensor:
        """Return (cosine - gold)^2 of each pair; a perfect pair's gold cosine is 1."""
        first, second = self.pooling.embed(hidden, batch.attention_mask).chunk(2)
        gold = torch.as_tensor(self._gold[sets] / float(np.abs(self._gold).max())).to(first)
        return (cosine(first, second, precise=False) - gold) ** 2


class TokenClassification(TokenTask):
    """F1 of entities, or accuracy over words, times 100; a word's tag stands at its first piece.

    * ``entity_f1``: where the tags mark how entities begin and go on (B-, I-), micro F1 of whole
      entities, as seqeval reads them (IOB2 and its kin, not strict); then it is the task's value.
    * ``word_accuracy``: share of words with the right tag.

    An example is a sentence.
    """

    name = head = "token-classification"
    words = "F1 of entities, or accuracy over words; tagged words, and a model with that head"
    same_guess = "gives the same tag to every word"

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        names = {int(number): str(name) for number, name in loaded.network.config.id2label.items()}
        gold = _tag_ids(examples, names, loaded.name)
        words = examples.words or ()
        encoded = (
            None
            if item is None
            else Row(
                i,
                tuple(item.ids.tolist()),
                None,
                content=tuple((item.word_of >= 0).nonzero()[0].tolist()),
                masked=tuple(item.first.tolist()),
                gold=gold[i],
            )
            for i, item in enumerate(encode_words(loaded, placed(map(Sentence, words))))
        )
        rows, fitting = numbered(encoded)
        self.notes = examples.notes
        self._words = [words[i] for i in fitting]
        self._names = names
        self.table: dict[str, Metric] = {"word_accuracy": token_rate("correct", "tokens")}
        self._entities = has_entities(tag for row in examples.tags or () for tag in row)
        if self._entities:
            if find_spec("seqeval") is None:
                raise InputError(
                    "F1 of entities is counted by the package seqeval, which is not installed; "
                    "install headscope with the extra [tags]."
                )
            self.table = {"entity_f1": CountedF1(*_ENTITIES), **self.table}
        return rows, len(rows), len(words)

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        outputs = super()._read(batch, hidden, logits)
        if not self._entities:
            return outputs
        sizes = torch.bincount(batch.masked[0], minlength=len(batch.index)).tolist()
        guess = torch.split(need_logits(logits)[0].argmax(dim=-1).cpu(), sizes)
        right = torch.split(batch.gold.cpu(), sizes)
        counts = [
            entity_counts(*([self._names[tag] for tag in tags.tolist()] for tags in pair))
            for pair in zip(guess, right, strict=True)
        ]
        return {**outputs, **dict(zip(_ENTITIES, torch.tensor(counts).double().T, strict=True))}


def entity_counts(predicted: Sequence[str], right: Sequence[str]) -> tuple[int, int, int]:
    """Count a sentence's entities that are predicted and right, predicted, and right."""
    from seqeval.metrics.sequence_labeling import get_entities

    with warnings.catch_warnings():  # of tags that are no entity's
        warnings.simplefilter("ignore")
        ours, theirs = set(get_entities(list(predicted))), set(get_entities(list(right)))
    return len(ours & theirs), len(ours), len(theirs)


def _tag_ids(examples: Examples, names: dict[int, str], model: str) -> list[tuple[int, ...]]:
    """Map tags to the model's numbers: by name (any case), or as numbers."""
    numbers = {str(number): number for number in names}
    numbers |= {name.lower(): number for number, name in names.items()}
    rows = []
    for i, tags in enumerate(examples.tags or ()):
        unknown = next((tag for tag in tags if tag.lower() not in numbers), None)
        if unknown is not None:
            few = [*names.values()][:20]
            raise InputError(
                f"{examples.where(i)}: {model} has no tag {unknown!r}; it has {', '.join(few)}"
                f"{', ...' if len(names) > len(few) else ''}."
            )
        rows.append(tuple(numbers[tag.lower()] for tag in tags))
    return rows
