"""How close an answer is to the right one: exact match and F1 of words, as SQuAD counts them.

References
----------
Rajpurkar et al. 2016, arXiv:1606.05250; Rajpurkar et al. 2018, arXiv:1806.03822 (no answer).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalised(answer: str) -> str:
    """Return an answer in lower case, without punctuation (ASCII), articles and double spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, right: Sequence[str]) -> float:
    """Return 1 if an answer is one of the right ones once all are normalised, else 0.

    Without a right one the question has no answer, and only the empty answer is right.
    """
    return float(any(normalised(answer) == normalised(other) for other in _gold(right)))


def word_f1(answer: str, right: Sequence[str]) -> float:
    """Return the best F1 of an answer's normalised words with those of a right one, 0 to 1.

    Where either has no word, it is 1 if the other has none either, else 0.
    """
    return max(_f1(normalised(answer).split(), normalised(other).split()) for other in _gold(right))


def _gold(right: Sequence[str]) -> Sequence[str]:
    return [answer for answer in right if normalised(answer)] or [""]


def _f1(words: Sequence[str], gold: Sequence[str]) -> float:
    if not words or not gold:
        return float(not words and not gold)
    return 2 * (Counter(words) & Counter(gold)).total() / (len(words) + len(gold))
