"""Tasks that need nothing but text: fidelity to the whole model, and masked words.

A task (:mod:`.base`) has these methods: ``_take`` makes rows of token ids of the examples,
``_read`` keeps numbers of each row of a batch that has run, ``_by_example`` makes numbers of each
example of them. ``_loss``, and the output e of ``_embed``, are differentiated by gates of heads.
``self.distance`` (:mod:`.distance`) compares a changed model with the whole one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.core.widest import wide
from headscope.data.examples import Examples
from headscope.data.token_rows import Padded, Row, row_of_next_tokens
from headscope.models.run.head_outputs import head_outputs
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.task_heads import InSlices, Select
from headscope.stats.metrics import (
    Outputs,
    mean_of,
    ratio_of,
    token_rate,
)
from headscope.tasks.base import Taken, Task, TokenTask
from headscope.tasks.loss_batches import LossBatch
from headscope.tasks.positions import need_logits
from headscope.tasks.text_rows import masked, notes_of, tokenised, windows

WINDOW = 64  # Tokens of a window of the ``mlm`` task, special tokens included.
WINDOWS = 256  # Windows of the ``mlm`` task, unless they are limited.
#: What WikiText and Penn Treebank write in place of a rare word: no text, so nothing to predict.
_TAKEN_OUT = "<unk>"


class Fidelity(Task):
    """Mean cosine of embeddings and, for a model with a task head, mean distance of its outputs.

    The distance depends on the head:

    * classes: KL of their probabilities; independent labels: the sum of one KL each
    * plain numbers: their squared change
    * masked words: KL at the masks, in a text with 15% of its tokens masked
    * next tokens: mean KL over the tokens of the text, each after those before it
    * tags: mean KL over tokens
    * answers: mean of the KL of where they begin and of where they end
    """

    name = "fidelity"
    words = "cosine of embeddings (or KL of outputs) to the whole model's own; any text"
    has_labels = False
    alone = True  # batches wait for each other: the whole model's outputs are made at the first
    identifying = "cosine"

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        """Tokenise every different text, as the head of the model reads it."""
        # With a head it is the head's outputs that count, and its texts have no prompt.
        prompt = "" if loaded.task_head else loaded.pooling.prompt
        rows, _ = tokenised(loaded, [prompt + text for text in examples.texts])
        if loaded.task_head == "mlm":
            rows = masked(rows, loaded, self._seed)
        elif loaded.task_head == "token-classification":
            # Every token that is not special has a tag that can be compared.
            rows = [replace(row, masked=row.content, gold=_content_ids(row)) for row in rows]
        elif loaded.task_head == "causal":
            rows = [row_of_next_tokens(row) for row in rows]
        self.notes = () if loaded.task_head else notes_of(loaded, rows)
        # Text runs the encoder of an encoder-decoder model, and not its head.
        names = ["cosine"]
        if loaded.task_head is not None and not loaded.encoder_decoder:
            names.append(head_outputs(loaded).distance_name)
        self.table = {name: mean_of(name) for name in names}
        return rows, len(rows), len(examples.texts)

    def _select(self, batch: Padded) -> Select | InSlices | None:
        return self.distance.select(batch)

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        distances = self.distance.measure(batch, hidden, logits)
        return {**distances, "cosine": distances["cosine"].clamp(max=1.0)}  # rounding exceeds it

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where the reference embeddings are the same for every text."""
        return "gives every text the same embedding" if self.distance.constant() else None

    def _label_free_loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        distances = self.distance.measure(batch, hidden, logits, spread=self.distance.spread)
        return 1 - distances["cosine"] + distances.get(self.distance.outputs_name, 0.0)

    def loss_batches(
        self, loaded: LoadedModel, *, labels: bool = True, value_only: bool = False
    ) -> Iterator[LossBatch]:
        """Yield batches as every task does; the whole model's outputs are made before the first."""
        self.distance.embeddings()
        yield from super().loss_batches(loaded, labels=labels, value_only=value_only)

    def _embed_value(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return the unit embedding alone: the task's value is its cosine."""
        return super()._embed(batch, hidden, logits)

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return the unit embedding, and behind it the outputs of a sequence-classification head.

        Half of its squared distance to the unpruned model's is the label-free loss, to second
        order.
        """
        embedding = super()._embed(batch, hidden, logits)
        if logits is None or self.distance.head != "classification":
            return embedding
        outputs = self.distance.head_outputs.coordinates(wide(logits), self.distance.spread)
        return torch.cat([embedding, outputs.to(embedding)], dim=-1)


def _content_ids(row: Row) -> tuple[int, ...]:
    """Return the ids of a row's tokens that are not special."""
    return tuple(row.ids[i] for i in row.content)


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
        """Cut running text into windows, and mask 15% of their tokens."""
        lines = (line.replace(_TAKEN_OUT, " ") for line in examples.first)
        rows = windows(loaded, examples, lines, length=WINDOW, count=self._limit or WINDOWS)
        return masked(rows, loaded, self._seed), len(rows), len(rows)

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        """Add up the negative log-probabilities of each row's masked tokens."""
        scores = wide(need_logits(logits)[0])
        nll = F.cross_entropy(scores, batch.gold, reduction="none")
        total = nll.new_zeros(len(batch.index)).index_add(0, batch.masked[0], nll)
        return {"nll": total, **super()._read(batch, hidden, logits)}
