"""A labelled task without a file: do the phrases of a sentence have their own word order?

Made from the gold trees of the built-in sample. A phrase is what depends on the main verb, directly
or through others: its subject, its object, a clause. In half of the sentences, drawn at random, the
words inside every phrase are reversed; phrases, main verb and punctuation stay where they are. Each
sentence appears once, in lower case. Both classes have the same words and the same lengths, so that
neither tells anything: a classifier has to see which word stands beside which.
"""

from __future__ import annotations

import random

from headscope.data.corpus import sample_corpus
from headscope.data.examples import Examples
from headscope.data.sentence import Sentence

__all__ = ["TASK", "reversed_phrases"]

TASK = "are the words of each phrase reversed? (built-in sample)"  # What a result calls the task.
_TEST = (2, 5, 7)  # Of eight sentences in a row, which are for the test.


def reversed_phrases(seed: int = 0) -> tuple[Examples, Examples]:
    """Return the training and the test part, 320 and 192 examples that share no sentence."""
    corpus = sample_corpus()
    parts: tuple[list[Sentence], list[Sentence]] = ([], [])
    for i, sentence in enumerate(corpus):
        parts[i % 8 in _TEST].append(sentence)
    names = ("training part", "test part")
    train, test = (
        _labelled(f"{corpus.name}, {name}", corpus.sha256, part, random.Random(seed))
        for part, name in zip(parts, names, strict=True)
    )
    return train, test


def _labelled(name: str, sha256: str, part: list[Sentence], rng: random.Random) -> Examples:
    reverse = [_reversed(sentence) for sentence in part]
    # Where every phrase is a single word, reversing changes nothing.
    changed = [i for i, order in enumerate(reverse) if order != sorted(order)]
    turned = set(rng.sample(changed, len(part) // 2))
    orders = (order if i in turned else sorted(order) for i, order in enumerate(reverse))
    texts = (
        " ".join(sentence.words[place] for place in order).lower()
        for sentence, order in zip(part, orders, strict=True)
    )
    labels = ("reversed" if i in turned else "own" for i in range(len(part)))
    return Examples(name, sha256, first=tuple(texts), labels=tuple(labels))


def _reversed(sentence: Sentence) -> list[int]:
    """Return the places of the words, with those of each phrase of the root in reverse."""
    heads, relations = sentence.heads or (), sentence.relations or ()
    order = list(range(len(heads)))
    root = heads.index(-1)
    phrase = [_phrase(heads, root, word) for word in order]
    for top in sorted(set(phrase) - {root}):
        own = [w for w in order if phrase[w] == top and relations[w] != "punct"]
        for place, word in zip(own, reversed(own), strict=True):
            order[place] = word
    return order


def _phrase(heads: tuple[int, ...], root: int, word: int) -> int:
    """Return the word under the root that a word is, or depends on; the root for itself."""
    while word != root and heads[word] != root:
        word = heads[word]
    return word
