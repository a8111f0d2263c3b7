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

#: Eigenvalues below this multiple of the largest are what float64 rounding leaves of a zero.
_ROUNDING = 4 * float(np.finfo(np.float64).eps)


class MatrixPool:
    """Applies a function to stacked matrices on all cores; a context manager.

    By default ``workers`` are as many as torch uses threads (OMP_NUM_THREADS decides); each has one
    thread of BLAS.
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
        """Return what ``function`` makes of matrices (..., n, n), in float64 on the CPU."""
        flat = matrices.detach().to("cpu", torch.float64).flatten(0, -3).numpy()
        stacks = np.array_split(flat, max(1, min(len(flat), self.workers)))
        results = np.concatenate([*self._executor.map(function, stacks)])
        return results.reshape(*matrices.shape[:-2], *results.shape[1:])


def singular_values(matrices: Array) -> Array:
    """Return the singular values of float64 matrices (..., n, n), descending: (..., n).

    Those below 3e-8 of the largest, where float64 cannot tell them from zero, are exactly 0.
    """
    descending = np.linalg.eigvalsh(np.swapaxes(matrices, -1, -2) @ matrices)[..., ::-1]
    certain = descending > _ROUNDING * descending[..., :1]
    return np.asarray(np.sqrt(np.where(certain, descending, 0.0)))


def right_vectors(matrices: Array) -> Array:
    """Return the right singular vectors as columns, (..., n, n), the most important first."""
    _, vectors = np.linalg.eigh(np.swapaxes(matrices, -1, -2) @ matrices)
    return vectors[..., ::-1]
