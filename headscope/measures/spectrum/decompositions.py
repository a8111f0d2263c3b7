"""Singular values and vectors of many small matrices, one matrix per core at a time.

Singular values come from the eigenvalues of the float64 Gram matrix::

    sigma_i(P)^2 = lambda_i(P^T P)

A Gram matrix squares the condition number, so in float32 the small values, which an unsquared
share adds up, drown. In float64, from a pattern that was computed in float32 or less, the share
errs by less than 1e-6, and by 1e-9 on real patterns (docs/spectrum.md has the table), for less
than half the time of a singular value decomposition.

LAPACK inside runs on one thread: at n of some hundred, threads inside a decomposition cost more
than they bring, above all on a machine that is busy.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from headscope.measures.accumulator import Array

#: Eigenvalues below this multiple of the largest are what float64 rounding leaves of a zero.
_ROUNDING = 4 * float(np.finfo(np.float64).eps)


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


class MatrixPool:
    """Runs a function of stacked matrices on all cores; a context manager.

    By default ``workers`` are as many as torch uses threads (OMP_NUM_THREADS decides).
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

    def submit(self, function: Callable[[Array], Array], matrices: Tensor) -> Callable[[], Array]:
        """Start ``function`` on matrices (..., n, n); call what is returned to wait for the result.

        The matrices are copied (to float64, to the CPU), so the caller may go on with them.
        """
        copy = matrices.detach().to("cpu", torch.float64, copy=True)
        flat = copy.numpy().reshape(-1, *matrices.shape[-2:])
        parts = np.array_split(flat, min(len(flat), self.workers))
        started = [self._executor.submit(function, part) for part in parts]
        return lambda: _joined(started, matrices.shape[:-2])

    def map(self, function: Callable[[Array], Array], matrices: Tensor) -> Array:
        """Run ``function`` on matrices and wait for it."""
        return self.submit(function, matrices)()


def _joined(started: list[Future[Array]], leading: torch.Size) -> Array:
    results = np.concatenate([future.result() for future in started])
    return results.reshape(*leading, *results.shape[1:])
