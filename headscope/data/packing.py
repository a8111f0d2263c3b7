"""Windows of exactly n tokens, cut from a text without padding, which would lower the rank.

Lines are tokenised one by one without special tokens and joined into one stream. Window i of W is::

    before + stream[i (n - s) : (i + 1) (n - s)] + after          s = len(before) + len(after)

with the special tokens where the model's own tokenizer puts them. A partial last window is dropped.
"""

from __future__ import annotations

import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import tee
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headscope.core.errors import CorpusError, InputError
from headscope.data.corpus import Corpus
from headscope.data.pieces import TextModel, frame, token_stream, tokenise

LENGTH = 128  # Tokens of a window by default; fewer where the model takes fewer.
SHORTEST = 4  # Fewest tokens of a window: a quarter of it must be at least one singular value.

IntArray = NDArray[np.int64]


class Side(NamedTuple):
    """What one stack reads of a text: its tokens, without special ones, and those around them."""

    tokens: NDArray[np.int32]  # (tokens of the whole text,)
    before: tuple[int, ...]  # before, after: The special tokens around each window
    after: tuple[int, ...]
    starts: Sequence[int]  # Where each window begins among the tokens


@dataclass(frozen=True)
class Windows:
    """All windows of one text; only its token streams are held, four bytes a token.

    Of pairs the targets are a second side. Consecutive pairs are joined, sources with sources and
    targets with targets, until both sides fill a window; what is too much of either is left out,
    and the next window starts with the next pair. So both windows hold the same pairs, as far as
    they go.
    """

    name: str  # name, sha256: Of the text
    sha256: str
    length: int  # Tokens of every window, special ones included: n
    sides: tuple[Side, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.sides[0].starts)

    def inputs(self, windows: Sequence[int] | IntArray) -> tuple[IntArray, ...]:
        """Return what a model reads of some windows: token ids of each side, (windows, n)."""
        return tuple(self.batch(windows, number) for number in range(len(self.sides)))

    def batch(self, windows: Sequence[int] | IntArray, number: int = 0) -> IntArray:
        """Return the token ids of some windows on one side, by default the first: (windows, n)."""
        side = self.sides[number]
        first = len(side.before)
        last = self.length - len(side.after)
        ids = np.empty((len(windows), self.length), dtype=np.int64)
        ids[:, :first] = side.before
        ids[:, last:] = side.after
        for row, window in zip(ids, windows, strict=True):
            start = side.starts[window]
            row[first:last] = side.tokens[start : start + last - first]
        return ids

    def content(self, stack: str) -> slice:
        """Return the query positions of a stack that are no special token."""
        side = self.sides[0 if stack == "encoder" else -1]
        return slice(len(side.before), self.length - len(side.after))

    def spread(self, sequences: int | None = None) -> IntArray:
        """Return indices floor(i W / N), i = 0..N-1, of N windows; all W if N is None or more."""
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


def pack_pairs(
    corpus: Corpus, model: TextModel, length: int, before_target: tuple[int, ...]
) -> Windows:
    """Cut pairs into windows of exactly ``length`` tokens on both sides.

    The decoder reads the tokens ``before_target`` before those of the targets: its start token,
    and perhaps a language code.
    """
    check_length(length, model.max_length, model.name)
    around = frame(model, length)
    of_target = length - len(before_target)
    sources = array.array("i")
    targets = array.array("i")
    starts = [(0, 0)]
    assert corpus.pairs is not None
    first, second = tee(corpus.pairs())
    both = zip(
        tokenise(model, (source for source, _ in first), special=False),
        tokenise(model, (target for _, target in second), targets=True),
        strict=True,
    )
    for source, target in both:
        sources.extend(source.ids)
        marked = zip(target.ids, target.special_tokens_mask, strict=True)
        targets.extend(token for token, special in marked if not special)
        began = starts[-1]
        if len(sources) - began[0] >= around.width and len(targets) - began[1] >= of_target:
            starts.append((len(sources), len(targets)))
    if len(starts) < 2:
        raise CorpusError(
            f"{corpus.name} is too short: its {corpus.n_pairs} pairs have {len(sources):,} source "
            f"and {len(targets):,} target tokens, and one window takes {around.width:,} and "
            f"{of_target:,}; give more pairs or a smaller length."
        )
    source_starts, target_starts = zip(*starts[:-1], strict=True)
    sides = (
        Side(np.frombuffer(sources, np.int32), around.before, around.after, source_starts),
        Side(np.frombuffer(targets, np.int32), before_target, (), target_starts),
    )
    return Windows(corpus.name, corpus.sha256, length, sides)


def pack(text: Corpus, model: TextModel, length: int) -> Windows:
    """Cut a text into windows of exactly ``length`` tokens, special ones included."""
    check_length(length, model.max_length, model.name)
    around = frame(model, length)
    stream = np.array(array.array("i", token_stream(model, text.lines())), dtype=np.int32)
    starts = range(0, len(stream) - around.width + 1, around.width)
    if not starts:
        raise CorpusError(
            f"{text.name} is too short: it has {len(stream):,} tokens, and one sequence of "
            f"{length} takes {around.width:,} besides {length - around.width} special ones; give "
            "a longer text or a smaller length."
        )
    side = Side(stream, around.before, around.after, starts)
    return Windows(text.name, text.sha256, length, (side,))
