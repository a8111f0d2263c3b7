"""Calibration data whose outputs are a known function of the gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from headscope.pruning.ranking import Context
from headscope.tasks.units import Units

Function = Callable[[Tensor], Tensor]


class ToyBatch:
    """Examples with ``e_i = f(sum over heads of xi_h a_ih)`` and loss ``||e_i - y_i||^2 / 2``."""

    def __init__(self, a: Tensor, y: Tensor | None, f: Function, first: int = 0) -> None:
        # (size, n_layers, n_heads, d), (size, d)
        self._a = a
        self.examples = range(first, first + len(a))
        self._y = y
        self._f = f
        self.query_mask = torch.ones(*a.shape[:2], 1, dtype=torch.long)

    @property
    def size(self) -> int:
        return len(self._a)

    def gates(self, kind: str = "example") -> Tensor:
        shape = self._a.shape[:3] if kind == "example" else (*self._a.shape[:3], 1)
        return torch.ones(shape, dtype=self._a.dtype, requires_grad=True)

    def embed(self, gates: Tensor) -> Tensor:
        gates = gates[..., 0] if gates.dim() == 4 else gates
        return self._f((gates[..., None] * self._a).sum(dim=(1, 2)))

    def full(self) -> Tensor:
        return self._f(self._a.sum(dim=(1, 2)))

    def loss(self, gates: Tensor) -> Tensor:
        target = self.embed(self.gates().detach()).detach() if self._y is None else self._y
        return ((self.embed(gates) - target) ** 2).sum(dim=-1) / 2


class Toy:
    """Some such batches, as :class:`headscope.tasks.calibration.TaskCalibration`."""

    def __init__(self, a: Tensor, y: Tensor | None, f: Function, batch_size: int = 7) -> None:
        self._a = a
        self._y = y
        self._f = f
        self._batch_size = batch_size
        self.has_labels = y is not None

    def batches(self, *, labels: bool) -> Iterator[ToyBatch]:
        for start in range(0, len(self._a), self._batch_size):
            rows = slice(start, start + self._batch_size)
            y = self._y[rows] if labels and self._y is not None else None
            yield ToyBatch(self._a[rows], y, self._f, start)

    def quality(self, gates: Tensor) -> float:
        batch = ToyBatch(self._a, self._y, self._f)
        grid = gates.to(self._a).expand(self._a.shape[:3])
        return -float(batch.loss(grid).mean())


def toy_given(
    n_layers: int = 2,
    n_heads: int = 3,
    *,
    a: Tensor | None = None,
    labels: bool = True,
    f: Function = lambda x: x,
    d: int = 5,
    n: int = 40,
    **fields: object,
) -> Context:
    """Random toy data (or ``a`` (n, n_layers, n_heads, d)) with everything that methods look at."""
    generator = torch.Generator().manual_seed(3)
    if a is None:
        a = torch.randn(n, n_layers, n_heads, d, generator=generator, dtype=torch.float64)
    y = torch.randn(len(a), a.shape[-1], generator=generator, dtype=torch.float64)
    units = Units([a.shape[2]] * a.shape[1], [(i,) for i in range(a.shape[1])])
    toy = Toy(a, y if labels else None, f)
    fields = {"largest": len(units), **fields}
    return Context(units=units, calibration=toy, **fields)
