"""A copy of a model of which an optimiser can step only some parameters, entries or changes."""

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
    """Copy a model, and return what an optimiser steps of the copy; the rest of it is frozen.

    Whole parameters are stepped themselves. For some entries of a parameter, or a rank-one change,
    the optimiser steps a vector, and the parameter is computed from it whenever it is used. Where
    rank-one changes start is drawn by ``seed``.
    """
    # the copy, and where each of its parameters is used
    copied = dataclasses.replace(loaded, model=copy.deepcopy(loaded.model), sites=())
    copied.network = copied.model
    pairs = zip(loaded.model.parameters(), copied.model.parameters(), strict=True)
    copies = {id(original): parameter for original, parameter in pairs}
    modules_with: dict[int, list[tuple[nn.Module, str]]] = {}  # By the id of the copied parameter
    for module in copied.model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            modules_with.setdefault(id(parameter), []).append((module, name))
            parameter.requires_grad_(False)

    # what is stepped
    rng = np.random.default_rng((abs(seed), 11))
    parameters: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for choice in chosen:
        parameter = copies[id(choice.parameter)]
        change: _RankOne | _Entries
        if choice.rank_one is not None:
            change = _RankOne(parameter, choice.rank_one, rng)
        elif choice.entries is not None:
            change = _Entries(parameter, choice.entries)
        else:
            parameters.append(parameter.requires_grad_())
            continue
        vectors.append(change.vector)
        for module, name in modules_with[id(parameter)]:
            register_parametrization(module, name, change)
    return copied, [*parameters, *vectors]


class _Entries(nn.Module):
    """Some entries of a parameter, in a vector."""

    def __init__(self, parameter: nn.Parameter, entries: Tensor) -> None:
        super().__init__()
        self._entries = entries
        self.vector = nn.Parameter(parameter.detach().take(entries))

    def forward(self, parameter: Tensor) -> Tensor:
        return parameter.put(self._entries, self.vector)


class _RankOne(nn.Module):
    """``W + b a^T``: b starts at 0, a as a random direction; the first ``n`` numbers are free."""

    def __init__(self, parameter: nn.Parameter, n: int, rng: np.random.Generator) -> None:
        super().__init__()
        rows, columns = parameter.shape
        a = torch.from_numpy(rng.normal(size=columns) / np.sqrt(columns)).to(parameter)
        start = torch.cat([a.new_zeros(rows), a])
        self.vector = nn.Parameter(start[:n])
        self._rest = start[n:]
        self._rows = rows

    def forward(self, parameter: Tensor) -> Tensor:
        b_and_a = torch.cat([self.vector, self._rest])
        return parameter + torch.outer(b_and_a[: self._rows], b_and_a[self._rows :])
