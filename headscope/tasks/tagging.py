"""The task of tagging words: is each word's tag right, or each entity that the tags mark?

A word may be cut into several tokens (*pieces*); its tag is read at the first one. These positions
are ``batch.masked`` of a batch, and ``batch.gold`` has their right tags.

A task (:mod:`.base`) has these methods: ``_take`` makes rows of token ids of the examples,
``_read`` keeps numbers of each row of a batch that has run, ``_by_example`` makes numbers of each
example of them. ``_loss``, and the output e of ``_embed``, are differentiated by gates of heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from headscope.data.entities import Scheme, in_labels_of
from headscope.data.examples import Examples
from headscope.data.labels import tag_ids
from headscope.data.pieces import tokenise
from headscope.data.sentences import Sentence
from headscope.data.token_rows import Padded, Row
from headscope.data.word_pieces import EncodedSentence, encode_words, placed
from headscope.models.run.loaded import LoadedModel
from headscope.stats.metrics import (
    CountedF1,
    Metric,
    Outputs,
    token_rate,
)
from headscope.tasks.base import Taken, TokenTask, numbered, order_doubt
from headscope.tasks.positions import need_logits

#: Names of three counts of each sentence's entities: predicted and right; predicted; right.
_ENTITIES = ("entities_hit", "entities_predicted", "entities_right")


class TokenClassification(TokenTask):
    """F1 of entities, or accuracy over words, times 100; a word's tag stands at its first piece.

    * ``entity_f1``: where the tags mark entities (``data/entities.py``), micro F1 of whole ones;
      then it is the task's value.
    * ``word_accuracy``: share of words with the right tag.

    An example is a sentence.
    """

    name = "token-classification"
    head = "token-classification"
    words = "F1 of entities, or accuracy over words; tagged words, and a model with that head"
    same_guess = "gives the same tag to every word"

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        """Read the tags as the model's labels, and find each word's first piece."""
        id2label = loaded.network.config.id2label
        names = {int(number): str(name) for number, name in id2label.items()}
        examples, self._scheme = in_labels_of(examples, names, loaded.name)
        gold = tag_ids(examples, names, loaded.name)
        sentences = [Sentence(words) for words in examples.words or ()]
        encoded = list(encode_words(loaded, placed(sentences)))
        rows, _ = numbered(_row(i, sentence, gold[i]) for i, sentence in enumerate(encoded))
        n_empty = _count_empty(loaded, sentences, encoded)
        words_left_out = sum(sentence.left_out for sentence in encoded if sentence is not None)
        self.notes = (*examples.notes, *_notes_on_words(words_left_out, n_empty))
        self._names = names
        self.table: dict[str, Metric] = {"word_accuracy": token_rate("correct", "tokens")}
        if self._scheme is not None:
            self.table = {"entity_f1": CountedF1(*_ENTITIES), **self.table}
        return rows, len(rows), len(sentences) - n_empty

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        """Count each row's right tags, and its entities where the tags mark some."""
        tag_logits = need_logits(logits)[0]
        guessed_tags = tag_logits.argmax(dim=-1)
        n_tags = tag_logits.shape[-1]
        outputs = super()._read(batch, hidden, logits)
        outputs["guessed_tags"] = _tag_counts(batch, guessed_tags, n_tags)
        outputs["right_tags"] = _tag_counts(batch, batch.gold, n_tags)
        if self._scheme is not None:
            counts = self._entity_counts(self._scheme, batch, guessed_tags)
            outputs |= dict(zip(_ENTITIES, counts.unbind(dim=1), strict=True))
        return outputs

    def _entity_counts(self, scheme: Scheme, batch: Padded, guessed_tags: Tensor) -> Tensor:
        """Count the entities of each row, (rows, 3): predicted and right, predicted, and right."""
        words_per_row = torch.bincount(batch.masked[0], minlength=len(batch.index)).tolist()
        guessed_by_row = torch.split(guessed_tags.cpu(), words_per_row)
        gold_by_row = torch.split(batch.gold.cpu(), words_per_row)
        counts = []
        for guessed_ids, gold_ids in zip(guessed_by_row, gold_by_row, strict=True):
            predicted = scheme.entities([self._names[tag] for tag in guessed_ids.tolist()])
            right = scheme.entities([self._names[tag] for tag in gold_ids.tolist()])
            counts.append((len(predicted & right), len(predicted), len(right)))
        return torch.tensor(counts).double()

    def doubts(self, outputs: Outputs) -> tuple[str, ...]:
        """Say so where fewer tags are right than by chance."""
        return order_doubt(
            name=self.data.name,
            right=outputs["correct"].sum(),
            predicted=outputs["guessed_tags"].sum(axis=0),
            gold=outputs["right_tags"].sum(axis=0),
            kinds="tags",
        )


def _tag_counts(batch: Padded, tags: Tensor, n_tags: int) -> Tensor:
    """Count how often each tag occurs in each row: (rows, n_tags).

    ``tags`` (words,) are those of all words of the batch, row by row.
    """
    rows = batch.masked[0]
    counts = torch.zeros(len(batch.index), n_tags, device=tags.device)
    ones = torch.ones_like(tags, dtype=counts.dtype)
    return counts.index_put((rows, tags), ones, accumulate=True)


def _row(index: int, sentence: EncodedSentence | None, gold: Sequence[int]) -> Row | None:
    """Make the row of a sentence, which asks for the tag of each word at its first piece.

    ``gold`` has the tag of every word, also of those of which the tokenizer makes no piece. None
    for a sentence that is not read.
    """
    if sentence is None:
        return None
    words = range(len(gold))
    if sentence.with_piece is not None:
        words = sentence.with_piece.tolist()
    return Row(
        index=index,
        ids=tuple(sentence.ids.tolist()),
        types=None,
        content=tuple(np.flatnonzero(sentence.word_of >= 0).tolist()),
        masked=tuple(sentence.first.tolist()),
        gold=tuple(gold[word] for word in words),
    )


def _count_empty(
    loaded: LoadedModel,
    sentences: Sequence[Sentence],
    encoded: Sequence[EncodedSentence | None],
) -> int:
    """Count the sentences of which the tokenizer makes no token but special ones.

    A sentence that is not encoded, None in ``encoded``, is one of these or too long for the model.
    """
    not_encoded = [
        sentence.text
        for sentence, encoding in zip(sentences, encoded, strict=True)
        if encoding is None
    ]
    encodings = tokenise(loaded, not_encoded, check=False)
    return sum(all(encoding.special_tokens_mask) for encoding in encodings)


def _notes_on_words(words_left_out: int, n_empty: int) -> Iterator[str]:
    """Say which words, and which sentences, the tokenizer makes nothing of."""
    if words_left_out:
        yield (
            f"The tokenizer makes no piece of {words_left_out:,} words; they and their tags are "
            "left out, and their sentences are kept."
        )
    if n_empty:
        yield (
            f"The tokenizer makes no piece of any word of {n_empty:,} sentences; they are left out."
        )
