r"""What ``rank`` measures besides singular values: asymmetry of patterns, and copying scores.

:class:`PatternAsymmetry` observes the attention patterns while a text runs through the model.
:func:`measure_copying` needs the weights alone.

*Copying.* Does a head write the token that it looks at? W_E W_V W_O W_U maps the token looked at to
the logits that the head adds (vocabulary x vocabulary). Its eigenvalues other than 0 are those of
W_O W_U W_E W_V, which has d_head rows and columns. Positive ones mean that tokens raise their own
logits; the copying score is

    sum(lambda) / sum(|lambda|),    1 all copying, -1 all suppressing, 0 neither.

References
----------
Elhage et al. 2021, A Mathematical Framework for Transformer Circuits, "Summarizing OV/QK matrices".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.rank.result import Copying
from headscope.core.accumulator import Accumulator, numpy, zeros
from headscope.core.activations import Activations
from headscope.core.widest import widest
from headscope.models.anatomy.readout import token_maps
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import SiteObserver
from headscope.stats.estimate import Estimate
from headscope.stats.factors import Factors
from headscope.stats.statistics import finite, standard_error, t_half_width

COPYING_DRAWS = 400  # Random heads, for each width d_head, that copying scores are compared with
_DRAWN_AT_ONCE = 20  # To bound the memory


class PatternAsymmetry(Accumulator, SiteObserver):
    """Mean over sequences of each head's pattern asymmetry.

    It is shown every attention layer's work on every batch: an :class:`Activations`, which holds
    the patterns of some examples and some heads.

    ``||P - P^T||_F / ||P||_F`` over real tokens, special ones included: 0 where every two tokens
    attend to each other equally (also for evenly spread attention), sqrt(2) where no token is
    attended to by one that it attends to.
    """

    def __init__(self, n_layers: int, n_heads: int) -> None:
        # Over sequences, by layer and head: their number, the sum and the sum of squares.
        self.count, self.sum, self.squares = zeros(3, n_layers, n_heads)

    def start(self, real: Tensor) -> None:
        """Set which positions of the next batch are real, (batch, pos)."""
        self._real = real

    def observe(self, site: Activations) -> None:
        """Add one chunk of patterns."""
        real_queries = self._real[site.examples][:, None, :, None]  # (examples, 1, query_pos, 1)
        # Padded keys have weight 0 already, but padded queries attend too.
        pattern = widest(site.pattern) * real_queries  # (examples, heads, query_pos, key_pos)
        gap = torch.linalg.matrix_norm(pattern - pattern.mT)
        values = numpy(gap / torch.linalg.matrix_norm(pattern))  # (examples, heads)
        layer = site.row
        self.count[layer, site.heads] += len(values)
        self.sum[layer, site.heads] += values.sum(0)
        self.squares[layer, site.heads] += (values**2).sum(0)

    def mean(self, layer: int, head: int) -> Estimate | None:
        """Return one head's mean over sequences; None where nothing was measured."""
        count = float(self.count[layer, head])
        total = float(self.sum[layer, head])
        squares = float(self.squares[layer, head])
        if count == 0 or not np.isfinite(total):
            return None
        half_width = t_half_width(standard_error(total, squares, count), count)
        return Estimate.around(total / count, finite(float(half_width)))


def copying_scores(W_V: Tensor, W_O_T: Tensor, tokens: Tensor) -> Tensor:
    """Return sum(lambda) / sum(|lambda|) of each head; NaN where all eigenvalues are 0.

    Shapes: ``W_V``, ``W_O_T`` (W_O transposed) are (n_heads, d_model, d_head); ``tokens``, the
    product W_U W_E, is (d_model, d_model).
    """
    eigenvalues = torch.linalg.eigvals(W_O_T.mT @ (tokens @ W_V))  # (n_heads, d_head)
    scores: Tensor = eigenvalues.sum(-1).real / eigenvalues.abs().sum(-1)
    return scores


def measure_copying(
    loaded: LoadedModel, factors_of: Callable[[AttentionSite], Factors], seed: int
) -> tuple[dict[int, list[float | None]], Copying]:
    """Score the heads of the stack that predicts tokens, and compare them with random heads.

    ``factors_of`` returns a layer's W_V and W_O, and the W_Q and W_K that are not read here. The
    scores come by the layer's ``row`` (its place among all measured layers), one a head. They do
    not depend on the scale of W_V and W_O, so the random heads need none.
    """
    maps = token_maps(loaded)  # the embedding W_E and the unembedding W_U
    tokens = (
        maps.product()
    )  # W_U W_E, with W_U centred: what all logits share changes no probability
    d_model = maps.embedding.shape[1]
    stack = "decoder" if loaded.encoder_decoder else loaded.stacks[0]

    # The model's heads.
    scores: dict[int, list[float | None]] = {}
    known_scores: list[float] = []
    widths = set()
    for site in loaded.sites:
        if site.stack != stack or not site.n_heads:
            continue
        site_factors = factors_of(site)
        W_V = site_factors.W_V[:, :d_model]  # without the row that biases add
        site_scores = copying_scores(W_V, site_factors.W_O_T, tokens).tolist()
        widths.add(W_V.shape[-1])
        scores[site.row] = [finite(score) for score in site_scores]
        known_scores += [score for score in scores[site.row] if score is not None]

    # Random heads of the same widths.
    random_scores = _random_scores(tokens, d_model, sorted(widths), seed)
    tails = torch.tensor([0.025, 0.975], dtype=torch.float64)
    low, high = random_scores.quantile(tails).tolist()
    return scores, Copying(
        stack=stack,
        own_unembedding=maps.has_unembedding,
        draws=len(random_scores),
        random_mean=float(random_scores.mean()),
        random_low=low,
        random_high=high,
        heads=len(known_scores),
        above=sum(score > high for score in known_scores),
        below=sum(score < low for score in known_scores),
    )


def _random_scores(tokens: Tensor, d_model: int, widths: Sequence[int], seed: int) -> Tensor:
    """Return the copying scores of heads with Gaussian W_V and W_O: as many for each width."""
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for d_head in widths:
        shape = (2, _DRAWN_AT_ONCE, d_model, d_head)
        for _ in range(COPYING_DRAWS // _DRAWN_AT_ONCE):
            W_V, W_O_T = torch.randn(shape, generator=generator, dtype=torch.float64)
            drawn.append(copying_scores(W_V, W_O_T, tokens))
    return torch.cat(drawn) if drawn else torch.zeros(1, dtype=torch.float64)
