r"""How much of what a head reads can be recovered linearly from what it passes on.

Row vectors. At query i a head reads the mixture ``a_i = sum_j P_ij x_j`` of the layer's inputs,
and passes on ``z_i = a_i W_V + b_V``. Ridge maps are fitted on half of the sentences and judged on
the other half::

    whole             z -> a           all d_model dimensions of the mixture
    directions        a G -> a         the same through d_head random directions, G Gaussian
    token             z -> x_top       the state of the word that gets the largest weight
    token_directions  a G -> x_top     the same through random directions
    value             z -> x_top U     that state in the space that W_V reads
    gaussian          a G -> x_top V   that state in the space that G reads: the same pattern, with
                                       a W_V of Gaussian entries
    other             z -> x_other U   as ``value``, of a word of the sentence drawn at random

``U`` and ``V`` have orthonormal columns that span those of W_V and of G; every head has a G of its
own. That ``a U`` can be read from z is no finding: z is ``a W_V + b_V``, so its R^2 is 1 whatever
the head does. None of the seven is 1 by construction: z has d_head numbers and ``a`` has d_model,
and of the states that z mixes only one is asked for.

Every target is a mixture of states, ``t_i = sum_j M_ij x_j`` with M the pattern or a single 1 in
each row. So no target of d_model dimensions is ever written out, query by query and head by head:

* a sum for fitting is ``sum_i p_i t_i^T = sum_j (sum_i M_ij p_i) x_j^T``, one product with the
  layer's states for all heads and predictors p;
* of ``|t - y - p B|^2 = |t - y|^2 - 2 p B (t - y)^T + |p B|^2`` the first term needs the products
  of states with each other, and ``B t^T`` those of the states with the rows of B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from headscope.analyses.flow.clustered import Clustered
from headscope.core.accumulator import Array
from headscope.core.activations import Activations
from headscope.core.rounding import VARIANCE, first_largest
from headscope.core.widest import exact
from headscope.data.word_pieces import EncodedSentence
from headscope.stats.spectra import column_basis

#: Each R^2 by its predictor (z, or a G instead) and its target (the mixture, the top word's
#: state, and of the top word and of another one what lies in the space that the predictor reads).
TARGETS = {
    "whole": (0, 0),
    "token": (0, 1),
    "value": (0, 2),
    "other": (0, 3),
    "directions": (1, 0),
    "token_directions": (1, 1),
    "gaussian": (1, 2),
}
#: Shape of a sentence's errors for each head: three sums of squares, targets, predictors.
ERRORS = (3, 4, 2)
FOLDS = 5
#: In units of the mean variance of the predictors.
PENALTIES = tuple(10 ** (exponent / 2) for exponent in range(-8, 7))
SKETCH = 32  # Directions of a target that a penalty is chosen by, at most.
#: Errors that differ by less than this share of what there is to explain are equal: the larger
#: penalty is taken.
_EQUAL = 1e-9
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class LayerSpaces:
    """The subspaces that W_V of one layer's heads read, and random ones of that size."""

    G: Tensor  # (n_heads, d_in, d_v). Random directions.
    U: Tensor  # Orthonormal columns that span those of each head's W_V, zeros beyond its rank.
    #: (n_heads, d_v, d_v). G times this is V: orthonormal columns that span those of G.
    to_V: Tensor
    sketch: Tensor  # (d_in, at most SKETCH). Random orthonormal columns.

    @classmethod
    def of(cls, W_V: Tensor, seed: int) -> LayerSpaces:
        """Take them from a layer's W_V (n_heads, d_in, d_v) on the CPU; ``seed`` is of G."""
        generator = torch.Generator().manual_seed(seed)
        d_in, d_v = W_V.shape[1:]
        sketch = torch.randn(d_in, min(d_in, SKETCH), generator=generator, dtype=torch.float64)
        G = torch.randn(W_V.shape, generator=generator, dtype=torch.float64)
        U = column_basis(W_V)[0] if len(W_V) else W_V.double()
        U = F.pad(U, [0, d_v - U.shape[-1]])  # heads that are wider than the states
        squares, vectors = torch.linalg.eigh(G.mT @ G)
        inside = squares > VARIANCE * squares[..., -1:]
        to_V = vectors * (inside * squares.clamp(min=_TINY).rsqrt())[..., None, :]
        return cls(G, U, to_V, torch.linalg.qr(sketch)[0])


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
    others = []
    for sentence in sentences:
        is_word = sentence.word_of >= 0
        positions = np.flatnonzero(is_word)
        visible = np.full(len(positions), len(positions))
        if causal:
            visible = np.arange(1, len(positions) + 1)
        other = np.zeros(len(sentence), dtype=np.int64)
        other[positions] = positions[(random.random(len(positions)) * visible).astype(np.int64)]
        content.append(torch.from_numpy(is_word))
        others.append(torch.from_numpy(other))
    return WordPositions(
        content=pad_sequence(content, batch_first=True).to(device),
        other=pad_sequence(others, batch_first=True).to(device),
    )


class LayerChunk:
    """What the words of a chunk of one layer read and pass on, in float64.

    Heads come first: ``tokens`` are the positions of all of the chunk's sentences in one axis.
    """

    def __init__(
        self, site: Activations, x: Tensor, words: WordPositions, spaces: LayerSpaces
    ) -> None:
        self.rows = site.rows
        self.heads = site.heads
        content = words.content[site.rows]
        top = first_largest(site.pattern.masked_fill(~content[:, None, None, :], -1.0))[1]
        states = exact(x[site.rows])
        self.sizes = states.shape[:2]  # rows, pos
        self.x = states.flatten(0, 1)  # (tokens, d_in)
        self.gram = states @ states.mT  # (rows, pos, pos): products of the states of a sentence
        self.words = content.to(states.device).to(states).flatten()  # (tokens,): 1 at words, else 0
        #: (heads, rows, pos, pos): M of the targets, the last of which is that of every head.
        self.pattern = exact(site.pattern).transpose(0, 1).contiguous()
        self.top, self.other = (
            F.one_hot(index.to(states.device), self.sizes[1]).to(states)
            for index in (top.transpose(0, 1), words.other[site.rows])
        )
        G, U, to_V = (part[site.heads].to(states) for part in (spaces.G, spaces.U, spaces.to_V))
        through_U, through_G = (torch.einsum("ti,hid->htd", self.x, part) for part in (U, G))
        #: (2, heads, tokens, d_v): the states in U, in V.
        self.in_spaces = torch.stack([through_U, through_G @ to_V])
        z = exact(site.z).transpose(0, 1).flatten(1, 2)
        #: (2, heads, tokens, d_v): z, a G.
        self.predictors = torch.stack([z, self.mixed(self.pattern, through_G)])

    def mixed(self, M: Tensor, states: Tensor) -> Tensor:
        """Mix states (..., tokens, width) of each sentence by M."""
        by_sentence = states.reshape(*states.shape[:-2], *self.sizes, states.shape[-1])
        return (M @ by_sentence).flatten(-3, -2)

    @property
    def wide(self) -> tuple[Tensor, Tensor]:
        """M of the two targets of d_in dimensions, (heads, rows, pos, pos)."""
        return self.pattern, self.top

    @property
    def narrow(self) -> tuple[Tensor, Tensor]:
        """The two targets of d_v dimensions, (2, heads, tokens, d_v)."""
        return self.mixed(self.top, self.in_spaces), self.mixed(self.other, self.in_spaces)


class LayerSums:
    """Sums that the ridge maps of one layer are fitted from.

    They are of products of (1, predictor) with (1, predictor, four targets), for both predictors of
    every head. Those of each fold, for cross-validation, see a target of d_in dimensions through
    the sketch only; the full products are summed separately.
    """

    def __init__(self, spaces: LayerSpaces) -> None:
        n_heads, d_in, d_v = spaces.G.shape
        self.spaces = spaces
        widths = (*[spaces.sketch.shape[1]] * 2, d_v, d_v)
        ends = np.cumsum([1 + d_v, *widths]).tolist()
        self._columns = [slice(*pair) for pair in pairwise(ends)]  # of each target
        shape = FOLDS, 2, n_heads
        self._folds = torch.zeros(*shape, 1 + d_v, ends[-1], dtype=torch.float64)
        self._squares = torch.zeros(*shape, len(widths), dtype=torch.float64)
        self._wide = torch.zeros(2, 2, n_heads, 1 + d_v, d_in, dtype=torch.float64)

    def update(self, chunk: LayerChunk, folds: Tensor) -> None:
        """Add the words of a chunk; ``folds`` (rows,) are those of its sentences."""
        x = chunk.x
        words = chunk.words[:, None]
        sketched = x @ self.spaces.sketch.to(x)
        seen = (chunk.mixed(M, sketched).expand(2, -1, -1, -1) for M in chunk.wide)
        predictors = F.pad(chunk.predictors, [1, 0], value=1.0) * words
        columns = [predictors, *(target * words for target in (*seen, *chunk.narrow))]
        squares = torch.stack([target.square().sum(-1) for target in columns[1:]], -1)
        for fold in set(folds.tolist()):
            of_fold = (folds == fold).repeat_interleave(chunk.sizes[1]).nonzero()[:, 0].to(x.device)
            every = torch.cat([part[:, :, of_fold] for part in columns], -1)
            products = every[..., : predictors.shape[-1]].mT @ every
            self._folds[fold, :, chunk.heads] += products.cpu()
            self._squares[fold, :, chunk.heads] += squares[:, :, of_fold].sum(2).cpu()
        for sums, M in zip(self._wide, chunk.wide, strict=True):
            by_key = chunk.mixed(M.mT, predictors)
            sums[:, chunk.heads] += torch.einsum("khtp,ti->khpi", by_key, x).cpu()

    def solve(self) -> LayerMaps:
        """Fit a map to each target, with the penalty that has the least cross-validation error."""
        total = self._folds.sum(0)
        d_v = self._folds.shape[-2] - 1
        ridge = Ridge(total)
        rest = Ridge(total - self._folds)
        # Of the fold that is left out, around the means of the others and by their eigenvectors.
        test = rest.vectors.mT @ _centred(self._folds, rest.mean)
        predictors = test[..., 1 : 1 + d_v] @ rest.vectors
        joint = rest.vectors.mT @ rest.joint
        sums = self._folds[..., 0, :]
        around = sums[..., :1] * rest.mean.square() - 2 * rest.mean * sums
        shrunk = torch.stack([rest.shrunk(penalty) for penalty in PENALTIES])
        penalties = []
        means = []
        weights = []
        for i, columns in enumerate(self._columns):
            fitted = joint[..., columns]
            target = test[..., columns]
            size = self._squares[..., i] + around[..., columns].sum(-1)
            linear = (shrunk * (fitted * target).sum(-1)).sum(-1)
            gram = fitted @ fitted.mT * predictors
            square = torch.einsum("pfkhi,fkhij,pfkhj->pfkh", shrunk, gram, shrunk)
            errors = (size - 2 * linear + square).sum(1)  # (penalties, 2, n_heads)
            equal = errors <= errors.amin(0) + _EQUAL * size.sum(0)
            last = equal.to(torch.uint8).flip(0).argmax(0)  # ties go to the largest penalty
            penalty = torch.tensor(PENALTIES, dtype=torch.float64)[len(PENALTIES) - 1 - last]
            mean = ridge.mean[..., columns]
            covariance = ridge.joint[..., columns]
            if i < len(self._wide):  # all of its dimensions
                mean, products = torch.split(self._wide[i] / ridge.n, [1, d_v], -2)
                covariance = products - ridge.mean[..., 1 : 1 + d_v, None] * mean
                mean = mean[..., 0, :]
            by_vector = ridge.vectors * ridge.shrunk(penalty)[..., None, :]
            penalties.append(penalty)
            means.append(mean)
            weights.append(by_vector @ ridge.vectors.mT @ covariance)
        return LayerMaps(self.spaces, ridge.mean[..., 1 : 1 + d_v], means, weights, penalties)


class Ridge:
    """Ridge regressions by the eigenvectors of the predictors' covariance.

    ``sums`` (..., 1 + d, columns) are those of products of (1, predictor) with columns that begin
    with (1, predictor). ``mean`` is that of the columns, ``joint`` (..., d, columns) the covariance
    of predictors and columns; ``values`` (..., d) are zero where predictors vary by rounding only.
    """

    def __init__(self, sums: Tensor) -> None:
        d = sums.shape[-2] - 1
        self.n = sums[..., :1, :1].clamp(min=1)
        self.mean = (sums[..., :1, :] / self.n)[..., 0, :]
        self.joint = _centred(sums, self.mean) / self.n
        values, self.vectors = torch.linalg.eigh(self.joint[..., 1 : 1 + d])
        # A constant predictor has a variance by rounding, up to this share of its squared length.
        square = (sums[..., 1:, 1 : 1 + d] / self.n).diagonal(dim1=-2, dim2=-1)
        constant = VARIANCE * square.sum(-1, keepdim=True)
        self.values = torch.where(values > constant, values, 0.0)

    def shrunk(self, penalty: Tensor | float) -> Tensor:
        """Return 1 / (value + penalty), 0 for what never varies; ``penalty`` (...).

        The penalty is in units of the mean variance of the predictors.
        """
        ridge = (self.values.mean(-1) * penalty)[..., None]
        return (self.values > 0) / (self.values + ridge).clamp(min=_TINY)


def _centred(sums: Tensor, mean: Tensor) -> Tensor:
    """Centre both factors of sums of products, as :class:`Ridge` has them, on ``mean``.

    Shapes: ``mean`` (..., columns); returns (..., d, columns).
    """
    right = sums - sums[..., :1] * mean[..., None, :]
    return right[..., 1:, :] - mean[..., 1 : sums.shape[-2], None] * right[..., :1, :]


@dataclass(frozen=True)
class LayerMaps:
    """The fitted maps of one layer: a target's mean + (predictor - mean) times its weight."""

    spaces: LayerSpaces
    mean: Tensor  # (2, n_heads, d_v): of the predictors
    means: list[Tensor]  # (2, n_heads, width) of each target
    weights: list[Tensor]  # (2, n_heads, d_v, width)
    penalties: list[Tensor]  # (2, n_heads), in units of the mean variance of the predictor

    def errors(self, chunk: LayerChunk) -> Tensor:
        """Return sums of squares over the words of each sentence, (rows, 3, targets, 2, heads).

        The three are of the maps' errors, of the distances from their means, and of the targets.
        """
        x = chunk.x
        heads = chunk.heads
        results = []
        predictor = chunk.predictors - self.mean[:, heads, None].to(x)
        means, weights = (
            [part[:, heads].to(x) for part in parts] for parts in (self.means, self.weights)
        )
        for mean, weight, M in zip(means, weights, chunk.wide, strict=False):
            square = ((M @ chunk.gram) * M).sum(-1).flatten(1).expand(2, -1, -1)
            with_mean = chunk.mixed(M, torch.einsum("ti,khi->kht", x, mean)[..., None])[..., 0]
            distance = square - 2 * with_mean + mean.square().sum(-1, keepdim=True)
            # The centred target times the rows of the weight.
            target = chunk.mixed(M, torch.einsum("ti,khdi->khtd", x, weight))
            target = target - (weight @ mean[..., None]).mT
            change = (predictor @ (weight @ weight.mT) - 2 * target) * predictor
            results.append(torch.stack([distance + change.sum(-1), distance, square]))
        for mean, weight, target in zip(means[2:], weights[2:], chunk.narrow, strict=True):
            centred = target - mean[..., None, :]
            parts = (centred - predictor @ weight, centred, target)
            results.append(torch.stack([part.square().sum(-1) for part in parts]))
        squares = torch.stack(results, 1) * chunk.words  # (3, targets, 2, heads, tokens)
        return squares.view(*squares.shape[:-1], *chunk.sizes).sum(-1).movedim(-1, 0)


def explained(errors: Array) -> dict[str, Clustered]:
    """Return held-out R^2 of every head, by target: 1 - error / distance from the fit's mean.

    ``errors`` (sentences, 3, targets, 2, heads of all layers) are those of
    :meth:`LayerMaps.errors` on other sentences; NaN where a target never changes.
    """
    r2 = {}
    for name, (predictor, target) in TARGETS.items():
        error, distance, square = np.moveaxis(errors[:, :, target, predictor], 1, 0)
        varies = distance.sum(0) > VARIANCE * square.sum(0)
        r2[name] = Clustered.ratio(error * varies, distance * varies).rest()
    return r2
