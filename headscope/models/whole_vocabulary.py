r"""A model that lost rows of its vocabulary, measured over the whole one.

With fewer pieces to choose from every piece that is left is likelier, so a loss falls for nothing,
and a smaller tokenizer asks for other pieces. So both are undone where the model is scored. It is
asked for the very pieces that the whole model is asked for, at the same places; with h the state
that its own output map reads, its logits are

.. math:: l_v = w_v h + b_v,

where w and b of a piece that it has are its own, and those of a removed one are the whole model's.
What it *reads* is what its own tokenizer would give it: a word that needs a removed piece is cut
anew. Where a piece of a word is masked, so that only its other pieces are read, those are cut by
themselves; so is every piece before the one that a decoder is asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from headscope.core.errors import UnsupportedModelError
from headscope.data.token_rows import NO_LABEL, PairRow, Row
from headscope.models.intervene import Run
from headscope.models.loaded import LoadedModel
from headscope.models.output_rows import filled_outputs
from headscope.models.task_heads import Joined, Select
from headscope.models.tokenizer_file import TokenizerFile
from headscope.models.vocabulary import VocabularyPlan

Spelled = list[tuple[int, ...]]


@dataclass(frozen=True)
class WholeVocabulary:
    """What a cut model is measured by: the whole model, what went, and what the whole one reads."""

    whole: LoadedModel
    plan: VocabularyPlan
    rows: tuple[Row, ...]  # As the whole model reads them; ``gold`` and ``labels`` are its pieces

    def read_by(self, cut: LoadedModel) -> list[Row]:
        """Return the rows as a cut model reads them; what is asked for stays as it is."""
        speller = _Speller(self, cut)
        return [_respelled(row, speller) for row in self.rows]

    def scored(self, cut: LoadedModel) -> AbstractContextManager[None]:
        """Let a cut model put out logits of the whole vocabulary while the block runs."""
        kept, rows = self.plan.kept, self.plan.rows_before
        return filled_outputs(cut.network, self.whole.network, kept, rows)

    def run_of(self, graph: Run, cut: LoadedModel) -> Run:
        """Return what runs the exported graph of a cut model, with logits of the whole vocabulary.

        Those of removed pieces are made from the graph's own states; the others are the graph's.
        """
        kept = list(self.plan.kept)

        def run(
            *inputs: Any, select: Select | None = None, **more: Any
        ) -> tuple[Tensor, Tensor | None]:
            hidden, logits = graph(*inputs, **more)
            if logits is None:
                return hidden, None
            states = hidden if select is None else select(hidden)
            with self.scored(cut), torch.no_grad():
                _, full = cut.run(*inputs, **more, select=lambda _: states.to(hidden.dtype))
            assert full is not None
            own = logits
            if select is not None:  # of joined states only the first are the graph's
                own = select.pick(logits)[None] if isinstance(select, Joined) else select(logits)
            full = full.clone()
            full[:, : own.shape[1], kept] = own.to(full.dtype)
            return hidden, full

        return run

    @cached_property
    def removed(self) -> Tensor:
        """Which pieces went: (rows of the whole vocabulary,), bool."""
        gone = torch.ones(self.plan.rows_before, dtype=torch.bool)
        gone[list(self.plan.kept)] = False
        return gone


class _Speller:
    """Gives tokens of the whole vocabulary as a cut model's own tokenizer cuts them."""

    def __init__(self, vocabulary: WholeVocabulary, cut: LoadedModel) -> None:
        self._file = TokenizerFile(vocabulary.whole.tokenizer.backend_tokenizer.to_str())
        self._new, self._cut = vocabulary.plan.new_ids, cut.tokenizer.backend_tokenizer
        self._named, self._name = frozenset(self._file.named()), cut.name
        self._known: dict[tuple[int, ...], tuple[int, ...]] = {}

    def spelled(self, ids: Sequence[int], alone: Collection[int] = ()) -> Spelled:
        """Return the new ids of each token; those of a word that is cut anew stand at its first.

        ``alone`` are positions of tokens that belong to no word: special and masked ones.
        """
        found: Spelled = [(self._new[row],) if row in self._new else () for row in ids]
        for places in self._words(ids, alone):
            if any(ids[place] not in self._new for place in places):
                rows = tuple(ids[place] for place in places)
                found[places[0]] = self._word(rows)
                for place in places[1:]:
                    found[place] = ()
        return found

    def each(self, ids: Sequence[int]) -> Spelled:
        """Spell every token by itself."""
        return [(self._new[row],) if row in self._new else self._word((row,)) for row in ids]

    def _words(self, ids: Sequence[int], alone: Collection[int]) -> Iterator[list[int]]:
        word: list[int] = []
        for place, row in enumerate(ids):
            apart = place in alone or row in self._named
            if word and (apart or self._file.begins_word(row)):
                yield word
                word = []
            if not apart:
                word.append(place)
        if word:
            yield word

    def _word(self, rows: tuple[int, ...]) -> tuple[int, ...]:
        if rows not in self._known:
            mark, text = self._file.joined(rows)
            found = self._inside(mark, text) if mark else None
            if found is None:
                found = [token.id for token in self._cut.model.tokenize(text)]
            if not found:
                raise UnsupportedModelError(
                    f"The tokenizer of {self._name} has no piece left for {text!r}; keep its word "
                    "by keep_vocabulary."
                )
            self._known[rows] = tuple(found)
        return self._known[rows]

    def _inside(self, mark: str, text: str) -> list[int] | None:
        """Cut the inside of a word, the longest piece first, as WordPiece does."""
        found = []
        while text:
            sizes = range(len(text), 0, -1)
            pieces = ((n, self._cut.token_to_id(mark + text[:n])) for n in sizes)
            size, row = next(((n, row) for n, row in pieces if row is not None), (0, None))
            if row is None:
                return None
            found.append(int(row))
            text = text[size:]
        return found


def _respelled(row: Row, speller: _Speller) -> Row:
    """Return a row as a cut model reads it."""
    content = set(row.content)
    alone = {*row.masked, *(place for place in range(len(row.ids)) if place not in content)}
    spelled = speller.spelled(row.ids, alone)
    ends = list(accumulate(map(len, spelled)))
    starts = [end - len(part) for part, end in zip(spelled, ends, strict=True)]
    types = row.types and tuple(
        kind for kind, part in zip(row.types, spelled, strict=True) for _ in part
    )
    changed: Row = dataclasses.replace(
        row,
        ids=_flat(spelled),
        types=types,
        content=tuple(i for place in row.content for i in range(starts[place], ends[place])),
        masked=tuple(starts[place] for place in row.masked),
    )
    if not isinstance(changed, PairRow):
        return changed
    written = speller.each(changed.decoder_ids)
    ends = list(accumulate(map(len, written)))
    labels = [NO_LABEL] * ends[-1]
    for end, label in zip(ends, changed.labels, strict=True):
        labels[end - 1] = label
    return dataclasses.replace(
        changed,
        decoder_ids=_flat(written),
        labels=tuple(labels),
        decoder_content=tuple(
            i
            for place in changed.decoder_content
            for i in range(ends[place] - len(written[place]), ends[place])
        ),
        decoder_punctuation=(),
    )


def _flat(parts: Spelled) -> tuple[int, ...]:
    return tuple(row for part in parts for row in part)
