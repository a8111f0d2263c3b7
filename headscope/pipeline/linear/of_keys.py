"""What can be read back from N keys: random ones against the closed forms, and the model's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from headscope.measures.linear.stored_keys import (
    READOUTS,
    closed_form,
    readout_errors,
    simulate,
    unit_keys,
)
from headscope.measures.statistics import finite, t_half_width
from headscope.results.estimated import Estimated
from headscope.results.linear import KeyMemory

#: Numbers of keys, as multiples of their width.
TIMES = (0.5, 1, 2, 4, 8)
#: Draws of random keys and values, stretches of the model's own keys.
DRAWS = 50
STRETCHES = 4
#: Keys of the model that are kept, by head.
KEPT = 4096


class OwnKeys:
    """The keys of every head at the real tokens of a text, as they follow, up to :data:`KEPT`."""

    def __init__(self) -> None:
        self._parts: dict[int, list[Tensor]] = {}
        self._kept: dict[int, int] = {}

    def update(self, row: int, real: Tensor, k: Tensor) -> None:
        """Add the keys (batch, heads, pos, d_head) of one site, real where ``real`` says so."""
        found = k.transpose(1, 2)[real.bool()]  # (tokens, heads, d_head)
        room = KEPT - self._kept.get(row, 0)
        if room > 0:
            self._parts.setdefault(row, []).append(found[:room].cpu().double())
            self._kept[row] = self._kept.get(row, 0) + len(found[:room])

    def errors(self, times: float) -> Iterator[tuple[str, int, int, np.ndarray]]:
        """Yield (readout, N, d, mean over heads of each stretch) for N = times * d_head keys."""
        joined = [torch.cat(parts) for parts in self._parts.values()]
        joined = [keys for keys in joined if keys.shape[1]]
        if not joined:
            return
        width = joined[0].shape[-1]
        n = round(times * width)
        stretches = min(STRETCHES, len(joined[0]) // n) if n > 1 else 0
        if stretches == 0:
            return
        real = torch.ones(stretches, n, dtype=torch.bool)
        sums: dict[str, list[Tensor]] = {}
        for keys in joined:
            parts = keys[: stretches * n].view(stretches, n, *keys.shape[1:]).transpose(1, 2)
            unit, _ = unit_keys(parts, real, centred=False)
            for name, error in readout_errors(unit, real, width**0.5).items():
                sums.setdefault(name, []).append(error)
        for name, errors in sums.items():
            yield name, n, width, torch.cat(errors, dim=1).mean(1).numpy()


def key_memory(own: OwnKeys, width: int, seed: int) -> tuple[KeyMemory, ...]:
    """Measure every readout of random keys of this width, and of the model's own."""
    return (*_random(width, seed), *_of_model(own))


def _random(width: int, seed: int) -> Iterator[KeyMemory]:
    generator = torch.Generator().manual_seed(seed % 2**63)
    for n in (round(times * width) for times in TIMES):
        if n < 2:
            continue
        drawn = [simulate(n, width, generator) for _ in range(DRAWS)]
        for readout in READOUTS:
            values = np.array([draw[readout] for draw in drawn])
            expected = closed_form(readout, n, width)
            sem = float(values.std(ddof=1) / np.sqrt(DRAWS))
            gap = None if expected is None else float(values.mean()) - expected
            # With N <= d keys nothing is missed but rounding, in every draw.
            sems = None if gap is None or sem < 1e-12 else gap / sem
            yield KeyMemory(
                kind="random",
                readout=readout,
                keys=n,
                width=width,
                error=_over(values),
                expected=expected,
                sems=sems,
                draws=DRAWS,
            )


def _of_model(own: OwnKeys) -> Iterator[KeyMemory]:
    for times in TIMES:
        for readout, n, width, values in own.errors(times):
            yield KeyMemory(
                kind="own",
                readout=readout,
                keys=n,
                width=width,
                error=_over(values),
                expected=closed_form(readout, n, width),
                sems=None,
                draws=len(values),
            )


def _over(values: Sequence[float] | np.ndarray) -> Estimated:
    """Mean with its t interval, unknown for a single value."""
    x = np.asarray(values, dtype=float)
    mean = float(x.mean())
    if len(x) < 2:
        return Estimated(mean)
    half = finite(float(t_half_width(x.std(ddof=1) / np.sqrt(len(x)), np.array(len(x)))))
    return Estimated(mean) if half is None else Estimated(mean, mean - half, mean + half)
