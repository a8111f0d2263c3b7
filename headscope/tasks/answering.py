"""The task of answering questions by a span of a context.

A context that is too long for the model is cut into overlapping *windows*; a :class:`SpanRow` is
one window, read together with its question. How close an answer is to the right one is counted as
SQuAD does: exact match and F1 of words.

A task (:mod:`.base`) has these methods: ``_take`` makes rows of token ids of the examples,
``_read`` keeps numbers of each row of a batch that has run, ``_by_example`` makes numbers of each
example of them. ``_loss``, and the output e of ``_embed``, are differentiated by gates of heads.

References
----------
Rajpurkar et al. 2016, arXiv:1606.05250; Rajpurkar et al. 2018, arXiv:1806.03822 (no answer).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from headscope.core.accumulator import Array
from headscope.core.widest import wide
from headscope.data.examples import Examples
from headscope.data.pieces import Encoding, tokenise
from headscope.data.token_rows import Padded, Row
from headscope.models.run.loaded import LoadedModel
from headscope.stats.metrics import CLUSTER, Outputs, mean_of, rate_of
from headscope.tasks.base import Taken, Task
from headscope.tasks.positions import need_logits, spans

#: Tokens of a window, question and special tokens included, unless the model has fewer.
WINDOW = 384
#: Tokens of the context that two windows share; half of a window's context where that is less.
OVERLAP = 128
LONGEST = 30  # Tokens of an answer, at most.
_NONE_GIVEN = -1  # Stands for a row, or a token, in arrays of numbers where there is no answer
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True, kw_only=True)
class SpanRow(Row):
    """A question with a window of its context: [CLS] question [SEP] window [SEP].

    Positions are those of tokens in the row.
    """

    example: int  # Number of the question
    window: tuple[int, int]  # Positions of the context's tokens: the first, and behind the last
    #: First and behind the last character, in the context, of each of these tokens.
    offsets: tuple[tuple[int, int], ...]
    no_answer: int  # Position that stands for no answer: the first special token
    #: First and last position of the right answer, of several the first; twice ``no_answer`` where
    #: the window does not hold it.
    span: tuple[int, int]


class QuestionAnswering(Task):
    """F1 and exact match of answers, as SQuAD counts them, times 100.

    * ``answer_f1``: F1 of an answer's words with those of the right answer that it is nearest to,
      mean over questions. The task's value.
    * ``exact_match``: share of questions with a right answer, but for case, punctuation, articles.

    The answer is the span of at most 30 tokens with the largest sum of the logits of its begin and
    end, over all windows of the context (ties: the first window, then the shortest, then the first
    span). Where the file has questions without an answer, none is given if the sum at the first
    special token, at its least over windows, is larger. An example is a question; those
    on one paragraph are not independent, so resamples draw paragraphs. The loss is that of a
    window, the cross-entropy of where the answer begins and ends: at the first special token for a
    window without one.
    """

    name = "question-answering"
    head = "question-answering"
    words = "F1 of answers; questions with contexts in SQuAD's JSON, and a model with that head"
    table = {  # noqa: RUF012
        "answer_f1": mean_of("f1", 100.0),
        "exact_match": rate_of("exact"),
    }

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        """Cut the context of each question into windows; a question without room is left out."""
        contexts = examples.second or ()
        # The right answers to each question, as (first character, text).
        answers = examples.answers or ((),) * len(examples)
        self.notes = examples.notes
        self._may_have_none = examples.may_have_no_answer
        self._rows: list[SpanRow] = []
        # Of each question that fits, in the same order:
        self._windows_of_question: list[list[SpanRow]] = []
        self._texts: list[tuple[str, str]] = []  # the question and its context
        self._right_answers: list[tuple[str, ...]] = []
        for i, encoding in enumerate(tokenise(loaded, examples.first, pairs=contexts)):
            question = len(self._texts)
            windows: list[SpanRow] = []
            for window in _windows(encoding, loaded, answers[i], question):
                windows.append(replace(window, index=len(self._rows) + len(windows)))
            if not windows:
                continue
            self._rows += windows
            self._windows_of_question.append(windows)
            self._texts.append((examples.first[i], contexts[i]))
            self._right_answers.append(tuple(text for _, text in answers[i]))
        return self._rows, len(self._texts), len(examples)

    @property
    def rows_of_examples(self) -> Sequence[Sequence[Row]]:
        """The windows of each question."""
        return self._windows_of_question

    @property
    def sentences(self) -> Sequence[Sequence[Hashable]]:
        """The question, and the context, which other questions may have too."""
        return self._texts

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where every question gets the same answer."""
        same = np.ptp(outputs["answer"]) == 0
        return "gives every question the same answer" if same else None

    def answers(self, outputs: Outputs) -> list[str]:
        """Return the answer to each question; the empty one where none is given."""
        token_spans = zip(outputs["window"], outputs["first"], outputs["last"], strict=True)
        return [self._answer(int(row), int(first), int(last)) for row, first, last in token_spans]

    def _answer(self, row_index: int, first: int, last: int) -> str:
        """Return the text of a row from its first to its last token; "" without an answer."""
        if row_index == _NONE_GIVEN:
            return ""
        row = self._rows[row_index]
        _, context = self._texts[row.example]
        context_begin, _ = row.window
        start, _ = row.offsets[first - context_begin]
        _, stop = row.offsets[last - context_begin]
        return context[start:stop]

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        """Keep the best span of each window, and the sum of logits of giving no answer."""
        scores = wide(need_logits(logits)).double()  # (rows, pos, 2): of beginning, of ending
        rows = [self._rows[i] for i in batch.index]
        context = torch.tensor([row.window for row in rows], device=scores.device)
        no_answer = torch.tensor([row.no_answer for row in rows], device=scores.device)
        best, first, last = _best_spans(scores, context)
        row_numbers = torch.arange(len(rows), device=scores.device)
        return {
            "best": best,
            "first": first,
            "last": last,
            "none": scores[row_numbers, no_answer].sum(dim=-1),
        }

    def _by_example(self, by_row: dict[str, Array]) -> dict[str, Array]:
        """Choose the window that answers each question; compare its answer with the right ones."""
        # The row of the window that answers each question, and the answer's tokens in it.
        chosen = np.array(
            [self._chosen_row(windows, by_row) for windows in self._windows_of_question]
        )
        has_answer = chosen != _NONE_GIVEN
        first = by_row["first"][chosen].astype(int)
        last = by_row["last"][chosen].astype(int)
        outputs = {
            "window": chosen,
            "first": np.where(has_answer, first, _NONE_GIVEN),
            "last": np.where(has_answer, last, _NONE_GIVEN),
        }

        # Equal answers, and equal contexts, have the same number.
        answers = self.answers(outputs)
        pairs = list(zip(answers, self._right_answers, strict=True))
        contexts = [context for _, context in self._texts]
        _, answer_numbers = np.unique(np.array(answers), return_inverse=True)
        _, context_numbers = np.unique(contexts, return_inverse=True)
        return {
            **outputs,
            "f1": np.array([word_f1(answer, right) for answer, right in pairs]),
            "exact": np.array([exact_match(answer, right) for answer, right in pairs]),
            "answer": answer_numbers,
            CLUSTER: context_numbers,
        }

    def _chosen_row(self, windows: Sequence[SpanRow], by_row: dict[str, Array]) -> int:
        """Return the row of the window that answers a question, or ``_NONE_GIVEN``."""
        indices = np.array([window.index for window in windows])
        best_row = int(indices[by_row["best"][indices].argmax()])
        least_none = by_row["none"][indices].min()
        if self._may_have_none and least_none > by_row["best"][best_row]:
            return _NONE_GIVEN
        return best_row

    def _loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return the mean cross-entropy of where the answer begins and where it ends, by row."""
        log_probabilities = spans(need_logits(logits), batch.attention_mask)
        gold_spans = [self._rows[i].span for i in batch.index]
        gold = torch.tensor(gold_spans, device=log_probabilities.device)  # (rows, 2)
        gold_log_probabilities = log_probabilities.gather(1, gold[:, None])  # (rows, 1, 2)
        return -gold_log_probabilities.mean(dim=(1, 2))

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return roots of the probabilities of where the answer begins and ends: (rows, pos * 2).

        Their squared distance is Hellinger's: hundreds of unlikely places count as little
        as they are likely, while they would dominate a distance of log-probabilities.
        """
        real = batch.attention_mask[..., None]
        log_probabilities = spans(need_logits(logits), batch.attention_mask)
        roots = (log_probabilities / 2).exp() * real  # (rows, pos, 2)
        return roots.flatten(1)


def _best_spans(scores: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find the span of at most :data:`LONGEST` tokens with the largest sum of its two logits.

    ``scores`` (rows, pos, 2) are the logits of beginning and ending at each position, ``context``
    (rows, 2) the first position of the context and the one behind its last. Returns the sum, and
    the span's first and last position, (rows,) each; ties go to the shortest span, then to the
    first.
    """
    positions = torch.arange(scores.shape[1], device=scores.device)
    in_context = (positions >= context[:, :1]) & (positions < context[:, 1:])
    begin_scores, end_scores = scores.masked_fill(~in_context[..., None], -torch.inf).unbind(-1)
    best = scores.new_full((len(scores),), -torch.inf)
    first = context[:, 0].clone()
    last = context[:, 0].clone()
    n_positions = scores.shape[1]
    for distance in range(min(LONGEST, n_positions)):  # from the first token to the last
        sums = begin_scores[:, : n_positions - distance] + end_scores[:, distance:]
        largest = sums.max(dim=1).values
        position = (sums == largest[:, None]).int().argmax(dim=1)  # the first of several
        better = largest > best
        best = torch.where(better, largest, best)
        first = torch.where(better, position, first)
        last = torch.where(better, position + distance, last)
    return best, first, last


def normalised(answer: str) -> str:
    """Return an answer in lower case, without punctuation (ASCII), articles and double spaces."""
    without_articles = _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION))
    return " ".join(without_articles.split())


def _normalised_right(right: Sequence[str]) -> set[str]:
    """Return the different right answers; the empty one where the question has no answer."""
    answers = set(map(normalised, right))
    answers.discard("")
    return answers or {""}


def exact_match(answer: str, right: Sequence[str]) -> float:
    """Return 1 if an answer is one of the right ones once all are normalised, else 0.

    Without a right one the question has no answer, and only the empty answer is right.
    """
    return float(normalised(answer) in _normalised_right(right))


def word_f1(answer: str, right: Sequence[str]) -> float:
    """Return the best F1 of an answer's normalised words with those of a right one, 0 to 1.

    Where either has no word, it is 1 if the other has none either, else 0.
    """
    words = Counter(normalised(answer).split())
    best = 0.0
    for right_answer in _normalised_right(right):
        right_words = Counter(right_answer.split())
        n_words = words.total() + right_words.total()
        n_shared = (words & right_words).total()
        f1 = 2 * n_shared / n_words if n_words else 1.0
        best = max(best, f1)
    return best


def _windows(
    encoding: Encoding,
    loaded: LoadedModel,
    right: Sequence[tuple[int, str]],
    example: int,
) -> Iterator[SpanRow]:
    """Yield a question with every window of its context; nothing if there is no room for one.

    ``encoding`` has the question and its whole context, however long; ``right`` the right answers,
    as (first character, text).
    """
    context = [i for i, text_number in enumerate(encoding.sequence_ids) if text_number == 1]
    if not context:
        return
    context_begin = context[0]
    context_stop = context[-1] + 1
    n_around = context_begin + len(encoding.ids) - context_stop  # The question and special tokens
    n_context = min(WINDOW, loaded.max_length) - n_around  # tokens of the context in a window
    if n_context < 1:
        return
    step = n_context - min(OVERLAP, n_context // 2)
    for start in range(context_begin, context_stop, step):
        stop = min(start + n_context, context_stop)
        window = (  # positions of the window's tokens in the whole encoding
            *range(context_begin),
            *range(start, stop),
            *range(context_stop, len(encoding.ids)),
        )
        yield _span_row(
            encoding,
            loaded,
            right=right,
            example=example,
            window=window,
            start=start,
            stop=stop,
        )
        if stop == context_stop:
            return


def _span_row(
    encoding: Encoding,
    loaded: LoadedModel,
    *,
    right: Sequence[tuple[int, str]],
    example: int,
    window: Sequence[int],
    start: int,
    stop: int,
) -> SpanRow:
    """Make the row of one window.

    ``window`` has the positions of its tokens in ``encoding``, the question with its whole context;
    those from ``start`` to before ``stop`` are the context's.
    """
    context_begin = window.index(start)  # in the row
    ids = tuple(encoding.ids[i] for i in window)
    special_mask = encoding.special_tokens_mask
    special = [special_mask[i] for i in window]
    all_types = loaded.token_types.of_encoding(encoding, pair=True)
    # No answer is marked at the position of cls, else of the first special token.
    no_answer = special.index(1) if 1 in special else 0
    cls = getattr(loaded.tokenizer, "cls_token_id", None)
    if cls in ids:
        no_answer = ids.index(cls)
    offsets = tuple(encoding.offsets[start:stop])
    return SpanRow(
        index=0,
        ids=ids,
        types=None if all_types is None else tuple(all_types[i] for i in window),
        content=tuple(i for i, is_special in enumerate(special) if not is_special),
        example=example,
        window=(context_begin, context_begin + len(offsets)),
        offsets=offsets,
        no_answer=no_answer,
        span=_gold_span(offsets, right, context_begin) or (no_answer, no_answer),
    )


def _gold_span(
    offsets: Sequence[tuple[int, int]], right: Sequence[tuple[int, str]], context_begin: int
) -> tuple[int, int] | None:
    """Return the first and last position of the first right answer in a row.

    None where the window does not hold all of it. ``offsets`` has the characters of the window's
    tokens, the first of which is at position ``context_begin``.

    "the cat sat", offsets [(0, 3), (4, 7), (8, 11)], right [(4, "cat sat")] -> tokens 1 and 2.
    """
    if not right:
        return None
    start, text = right[0]
    stop = start + len(text)
    tokens = [i for i, (low, high) in enumerate(offsets) if low < stop and high > start]
    if not tokens:
        return None
    first_low, _ = offsets[tokens[0]]
    _, last_high = offsets[tokens[-1]]
    is_cut = first_low > start or last_high < stop
    if is_cut:
        return None
    return context_begin + tokens[0], context_begin + tokens[-1]
