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

from headscope.core.errors import CorpusError, InputError
from headscope.data.corpus import PlainText
from headscope.data.examples import Examples
from headscope.data.pieces import TextModel, frame, token_stream, tokenise, tokenise_targets

SHORTEST = 4  # Fewest tokens of a window: a quarter of it must be at least one singular value.

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Windows:
    """All windows of one text; only its token stream is held, four bytes a token."""

    name: str  # name, sha256: Of the text
    sha256: str
    length: int  # Tokens of every window, special ones included: n
    before: tuple[int, ...]  # before, after: The special tokens around each window
    after: tuple[int, ...]
    #: (tokens of the text,): Token ids of the whole text, without special ones
    stream: NDArray[np.int32] = field(repr=False)

    @property
    def n_special(self) -> int:
        """Special tokens of a window: s."""
        return len(self.before) + len(self.after)

    def __len__(self) -> int:
        return len(self.stream) // (self.length - self.n_special)

    def batch(self, windows: Sequence[int] | IntArray) -> IntArray:
        """Return the token ids of some windows, (windows, n)."""
        starts = [self._start(int(window)) for window in windows]
        return _framed(self.stream, starts, self.length, self.before, self.after)

    def inputs(self, windows: Sequence[int] | IntArray) -> tuple[IntArray, ...]:
        """Return what a model reads of some windows: token ids, (windows, n)."""
        return (self.batch(windows),)

    def content(self, stack: str) -> slice:
        """Return the query positions of a stack that are no special token."""
        return slice(len(self.before), self.length - len(self.after))

    def _start(self, window: int) -> int:
        if not 0 <= window < len(self):
            raise IndexError(f"window {window} of {len(self)}")
        return window * (self.length - self.n_special)

    def spread(self, sequences: int | None = None) -> IntArray:
        """Return indices floor(i W / N), i = 0..N-1, of N windows; all W if N is None or more."""
        if sequences is not None and sequences < 1:
            raise InputError(f"{sequences} sequences were asked for; give 1 or more.")
        n = len(self) if sequences is None else min(sequences, len(self))
        return np.arange(n, dtype=np.int64) * len(self) // n

    def shuffled(self, seed: int) -> IntArray:
        """Return all indices in a random order that the seed decides, none of them twice."""
        return np.random.default_rng(seed % 2**64).permutation(len(self))


@dataclass(frozen=True)
class PairWindows(Windows):
    """Windows of sources, each with a window of the same length of their targets.

    Consecutive pairs are joined, sources with sources and targets with targets, until both sides
    fill a window; what is too much of either is left out, and the next window starts with the next
    pair. So both windows hold the same pairs, as far as they go.
    """

    #: (windows, 2): Where each window begins among the source tokens and among the target tokens
    starts: IntArray = field(repr=False)
    #: (tokens of all targets,): Token ids, without special ones
    targets: NDArray[np.int32] = field(repr=False)
    start_id: int  # The token that the decoder reads first

    def __len__(self) -> int:
        return len(self.starts)

    def inputs(self, windows: Sequence[int] | IntArray) -> tuple[IntArray, ...]:
        """Return token ids of the sources and of what the decoder reads, each (windows, n)."""
        sources, starts = self.batch(windows), [int(self.starts[window, 1]) for window in windows]
        return sources, _framed(self.targets, starts, self.length, (self.start_id,), ())

    def content(self, stack: str) -> slice:
        """Return the query positions of a stack that are no special token."""
        return super().content(stack) if stack == "encoder" else slice(1, self.length)

    def _start(self, window: int) -> int:
        super()._start(window)
        return int(self.starts[window, 0])


def _framed(
    stream: NDArray[np.int32],
    starts: Sequence[int],
    length: int,
    before: tuple[int, ...],
    after: tuple[int, ...],
) -> IntArray:
    """Cut pieces out of a stream and put special tokens around each: (starts, length)."""
    width = length - len(before) - len(after)
    ids = np.empty((len(starts), length), dtype=np.int64)
    ids[:, : len(before)] = before
    ids[:, length - len(after) :] = after
    for row, start in enumerate(starts):
        ids[row, len(before) : len(before) + width] = stream[start : start + width]
    return ids


def check_length(length: int, max_length: int, name: str) -> None:
    """Raise an InputError unless windows of ``length`` tokens make sense for the model ``name``."""
    if length < SHORTEST:
        raise InputError(f"The length is {length}; give {SHORTEST} tokens or more.")
    if length > max_length:
        raise InputError(
            f"The length is {length}, but {name} takes at most {max_length} tokens, special ones "
            f"included; give a length of {max_length} or less."
        )


def pack_pairs(pairs: Examples, model: TextModel, length: int, start_id: int) -> PairWindows:
    """Cut pairs into windows of exactly ``length`` tokens on both sides."""
    check_length(length, model.max_length, model.name)
    around = frame(model, length)
    sources, targets, starts = array.array("i"), array.array("i"), [(0, 0)]
    both = zip(
        tokenise(model, pairs.first, special=False),
        tokenise_targets(model, pairs.second or ()),
        strict=True,
    )
    for source, target in both:
        sources.extend(source.ids)
        marked = zip(target.ids, target.special_tokens_mask, strict=True)
        targets.extend(token for token, special in marked if not special)
        began = starts[-1]
        if len(sources) - began[0] >= around.width and len(targets) - began[1] >= length - 1:
            starts.append((len(sources), len(targets)))
    if len(starts) < 2:
        raise CorpusError(
            f"{pairs.name} is too short: its {len(pairs)} pairs have {len(sources):,} source and "
            f"{len(targets):,} target tokens, and one window takes {around.width:,} and "
            f"{length - 1:,}; give more pairs or a smaller length."
        )
    streams = [np.frombuffer(tokens, dtype=np.int32) for tokens in (sources, targets)]
    frames = (around.before, around.after, streams[0])
    return PairWindows(
        pairs.name, pairs.sha256, length, *frames, np.array(starts[:-1]), streams[1], start_id
    )


def pack(text: PlainText, model: TextModel, length: int) -> Windows:
    """Cut a text into windows of exactly ``length`` tokens, special ones included."""
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
