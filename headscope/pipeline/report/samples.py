"""The attention patterns of every head on two short sentences, for people to look at."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from headscope.data.plain import encode_lines, sample_plain
from headscope.measures.activations import Activations
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Router, routed
from headscope.results.heads import head_name
from headscope.results.report import SamplePatterns

#: Tokens of a sentence that is shown, special ones included.
SHORTEST, LONGEST = 8, 16
#: Digits after the decimal point that are kept of a weight.
_DIGITS = 2


def sample_patterns(loaded: LoadedModel, count: int = 2) -> tuple[SamplePatterns, ...]:
    """Run the first short sentences of the built-in sample and keep their rounded patterns.

    There are none for a model without tokenizer.
    """
    if loaded.tokenizer is None or not loaded.sites:
        return ()
    if loaded.encoder_decoder:  # sentences run no more of it
        loaded = loaded.only("encoder")
    spell = loaded.tokenizer.convert_ids_to_tokens
    return tuple(
        SamplePatterns(text, tuple(map(str, spell(ids))), _patterns(loaded, ids))
        for text, ids in handy_sentences(loaded, count)
    )


def handy_sentences(loaded: LoadedModel, count: int) -> list[tuple[str, list[int]]]:
    """Choose sentences of the built-in sample of a handy length, or the shortest there are."""
    texts = list(sample_plain())
    encoded = encode_lines(loaded, texts)
    known = [(text, ids) for text, ids in zip(texts, encoded, strict=True) if ids is not None]
    # Sorting is stable: sentences of a handy length come first, as they stand in the sample.
    known.sort(key=lambda item: 0 if SHORTEST <= len(item[1]) <= LONGEST else len(item[1]))
    return known[:count]


class _Keep:
    """Keeps the rounded patterns of one sentence."""

    def __init__(self, heads: Sequence[int]) -> None:
        self.found: list[list[Tensor]] = [[torch.empty(0)] * n for n in heads]

    def observe(self, site: Activations) -> None:
        for place, head in enumerate(range(*site.heads.indices(site.n_heads))):
            self.found[site.row][head] = site.pattern[0, place].cpu().double().clone()

    def finish(self, stack: str, layer: int) -> None:
        """Nothing to do."""


def _patterns(loaded: LoadedModel, ids: list[int]) -> dict[str, tuple[tuple[float, ...], ...]]:
    keep = _Keep([site.n_heads for site in loaded.sites])
    with routed(loaded.model, Router(loaded.sites, [keep], others=loaded.others)) as router:
        router.run(functools.partial(loaded.forward, *loaded.pad([ids])))
    return {
        head_name(site.layer, head): _rounded(pattern)
        for site, patterns in zip(loaded.sites, keep.found, strict=True)
        for head, pattern in zip(site.head_ids, patterns, strict=True)
    }


def _rounded(pattern: Tensor) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(round(float(w), _DIGITS) for w in row) for row in pattern)
