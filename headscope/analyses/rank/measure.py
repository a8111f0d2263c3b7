r"""What ranks need besides the weights' own spectra: the patterns on a text, and copying scores.

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
from headscope.stats.spectra import Factors
from headscope.stats.statistics import finite, standard_error, t_half_width

COPYING_DRAWS = 400  # Random heads, for each width, that copying scores are compared with
_DRAWN_AT_ONCE = 20  # To bound the memory


class PatternAsymmetry(Accumulator, SiteObserver):
    """Mean over sequences of each head's pattern asymmetry.

    ``||P - P^T||_F / ||P||_F`` over real tokens, special ones included: 0 where every two tokens
    attend to each other equally (also for evenly spread attention), sqrt(2) where no token is
    attended to by one that it attends to.
    """

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.count, self.sum, self.squares = zeros(3, n_layers, n_heads)

    def start(self, real: Tensor) -> None:
        """Set which positions of the next batch are real, (batch, pos)."""
        self._real = real

    def observe(self, site: Activations) -> None:
        """Add one chunk of patterns."""
        real = self._real[site.rows]
        pattern = widest(site.pattern) * real[:, None, :, None]  # padded queries attend too
        gap = torch.linalg.matrix_norm(pattern - pattern.mT)
        values = numpy(gap / torch.linalg.matrix_norm(pattern))  # (rows, heads)
        self.count[site.row, site.heads] += len(values)
        self.sum[site.row, site.heads] += values.sum(0)
        self.squares[site.row, site.heads] += (values**2).sum(0)

    def mean(self, row: int, head: int) -> Estimate | None:
        """Return one head's mean over sequences; None where nothing was measured."""
        count = float(self.count[row, head])
        total = float(self.sum[row, head])
        squares = float(self.squares[row, head])
        if count == 0 or not np.isfinite(total):
            return None
        half_width = t_half_width(standard_error(total, squares, count), count)
        return Estimate.around(total / count, finite(float(half_width)))


def copying_scores(W_V: Tensor, W_O_T: Tensor, tokens: Tensor) -> Tensor:
    """Return sum(lambda) / sum(|lambda|) of each head; NaN where all eigenvalues are 0.

    Shapes: ``W_V``, ``W_O_T`` (n_heads, d_model, d_head), ``tokens`` = W_U W_E (d_model, d_model).
    """
    eigenvalues = torch.linalg.eigvals(W_O_T.mT @ (tokens @ W_V))
    scores: Tensor = eigenvalues.sum(-1).real / eigenvalues.abs().sum(-1)
    return scores


def measure_copying(
    loaded: LoadedModel, factors_of: Callable[[AttentionSite], Factors], seed: int
) -> tuple[dict[int, list[float | None]], Copying]:
    """Score the heads of the stack that predicts tokens, and random heads.

    The scores are by the site's row, in the order of its heads. They do not depend on the scale of
    W_V and W_O, so the random ones need no norms.
    """
    maps = token_maps(loaded)
    tokens = maps.product()
    d_model = maps.embedding.shape[1]
    stack = "decoder" if loaded.encoder_decoder else loaded.stacks[0]

    # The model's heads.
    scores: dict[int, list[float | None]] = {}
    known: list[float] = []
    widths = set()
    for site in loaded.sites:
        if site.stack != stack or not site.n_heads:
            continue
        site_factors = factors_of(site)
        W_V = site_factors.W_V[:, :d_model]  # without the row that biases add
        site_scores = copying_scores(W_V, site_factors.W_O_T, tokens).tolist()
        widths.add(W_V.shape[-1])
        scores[site.row] = [finite(score) for score in site_scores]
        known += [score for score in scores[site.row] if score is not None]

    # Random heads of the same widths.
    random = _random_scores(tokens, d_model, sorted(widths), seed)
    low, high = random.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return scores, Copying(
        stack=stack,
        own_unembedding=maps.has_unembedding,
        draws=len(random),
        random_mean=float(random.mean()),
        random_low=low,
        random_high=high,
        heads=len(known),
        above=sum(score > high for score in known),
        below=sum(score < low for score in known),
    )


def _random_scores(tokens: Tensor, d_model: int, widths: Sequence[int], seed: int) -> Tensor:
    """Return the copying scores of heads with Gaussian W_V and W_O, for each width of a head."""
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for d_head in widths:
        shape = (2, _DRAWN_AT_ONCE, d_model, d_head)
        for _ in range(COPYING_DRAWS // _DRAWN_AT_ONCE):
            W_V, W_O_T = torch.randn(shape, generator=generator, dtype=torch.float64)
            drawn.append(copying_scores(W_V, W_O_T, tokens))
    return torch.cat(drawn) if drawn else torch.zeros(1, dtype=torch.float64)
