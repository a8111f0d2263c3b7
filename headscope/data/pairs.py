"""Pairs of source and target, in any form that a caller may have them in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeGuard

from headscope.core.errors import CorpusError
from headscope.core.files import sha256_of
from headscope.data.examples import Examples, read_translations
from headscope.data.records import TABLES


def may_be_pairs(text: object) -> bool:
    """Whether a text has the form of pairs: the path of a table, or tuples in memory.

    A table's rows are pairs where a model reads pairs; any other suffix is plain text.
    """
    if isinstance(text, str | Path):
        return Path(text).suffix.lower() in TABLES
    return isinstance(text, Examples) or (_is_list(text) and isinstance(text[0], tuple))


def _is_list(text: object) -> TypeGuard[Sequence[object]]:
    return isinstance(text, Sequence) and not isinstance(text, str) and bool(text)


def as_pairs(text: object) -> Examples:
    """Return the pairs that a text holds.

    Parameters
    ----------
    text : object
        The path of a table, (source, target) tuples in memory, or what
        :func:`~headscope.data.examples.read_translations` returned.

    Raises
    ------
    CorpusError
        If a table cannot be read as pairs, or a pair in memory has not two texts.
    """
    if isinstance(text, Examples):
        return text
    if isinstance(text, str | Path):
        return read_translations(text)
    pairs = [_pair(i, pair) for i, pair in enumerate(text if _is_list(text) else ())]
    if len(pairs) < 2:
        raise CorpusError(f"{len(pairs)} pairs in memory; give two or more.")
    first, second = zip(*pairs, strict=True)
    return Examples("in memory", sha256_of(repr(pairs)), first=first, second=second)


def _pair(i: int, pair: object) -> tuple[str, str]:
    texts = [str(text).strip() for text in pair] if isinstance(pair, tuple | list) else []
    if len(texts) != 2 or not all(texts):
        raise CorpusError(f"Pair {i + 1} in memory is not a source and a target; give both texts.")
    return texts[0], texts[1]
