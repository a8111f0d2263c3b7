"""Examples that were annotated: questions with answers, and tagged words.

* SQuAD's JSON, v1.1 or v2, in which answers are spans of a context: ``{"data": [{"paragraphs":
  [{"context": ..., "qas": [{"id": ..., "question": ..., "answers": [{"text": ..., "answer_start":
  ...}], "is_impossible": ...}]}]}]}``. A question that is impossible (v2), or has no answers, has
  none that is right; what v2 calls plausible answers is not read.
* Tagged words in columns, as CoNLL-2003 has them (``tag_columns.py``), or in JSON lines
  (``tag_json.py``).
* CoNLL-U (``.conllu``, or any file whose first row has ten columns that tabs split, a number
  first): the form and its UPOS; multiword ranges and empty nodes are passed over.

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
from headscope.data.entities import scheme_of_file
from headscope.data.examples import Examples, check_size
from headscope.data.files import read_filled, read_lines
from headscope.data.json_rows import JSON
from headscope.data.tag_columns import Tagged, TaggedWord, read_columns
from headscope.data.tag_json import read_json_lines
from headscope.data.treebanks import treebank_rows

_Answers = tuple[tuple[int, str], ...]  # Of each answer: where it begins in the context, its text


def read_questions(path: str | Path) -> Examples:
    """Read questions with their contexts and answers."""
    path = Path(path)
    text = "\n".join(line for _, line in read_lines(path))
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("data"), list):
        raise CorpusError(
            f'{path} is not JSON in the form of SQuAD ({{"data": [{{"paragraphs": ...}}]}}); give '
            "such a file, version 1.1 or 2."
        )
    rows = list(_questions(path, content["data"]))
    check_size(path, len(rows))
    ids, questions, contexts, answers_of_each = zip(*rows, strict=True)
    if not any(answers_of_each):
        raise CorpusError(f"{path}: no question has an answer; give questions that have some.")
    return Examples(
        name=str(path),
        sha256=sha256_of_file(path),
        first=questions,
        second=contexts,
        ids=ids,
        answers=answers_of_each,
        may_have_no_answer=not all(answers_of_each),
    )


def _questions(path: Path, articles: list[Any]) -> Iterator[tuple[str, str, str, _Answers]]:
    """Yield id, question, context and answers of every question of a file."""
    for i, article in enumerate(articles):
        where = f"{path}, data[{i}]"
        try:
            for paragraph in article["paragraphs"]:
                context = paragraph["context"]
                for item in paragraph["qas"]:
                    where = f"{path}, question {item.get('id')!r}"
                    question = item["question"]
                    impossible = bool(item.get("is_impossible", False))
                    answers = () if impossible else tuple(map(_answer, item["answers"]))
                    if not isinstance(context, str) or not isinstance(question, str):
                        raise TypeError
                    yield str(item.get("id", "")), question.strip(), context, answers
        except (KeyError, TypeError, AttributeError):
            raise CorpusError(
                f"{where}: not in the form of SQuAD, a paragraph with a context and questions "
                "(qas) with their answers (text, answer_start)."
            ) from None


def _answer(item: Any) -> tuple[int, str]:
    """Return where an answer begins and its text; raises where it is written otherwise."""
    start = item["answer_start"]
    text = item["text"]
    if not isinstance(start, int) or not isinstance(text, str):
        raise TypeError
    return start, text


def read_tagged(path: str | Path) -> Examples:
    """Read sentences whose words have a tag each."""
    path = Path(path)
    sentences, notes = _sentences(path)
    check_size(path, len(sentences))
    words = tuple(tuple(word for _, word, _ in rows) for rows in sentences)
    tags = tuple(tuple(tag for _, _, tag in rows) for rows in sentences)
    different_tags = set().union(*tags)
    if len(different_tags) == 1:
        raise CorpusError(
            f"{path}: every word has the tag {different_tags.pop()!r}, so nothing can be told from "
            "them; give words of several tags."
        )
    scheme_of_file(str(path), tags)  # refuses unknown tags before a model is read
    return Examples(
        name=str(path),
        sha256=sha256_of_file(path),
        first=tuple(" ".join(row) for row in words),
        lines=tuple(rows[0].line for rows in sentences),
        words=words,
        tags=tags,
        notes=notes,
    )


def _sentences(path: Path) -> Tagged:
    """Read tagged sentences, with notes for the user, in the form that the file seems to have."""
    comments = ("#", "-DOCSTART-")
    word_lines = (line for _, line in read_filled(path) if not line.startswith(comments))
    first_line = next(word_lines, "")
    cells = first_line.split("\t")
    has_tree_columns = len(cells) == 10 and cells[0].replace("-", "").isdecimal()
    if has_tree_columns or path.suffix.lower() == ".conllu":
        return _tagged_treebank(path), ()
    if path.suffix.lower() in JSON or first_line.startswith('{"'):
        return read_json_lines(path)
    return read_columns(path)


def _tagged_treebank(path: Path) -> list[list[TaggedWord]]:
    """Read the words of a treebank with their parts of speech."""
    return [
        [TaggedWord(row.line, row.form, row.tag) for row in rows] for rows in treebank_rows(path)
    ]
