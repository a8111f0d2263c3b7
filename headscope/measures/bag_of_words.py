"""What words alone tell of a class: naive Bayes, the baseline of a fine-tuned classifier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from headscope.measures.accumulator import Array

__all__ = ["naive_bayes"]


def naive_bayes(
    train: Sequence[Sequence[str]], labels: Sequence[int], test: Sequence[Sequence[str]]
) -> Array:
    """Predict classes from the words that a text holds, by multinomial naive Bayes.

    Parameters
    ----------
    train : sequence of sequences of str
        Words of each training text.
    labels : sequence of int
        Class of each, from 0.
    test : sequence of sequences of str
        Words of the texts to be classified; words that no training text has do not count.

    Returns
    -------
    array of int, (test,)
        The likeliest class, the lower of two that are equal.

    Notes
    -----
    Counts have 1 added to them (Laplace); the prior is the class's share of the training texts.

    References
    ----------
    Manning, Raghavan & Schütze 2008, Introduction to Information Retrieval, section 13.2.
    """
    classes = max(labels) + 1
    counts = [Counter[str]() for _ in range(classes)]
    for words, label in zip(train, labels, strict=True):
        counts[label].update(words)
    vocabulary = {word: i for i, word in enumerate(sorted(set().union(*counts)))}
    table = np.ones((classes, len(vocabulary)))
    for label, found in enumerate(counts):
        for word, n in found.items():
            table[label, vocabulary[word]] += n
    log_likelihood = np.log(table / table.sum(axis=1, keepdims=True))
    shares = np.bincount(labels, minlength=classes) / len(labels)
    with np.errstate(divide="ignore"):
        prior = np.log(shares)  # a class that was never seen is never predicted
    known = ([vocabulary[word] for word in words if word in vocabulary] for words in test)
    scores = [prior + log_likelihood[:, places].sum(axis=1) for places in known]
    return np.array([int(np.argmax(score)) for score in scores])
