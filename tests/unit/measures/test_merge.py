"""Sums of two parts of a corpus add up to the sums of the whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from headscope.data.batches import buckets, collate
from headscope.data.corpus import sample_corpus
from headscope.data.encode import Encoder
from headscope.data.frequencies import find_frequencies
from headscope.data.sentence import Sentence
from headscope.measures.classify.labels import judge
from headscope.measures.classify.sums import HeadMeasures
from headscope.measures.classify.syntactic import KernelHits
from headscope.measures.classify.thresholds import Thresholds
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Router, routed
from headscope.results import HeadResult


def _sums(loaded: LoadedModel, sentences: Sequence[Sentence]) -> HeadMeasures:
    frequencies = find_frequencies(sample_corpus(), None, "en")
    encoder = Encoder(loaded, frequencies)
    sums = HeadMeasures(loaded.n_layers, loaded.n_heads)
    reducer = sums.reducer()
    with routed(loaded.model, Router(loaded.sites, [reducer])) as router:
        for part in buckets(list(encoder.encode(iter(sentences)))):
            batch = collate(part, loaded.pad_id)
            reducer.start(batch)
            router.run(lambda b=batch: loaded.forward(b.input_ids, b.attention_mask))
    return sums


def _judged(sums: HeadMeasures) -> tuple[HeadResult, ...]:
    return judge(sums, KernelHits(sums.syntactic), Thresholds(), [range(12)] * 6)


@pytest.fixture(scope="module")
def parts(demo: LoadedModel) -> tuple[HeadMeasures, HeadMeasures, HeadMeasures]:
    sentences = list(sample_corpus())[:90]
    # The second part meets relations and offsets in another order.
    return (
        _sums(demo, sentences),
        _sums(demo, sentences[40:]),
        _sums(demo, sentences[:40]),
    )


def test_merged_parts_equal_the_whole(
    parts: tuple[HeadMeasures, HeadMeasures, HeadMeasures],
) -> None:
    whole, merged, other = parts
    merged.merge(other)
    for name in ("positional", "kernel", "rare", "profile"):
        for key, array in getattr(whole, name).state().items():
            np.testing.assert_allclose(getattr(merged, name).state()[key], array, rtol=1e-5)
    ours, theirs = (_judged(sums) for sums in (merged, whole))
    for a, b in zip(ours, theirs, strict=True):
        assert a.roles == b.roles
        assert [(s.relation, s.direction, s.trials, s.baseline) for s in a.syntactic] == [
            (s.relation, s.direction, s.trials, s.baseline) for s in b.syntactic
        ]
        for x, y in zip(a.syntactic, b.syntactic, strict=True):
            assert x.accuracy == pytest.approx(y.accuracy, abs=0.02)  # a near tie may flip
            assert x.uniform == pytest.approx(y.uniform)


def test_state_round_trip(parts: tuple[HeadMeasures, HeadMeasures, HeadMeasures]) -> None:
    whole = parts[0]
    copy = HeadMeasures(6, 12)
    copy.load_state(whole.state())
    assert _judged(copy) == _judged(whole)
