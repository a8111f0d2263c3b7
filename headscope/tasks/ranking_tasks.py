r"""Tasks of queries and documents: retrieval by embeddings, and reranking by a cross-encoder.

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

import random
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.core.accumulator import Array, numpy
from headscope.core.errors import InputError
from headscope.core.rounding import EPS
from headscope.data.examples import Examples
from headscope.data.token_rows import Padded, Row, encode_rows
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.pooling import wide
from headscope.models.run.task_heads import Select
from headscope.stats.metrics import Metric, Outputs, mean_of, rate_of
from headscope.tasks.base import (
    TOKEN_HEADS,
    Taken,
    Task,
    need_logits,
    one_position,
)
from headscope.tasks.encoder_tasks import notes_of, tokenised

TOP = 10  # Documents of a ranking that count.
#: What cosines are multiplied by in the loss of retrieval, and irrelevant documents of a query.
_SCALE = 20.0
_NEGATIVES = 4
_AT_ONCE = 1 << 22  # Scores of queries and documents that are held at a time: 32 MiB.


class Retrieval(Task):
    """nDCG@10 of all documents by the cosine of their embeddings with each query's, times 100.

    * ``ndcg_at_10``: mean over queries; the grade is the gain. The task's value.
    * ``recall_at_10``: share of a query's relevant documents that are among the first ten, mean.
    * ``top_10_changed``: share of queries whose first ten documents, in whatever order, are not the
      whole model's.

    An example is a query: all documents are there for each of them. The loss of a query with a
    relevant document d and others e drawn at random is the cross-entropy of d by 20 cos(q, .).
    """

    name = "retrieval"
    words = "nDCG@10 of documents by their cosine with queries; queries, documents, relevance"
    table = {  # noqa: RUF012
        "ndcg_at_10": mean_of("ndcg", 100.0),
        "recall_at_10": mean_of("recall", 100.0),
        "top_10_changed": rate_of("changed"),
    }

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        texts = list(dict.fromkeys((*examples.first, *examples.documents)))
        rows, fitting = tokenised(loaded, [loaded.pooling.prompt + text for text in texts])
        row_of = {texts[i]: row.index for i, row in zip(fitting, rows, strict=True)}
        indices = [i for i, text in enumerate(examples.documents) if text in row_of]
        longer = len(examples.documents) - len(indices)
        known = examples.with_documents(indices)
        queries = [
            i
            for i, (text, grades) in enumerate(zip(known.first, known.relevance or (), strict=True))
            if text in row_of and max(grades.values(), default=0.0) > 0
        ]
        known = known.pick(queries)
        self.notes = (*examples.notes, *notes_of(loaded, rows), *_longer(longer, len(texts)))
        self.relevance: Sequence[Mapping[int, float]] = known.relevance or ()
        self._names = known.ids or known.first
        self._queries = np.array([row_of[text] for text in known.first])
        self._documents = np.array([row_of[text] for text in known.documents])
        return rows, len(queries) if len(indices) > 1 else 0, len(examples)

    @property
    def rows_of_examples(self) -> Sequence[Sequence[Row]]:
        """The query; documents belong to all examples."""
        return [(self.rows[row],) for row in self._queries.tolist()]

    def changed(self, outputs: Outputs) -> tuple[str, ...]:
        """Name the queries whose first ten documents changed."""
        return tuple(self._names[i] for i in outputs["query"][outputs["changed"] > 0].tolist())

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where every query finds the same documents first."""
        same = (outputs["top"] == outputs["top"][:1]).all()
        return "finds the same first documents for every query" if same else None

    def _select(self, batch: Padded) -> Select | None:
        # The head of a language model is not needed, and costs as much as the encoder.
        return one_position if self.distance.head in TOKEN_HEADS else None

    def _select_embed(self, batch: Padded) -> Select | None:
        return self._select(batch)

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        return {"embedding": self._unit(batch, hidden).float()}

    def _unit(self, batch: Padded, hidden: Tensor) -> Tensor:
        return F.normalize(self.pooling.embed(hidden, batch.attention_mask), dim=-1)

    def _by_example(self, by_row: dict[str, Array]) -> dict[str, Array]:
        tops: list[Array] = []
        judged: list[tuple[float, float]] = []
        for part in self._steps(by_row["embedding"]):
            tops.append(first_documents(part))
            grades = self.relevance[len(judged) : len(judged) + len(part)]
            judged += map(ndcg_and_recall, part, grades)
        top = np.concatenate(tops)
        (gains, recalls) = np.array(judged).T
        return {
            "ndcg": gains,
            "recall": recalls,
            "changed": (np.sort(top) != np.sort(self._full_top)).any(axis=1).astype(float),
            "top": top,
            "query": np.arange(len(top)),
        }

    @cached_property
    def _full_top(self) -> Array:
        """The full model's first documents, (queries, 10)."""
        embedding = numpy(F.normalize(self.distance.embeddings(), dim=-1).float())
        return np.concatenate([first_documents(part) for part in self._steps(embedding)])

    def _steps(self, embedding: Array) -> Iterator[Array]:
        """Yield the scores of all documents for some queries at a time, by embeddings (rows, d)."""
        queries, documents = (
            embedding[rows].astype(float) for rows in (self._queries, self._documents)
        )
        few = max(1, _AT_ONCE // len(documents))
        for i in range(0, len(queries), few):
            yield on_grid(queries[i : i + few] @ documents.T, 1.0)

    def _sets(self) -> Iterator[list[Row]]:
        """Yield rows of a query, its best document and others that are not relevant."""
        for i, (query, grades) in enumerate(zip(self._queries, self.relevance, strict=True)):
            rng = random.Random(self._seed * 1_000_003 + i)
            best = max(sorted(grades), key=lambda index: grades[index])
            others = [p for p in range(len(self._documents)) if grades.get(p, 0.0) <= 0]
            drawn = rng.sample(others, min(_NEGATIVES, len(others)))
            yield [self.rows[row] for row in (query, *self._documents[[best, *drawn]])]

    def _loss_of_sets(
        self, sets: list[int], batch: Padded, hidden: Tensor, logits: Tensor | None
    ) -> Tensor:
        query, *documents = torch.split(self._unit(batch, hidden), len(sets))
        scores = torch.stack([(query * each).sum(dim=-1) for each in documents], dim=-1)
        return -(_SCALE * wide(scores)).log_softmax(dim=-1)[:, 0]


class Rerank(Task):
    """How a cross-encoder, whose one logit is a score, orders the documents of each query; x100.

    * ``ndcg_at_10``: mean over queries, where the data have labels; then it is the task's value.
    * ``kendall_tau``: Kendall's tau with the whole model's order of the same documents, mean over
      queries; 100 is unchanged. The task's value where there are no labels.

    An example is a query. The labelled loss of a pair is the binary cross-entropy of its logit with
    its grade as a share of the highest; without labels it is the squared change of the logit.
    """

    name = "rerank"
    words = "nDCG@10, or the order kept, of a cross-encoder; queries with documents"
    head = "classification"

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        classes = loaded.network.config.num_labels
        if classes != 1:
            raise InputError(
                f"The head of {loaded.name} has {classes} outputs; the task rerank needs a "
                "cross-encoder, whose head has one: the score of a query with a document."
            )
        pairs = [(i, j) for i, documents in enumerate(examples.candidates or ()) for j in documents]
        encoded = encode_rows(
            loaded,
            [examples.first[i] for i, _ in pairs],
            [examples.documents[j] for _, j in pairs],
        )
        graded = examples.relevance
        longer = 0
        of_query: dict[int, list[tuple[Row, float]]] = {}
        for (i, j), row in zip(pairs, encoded, strict=True):
            longer += row is None
            if row is not None:
                grade = 0.0 if graded is None else graded[i].get(j, 0.0)
                of_query.setdefault(i, []).append((row, grade))
        rows: list[Row] = []
        grades: list[float] = []
        self._of = list[Array]()
        texts: list[str] = []
        for i, items in of_query.items():
            if len(items) > 1 and (graded is None or max(grade for _, grade in items) > 0):
                self._of.append(np.arange(len(rows), len(rows) + len(items)))
                texts.append(examples.first[i])
                rows += [row for row, _ in items]
                grades += [grade for _, grade in items]
        self.has_labels = graded is not None
        self.notes = (*examples.notes, *_longer(longer, len(pairs)))
        self._texts = texts
        self._grades = np.array(grades)
        tau: Metric = mean_of("tau", 100.0)
        gain: Metric = mean_of("ndcg", 100.0)
        self.table = {**({"ndcg_at_10": gain} if self.has_labels else {}), "kendall_tau": tau}
        rows = [replace(row, index=i) for i, row in enumerate(rows)]
        return rows, len(texts), len(examples)

    @property
    def rows_of_examples(self) -> Sequence[Sequence[Row]]:
        """All pairs of each query."""
        return [[self.rows[row] for row in rows.tolist()] for rows in self._of]

    @property
    def sentences(self) -> Sequence[Sequence[Hashable]]:
        """The query; documents may belong to several."""
        return [(text,) for text in self._texts]

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where no document has a higher score than another of the same query."""
        if outputs["ordered"].any():
            return None
        return "gives all documents of a query the same score"

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        return {"score": need_logits(logits)[:, 0].float()}

    def _by_example(self, by_row: dict[str, Array]) -> dict[str, Array]:
        steps = on_grid(by_row["score"].astype(float))
        full_steps = self._full_steps
        outputs = {
            "tau": np.array([order_kept(full_steps[rows], steps[rows]) for rows in self._of]),
            "ordered": np.array([np.ptp(steps[rows]) > 0 for rows in self._of]),
        }
        if self.has_labels:
            grades = [dict(enumerate(self._grades[rows].tolist())) for rows in self._of]
            pairs = zip(self._of, grades, strict=True)
            gains = [ndcg_and_recall(steps[rows], graded)[0] for rows, graded in pairs]
            outputs["ndcg"] = np.array(gains)
        return outputs

    @cached_property
    def _full_steps(self) -> Array:
        """The full model's scores on the grid, (rows,)."""
        return on_grid(numpy(self.distance.logits()[:, 0].float()).astype(float))

    def _loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        scores = wide(need_logits(logits)[:, 0])
        share = self._grades[batch.index].clip(min=0.0) / self._grades.max()
        gold = torch.as_tensor(share, device=scores.device).to(scores.dtype)
        return F.binary_cross_entropy_with_logits(scores, gold, reduction="none")

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return the logit, (rows, 1)."""
        return wide(need_logits(logits))


def _longer(longer: int, n: int) -> tuple[str, ...]:
    if not longer:
        return ()
    return (
        f"{longer:,} of {n:,} texts are longer than the model's limit and left out, with what is "
        "judged of them.",
    )


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
    first = np.argsort(-steps, axis=1, kind="stable")[:, :k]
    return np.pad(first, ((0, 0), (0, k - first.shape[1])), constant_values=-1)


def ndcg_and_recall(steps: Array, grades: Mapping[int, float], k: int = TOP) -> tuple[float, float]:
    """Return nDCG and recall of one query's ranking, as means over all orders of tied documents.

    nDCG is the discounted gain of the first ``k`` documents, divided by that of the best order: the
    gain is sum_i grade_i / log2(i + 1) over ranks i = 1 ... k; documents that were not judged, and
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
    # The worth of a rank is its mean over the tied documents that may hold it.
    score = steps[list(relevant)][:, None]
    # ranks of its ties
    before = (steps > score).sum(axis=1)
    behind = (steps >= score).sum(axis=1)
    worth = np.stack([discounts, np.ones(k)])  # of each of the first ranks
    total = np.pad(np.cumsum(worth, axis=1), ((0, 0), (1, 0)))
    first, last = (np.minimum(rank, k) for rank in (before, behind))
    discount, among_first = (total[:, last] - total[:, first]) / (behind - before)
    return float(discount @ gains / (best @ discounts[: len(best)])), float(among_first.mean())


def order_kept(reference: Array, other: Array) -> float:
    """Return Kendall's tau of two lists of scores of the same documents, (documents,) of int64.

    The mean of sign(a_i - a_j) sign(b_i - b_j) over the pairs that ``reference`` does not tie: 1
    for the same order, -1 for the reverse, and a pair that only ``other`` ties counts 0. 1 where
    ``reference`` ties everything: there is no order that could be lost.
    """
    first, second = (np.sign(x[:, None] - x[None, :]) for x in (reference, other))
    pairs = np.count_nonzero(first)
    return float((first * second).sum() / pairs) if pairs else 1.0
