r"""Rankings of documents: nDCG, recall, and how far an order is another one.

Documents are ordered by falling score. nDCG and recall are means over all orders of tied documents,
so that the order of a file does not matter (McSherry & Najork 2008, ECIR); where one order is
needed, tied documents keep theirs. Scores are compared on a grid of 16 EPS of the largest one:
those of equal texts differ by rounding alone, and so may differ from one processor to the next.

References
----------
Jarvelin & Kekalainen 2002, ACM TOIS 20 (nDCG); here with the grade itself as gain, as trec_eval
and BEIR have it (Thakur et al. 2021, arXiv:2104.08663); Kendall 1938, Biometrika 30.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headscope.core.accumulator import Array
from headscope.core.rounding import EPS

TOP = 10  # Documents of a ranking that count.


def on_grid(scores: Array, largest: float | None = None) -> Array:
    """Round scores to whole steps of 16 EPS of the largest one (int64)."""
    size = float(np.abs(scores).max(initial=0.0)) if largest is None else largest
    if size == 0.0 or not np.isfinite(size):
        return np.zeros(scores.shape, dtype=np.int64)
    return np.asarray(np.round(np.nan_to_num(scores / (16 * EPS * size))), dtype=np.int64)


def first_documents(steps: Array, k: int = TOP) -> Array:
    """Return the first ``k`` documents of every query, ties in their order.

    ``steps`` (queries, documents) come from :func:`on_grid`; gives (queries, k), -1 where there are
    fewer documents.
    """
    n_queries, n_documents = steps.shape
    # One number holds score and place: larger scores first, then lower places.
    keys = steps * n_documents + np.arange(n_documents)[::-1]
    few = min(k, n_documents)
    some = np.argpartition(-keys, few - 1, axis=1)[:, :few]
    order = np.argsort(-np.take_along_axis(keys, some, axis=1), axis=1)
    first = np.full((n_queries, k), -1, dtype=np.int64)
    first[:, :few] = np.take_along_axis(some, order, axis=1)
    return first


def ndcg_and_recall(steps: Array, grades: Mapping[int, float], k: int = TOP) -> tuple[float, float]:
    """Return nDCG and recall of one query's ranking, as means over all orders of tied documents.

    nDCG is the discounted gain of the first ``k`` documents, divided by that of the best order: the
    gain is sum_i grade_i / log2(i + 1) over places i = 1 ... k; documents that were not judged, and
    grades below 0, count 0. Recall is the share of the documents with a grade above 0 that are
    among the first ``k``. Both are 0 where nothing is relevant. ``steps`` (documents,) come from
    :func:`on_grid`.
    """
    relevant = {document: grade for document, grade in grades.items() if grade > 0}
    if not relevant:
        return 0.0, 0.0
    discounts = 1.0 / np.log2(np.arange(2, k + 2))
    gains = np.array(list(relevant.values()))
    best = np.sort(gains)[::-1][:k]
    worth = _worth(steps, np.stack([discounts, np.ones(k)]), np.array(list(relevant)))
    return float(worth[0] @ gains / (best @ discounts[: len(best)])), float(worth[1].mean())


def _worth(steps: Array, places: Array, documents: Array) -> Array:
    """Return what some documents' places are worth, (n, documents), as a mean over tied orders.

    ``places`` (n, k) says what each of the first places is worth; the others are worth nothing.
    """
    own = steps[documents][:, None]
    before, behind = (steps > own).sum(axis=1), (steps >= own).sum(axis=1)  # ranks of its ties
    total = np.pad(np.cumsum(places, axis=1), ((0, 0), (1, 0)))
    first, last = (np.minimum(place, places.shape[1]) for place in (before, behind))
    return np.asarray((total[:, last] - total[:, first]) / (behind - before))


def order_kept(whole: Array, other: Array) -> float:
    """Return Kendall's tau of two lists of scores of the same documents, (documents,) of int64.

    The mean of sign(a_i - a_j) sign(b_i - b_j) over the pairs that ``whole`` does not tie: 1 for
    the same order, -1 for the reverse, and a pair that only ``other`` ties counts 0. 1 where
    ``whole`` ties everything: there is no order that could be lost.
    """
    first, second = (np.sign(x[:, None] - x[None, :]) for x in (whole, other))
    pairs = np.count_nonzero(first)
    return float((first * second).sum() / pairs) if pairs else 1.0
