"""Texts as rows for a task, and what is to be said of how they are read."""

from __future__ import annotations

from collections.abc import Sequence

from headscope.core.errors import CorpusError, InputError
from headscope.data.token_rows import Row, encode_rows, mask_row
from headscope.models.run.loaded import LoadedModel
from headscope.tasks.base import numbered

#: Heads that a model was trained for, and that tasks of embeddings leave unread.
_UNREAD = ("classification", "token-classification", "question-answering")


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
    prompt = loaded.pooling.prompt
    limit = loaded.pooling.max_length
    notes = []
    if loaded.task_head in _UNREAD:
        notes.append(
            f"The {loaded.task_head} head of {loaded.name} is not read: what is compared are "
            f"embeddings of single texts ({loaded.pooling}), which the model may never have been "
            "trained to make."
        )
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
