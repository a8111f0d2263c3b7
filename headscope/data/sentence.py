"""One sentence, with its gold tree if there is one."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Sentence"]


@dataclass(frozen=True)
class Sentence:
    """Words and, in a treebank, their heads.

    Attributes
    ----------
    words : tuple of str
    heads : tuple of int, optional
        For each word the zero-based index of its head, -1 for the root.
    relations : tuple of str, optional
        For each word the relation to its head, without subtype (``nsubj:pass`` is ``nsubj``).
    """

    words: tuple[str, ...]
    heads: tuple[int, ...] | None = None
    relations: tuple[str, ...] | None = None
