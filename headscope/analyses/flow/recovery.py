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

:class:`LayerSums` adds up the first half, and fits :class:`LayerMaps` by :class:`Ridge`; the maps'
errors on the second half :func:`explained` turns into R^2. The axis of length 2 in shapes is that
of the predictors: z and ``a G``.
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
#: The targets, by index: two of d_in dimensions, the mixture and the state of the top word; and two
#: of d_v, what of the top word and of another one lies in the space that the predictor reads.
_MIXTURE = 0
_TOP = 1
_TOP_AS_READ = 2
_OTHER_AS_READ = 3
#: Each R^2 by its predictor and its target.
TARGETS = {
    "whole": (_Z, _MIXTURE),
    "token": (_Z, _TOP),
    "value": (_Z, _TOP_AS_READ),
    "other": (_Z, _OTHER_AS_READ),
    "directions": (_RANDOM, _MIXTURE),
    "token_directions": (_RANDOM, _TOP),
    "gaussian": (_RANDOM, _TOP_AS_READ),
}
#: Shape of a sentence's errors for each head: three sums of squares, targets, predictors.
ERRORS = (3, 4, 2)
FOLDS = 5
#: In units of the mean variance of the predictors.
PENALTIES = tuple(10 ** (exponent / 2) for exponent in range(-8, 7))
#: Errors that differ by less than this share of what there is to explain are equal: the larger
#: penalty is taken.
_EQUAL = 1e-9
_TINY = torch.finfo(torch.float64).tiny


class LayerSums:
    """Sums that the ridge maps of one layer are fitted from.

    They are of products of (1, predictor) with (1, predictor, four targets), for both predictors of
    every head. For cross-validation they are kept by fold, and there a wide target, of d_in
    dimensions, is seen through the few directions of a sketch; its full products are summed over
    all folds.
    """

    def __init__(self, spaces: LayerSpaces) -> None:
        n_heads, d_in, d_v = spaces.G.shape
        self.spaces = spaces
        self._d_v = d_v
        d_sketch = spaces.sketch.shape[1]
        widths = (d_sketch, d_sketch, d_v, d_v)
        starts = np.cumsum([1 + d_v, *widths]).tolist()
        self._columns = [slice(start, stop) for start, stop in pairwise(starts)]  # of each target
        #: (folds, predictors, n_heads, 1 + d_v, columns): products of (1, predictor) with the rest
        self._folds = torch.zeros(FOLDS, 2, n_heads, 1 + d_v, starts[-1], dtype=torch.float64)
        #: (folds, predictors, n_heads, targets): squares of the targets, wide ones by the sketch
        self._squares = torch.zeros(FOLDS, 2, n_heads, len(widths), dtype=torch.float64)
        #: (targets, predictors, n_heads, 1 + d_v, d_in): full products with the two wide targets
        self._wide = torch.zeros(2, 2, n_heads, 1 + d_v, d_in, dtype=torch.float64)

    def update(self, chunk: LayerChunk, folds: Tensor) -> None:
        """Add the words of a chunk; ``folds`` (rows,) are those of its sentences."""
        x = chunk.x
        words = chunk.words[:, None]
        predictors = F.pad(chunk.predictors, [1, 0], value=1.0) * words
        # Products of each fold, of wide targets through the sketch: (2, heads, tokens, width)
        sketched = x @ self.spaces.sketch.to(x)
        wide_targets = [chunk.mixed(M, sketched).expand(2, -1, -1, -1) for M in chunk.wide_mixtures]
        targets = [target * words for target in (*wide_targets, *chunk.narrow_targets)]
        tables = (predictors, *targets)
        squares = torch.stack([target.square().sum(-1) for target in targets], -1)
        fold_of_token = folds.repeat_interleave(chunk.sizes[1])
        for fold in set(folds.tolist()):
            in_fold = (fold_of_token == fold).nonzero()[:, 0].to(x.device)
            columns = torch.cat([table[:, :, in_fold] for table in tables], -1)
            products = columns[..., : 1 + self._d_v].mT @ columns
            self._folds[fold, :, chunk.heads] += products.cpu()
            self._squares[fold, :, chunk.heads] += squares[:, :, in_fold].sum(2).cpu()
        # Full products of wide targets: sum_j (sum_i M_ij p_i) x_j^T
        for sums, M in zip(self._wide, chunk.wide_mixtures, strict=True):
            by_key = chunk.mixed(M.mT, predictors)  # (2, heads, tokens, 1 + d_v)
            sums[:, chunk.heads] += torch.einsum("khtp,ti->khpi", by_key, x).cpu()

    def solve(self) -> LayerMaps:
        """Fit a map to each target, with the penalty that has the least cross-validation error."""
        ridge = Ridge(self._folds.sum(0))
        predictor_mean = ridge.mean[..., 1 : 1 + self._d_v]
        penalties = self._best_penalties()
        means = []
        weights = []
        for i, columns in enumerate(self._columns):
            if i in (_MIXTURE, _TOP):  # all of its dimensions, not those of the sketch
                products = self._wide[i] / ridge.n
                mean = products[..., 0, :]
                covariance = products[..., 1:, :] - predictor_mean[..., None] * products[..., :1, :]
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

        A fold's error is computed from its sums: of the map that the other folds give, in the
        coordinates of their eigenvectors and around their means.
        """
        # The other folds, whose map is tested: covariances in coordinates of their eigenvectors
        rest = Ridge(self._folds.sum(0) - self._folds)
        joint = rest.vectors.mT @ rest.joint
        shrunk = torch.stack([rest.shrunk(penalty) for penalty in PENALTIES])
        # The fold itself, around their means
        test = rest.vectors.mT @ _centred(self._folds, rest.mean)
        test_predictors = test[..., 1 : 1 + self._d_v] @ rest.vectors
        sums = self._folds[..., 0, :]
        around_mean = sums[..., :1] * rest.mean.square() - 2 * rest.mean * sums
        penalties = []
        for i, columns in enumerate(self._columns):
            # |t - p B|^2 = |t|^2 - 2 t (p B)^T + |p B|^2, summed over the words of the fold, for
            # every penalty p, fold f, predictor k and head h; i and j are eigenvectors.
            fitted = joint[..., columns]
            size = self._squares[..., i] + around_mean[..., columns].sum(-1)
            product = (shrunk * (fitted * test[..., columns]).sum(-1)).sum(-1)
            gram = fitted @ fitted.mT * test_predictors
            square = torch.einsum("pfkhi,fkhij,pfkhj->pfkh", shrunk, gram, shrunk)
            errors = (size - 2 * product + square).sum(1)  # (penalties, 2, n_heads)
            equal = errors <= errors.amin(0) + _EQUAL * size.sum(0)
            from_last = equal.to(torch.uint8).flip(0).argmax(0)  # ties go to the largest penalty
            index = len(PENALTIES) - 1 - from_last
            penalties.append(torch.tensor(PENALTIES, dtype=torch.float64)[index])
        return penalties


class Ridge:
    """Ridge regressions by the eigenvectors of the predictors' covariance.

    ``n`` words were counted. ``mean`` (..., columns) is that of the columns, ``joint`` (..., d,
    columns) the covariance of predictors and columns. ``values`` (..., d) and ``vectors`` are those
    of the predictors' own covariance; values are zero where predictors vary by rounding only.
    """

    def __init__(self, sums: Tensor) -> None:
        """Make them of ``sums`` (..., 1 + d, columns) of products.

        They are of (1, predictor) with columns that begin with (1, predictor), so that the first
        row are sums, and its first entry is a count.
        """
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
        inverse = 1 / (self.values + ridge).clamp(min=_TINY)
        return torch.where(self.values > 0, inverse, 0.0)


def _centred(sums: Tensor, mean: Tensor) -> Tensor:
    """Centre both factors of sums of products, as :class:`Ridge` has them, on ``mean``.

    Shapes: ``mean`` (..., columns); returns (..., d, columns).
    """
    columns_centred = sums - sums[..., :1] * mean[..., None, :]
    predictor_mean = mean[..., 1 : sums.shape[-2], None]
    return columns_centred[..., 1:, :] - predictor_mean * columns_centred[..., :1, :]


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
        means = [mean[:, chunk.heads].to(x) for mean in self.means]
        weights = [weight[:, chunk.heads].to(x) for weight in self.weights]
        predictor = chunk.predictors - self.mean[:, chunk.heads, None].to(x)
        # Three squares of each target, (3, 2, heads, tokens)
        by_target = [
            _squares_of_wide(chunk, M, predictor, mean, weight)
            for M, mean, weight in zip(chunk.wide_mixtures, means, weights, strict=False)
        ]
        for target, mean, weight in zip(chunk.narrow_targets, means[2:], weights[2:], strict=True):
            centred = target - mean[..., None, :]
            error = centred - predictor @ weight
            squares = [table.square().sum(-1) for table in (error, centred, target)]
            by_target.append(torch.stack(squares))
        squares_of_words = torch.stack(by_target, 1) * chunk.words  # (3, targets, 2, heads, tokens)
        by_sentence = squares_of_words.view(*squares_of_words.shape[:-1], *chunk.sizes).sum(-1)
        return by_sentence.movedim(-1, 0)


def _squares_of_wide(
    chunk: LayerChunk, M: Tensor, predictor: Tensor, mean: Tensor, weight: Tensor
) -> Tensor:
    """Return the three squares of a target of d_in dimensions, which is never written out.

    ``M`` (heads, rows, pos, pos) mixes the states, ``predictor`` (2, heads, tokens, d_v) is
    centred, ``mean`` (2, heads, d_in) and ``weight`` (2, heads, d_v, d_in) are the map's. Returns
    (3, 2, heads, tokens): of the error, of the distance from the mean, and of the target.
    """
    square = ((M @ chunk.gram) * M).sum(-1).flatten(1).expand(2, -1, -1)
    with_mean = chunk.mixed(M, torch.einsum("ti,khi->kht", chunk.x, mean)[..., None])[..., 0]
    distance = square - 2 * with_mean + mean.square().sum(-1, keepdim=True)
    # The centred target times the rows of the weight
    target = chunk.mixed(M, torch.einsum("ti,khdi->khtd", chunk.x, weight))
    target = target - (weight @ mean[..., None]).mT
    change = (predictor @ (weight @ weight.mT) - 2 * target) * predictor
    return torch.stack([distance + change.sum(-1), distance, square])


def explained(errors: Array) -> dict[str, Clustered]:
    """Return held-out R^2 of every head, by target: 1 - error / distance from the fit's mean.

    ``errors`` (sentences, 3, targets, 2, heads of all layers) are those of
    :meth:`LayerMaps.errors` on other sentences; NaN where a target never changes.
    """
    r2 = {}
    for name, (predictor, target) in TARGETS.items():
        error, distance, square = np.moveaxis(errors[:, :, target, predictor], 1, 0)
        varies = distance.sum(0) > VARIANCE * square.sum(0)
        unexplained = Clustered.ratio(np.where(varies, error, 0), np.where(varies, distance, 0))
        r2[name] = unexplained.rest()
    return r2
