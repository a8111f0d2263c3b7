"""What counts as zero, and as equal, after rounding: one tolerance for each kind of decision.

In exact arithmetic a constant has no variance and equal runs do not differ; in floating point both
leave a trace of the size of the dtype in which the data arrived, and it differs from one processor
to the next. So nothing is asked whether it is ``> 0``: it is zero below a share of what it was
computed from.
"""

from __future__ import annotations

import numpy as np

__all__ = ["CONSTANT_ROW", "COSINE", "EPS", "METRIC", "VARIANCE"]

#: Relative rounding of float32, the dtype in which patterns and states arrive.
EPS = float(np.finfo(np.float32).eps)
#: A variance below this share of the mean square is that of a constant. A softmax in float32 has
#: rows that sum to 1 within a few EPS; 64 EPS leave room for a long row, and the square is of them.
VARIANCE = (64 * EPS) ** 2
#: A row of scores whose spread is below this share of the scores themselves is constant: each score
#: is a sum of d_head float32 products, which 64 EPS leave room for.
CONSTANT_ROW = 64 * EPS
#: Cosines to the same embedding that differ by less are equal: embeddings are float32 sums over
#: all layers and tokens.
COSINE = 64 * EPS
#: Two values of a task's metric, or two areas under its curves, that differ by less than this share
#: of themselves are equal: they are means of what float32 outputs say.
METRIC = 64 * EPS
