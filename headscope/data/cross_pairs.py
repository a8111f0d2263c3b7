"""Labelled pairs of a word of a target and a word of its source, as a model's tokens.

Cross-attention looks from the tokens of the target to those of the source. Here words are found in
the tokens of both, and every word of the target with a pair is asked for its words of the source:
of the source "the cat" and the target "le chat" with the pair (1, 1, "noun"), word 1 of the target
("chat") is asked for word 1 of the source ("cat").

In four steps: :func:`labelled_texts` finds the words, :func:`corpus_of_labelled` makes a corpus of
the texts, :func:`encode_labelled` tokenises it, :func:`collate_labelled` makes padded batches.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import tee
from typing import NoReturn

import numpy as np
import torch

from headscope.core.accumulator import Array
from headscope.core.errors import CorpusError
from headscope.data.batches import Batch, CrossWords, collate_pairs
from headscope.data.controls import EarlierTexts
from headscope.data.corpus import Corpus, LabelledTexts, Spans, corpus_of_pairs
from headscope.data.edge_trials import RowTrials, edge_trials, trials_of
from headscope.data.pieces import TextModel, tokenise
from headscope.data.sentences import Edge, text_key
from headscope.data.token_rows import Ends, PairRow, encode_pairs
from headscope.data.word_pieces import EncodedSentence

CROSS_WAY = "target->source"  # How the pairs are asked: from the word of the target


def labelled_texts(
    examples: Iterable[tuple[str, str, tuple[Edge, ...]]],
    *,
    source_word: re.Pattern[str],
    target_word: re.Pattern[str],
) -> list[LabelledTexts]:
    """Find the words of (source, target, pairs), deal them into halves, and add the control.

    What is chosen on one half is confirmed on the other, so examples that share a text, directly or
    by way of others, lie in one half. An example that repeats both texts of an earlier one, but for
    case and spaces, is left out.
    """
    distinct: dict[tuple[str, str], tuple[str, str, tuple[Edge, ...]]] = {}
    for example in examples:
        source, target, _ = example
        distinct.setdefault((text_key(source), text_key(target)), example)
    groups = _groups_by_shared_text(list(distinct))
    earlier = EarlierTexts[tuple[Edge, ...]]()
    labelled = []
    for (source, target, pairs), group in zip(distinct.values(), groups, strict=True):
        source_spans = tuple(match.span() for match in source_word.finditer(source))
        target_spans = tuple(match.span() for match in target_word.finditer(target))
        size = (len(source_spans), len(target_spans))
        labelled.append(
            LabelledTexts(
                source=source,
                target=target,
                source_words=source_spans,
                target_words=target_spans,
                pairs=pairs,
                half=group % 2,
                swapped=earlier.control_of(pairs, size, group) or (),
            )
        )
    return labelled


def _groups_by_shared_text(texts: Sequence[tuple[str, str]]) -> list[int]:
    """Number the groups of examples that share a source or a target, in order of their first ones.

    A group joins all that hang together: (a, x), (b, y), (c, z) and (a, y) -> [0, 0, 1, 0].
    """
    # Union-find: each example points to an earlier one of its group, the first one to itself.
    pointer = list(range(len(texts)))

    def first_of_group(example: int) -> int:
        while pointer[example] != example:
            example = pointer[example]
        return example

    first_with: dict[str, int] = {}  # The first example that has a text
    for example, source_and_target in enumerate(texts):
        for text in source_and_target:
            this_group = first_of_group(example)
            other_group = first_of_group(first_with.setdefault(text, example))
            pointer[max(this_group, other_group)] = min(this_group, other_group)
    group_numbers: dict[int, int] = {}
    return [
        group_numbers.setdefault(first_of_group(example), len(group_numbers))
        for example in range(len(texts))
    ]


def corpus_of_labelled(
    name: str, sha256: str, texts: Sequence[LabelledTexts], labels: tuple[str, ...]
) -> Corpus:
    """Make a corpus of sources and targets with labelled pairs."""
    sources_and_targets = [(example.source, example.target) for example in texts]
    corpus = corpus_of_pairs(name, sha256, lambda: iter(sources_and_targets))
    return dataclasses.replace(corpus, labels=labels, labelled=lambda: iter(texts))


@dataclass(frozen=True, kw_only=True)
class LabelledRow(PairRow):
    """A source and its target as a model reads them, with the words of both."""

    source_words: tuple[int, ...]  # For each token of the source its word, -1 for none
    target_words: tuple[int, ...]  # For each token that the decoder is to write its word
    texts: LabelledTexts  # Without the pairs of words that have no piece


def encode_labelled(
    model: TextModel, texts: Iterable[LabelledTexts], target_ends: Ends, *, check: bool = True
) -> Iterator[LabelledRow | None]:
    """Tokenise as :func:`.token_rows.encode_pairs` does, and find the words of the tokens.

    A word that yields no piece is left out, with its pairs. Raises :class:`CorpusError` where a
    piece stands for several characters that are counted as words.
    """
    # Three passes over one stream: the tokenizer reads ahead, some texts at a time.
    examples, for_sources, for_targets = tee(texts, 3)
    sources = (example.source for example in for_sources)
    targets = (example.target for example in for_targets)
    rows = encode_pairs(model, sources, targets, target_ends, check=check)
    for example, row in zip(examples, rows, strict=True):
        if row is None or not row.decoder_content:
            yield None
            continue
        source_words = _words_of_tokens(
            model,
            text=example.source,
            words=example.source_words,
            tokens=row.source_spans,
            content=row.content,
        )
        target_words = _words_of_tokens(
            model,
            text=example.target,
            words=example.target_words,
            tokens=row.target_spans,
            # The decoder writes a token one position before it reads it.
            content=[position - 1 for position in row.decoder_content],
        )
        texts_with_pieces = example._replace(
            pairs=_with_pieces(example.pairs, source_words, target_words),
            swapped=_with_pieces(example.swapped, source_words, target_words),
        )
        yield LabelledRow(
            **vars(row),  # the fields of PairRow
            source_words=source_words,
            target_words=target_words,
            texts=texts_with_pieces,
        )


def _with_pieces(
    pairs: Iterable[Edge], source_words: Sequence[int], target_words: Sequence[int]
) -> tuple[Edge, ...]:
    """Return the pairs (target word, source word, label) whose words both have a piece."""
    sources = set(source_words)
    targets = set(target_words)
    return tuple(
        (target, source, label)
        for target, source, label in pairs
        if target in targets and source in sources
    )


def _words_of_tokens(
    model: TextModel, *, text: str, words: Spans, tokens: Spans, content: Sequence[int]
) -> tuple[int, ...]:
    """Return the word of each token, -1 for none: the first word that has a character of it.

    ``words`` and ``tokens`` are where they begin and end in the text; only the tokens at the
    positions ``content`` have a word.
    """
    word_of_character: dict[int, int] = {}
    for word, (start, stop) in enumerate(words):
        word_of_character.update(dict.fromkeys(range(start, stop), word))
    words_are_characters = len(words) == len(text)
    word_of_token = [-1] * len(tokens)
    for token in content:
        start, stop = tokens[token]
        words_of_token = [
            word_of_character[i] for i in range(start, stop) if i in word_of_character
        ]
        if words_are_characters and len(set(words_of_token)) > 1:
            refuse_characters(model, text[start:stop])
        if words_of_token:
            word_of_token[token] = words_of_token[0]
    return tuple(word_of_token)


def check_characters(model: TextModel, sentences: Iterable[EncodedSentence]) -> None:
    """Raise where a model joins characters of a text whose every character counts as a word."""
    texts = [sentence.sentence.text for sentence in sentences if sentence.left_out]
    for text, encoding in zip(texts, tokenise(model, texts, check=False), strict=True):
        for start, stop in encoding.offsets:
            if stop > start + 1:
                refuse_characters(model, text[start:stop])


def refuse_characters(model: TextModel, piece: str) -> NoReturn:
    """Raise the error for a piece that joins several characters which count as words."""
    raise CorpusError(
        f"No text has a space, so positions count characters, but {model.name} reads {piece!r} as "
        "one piece; write spaces between the words and count words, or give a model whose pieces "
        "are characters."
    )


def collate_labelled(rows: Sequence[LabelledRow], pad_id: int) -> Batch:
    """Pad rows as :func:`.batches.collate_pairs` does, and add their words."""
    batch = collate_pairs(rows, pad_id)
    assert batch.source is not None
    n_source = max(len(row.texts.source_words) for row in rows)
    n_target = max(len(row.texts.target_words) for row in rows)

    # Which tokens are pieces of which word: (batch, words, tokens).
    _, n_source_tokens = batch.source.input_ids.shape
    _, n_target_tokens = batch.size
    source_pieces = _pieces_of_words([row.source_words for row in rows], n_source, n_source_tokens)
    target_pieces = _pieces_of_words([row.target_words for row in rows], n_target, n_target_tokens)
    pieces = source_pieces.sum(axis=2).astype(np.int64)
    target_pieces /= np.maximum(target_pieces.sum(axis=2, keepdims=True), 1)

    # How many words each source word lies behind the one on the straight line.
    distance = np.zeros((len(rows), n_target, n_source), dtype=np.int64)
    for i, row in enumerate(rows):
        on_line = words_on_line(len(row.texts.source_words), len(row.texts.target_words), n_target)
        distance[i] = np.arange(n_source) - on_line[:, None]  # (target words, source words)

    words = CrossWords(
        target_pieces=torch.from_numpy(target_pieces).float(),
        source_pieces=torch.from_numpy(source_pieces).float(),
        pieces=torch.from_numpy(pieces),
        queries=torch.from_numpy(target_pieces.any(axis=2)),
        distance=torch.from_numpy(distance),
        half=torch.tensor([row.texts.half for row in rows]),
        edges=edge_trials(
            _row_trials(row, pieces_of_row, row.texts.pairs)
            for row, pieces_of_row in zip(rows, pieces, strict=True)
        ),
        swapped=edge_trials(
            _row_trials(row, pieces_of_row, row.texts.swapped)
            for row, pieces_of_row in zip(rows, pieces, strict=True)
        ),
    )
    return dataclasses.replace(batch, words=words)


def _pieces_of_words(
    words_of_tokens: Sequence[Sequence[int]], n_words: int, n_tokens: int
) -> Array:
    """Mark with 1 which tokens are pieces of which word: (rows, words, tokens)."""
    marks = np.zeros((len(words_of_tokens), n_words, n_tokens))
    for i, words in enumerate(words_of_tokens):
        word_of = np.array(words)
        tokens = np.flatnonzero(word_of >= 0)
        marks[i, word_of[tokens], tokens] = 1.0
    return marks


def words_on_line(n_source: int, n_target: int, n: int) -> Array:
    """Return the source word of each target word, were translations a straight line, (n,).

    The line runs from both first words to both last words: of 5 source words and 3 target words
    [0, 2, 4]. It goes on behind the last target word where ``n`` is more than ``n_target``.
    """
    steps = max(n_target - 1, 1)
    # i (n_source - 1) / steps to the nearest integer, in whole numbers
    return (2 * np.arange(n) * (n_source - 1) + steps) // (2 * steps)


def _row_trials(row: LabelledRow, pieces: Array, pairs: Sequence[Edge]) -> RowTrials:
    """Ask every word of the target that has a pair for its words of the source.

    ``pieces`` counts the pieces of each word of the source. Evenly spread attention is largest on
    the words with most pieces, any of them with the same probability.
    """
    n_source = len(row.texts.source_words)
    n_target = len(row.texts.target_words)
    longest = pieces == pieces.max()

    def uniform(query: Array, target: Array) -> Array:
        return np.asarray(longest[target] / longest.sum())

    return RowTrials(
        half=row.texts.half,
        trials=trials_of(pairs, CROSS_WAY),
        positions=np.arange(max(n_source, n_target)),  # words of both sides by their numbers
        offset_origin=words_on_line(n_source, n_target, n_target),
        first_word=0,
        last_word=np.full(n_target, n_source - 1),
        uniform=uniform,
    )
