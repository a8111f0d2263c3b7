"""Windows of exactly n tokens, cut from a text without padding, which would lower the rank.

Lines are tokenised one by one without special tokens and joined into one stream. Window i of W is::

    before + stream[i (n - s) : (i + 1) (n - s)] + after          s = len(before) + len(after)

with the special tokens where the model's own tokenizer puts them. A partial last window is dropped.
"""

from __future__ import annotations

import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headscope.data.pieces import TextModel, frame, token_stream
from headscope.data.plain import PlainText
from headscope.errors import CorpusError, InputError

#: Fewest tokens of a window: a quarter of it must be at least one singular value.
SHORTEST = 4

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Windows:
    """All windows of one text; only its token stream is held, four bytes a token.

    Attributes
    ----------
    name, sha256 : str
        Of the text.
    length : int
        Tokens of every window, special ones included: n.
    before, after : tuple of int
        The special tokens around each window.
    stream : array of int32, (tokens of the text,)
        Token ids of the whole text, without special ones.
    """

    name: str
    sha256: str
    length: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    stream: NDArray[np.int32] = field(repr=False)

    @property
    def n_special(self) -> int:
        """Special tokens of a window: s."""
        return len(self.before) + len(self.after)

    def __len__(self) -> int:
        return len(self.stream) // (self.length - self.n_special)

    def batch(self, windows: Sequence[int] | IntArray) -> IntArray:
        """Return the token ids of some windows, (windows, n)."""
        step = self.length - self.n_special
        ids = np.empty((len(windows), self.length), dtype=np.int64)
        ids[:, : len(self.before)] = self.before
        ids[:, self.length - len(self.after) :] = self.after
        for row, window in enumerate(windows):
            if not 0 <= window < len(self):
                raise IndexError(f"window {window} of {len(self)}")
            start = int(window) * step
            ids[row, len(self.before) : len(self.before) + step] = self.stream[start : start + step]
        return ids

    def spread(self, sequences: int | None = None) -> IntArray:
        """Return the indices floor(i W / N), i = 0..N-1, of N windows; all W if N is None or more.

        Raises
        ------
        InputError
            If N is less than 1.
        """
        if sequences is not None and sequences < 1:
            raise InputError(f"{sequences} sequences were asked for; give 1 or more.")
        n = len(self) if sequences is None else min(sequences, len(self))
        return np.arange(n, dtype=np.int64) * len(self) // n

    def shuffled(self, seed: int) -> IntArray:
        """Return all indices in a random order that the seed decides, none of them twice."""
        return np.random.default_rng(seed % 2**64).permutation(len(self))


def check_length(length: int, max_length: int, name: str) -> None:
    """Raise an InputError unless windows of ``length`` tokens make sense for the model ``name``."""
    if length < SHORTEST:
        raise InputError(f"The length is {length}; give {SHORTEST} tokens or more.")
    if length > max_length:
        raise InputError(
            f"The length is {length}, but {name} takes at most {max_length} tokens, special ones "
            f"included; give a length of {max_length} or less."
        )


def pack(text: PlainText, model: TextModel, length: int) -> Windows:
    """Cut a text into windows of exactly ``length`` tokens, special ones included.

    Raises
    ------
    InputError
        If the length does not suit the model.
    CorpusError
        If the text is too short for one window, or the tokenizer is of another model.
    """
    check_length(length, model.max_length, model.name)
    around = frame(model, length)
    ids = array.array("i", token_stream(model, text))
    stream = np.frombuffer(ids, dtype=np.int32) if ids else np.zeros(0, dtype=np.int32)
    windows = Windows(text.name, text.sha256, length, around.before, around.after, stream)
    if len(windows) == 0:
        raise CorpusError(
            f"{text.name} is too short: it has {len(stream):,} tokens, and one sequence of "
            f"{length} takes {around.width:,} besides {length - around.width} special ones; give "
            "a longer text or a smaller length."
        )
    return windows
