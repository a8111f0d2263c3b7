"""Texts as rows (sequences of token ids) for a task, and notes on how they are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headscope.core.errors import CorpusError, InputError
from headscope.data.examples import Examples
from headscope.data.token_rows import Row, encode_rows, mask_row, window_rows
from headscope.models.run.loaded import LoadedModel
from headscope.tasks.base import numbered

#: Heads of a model that tasks of embeddings do not use.
_UNREAD = ("classification", "token-classification", "question-answering")


def tokenised(
    loaded: LoadedModel, first: Sequence[str], second: Sequence[str] | None = None
) -> tuple[list[Row], list[int]]:
    """Tokenise texts, or pairs of a first and a second text, and leave out those that are too long.

    Returns rows numbered from 0, and the index of each row's text: of three texts, the second too
    long, [0, 2].
    """
    rows, fitting = numbered(encode_rows(loaded, first, second))
    if len(rows) < 2:
        raise CorpusError(
            f"{len(rows)} of {len(first)} texts fit the model's limit of {loaded.max_length} "
            "tokens; give two or more different ones that do (nothing is ever cut)."
        )
    return rows, fitting


def windows(
    loaded: LoadedModel, text: Examples, lines: Iterable[str], *, length: int, count: int
) -> list[Row]:
    """Cut the ``lines`` of a text into windows of ``length`` tokens, and take the first of them.

    Windows of a model that reads less are as long as it reads.
    """
    length = min(length, loaded.max_length)
    rows = window_rows(loaded, lines, length=length, count=count)
    if len(rows) < 2:
        raise CorpusError(
            f"{text.name} has not enough text for two windows of {length} tokens; give more."
        )
    return rows


def masked(rows: Sequence[Row], loaded: LoadedModel, seed: int) -> list[Row]:
    """Mask 15% of the tokens of each row."""
    mask_id = getattr(loaded.tokenizer, "mask_token_id", None)
    if mask_id is None:
        raise InputError(f"The tokenizer of {loaded.name} has no mask token; mlm needs one.")
    return [mask_row(row, int(mask_id), seed) for row in rows]


def notes_of(
    loaded: LoadedModel, rows: Sequence[Row], *, retrieves: bool = False
) -> tuple[str, ...]:
    """Say where texts are read otherwise than a user of the model may expect."""
    limit = loaded.pooling.max_length
    notes = []
    if loaded.task_head in _UNREAD:
        notes.append(
            f"The {loaded.task_head} head of {loaded.name} is not read: what is compared are "
            f"embeddings of single texts ({loaded.pooling}), which the model may never have been "
            "trained to make."
        )
    if read_after := loaded.pooling.reads_after(retrieves=retrieves):
        notes.append(f"{read_after}, as the model's folder says.")
    n_longer = 0 if limit is None else sum(len(row) > limit for row in rows)
    if n_longer:
        notes.append(
            f"{n_longer:,} of {len(rows):,} texts are longer than the {limit} tokens at which "
            "SentenceTransformer cuts the texts of this model; here they are read whole."
        )
    return (*notes, *loaded.pooling.notes)
