"""Reduce patterns to a few numbers per query row; nothing else in classify holds n x n arrays.

Every measurement of ``classify`` needs the same few facts of a pattern row (where its largest
content weight lies, its entropy, its mass on special tokens, ...). They are computed once per chunk
while the chunk is in the processor's cache; what is left is a few times n numbers per head.

:class:`RowSummary` is what is left of a batch. :class:`RowReducer` observes the attention sites and
fills it; :class:`SentenceReducer` does what only sentences have: words, relative positions, and a
picture of each head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
#: pieces attends with up to m in all), and several times as fast as filling them in by a mask.
OUT = 1e6
#: Relative positions that the positional score looks at.
OFFSETS = tuple(r for r in range(-5, 6) if r != 0)
SIDE = 16  # Rows and columns of a head's mean attention: the first 15 tokens and the last.
FARTHEST = 20  # Word offsets further away than this count as this.
#: Word offsets that a head's distance kernel is measured at.
WORD_OFFSETS = tuple(r for r in range(-FARTHEST, FARTHEST + 1) if r != 0)
_NOTHING = torch.zeros(0)


@dataclass(frozen=True)
class RowSummary:
    """Sums that summarise all patterns of one batch.

    The heads of all layers are one axis, layer by layer; where a layer has lost heads the last
    entries of its share are 0. Sums are over queries, in float64. Fields after ``mass`` are empty
    for cross-attention.
    """

    #: (batch, n_layers * n_heads, pos): position of the largest weight on a content key; ties, up
    #: to rounding, go to the lowest position
    argmax: Tensor
    #: (batch, n_layers * n_heads): largest weight on a content key; entropy of the full row (nats)
    top: Tensor
    entropy: Tensor
    #: (..., 2): entropy / ln n, n the keys that the row may see: over rows of two keys or more, and
    #: over rows of LONG keys or more
    relative: Tensor
    #: (..., 4 + roles with keys): mass on special tokens, the first special, the last, punctuation,
    #: and on the keys of each role that names them; of cross-attention the first three
    mass: Tensor
    #: As ``argmax``, at first pieces: first piece of the word attended to most, itself excluded;
    #: attention to a word is the sum over its pieces, from a word the mean over its pieces
    word_argmax: Tensor = _NOTHING
    word_argmax_mean: Tensor = _NOTHING  # The same, with the mean over the attended word's pieces
    #: (n_layers * n_heads, SIDE, SIDE): weights between the tokens of :func:`corners`, summed over
    #: the batch
    corner: Tensor = _NOTHING
    band: Tensor = _NOTHING  # (..., len(OFFSETS)): P[i, i + r] for each offset r, 0 outside
    #: (..., len(WORD_OFFSETS)): over word pairs at each word offset, the attention to a word (mean
    #: over its pieces) from a word (mean over its pieces). Only of sentences in the first half; 0
    #: for the others.
    by_distance: Tensor = _NOTHING


def ordered_queries(source: Source) -> Tensor:
    """Return the queries of the pairs that can show an order, bool, (batch, query_pos).

    These pairs have at least FEWEST content queries and content keys.
    """
    enough_queries = source.predicts_content.sum(dim=1) >= FEWEST
    enough_keys = source.content.sum(dim=1) >= FEWEST
    return source.predicts_content & (enough_queries & enough_keys)[:, None]


def word_offset_index(step: Tensor) -> Tensor:
    """Return the indices of word offsets, clipped to FARTHEST, in WORD_OFFSETS, which lacks 0."""
    return step + FARTHEST - (step > 0).long()


def corners(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return which tokens the picture of a head shows: the first SIDE - 1 and the last one.

    ``mask`` (batch, pos) is 1 at tokens. Returns their positions and whether there is such a token,
    both (batch, SIDE); in a short sentence the last token is shown only as the last one.
    """
    last = mask.sum(dim=1, keepdim=True) - 1
    first_tokens = torch.arange(SIDE - 1, device=mask.device).expand(len(mask), -1)
    positions = torch.cat([first_tokens, last], dim=1)
    exists = torch.cat([first_tokens < last, last >= 0], dim=1)
    return positions.clamp(min=0).minimum(last), exists


def keys_of_roles(batch: Batch) -> list[Tensor]:
    """Return the keys that registered roles name, for each role a mask (batch, pos, pos).

    Only keys that the query may see are in it.
    """
    real = batch.attention_mask.bool()[:, None]
    shape = (batch.size[0], batch.size[1], batch.size[1])
    masks = []
    for role in roles_with_keys():
        assert role.keys is not None
        mask = role.keys(batch)
        try:
            if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
                raise TypeError
            mask = mask.to(real.device).expand(shape) & real
        except (TypeError, RuntimeError):
            actual = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask)
            raise InputError(
                f"The keys of the role {role.key} are {actual}; give a tensor of bool that "
                f"broadcasts to (batch, query_pos, key_pos), here {shape}."
            ) from None
        masks.append(mask.tril() if batch.causal else mask)
    return masks


class RowMeasure(Accumulator):
    """An accumulator of row summaries."""

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        raise NotImplementedError


class SentenceReducer:
    """Reduces the patterns of one batch of sentences to what only sentences have.

    These are, in the words of :class:`RowSummary`, ``band``, ``by_distance``, ``word_argmax``,
    ``word_argmax_mean`` and, by :meth:`picture`, ``corner``.
    """

    def __init__(self, batch: Batch, content: Tensor) -> None:
        """Prepare what every layer shares; ``content`` (batch, pos) is 1 at content tokens."""
        n_rows, n = batch.size
        device = batch.input_ids.device
        self._content = content
        self._half = batch.half

        # Positions at each offset from a query, and whether there is a token: (pos, offsets).
        target = torch.arange(n, device=device)[:, None] + torch.tensor(OFFSETS, device=device)
        self._band_index = target.clamp(0, n - 1)
        self._band_valid = (target >= 0) & (target < n)

        # Later pieces are no words; 1 / pieces at first pieces turns sums over pieces to means.
        self._no_word = -OUT * (~batch.first_piece).float()
        self._per_piece = batch.first_piece / batch.pieces.clamp(min=1).float()
        self._folds = batch.folds
        starts = torch.arange(n_rows + 1, device=device)
        #: Where the additions of each row start, in each fold
        self._fold_starts = [torch.searchsorted(fold[0], starts).tolist() for fold in batch.folds]

        # Index into WORD_OFFSETS of the distance from word to word, at their first pieces; one
        # index more is for all other pairs of tokens. (batch, query_pos, key_pos)
        word = batch.first_piece.long().cumsum(dim=1)
        step = (word[:, None, :] - word[:, :, None]).clamp(-FARTHEST, FARTHEST)
        two_words = batch.first_piece[:, :, None] & batch.first_piece[:, None] & (step != 0)
        self._offset_index = torch.where(two_words, word_offset_index(step), len(WORD_OFFSETS))

        # The tokens of the picture, and which pairs of them exist.
        self._corner_tokens, exists = corners(batch.attention_mask)
        self._in_corner = exists[:, :, None] & exists[:, None, :]

    def blank(self, heads: tuple[int, int, int]) -> dict[str, Tensor]:
        """Return zeros for what :meth:`reduce` yields; ``heads`` is (batch, n_layers, n_heads)."""
        zeros = self._content.new_zeros
        n = self._content.shape[1]
        return {
            "word_argmax": zeros(*heads, n, dtype=torch.int64),
            "word_argmax_mean": zeros(*heads, n, dtype=torch.int64),
            "band": zeros(*heads, len(OFFSETS)),
            "by_distance": zeros(*heads, len(WORD_OFFSETS)),
        }

    def reduce(self, pattern: Tensor, content_weights: Tensor, rows: slice) -> dict[str, Tensor]:
        """Reduce a chunk to relative positions, words and word offsets.

        ``content_weights`` is the pattern, with keys that are no content far below 0; it is
        overwritten.
        """
        at_offsets = pattern.gather(-1, self._band_index.expand(*pattern.shape[:2], -1, -1))
        inside = (self._band_valid * self._content[rows][..., None]).to(pattern.dtype)
        word_weights = self._sum_pieces(content_weights, rows)
        mean_weights = word_weights * self._per_piece[rows, None, None, :].to(word_weights.dtype)
        by_distance = self._by_distance(mean_weights, rows)
        no_word = self._no_word[rows, None, None, :].to(word_weights.dtype)
        return {
            "band": torch.einsum("bhir,bir->bhr", at_offsets, inside),
            "by_distance": by_distance,
            "word_argmax": _other_word(word_weights, no_word),
            "word_argmax_mean": _other_word(mean_weights, no_word),
        }

    def _sum_pieces(self, weights: Tensor, rows: slice) -> Tensor:
        """Turn weights between tokens to weights between words, at first pieces, in place.

        A word attends with all its pieces (their sum has the argmax of their mean), and is attended
        to in all its pieces.
        """
        folds = [
            fold[:, starts[rows.start] : starts[rows.stop]]
            - fold.new_tensor([[rows.start], [0], [0]])
            for fold, starts in zip(self._folds, self._fold_starts, strict=True)
        ]
        by_query = weights.transpose(1, 2)  # (rows, query_pos, n_heads, key_pos)
        for row, piece, first_piece in folds:
            by_query[row, first_piece] += by_query[row, piece]
        by_key = weights.permute(0, 3, 1, 2)  # (rows, key_pos, n_heads, query_pos)
        for row, piece, first_piece in folds:
            by_key[row, first_piece] += by_key[row, piece]
        return weights

    def _by_distance(self, mean_weights: Tensor, rows: slice) -> Tensor:
        """Add up the weights of word pairs by word offset: (rows, n_heads, WORD_OFFSETS).

        ``mean_weights`` are means over the attended word's pieces. Sentences of the second half of
        the corpus have 0.
        """
        first_half = torch.nonzero(self._half[rows] == 0)[:, 0]
        # Means over the attending word's pieces, too: (rows of the half, n_heads, pairs of tokens)
        per_query_piece = self._per_piece[rows][first_half][:, None, :, None].to(mean_weights)
        pair_weights = widest(mean_weights[first_half] * per_query_piece).flatten(2)
        offset_index = self._offset_index[rows][first_half].flatten(1)[:, None]
        by_distance = pair_weights.new_zeros(*mean_weights.shape[:2], len(WORD_OFFSETS) + 1)
        by_distance[first_half] = by_distance[first_half].scatter_add_(
            2, offset_index.expand_as(pair_weights), pair_weights
        )
        return by_distance[..., :-1]

    def picture(self, pattern: Tensor, rows: slice) -> Tensor:
        """Sum the weights between the tokens of the picture over rows: (heads, SIDE, SIDE)."""
        n_heads = pattern.shape[1]
        tokens = self._corner_tokens[rows, None].expand(-1, n_heads, -1)  # (rows, heads, SIDE)
        corner = pattern.gather(2, tokens[..., None].expand(*tokens.shape, pattern.shape[-1]))
        corner = corner.gather(3, tokens[..., None, :].expand(*tokens.shape, SIDE))
        return (widest(corner) * self._in_corner[rows, None]).sum(dim=0)


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
        # keys are special or punctuation; each (batch, pos).
        self._keys_of_roles: list[Tensor] = []
        if self._stack == "cross":
            assert batch.source is not None
            query = ordered_queries(batch.source)
            content_key = batch.source.content
            visible = batch.source.attention_mask.sum(dim=1, keepdim=True).expand_as(query)
            marks = _special_keys(batch.source)
        else:
            query = batch.content
            content_key = batch.content
            visible = batch.visible
            marks = [batch.special, batch.first_special, batch.last_special, batch.punctuation]
            self._keys_of_roles = [mask.float() for mask in keys_of_roles(batch)]
        self._content = widest(query)
        self._no_content = -OUT * (~content_key).float()
        self._marks = torch.stack(marks, dim=-1).float()
        # 1 / ln n at queries that see n keys: n >= 2, and n >= LONG; (batch, query_pos, 2)
        enough = torch.stack([visible >= least for least in (2, LONG)], dim=-1)
        self._per_log = (enough & query[..., None]) / widest(visible.clamp(min=2)).log()[..., None]

        # Every quantity is allocated before the first chunk: nothing small is then left among a
        # layer's large temporaries, which would keep the C library from using their memory again.
        zeros = self._content.new_zeros
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
            self._sentences = SentenceReducer(batch, self._content)
            self._summary |= self._sentences.blank(heads)
            self._corners = zeros(*self._shape, SIDE, SIDE)

    def observe(self, site: Activations) -> None:
        """Reduce one chunk."""
        if self._stack is not None and site.stack != self._stack:
            return
        pattern = site.pattern.float() if site.pattern.dtype.itemsize < 4 else site.pattern
        dtype = pattern.dtype
        rows = site.rows
        content = self._content[rows]
        content_weights = pattern + self._no_content[rows, None, None, :].to(dtype)
        largest, argmax = first_largest(content_weights)
        entropy = widest(row_entropy(pattern))
        mass = pattern @ self._marks[rows, None].to(dtype)
        if self._keys_of_roles:
            role_mass = [
                torch.einsum("bhij,bij->bhi", pattern, keys[rows].to(dtype))
                for keys in self._keys_of_roles
            ]
            mass = torch.cat([mass, torch.stack(role_mass, dim=-1)], dim=-1)
        reduced = {
            "argmax": argmax,
            "top": torch.einsum("bhi,bi->bh", widest(largest), content),
            "entropy": torch.einsum("bhi,bi->bh", entropy, content),
            "relative": torch.einsum("bhi,bic->bhc", entropy, self._per_log[rows]),
            "mass": torch.einsum("bhim,bi->bhm", widest(mass), content),
        }
        if self._sentences is not None:
            reduced |= self._sentences.reduce(pattern, content_weights, rows)
            self._corners[self._layer, site.heads] += self._sentences.picture(pattern, rows)
        for name, numbers in reduced.items():
            summary = self._summary[name]
            summary[rows, self._layer, site.heads] = numbers.to(summary.dtype)

    def finish(self, stack: str, layer: int) -> None:
        """Hand the batch over once its last layer has been observed."""
        if self._stack not in (None, stack):
            return
        self._layer += 1  # layers are counted: their numbers have gaps where some were removed
        if self._layer == self._shape[0]:
            fields = {name: numbers.flatten(1, 2) for name, numbers in self._summary.items()}
            if self._sentences is not None:
                fields["corner"] = self._corners.flatten(0, 1)
            self._hand_over(RowSummary(**fields), self._batch)


def _special_keys(source: Source) -> list[Tensor]:
    """Mark the special tokens of sources, the first of them, and the last: (batch, key_pos)."""
    special = source.attention_mask.bool() & ~source.content
    first = special & (special.cumsum(1) == 1)
    last = special & (special.flip(1).cumsum(1).flip(1) == 1)
    return [special, first, last]


def row_entropy(pattern: Tensor) -> Tensor:
    """Entropy of each row in nats, 0 log 0 = 0; faster than torch.special.entr on CPUs."""
    tiny = torch.finfo(pattern.dtype).tiny
    return -pattern.clamp(min=tiny).log_().mul_(pattern).sum(dim=-1)
