"""Queries and the documents that answer them: a folder as BEIR has it, rows of query and document.

Three forms are read.

* A folder with ``corpus.jsonl`` (``_id``, ``title``, ``text``), ``queries.jsonl`` (``_id``,
  ``text``) and ``qrels/test.tsv`` (a header, then query-id, corpus-id, score). Another file in
  ``qrels/`` is chosen by its path in place of the folder's. A document is its title, a space and
  its text. Every document is ranked for every query, also one with the query's own name.
* Rows of query, document and label: grades above 0 are relevant. Each different document is one.
* Scored pairs of sentences (STS-B): the first sentences of pairs with a score of 4 or more are the
  queries, all second sentences the documents, and relevant are those of such pairs.

In the second form, a cross-encoder orders the documents of a query's rows, its *candidates*; in the
others, all documents that were judged for the query, and the best ones by BM25 until there are 20.
What was judged becomes ``relevance``: of each query the grades of documents by their indices.

:func:`read_retrieval` and :func:`read_rerank` are what tasks call, :func:`with_candidates` and
:func:`thinned` choose documents and queries; behind BM25 stands how each form is read.

References
----------
Thakur et al. 2021, arXiv:2104.08663 (BEIR); Robertson & Zaragoza 2009 (BM25, k1 1.2, b 0.75).
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from headscope.core.errors import CorpusError
from headscope.core.files import sha256_of, sha256_of_file
from headscope.data.columns import Columns, Texts, plain
from headscope.data.examples import SCORED, Examples, check_size, read_pairs
from headscope.data.tables import header_of, notes_on, number_in, read_records

RELEVANT = 4.0  # Least score of a pair whose second sentence answers the first.
CANDIDATES = 20  # Documents that a cross-encoder orders for a query, unless more were judged.
_K1 = 1.2  # Of BM25: how soon more of a word counts no more
_B = 0.75  # Of BM25: how much a document's length counts
_DOCUMENTS = ("document", "doc", "passage", "text")  # What a header may call documents
_QUERY_TABLES = [Texts("query", document) for document in _DOCUMENTS]
_QUESTION_TABLES = [Texts("question", document) for document in _DOCUMENTS]
_TRIPLES = Columns(
    names={"label": ("label", "score", "relevance", "grade")},
    order={2: ("query", "document"), 3: ("query", "document", "label")},
    needed=("query", "document"),
    text_columns=("query", "document"),
    tables=(*_QUERY_TABLES, *_QUESTION_TABLES),
)
#: Columns of corpus.jsonl and queries.jsonl.
_TEXTS = Columns(
    names={"_id": ("id",), "title": ("title",), "text": ("text",)}, order={}, needed=("_id",)
)
#: Columns of the files in qrels/.
_QRELS = Columns(
    names={
        "query": ("queryid", "query"),
        "document": ("corpusid", "docid", "document"),
        "label": ("score", "label", "relevance"),
    },
    order={3: ("query", "document", "label")},
    needed=("query", "document", "label"),
)
#: Query, document, grade. Of a folder both are ids, in other forms the texts themselves; the grade
#: is None in rows without labels.
_Judged = tuple[str, str, float | None]


def read_retrieval(path: str | Path) -> Examples:
    """Read queries, all documents, and which of these are relevant."""
    examples = _read(Path(path))
    if examples.relevance is None:
        raise CorpusError(
            f"{path} does not say which documents are relevant; give a folder with qrels/test.tsv, "
            "or rows of query, document and label."
        )
    return _measurable(examples)


def read_rerank(path: str | Path) -> Examples:
    """Read queries with documents that a cross-encoder orders.

    Labels may be missing (``relevance`` is None), and so may the documents to order (``candidates``
    is None, see :func:`with_candidates`).
    """
    examples = _read(Path(path))
    if examples.relevance is None and examples.candidates is None:
        return examples
    return _measurable(examples, fewest=1 if examples.candidates is None else 2)


def with_candidates(examples: Examples) -> Examples:
    """Choose the documents that are to be ordered for each query, where the data name none."""
    if examples.candidates is not None:
        return examples
    no_grades: dict[int, float] = {}
    grades_of_queries = examples.relevance or [no_grades] * len(examples)
    best_of_queries = best_by_bm25(examples.first, examples.documents, CANDIDATES)
    candidates = []
    for grades, best in zip(grades_of_queries, best_of_queries, strict=True):
        judged_first = dict.fromkeys((*sorted(grades), *best))  # each document once
        count = max(CANDIDATES, len(grades))
        candidates.append(tuple(islice(judged_first, count)))
    return replace(examples, candidates=tuple(candidates))


def thinned(examples: Examples, limit: int, seed: int) -> Examples:
    """Draw queries and documents at random, about ``limit`` texts in all.

    Where each query has its candidates, whole queries are drawn, and each pair of a query and a
    candidate counts as two texts. Else a quarter of the texts are queries, and the documents that
    are relevant to them are always kept.
    """
    rng = random.Random(seed)
    n = len(examples)
    order = rng.sample(range(n), n)  # indices of queries, shuffled

    # Queries with their candidates, at least two.
    if examples.candidates is not None:
        n_pairs = 0
        chosen: list[int] = []
        for query in order:
            n_candidates = len(examples.candidates[query])
            if len(chosen) >= 2 and 2 * (n_pairs + n_candidates) > limit:
                break
            chosen.append(query)
            n_pairs += n_candidates
        return examples.pick(sorted(chosen))

    # Queries, the documents that are relevant to them, and as many others as fit.
    if n + len(examples.documents) <= limit:
        return examples
    few_queries = examples.pick(sorted(order[: max(2, limit // 4)]))
    relevant: set[int] = set()
    for grades in few_queries.relevance or ():
        relevant.update(index for index, grade in grades.items() if grade > 0)
    irrelevant = [index for index in range(len(examples.documents)) if index not in relevant]
    n_irrelevant = max(limit - len(few_queries) - len(relevant), 0)
    drawn = rng.sample(irrelevant, min(n_irrelevant, len(irrelevant)))
    return few_queries.with_documents(sorted(relevant.union(drawn)))


def best_by_bm25(
    queries: Sequence[str], documents: Sequence[str], k: int
) -> Iterator[tuple[int, ...]]:
    """Yield the first ``k`` documents of each query, ties in their order.

    Words are runs of letters, digits and underscores in lower case.
    """
    # Index every word: the documents that hold it, and what it is worth in each by its frequency.
    counts = [Counter(_words(text)) for text in documents]
    lengths = [count.total() for count in counts]
    mean_length = sum(lengths) / len(lengths) or 1.0
    postings: dict[str, list[tuple[int, float]]] = {}
    for index, count in enumerate(counts):
        norm = _K1 * (1 - _B + _B * lengths[index] / mean_length)
        for word, frequency in count.items():
            saturated = frequency * (_K1 + 1) / (frequency + norm)
            postings.setdefault(word, []).append((index, saturated))

    # Score the documents of each query.
    for query in queries:
        scores = dict.fromkeys(range(len(documents)), 0.0)
        for word in _words(query):
            hits = postings.get(word, [])
            idf = math.log(1 + (len(documents) - len(hits) + 0.5) / (len(hits) + 0.5))
            for index, saturated in hits:
                scores[index] += idf * saturated
        ranking = sorted(scores, key=lambda index: (-scores[index], index))
        yield tuple(ranking[:k])


def _words(text: str) -> list[str]:
    """List the words of a text for BM25, in lower case."""
    return re.findall(r"\w+", text.lower())


def _read(path: Path) -> Examples:
    """Read any of the three forms; the header of a table says which of the last two it is."""
    if path.is_dir():
        return _read_folder(path, path / "qrels" / "test.tsv")
    if path.parent.name == "qrels" and (path.parents[1] / "corpus.jsonl").exists():
        return _read_folder(path.parents[1], path)
    header = header_of(path, _TRIPLES) or header_of(path, SCORED)
    if header is None:  # in CSV without a header the usual rows are those of STS-B
        are_triples = path.suffix.lower() != ".csv"
    else:
        names = frozenset(map(plain, header))
        are_triples = "query" in names or any(table.fit(names) for table in _TRIPLES.tables)
    return _read_triples(path) if are_triples else _read_scored(path)


def _read_triples(path: Path) -> Examples:
    """Read rows of query, document and label; those of a query are its candidates."""
    judged = _judged_rows(path)
    if header_of(path, _TRIPLES) is None:
        _refuse_scores(path, judged)
    # The texts serve as their own ids; each counts once.
    queries = {query: query for query, _, _ in judged}
    documents = {document: document for _, document, _ in judged}
    examples = _joined(
        name=str(path),
        sha256=sha256_of_file(path),
        queries=queries,
        documents=documents,
        judged=judged,
    )
    index_of = {document: index for index, document in enumerate(documents)}
    candidates: dict[str, dict[int, None]] = {query: {} for query in queries}
    for query, document, _ in judged:
        candidates[query][index_of[document]] = None
    return replace(
        examples,
        candidates=tuple(map(tuple, candidates.values())),
        ids=None,
        notes=(*examples.notes, *notes_on(path, _TRIPLES)),
    )


def _judged_rows(path: Path) -> list[_Judged]:
    """Read rows of query, document and label; all of them have a label, or none."""
    rows = list(read_records(path, _TRIPLES))
    graded = [bool(cells.get("label", "").strip()) for _, cells in rows]
    if any(graded) and not all(graded):
        line = rows[graded.index(False)][0]
        raise CorpusError(f"{path}, line {line}: no label, though other rows have one.")
    judged: list[_Judged] = []
    for line, cells in rows:
        grade = number_in(path, line, "label", cells["label"]) if any(graded) else None
        judged.append((cells["query"].strip(), cells["document"].strip(), grade))
    return judged


def _refuse_scores(path: Path, judged: Sequence[_Judged]) -> None:
    """Refuse grades with fractions in rows without a header: these may be scored pairs."""
    if any(grade is not None and not grade.is_integer() for _, _, grade in judged):
        raise CorpusError(
            f"{path} has no header and scores with fractions; name the columns query, document, "
            "label (more than 0 is relevant) or sentence1, sentence2, score (4 or more)."
        )


def _read_scored(path: Path) -> Examples:
    """Make queries and documents of scored pairs of sentences."""
    pairs = read_pairs(path)
    scored = zip(pairs.first, pairs.second or (), pairs.scores or (), strict=True)
    judged: list[_Judged] = [
        (first.strip(), second.strip(), 1.0) for first, second, score in scored if score >= RELEVANT
    ]
    if not judged:
        raise CorpusError(
            f"{path}: no pair has a score of {RELEVANT:g} or more, so no sentence answers another; "
            "give scores of 0 to 5, as STS-B has them, or rows of query, document and label."
        )
    # The texts serve as their own ids; each counts once.
    documents = {text.strip(): text.strip() for text in pairs.second or ()}
    queries = {query: query for query, _, _ in judged}
    examples = _joined(
        name=pairs.name,
        sha256=pairs.sha256,
        queries=queries,
        documents=documents,
        judged=judged,
    )
    return replace(examples, ids=None, notes=(*examples.notes, *pairs.notes))


def _read_folder(folder: Path, qrels: Path) -> Examples:
    """Read a folder as BEIR has it; grades may be missing."""
    corpus_file = folder / "corpus.jsonl"
    query_file = folder / "queries.jsonl"
    for file in (corpus_file, query_file):
        if not file.exists():
            raise CorpusError(
                f"{folder} holds no {file.name}; a folder of queries and documents has "
                "corpus.jsonl, queries.jsonl and qrels/test.tsv, as BEIR has them."
            )
    documents = _read_texts(corpus_file)
    queries = _read_texts(query_file)
    files = [corpus_file, query_file]
    judged: list[_Judged] = []
    if qrels.exists():
        files.append(qrels)
        judged = [
            (row["query"], row["document"], number_in(qrels, line, "label", row["label"]))
            for line, row in read_records(qrels, _QRELS)
        ]
    in_files = [query in queries and document in documents for query, document, _ in judged]
    if judged and not any(in_files):
        raise CorpusError(
            f"{qrels} names no query of {query_file.name} with a document of {corpus_file.name}; "
            "the three files do not belong together."
        )
    digest = sha256_of("".join(map(sha256_of_file, files)))
    return _joined(
        name=str(folder),
        sha256=digest,
        queries=queries,
        documents=documents,
        judged=judged,
    )


def _read_texts(file: Path) -> dict[str, str]:
    """Return the text of every line of corpus.jsonl or queries.jsonl by its name."""
    texts: dict[str, str] = {}
    for line, row in read_records(file, _TEXTS):
        name = row["_id"]
        if name in texts:
            raise CorpusError(f"{file}, line {line}: the _id {name!r} stands there twice.")
        texts[name] = f"{row.get('title', '')} {row.get('text', '')}".strip()
    # BEIR's corpora have a few empty documents.
    return {name: text for name, text in texts.items() if text}


def _joined(
    *,
    name: str,
    sha256: str,
    queries: Mapping[str, str],
    documents: Mapping[str, str],
    judged: Sequence[_Judged],
) -> Examples:
    """Make examples of queries and documents (text by id), with the judgements by index."""
    check_size(f"{name}, of queries,", len(queries))
    check_size(f"{name}, of documents,", len(documents))
    index_of = {document: index for index, document in enumerate(documents)}
    relevance: dict[str, dict[int, float]] = {query: {} for query in queries}
    n_unknown = 0
    for query, document, grade in judged:
        if query not in relevance or document not in index_of:
            n_unknown += 1
        elif grade is not None:  # of several grades the highest counts
            index = index_of[document]
            relevance[query][index] = max(relevance[query].get(index, -math.inf), grade)
    note = (
        f"{n_unknown:,} of {len(judged):,} judgements are of queries or documents that are not "
        "there, or are empty; they are left out."
    )
    return Examples(
        name=name,
        sha256=sha256,
        first=tuple(queries.values()),
        ids=tuple(queries),
        documents=tuple(documents.values()),
        relevance=tuple(relevance.values()) if any(relevance.values()) else None,
        notes=(note,) if n_unknown else (),
    )


def _measurable(examples: Examples, fewest: int = 1) -> Examples:
    """Leave out queries without a relevant document, or with fewer candidates than ``fewest``."""
    measurable = [i for i in range(len(examples)) if examples.can_be_ranked(i, fewest)]
    reasons = []
    if examples.relevance is not None:
        reasons.append("no document that is relevant to them")
    if fewest > 1:
        reasons.append("only one document")
    lack = " or ".join(reasons)
    if len(measurable) < 2:
        raise CorpusError(
            f"{examples.name}: {len(measurable)} of {len(examples)} queries can be measured, the "
            f"others have {lack}; give two queries or more (better hundreds)."
        )
    n_left_out = len(examples) - len(measurable)
    if n_left_out:
        note = f"{n_left_out:,} of {len(examples):,} queries are left out: they have {lack}."
        examples = replace(examples, notes=(*examples.notes, note))
    return examples.pick(measurable)
