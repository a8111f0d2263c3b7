"""The sweep of ``rank --share-projections``: errors, fidelity and parameters at every width.

``collaborative.py`` fits the projections of one layer at one width. Here every layer is fitted at
every width, beside heads that are cut to a rank of the same cost. :func:`sweep_widths` does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from headscope.analyses.rank.collaborative import Mixed, score_error, share_projections, truncate
from headscope.analyses.rank.result import SharedProjections, SharedWidth
from headscope.core.errors import InputError, UnsupportedModelError
from headscope.core.progress import Progress
from headscope.core.rounding import above, tied
from headscope.data.corpus import Corpus, sample_corpus
from headscope.models.run.loaded import LoadedModel
from headscope.session.pooled_states import PooledStates, bootstrapped_mean
from headscope.session.texts import line_batches, text_description
from headscope.stats.estimate import Estimate
from headscope.stats.factors import Factors, layer_factors, random_factors


def check_widths(loaded: LoadedModel, widths: Sequence[int], *, turns: bool) -> tuple[int, ...]:
    """Return the widths in ascending order, or say why one makes no sense.

    ``turns``: whether the model turns q and k by their positions.
    """
    if widths and turns:
        raise UnsupportedModelError(
            f"{loaded.name} ({loaded.family}) rotates queries and keys by their positions, which "
            "shared projections have no place for; leave share_projections out."
        )
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
    """Fit shared projections at every width; measure scores, fidelity and parameters.

    Without a ``text`` the built-in sample is read.
    """
    # The text that fidelity is measured on.
    if text is None:
        text = sample_corpus()
    batches = [loaded.pad(batch) for _, batch in line_batches(loaded, text, limit)]
    lines_read = sum(len(ids) for ids, _ in batches)
    states = PooledStates(loaded, batches)

    # W_Q and W_K of each layer that has heads, by the layer's row among all layers. Of layers that
    # share all weights (ALBERT; ``projections`` is the same object) the first is fitted.
    sites = [site for site in loaded.sites if site.n_heads]
    fitted_row: dict[object, int] = {}
    layers: dict[int, Factors] = {}
    for site in sites:
        if site.projections not in fitted_row:
            fitted_row[site.projections] = site.row
            layers[site.row] = layer_factors(site.weights())
    decomposed = {row: truncate(factors) for row, factors in layers.items()}
    first_layer = next(iter(layers.values()))
    control = random_factors(first_layer, seed)

    def fidelity(mixed: Mapping[int, Mixed]) -> Estimate:
        """Return the mean cosine to the model's own output with other scores in every layer."""
        scores = {site.row: mixed[fitted_row[site.projections]] for site in sites}
        return bootstrapped_mean(np.concatenate(states.cosines(scores=scores)), seed)

    # At every width: heads that share projections, and heads cut to a rank of the same cost.
    results: list[SharedWidth] = []
    for width in widths:
        shared: dict[int, Mixed] = {}
        truncated: dict[int, Mixed] = {}
        for row, factors in layers.items():
            shared[row] = share_projections(factors, width)
            rank = score_costs(factors, width).truncated_rank
            truncated[row] = decomposed[row].first(rank)
            fits_done = len(results) * len(layers) + len(shared)
            progress("shared projections", fits_done, len(widths) * len(layers))
        control_error = score_error(control, share_projections(control, width))
        results.append(
            _measure_width(
                width=width,
                layers=layers,
                shared=shared,
                truncated=truncated,
                control_error=control_error,
                fidelity=fidelity,
            )
        )
    return SharedProjections(
        widths=tuple(results),
        knee=knee(list(widths), [result.score_error for result in results]),
        text=text_description(text, limit, lines_read),
    )


def _measure_width(
    width: int,
    layers: Mapping[int, Factors],
    shared: Mapping[int, Mixed],
    truncated: Mapping[int, Mixed],
    control_error: float,
    fidelity: Callable[[Mapping[int, Mixed]], Estimate],
) -> SharedWidth:
    """Measure the errors, the fidelity and the parameters of layers with shared projections.

    ``layers``, ``shared`` and ``truncated`` are by the layer's row: the heads as they are, with
    shared projections, and each cut to a lower rank. ``fidelity`` runs the model with such scores.
    """
    errors = tuple(score_error(factors, shared[row]) for row, factors in layers.items())
    truncated_errors = [score_error(factors, truncated[row]) for row, factors in layers.items()]
    costs = [score_costs(factors, width) for factors in layers.values()]
    separate_parameters = sum(cost.separate for cost in costs)
    shared_parameters = sum(cost.shared for cost in costs)
    return SharedWidth(
        width=width,
        score_error=float(np.mean(errors)),
        layer_score_errors=errors,
        truncated_rank=min(cost.truncated_rank for cost in costs),
        truncated_score_error=float(np.mean(truncated_errors)),
        control_score_error=control_error,
        fidelity=fidelity(shared),
        truncated_fidelity=fidelity(truncated),
        parameters=shared_parameters,
        parameters_saved=separate_parameters - shared_parameters,
        share_saved=1 - shared_parameters / separate_parameters,
    )


class ScoreCosts(NamedTuple):
    """Parameters of a layer's scores."""

    #: Of the heads as they are: W_Q, b_Q and W_K. b_K cannot change a pattern and does not count.
    separate: int
    #: With shared projections: W_Q', W_K', mixing vectors, and b_Q W_K^T of every head.
    shared: int
    #: The largest rank to which every head may be cut, to cost no more than the shared projections.
    truncated_rank: int


def score_costs(factors: Factors, width: int) -> ScoreCosts:
    """Count the parameters of a layer's scores, with shared projections of a width."""
    n_heads, d_model, d_head = factors.W_Q.shape
    projections = width * (2 * d_model + n_heads)  # W_Q', W_K' and mixing vectors
    bias_terms = n_heads * d_model  # b_Q W_K^T of every head, which cut heads have, too
    cost_of_one_rank = 2 * d_model * n_heads  # a column of W_Q and one of W_K, in every head
    return ScoreCosts(
        separate=n_heads * d_head * (2 * d_model + 1),
        shared=projections + bias_terms,
        truncated_rank=min(d_head, projections // cost_of_one_rank),
    )


def knee(widths: list[int], errors: list[float]) -> int | None:
    """Return the width at the knee of the errors: farthest below the chord; None without a knee.

    The chord joins the first point and the last, and both axes are scaled from 0 to 1.
    Satopaa et al. 2011, "Finding a Kneedle in a Haystack", without its smoothing.
    """
    if len(widths) < 3 or not above(errors[0], errors[-1]):  # errors are shares of a layer's norm
        return None
    x = (np.array(widths) - widths[0]) / (widths[-1] - widths[0])
    y = (np.array(errors) - errors[-1]) / (errors[0] - errors[-1])
    below_chord = 1 - x - y
    farthest = int(tied(below_chord).argmax())
    if not above(below_chord[farthest], 0.0):  # a straight line has no knee
        return None
    return widths[farthest]
