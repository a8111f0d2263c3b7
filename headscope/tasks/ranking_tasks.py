r"""Tasks of queries and documents: retrieval by embeddings, and reranking by a cross-encoder.

First the two tasks, then how a ranking is measured. ``relevance`` has, for each query, the grade of
every document that was judged.

A task (:mod:`.base`) has these methods: ``_take`` makes rows of token ids of the examples,
``_read`` keeps numbers of each row of a batch that has run, ``_by_example`` makes numbers of each
example of them. ``_loss``, and the output e of ``_embed``, are differentiated by gates of heads.

Documents are ordered by falling score. nDCG and recall are means over all orders of tied documents,
so that the order of a file does not matter (McSherry & Najork 2008, ECIR); where one order is
needed, tied documents keep theirs. Scores are rounded to a grid of 16 EPS (of float32) of the
largest one before they are compared: those of equal texts differ by rounding alone, in another way
on another processor.

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
from headscope.core.widest import wide
from headscope.data.examples import Examples
from headscope.data.token_rows import Padded, Row, encode_rows
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.task_heads import Select
from headscope.stats.metrics import Metric, Outputs, mean_of, rate_of
from headscope.tasks.base import Taken, Task
from headscope.tasks.positions import TOKEN_HEADS, need_logits, one_position
from headscope.tasks.text_rows import notes_of, tokenised

TOP = 10  # Documents of a ranking that count.
_SCALE = 20.0  # Factor of cosines in the loss of retrieval.
_NEGATIVES = 4  # Irrelevant documents that are drawn for each query in that loss.
_MOST_SCORES = 1 << 22  # Scores of queries and documents that are held at a time: 32 MiB.


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
        """Tokenise every different text once; keep queries with a relevant document that fits."""
        pooling = loaded.pooling
        same_prompt = pooling.query_prompt == pooling.document_prompt == pooling.prompt
        if not pooling.pools_prompt and not same_prompt:
            raise InputError(
                f"The folder of {loaded.name} leaves the prompts of queries and documents out of "
                "its pooling (include_prompt), which headscope follows for the default prompt "
                "alone; choose the task similarity, or set include_prompt to true."
            )
        query_texts = [pooling.query_prompt + text for text in examples.first]
        document_texts = [pooling.document_prompt + text for text in examples.documents]
        texts = list(dict.fromkeys((*query_texts, *document_texts)))
        rows, fitting = tokenised(loaded, texts)
        row_of = {texts[i]: row.index for i, row in zip(fitting, rows, strict=True)}

        # Documents that fit, then queries that fit and have a relevant one among these.
        documents = [i for i, text in enumerate(document_texts) if text in row_of]
        n_longer = len(document_texts) - len(documents)
        fitting_examples = examples.with_documents(documents)
        queries: list[int] = []
        for i, text in enumerate(query_texts):
            if text in row_of and fitting_examples.can_be_ranked(i, fewest=0):
                queries.append(i)
        fitting_examples = fitting_examples.pick(queries)
        notes = notes_of(loaded, rows, retrieves=True)
        self.notes = (*examples.notes, *notes, *_longer(n_longer, len(texts)))
        self.relevance: Sequence[Mapping[int, float]] = fitting_examples.relevance or ()
        self._names = fitting_examples.ids or fitting_examples.first  # of the queries
        # The rows of all queries, and of all documents.
        self._queries = np.array([row_of[query_texts[i]] for i in queries])
        self._documents = np.array([row_of[document_texts[i]] for i in documents])
        n_measured = len(queries) if len(documents) > 1 else 0
        return rows, n_measured, len(examples)

    @property
    def rows_of_examples(self) -> Sequence[Sequence[Row]]:
        """The query; documents belong to all examples."""
        return [(self.rows[row],) for row in self._queries.tolist()]

    def changed(self, outputs: Outputs) -> tuple[str, ...]:
        """Name the queries whose first ten documents changed."""
        has_changed = outputs["changed"] > 0
        return tuple(self._names[query] for query in outputs["query"][has_changed].tolist())

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
        """Return the unit embedding of each row."""
        return F.normalize(self.pooling.embed(hidden, batch.attention_mask), dim=-1)

    def _by_example(self, by_row: dict[str, Array]) -> dict[str, Array]:
        """Rank all documents for each query, some queries at a time."""
        tops: list[Array] = []  # the first documents of some queries, (queries, 10)
        ndcg: list[float] = []
        recall: list[float] = []
        for scores in self._scores(by_row["embedding"]):
            tops.append(first_documents(scores))
            n_done = len(ndcg)
            relevance = self.relevance[n_done : n_done + len(scores)]
            for scores_of_query, grades in zip(scores, relevance, strict=True):
                gain, share = ndcg_and_recall(scores_of_query, grades)
                ndcg.append(gain)
                recall.append(share)
        top = np.concatenate(tops)
        has_changed = (np.sort(top) != np.sort(self._full_top)).any(axis=1)
        return {
            "ndcg": np.array(ndcg),
            "recall": np.array(recall),
            "changed": has_changed.astype(float),
            "top": top,
            "query": np.arange(len(top)),
        }

    @cached_property
    def _full_top(self) -> Array:
        """The full model's first documents, (queries, 10)."""
        embedding = numpy(F.normalize(self.distance.embeddings(), dim=-1).float())
        return np.concatenate([first_documents(scores) for scores in self._scores(embedding)])

    def _scores(self, embedding: Array) -> Iterator[Array]:
        """Yield the scores of all documents for some queries at a time, by embeddings (rows, d).

        Each (queries, documents), on the grid of :func:`on_grid`.
        """
        queries = embedding[self._queries].astype(float)
        documents = embedding[self._documents].astype(float)
        n_queries = max(1, _MOST_SCORES // len(documents))
        for start in range(0, len(queries), n_queries):
            cosines = queries[start : start + n_queries] @ documents.T
            yield on_grid(cosines, largest=1.0)

    def _sets(self) -> Iterator[list[Row]]:
        """Yield the rows of each query: its own, its best document's, and irrelevant documents'."""
        all_documents = range(len(self._documents))
        for i, (query, grades) in enumerate(zip(self._queries, self.relevance, strict=True)):
            rng = random.Random(self._seed * 1_000_003 + i)
            best = max(sorted(grades), key=lambda document: grades[document])
            irrelevant = [document for document in all_documents if grades.get(document, 0.0) <= 0]
            drawn = rng.sample(irrelevant, min(_NEGATIVES, len(irrelevant)))
            documents = self._documents[[best, *drawn]]
            yield [self.rows[row] for row in (query, *documents)]

    def _loss_of_sets(
        self, sets: list[int], batch: Padded, hidden: Tensor, logits: Tensor | None
    ) -> Tensor:
        """Return the cross-entropy of each query's best document, which comes first."""
        # The batch has all queries, then all best documents, then all first irrelevant ones, ...
        query, *documents = torch.split(self._unit(batch, hidden), len(sets))
        scores = torch.stack([(query * document).sum(dim=-1) for document in documents], dim=-1)
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
        """Tokenise each query with its documents; keep the queries with two or more that fit."""
        classes = loaded.network.config.num_labels
        if classes != 1:
            raise InputError(
                f"The head of {loaded.name} has {classes} outputs; the task rerank needs a "
                "cross-encoder, whose head has one: the score of a query with a document."
            )
        # Keep the queries with two documents or more, one of them relevant where that is known.
        graded_rows, n_longer, n_pairs = _graded_rows(loaded, examples)
        self.has_labels = examples.relevance is not None
        self._rows_of_query: list[Array] = []  # indices of the rows of each query
        self._texts: list[str] = []  # the queries
        rows: list[Row] = []
        grades: list[float] = []
        for query, graded in graded_rows.items():
            grades_of_query = [grade for _, grade in graded]
            if len(graded) < 2 or (self.has_labels and max(grades_of_query) <= 0):
                continue
            self._rows_of_query.append(np.arange(len(rows), len(rows) + len(graded)))
            self._texts.append(examples.first[query])
            rows += [row for row, _ in graded]
            grades += grades_of_query
        self._grades = np.array(grades)

        self.notes = (*examples.notes, *_longer(n_longer, n_pairs))
        table: dict[str, Metric] = {}
        if self.has_labels:
            table["ndcg_at_10"] = mean_of("ndcg", 100.0)
        table["kendall_tau"] = mean_of("tau", 100.0)
        self.table = table
        rows = [replace(row, index=i) for i, row in enumerate(rows)]
        return rows, len(self._texts), len(examples)

    @property
    def rows_of_examples(self) -> Sequence[Sequence[Row]]:
        """All pairs of each query."""
        return [[self.rows[row] for row in rows.tolist()] for rows in self._rows_of_query]

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
        """Compare the order of each query's documents with the full model's and with the grades."""
        scores = on_grid(by_row["score"].astype(float))
        tau = []
        ordered = []  # whether a query's documents have any order at all
        ndcg = []
        for rows in self._rows_of_query:
            tau.append(order_kept(self._full_scores[rows], scores[rows]))
            ordered.append(np.ptp(scores[rows]) > 0)
            if self.has_labels:
                grades = dict(enumerate(self._grades[rows].tolist()))
                gain, _ = ndcg_and_recall(scores[rows], grades)
                ndcg.append(gain)
        outputs = {"tau": np.array(tau), "ordered": np.array(ordered)}
        if self.has_labels:
            outputs["ndcg"] = np.array(ndcg)
        return outputs

    @cached_property
    def _full_scores(self) -> Array:
        """The full model's scores on the grid, (rows,)."""
        return on_grid(numpy(self.distance.logits()[:, 0].float()).astype(float))

    def _loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return the binary cross-entropy of each row's logit with its grade, 0 to 1."""
        scores = wide(need_logits(logits)[:, 0])
        share_of_best = self._grades[batch.index].clip(min=0.0) / self._grades.max()
        gold = torch.as_tensor(share_of_best, device=scores.device).to(scores.dtype)
        return F.binary_cross_entropy_with_logits(scores, gold, reduction="none")

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return the logit, (rows, 1)."""
        return wide(need_logits(logits))


def _graded_rows(
    loaded: LoadedModel, examples: Examples
) -> tuple[dict[int, list[tuple[Row, float]]], int, int]:
    """Tokenise each query with each of its documents, as one row.

    Returns, by the number of the query, the rows that fit, each with the grade of its document;
    then how many rows are too long, and how many there are.
    """
    pairs = []
    for query, documents in enumerate(examples.candidates or ()):
        pairs += [(query, document) for document in documents]
    encoded = encode_rows(
        loaded,
        [examples.first[query] for query, _ in pairs],
        [examples.documents[document] for _, document in pairs],
    )
    n_longer = 0
    graded_rows: dict[int, list[tuple[Row, float]]] = {}
    for (query, document), row in zip(pairs, encoded, strict=True):
        if row is None:
            n_longer += 1
            continue
        grade = 0.0
        if examples.relevance is not None:
            grade = examples.relevance[query].get(document, 0.0)
        graded_rows.setdefault(query, []).append((row, grade))
    return graded_rows, n_longer, len(pairs)


def _longer(n_longer: int, n_texts: int) -> tuple[str, ...]:
    """Say how many texts do not fit the model."""
    if not n_longer:
        return ()
    return (
        f"{n_longer:,} of {n_texts:,} texts are longer than the model's limit and left out, with "
        "what is judged of them.",
    )


# --- how a ranking is measured ---


def on_grid(scores: Array, largest: float | None = None) -> Array:
    """Round scores to whole steps of 16 EPS of the largest one, and return their number (int64)."""
    size = float(np.abs(scores).max(initial=0.0)) if largest is None else largest
    if size == 0.0 or not np.isfinite(size):
        return np.zeros(scores.shape, dtype=np.int64)
    steps = np.nan_to_num(scores / (16 * EPS * size))
    return np.asarray(np.round(steps), dtype=np.int64)


def first_documents(scores: Array, k: int = TOP) -> Array:
    """Return the first ``k`` documents of every query, tied ones in their order: (queries, k).

    ``scores`` (queries, documents) come from :func:`on_grid`. Where there are fewer documents, rows
    end in -1, which is no document's number.
    """
    first = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    n_missing = k - first.shape[1]
    return np.pad(first, ((0, 0), (0, n_missing)), constant_values=-1)


def ndcg_and_recall(
    scores: Array, grades: Mapping[int, float], k: int = TOP
) -> tuple[float, float]:
    """Return nDCG and recall of one query's ranking, as means over all orders of tied documents.

    nDCG is the discounted gain of the first ``k`` documents, divided by that of the best order: the
    gain is sum_i grade_i / log2(i + 1) over ranks i = 1 ... k; documents that were not judged, and
    grades below 0, count 0. Recall is the share of the documents with a grade above 0 that are
    among the first ``k``. Both are 0 where nothing is relevant. ``scores`` (documents,) come from
    :func:`on_grid`.
    """
    relevant = {document: grade for document, grade in grades.items() if grade > 0}
    if not relevant:
        return 0.0, 0.0
    gains = np.array(list(relevant.values()))

    # A relevant document and those tied with it hold the ranks from n_above to n_not_below - 1,
    # counted from 0: scores 9, 7, 7, 3 -> a document with 7 has rank 1 or 2.
    relevant_scores = scores[list(relevant)][:, None]
    n_above = (scores > relevant_scores).sum(axis=1)
    n_not_below = (scores >= relevant_scores).sum(axis=1)

    # Its discount is the mean over these ranks; only the first k of all ranks count.
    discounts = 1.0 / np.log2(np.arange(2, k + 2))
    discount = _mean_over_ranks(discounts, n_above, n_not_below)
    among_first = _mean_over_ranks(np.ones(k), n_above, n_not_below)
    best_gains = np.sort(gains)[::-1][:k]
    best = best_gains @ discounts[: len(best_gains)]
    return float(discount @ gains / best), float(among_first.mean())


def _mean_over_ranks(worth: Array, start: Array, stop: Array) -> Array:
    """Average ``worth`` over the ranks ``start`` to ``stop - 1``; further ranks are worth 0.

    worth [4, 2], start [0, 1], stop [2, 3] -> [3, 1].
    """
    total = np.pad(np.cumsum(worth), (1, 0))  # total[i] is the sum of the first i
    last = len(worth)
    sums = total[np.minimum(stop, last)] - total[np.minimum(start, last)]
    return np.asarray(sums / (stop - start))


def order_kept(reference: Array, other: Array) -> float:
    """Return Kendall's tau of two lists of scores of the same documents, (documents,) of int64.

    It is the mean of sign(a_i - a_j) sign(b_i - b_j) over the pairs that ``reference`` does not
    tie: 1 for the same order, -1 for the reverse; a pair that only ``other`` ties counts 0. It is 1
    where ``reference`` ties everything: there is no order that could be lost.
    """
    reference_order = np.sign(reference[:, None] - reference[None, :])
    other_order = np.sign(other[:, None] - other[None, :])
    n_ordered = np.count_nonzero(reference_order)
    if not n_ordered:
        return 1.0
    return float((reference_order * other_order).sum() / n_ordered)
