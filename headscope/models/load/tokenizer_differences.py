"""Whether two tokenizers read texts alike, tried on a few hundred texts.

:func:`first_difference` is the entry: it makes texts, lets both tokenizers read them, and shows the
first that they read in two ways.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from headscope.core.safe_text import visible

#: Texts that normalisers, pre-tokenizers and frames of special tokens read in different ways.
_TEXTS = (
    "Foxes",
    "x-ray",
    "don't",
    " the cat",
    "the  cat",
    "the cat ",
    "the\tcat sat.",
    "a",
    "self_attention",
    "e.g. U.S.A.",
    "1,234.50",
    "50% off",
    "a/b",
    "``quoted''",
    "WAIT",
    "Z\u00fcrich",
    "na\u00efve",
    "e\u0301",
    "\u00df \u1e9e",
    "\u0130stanbul",
    "\u2026\u2014\u201c",
    "\ufb01rst \u2167 \u00bd \uff12",
    "so\u00adft",
    "a\u200bb\u00a0c",
    "\U0001f44d\U0001f3fd ok",
    "\u6771\u4eac\u30bf\u30ef\u30fc",
    "\u4e2d\u6587abc",
    "\u041f\u0440\u0438\u0432\u0435\u0442",
    "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\u0e2a\u0e27\u0e31\u0e2a",
    "\u0645\u0631\u062d\u0628\u0627",
    "The quick brown fox jumps over the lazy dog",
    "!\"#$%&'()*+,-./0123456789:;<=>?@[\\]^_`{|}~",
)
_PAIRS = (("the cat", "a dog"), ("a", "b"))
#: Further texts are made of at most so many pieces of the vocabulary, and so many added tokens.
_MOST_PIECES = 100
_MOST_ADDED = 256
_UNCUT = {"truncation": False, "padding": False, "verbose": False}


class Difference(NamedTuple):
    """A text that two tokenizers read in two ways, and both readings in words."""

    text: str
    first: str  # Such as ``fox ##es``, or ``ids 4419 2229`` where the pieces are the same
    second: str


def first_difference(first: Any, second: Any, *, framed: bool = True) -> Difference | None:
    """Return the first text that two tokenizers read in two ways; None where they agree on all.

    Compared are ids, the spans of pieces in the text, and token types where the model takes them.
    ``first`` is a fast tokenizer, of whose vocabulary texts are made. With ``framed``, the special
    tokens around a text are compared, too.
    """
    fields = ["ids"]
    if second.is_fast:
        fields.append("offsets")
        if "token_type_ids" in second.model_input_names:
            fields.append("type_ids")
    # A tokenizer reads a batch of texts or a batch of pairs, not both together.
    batches: list[list[Any]] = [[*_TEXTS, *_texts_of_vocabulary(first)], [*_PAIRS]]
    for batch in batches:
        by_first = _read(first, batch, framed)
        by_second = _read(second, batch, framed)
        for text, reading, other_reading in zip(batch, by_first, by_second, strict=True):
            shown = " | ".join(text) if isinstance(text, tuple) else text
            difference = _difference(shown, reading, other_reading, fields)
            if difference is not None:
                return difference
    return None


# --- texts to try ---------------------------------------------------------------------------------


def _texts_of_vocabulary(tokenizer: Any) -> Iterator[str]:
    """Make texts of pieces, of added tokens, and of strings that the normaliser looks for."""
    backend = tokenizer.backend_tokenizer
    ids = sorted(backend.get_vocab(with_added_tokens=False).values())
    chosen = ids[:: max(1, len(ids) // _MOST_PIECES)]
    words = [text for i in chosen if (text := backend.decode([i]).strip())]
    for word, following in pairwise(words):
        yield from (word, word.upper(), word.capitalize())
        for between in (" ", "  ", "-"):
            yield f"{word}{between}{following}"
    for token in list(tokenizer.added_tokens_encoder)[:_MOST_ADDED]:
        yield from (f"the {token} cat", f"the{token}cat")
    for step in (backend.normalizer, backend.pre_tokenizer):
        if step is None:
            continue
        for pattern in _patterns(json.loads(step.__getstate__())):  # its part of tokenizer.json
            yield from (pattern, f"the {pattern} cat", f"the{pattern}cat")


def _patterns(settings: object) -> Iterator[str]:
    """Yield every string that a normaliser or pre-tokenizer looks for, however deep.

    ``{"type": "Replace", "pattern": {"String": "--"}, "content": "-"}`` -> ``--``.
    """
    pending = [settings]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pattern = value.get("pattern")
            if isinstance(pattern, dict) and isinstance(pattern.get("String"), str):
                yield pattern["String"]
            pending += value.values()
        elif isinstance(value, list):
            pending += value


# --- what a tokenizer makes of a text -------------------------------------------------------------


class _Reading(NamedTuple):
    """One text as a tokenizer reads it, piece by piece; a slow one has the first three alone."""

    tokens: Sequence[str]
    ids: Sequence[int]
    special: Sequence[int]  # 1 for special tokens, 0 for others
    type_ids: Sequence[int] = ()
    offsets: Sequence[tuple[int, int]] = ()  # Of each piece: (start, stop) in the text


def _read(tokenizer: Any, batch: Sequence[Any], framed: bool) -> list[_Reading | None]:
    """Read texts, or pairs of texts; None for one that the tokenizer fails on."""
    arguments = [list(batch)]
    if isinstance(batch[0], tuple):  # pairs: [(a, b), (c, d)] -> [a, c], [b, d]
        arguments = [[first for first, _ in batch], [second for _, second in batch]]
    try:
        read = tokenizer(*arguments, add_special_tokens=framed, **_UNCUT)
    except BaseException as error:
        # A panic of Rust is no Exception. One text fails the batch: so each is read alone.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if len(batch) == 1:
            return [None]
        return [_read(tokenizer, [text], framed)[0] for text in batch]
    if not tokenizer.is_fast:
        return [_slow_reading(tokenizer, ids) for ids in read["input_ids"]]
    return [
        _Reading(
            tokens=encoding.tokens,
            ids=encoding.ids,
            special=encoding.special_tokens_mask,
            type_ids=encoding.type_ids,
            offsets=encoding.offsets,
        )
        for encoding in read.encodings
    ]


def _slow_reading(tokenizer: Any, ids: Sequence[int]) -> _Reading:
    """Return the reading of a slow tokenizer, without token types and spans."""
    special = set(tokenizer.all_special_ids)
    tokens = tokenizer.convert_ids_to_tokens(ids)
    return _Reading(tokens, ids, [int(token_id in special) for token_id in ids])


# --- how two readings differ ----------------------------------------------------------------------


def _difference(
    text: str, first: _Reading | None, second: _Reading | None, fields: Sequence[str]
) -> Difference | None:
    """Say how two readings of a text differ in some fields; None where they agree."""
    if first is None:
        return None  # a text that the first cannot read is refused where a user gives one
    if second is None:
        return Difference(text, _pieces(first, special=False), "nothing, and fail")
    for field in fields:
        if getattr(first, field) != getattr(second, field):
            return Difference(text, *_shown(first, second, field))
    return None


def _shown(first: _Reading, second: _Reading, field: str) -> tuple[str, str]:
    """Show how two readings of a text differ: their pieces, or where these agree their numbers."""
    if field != "ids":
        return _numbers(first, field), _numbers(second, field)
    if list(first.tokens) == list(second.tokens):
        return _numbers(first, "ids"), _numbers(second, "ids")
    # Special tokens are shown where nothing else differs.
    only_special = _pieces(first, special=False) == _pieces(second, special=False)
    return _pieces(first, special=only_special), _pieces(second, special=only_special)


def _pieces(reading: _Reading, *, special: bool) -> str:
    """Write the pieces of a text, with or without the special tokens around it."""
    marked = zip(reading.tokens, reading.special, strict=True)
    tokens = [token for token, is_special in marked if special or not is_special]
    return visible(" ".join(map(str, tokens))) or "nothing"


def _numbers(reading: _Reading, field: str) -> str:
    """Write ids, token types or spans of a text's pieces."""
    names = {"ids": "ids", "type_ids": "token types", "offsets": "pieces at characters"}
    values = getattr(reading, field)
    if field == "offsets":
        values = [f"{start}-{stop}" for start, stop in values]
    return f"{names[field]} {' '.join(map(str, values))}"
