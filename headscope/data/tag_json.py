"""Tagged words as JSON lines, as data sets are exported; errors say which line.

An object is a sentence, with a list of its words and a list of as many tags::

    {"tokens": ["Anna", "ran"], "ner_tags": ["B-PER", "O"]}

The names of both lists are those that a header of columns may have (:mod:`.tag_columns`): ``TAGS``
are groups of names for tags, and of several lists of tags that of the first group is read.
"""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

from headscope.core.errors import CorpusError
from headscope.data.files import read_filled
from headscope.data.tag_columns import TAGS, Tagged, TaggedWord, columns_by_name


def read_json_lines(path: Path) -> Tagged:
    """Read the sentences of a file, each a list of tagged words, and notes about the reading.

    There is a note where other tags of the file are not read.
    """
    sentences = []
    notes: set[str] = set()
    for line, text in read_filled(path):
        try:
            json_object = json.loads(text)
        except (ValueError, RecursionError):
            json_object = None
        if not isinstance(json_object, dict):
            raise CorpusError(
                f"{path}, line {line}: no JSON object; give one a line, such as "
                '{"tokens": ["Anna", "ran"], "ner_tags": ["B-PER", "O"]}.'
            )
        sentence, tag_name = _tagged_sentence(path, line, json_object)
        all_tag_names = set(chain(*TAGS))
        other_names = {name.lower() for name in json_object if name != tag_name}
        if all_tag_names & other_names:
            notes.add(f"Tags are those named {tag_name}; others of the file are not read.")
        if sentence:
            sentences.append(sentence)
    return sentences, tuple(sorted(notes))


def _tagged_sentence(
    path: Path, line: int, json_object: dict[str, Any]
) -> tuple[list[TaggedWord], str]:
    """Return the tagged words of a JSON object, and what it calls their tags."""
    names = list(json_object)
    columns = columns_by_name(names)  # indices in ``names``: of the words, and of the tags
    if columns is None:
        raise CorpusError(
            f"{path}, line {line}: no list of words and one list of tags by name (it has "
            f"{', '.join(names[:8])}); call them tokens and ner_tags."
        )
    word_name = names[columns[0]]
    tag_name = names[columns[1]]
    words = json_object[word_name]
    tags = json_object[tag_name]
    if not _are_tagged(words, tags):
        raise CorpusError(
            f"{path}, line {line}: {word_name} and {tag_name} are no lists of as many words "
            "and tags (names or whole numbers), none of them empty."
        )
    sentence = [TaggedWord(line, word, str(tag)) for word, tag in zip(words, tags, strict=True)]
    return sentence, tag_name


def _are_tagged(words: Any, tags: Any) -> bool:
    """Whether a JSON value is a list of words, and another a list of as many tags.

    A tag is a name or a whole number; True and False, which Python counts as numbers, are none.
    """
    if not isinstance(words, list) or not isinstance(tags, list) or len(words) != len(tags):
        return False
    if not all(isinstance(word, str) and word for word in words):
        return False
    return all(
        tag != "" and isinstance(tag, str | int) and not isinstance(tag, bool) for tag in tags
    )
