"""Examples that were annotated: questions with answers, tagged words, phrases in reverse order.

* SQuAD's JSON, v1.1 or v2, in which answers are spans of a context: ``{"data": [{"paragraphs":
  [{"context": ..., "qas": [{"id": ..., "question": ..., "answers": [{"text": ..., "answer_start":
  ...}], "is_impossible": ...}]}]}]}``. A question that is impossible (v2), or has no answers, has
  none that is right; what v2 calls plausible answers is not read.
* Tagged words in columns, as CoNLL-2003 has them, or in JSON lines: ``tag_columns.py``.
* CoNLL-U (``.conllu``, or any file whose first row has ten columns that tabs split, a number
  first): the form and its UPOS; multiword ranges and empty nodes are passed over.

References
----------
Rajpurkar et al. 2016, arXiv:1606.05250; Rajpurkar et al. 2018, arXiv:1806.03822.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headscope.core.errors import CorpusError
from headscope.core.files import sha256_of_file
from headscope.data.corpus import sample_corpus
from headscope.data.entities import scheme_of_file
from headscope.data.examples import Examples, check_size
from headscope.data.files import Sentence, read_filled, read_lines
from headscope.data.tag_columns import (
    JSON_LINES,
    Tagged,
    TaggedWord,
    read_columns,
    read_json_lines,
)
from headscope.data.treebanks import treebank_rows

_Answers = tuple[tuple[int, str], ...]


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
    different = {tag for row in tags for tag in row}
    if len(different) == 1:
        raise CorpusError(
            f"{path}: every word has the tag {different.pop()!r}, so nothing can be told from "
            "them; give words of several tags."
        )
    scheme_of_file(str(path), tags)  # one that is unknown is refused before a model is read
    return Examples(
        str(path),
        sha256_of_file(path),
        first=tuple(" ".join(row) for row in words),
        lines=tuple(rows[0].line for rows in sentences),
        words=words,
        tags=tags,
        notes=notes,
    )


def _sentences(path: Path) -> Tagged:
    """Read tagged sentences, with notes about their reading."""
    leads = (line for _, line in read_filled(path) if not line.startswith(("#", "-DOCSTART-")))
    lead = next(leads, "")
    cells = lead.split("\t")
    ten_columns = len(cells) == 10 and cells[0].replace("-", "").isdecimal()
    if ten_columns or path.suffix.lower() == ".conllu":
        tagged = ([TaggedWord(r.line, r.form, r.tag) for r in rows] for rows in treebank_rows(path))
        return list(tagged), ()
    if path.suffix.lower() in JSON_LINES or lead.startswith('{"'):
        return read_json_lines(path)
    return read_columns(path)


# A labelled task without a file: do the phrases of a sentence have their own word order?
#
# Made from the gold trees of the built-in sample. A phrase is what depends on the main verb,
# directly or through others: its subject, its object, a clause. In half of the sentences, drawn at
# random, the words inside every phrase are reversed; phrases, main verb and punctuation stay where
# they are. Each sentence appears once, in lower case. Both classes have the same words and the same
# lengths: a classifier has to see which word stands next to which.

TASK = "are the words of each phrase reversed? (built-in sample)"  # What a result calls the task.
_TEST = (2, 5, 7)  # Of eight sentences in a row, which are for the test.


def reversed_phrases(seed: int = 0) -> tuple[Examples, Examples]:
    """Return the training and the test part, 320 and 192 examples that share no sentence."""
    corpus = sample_corpus()
    parts: tuple[list[Sentence], list[Sentence]] = ([], [])
    for i, sentence in enumerate(corpus):
        parts[i % 8 in _TEST].append(sentence)
    made = []
    for name, part in zip(("training part", "test part"), parts, strict=True):
        orders = [_reversed(sentence) for sentence in part]
        # Where every phrase is a single word, reversing changes nothing.
        changed = [i for i, order in enumerate(orders) if order != sorted(order)]
        turned = set(random.Random(seed).sample(changed, len(part) // 2))
        texts = []
        labels = []
        for i, (sentence, order) in enumerate(zip(part, orders, strict=True)):
            words = sentence.words
            texts.append(" ".join(words[j] for j in (order if i in turned else range(len(words)))))
            labels.append("reversed" if i in turned else "own")
        first = tuple(text.lower() for text in texts)
        made.append(Examples(f"{corpus.name}, {name}", corpus.sha256, first, labels=tuple(labels)))
    return made[0], made[1]


def _reversed(sentence: Sentence) -> list[int]:
    """Return the words' order with those of each phrase of the root in reverse."""
    heads = sentence.heads or ()
    relations = sentence.relations or ()
    order = list(range(len(heads)))
    root = heads.index(-1)
    phrases: dict[int, list[int]] = {}  # by the word under the root
    for word in order:
        top = word
        while top != root and heads[top] != root:
            top = heads[top]
        if top != root and relations[word] != "punct":
            phrases.setdefault(top, []).append(word)
    for words in phrases.values():
        for i, word in zip(words, reversed(words), strict=True):
            order[i] = word
    return order
