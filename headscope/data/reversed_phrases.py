"""A labelled task without a file: do the phrases of a sentence have their own word order?

Made from the gold trees of the built-in sample. A phrase is what depends on the main verb, directly
or through others: its subject, its object, a clause. In half of the sentences, drawn at random, the
words inside every phrase are reversed; phrases, main verb and punctuation stay where they are. Each
sentence appears once, in lower case. Both classes have the same words and the same lengths: a
classifier has to see which word stands next to which.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from headscope.data.corpus import Corpus, sample_corpus
from headscope.data.examples import Examples
from headscope.data.sentences import ROOT, Sentence

TASK = "are the words of each phrase reversed? (built-in sample)"  # What a result calls the task.
_TEST = (2, 5, 7)  # Of each eight sentences in a row, those of the test part.


def reversed_phrases(seed: int = 0) -> tuple[Examples, Examples]:
    """Return the training and the test part, 320 and 192 examples that share no sentence."""
    corpus = sample_corpus()
    training = []
    test = []
    for i, sentence in enumerate(corpus):
        if i % 8 in _TEST:
            test.append(sentence)
        else:
            training.append(sentence)
    return (
        _half_reversed(corpus, "training part", training, seed),
        _half_reversed(corpus, "test part", test, seed),
    )


def _half_reversed(corpus: Corpus, name: str, sentences: Sequence[Sentence], seed: int) -> Examples:
    """Reverse the phrases of half of some sentences, and label which."""
    orders = [_reversed_order(sentence) for sentence in sentences]
    # Where every phrase is a single word, reversing changes nothing.
    changeable = [i for i, order in enumerate(orders) if order != sorted(order)]
    to_reverse = set(random.Random(seed).sample(changeable, len(sentences) // 2))
    texts = []
    labels = []
    for i, (sentence, order) in enumerate(zip(sentences, orders, strict=True)):
        words = sentence.words
        if i in to_reverse:
            words = tuple(words[word] for word in order)
        texts.append(" ".join(words).lower())
        labels.append("reversed" if i in to_reverse else "own")
    return Examples(
        name=f"{corpus.name}, {name}",
        sha256=corpus.sha256,
        first=tuple(texts),
        labels=tuple(labels),
    )


def _reversed_order(sentence: Sentence) -> list[int]:
    """Return the words' order with the words of each phrase in reverse.

    "the old cat saw a bird .", root "saw": [2, 1, 0, 3, 5, 4, 6], "cat old the saw bird a .".
    """
    heads = sentence.heads or ()
    relations = sentence.relations or ()
    order = list(range(len(heads)))
    root = heads.index(ROOT)
    phrases: dict[int, list[int]] = {}  # Words of each phrase, by the word under the root
    for word in order:
        # Climb to the word under the root.
        top = word
        while top != root and heads[top] != root:
            top = heads[top]
        is_punctuation = relations[word] == "punct"
        if top != root and not is_punctuation:
            phrases.setdefault(top, []).append(word)
    for words in phrases.values():
        for position, word in zip(words, reversed(words), strict=True):
            order[position] = word
    return order
