"""The task of tagging words: entities, or parts of speech."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from headscope.core.errors import InputError
from headscope.data.annotated import has_entities
from headscope.data.examples import Examples
from headscope.data.files import Sentence
from headscope.data.pieces import Encoder, placed
from headscope.data.token_rows import Padded, Row
from headscope.models.run.loaded import LoadedModel
from headscope.stats.metrics import CountedF1, Metric, TokenRate
from headscope.tasks.base import TokenTask, need_logits, numbered


class TokenClassification(TokenTask):
    """F1 of entities, or accuracy over words, times 100; a word's tag stands at its first piece.

    * ``entity_f1``: where the tags mark how entities begin and go on (B-, I-), micro F1 of whole
      entities, as seqeval reads them (IOB2 and its kin, not strict); then it is the task's value.
    * ``word_accuracy``: share of words with the right tag.

    An example is a sentence.
    """

    name = "token-classification"
    words = "F1 of entities, or accuracy over words; tagged words, and a model with that head"
    same_guess = "gives the same tag to every word"

    def __init__(
        self, examples: Examples, loaded: LoadedModel, seed: int = 0, limit: int | None = None
    ) -> None:
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
            for i, item in enumerate(Encoder(loaded).encode(placed(map(Sentence, words))))
        )
        rows, kept = numbered(loaded, encoded, f"{len(words)} sentences")
        super().__init__(examples, loaded, rows, len(words) - len(kept))
        self.notes = examples.notes
        self._words = [words[i] for i in kept]
        self._names = names
        self.table: dict[str, Metric] = {"word_accuracy": TokenRate("correct", "tokens")}
        self._entities = has_entities(tag for row in examples.tags or () for tag in row)
        if self._entities:
            need_seqeval()
            self.table = {"entity_f1": CountedF1("entities"), **self.table}

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
        return {**outputs, "entities": torch.tensor(counts, dtype=torch.float64)}


def need_seqeval() -> None:
    """Refuse to begin without the package that reads entities."""
    if find_spec("seqeval") is None:
        raise InputError(
            "F1 of entities is counted by the package seqeval, which is not installed; install "
            "headscope with the extra [tags]."
        )


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
