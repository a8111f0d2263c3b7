r"""Narrower feed-forward networks: the same share of the neurons goes from every layer.

A network adds ``a W_2`` to the residual stream, a (tokens, width) the activations of its neurons.
If only the neurons S stay and their rows of W_2 may change, the map that changes least of what is
added is ``(A_SS)^-1 A_S: W_2``, with ``A = a^T a`` over calibration text. Leaving out one more
neuron costs ``|w_j|^2 / (A_SS^-1)_jj``, w_j its row of that map. The cheapest go, and after
each quarter of them the map is solved anew. A column of ones stands for the bias and always stays.

Each layer keeps equally many, so that a configuration states the new width in one number and the
family's own class opens the model.

References
----------
Hassibi & Stork 1993, "Second order derivatives for network pruning: Optimal Brain Surgeon".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from headscope.core.errors import UnsupportedModelError
from headscope.data.token_rows import Row, padded
from headscope.models.anatomy.feed_forward import feed_forwards
from headscope.models.run.hooks import hooked
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.neurons import remove_neurons

TEXTS = 1024  # That activations are taken from
ROUNDS = 4  # In which neurons go
MULTIPLE = 32  # Widths are multiples of it, which processors multiply at full speed
_BATCH = 32  # Texts that run together
_RIDGE = 1e-4  # Added to the diagonal of A, relative to its mean


def width_of(loaded: LoadedModel) -> int:
    """Return how many neurons each feed-forward network has; 0 where not all have as many."""
    try:
        widths = {network.width for network in feed_forwards(loaded)}
    except UnsupportedModelError:
        return 0
    return widths.pop() if len(widths) == 1 else 0


def rounded_up(width: float) -> int:
    """Return the next larger multiple of :data:`MULTIPLE`."""
    return math.ceil(width / MULTIPLE) * MULTIPLE


def first_neurons(loaded: LoadedModel, width: int) -> LoadedModel:
    """Return a model of the right size, to be timed only: the first neurons of each network."""
    removed = {network.name: network.neuron_ids[width:] for network in feed_forwards(loaded)}
    return remove_neurons(loaded, removed, share=True) if any(removed.values()) else loaded


def narrowed(loaded: LoadedModel, width: int, rows: Sequence[Row]) -> LoadedModel:
    """Copy a model with ``width`` neurons in every feed-forward network, the others refitted.

    ``rows`` are calibration texts; the first :data:`TEXTS` are read.

    Raises
    ------
    UnsupportedModelError
        If a layer's network cannot be taken apart.
    """
    networks = feed_forwards(loaded)
    products = _products(loaded, [network.second for network in networks], rows[:TEXTS])
    removed: dict[str, list[int]] = {}
    maps: dict[str, Tensor] = {}
    for network, A in zip(networks, products, strict=True):
        bias = network.second.bias
        W = _as_rows(network.second)
        if bias is not None:
            W = torch.cat([W, bias.detach()[None]])
        chosen, maps[network.name] = kept_neurons(A, W.to(A), width, bias=bias is not None)
        stays = {network.neuron_ids[i] for i in chosen}
        removed[network.name] = sorted(set(network.neuron_ids) - stays)

    smaller = remove_neurons(loaded, removed)
    for network in feed_forwards(smaller):
        W = maps[network.name]
        _as_rows(network.second).copy_(W[:width])
        if network.second.bias is not None:
            network.second.bias.data.copy_(W[-1])
    return smaller


def kept_neurons(
    A: Tensor, W: Tensor, width: int, *, bias: bool = True
) -> tuple[list[int], Tensor]:
    """Choose the neurons that stay, and solve the map that belongs to them.

    Parameters
    ----------
    A : Tensor, (n, n), float64
        Products of activations, summed over tokens.
    W : Tensor, (n, d_model), float64
        The second map, one row for each neuron.
    width : int
        Neurons that stay.
    bias : bool
        Whether the last row of both is no neuron but the bias, whose activation is one.

    Returns
    -------
    list of int, Tensor
        The neurons that stay, in order, and their map (width, d_model), the bias after it.
    """
    n_bias = 1 if bias else 0
    ridged = A + _RIDGE * A.diagonal().mean() * torch.eye(len(A)).to(A)
    target = ridged @ W
    remaining = torch.arange(len(W))  # Neurons, and the bias behind them
    sizes = torch.linspace(len(W) - n_bias, width, ROUNDS + 1).round().long().tolist()
    for size in sizes[1:]:  # the neurons that are left after each round
        n_neurons = len(remaining) - n_bias
        L = torch.linalg.cholesky(ridged[remaining][:, remaining])
        stays = _without_cheapest(
            inverse=torch.cholesky_inverse(L),
            solved=torch.cholesky_solve(target[remaining], L),
            n_neurons=n_neurons,
            n_removed=n_neurons - size,
        )
        remaining = remaining[stays]
    A_remaining = ridged[remaining][:, remaining]
    return remaining[:width].tolist(), torch.linalg.solve(A_remaining, target[remaining])


def _without_cheapest(*, inverse: Tensor, solved: Tensor, n_neurons: int, n_removed: int) -> Tensor:
    """Say which rows stay, (n,) bool, when the ``n_removed`` cheapest neurons go.

    ``inverse`` (n, n) is A^-1 of the rows that are there, ``solved`` (n, d_model) their map; the
    first ``n_neurons`` rows are neurons.
    """
    costs = solved.square().sum(1) / inverse.diagonal()
    n_candidates = min(n_neurons, 2 * n_removed)
    candidates = costs[:n_neurons].topk(n_candidates, largest=False).indices

    # Of the cheapest, one goes after the other: of two that can stand for each other one stays.
    H = inverse[candidates][:, candidates]
    V = solved[candidates]
    candidate_stays = torch.ones(n_candidates, dtype=torch.bool)
    for _ in range(n_removed):
        costs = (V.square().sum(1) / H.diagonal()).where(candidate_stays, torch.inf)
        j = int(costs.argmin())
        column = H[:, j] / H[j, j]
        V = V - column[:, None] * V[j]
        H = H - column[:, None] * H[j]
        candidate_stays[j] = False

    stays = torch.ones(len(solved), dtype=torch.bool)
    stays[candidates[~candidate_stays]] = False
    return stays


def _products(
    loaded: LoadedModel, seconds: Sequence[nn.Module], rows: Sequence[Row]
) -> list[Tensor]:
    """Sum a^T a over the tokens of texts, a the input of each map; with ones where it has a bias.

    Texts of one length run together, so that nothing is padded.
    """
    sums = dict[nn.Module, Tensor]()

    def add(module: Any, args: tuple[Tensor, ...]) -> None:
        a = args[0].detach().flatten(0, -2)
        if module.bias is not None:
            a = torch.cat([a, a.new_ones(len(a), 1)], dim=1)
        # A batch is summed in float32, batches in float64.
        sums[module] = sums.get(module, 0) + (a.float().t() @ a.float()).double().cpu()

    def lengths(row: Row) -> tuple[int, int]:
        return len(row), len(getattr(row, "decoder_ids", ()))

    hooks = [module.register_forward_pre_hook(add) for module in seconds]
    with hooked(hooks), torch.no_grad():
        for _, group in groupby(sorted(rows, key=lengths), key=lengths):
            of_one_length = list(group)
            for first in range(0, len(of_one_length), _BATCH):
                few = of_one_length[first : first + _BATCH]
                batch = padded(few, loaded.pad_id, loaded.device)
                loaded.run(*batch.inputs, **batch.decoder_inputs, select=None)
    return [sums[module] for module in seconds]


def _as_rows(second: Any) -> Tensor:
    """Return a view of a second map with one row for each neuron."""
    weight: Tensor = second.weight.data
    return weight.t() if isinstance(second, nn.Linear) else weight
