"""Questions on paragraphs in SQuAD's JSON, v1.1 or v2: the answers are spans of the context.

``{"data": [{"paragraphs": [{"context": ..., "qas": [{"id": ..., "question": ..., "answers":
[{"text": ..., "answer_start": ...}], "is_impossible": ...}]}]}]}``. A question that is impossible
(v2), or has no answers, has none that is right; what v2 calls plausible answers is not read.

References
----------
Rajpurkar et al. 2016, arXiv:1606.05250; Rajpurkar et al. 2018, arXiv:1806.03822.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headscope.core.errors import CorpusError
from headscope.core.files import sha256_of_file
from headscope.data.examples import Examples, check_size
from headscope.data.files import read_lines

_Answers = tuple[tuple[int, str], ...]


def read_questions(path: str | Path) -> Examples:
    """Read questions with their contexts and answers."""
    path = Path(path)
    text = "\n".join(line for _, line in read_lines(path))
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = None
    if not isinstance(whole, dict) or not isinstance(whole.get("data"), list):
        raise CorpusError(
            f'{path} is not JSON in the form of SQuAD ({{"data": [{{"paragraphs": ...}}]}}); give '
            "such a file, version 1.1 or 2."
        )
    rows = list(_questions(path, whole["data"]))
    may_have_no_answer = any(not answers for *_, answers in rows)
    check_size(path, len(rows))
    if not any(answers for *_, answers in rows):
        raise CorpusError(f"{path}: no question has an answer; give questions that have some.")
    names, questions, contexts, right = zip(*rows, strict=True)
    return Examples(
        str(path),
        sha256_of_file(path),
        first=questions,
        second=contexts,
        ids=names,
        answers=right,
        may_have_no_answer=may_have_no_answer,
    )


def _questions(path: Path, articles: list[Any]) -> Iterator[tuple[str, str, str, _Answers]]:
    """Yield name, question, context and answers of every question of a file."""
    for i, article in enumerate(articles):
        where = f"{path}, data[{i}]"
        try:
            for paragraph in article["paragraphs"]:
                context = paragraph["context"]
                for item in paragraph["qas"]:
                    where = f"{path}, question {item.get('id')!r}"
                    impossible = bool(item.get("is_impossible", False))
                    answers = () if impossible else tuple(map(_answer, item["answers"]))
                    if not isinstance(context, str) or not isinstance(item["question"], str):
                        raise TypeError
                    yield str(item.get("id", "")), item["question"].strip(), context, answers
        except (KeyError, TypeError, AttributeError):
            raise CorpusError(
                f"{where}: not in the form of SQuAD, a paragraph with a context and questions "
                "(qas) with their answers (text, answer_start)."
            ) from None


def _answer(item: Any) -> tuple[int, str]:
    start, text = item["answer_start"], item["text"]
    if not isinstance(start, int) or not isinstance(text, str):
        raise TypeError
    return start, text
