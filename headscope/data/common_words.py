"""Words that a vocabulary keeps: those of a file, and the most common ones of a language."""

from __future__ import annotations

from pathlib import Path

from headscope.core.errors import InputError
from headscope.data.encode import wordfreq_list
from headscope.data.files import read_filled

COMMON_WORDS = 10_000  # Most common words of a language that stay unless another number is given


def read_words(path: str | Path) -> list[str]:
    """Read a file with a word, or a text, on each line.

    Raises
    ------
    CorpusError, InputError
        If the file is missing, not UTF-8 or empty.
    """
    words = [line.strip() for _, line in read_filled(Path(path))]
    if not words:
        raise InputError(f"{path} is empty; give a file with a word, or a text, on each line.")
    return words


def common_words(language: str, count: int) -> list[str]:
    """Return the ``count`` most common words of a language by wordfreq, in lower case.

    Raises
    ------
    InputError
        If wordfreq has no list of the language.
    """
    import wordfreq

    found = wordfreq_list(language)
    if found is None:
        raise InputError(
            f"wordfreq counts no words of the language {language!r}; name another language, or "
            "keep the words of a file."
        )
    return list(wordfreq.top_n_list(found, count))
