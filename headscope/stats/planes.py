"""Rotation of queries and keys by position: which coordinates of a head turn together, how fast.

At position p every query and key is turned: two of its coordinates, a and b, are one point of a
plane, and become::

    (a cos - b sin, b cos + a sin)          cos = cos(p angle), sin = sin(p angle)

With R(p) the map that does so to all planes of a row vector, the score of a query at i and a key at
j is ``x_i W_Q R(i) R(j)^T W_K^T x_j^T = x_i W_Q R(i - j) W_K^T x_j^T``: it depends on the distance.

References
----------
Su et al. 2021, arXiv:2104.09864, section 3.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from headscope.core.rounding import EPS


@dataclass(frozen=True)
class Planes:
    """The planes of a head in which q and k turn; coordinates that no plane holds stay."""

    first: Tensor  # (n_planes,), integers: the coordinate a of each plane
    second: Tensor  # (n_planes,), integers: its coordinate b
    angle: Tensor  # (n_planes,), float64: by how much each turns from one position to the next
    #: What the model multiplies the turned coordinates of q by, and those of k; 1 in most models.
    size: float = 1.0
    values: bool = False  # Whether v turns as q and k do

    def turned(self, W: Tensor, distance: int) -> Tensor:
        """Return ``W R(distance)``, with W (..., d_head) the map that makes queries."""
        cos = torch.cos(self.angle * distance).to(W)
        sin = torch.sin(self.angle * distance).to(W)
        a = W[..., self.first]
        b = W[..., self.second]
        turned = W.clone()
        turned[..., self.first] = a * cos - b * sin
        turned[..., self.second] = b * cos + a * sin
        return turned

    def sized(self, W: Tensor) -> Tensor:
        """Multiply what turns of a map of queries or keys, (..., d_head), by ``size``."""
        sized = W.clone()
        sized[..., self.first] *= self.size
        sized[..., self.second] *= self.size
        return sized

    def side_by_side(self, n_heads: int, d_head: int) -> Planes:
        """Return the planes of all heads of a layer side by side, (..., n_heads * d_head)."""
        starts = d_head * torch.arange(n_heads)[:, None]
        return dataclasses.replace(
            self,
            first=(starts + self.first).flatten(),
            second=(starts + self.second).flatten(),
            angle=self.angle.repeat(n_heads),
        )


def planes_of_halves(cos: Tensor, sin: Tensor) -> Planes:
    """Read planes of coordinates i and i + width / 2 (Llama) from the tables of a call.

    ``cos``, ``sin`` (1 or batch, pos, width) as the model hands them over, for the positions of at
    least two tokens in a row; both halves of the width are alike.
    """
    half = cos.shape[-1] // 2
    coordinates = torch.arange(half)
    return _planes(coordinates, coordinates + half, cos[0, :2, :half], sin[0, :2, :half])


def planes_of_neighbours(cos: Tensor, sin: Tensor) -> Planes:
    """Read planes of coordinates 2 i and 2 i + 1 (RoFormer, GPT-J) from the tables of a call.

    ``cos``, ``sin`` (pos, n_planes): one column for each plane, for at least two positions.
    """
    coordinates = 2 * torch.arange(cos.shape[-1])
    return _planes(coordinates, coordinates + 1, cos[:2], sin[:2])


def _planes(first: Tensor, second: Tensor, cos: Tensor, sin: Tensor) -> Planes:
    """Read the angle between two positions from their cosines and sines, (2, n_planes)."""
    turns = torch.complex(cos.detach().cpu().double(), sin.detach().cpu().double())
    step = turns[1] * turns[0].conj()
    size = float(step.abs().mean().sqrt())
    rounding = max(torch.finfo(cos.dtype).eps, EPS)  # tables are computed in float32 at most
    if abs(size - 1) < 8 * rounding:
        size = 1.0
    return Planes(first, second, angle=step.angle(), size=size)
