"""The words and special tokens of encoded sentences as the nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headscope.analyses.flow.trees import GoldTrees
from headscope.analyses.flow.word_graph import WordNodes
from headscope.data.encode import EncodedSentence, IntArray
from headscope.data.sentence import Sentence

__all__ = ["gold_trees", "nodes_of"]


def nodes_of(
    sentences: Sequence[EncodedSentence],
    spell: Callable[[int], str],
    random: np.random.Generator,
    *,
    causal: bool = False,
) -> WordNodes:
    """Make nodes of a batch of sentences."""
    found = [_node(s.word_of) for s in sentences]
    return WordNodes(
        node=_padded(found, -1),
        content=_padded([s.word_of >= 0 for s in sentences], False),
        other=_padded([_other(s.word_of >= 0, random, causal) for s in sentences], 0),
        names=tuple(_names(s, node, spell) for s, node in zip(sentences, found, strict=True)),
        causal=causal,
    )


def _node(word_of: IntArray) -> IntArray:
    """Number words and special tokens in the order of the text."""
    starts = word_of < 0
    starts[1:] |= word_of[1:] != word_of[:-1]
    starts[:1] = True
    return np.cumsum(starts) - 1


def _other(
    content: np.ndarray[tuple[int], np.dtype[np.bool_]],
    random: np.random.Generator,
    causal: bool,
) -> IntArray:
    """Draw a position of a word for each position of a word, 0 elsewhere."""
    places = np.flatnonzero(content)
    n = len(places)
    seen = np.arange(1, n + 1) if causal else np.full(n, n)
    other = np.zeros(len(content), dtype=np.int64)
    other[places] = places[(random.random(n) * seen).astype(np.int64)]
    return other


def _names(s: EncodedSentence, node: IntArray, spell: Callable[[int], str]) -> tuple[str, ...]:
    _, first = np.unique(node, return_index=True)
    return tuple(
        spell(int(s.ids[p])) if s.word_of[p] < 0 else s.sentence.words[s.word_of[p]].lower()
        for p in first
    )


def gold_trees(trees: Sequence[Sentence], device: torch.device | str = "cpu") -> GoldTrees:
    """Lay out the trees of sentences that have equally many words."""
    heads = torch.tensor([tree.heads for tree in trees])
    punctuation = torch.tensor([[r == "punct" for r in tree.relations or ()] for tree in trees])
    all_but_root = heads >= 0
    scored = torch.stack([all_but_root, all_but_root & ~punctuation])
    return GoldTrees(heads.to(device), scored.to(device))


def _padded(rows: Sequence[np.ndarray[tuple[int], np.dtype[np.generic]]], fill: float) -> Tensor:
    tensors = [torch.from_numpy(row) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=fill)
