"""Reduce patterns to a few numbers per row; nothing else in classify holds n x n arrays.

A row of a pattern is the attention of one query. Every measurement of ``classify`` needs the same
few facts of a row (where its largest content weight lies, its entropy, its mass on special tokens,
...). They are computed once per chunk while the chunk is in the processor's cache; what is left is
a few times n numbers per head.

:class:`RowSummary` is what is left of a batch of examples: sentences, or pairs of source and
target. :class:`RowReducer` fills it: a run calls ``start`` with each padded :class:`Batch`, then
``observe`` with every chunk of a layer's :class:`Activations` (some examples, some heads), and
``finish`` after every layer. :class:`SentenceReducer` helps it with what only sentences have:
words, relative positions, and a picture of each head.

*Content* tokens are those that are not special; in a causal stack queries and keys are those of
:attr:`Batch.queries` and :attr:`Batch.keys`. A word stands at its *first piece*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headscope.analyses.classify.roles import roles_with_keys
from headscope.core.accumulator import Accumulator
from headscope.core.activations import Activations
from headscope.core.errors import InputError
from headscope.core.rounding import first_largest
from headscope.core.widest import widest
from headscope.data.batches import Batch, Source

LONG = 20  # Tokens, special ones included, that a row must see to tell a broad head from others.
FEWEST = 3  # Content queries, and content keys, of a pair that can show an order.
#: Subtracted from weights to take keys out of an argmax: more than any sum of weights (a word of m
#: pieces attends with up to m in all). Several times as fast as ``masked_fill``.
OUT = 1e6
#: Relative positions that the positional score looks at.
OFFSETS = tuple(r for r in range(-5, 6) if r != 0)
SIDE = 16  # Rows and columns of a head's picture: the first 15 tokens and the last.
FARTHEST = 20  # A word that is further away counts as if it were this far away.
#: Word offsets that a head's distance kernel is measured at.
WORD_OFFSETS = tuple(r for r in range(-FARTHEST, FARTHEST + 1) if r != 0)
_NOTHING = torch.zeros(0)


@dataclass(frozen=True)
class RowSummary:
    """Sums that summarise all patterns of one batch.

    The heads of all layers are one axis, ``heads`` = n_layers * n_heads, layer by layer; where a
    layer has lost heads the last entries of its share are 0. All but the three that name an
    ``argmax`` are sums over the content queries of an example, in float64. Fields after ``mass``
    are empty for cross-attention.
    """

    #: (batch, heads, pos): for each query the position of the largest weight on a content key;
    #: ties, up to rounding, go to the lowest position
    argmax: Tensor
    top: Tensor  # (batch, heads): the largest weight on a content key
    entropy: Tensor  # (batch, heads): entropy of the full row, nats
    #: (batch, heads, 2): entropy / ln n, n the keys that the row may see: over rows of two keys or
    #: more, and over rows of LONG keys or more
    relative: Tensor
    #: (batch, heads, 4 + roles with keys): mass on special tokens, the first special, the last,
    #: punctuation, and on the keys of each role that names them; of cross-attention the first three
    mass: Tensor
    #: (batch, heads, pos), at first pieces: the first piece of the word, other than the query's
    #: own, that is attended to most. Attention to a word is the sum over its pieces.
    word_argmax: Tensor = _NOTHING
    word_argmax_mean: Tensor = _NOTHING  # The same, with the mean over the attended word's pieces
    #: (heads, SIDE, SIDE): weights between the tokens of :func:`corners`, summed over the batch
    corner: Tensor = _NOTHING
    #: (batch, heads, len(OFFSETS)): P[i, i + r] for each offset r; 0 where there is no i + r
    band: Tensor = _NOTHING
    #: (batch, heads, len(WORD_OFFSETS)): over the pairs of words at each word offset, the attention
    #: from a word (mean over its pieces) to a word (mean over its pieces). Only of sentences in the
    #: first half of the corpus; 0 for the others.
    by_distance: Tensor = _NOTHING
    #: (batch, heads): weight on position 0 from the rows that can show a sink there
    first_token: Tensor = _NOTHING


def ordered_queries(source: Source) -> Tensor:
    """Return the queries of the pairs that can show an order, bool, (batch, query_pos).

    These pairs have at least FEWEST content queries and content keys.
    """
    enough_queries = source.predicts_content.sum(dim=1) >= FEWEST
    enough_keys = source.content.sum(dim=1) >= FEWEST
    return source.predicts_content & (enough_queries & enough_keys)[:, None]


def word_offset_index(step: Tensor) -> Tensor:
    """Return the indices in WORD_OFFSETS of word offsets from -FARTHEST to FARTHEST.

    WORD_OFFSETS lacks 0: -20 -> 0, -1 -> 19, 1 -> 20, 20 -> 39.
    """
    return step + FARTHEST - (step > 0).long()


def corners(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return which tokens the picture of a head shows: the first SIDE - 1 and the last one.

    ``mask`` (batch, pos) is 1 at tokens. Returns their positions, and whether there is such a
    token, both (batch, SIDE). Of three tokens 0 and 1 stand in the first two places and 2 in the
    last one; no token exists for the places between.
    """
    last = mask.sum(dim=1, keepdim=True) - 1
    first_tokens = torch.arange(SIDE - 1, device=mask.device).expand(len(mask), -1)
    positions = torch.cat([first_tokens, last], dim=1)
    exists = torch.cat([first_tokens < last, last >= 0], dim=1)
    return positions.clamp(min=0).minimum(last), exists


def keys_of_roles(batch: Batch) -> list[Tensor]:
    """Return the keys that registered roles name, for each role a mask (batch, query, key).

    A mask holds only keys that the query may see. ``role.keys`` is a user's function, so what it
    returns is checked.
    """
    real = batch.attention_mask.bool()[:, None]  # [batch, 1, key]
    n_examples, n = batch.size
    shape = (n_examples, n, n)
    masks = []
    for role in roles_with_keys():
        assert role.keys is not None
        keys = role.keys(batch)
        if not _broadcasts(keys, shape):
            actual = f"{keys.dtype} {tuple(keys.shape)}" if isinstance(keys, Tensor) else type(keys)
            raise InputError(
                f"The keys of the role {role.key} are {actual}; give a tensor of bool that "
                f"broadcasts to (batch, query_pos, key_pos), here {shape}."
            )
        mask = keys.to(real.device).expand(shape) & real
        masks.append(mask.tril() if batch.causal else mask)
    return masks


def _broadcasts(keys: Any, shape: tuple[int, ...]) -> bool:
    """Whether this is a tensor of bool that broadcasts to a shape."""
    if not isinstance(keys, Tensor) or keys.dtype != torch.bool:
        return False
    try:
        keys.expand(shape)
    except RuntimeError:
        return False
    return True


class RowMeasure(Accumulator):
    """A measurement: its arrays are sums over a corpus, to which each batch is added."""

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        raise NotImplementedError


class SentenceReducer:
    """Reduces the patterns of one batch of sentences to what only sentences have.

    These are the fields ``first_token``, ``band``, ``by_distance``, ``word_argmax``,
    ``word_argmax_mean`` and, by :meth:`picture`, ``corner`` of a :class:`RowSummary`.
    """

    def __init__(self, batch: Batch, is_query: Tensor) -> None:
        """Prepare what every layer shares; ``is_query`` (batch, pos) is 1 at queries."""
        n_examples, n = batch.size
        device = batch.input_ids.device
        self._is_query = is_query
        self._sink_queries = widest(batch.sink_queries)
        self._half = batch.half

        # Positions at each offset from a query, and whether there is one: (pos, offsets).
        target = torch.arange(n, device=device)[:, None] + torch.tensor(OFFSETS, device=device)
        self._band_index = target.clamp(0, n - 1)
        self._band_valid = (target >= 0) & (target < n)

        # A word stands at its first piece; later pieces are no words. 1 / pieces turns sums over
        # pieces to means. Both (batch, pos).
        self._no_word = -OUT * (~batch.first_piece).float()
        self._per_piece = batch.first_piece / batch.pieces.clamp(min=1).float()
        #: Additions that gather each word's later pieces at its first, in a few steps (folds). A
        #: fold has three rows: example, position to add, position to add it to. Of a word with
        #: pieces at 4, 5 and 6 of example 0: first (0, 5, 4), then (0, 6, 4).
        self._folds = batch.folds
        #: Where in each fold the additions of each example start
        example_numbers = torch.arange(n_examples + 1, device=device)
        self._fold_starts = [
            torch.searchsorted(fold[0], example_numbers).tolist() for fold in batch.folds
        ]

        # For every pair of two words' first pieces, the index of their distance in WORD_OFFSETS;
        # for all other pairs of tokens one index more. (batch, query_pos, key_pos)
        word_number = batch.first_piece.long().cumsum(dim=1)
        step = (word_number[:, None, :] - word_number[:, :, None]).clamp(-FARTHEST, FARTHEST)
        two_words = batch.first_piece[:, :, None] & batch.first_piece[:, None] & (step != 0)
        self._offset_index = torch.where(two_words, word_offset_index(step), len(WORD_OFFSETS))

        # The tokens of the picture, and which pairs of them exist.
        self._corner_tokens, exists = corners(batch.attention_mask)
        self._in_corner = exists[:, :, None] & exists[:, None, :]

    def blank(self, heads: tuple[int, int, int]) -> dict[str, Tensor]:
        """Return zeros for what :meth:`reduce` yields; ``heads`` is (batch, n_layers, n_heads)."""
        zeros = self._is_query.new_zeros
        n = self._is_query.shape[1]
        return {
            "first_token": zeros(heads),
            "word_argmax": zeros(*heads, n, dtype=torch.int64),
            "word_argmax_mean": zeros(*heads, n, dtype=torch.int64),
            "band": zeros(*heads, len(OFFSETS)),
            "by_distance": zeros(*heads, len(WORD_OFFSETS)),
        }

    def reduce(
        self, pattern: Tensor, content_weights: Tensor, examples: slice
    ) -> dict[str, Tensor]:
        """Reduce a chunk to relative positions, words and word offsets.

        ``examples`` are those of the batch that the chunk holds. ``pattern`` is (examples, heads,
        query, key); ``content_weights`` is the same with keys that are no content far below 0, and
        is overwritten.
        """
        at_offsets = pattern.gather(-1, self._band_index.expand(*pattern.shape[:2], -1, -1))
        counted = (self._band_valid * self._is_query[examples][..., None]).to(pattern.dtype)
        on_first_token = widest(pattern[..., 0])  # [examples, heads, query]
        word_weights = self._sum_pieces(content_weights, examples)
        per_piece = self._per_piece[examples, None, None, :].to(word_weights.dtype)
        mean_weights = word_weights * per_piece
        by_distance = self._by_distance(mean_weights, examples)
        no_word = self._no_word[examples, None, None, :].to(word_weights.dtype)
        # Word weights last: they are overwritten.
        return {
            "first_token": torch.einsum("bhi,bi->bh", on_first_token, self._sink_queries[examples]),
            "band": torch.einsum("bhir,bir->bhr", at_offsets, counted),
            "by_distance": by_distance,
            "word_argmax": _other_word(word_weights, no_word),
            "word_argmax_mean": _other_word(mean_weights, no_word),
        }

    def _sum_pieces(self, weights: Tensor, examples: slice) -> Tensor:
        """Turn weights between tokens to weights between words, at first pieces, in place.

        A word attends with all its pieces (their sum has the argmax of their mean), and is attended
        to in all its pieces.
        """
        folds = []
        for fold, starts in zip(self._folds, self._fold_starts, strict=True):
            in_chunk = slice(starts[examples.start], starts[examples.stop])
            example, piece, first_piece = fold[:, in_chunk]
            folds.append((example - examples.start, piece, first_piece))
        by_query = weights.transpose(1, 2)  # a view: [examples, query, heads, key]
        for example, piece, first_piece in folds:
            by_query[example, first_piece] += by_query[example, piece]
        by_key = weights.permute(0, 3, 1, 2)  # a view: [examples, key, heads, query]
        for example, piece, first_piece in folds:
            by_key[example, first_piece] += by_key[example, piece]
        return weights

    def _by_distance(self, mean_weights: Tensor, examples: slice) -> Tensor:
        """Add up the weights of word pairs by word offset: (examples, heads, WORD_OFFSETS).

        ``mean_weights`` are means over the attended word's pieces. Sentences of the second half of
        the corpus have 0.
        """
        first_half = torch.nonzero(self._half[examples] == 0)[:, 0]  # indices of examples
        # Means over the attending word's pieces, too: [first half, heads, pairs of tokens]
        per_query_piece = self._per_piece[examples][first_half][:, None, :, None].to(mean_weights)
        pair_weights = widest(mean_weights[first_half] * per_query_piece).flatten(2)
        offset_index = self._offset_index[examples][first_half].flatten(1)[:, None]
        # The last index gathers what is no pair of words.
        by_distance = pair_weights.new_zeros(*mean_weights.shape[:2], len(WORD_OFFSETS) + 1)
        by_distance[first_half] = by_distance[first_half].scatter_add_(
            2, offset_index.expand_as(pair_weights), pair_weights
        )
        return by_distance[..., :-1]

    def picture(self, pattern: Tensor, examples: slice) -> Tensor:
        """Sum weights between the tokens of the picture over examples: (heads, SIDE, SIDE)."""
        n_examples, n_heads, _, n_keys = pattern.shape
        tokens = self._corner_tokens[examples, None].expand(-1, n_heads, -1)
        of_queries = tokens[..., None].expand(n_examples, n_heads, SIDE, n_keys)
        of_keys = tokens[..., None, :].expand(n_examples, n_heads, SIDE, SIDE)
        corner = pattern.gather(2, of_queries).gather(3, of_keys)
        return (widest(corner) * self._in_corner[examples, None]).sum(dim=0)


def _other_word(weights: Tensor, no_word: Tensor) -> Tensor:
    """Return the word, other than the query, of the largest weight; ``weights`` is overwritten."""
    weights += no_word
    weights.diagonal(dim1=-2, dim2=-1).fill_(-OUT)
    return first_largest(weights)[1]


class RowReducer:
    """Observes attention sites and hands over a batch's row summary once its last layer is seen.

    Of cross-attention the keys are the tokens of the source, and the queries those at which the
    decoder is to write a content token, of pairs that can show an order.
    """

    def __init__(
        self,
        n_layers: int,
        n_heads: int,
        hand_over: Callable[[RowSummary, Batch], object],
        stack: str | None = None,
    ) -> None:
        """Hand summaries with their batches to ``hand_over``; observe one stack, or all by None."""
        self._shape = (n_layers, n_heads)
        self._hand_over = hand_over
        self._stack = stack

    def start(self, batch: Batch) -> None:
        """Prepare what every layer of this batch shares."""
        self._batch = batch
        self._layer = 0
        # Which tokens are queries, which keys are content, how many keys a query may see, and which
        # keys count for ``mass``; each (batch, pos).
        self._keys_of_roles: list[Tensor] = []
        if self._stack == "cross":
            assert batch.source is not None  # cross-attention reads one
            query = ordered_queries(batch.source)
            content_key = batch.source.content
            visible = batch.source.attention_mask.sum(dim=1, keepdim=True).expand_as(query)
            marks = _special_keys(batch.source)
        else:
            query = batch.queries
            content_key = batch.keys
            visible = batch.visible
            marks = [batch.special, batch.first_special, batch.last_special, batch.punctuation]
            self._keys_of_roles = [mask.float() for mask in keys_of_roles(batch)]
        self._is_query = widest(query)
        self._no_content = -OUT * (~content_key).float()
        self._marks = torch.stack(marks, dim=-1).float()
        # 1 / ln n at queries that see n keys, for ``relative``: n >= 2, and n >= LONG; elsewhere 0.
        enough = torch.stack([visible >= least for least in (2, LONG)], dim=-1)
        log_visible = widest(visible.clamp(min=2)).log()
        self._per_log = (enough & query[..., None]) / log_visible[..., None]  # [batch, query, 2]

        # Every quantity is allocated before the first chunk: nothing small is then left among a
        # layer's large temporaries, which would keep the C library from using their memory again.
        zeros = self._is_query.new_zeros
        heads = (len(query), *self._shape)
        self._summary = {
            "argmax": zeros(*heads, query.shape[1], dtype=torch.int64),
            "top": zeros(heads),
            "entropy": zeros(heads),
            "relative": zeros(*heads, 2),
            "mass": zeros(*heads, len(marks) + len(self._keys_of_roles)),
        }
        self._sentences: SentenceReducer | None = None
        if self._stack != "cross":
            self._sentences = SentenceReducer(batch, self._is_query)
            self._summary |= self._sentences.blank(heads)
            self._corners = zeros(*self._shape, SIDE, SIDE)

    def observe(self, site: Activations) -> None:
        """Reduce one chunk of a layer: some examples, some heads."""
        if self._stack is not None and site.stack != self._stack:
            return
        pattern = site.pattern.float() if site.pattern.dtype.itemsize < 4 else site.pattern
        dtype = pattern.dtype
        examples = site.examples
        is_query = self._is_query[examples]
        content_weights = pattern + self._no_content[examples, None, None, :].to(dtype)
        largest, argmax = first_largest(content_weights)
        entropy = widest(row_entropy(pattern))
        mass = pattern @ self._marks[examples, None].to(dtype)  # [examples, heads, query, marks]
        if self._keys_of_roles:
            role_mass = [
                torch.einsum("bhij,bij->bhi", pattern, keys[examples].to(dtype))
                for keys in self._keys_of_roles
            ]
            mass = torch.cat([mass, torch.stack(role_mass, dim=-1)], dim=-1)
        reduced = {
            "argmax": argmax,
            "top": torch.einsum("bhi,bi->bh", widest(largest), is_query),
            "entropy": torch.einsum("bhi,bi->bh", entropy, is_query),
            "relative": torch.einsum("bhi,bic->bhc", entropy, self._per_log[examples]),
            "mass": torch.einsum("bhim,bi->bhm", widest(mass), is_query),
        }
        if self._sentences is not None:
            reduced |= self._sentences.reduce(pattern, content_weights, examples)
            self._corners[self._layer, site.heads] += self._sentences.picture(pattern, examples)
        for name, numbers in reduced.items():
            summary = self._summary[name]
            summary[examples, self._layer, site.heads] = numbers.to(summary.dtype)

    def finish(self, stack: str, layer: int) -> None:
        """Hand the batch over once its last layer has been observed."""
        if self._stack not in (None, stack):
            return
        self._layer += 1  # layers are counted: their numbers have gaps where some were removed
        n_layers, _ = self._shape
        if self._layer == n_layers:
            fields = {name: numbers.flatten(1, 2) for name, numbers in self._summary.items()}
            if self._sentences is not None:
                fields["corner"] = self._corners.flatten(0, 1)
            self._hand_over(RowSummary(**fields), self._batch)


def _special_keys(source: Source) -> list[Tensor]:
    """Mark the special tokens of sources, the first of them, and the last: (batch, key_pos)."""
    special = source.attention_mask.bool() & ~source.content
    from_start = special.cumsum(1)
    from_end = special.flip(1).cumsum(1).flip(1)
    first = special & (from_start == 1)
    last = special & (from_end == 1)
    return [special, first, last]


def row_entropy(pattern: Tensor) -> Tensor:
    """Entropy of each row in nats, 0 log 0 = 0; faster than torch.special.entr on CPUs."""
    tiny = torch.finfo(pattern.dtype).tiny
    return -pattern.clamp(min=tiny).log_().mul_(pattern).sum(dim=-1)
