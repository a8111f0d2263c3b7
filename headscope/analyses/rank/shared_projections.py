r"""Collaborative attention: one query and one key projection shared by all heads of a layer.

::

    B_h = W_Q[h] W_K[h]^T  ~  W_Q' diag(m_h) W_K'^T        W_Q', W_K' (d_model, width)

The mixing vector m_h says how much head h uses each shared dimension. All heads at once this is a
rank-``width`` CP (PARAFAC) decomposition of the tensor of all B_h, d_model x d_model x n_heads,
fitted by alternating least squares (tensorly).

References
----------
Cordonnier, Loukas & Jaggi 2020, arXiv:2006.16362, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.rank.result import SharedProjections, SharedWidth
from headscope.core.accumulator import numpy
from headscope.core.errors import InputError
from headscope.core.progress import Progress
from headscope.core.rounding import above, tied
from headscope.data.corpus import Corpus, sample_corpus
from headscope.models.run.loaded import LoadedModel
from headscope.session.exchanged_heads import PooledStates, mean_with_interval
from headscope.session.texts import line_batches, text_description
from headscope.stats.estimate import Estimate
from headscope.stats.spectra import Factors, layer_factors, random_factors

#: Rounds of alternating least squares at most. On all-MiniLM-L6-v2 thirty more bring the error
#: down by less than a hundredth of itself.
ITERATIONS = 30
_SETTLED = 1e-4  # Change of the relative error that ends them earlier.
#: Ridge of every least squares step: heads that are copies of each other make it singular.
_RIDGE = 1e-6
_EXACT = 1e-7  # Relative error at which there is nothing to refine.
_NOISE = 1e-13  # Directions weaker than this share of the strongest are arithmetic noise.


class Mixed(NamedTuple):
    """Factors of every head's scores, ``query_h key_h^T``; each (n_heads, d_model, width)."""

    query: Tensor
    key: Tensor

    def first(self, width: int) -> Mixed:
        """Keep the first columns of each head."""
        return Mixed(self.query[..., :width], self.key[..., :width])


class Shared(NamedTuple):
    """Shared projections and mixing vectors, float64."""

    query: Tensor  # (d_model, width). The shared projections W_Q' and W_K'.
    key: Tensor
    mixing: Tensor  # (n_heads, width). How much each head uses each shared dimension.

    @property
    def mixed(self) -> Mixed:
        """The factors of every head's scores."""
        n_heads = len(self.mixing)
        return Mixed(self.query * self.mixing[:, None, :], self.key.expand(n_heads, -1, -1))


def share_projections(factors: Factors, width: int) -> Mixed:
    """Fit shared projections of one layer."""
    starts = [_strongest_directions(factors, width)]
    joint = _joint_diagonal(factors, width)
    if joint is not None:
        starts.append(joint)
    errors = [score_error(factors, start.mixed) for start in starts]
    best = int(np.nanargmin(tied(errors)))
    start = starts[best]
    error = errors[best]
    fitted = _refine(factors, start) if error >= _EXACT else None
    if fitted is None or score_error(factors, fitted.mixed) > error:
        return start.mixed
    return fitted.mixed


def _refine(factors: Factors, start: Shared) -> Shared | None:
    """Alternate least squares; None where they break down."""
    import tensorly as tl
    from tensorly.cp_tensor import CPTensor
    from tensorly.decomposition import parafac

    tl.set_backend("numpy")
    tensor = torch.einsum("hir,hjr->ijh", factors.W_Q, factors.W_K)
    size = tensor.norm()
    width = start.mixing.shape[1]
    begin = [start.query / size.sqrt(), start.key / size.sqrt(), start.mixing]
    begin_arrays = [numpy(factor.float()) for factor in begin]
    try:
        fitted = parafac(
            numpy((tensor / size).float()),
            width,
            n_iter_max=ITERATIONS,
            init=CPTensor((np.ones(width, dtype=np.float32), begin_arrays)),
            tol=_SETTLED,
            l2_reg=_RIDGE,
        )
    except np.linalg.LinAlgError:
        return None
    query, key, mixing = [torch.from_numpy(factor.copy()).double() for factor in fitted.factors]
    return Shared(query * size.sqrt(), key * size.sqrt(), mixing)


def score_error(factors: Factors, mixed: Mixed) -> float:
    """Return how far the mixed factors' scores are from the heads' own.

    ``sqrt(sum_h ||B_h - query_h key_h^T||_F^2 / sum_h ||B_h||_F^2)``; 0 for a layer of zeros.
    """
    # B - B' = [W_Q, query] [W_K, -key]^T: the norm of a product of factors.
    gap = _product_norm(
        torch.cat([factors.W_Q, mixed.query], -1), torch.cat([factors.W_K, -mixed.key], -1)
    )
    size = _product_norm(factors.W_Q, factors.W_K)
    return float((gap / size) if size > 0 else gap)


def _product_norm(query: Tensor, key: Tensor) -> Tensor:
    """Return the norm of ``query key^T`` of all heads, without computing the products."""
    r_query = torch.linalg.qr(query, mode="r").R
    r_key = torch.linalg.qr(key, mode="r").R
    norm: Tensor = (r_query @ r_key.mT).norm()
    return norm


def score_costs(factors: Factors, width: int) -> tuple[int, int, int]:
    """Count the parameters of a layer's scores as they are, and with shared projections.

    b_K cannot change a pattern and does not count; with shared projections, mixing vectors and
    b_Q W_K^T of every head do. Also return the rank of each head's factors that cost no more.
    """
    n_heads, d_model, d_head = factors.W_Q.shape
    separate = n_heads * d_head * (2 * d_model + 1)
    projections = width * (2 * d_model + n_heads)
    shared = projections + n_heads * d_model
    rank = min(d_head, projections // (2 * d_model * n_heads))
    return separate, shared, rank


def knee(widths: list[int], errors: list[float]) -> int | None:
    """Return the width at the knee: farthest below the chord, with both axes scaled to 1.

    Satopaa et al. 2011, "Finding a Kneedle in a Haystack", without its smoothing.
    """
    if len(widths) < 3 or not above(errors[0], errors[-1]):  # errors are shares of a layer's norm
        return None
    x = (np.array(widths) - widths[0]) / (widths[-1] - widths[0])
    y = (np.array(errors) - errors[-1]) / (errors[0] - errors[-1])
    below = 1 - x - y
    best = int(tied(below).argmax())
    return widths[best] if above(below[best], 0.0) else None  # a straight line has no knee


def truncate(factors: Factors) -> Mixed:
    """Write each head's B as its singular value decomposition, strongest direction first.

    :meth:`Mixed.first` of the result is the best approximation of that rank, head by head.
    """
    basis_q, r_q = torch.linalg.qr(factors.W_Q)
    basis_k, r_k = torch.linalg.qr(factors.W_K)
    u, sigma, v_t = torch.linalg.svd(r_q @ r_k.mT, full_matrices=False)
    root = sigma.sqrt()[:, None, :]
    return Mixed(basis_q @ u * root, basis_k @ v_t.mT * root)


def _strongest_directions(factors: Factors, width: int) -> Shared:
    """Take the strongest singular directions of all heads, each used by its own head alone."""
    mixed = truncate(factors)
    strength = mixed.query.norm(dim=1) * mixed.key.norm(dim=1)  # sigma, (n_heads, d_head)
    order: Tensor = strength.flatten().argsort(descending=True, stable=True)
    positive = int((strength > strength.max() * _NOISE).sum())
    chosen = order[: min(width, positive)]
    head = chosen // strength.shape[1]
    column = chosen % strength.shape[1]
    mixing = torch.zeros(factors.n_heads, len(chosen), dtype=torch.float64)
    mixing[head, torch.arange(len(chosen))] = 1
    return Shared(mixed.query[head, :, column].T, mixed.key[head, :, column].T, mixing)


def _joint_diagonal(factors: Factors, width: int) -> Shared | None:
    """Diagonalise all heads together: exact where they truly share ``width`` projections.

    ``B_h = query diag(m_h) key^T`` makes ``X Y^-1`` of two mixtures X, Y of the heads' cores have
    the shared query directions as eigenvectors.
    """
    u = _leading(factors.W_Q, factors.W_K, width)
    v = _leading(factors.W_K, factors.W_Q, width)
    size = min(u.shape[1], v.shape[1])
    if size == 0:  # a layer of zeros
        return None
    u = u[:, -size:]
    v = v[:, -size:]
    core = (u.T @ factors.W_Q) @ (v.T @ factors.W_K).mT  # (n_heads, size, size)
    # Two random mixtures of the heads.
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(2, factors.n_heads, generator=generator, dtype=torch.float64)
    x, y = torch.einsum("mh,hij->mij", weights, core)
    try:
        values, vectors = torch.linalg.eig(torch.linalg.lstsq(y.T, x.T).solution.T)
        # Complex eigenvectors come in conjugate pairs: the real and imaginary part span the same.
        basis = torch.where(values.imag >= 0, vectors.real, vectors.imag)
        rows = torch.linalg.solve(basis, core)
    except RuntimeError:  # torch.linalg.LinAlgError is one
        return None
    # Each shared direction is now a matrix heads x keys of rank one, if there is structure at all.
    mixing, sigma, key_directions = torch.linalg.svd(rows.transpose(0, 1), full_matrices=False)
    keys = (key_directions[:, 0] * sigma[:, :1]).T
    return Shared(u @ basis, v @ keys, mixing[:, :, 0].T)


def _leading(W: Tensor, other: Tensor, width: int) -> Tensor:
    """Leading left singular vectors of all heads' W other^T side by side, weakest first."""
    gram = torch.einsum("hir,hrs,hjs->ij", W, other.mT @ other, W)
    values, vectors = torch.linalg.eigh(gram)
    count = min(width, int((values > _NOISE * values[-1]).sum()))
    leading: Tensor = vectors[:, vectors.shape[1] - count :]
    return leading


def check_widths(loaded: LoadedModel, widths: Sequence[int]) -> tuple[int, ...]:
    """Return the widths in ascending order, or say which one makes no sense."""
    most = min(site.n_heads * site.d_head for site in loaded.sites if site.n_heads)
    for width in widths:
        if not 1 <= width <= most:
            raise InputError(
                f"share_projections has the width {width}; a width lies between 1 and "
                f"n_heads * d_head = {most} of this model."
            )
    return tuple(sorted(set(widths)))


def sweep_widths(
    loaded: LoadedModel,
    widths: tuple[int, ...],
    text: Corpus | None,
    limit: int | None,
    seed: int,
    progress: Progress,
) -> SharedProjections:
    """Fit shared projections at every width; measure scores, fidelity and parameters."""
    # The text that fidelity is measured on.
    text = text or sample_corpus()
    batches = [loaded.pad(batch) for _, batch in line_batches(loaded, text, limit)]
    lines_read = sum(len(ids) for ids, _ in batches)
    states = PooledStates(loaded, batches)

    # The layers' factors; those that share all weights are fitted once (ALBERT).
    sites = [site for site in loaded.sites if site.n_heads]
    layer_of = {site.projections: site.row for site in reversed(sites)}
    layers = {
        site.row: layer_factors(site.weights())
        for site in sites
        if layer_of[site.projections] == site.row
    }
    control = random_factors(next(iter(layers.values())), seed)
    each_head = {layer: truncate(factors) for layer, factors in layers.items()}

    def fidelity(mixed: dict[int, Mixed]) -> Estimate:
        """Return the mean cosine to the model's own output with other scores in every layer."""
        scores = {site.row: mixed[layer_of[site.projections]] for site in sites}
        return mean_with_interval(np.concatenate(states.cosines(scores=scores)), seed)

    results: list[SharedWidth] = []
    for width in widths:
        shared: dict[int, Mixed] = {}
        truncated: dict[int, Mixed] = {}
        costs = {layer: score_costs(factors, width) for layer, factors in layers.items()}
        for layer, factors in layers.items():
            _, _, rank = costs[layer]
            shared[layer] = share_projections(factors, width)
            truncated[layer] = each_head[layer].first(rank)
            fitted = len(results) * len(layers) + len(shared)
            progress("shared projections", fitted, len(widths) * len(layers))
        errors = tuple(score_error(layers[layer], shared[layer]) for layer in layers)
        truncated_errors = [score_error(layers[layer], truncated[layer]) for layer in layers]
        separate_parameters = sum(separate for separate, _, _ in costs.values())
        shared_parameters = sum(together for _, together, _ in costs.values())
        results.append(
            SharedWidth(
                width=width,
                score_error=float(np.mean(errors)),
                layer_score_errors=errors,
                truncated_rank=min(rank for _, _, rank in costs.values()),
                truncated_score_error=float(np.mean(truncated_errors)),
                control_score_error=score_error(control, share_projections(control, width)),
                fidelity=fidelity(shared),
                truncated_fidelity=fidelity(truncated),
                parameters=shared_parameters,
                parameters_saved=separate_parameters - shared_parameters,
                share_saved=1 - shared_parameters / separate_parameters,
            )
        )
    return SharedProjections(
        widths=tuple(results),
        knee=knee(list(widths), [result.score_error for result in results]),
        text=text_description(text, limit, lines_read),
    )
