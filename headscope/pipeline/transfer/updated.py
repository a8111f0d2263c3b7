"""What a fine-tuning's optimiser steps: parameters, drawn entries of them, or rank-one changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from headscope.models.trainable import Chosen

__all__ = ["Updated"]


class _Vector(Protocol):
    """Numbers that are stepped in place of a parameter."""

    parameter: nn.Parameter
    vector: nn.Parameter

    def gradient(self, gradient: Tensor) -> Tensor:
        """Return the vector's gradient, given the parameter's."""

    def write(self) -> None:
        """Bring the parameter up to date."""


class _Entries:
    """Some entries of a parameter."""

    def __init__(self, parameter: nn.Parameter, entries: Tensor) -> None:
        self.parameter, self._entries = parameter, entries
        self.vector = nn.Parameter(parameter.detach().take(entries))

    def gradient(self, gradient: Tensor) -> Tensor:
        return gradient.take(self._entries)

    def write(self) -> None:
        self.parameter.put_(self._entries, self.vector)


class _RankOne:
    """``W + b a^T``: b starts at 0, a as a random direction; the first ``n`` numbers are free."""

    def __init__(self, parameter: nn.Parameter, n: int, rng: np.random.Generator) -> None:
        self.parameter, self._start = parameter, parameter.detach().clone()
        rows, columns = parameter.shape
        a = torch.from_numpy(rng.normal(size=columns) / np.sqrt(columns)).to(self._start)
        self._rows, self._factors = rows, torch.cat([self._start.new_zeros(rows), a])
        self.vector = nn.Parameter(self._factors[:n].clone())

    def gradient(self, gradient: Tensor) -> Tensor:
        b, a = self._now()
        return torch.cat([gradient @ a, gradient.T @ b])[: len(self.vector)]

    def write(self) -> None:
        b, a = self._now()
        self.parameter.copy_(self._start + torch.outer(b, a))

    def _now(self) -> tuple[Tensor, Tensor]:
        """Return b and a."""
        now = torch.cat([self.vector.detach(), self._factors[len(self.vector) :]])
        return now[: self._rows], now[self._rows :]


class Updated:
    """What the optimiser steps: whole parameters, or vectors that stand for some of their numbers.

    A vector's gradient is made of its parameter's before a step, and the parameter of the vector
    after it.

    Parameters
    ----------
    chosen : sequence of Chosen
        Of the model that is trained.
    seed : int
        Of the first directions of rank-one changes.
    """

    def __init__(self, chosen: Sequence[Chosen], seed: int) -> None:
        rng = np.random.default_rng((abs(seed), 11))
        self._vectors: list[_Vector] = []
        self.whole: list[nn.Parameter] = []
        for c in chosen:
            if c.rank_one is not None:
                self._vectors.append(_RankOne(c.parameter, c.rank_one, rng))
            elif c.entries is not None:
                self._vectors.append(_Entries(c.parameter, c.entries))
            else:
                self.whole.append(c.parameter)

    @property
    def tensors(self) -> list[nn.Parameter]:
        """What is stepped."""
        return [*self.whole, *(own.vector for own in self._vectors)]

    def gather(self) -> None:
        """Hand the gradients over to the vectors."""
        for own in self._vectors:
            if own.parameter.grad is not None:
                own.vector.grad = own.gradient(own.parameter.grad)
                own.parameter.grad = None

    def scatter(self) -> None:
        """Write the vectors back."""
        with torch.no_grad():
            for own in self._vectors:
                own.write()

    def snapshot(self) -> list[Tensor]:
        """Copy everything that is stepped."""
        return [tensor.detach().clone() for tensor in self.tensors]

    def restore(self, snapshot: Sequence[Tensor]) -> None:
        """Go back to a snapshot."""
        with torch.no_grad():
            for tensor, value in zip(self.tensors, snapshot, strict=True):
                tensor.copy_(value)
        self.scatter()
