"""Tasks of labelled sentences and scored pairs.

Classification; similarity by the cosine of two embeddings; and similarity by the score that a
cross-encoder gives two texts read together.

A task (:mod:`.base`) has these methods: ``_take`` makes rows of token ids of the examples,
``_read`` keeps numbers of each row of a batch that has run, ``_by_example`` makes numbers of each
example of them. ``_loss``, and the output e of ``_embed``, are differentiated by gates of heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.core.accumulator import Array
from headscope.core.errors import CorpusError, InputError
from headscope.core.rounding import above
from headscope.core.widest import wide
from headscope.data.examples import Examples
from headscope.data.labels import class_ids, with_labels
from headscope.data.token_rows import Padded, Row
from headscope.models.run.head_outputs import HeadOutputs, head_outputs, spread_of
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.pooling import cosine
from headscope.stats.metrics import (
    Outputs,
    accuracy,
    macro_f1,
    matthews,
    spearman,
)
from headscope.tasks.base import Taken, Task, order_doubt
from headscope.tasks.positions import need_logits
from headscope.tasks.text_rows import notes_of, tokenised


class Classification(Task):
    """Accuracy, macro F1 and Matthews correlation of the largest logit, all times 100."""

    name = "classification"
    words = "accuracy; labelled sentences or pairs, and a model with that head"
    head = "classification"
    table = {"accuracy": accuracy, "f1": macro_f1, "matthews": matthews}  # noqa: RUF012

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        """Tokenise texts and read their labels as the model's classes."""
        config = loaded.network.config
        outputs = head_outputs(loaded)
        if outputs is not HeadOutputs.CHOICE:
            raise InputError(
                f"The head of {loaded.name} does not choose one of several classes (its outputs: "
                f"{config.num_labels}, {outputs.value}); the task classification needs one that "
                "does."
            )
        names = {int(number): str(name) for number, name in config.id2label.items()}
        examples = with_labels(examples, names)
        self.data = examples
        labels = class_ids(examples, names)
        rows, fitting = tokenised(loaded, examples.first, examples.second)
        self._labels = np.array([labels[i] for i in fitting])
        return rows, len(rows), len(examples)

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        """Keep the predicted class of each row."""
        return {"predicted": need_logits(logits).argmax(dim=-1)}

    def _by_example(self, by_row: dict[str, Array]) -> dict[str, Array]:
        """Put the right class beside it; an example is one row."""
        return {**by_row, "label": self._labels}

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where one class is predicted whatever is read."""
        same = np.ptp(outputs["predicted"]) == 0
        return "predicts one class for every example" if same else None

    def doubts(self, outputs: Outputs) -> tuple[str, ...]:
        """Say so where fewer classes are right than by chance."""
        predicted = outputs["predicted"]
        gold = outputs["label"]
        n_classes = 1 + int(max(predicted.max(), gold.max()))
        return order_doubt(
            name=self.data.name,
            right=(predicted == gold).sum(),
            predicted=np.bincount(predicted, minlength=n_classes),
            gold=np.bincount(gold, minlength=n_classes),
            kinds="classes",
        )

    def _loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return the cross-entropy of each row's right class."""
        scores = wide(need_logits(logits))
        gold = torch.as_tensor(self._labels[batch.index], device=scores.device)
        return F.cross_entropy(scores, gold, reduction="none")

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return the log-probabilities of the classes, (rows, classes)."""
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
        """Tokenise every different text once, and list the pairs whose texts both fit."""
        texts = examples.texts
        rows, fitting = tokenised(loaded, [loaded.pooling.prompt + text for text in texts])
        row_of = {texts[i]: row.index for i, row in zip(fitting, rows, strict=True)}
        pairs = []  # the rows of both texts
        gold = []  # scores
        scored = zip(examples.first, examples.second or (), examples.scores or (), strict=True)
        for first, second, score in scored:
            if first in row_of and second in row_of:
                pairs.append((row_of[first], row_of[second]))
                gold.append(score)
        if len(set(gold)) < 2:
            raise _one_score(examples, len(pairs))
        self.notes = notes_of(loaded, rows)
        self._pairs = np.array(pairs)
        self._gold = np.array(gold)
        return rows, len(pairs), len(examples)

    @property
    def rows_of_examples(self) -> Sequence[Sequence[Row]]:
        """Both sentences of each pair."""
        return [(self.rows[first], self.rows[second]) for first, second in self._pairs.tolist()]

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        """Keep the unit embedding of each row."""
        embedding = self.pooling.embed(hidden, batch.attention_mask)
        return {"embedding": F.normalize(embedding.float(), dim=-1)}

    def _by_example(self, by_row: dict[str, Array]) -> dict[str, Array]:
        """Take the cosine of each pair's two embeddings."""
        embeddings = by_row["embedding"].astype(float)
        first = embeddings[self._pairs[:, 0]]
        second = embeddings[self._pairs[:, 1]]
        similarity = (first * second).sum(axis=1)
        both_zero = ~(first.any(axis=1) | second.any(axis=1))
        similarity[both_zero] = 1.0  # equal states, though a cosine of zeros is 0
        return {"similarity": similarity, "gold": self._gold}

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
        """Return (cosine - gold)^2 of each pair; a perfect pair's gold cosine is 1.

        The batch has the first texts of all pairs, then the second ones.
        """
        first, second = self.pooling.embed(hidden, batch.attention_mask).chunk(2)
        largest = float(np.abs(self._gold).max())
        gold = torch.as_tensor(self._gold[sets] / largest).to(first)
        return (cosine(first, second, precise=False) - gold) ** 2


class PairScores(Task):
    """Spearman correlation (x100) of gold scores with a cross-encoder's score of each pair.

    The head, whose one output is the score, reads both texts together. The labelled loss of a pair
    is the squared difference of its score and the gold one, put on the whole model's scale: with
    the mean and the standard deviation of its scores, and in units of that deviation.
    """

    name = "similarity"
    head = "classification"
    table = {"spearman": spearman}  # noqa: RUF012

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        """Tokenise both texts of each pair together, and list the gold scores."""
        rows, fitting = tokenised(loaded, examples.first, examples.second)
        scores = examples.scores or ()
        self._gold = np.array([scores[i] for i in fitting])
        if np.ptp(self._gold) == 0:
            raise _one_score(examples, len(rows))
        self.notes = (
            f"{loaded.name} is a cross-encoder, so the one output of its head, the score of two "
            "texts read together, is correlated with the gold scores.",
        )
        return rows, len(rows), len(examples)

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        return {"similarity": need_logits(logits)[:, 0].float()}

    def _by_example(self, by_row: dict[str, Array]) -> dict[str, Array]:
        return {"similarity": by_row["similarity"].astype(float), "gold": self._gold}

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where no pair has a higher score than another."""
        if above(outputs["similarity"].max(), outputs["similarity"].min()):
            return None
        return "gives every pair the same score, so its correlation is set to 0"

    def _loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return the squared difference of score and gold score, both in standard units."""
        scores = wide(need_logits(logits))  # (rows, 1)
        full_scores = wide(self.distance.logits())
        gold = torch.as_tensor(self._gold).to(full_scores)[:, None]
        standard_gold = (gold - gold.mean()) / spread_of(gold)
        mean = full_scores.mean().to(scores)
        standard_scores = (scores - mean) / spread_of(full_scores).to(scores)
        return (standard_scores - standard_gold[batch.index].to(scores)).square()[:, 0]

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return the score, (rows, 1)."""
        return wide(need_logits(logits))


def _one_score(examples: Examples, fitting: int) -> CorpusError:
    """Return the error for pairs that fit the model and all have the same gold score."""
    return CorpusError(
        f"{examples.name}: {len(examples) - fitting} of {len(examples)} pairs are longer than the "
        "model's limit, and the rest have no two different scores."
    )
