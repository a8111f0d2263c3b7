"""What counts as zero, and as equal, after rounding: one tolerance for each kind of decision.

In exact arithmetic a constant has no variance and equal runs do not differ; in floating point both
leave a trace of the size of the dtype in which the data arrived, and it differs from one processor
to the next. So nothing is asked whether it is ``> 0``: it is zero below a share of what it was
computed from.
"""

from __future__ import annotations

import numpy as np

__all__ = ["EPS", "TIE", "VARIANCE", "tied"]

#: Relative rounding of float32, the dtype in which patterns and states arrive.
EPS = float(np.finfo(np.float32).eps)
#: A variance below this share of the mean square is that of a constant. A softmax in float32 has
#: rows that sum to 1 within a few EPS; 64 EPS leave room for a long row, and the square is of them.
VARIANCE = (64 * EPS) ** 2
#: Metrics of two models, as a share of the metric itself, that are nearer than this are equal: an
#: embedding in float32 carries a few EPS through the layers.
TIE = 16 * EPS


def tied(values: np.ndarray, resolution: float) -> np.ndarray:
    """Give values that a chain of gaps of at most ``resolution`` joins the smallest of them."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.diff(ordered, prepend=-np.inf) > resolution
    out = np.empty_like(ordered)
    out[order] = ordered[starts][np.cumsum(starts) - 1]
    return out
