"""``attribute`` on real models and pairs of STS-B: the sum is exact, and says what was measured."""

import pytest

import headscope


def test_sts_b_pairs(demo, shared):
    found = headscope.attribute(
        demo, data=shared / "data/stsb-en-test.csv", limit=36, removals=1, validate=False
    )
    assert (found.kind, found.examples, found.skipped, len(found.heads)) == ("cosine", 36, 0, 72)
    assert found.check.error < 1e-12
    output = found.output.value
    assert sum(part.direct.value for part in found.parts) == pytest.approx(output, abs=1e-12)
    # Of all 1,379 pairs heads have 0.47 of 0.68, feed-forward networks 0.17, embeddings 0.05.
    assert 0.55 < found.part("heads").value / output < 0.80
    assert 0.18 < found.part("feed-forward").value / output < 0.35
    assert 0.03 < found.part("embeddings").value / output < 0.12
    unrelated = found.shuffled
    assert unrelated.output.high < found.output.low
    assert len(found.groups) == 6


def test_a_classifier_and_a_masked_token(shared):
    few = {"calibration": ["The cat sat.", "He saw a dog.", "It rained."], "validate": False}
    film = headscope.attribute(
        str(shared / "models/minilm-sst2"), "A dull and lifeless film.", **few
    )
    assert (film.kind, film.label) == ("class", "negative")
    masked = headscope.attribute(
        str(shared / "models/minilm-mlm"), "Paris is the [MASK] of France.", **few
    )
    assert (masked.kind, masked.label) == ("token", "city")
    for found in (film, masked):
        assert found.check.error < 1e-10
        assert found.part("heads").value > 0.1 * found.output.value > 0
        assert found.shuffled.examples == 3
