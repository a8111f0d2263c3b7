r"""Narrower feed-forward networks: the same share of the neurons goes from every layer.

A network adds ``a W`` to the residual stream: a (tokens, n) are the activations of its n neurons,
W (n, d_model) is its second map, one row for each neuron. A column of ones in a, and a row of W,
stand for the bias, which always stays.

Say that only the neurons S stay, and that their rows of W may change. Let ``A = a^T a``, summed
over the tokens of calibration text; A_S are its rows of S, A_SS of these the columns of S. Then the
rows that keep the sum nearest to ``a W``, by least squares, are ``V = (A_SS)^-1 A_S W``. If one
more neuron j goes, the squared error grows by ``|V_j|^2 / (A_SS^-1)_jj``: that is what it costs.
The cheapest go first; after each quarter of them V is solved anew.

:func:`narrowed` is the entry point, :func:`kept_neurons` the choice in one network. Each layer
keeps equally many neurons, so that a configuration states the new width in one number and the
family's own class opens the model.

References
----------
Hassibi & Stork 1993, "Second order derivatives for network pruning: Optimal Brain Surgeon".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from headscope.core.errors import UnsupportedModelError
from headscope.data.token_rows import PairRow, Row, padded
from headscope.models.anatomy.feed_forward import feed_forwards
from headscope.models.run.hooks import hooked
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.neurons import remove_neurons

TEXTS = 1024  # Calibration texts whose activations are summed, at most
ROUNDS = 4  # The neurons go in so many rounds, after each of which the map is solved anew
MULTIPLE = 32  # Widths are multiples of it, which processors multiply at full speed
_BATCH = 32  # Texts that run together
_RIDGE = 1e-4  # Added to the diagonal of A, relative to its mean, so that A can be inverted


def width_of(loaded: LoadedModel) -> int:
    """Return how many neurons each feed-forward network has; 0 where the networks differ.

    0 also stands for networks that cannot be taken apart into neurons.
    """
    try:
        widths = {network.width for network in feed_forwards(loaded)}
    except UnsupportedModelError:
        return 0
    return widths.pop() if len(widths) == 1 else 0


def rounded_up(width: float) -> int:
    """Return the next larger multiple of :data:`MULTIPLE`."""
    return math.ceil(width / MULTIPLE) * MULTIPLE


def first_neurons(loaded: LoadedModel, width: int) -> LoadedModel:
    """Return a model that keeps the first ``width`` neurons of each network.

    It costs what the model of :func:`narrowed` costs, but its outputs mean nothing: it is timed.
    """
    removed = {network.name: network.neuron_ids[width:] for network in feed_forwards(loaded)}
    if not any(removed.values()):
        return loaded
    return remove_neurons(loaded, removed, share=True)


def narrowed(loaded: LoadedModel, width: int, rows: Sequence[Row]) -> LoadedModel:
    """Copy a model with ``width`` neurons in every feed-forward network, their maps refitted.

    ``rows`` are tokenised calibration texts; the first :data:`TEXTS` are read.

    Raises
    ------
    UnsupportedModelError
        If a layer's network cannot be taken apart.
    """
    # choose the neurons of each network, and refit its second map
    networks = feed_forwards(loaded)
    second_maps = [network.second for network in networks]
    products = _products(loaded, second_maps, rows[:TEXTS])
    removed: dict[str, list[int]] = {}
    refitted: dict[str, Tensor] = {}  # (width, d_model), and the bias as a last row if there is one
    for network, A in zip(networks, products, strict=True):
        bias = network.second.bias
        W = _rows_by_neuron(network.second)
        if bias is not None:
            W = torch.cat([W, bias.detach()[None]])
        indices, refitted[network.name] = kept_neurons(A, W.to(A), width, bias=bias is not None)
        kept_ids = {network.neuron_ids[i] for i in indices}
        removed[network.name] = sorted(set(network.neuron_ids) - kept_ids)

    # write the refitted maps into a copy without the other neurons
    smaller = remove_neurons(loaded, removed)
    for network in feed_forwards(smaller):
        V = refitted[network.name]
        _rows_by_neuron(network.second).copy_(V[:width])
        if network.second.bias is not None:
            network.second.bias.data.copy_(V[-1])
    return smaller


def kept_neurons(
    A: Tensor, W: Tensor, width: int, *, bias: bool = True
) -> tuple[list[int], Tensor]:
    """Choose the neurons of one network that stay, and solve the map that belongs to them.

    Parameters
    ----------
    A : Tensor, (n, n), float64
        Products of activations, summed over tokens.
    W : Tensor, (n, d_model), float64
        The second map, one row for each neuron.
    width : int
        How many neurons stay.
    bias : bool
        Whether the last row of both stands for the bias, whose activation is one.

    Returns
    -------
    list of int, Tensor
        Indices of the neurons that stay, ascending; and their map (width, d_model), with the bias
        as one more row if there is one.
    """
    n_bias = 1 if bias else 0
    ridged = A + _RIDGE * A.diagonal().mean() * torch.eye(len(A)).to(A)
    target = ridged @ W
    remaining = torch.arange(len(W))  # indices of the neurons that are left, and of the bias
    # 1,536 neurons to 512 in four rounds: 1536, 1280, 1024, 768, 512
    counts = torch.linspace(len(W) - n_bias, width, ROUNDS + 1).round().long().tolist()
    for count_before, count in pairwise(counts):
        L = torch.linalg.cholesky(ridged[remaining][:, remaining])
        stays = _without_cheapest(
            inverse=torch.cholesky_inverse(L),
            V=torch.cholesky_solve(target[remaining], L),
            n_neurons=count_before,
            n_removed=count_before - count,
        )
        remaining = remaining[stays]
    A_remaining = ridged[remaining][:, remaining]
    return remaining[:width].tolist(), torch.linalg.solve(A_remaining, target[remaining])


def _without_cheapest(*, inverse: Tensor, V: Tensor, n_neurons: int, n_removed: int) -> Tensor:
    """Remove ``n_removed`` neurons one by one, each time the one that costs least.

    Parameters
    ----------
    inverse : Tensor, (n, n)
        A^-1 of the neurons that are left, and of the bias behind them.
    V : Tensor, (n, d_model)
        Their map.
    n_neurons : int
        How many of the n rows are neurons: all, or all but the last.
    n_removed : int
        How many neurons go.

    Returns
    -------
    Tensor, (n,), bool
        Which rows stay.
    """
    n_rows = len(V)
    # Only the cheapest twice as many are looked at: a small matrix is updated at each step.
    costs = V.square().sum(1) / inverse.diagonal()
    n_candidates = min(n_neurons, 2 * n_removed)
    candidates = costs[:n_neurons].topk(n_candidates, largest=False).indices
    inverse = inverse[candidates][:, candidates]  # (candidates, candidates)
    V = V[candidates]  # (candidates, d_model)

    # After each removal the inverse and the map are those of the neurons that are left: of two that
    # can write the same, the second becomes dear when the first has gone.
    candidate_stays = torch.ones(n_candidates, dtype=torch.bool)
    for _ in range(n_removed):
        costs = (V.square().sum(1) / inverse.diagonal()).where(candidate_stays, torch.inf)
        j = int(costs.argmin())
        column = inverse[:, j] / inverse[j, j]
        V = V - column[:, None] * V[j]
        inverse = inverse - column[:, None] * inverse[j]
        candidate_stays[j] = False

    stays = torch.ones(n_rows, dtype=torch.bool)
    stays[candidates[~candidate_stays]] = False
    return stays


def _products(
    loaded: LoadedModel, second_maps: Sequence[nn.Module], rows: Sequence[Row]
) -> list[Tensor]:
    """Return ``A = a^T a`` of each second map, summed over the tokens of all texts, float64.

    a (tokens, n) is what the map reads, with a column of ones where it has a bias. Texts of one
    length run together, so that nothing is padded.
    """
    sums: dict[nn.Module, Tensor] = {}

    def add(module: Any, args: tuple[Tensor, ...]) -> None:
        a = args[0].detach().flatten(0, -2)
        if module.bias is not None:
            a = torch.cat([a, a.new_ones(len(a), 1)], dim=1)
        # A batch is summed in float32, batches in float64.
        product = (a.float().t() @ a.float()).double().cpu()
        sums[module] = sums[module] + product if module in sums else product

    hooks = [module.register_forward_pre_hook(add) for module in second_maps]
    with hooked(hooks), torch.no_grad():
        for _, group in groupby(sorted(rows, key=_lengths), key=_lengths):
            same_length = list(group)
            for start in range(0, len(same_length), _BATCH):
                batch_rows = same_length[start : start + _BATCH]
                batch = padded(batch_rows, loaded.pad_id, loaded.device)
                loaded.run(*batch.inputs, **batch.decoder_inputs, select=None)
    return [sums[module] for module in second_maps]


def _lengths(row: Row) -> tuple[int, int]:
    """Return the tokens of a text, and those of its target where a decoder reads one."""
    return len(row), len(row.decoder_ids) if isinstance(row, PairRow) else 0


def _rows_by_neuron(second: Any) -> Tensor:
    """Return a view of a second map's weight, (n, d_model), one row for each neuron.

    ``nn.Linear`` stores it transposed, GPT-2's ``Conv1D`` as it is.
    """
    weight: Tensor = second.weight.data
    return weight.t() if isinstance(second, nn.Linear) else weight
