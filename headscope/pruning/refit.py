r"""Repair by refitting W_O and b_O of a layer: weighted ridge regression from streamed sums.

::

    minimise  sum over tokens w ||z_kept W + b - t||^2 + ridge * s * ||W - W_now||^2

``t`` is what all heads of the layer would have put out on the same input, and ``s`` the mean
diagonal of the weighted covariance of z, so that ``ridge`` has no unit. The ridge pulls towards the
map that is there, not towards zero; b is free.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.core.processes import summed


class RidgeSums:
    """Sums over tokens of everything that the regression needs.

    ``d_in`` is the width of z (all kept heads together), ``d_out`` that of the layer's output.
    """

    def __init__(self, d_in: int, d_out: int) -> None:
        self._zz = torch.zeros(d_in, d_in, dtype=torch.float64)
        self._zt = torch.zeros(d_in, d_out, dtype=torch.float64)
        self._z = torch.zeros(d_in, dtype=torch.float64)
        self._t = torch.zeros(d_out, dtype=torch.float64)
        self._weight = 0.0

    def update(self, z: Tensor, target: Tensor, weight: Tensor) -> None:
        """Add tokens.

        Parameters
        ----------
        z : Tensor, (tokens, d_in)
            What the kept heads put out now, side by side.
        target : Tensor, (tokens, d_out)
            What all heads of the layer would have put out.
        weight : Tensor, (tokens,)
            How much each token counts, 0 or more.
        """
        z, target, weight = (part.cpu().double() for part in (z, target, weight))
        weighted = z * weight[:, None]
        self._zz += weighted.t() @ z
        self._zt += weighted.t() @ target
        self._z += weighted.sum(dim=0)
        self._t += weight @ target
        self._weight += float(weight.sum())

    def add_up(self) -> None:
        """Add the sums of all processes that share the run."""
        parts = (self._zz, self._zt, self._z, self._t)
        weight = torch.tensor([self._weight], dtype=torch.float64)
        self._zz, self._zt, self._z, self._t, weight = summed("sums of a refit", *parts, weight)
        self._weight = weight.item()

    def solve(self, now: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
        """Return W (d_in, d_out) and b (d_out,), float64; the ridge pulls W towards ``now``.

        A ridge of 0 is plain least squares; infinity keeps ``now`` and fits b alone.
        """
        now = now.cpu().double()
        mean_z, mean_t = self._z / self._weight, self._t / self._weight
        W = now if ridge == float("inf") or not len(now) else self._ridge(now, ridge)
        return W, mean_t - mean_z @ W

    def _ridge(self, now: Tensor, ridge: float) -> Tensor:
        covariance = self._zz / self._weight - self._mean_outer(self._z)
        cross = self._zt / self._weight - self._mean_outer(self._t)
        # Where z does not vary at all there is nothing to fit, and the present map stays.
        strength = max(max(ridge, 1e-12) * float(covariance.diagonal().mean()), 1e-30)
        identity = torch.eye(len(now), dtype=torch.float64)
        left, right = covariance + strength * identity, cross + strength * now
        solved: Tensor = torch.linalg.solve(left, right)
        return solved

    def _mean_outer(self, other: Tensor) -> Tensor:
        return torch.outer(self._z, other) / self._weight**2
