r"""How much of what a head reads can be recovered linearly from what it passes on.

Row vectors. At query i a head with pattern P reads the mixture ``a_i = sum_j P_ij x_j`` of the
layer's inputs, and passes on ``z_i = a_i W_V + b_V``. Maps from one of two *predictors*, z or
``a G``, to one of four *targets* are fitted by ridge regression on half of the sentences, and
judged by R^2 on the other half. G is a Gaussian matrix of the shape of W_V, another one for every
head; U and V have orthonormal columns that span those of W_V and of G::

    name              map                the target
    whole             z   -> a           the mixture, all of its d_model dimensions
    directions        a G -> a           the same
    token             z   -> x_top       the state of the word that gets the largest weight
    token_directions  a G -> x_top       the same
    value             z   -> x_top U     that state in the space that W_V reads
    gaussian          a G -> x_top V     that state in the space that G reads
    other             z   -> x_other U   the state of a word of the sentence drawn at random

That ``a U`` can be read from z is no finding: z is ``a W_V + b_V``, so its R^2 is 1 whatever the
head does. None of the seven is 1 by construction: z has d_head numbers and ``a`` has d_model, and
of the states that z mixes only one is asked for.

Every target is a mixture of states, ``t_i = sum_j M_ij x_j`` with M the pattern or a single 1 in
each row. So the *wide* targets, those of d_model dimensions (d_in in shapes), are never written out
query by query and head by head:

* a sum for fitting is ``sum_i p_i t_i^T = sum_j (sum_i M_ij p_i) x_j^T``, one product with the
  layer's states for all heads and predictors p;
* of ``|t - y - p B|^2 = |t - y|^2 - 2 p B (t - y)^T + |p B|^2`` the first term needs the products
  of states with each other, and ``B t^T`` those of the states with the rows of B.

In the order of use: :class:`LayerSums` adds up the first half, chunk by chunk (a
:class:`~headscope.analyses.flow.read_words.LayerChunk`: some heads in some sentences), and fits
:class:`LayerMaps` by :class:`Ridge`; :func:`explained` turns the maps' errors on the second half
into R^2. The axis of length 2 in shapes is that of the predictors: z and ``a G``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.analyses.flow.clustered import Clustered
from headscope.analyses.flow.read_words import LayerChunk, LayerSpaces
from headscope.core.accumulator import Array
from headscope.core.rounding import VARIANCE

#: The predictors, by index: z, and ``a G``.
_Z = 0
_RANDOM = 1
#: The targets, by index. Two are wide: the mixture and the state of the top word, d_in dimensions.
_MIXTURE = 0
_TOP = 1
#: Two are narrow: the top word and a random one in the space that the predictor reads (U for z, V
#: for ``a G``), d_v dimensions.
_TOP_AS_READ = 2
_OTHER_AS_READ = 3
#: Predictor and target of each R^2.
TARGETS = {
    "whole": (_Z, _MIXTURE),
    "token": (_Z, _TOP),
    "value": (_Z, _TOP_AS_READ),
    "other": (_Z, _OTHER_AS_READ),
    "directions": (_RANDOM, _MIXTURE),
    "token_directions": (_RANDOM, _TOP),
    "gaussian": (_RANDOM, _TOP_AS_READ),
}
#: Shape of what is measured of a head on a sentence: three sums of squares (of the map's errors, of
#: distances from the mean, of the target itself), by target, by predictor.
ERRORS = (3, 4, 2)
FOLDS = 5
#: Ridge penalties that are tried, in units of the mean variance of the predictors.
PENALTIES = tuple(10 ** (exponent / 2) for exponent in range(-8, 7))
#: Cross-validation errors that differ by less than this share of what there is to explain count as
#: equal, and the larger penalty is taken.
_EQUAL = 1e-9
_TINY = torch.finfo(torch.float64).tiny


class LayerSums:
    """Sums over words that the ridge maps of one layer are fitted from.

    Each word has a line of numbers for each head and predictor::

        1 | predictor | mixture | top word | top word as read | random word as read
        1 | d_v       | sketch  | sketch   | d_v              | d_v                   numbers

    and the products of its first 1 + d_v numbers with all of them are added up, fold by fold of a
    cross-validation that chooses the penalties. In this line a wide target is projected on a few
    random directions, the sketch; its full products are added up once, over all folds.
    """

    def __init__(self, spaces: LayerSpaces) -> None:
        n_heads, d_in, d_v = spaces.G.shape
        self.spaces = spaces
        self._d_v = d_v
        d_sketch = spaces.sketch.shape[1]
        widths = (d_sketch, d_sketch, d_v, d_v)
        bounds = np.cumsum([1 + d_v, *widths]).tolist()
        n_columns = bounds[-1]
        #: Which columns of the line each target has
        self._target_columns = [slice(start, stop) for start, stop in pairwise(bounds)]
        #: (folds, predictors, n_heads, 1 + d_v, columns): products of (1, predictor) with the line
        self._products = torch.zeros(FOLDS, 2, n_heads, 1 + d_v, n_columns, dtype=torch.float64)
        #: (folds, predictors, n_heads, targets): squared lengths of the targets in the line
        self._squares = torch.zeros(FOLDS, 2, n_heads, len(widths), dtype=torch.float64)
        #: (wide targets, predictors, n_heads, 1 + d_v, d_in): products with whole wide targets
        self._wide_products = torch.zeros(2, 2, n_heads, 1 + d_v, d_in, dtype=torch.float64)

    def update(self, chunk: LayerChunk, folds: Tensor) -> None:
        """Add the words of a chunk; ``folds`` (rows,) is the fold of each of its sentences."""
        # The lines of numbers, each part (2, heads, tokens, width); zeros where no word is
        x = chunk.x
        is_word = chunk.is_word[:, None]
        predictors = F.pad(chunk.predictors, [1, 0], value=1.0) * is_word  # (1, predictor)
        sketched = x @ self.spaces.sketch.to(x)
        wide_targets = [chunk.mixed(M, sketched).expand(2, -1, -1, -1) for M in chunk.wide_mixtures]
        targets = [target * is_word for target in (*wide_targets, *chunk.narrow_targets)]
        line_parts = (predictors, *targets)

        # Their products and squares, fold by fold
        squares = torch.stack([target.square().sum(-1) for target in targets], -1)
        fold_of_token = folds.repeat_interleave(chunk.sizes[1])
        for fold in set(folds.tolist()):
            in_fold = (fold_of_token == fold).nonzero()[:, 0].to(x.device)
            lines = torch.cat([numbers[:, :, in_fold] for numbers in line_parts], -1)
            products = lines[..., : 1 + self._d_v].mT @ lines
            self._products[fold, :, chunk.heads] += products.cpu()
            self._squares[fold, :, chunk.heads] += squares[:, :, in_fold].sum(2).cpu()

        # Products with whole wide targets: sum_j (sum_i M_ij p_i) x_j^T
        for sums, M in zip(self._wide_products, chunk.wide_mixtures, strict=True):
            by_key = chunk.mixed(M.mT, predictors)  # (2, heads, tokens, 1 + d_v)
            sums[:, chunk.heads] += torch.einsum("khtp,ti->khpi", by_key, x).cpu()

    def solve(self) -> LayerMaps:
        """Fit a map to each target, with the penalty that has the least cross-validation error."""
        ridge = Ridge(self._products.sum(0))
        predictor_mean = ridge.mean[..., ridge.predictor]
        penalties = self._best_penalties()
        means = []
        weights = []
        for i, columns in enumerate(self._target_columns):
            if i in (_MIXTURE, _TOP):  # all of its dimensions, not those of the sketch
                products = self._wide_products[i] / ridge.n
                mean = products[..., 0, :]  # the products with 1
                covariance = products[..., 1:, :] - predictor_mean[..., None] * mean[..., None, :]
            else:
                mean = ridge.mean[..., columns]
                covariance = ridge.joint[..., columns]
            # (covariance of the predictors + penalty)^-1, by their eigenvectors
            scaled_vectors = ridge.vectors * ridge.shrunk(penalties[i])[..., None, :]
            inverse = scaled_vectors @ ridge.vectors.mT
            means.append(mean)
            weights.append(inverse @ covariance)
        return LayerMaps(self.spaces, predictor_mean, means, weights, penalties)

    def _best_penalties(self) -> list[Tensor]:
        """Choose a penalty for each target, (2, n_heads), by cross-validation over the folds.

        The map that the other folds give is tested on each fold, from the sums of products alone.
        """
        # The other folds: their covariances, in coordinates of the eigenvectors of the predictors
        other_folds = Ridge(self._products.sum(0) - self._products)
        joint = other_folds.vectors.mT @ other_folds.joint  # (folds, 2, n_heads, d_v, columns)
        # (penalties, folds, 2, n_heads, d_v)
        shrunk = torch.stack([other_folds.shrunk(penalty) for penalty in PENALTIES])
        # The fold itself: its products around the means of the other folds, in these coordinates
        tested = other_folds.vectors.mT @ _centred(self._products, other_folds.mean)
        tested_predictors = tested[..., other_folds.predictor] @ other_folds.vectors
        # What centring adds to the squares: |t - m|^2 = |t|^2 + |m|^2 - 2 m t^T
        sums = self._products[..., 0, :]
        n_words = sums[..., :1]
        added_by_centring = n_words * other_folds.mean.square() - 2 * other_folds.mean * sums

        penalties = []
        for i, columns in enumerate(self._target_columns):
            # In these coordinates the map is B = shrunk * fitted, row by row. Its errors
            # |t - p B|^2 = |t|^2 - 2 t (p B)^T + |p B|^2 are summed over the words p of the fold,
            # for every penalty a, fold f, predictor k and head h; i and j are eigenvectors.
            fitted = joint[..., columns]
            size = self._squares[..., i] + added_by_centring[..., columns].sum(-1)
            product = (shrunk * (fitted * tested[..., columns]).sum(-1)).sum(-1)
            gram = fitted @ fitted.mT * tested_predictors
            square = torch.einsum("afkhi,fkhij,afkhj->afkh", shrunk, gram, shrunk)
            errors = (size - 2 * product + square).sum(1)  # (penalties, 2, n_heads)
            # The last of the smallest errors: of equal ones the largest penalty
            equal = errors <= errors.amin(0) + _EQUAL * size.sum(0)
            from_last = equal.to(torch.uint8).flip(0).argmax(0)
            index = len(PENALTIES) - 1 - from_last
            penalties.append(torch.tensor(PENALTIES, dtype=torch.float64)[index])
        return penalties


class Ridge:
    """Ridge regressions on a predictor of d numbers, by the eigenvectors of its covariance.

    Made of sums of products, (..., 1 + d, columns): of (1, predictor) with columns that begin with
    (1, predictor) too. So the first line of the sums has the sum of each column, and begins with
    the number of words.
    """

    def __init__(self, sums: Tensor) -> None:
        d = sums.shape[-2] - 1
        self.predictor = slice(1, 1 + d)  # its columns
        self.n = sums[..., :1, :1].clamp(min=1)  # (..., 1, 1): words that were counted
        self.mean = (sums[..., :1, :] / self.n)[..., 0, :]  # (..., columns)
        self.joint = _centred(sums, self.mean) / self.n  # (..., d, columns): covariances
        # Eigenvalues (..., d) and eigenvectors of the covariance of the predictor with itself
        values, self.vectors = torch.linalg.eigh(self.joint[..., self.predictor])
        # A constant predictor has a variance by rounding, up to this share of its squared length.
        square = (sums[..., 1:, self.predictor] / self.n).diagonal(dim1=-2, dim2=-1)
        constant = VARIANCE * square.sum(-1, keepdim=True)
        self.values = torch.where(values > constant, values, 0.0)

    def shrunk(self, penalty: Tensor | float) -> Tensor:
        """Return 1 / (eigenvalue + penalty), (..., d); 0 where the predictor never varies.

        The penalty, one number or (...), is in units of the mean variance of the predictor.
        """
        ridge = (self.values.mean(-1) * penalty)[..., None]
        inverse = 1 / (self.values + ridge).clamp(min=_TINY)
        return torch.where(self.values > 0, inverse, 0.0)


def _centred(sums: Tensor, mean: Tensor) -> Tensor:
    """Return the sums of products as if ``mean`` (..., columns) had been taken off every word.

    ``sums`` (..., 1 + d, columns) are those of :class:`Ridge`; returns (..., d, columns).
    """
    column_centred = sums - sums[..., :1] * mean[..., None, :]
    predictor_mean = mean[..., 1 : sums.shape[-2], None]
    return column_centred[..., 1:, :] - predictor_mean * column_centred[..., :1, :]


@dataclass(frozen=True)
class LayerMaps:
    """The fitted maps of one layer: target mean + (predictor - predictor mean) times weight.

    The lists have an entry for each of the four targets.
    """

    spaces: LayerSpaces
    predictor_mean: Tensor  # (2, n_heads, d_v)
    means: list[Tensor]  # (2, n_heads, width): of the target
    weights: list[Tensor]  # (2, n_heads, d_v, width)
    penalties: list[Tensor]  # (2, n_heads), in units of the mean variance of the predictor

    def errors(self, chunk: LayerChunk) -> Tensor:
        """Return sums of squares over the words of each sentence, (rows, 3, targets, 2, heads).

        The three are of the maps' errors, of the distances from their means, and of the targets.
        """
        x = chunk.x
        means = [mean[:, chunk.heads].to(x) for mean in self.means]
        weights = [weight[:, chunk.heads].to(x) for weight in self.weights]
        predictor = chunk.predictors - self.predictor_mean[:, chunk.heads, None].to(x)
        # The three squares of each word, (3, 2, heads, tokens) by target: first the wide targets
        by_target = [
            _squares_of_wide(chunk, M, predictor, mean, weight)
            for M, mean, weight in zip(chunk.wide_mixtures, means[:2], weights[:2], strict=True)
        ]
        for target, mean, weight in zip(chunk.narrow_targets, means[2:], weights[2:], strict=True):
            centred = target - mean[..., None, :]
            error = centred - predictor @ weight
            squares = [vectors.square().sum(-1) for vectors in (error, centred, target)]
            by_target.append(torch.stack(squares))
        squares_of_words = torch.stack(by_target, 1) * chunk.is_word
        # (3, targets, 2, heads, tokens) -> (3, targets, 2, heads, rows)
        by_sentence = squares_of_words.view(*squares_of_words.shape[:-1], *chunk.sizes).sum(-1)
        return by_sentence.movedim(-1, 0)


def _squares_of_wide(
    chunk: LayerChunk, M: Tensor, predictor: Tensor, mean: Tensor, weight: Tensor
) -> Tensor:
    """Return the three squares of a wide target t = M x, which is never written out.

    ``M`` (heads, rows, pos, pos) mixes the states, ``predictor`` p (2, heads, tokens, d_v) is
    centred, ``mean`` y (2, heads, d_in) and ``weight`` B (2, heads, d_v, d_in) are the map's.
    Returns (3, 2, heads, tokens): of the error, of the distance from the mean, and of the target.
    """
    # |t|^2, from the products of states
    square = ((M @ chunk.gram) * M).sum(-1).flatten(1).expand(2, -1, -1)
    # |t - y|^2 = |t|^2 - 2 t y^T + |y|^2
    states_times_mean = torch.einsum("ti,khi->kht", chunk.x, mean)[..., None]
    target_times_mean = chunk.mixed(M, states_times_mean)[..., 0]
    distance = square - 2 * target_times_mean + mean.square().sum(-1, keepdim=True)
    # |t - y - p B|^2 = |t - y|^2 + (p B B^T - 2 (t - y) B^T) p^T
    target_times_weight = chunk.mixed(M, torch.einsum("ti,khdi->khtd", chunk.x, weight))
    centred = target_times_weight - (weight @ mean[..., None]).mT
    change = (predictor @ (weight @ weight.mT) - 2 * centred) * predictor
    return torch.stack([distance + change.sum(-1), distance, square])


def explained(errors: Array) -> dict[str, Clustered]:
    """Return held-out R^2 of every head, by name: 1 - error / distance from the fit's mean.

    ``errors`` (sentences, 3, targets, 2, heads of all layers) are those of
    :meth:`LayerMaps.errors` on other sentences; NaN where a target never changes.
    """
    r2 = {}
    for name, (predictor, target) in TARGETS.items():
        # each (sentences, heads)
        error, distance, square = np.moveaxis(errors[:, :, target, predictor], 1, 0)
        varies = distance.sum(0) > VARIANCE * square.sum(0)
        unexplained = Clustered.ratio(np.where(varies, error, 0), np.where(varies, distance, 0))
        r2[name] = unexplained.rest()
    return r2
