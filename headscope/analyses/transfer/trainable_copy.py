"""A copy of a model of which an optimiser can step only some parameters, entries or changes.

A :class:`Chosen` is a parameter that is to be trained: whole; or only some ``entries`` of it, by
their indices in the flattened parameter; or by a ``rank_one`` change b a^T, of whose numbers so
many are trained.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.trainable import Chosen


def trainable_copy(
    loaded: LoadedModel, chosen: Sequence[Chosen], seed: int
) -> tuple[LoadedModel, list[nn.Parameter]]:
    """Copy a model, and return the tensors of the copy that an optimiser is to step.

    The rest of the copy is frozen. A parameter that is trained whole is stepped itself. Where only
    some entries of a parameter are trained, or a rank-one change of it, the optimiser steps a
    vector, from which torch computes the parameter whenever a module uses it. Rank-one changes
    start at random, by ``seed``.
    """
    # The copy, frozen, and where each of its parameters is used
    copied = dataclasses.replace(loaded, model=copy.deepcopy(loaded.model), sites=())
    copied.network = copied.model
    pairs = zip(loaded.model.parameters(), copied.model.parameters(), strict=True)
    copy_of: dict[nn.Parameter, nn.Parameter] = dict(pairs)
    users: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}  # module and attribute's name
    for module in copied.model.modules():
        for name, copied_parameter in module.named_parameters(recurse=False):
            users.setdefault(copied_parameter, []).append((module, name))  # several if it is tied
            copied_parameter.requires_grad_(False)

    # What is stepped: parameters themselves, and vectors that others are computed from
    rng = np.random.default_rng((abs(seed), 11))
    parameters: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for choice in chosen:
        parameter = copy_of[choice.parameter]
        change: _RankOne | _Entries
        if choice.rank_one is not None:
            change = _RankOne(parameter, choice.rank_one, rng)
        elif choice.entries is not None:
            change = _Entries(parameter, choice.entries)
        else:
            parameter.requires_grad_(True)
            parameters.append(parameter)
            continue
        vectors.append(change.vector)
        for module, name in users[parameter]:  # from now on ``module.name`` calls ``change``
            register_parametrization(module, name, change)
    return copied, [*parameters, *vectors]


class _Entries(nn.Module):
    """Computes a parameter from its frozen values and a vector of the entries that are trained."""

    def __init__(self, parameter: nn.Parameter, entries: Tensor) -> None:
        super().__init__()
        self._entries = entries
        self.vector = nn.Parameter(parameter.detach().take(entries))

    def forward(self, parameter: Tensor) -> Tensor:
        """Put the trained entries into the frozen parameter."""
        return parameter.put(self._entries, self.vector)


class _RankOne(nn.Module):
    """Computes ``W + b a^T`` from the frozen matrix W (rows, columns) and a vector.

    Of the numbers of b and a, in this order, the vector holds the first ``n``; the others are
    frozen. b starts at 0, so that the model starts unchanged; a starts as a random direction.
    """

    def __init__(self, parameter: nn.Parameter, n: int, rng: np.random.Generator) -> None:
        super().__init__()
        rows, columns = parameter.shape
        a = torch.from_numpy(rng.normal(size=columns) / np.sqrt(columns)).to(parameter)
        start = torch.cat([a.new_zeros(rows), a])  # (rows + columns,)
        self.vector = nn.Parameter(start[:n])
        self._rest = start[n:]
        self._rows = rows

    def forward(self, parameter: Tensor) -> Tensor:
        """Add the change to the frozen matrix."""
        b_and_a = torch.cat([self.vector, self._rest])
        b = b_and_a[: self._rows]
        a = b_and_a[self._rows :]
        return parameter + torch.outer(b, a)
