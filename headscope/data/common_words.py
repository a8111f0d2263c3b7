"""Words that a vocabulary keeps: those of a file, and the most common ones of a language."""

from __future__ import annotations

from headscope.core.errors import InputError
from headscope.data.encode import wordfreq_list

COMMON_WORDS = 10_000  # Most common words of a language that stay unless another number is given


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
