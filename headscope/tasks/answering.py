"""The task of answering questions by a span of a context.

How close an answer is to the right one is counted as SQuAD does: exact match and F1 of words.

References
----------
Rajpurkar et al. 2016, arXiv:1606.05250; Rajpurkar et al. 2018, arXiv:1806.03822 (no answer).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headscope.core.accumulator import Array
from headscope.data.examples import Examples
from headscope.data.pieces import Encoding, tokenise
from headscope.data.token_rows import Padded, Row
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.pooling import wide
from headscope.stats.metrics import CLUSTER, Outputs, mean_of, rate_of
from headscope.tasks.base import Taken, Task, need_logits, spans

#: Tokens of a window, question and special tokens included, unless the model has fewer.
WINDOW = 384
OVERLAP = 128  # Tokens of the context that two windows share; half the room where that is less.
LONGEST = 30  # Tokens of an answer, at most.
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True, kw_only=True)
class SpanRow(Row):
    """A question with a window of its context."""

    example: int  # Which question it belongs to
    window: tuple[int, int]  # Positions of the context: from the first to behind the last
    #: Where each of these tokens begins and ends in the context's characters.
    offsets: tuple[tuple[int, int], ...]
    no_answer: int  # Position that stands for no answer: the first special token
    span: tuple[int, int]  # First and last position of the first right answer, else ``no_answer``


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

    name = head = "question-answering"
    words = "F1 of answers; questions with contexts in SQuAD's JSON, and a model with that head"
    table = {  # noqa: RUF012
        "answer_f1": mean_of("f1", 100.0),
        "exact_match": rate_of("exact"),
    }

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        contexts = examples.second or ()
        right = examples.answers or ((),) * len(examples)
        self._rows: list[SpanRow] = []
        measured: list[int] = []
        for i, encoding in enumerate(tokenise(loaded, examples.first, pairs=contexts)):
            windows = [*_windows(encoding, loaded, right[i], len(measured))]
            if windows:
                measured.append(i)
                self._rows += [
                    SpanRow(**{**vars(row), "index": len(self._rows) + n})
                    for n, row in enumerate(windows)
                ]
        self.notes = examples.notes
        self._texts = [(examples.first[i], contexts[i]) for i in measured]
        self._right = [tuple(text for _, text in right[i]) for i in measured]
        self._may_have_none = examples.may_have_no_answer
        self._of: list[list[SpanRow]] = [[] for _ in measured]
        for row in self._rows:
            self._of[row.example].append(row)
        return self._rows, len(measured), len(examples)

    @property
    def rows_of_examples(self) -> Sequence[Sequence[Row]]:
        """The windows of each question."""
        return self._of

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
        rows, begins, ends = (outputs[name].astype(int) for name in ("window", "begin", "end"))
        answers = []
        for window, *ends_of in zip(rows, begins, ends, strict=True):
            row = self._rows[window]
            text = ""
            if window >= 0:
                first, last = (row.offsets[token - row.window[0]] for token in ends_of)
                text = self._texts[row.example][1][first[0] : last[1]]
            answers.append(text)
        return answers

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        """Keep the best span of each window, and the sum of logits for no answer."""
        scores = wide(need_logits(logits)).double()  # (rows, pos, 2)
        rows = [self._rows[i] for i in batch.index]
        positions = torch.arange(scores.shape[1], device=scores.device)
        first, behind, none = (
            torch.tensor(values, device=scores.device)
            for values in zip(*((*row.window, row.no_answer) for row in rows), strict=True)
        )
        inside = (positions >= first[:, None]) & (positions < behind[:, None])
        start, stop = scores.masked_fill(~inside[..., None], -torch.inf).unbind(dim=-1)
        best = scores.new_full((len(rows),), -torch.inf)
        begin = first.clone()
        end = first.clone()
        for more in range(min(LONGEST, scores.shape[1])):
            sums = start[:, : start.shape[1] - more] + stop[:, more:]
            top = sums.max(dim=1).values
            position = (sums == top[:, None]).int().argmax(dim=1)  # ties go to the first
            better = top > best
            best = torch.where(better, top, best)
            begin = torch.where(better, position, begin)
            end = torch.where(better, position + more, end)
        at = scores[torch.arange(len(rows), device=scores.device), none]
        return {"best": best, "begin": begin, "end": end, "none": at.sum(dim=-1)}

    def _by_example(self, by_row: dict[str, Array]) -> dict[str, Array]:
        chosen: dict[str, list[int]] = {"window": [], "begin": [], "end": []}
        for rows in self._of:
            indices = np.array([row.index for row in rows])
            window = int(indices[by_row["best"][indices].argmax()])
            if self._may_have_none and by_row["none"][indices].min() > by_row["best"][window]:
                window = -1
            chosen["window"].append(window)
            for name in ("begin", "end"):
                chosen[name].append(-1 if window < 0 else int(by_row[name][window]))
        outputs = {name: np.array(values) for name, values in chosen.items()}
        answers = self.answers(outputs)
        pairs = list(zip(answers, self._right, strict=True))
        return {
            **outputs,
            "f1": np.array([word_f1(*pair) for pair in pairs]),
            "exact": np.array([exact_match(*pair) for pair in pairs]),
            "answer": np.unique(np.array(answers), return_inverse=True)[1],
            CLUSTER: np.unique([context for _, context in self._texts], return_inverse=True)[1],
        }

    def _loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        chances = spans(need_logits(logits), batch.attention_mask)
        gold = torch.tensor([self._rows[i].span for i in batch.index], device=chances.device)
        return -chances.gather(1, gold[:, None]).mean(dim=(1, 2))

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return roots of the probabilities of where the answer begins and ends, end to end.

        Their squared distance is Hellinger's: hundreds of unlikely places count as little
        as they are likely, while they would dominate a distance of log-probabilities.
        """
        real = batch.attention_mask[..., None]
        roots = (spans(need_logits(logits), batch.attention_mask) / 2).exp() * real
        return roots.flatten(1)


def normalised(answer: str) -> str:
    """Return an answer in lower case, without punctuation (ASCII), articles and double spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, right: Sequence[str]) -> float:
    """Return 1 if an answer is one of the right ones once all are normalised, else 0.

    Without a right one the question has no answer, and only the empty answer is right.
    """
    return float(normalised(answer) in (set(map(normalised, right)) - {""} or {""}))


def word_f1(answer: str, right: Sequence[str]) -> float:
    """Return the best F1 of an answer's normalised words with those of a right one, 0 to 1.

    Where either has no word, it is 1 if the other has none either, else 0.
    """
    words = Counter(normalised(answer).split())
    best = 0.0
    for other in set(map(normalised, right)) - {""} or {""}:
        gold = Counter(other.split())
        both = words.total() + gold.total()
        best = max(best, 2 * (words & gold).total() / both if both else 1.0)
    return best


def _windows(
    encoding: Encoding,
    loaded: LoadedModel,
    right: Sequence[tuple[int, str]],
    example: int,
) -> Iterator[SpanRow]:
    """Yield a question with every window of its context; nothing if there is no room for one."""
    context = [i for i, side in enumerate(encoding.sequence_ids) if side == 1]
    if not context:
        return
    begin = context[0]
    behind = context[-1] + 1
    size = min(WINDOW, loaded.max_length)
    room = size - begin - (len(encoding.ids) - behind)
    if room < 1:
        return
    step = room - min(OVERLAP, room // 2)
    all_types = loaded.token_types.of_encoding(encoding, pair=True)
    for start in range(begin, behind, step):
        part = slice(start, min(start + room, behind))

        def kept(values: Sequence[int], part: slice = part) -> tuple[int, ...]:
            return (*values[:begin], *values[part], *values[behind:])

        ids = kept(encoding.ids)
        marks = kept(encoding.special_tokens_mask)
        # No answer is at the position of cls, else of the first special token.
        none = marks.index(1) if 1 in marks else 0
        if (cls := getattr(loaded.tokenizer, "cls_token_id", None)) in ids:
            none = ids.index(cls)
        offsets = tuple(encoding.offsets[part])
        yield SpanRow(
            index=0,
            ids=ids,
            types=None if all_types is None else kept(all_types),
            content=tuple(i for i, mark in enumerate(marks) if not mark),
            example=example,
            window=(begin, begin + len(offsets)),
            offsets=offsets,
            no_answer=none,
            span=_span(offsets, right, begin) or (none, none),
        )
        if part.stop == behind:
            return


def _span(
    offsets: Sequence[tuple[int, int]], right: Sequence[tuple[int, str]], begin: int
) -> tuple[int, int] | None:
    """Return the tokens of the first right answer; None where a window does not hold it whole."""
    if not right:
        return None
    start, text = right[0]
    stop = start + len(text)
    inside = [i for i, (low, high) in enumerate(offsets) if low < stop and high > start]
    if not inside or offsets[inside[0]][0] > start or offsets[inside[-1]][1] < stop:
        return None
    return begin + inside[0], begin + inside[-1]
