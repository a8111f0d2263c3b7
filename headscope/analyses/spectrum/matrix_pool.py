"""Singular values and vectors of many small matrices, on all cores.

``pool(singular_values, patterns)`` decomposes stacked patterns, shared out to one thread per core.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from headscope.core.accumulator import Array

#: Eigenvalues of M^T M below this multiple of the largest are what rounding leaves of a zero.
_ROUNDING = 4 * float(np.finfo(np.float64).eps)


class MatrixPool:
    """Applies a function to stacked matrices on all cores; a context manager.

    Each worker is a thread in which BLAS uses one thread only. By default there are as many workers
    as torch uses threads (OMP_NUM_THREADS decides).
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or torch.get_num_threads()

    def __enter__(self) -> MatrixPool:
        self._executor = ThreadPoolExecutor(self.workers)
        self._limits = threadpool_limits(limits=1, user_api="blas")
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._limits.restore_original_limits()

    def __call__(self, function: Callable[[Array], Array], matrices: Tensor) -> Array:
        """Apply ``function`` to matrices (..., m, n), in float64 on the CPU.

        It takes stacked matrices (count, m, n), and returns (count, ...).
        """
        flat = matrices.detach().to("cpu", torch.float64).flatten(0, -3).numpy()  # (count, m, n)
        n_stacks = max(1, min(len(flat), self.workers))
        stacks = np.array_split(flat, n_stacks)
        results = np.concatenate(list(self._executor.map(function, stacks)))  # (count, ...)
        return results.reshape(*matrices.shape[:-2], *results.shape[1:])


def singular_values(matrices: Array) -> Array:
    """Return the singular values of float64 matrices (..., n, n), descending: (..., n).

    They are the roots of the eigenvalues of M^T M, which is faster than a decomposition of M. Those
    below 3e-8 of the largest, where float64 cannot tell them from zero, are exactly 0.
    """
    gram = np.swapaxes(matrices, -1, -2) @ matrices  # M^T M
    eigenvalues = np.linalg.eigvalsh(gram)[..., ::-1]  # descending
    above_rounding = eigenvalues > _ROUNDING * eigenvalues[..., :1]
    return np.asarray(np.sqrt(np.where(above_rounding, eigenvalues, 0.0)))


def right_vectors(matrices: Array) -> Array:
    """Return the right singular vectors of matrices (..., m, n) as columns, (..., n, n).

    The first column belongs to the largest singular value.
    """
    gram = np.swapaxes(matrices, -1, -2) @ matrices
    _, vectors = np.linalg.eigh(gram)  # ascending
    return vectors[..., ::-1]
