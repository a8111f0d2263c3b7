"""Patterns whose spectrum is known: what a share of singular values has to be compared with.

* ``uniform``: every query attends to all keys alike; rank 1.
* ``identity``: every query attends to itself; all singular values 1.
* ``previous-token``: every query attends to the token before it, the first one to itself. The
  first key is attended to twice and the last never, so sigma = sqrt(2), 1, ..., 1, 0.
* ``random-logits``: softmax of independent N(0, 1) scores, drawn and decomposed (mean of draws): no
  structure at all, and yet about half of the sum lies in the largest quarter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from headscope.measures.accumulator import Array
from headscope.measures.spectrum.decompositions import singular_values
from headscope.measures.spectrum.shares import shares

#: Draws of random logits that are averaged; their shares differ in the third digit.
DRAWS = 5


@dataclass(frozen=True)
class ControlCurves:
    """share(k) and share_sq(k), k = 1..length, each (draws, length); one draw of a closed form."""

    share: Array
    share_sq: Array


def control_curves(length: int, seed: int) -> dict[str, ControlCurves]:
    """Return the curves of each control pattern of this length, by name."""
    uniform, previous = np.zeros(length), np.ones(length)
    uniform[0] = 1.0
    previous[0], previous[-1] = np.sqrt(2.0), 0.0
    known = {"uniform": uniform, "identity": np.ones(length), "previous-token": previous}
    drawn = {name: sigma[None] for name, sigma in known.items()}
    drawn["random-logits"] = np.stack([singular_values(p) for p in random_patterns(length, seed)])
    return {name: ControlCurves(shares(sigma), shares(sigma**2)) for name, sigma in drawn.items()}


def random_patterns(length: int, seed: int) -> Iterator[Array]:
    """Draw patterns softmax(N(0, 1)), each (length, length)."""
    generator = np.random.default_rng(seed % 2**64)
    for _ in range(DRAWS):
        weights = np.exp(generator.standard_normal((length, length)))
        yield weights / weights.sum(axis=-1, keepdims=True)
