"""What the heads of a layer read at each word and what they pass on, for linear maps between them.

A map is fitted from what a head passes on (its z) to what it read. Row vectors, for one head:

* ``x``, the states that the layer reads, and ``a = P x``, the mixture that pattern P makes of them;
* ``U``, orthonormal columns that span those of W_V: ``x U`` is what W_V can read of a state;
* ``G``, a Gaussian matrix of the shape of W_V, and ``V``, orthonormal columns that span those of G:
  the same for a head with random weights.

What a map shall recover is always some mixture ``M x`` of states: M is the pattern, or has a single
1 in each row, at the word that gets the largest weight or at a random one.
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

#: Random directions at most that a target of d_in dimensions is projected on while the penalty of
#: its ridge map is chosen.
SKETCH = 32


@dataclass(frozen=True)
class LayerSpaces:
    """The subspaces that W_V of one layer's heads read, and random ones of that size."""

    U: Tensor  # (n_heads, d_in, d_v): orthonormal columns; zeros beyond the rank of W_V
    G: Tensor  # (n_heads, d_in, d_v): Gaussian entries
    to_V: Tensor  # (n_heads, d_v, d_v): V is G times this
    sketch: Tensor  # (d_in, at most SKETCH): random orthonormal columns

    @classmethod
    def of(cls, W_V: Tensor, seed: int) -> LayerSpaces:
        """Take U from a layer's W_V (n_heads, d_in, d_v) on the CPU, and draw the rest."""
        n_heads, d_in, d_v = W_V.shape
        generator = torch.Generator().manual_seed(seed)
        sketch = torch.randn(d_in, min(d_in, SKETCH), generator=generator, dtype=torch.float64)
        G = torch.randn(W_V.shape, generator=generator, dtype=torch.float64)

        basis = W_V.double()
        if n_heads > 0:
            basis, _ = column_basis(W_V)
        # A head that is wider than the states (d_v > d_in) has fewer basis vectors than d_v.
        U = F.pad(basis, [0, d_v - basis.shape[-1]])

        # With G^T G = E diag(s) E^T the columns of G E diag(s)^(-1/2) are orthonormal.
        squares, vectors = torch.linalg.eigh(G.mT @ G)
        varies = squares > VARIANCE * squares[..., -1:]
        to_V = vectors * torch.where(varies, squares.rsqrt(), 0.0)[..., None, :]
        return cls(U=U, G=G, to_V=to_V, sketch=torch.linalg.qr(sketch)[0])


@dataclass(frozen=True)
class WordPositions:
    """Which positions of a padded batch of sentences belong to words, and a random one for each.

    For ``[CLS] the cat sat [SEP]`` and the draws sat, the, cat: ``content`` [F, T, T, T, F] and
    ``other`` [0, 3, 1, 2, 0].
    """

    content: Tensor  # (batch, pos), bool: True at the tokens of words
    #: (batch, pos): at each token of a word the position of one that it may attend to, drawn at
    #: random (itself may be drawn); 0 elsewhere
    other: Tensor


def word_positions(
    sentences: Sequence[EncodedSentence],
    random: np.random.Generator,
    *,
    causal: bool = False,
    device: torch.device | str = "cpu",
) -> WordPositions:
    """Find the words of a batch, and draw another word for each of their positions.

    If ``causal``, a word can only attend to itself and to those before it.
    """
    content = []
    other_words = []
    for sentence in sentences:
        is_word = sentence.word_of >= 0  # -1 at special tokens
        positions = np.flatnonzero(is_word)
        n_visible = np.full(len(positions), len(positions))
        if causal:
            n_visible = np.arange(1, len(positions) + 1)
        drawn = (random.random(len(positions)) * n_visible).astype(np.int64)  # indices of positions
        other = np.zeros(len(sentence), dtype=np.int64)
        other[positions] = positions[drawn]
        content.append(torch.from_numpy(is_word))
        other_words.append(torch.from_numpy(other))
    return WordPositions(
        content=pad_sequence(content, batch_first=True).to(device),
        other=pad_sequence(other_words, batch_first=True).to(device),
    )


class LayerChunk:
    """What some heads of one layer read and pass on in some sentences of a batch, in float64.

    In shapes heads come first; ``examples`` are the sentences, and ``tokens`` = examples * pos is
    one axis of all their positions. An axis of length 2 has the model's own weights first and the
    random ones second.
    """

    def __init__(
        self, activations: Activations, x: Tensor, words: WordPositions, spaces: LayerSpaces
    ) -> None:
        """Take it from what a pass computed; ``x`` (batch, pos, d_in) is what W_V reads."""
        self.examples: slice = activations.examples  # Which sentences of the batch
        self.heads: slice = activations.heads  # Which heads of the layer
        content = words.content[self.examples]

        # The states that the layer reads in these sentences
        states = exact(x[self.examples])
        self.sizes = states.shape[:2]  # examples, pos
        self.x = states.flatten(0, 1)  # (tokens, d_in)
        self.gram = states @ states.mT  # (examples, pos, pos): products of the states of a sentence
        self.is_word = content.to(states.device).to(states).flatten()  # (tokens,): 1.0 or 0.0

        # M of each target, (heads, examples, pos, pos); a random word is the same for all heads
        self.pattern = exact(activations.pattern).transpose(0, 1).contiguous()
        # Weights are at least 0, so that with -1 elsewhere the largest one is at a word.
        no_word = ~content[:, None, None, :]  # (examples, 1, 1, key_pos)
        weights_of_words = activations.pattern.masked_fill(no_word, -1.0)
        _, top = first_largest(weights_of_words)  # (examples, heads, pos)
        self.top = self._one_hot(top.transpose(0, 1))
        self.other = self._one_hot(words.other[self.examples])

        # The states in U and in V, and the predictors z and a G: both (2, heads, tokens, d_v)
        U = spaces.U[self.heads].to(states)
        G = spaces.G[self.heads].to(states)
        to_V = spaces.to_V[self.heads].to(states)
        through_U = torch.einsum("ti,hid->htd", self.x, U)
        through_G = torch.einsum("ti,hid->htd", self.x, G)
        self.in_spaces = torch.stack([through_U, through_G @ to_V])
        z = exact(activations.z).transpose(0, 1).flatten(1, 2)  # (heads, tokens, d_v)
        self.predictors = torch.stack([z, self.mixed(self.pattern, through_G)])

    def _one_hot(self, index: Tensor) -> Tensor:
        """Return M (..., pos, pos) with a single 1 in each row: [1, 0] -> [[0, 1], [1, 0]]."""
        return F.one_hot(index.to(self.x.device), self.sizes[1]).to(self.x)

    def mixed(self, M: Tensor, states: Tensor) -> Tensor:
        """Mix the states (..., tokens, width) of each sentence by M (..., examples, pos, pos)."""
        by_sentence = states.reshape(*states.shape[:-2], *self.sizes, states.shape[-1])
        return (M @ by_sentence).flatten(-3, -2)

    @property
    def wide_mixtures(self) -> tuple[Tensor, Tensor]:
        """M of the two targets that are whole states: the mixture, and the top word's state."""
        return self.pattern, self.top

    @property
    def narrow_targets(self) -> tuple[Tensor, Tensor]:
        """The two targets in U or V, (2, heads, tokens, d_v): of the top word, of a random one."""
        return self.mixed(self.top, self.in_spaces), self.mixed(self.other, self.in_spaces)
