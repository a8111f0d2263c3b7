"""Parts of a corpus add up; every role has a reason why a corpus may not show it."""

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from families import tiny
from judging import evidence_of, judged
from tiny_models import VOCABULARY, tiny_tokenizer

import headscope
from headscope.analyses.classify.cross import CrossHeads
from headscope.analyses.classify.labels import untestable
from headscope.analyses.classify.roles import roles_of
from headscope.analyses.classify.rows import RowReducer
from headscope.analyses.classify.scores import HeadResult
from headscope.analyses.classify.stack_words import no_relation_sentence, pairs_sentence
from headscope.analyses.classify.sums import HeadMeasures
from headscope.core.roles import Thresholds
from headscope.data.batches import buckets, collate
from headscope.data.corpus import sample_corpus
from headscope.data.frequencies import find_frequencies
from headscope.data.word_pieces import Placed, encode_words, placed
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Router, routed


def sums_of(loaded: LoadedModel, places: Sequence[Placed]) -> HeadMeasures:
    encoder = partial(
        encode_words, loaded, frequencies=find_frequencies(sample_corpus(), None, "en")
    )
    sums = HeadMeasures(loaded.n_layers, loaded.n_heads)
    reducer = RowReducer(loaded.n_layers, loaded.n_heads, sums.update)
    with routed(loaded.model, Router(loaded.sites, [reducer])) as router:
        for sentences in buckets(list(encoder(places))):
            batch = collate(sentences, loaded.pad_id)
            reducer.start(batch)
            router.run(lambda b=batch: loaded.forward(b.input_ids, b.attention_mask))
    return sums


def heads_of_demo(sums: HeadMeasures) -> tuple[HeadResult, ...]:
    edges = sums.syntactic
    kernel = np.zeros_like(edges.hits)
    return judged(sums, head_ids=[range(12)] * 6, kernel_hits=kernel, edges=edges)


def test_merged_parts_and_restored_states_equal_the_whole(demo):
    places = list(placed(sample_corpus()))[:36]
    # The second part meets relations and offsets in another order.
    all_at_once = sums_of(demo, places)
    merged = sums_of(demo, places[15:])
    merged.merge(sums_of(demo, places[:15]))
    for name in ("positional", "kernel", "rare", "profile"):
        for key, array in getattr(all_at_once, name).state().items():
            np.testing.assert_allclose(getattr(merged, name).state()[key], array, rtol=1e-5)
    expected = heads_of_demo(all_at_once)
    for a, b in zip(heads_of_demo(merged), expected, strict=True):
        assert a.roles == b.roles
        for x, y in zip(a.syntactic, b.syntactic, strict=True):
            assert (x.relation, x.direction) == (y.relation, y.direction)
            assert (x.trials, x.baseline) == (y.trials, y.baseline)
            assert x.accuracy.value == pytest.approx(
                y.accuracy.value, abs=0.02
            )  # a near tie may flip
            assert x.uniform == pytest.approx(y.uniform)
    copy = HeadMeasures(6, 12)
    copy.load_state(all_at_once.state())
    assert heads_of_demo(copy) == expected


def test_without_sentences_no_role_can_be_shown():
    """What cannot apply to a stack is left out of the reasons."""
    for stack in ("encoder", "decoder"):
        applying = [role.key for role in roles_of(stack)]
        reasons = untestable(evidence_of(HeadMeasures(1, 1), stack))
        assert list(reasons) == applying
        assert "syntactic" in applying
        assert ("rare" in applying) == (stack == "encoder")
        assert ("first_token" in applying) == ("induction" in applying) == (stack == "decoder")
    assert list(untestable(evidence_of(CrossHeads(1, 1), "cross"))) == [
        role.key for role in roles_of("cross")
    ]


def test_few_sentences_with_a_token_twice_make_no_label():
    """Their mean has hardly a spread over sentences, which is no certainty."""
    network = tiny("bert", vocab_size=len(VOCABULARY))
    model = headscope.wrap(network, tiny_tokenizer(38), name="bert")
    lines = ["a big dog ran", "she saw it", "the cat sat on the mat"]
    most = Thresholds(duplicate=0.0)
    result = headscope.classify(model, lines, thresholds=most, validate=False)
    assert max(head.duplicate_rate for head in result.heads) >= 0.5
    assert not any("duplicate" in head.roles for head in result.heads)
    assert result.untestable["duplicate"] == ("fewer than 8 sentences have a token twice (1)")
    assert result.untestable["special"] == "fewer than 8 sentences (3)"
    assert result.untestable["self"] == "fewer than 8 sentences (3)"


def test_where_no_relation_could_be_tested_no_head_is_said_to_follow_none():
    few = "no relation has 50 trials in each half of the corpus"
    untested = SimpleNamespace(labels=(), untestable={"syntactic": few})
    assert no_relation_sentence(untested) == (
        f"Whether a head follows a relation could not be tested: {few}."
    )
    tested = SimpleNamespace(labels=(), untestable={})
    assert no_relation_sentence(tested).startswith("No head is syntactic: none follows a relation")
    few = "fewer than 50 trials in one half of the texts"
    pairs = SimpleNamespace(labels=("a", "b"), untestable={"pair:a": few, "pair:b": few}, heads=())
    assert pairs_sentence(pairs) == f"Not testable whether a head follows the pairs: {few}."
    pairs = SimpleNamespace(labels=("a", "b"), untestable={"pair:a": few}, heads=())
    assert pairs_sentence(pairs).startswith("No head follows the pairs better")
