"""What the words of a layer read and pass on, in the spaces that a linear map may recover them in.

:mod:`~headscope.analyses.flow.recovery` says what is recovered, and names U, V, G and M.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from headscope.core.activations import Activations
from headscope.core.rounding import VARIANCE, first_largest
from headscope.core.widest import exact
from headscope.data.word_pieces import EncodedSentence
from headscope.stats.spectra import column_basis

SKETCH = 32  # Directions of a target that a penalty is chosen by, at most.


@dataclass(frozen=True)
class LayerSpaces:
    """The subspaces that W_V of one layer's heads read, and random ones of that size."""

    #: (n_heads, d_in, d_v): orthonormal columns that span those of a head's W_V; zeros beyond its
    #: rank
    U: Tensor
    G: Tensor  # (n_heads, d_in, d_v): Gaussian entries
    to_V: Tensor  # (n_heads, d_v, d_v): G times this is V, orthonormal columns that span those of G
    sketch: Tensor  # (d_in, at most SKETCH): random orthonormal columns

    @classmethod
    def of(cls, W_V: Tensor, seed: int) -> LayerSpaces:
        """Take U from a layer's W_V (n_heads, d_in, d_v) on the CPU, and draw the rest."""
        generator = torch.Generator().manual_seed(seed)
        d_in, d_v = W_V.shape[1:]
        sketch = torch.randn(d_in, min(d_in, SKETCH), generator=generator, dtype=torch.float64)
        G = torch.randn(W_V.shape, generator=generator, dtype=torch.float64)
        basis = column_basis(W_V)[0] if len(W_V) else W_V.double()
        U = F.pad(basis, [0, d_v - basis.shape[-1]])  # heads that are wider than the states
        squares, vectors = torch.linalg.eigh(G.mT @ G)
        varies = squares > VARIANCE * squares[..., -1:]
        to_V = vectors * torch.where(varies, squares.rsqrt(), 0.0)[..., None, :]
        return cls(U=U, G=G, to_V=to_V, sketch=torch.linalg.qr(sketch)[0])


@dataclass(frozen=True)
class WordPositions:
    """Where the words of a padded batch of sentences stand."""

    content: Tensor  # (batch, pos), bool: positions of words
    #: (batch, pos): for each position of a word another position of a word that it may see, drawn
    #: at random (the same may be drawn).
    other: Tensor


def word_positions(
    sentences: Sequence[EncodedSentence],
    random: np.random.Generator,
    *,
    causal: bool = False,
    device: torch.device | str = "cpu",
) -> WordPositions:
    """Find the words of a batch, and draw another word for each of their positions."""
    content = []
    other_words = []
    for sentence in sentences:
        is_word = sentence.word_of >= 0
        positions = np.flatnonzero(is_word)
        n_visible = np.full(len(positions), len(positions))
        if causal:
            n_visible = np.arange(1, len(positions) + 1)
        drawn = (random.random(len(positions)) * n_visible).astype(np.int64)
        other = np.zeros(len(sentence), dtype=np.int64)
        other[positions] = positions[drawn]
        content.append(torch.from_numpy(is_word))
        other_words.append(torch.from_numpy(other))
    return WordPositions(
        content=pad_sequence(content, batch_first=True).to(device),
        other=pad_sequence(other_words, batch_first=True).to(device),
    )


class LayerChunk:
    """What the words of a chunk of one layer read and pass on, in float64.

    A chunk is some heads on some sentences (rows of the batch). Heads come first in shapes;
    ``tokens`` is one axis of the positions of all sentences.
    """

    def __init__(
        self, site: Activations, x: Tensor, words: WordPositions, spaces: LayerSpaces
    ) -> None:
        """Take it from a chunk of a pass; ``x`` (batch, pos, d_in) is what W_V reads."""
        self.rows = site.rows
        self.heads = site.heads
        content = words.content[site.rows]

        # The states that the chunk's words have
        states = exact(x[site.rows])
        self.sizes = states.shape[:2]  # rows, pos
        self.x = states.flatten(0, 1)  # (tokens, d_in)
        self.gram = states @ states.mT  # (rows, pos, pos): products of the states of a sentence
        self.words = content.to(states.device).to(states).flatten()  # (tokens,): 1 at words, else 0

        # M of the targets, (heads, rows, pos, pos); that of another word is the same for all heads
        self.pattern = exact(site.pattern).transpose(0, 1).contiguous()
        top = first_largest(site.pattern.masked_fill(~content[:, None, None, :], -1.0))[1]
        self.top = self._one_hot(top.transpose(0, 1))
        self.other = self._one_hot(words.other[site.rows])

        # The states in U and in V, and the predictors z and a G: both (2, heads, tokens, d_v)
        U = spaces.U[site.heads].to(states)
        G = spaces.G[site.heads].to(states)
        to_V = spaces.to_V[site.heads].to(states)
        through_U = torch.einsum("ti,hid->htd", self.x, U)
        through_G = torch.einsum("ti,hid->htd", self.x, G)
        self.in_spaces = torch.stack([through_U, through_G @ to_V])
        z = exact(site.z).transpose(0, 1).flatten(1, 2)
        self.predictors = torch.stack([z, self.mixed(self.pattern, through_G)])

    def _one_hot(self, index: Tensor) -> Tensor:
        """Return M (..., pos, pos) with a single 1 in each row, at ``index`` (..., pos)."""
        return F.one_hot(index.to(self.x.device), self.sizes[1]).to(self.x)

    def mixed(self, M: Tensor, states: Tensor) -> Tensor:
        """Mix states (..., tokens, width) of each sentence by M."""
        by_sentence = states.reshape(*states.shape[:-2], *self.sizes, states.shape[-1])
        return (M @ by_sentence).flatten(-3, -2)

    @property
    def wide_mixtures(self) -> tuple[Tensor, Tensor]:
        """M of the two targets of d_in dimensions, (heads, rows, pos, pos)."""
        return self.pattern, self.top

    @property
    def narrow_targets(self) -> tuple[Tensor, Tensor]:
        """The two targets of d_v dimensions, (2, heads, tokens, d_v)."""
        return self.mixed(self.top, self.in_spaces), self.mixed(self.other, self.in_spaces)
