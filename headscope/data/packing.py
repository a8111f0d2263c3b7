"""Windows of exactly n tokens, cut from a text without padding.

They are for measuring the rank of hidden states and patterns, which padding would lower. Lines are
tokenised one by one without special tokens and joined into one stream; each window is the next
stretch of it with the model's special tokens around. "a b c d e" in windows of 4 tokens::

    [CLS] a b [SEP]      [CLS] c d [SEP]           e is left out: a partial last window is dropped

:func:`pack` cuts a text, :func:`pack_pairs` sources and targets; :class:`Windows` is the result.
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
#: Fewest tokens n of a window: the spectrum sums n / 4 singular values of a pattern, at least one.
SHORTEST = 4

IntArray = NDArray[np.int64]


class TokenStream(NamedTuple):
    """A text as an encoder or a decoder reads it: a stream of tokens, cut into windows."""

    tokens: NDArray[np.int32]  # (tokens of the whole text,), without special ones
    before: tuple[int, ...]  # Special tokens that every window begins with
    after: tuple[int, ...]  # Special tokens that every window ends in
    starts: Sequence[int]  # Index of each window's first token in ``tokens``


@dataclass(frozen=True)
class Windows:
    """All windows of one text; only its token streams are held, four bytes a token.

    A text has one stream. Pairs have two, the sources and the targets: consecutive pairs are
    joined, sources with sources and targets with targets, until both fill a window; surplus tokens
    of either are left out, and the next window starts with the next pair. So a window of sources
    and the window of targets with its index hold the same pairs.
    """

    name: str  # Of the text
    sha256: str  # Of the text
    length: int  # Tokens of every window, special ones included: n
    streams: tuple[TokenStream, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.streams[0].starts)

    def inputs(self, windows: Sequence[int] | IntArray) -> tuple[IntArray, ...]:
        """Return the token ids of some windows, of each stream: (windows, n)."""
        return tuple(self.batch(windows, number) for number in range(len(self.streams)))

    def batch(self, windows: Sequence[int] | IntArray, number: int = 0) -> IntArray:
        """Return the token ids of some windows of one stream (0: the sources): (windows, n)."""
        stream = self.streams[number]
        content_start = len(stream.before)
        content_stop = self.length - len(stream.after)
        ids = np.empty((len(windows), self.length), dtype=np.int64)
        ids[:, :content_start] = stream.before
        ids[:, content_stop:] = stream.after
        for row, window in zip(ids, windows, strict=True):
            start = stream.starts[window]
            stop = start + content_stop - content_start
            row[content_start:content_stop] = stream.tokens[start:stop]
        return ids

    def content(self, stack: str) -> slice:
        """Return the positions of a window that hold no special token.

        Of the first stream for the stack ``encoder``, else of the last: queries of the ``decoder``
        and of cross-attention are targets, if there are any.
        """
        stream = self.streams[0] if stack == "encoder" else self.streams[-1]
        return slice(len(stream.before), self.length - len(stream.after))

    def spread(self, sequences: int | None = None) -> IntArray:
        """Return the indices of N windows at equal distances: of W = 10 and N = 4 [0, 2, 5, 7].

        The indices are floor(i W / N), i = 0..N-1; all W if N is None, or more than there are.
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


def pack_pairs(
    corpus: Corpus, model: TextModel, length: int, before_target: tuple[int, ...]
) -> Windows:
    """Cut pairs into windows of exactly ``length`` tokens on both sides.

    The decoder reads the tokens ``before_target`` before those of the targets: its start token,
    and perhaps a language code.
    """
    check_length(length, model.max_length, model.name)
    source_frame = frame(model, length)
    target_width = length - len(before_target)

    # Read all tokens, and note where a new window of both begins.
    assert corpus.pairs is not None  # callers give a corpus of sources and targets
    pairs_for_sources, pairs_for_targets = tee(corpus.pairs())
    encodings = zip(
        tokenise(model, (source for source, _ in pairs_for_sources), special=False),
        tokenise(model, (target for _, target in pairs_for_targets), targets=True),
        strict=True,
    )
    source_tokens = array.array("i")
    target_tokens = array.array("i")
    source_starts = [0]
    target_starts = [0]
    for source, target in encodings:
        source_tokens.extend(source.ids)
        marked = zip(target.ids, target.special_tokens_mask, strict=True)
        target_tokens.extend(token for token, is_special in marked if not is_special)
        n_source = len(source_tokens) - source_starts[-1]
        n_target = len(target_tokens) - target_starts[-1]
        if n_source >= source_frame.width and n_target >= target_width:
            source_starts.append(len(source_tokens))
            target_starts.append(len(target_tokens))
    if len(source_starts) < 2:
        raise CorpusError(
            f"{corpus.name} is too short: its {corpus.n_pairs} pairs have {len(source_tokens):,} "
            f"source and {len(target_tokens):,} target tokens, and one window takes "
            f"{source_frame.width:,} and {target_width:,}; give more pairs or a smaller length."
        )

    # The last start belongs to a window that is not full.
    sources = TokenStream(
        tokens=np.frombuffer(source_tokens, np.int32),
        before=source_frame.before,
        after=source_frame.after,
        starts=tuple(source_starts[:-1]),
    )
    targets = TokenStream(
        tokens=np.frombuffer(target_tokens, np.int32),
        before=before_target,
        after=(),
        starts=tuple(target_starts[:-1]),
    )
    return Windows(
        name=corpus.name,
        sha256=corpus.sha256,
        length=length,
        streams=(sources, targets),
    )


def pack(text: Corpus, model: TextModel, length: int) -> Windows:
    """Cut a text into windows of exactly ``length`` tokens, special ones included."""
    check_length(length, model.max_length, model.name)
    text_frame = frame(model, length)
    width = text_frame.width
    tokens = np.array(array.array("i", token_stream(model, text.lines())), dtype=np.int32)
    starts = range(0, len(tokens) - width + 1, width)
    if not starts:
        raise CorpusError(
            f"{text.name} is too short: it has {len(tokens):,} tokens, and one sequence of "
            f"{length} takes {width:,} besides {length - width} special ones; give "
            "a longer text or a smaller length."
        )
    stream = TokenStream(
        tokens=tokens,
        before=text_frame.before,
        after=text_frame.after,
        starts=starts,
    )
    return Windows(name=text.name, sha256=text.sha256, length=length, streams=(stream,))
