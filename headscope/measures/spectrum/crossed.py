"""Means over sequences and random draws, with an interval that both spreads enter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headscope.measures.accumulator import Array
from headscope.measures.statistics import t_half_width


@dataclass(frozen=True)
class CrossedMean:
    """Means, how sure they are, and how much of that is the draws."""

    mean: Array  # Over sequences and draws.
    sem: Array  # Standard error; NaN for a single sequence.
    half_width: Array  # Half of the 95% interval; infinite for a single sequence: it is unknown.
    #: Standard deviation between draws, each averaged over sequences; 0 where nothing is drawn.
    draw_std: Array


def crossed_mean(values: Array) -> CrossedMean:
    """Average values that were measured on every sequence with every random draw.

    With s the standard error over sequences (each averaged over draws) and d that over draws (each
    averaged over sequences)::

        sem^2 = s^2 + d^2        half_width^2 = (t_{S-1} s)^2 + (t_{D-1} d)^2

    What sequences and draws have in common is counted twice, so the interval is rather too wide.

    Howe 1974, JASA 69: limits for the mean of a sum, from the limits of its two parts.

    Shapes: ``values`` (sequences, draws, ...).
    """
    by_sequence, by_draw = values.mean(axis=1), values.mean(axis=0)
    sequences, draws = values.shape[:2]
    of_sequences = _standard_error(by_sequence)
    of_draws = _standard_error(by_draw) if draws > 1 else np.zeros_like(by_draw[0])
    wide_draws = t_half_width(of_draws, np.array(draws)) if draws > 1 else of_draws
    wide_sequences = t_half_width(of_sequences, np.array(sequences))
    return CrossedMean(
        mean=by_sequence.mean(axis=0),
        sem=np.hypot(of_sequences, of_draws),
        half_width=np.hypot(wide_sequences, wide_draws),
        draw_std=of_draws * np.sqrt(draws),
    )


def _standard_error(values: Array) -> Array:
    """Standard error of the mean over the first axis; NaN for a single value."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    return np.asarray(values.std(axis=0, ddof=1) / np.sqrt(len(values)))
