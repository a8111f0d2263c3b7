"""Which sets of layers are tried, and in which order: against brute force and planted costs."""

import itertools

import pytest
from shrinking_models import outputs, sentences
from tiny_models import write_translator

import headscope
from headscope.models.surgery.layers import remove_layers
from headscope.shrinking.layers import counts_by_stack, nearest_subsets, spread_evenly


def test_the_layer_that_does_nothing_goes_first(bert):
    texts = sentences(40)
    expected = outputs(bert, texts)

    def distance(model):
        return float((1 - (outputs(model, texts) * expected).sum(-1)).mean())

    progress = []
    sets = nearest_subsets(bert, 3, distance, lambda done, total: progress.append((done, total)))
    assert sets[0] == (2,)
    assert progress == [(done, 4) for done in range(4)]
    pairs = {
        removed: distance(remove_layers(bert, removed))
        for removed in itertools.combinations(range(4), 2)
    }
    nearest_pairs = nearest_subsets(bert, 2, distance, lambda done, total: None)
    assert nearest_pairs == sorted(pairs, key=pairs.get)


def test_one_at_a_time_where_there_are_many_subsets(bert, monkeypatch):
    monkeypatch.setattr("headscope.shrinking.layers.MOST_SUBSETS", 1)
    costs = {0: 3.0, 1: 2.0, 2: 0.0, 3: 1.0}

    def distance(model):
        remaining = {site.layer for site in model.sites}
        return sum(cost for layer, cost in costs.items() if layer not in remaining)

    sets = nearest_subsets(bert, 2, distance, lambda done, total: None)
    # The second is also the evenly spread one.
    assert [set(removed) for removed in sets] == [{2, 3}, {2, 1}, {2, 0}]


@pytest.mark.parametrize(("count", "removed"), [(3, (2,)), (2, (1, 2)), (1, (1, 2, 3))])
def test_layers_spread_evenly_have_the_first_and_the_last(bert, count, removed):
    assert spread_evenly(bert, count) == removed


def test_both_stacks_of_an_encoder_decoder_get_shorter(tmp_path):
    model = headscope.load(str(write_translator(tmp_path / "marian")), task_head="seq2seq")
    assert counts_by_stack(model, 1) == {"encoder": 1, "decoder": 1}
