"""``attribute`` on real models and pairs of STS-B: the sum is exact, and says what was measured."""

import pytest

import headscope


def test_sts_b_pairs(demo, shared):
    data = shared / "data/stsb-en-test.csv"
    result = headscope.attribute(demo, data=data, limit=14, removals=4, validate=False)
    assert (result.kind, result.examples, result.skipped, len(result.heads)) == (
        "cosine",
        14,
        0,
        72,
    )
    assert result.check.error < 1e-12
    output = result.output.value
    assert sum(part.direct.value for part in result.parts) == pytest.approx(output, abs=1e-12)
    # Of all 1,379 pairs heads have 0.40 of 0.61, feed-forward networks 0.16, embeddings 0.05.
    assert 0.55 < result.part("heads").value / output < 0.80
    assert 0.18 < result.part("feed-forward").value / output < 0.35
    assert 0.03 < result.part("embeddings").value / output < 0.12
    assert result.shuffled.output.high < result.output.low
    assert len(result.groups) == 6
    # No attention follows the last layer: what removal does there is the first order, once both
    # lengths are counted. The exact parts alone say little of it.
    last = result.layers[-1]
    assert last.spearman_first_order > 0.9
    assert last.spearman < last.spearman_first_order - 0.2
    assert max(layer.spearman_first_order for layer in result.layers[:-1]) < 0.8


def test_a_classifier_and_a_masked_token(shared):
    sst2 = str(shared / "models/minilm-sst2")
    mlm = str(shared / "models/minilm-mlm")
    calibration = ["The cat sat.", "He saw a dog.", "It rained."]
    film = headscope.attribute(
        sst2, "A dull and lifeless film.", calibration=calibration, validate=False
    )
    assert (film.kind, film.label) == ("class", "negative")
    masked = headscope.attribute(
        mlm, "Paris is the [MASK] of France.", calibration=calibration, validate=False
    )
    assert (masked.kind, masked.label) == ("token", "city")
    for result in (film, masked):
        assert result.check.error < 1e-10
        assert result.part("heads").value > 0.1 * result.output.value > 0
        assert result.shuffled.examples == 3


def test_a_transliteration_by_its_letters(shared):
    model = str(shared / "models/ar-en-transliteration")
    pairs = shared / "data/ar-en-test.tsv"
    # "Acheson", of seven letters: alef, teh, sheen, yeh, seen, waw, noon.
    result = headscope.attribute(
        model, "آتشيسون", target="acheson", tokens=True, calibration=pairs, validate=False
    )
    assert (result.kind, len(result.heads)) == ("target", 3 * 6 * 8)
    assert result.check.error < 1e-12
    assert result.part("cross-attention").value > 0.3 * result.output.value > 0
    # Each letter's logit comes most from the letter that it stands for.
    table = {}
    for letter, values in zip(result.pairs.rows, result.pairs.values, strict=True):
        table[letter] = dict(zip(result.pairs.columns, values, strict=True))
    for letter, source in zip("aeson", "آيسون", strict=True):
        assert max(table[letter], key=table[letter].get) == source
    assert table["c"]["ش"] + table["c"]["ت"] > 0.9 * sum(table["c"].values())
    # A target whose source is another has lower logits, and less of them from cross-attention.
    many = headscope.attribute(model, data=pairs, limit=16, removals=1, validate=False)
    assert many.shuffled.output.high < many.output.low
    assert many.check.error < 1e-12
