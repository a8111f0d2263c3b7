"""What the oracle of the labels keeps of a model: each word's choice in every head.

A choice is the word that a word attends most.  One sentence at a time goes through transformers'
own eager attention; everything after that (`reference_labels`, `reference_roles`) is counting.
The kernel, a head's habit of looking at a distance, makes choices too.  It knows half A only,
whichever sentences it is evaluated on; a distance that no pair of words in A has counts as 0.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from reference import Encoded, Model, Sentence

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CLIP = 20  # of a distance in the kernel


@dataclass
class Observed:
    """What the rules need of one measured sentence; arrays are over (heads, words).

    `index` is its zero-based place in the file; `n` counts its tokens with special ones.
    """

    index: int
    sentence: Sentence
    n: int
    pieces: Ints  # of every word
    choice: Ints  # argmax of the sum over the attended word's pieces
    choice_mean: Ints  # the same with the mean
    relative_entropy: Floats  # (heads, non-special rows): H / ln n
    kernel_choice: Ints | None = None  # filled in once the kernels are known

    @property
    def in_a(self) -> bool:
        """Half A: the even indices of the file."""
        return self.index % 2 == 0


@dataclass
class Kernels:
    """Sums over the word pairs of half A by clipped distance (-20..20, at index 0..40)."""

    total: Floats  # (heads, 41)
    pairs: Floats  # (41,)

    def value(self) -> Floats:
        """K_h(r): the mean over pairs."""
        return np.where(self.pairs > 0, self.total / np.maximum(self.pairs, 1), 0.0)


def word_attention(patterns: Floats, encoded: Encoded) -> Floats:
    """(heads, words, words): mean over the attending word's pieces, sum over the attended one's."""
    words = range(len(encoded.sentence.forms))
    pieces = [encoded.pieces(word) for word in words]
    rows = np.stack([patterns[:, pieces[w], :].mean(axis=1) for w in words], axis=1)
    return np.stack([rows[:, :, pieces[w]].sum(axis=2) for w in words], axis=2)


def choose(attention: Floats) -> Ints:
    """Every word's argmax in every head, the diagonal excluded; ties: the lowest index.

    What reaches the largest but for 64 roundings of float32 is a tie.
    """
    without = attention.copy()
    words = np.arange(attention.shape[1])
    without[:, words, words] = -np.inf
    largest = without.max(axis=2, keepdims=True)
    found: Ints = (without >= largest - 64 / 2**23 * np.abs(largest)).argmax(axis=2)
    return found


def distances(words: int) -> Ints:
    """j - i for every ordered pair (i, j), clipped to -20..20."""
    order = np.arange(words)
    clipped: Ints = np.clip(order[None, :] - order[:, None], -CLIP, CLIP)
    return clipped


def add_to_kernels(kernels: Kernels, attention: Floats, pieces: Ints) -> None:
    """Add every ordered pair i != j: attention from i to j over the number of j's pieces."""
    per_piece = attention / pieces[None, None, :]
    distance = distances(len(pieces))
    for r in range(-CLIP, CLIP + 1):
        if r != 0:
            pairs = distance == r
            kernels.total[:, r + CLIP] += per_piece[:, pairs].sum(axis=1)
            kernels.pairs[r + CLIP] += pairs.sum()


def kernel_choice(kernel: Floats, pieces: Ints) -> Ints:
    """From i, the argmax over j != i of K_h(j - i) times j's pieces."""
    return choose(kernel[:, distances(len(pieces)) + CLIP] * pieces[None, None, :])


def uniform_words(pieces: Ints, query: int) -> list[int]:
    """Where evenly spread attention looks: the words with most pieces, the query left out."""
    others = [word for word in range(len(pieces)) if word != query]
    most = max(pieces[word] for word in others)
    return [word for word in others if pieces[word] == most]


def uniform_hit(pieces: Ints, query: int, targets: frozenset[int]) -> float:
    """The chance of a hit when the words with most pieces share the argmax."""
    top = uniform_words(pieces, query)
    return sum(word in targets for word in top) / len(top)


@dataclass
class Corpus:
    """The file's sentences, those that were measured, and the heads' kernels on half A."""

    sentences: list[Sentence]
    observed: list[Observed]
    heads: list[tuple[int, int]]
    kernel: Floats  # (heads, 41)


def observe(
    model_dir: str | Path,
    sentences: Sequence[Sentence],
    max_length: int | None = None,
    control_seed: int | None = None,
) -> Corpus:
    """Run every usable sentence through the model, one by one."""
    model = Model(model_dir, control_seed)
    config = model.model.config
    limit = max_length or int(config.max_position_embeddings)
    heads = [
        (layer, head)
        for layer in range(config.num_hidden_layers)
        for head in range(config.num_attention_heads)
    ]
    encoded = [model.encode(sentence) for sentence in sentences]
    usable = {i: item for i, item in enumerate(encoded) if item.is_usable(limit)}
    run = ((i, item, np.concatenate(model.patterns(item))) for i, item in usable.items())
    return gather(sentences, heads, run)


def gather(
    sentences: Sequence[Sentence],
    heads: list[tuple[int, int]],
    run: Iterable[tuple[int, Encoded, Floats]],
) -> Corpus:
    """Reduce the patterns of every usable sentence, then let the kernels choose."""
    kernels = Kernels(np.zeros((len(heads), 2 * CLIP + 1)), np.zeros(2 * CLIP + 1))
    observed = [observe_one(index, encoded, patterns, kernels) for index, encoded, patterns in run]
    kernel = kernels.value()
    for one in observed:
        one.kernel_choice = kernel_choice(kernel, one.pieces)
    return Corpus(list(sentences), observed, heads, kernel)


def observe_one(index: int, encoded: Encoded, patterns: Floats, kernels: Kernels) -> Observed:
    """Reduce the patterns (heads, n, n) of one sentence; in half A they enter the kernels."""
    words = len(encoded.sentence.forms)
    pieces = np.array([len(encoded.pieces(word)) for word in range(words)])
    attention = word_attention(patterns, encoded)
    if index % 2 == 0:
        add_to_kernels(kernels, attention, pieces)
    rows = patterns[:, encoded.queries, :]
    entropy = -(rows * np.log(np.where(rows > 0, rows, 1.0))).sum(axis=2)
    return Observed(
        index,
        encoded.sentence,
        len(encoded.ids),
        pieces,
        choose(attention),
        choose(attention / pieces[None, None, :]),
        entropy / math.log(len(encoded.ids)),
    )
