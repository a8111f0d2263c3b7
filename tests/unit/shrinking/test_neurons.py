"""Which neurons stay in narrower feed-forward networks, against planted and brute-force answers."""

import numpy as np
import pytest
import torch
from tiny_models import tiny_bert
from transformers import AutoModel

import headscope
from headscope.core.errors import UnsupportedModelError
from headscope.data.token_rows import encode_rows
from headscope.shrinking.neurons import first_neurons, kept_neurons, narrowed, width_of

SENTENCES = ["the small dog sees a cat", "a bird sings", "the cat runs home and sleeps"] * 8


def activations(n_neurons, seed=0):
    """Random activations with a column of ones, and a map with its bias."""
    rng = np.random.default_rng(seed)
    a = np.maximum(rng.normal(size=(300, n_neurons)) @ rng.normal(size=(n_neurons, n_neurons)), 0)
    return np.column_stack([a, np.ones(300)]), rng.normal(size=(n_neurons + 1, 5))


def fitted(a, W, neurons):
    """The best map of some neurons and the bias by least squares, and what it misses."""
    columns = [*neurons, -1]
    V = np.linalg.lstsq(a[:, columns], a @ W, rcond=None)[0]
    return V, float(np.square(a[:, columns] @ V - a @ W).sum())


def chosen(a, W, width):
    """The neurons that stay, and their map."""
    neurons, V = kept_neurons(torch.tensor(a.T @ a), torch.tensor(W), width)
    return neurons, V.numpy()


@pytest.mark.parametrize("seed", range(4))
def test_the_neuron_that_goes_is_the_one_that_least_squares_misses_least(seed):
    a, W = activations(7, seed)
    neurons, V = chosen(a, W, 6)
    missed = {}
    for removed in range(7):
        _, missed[removed] = fitted(a, W, [i for i in range(7) if i != removed])
    assert set(range(7)) - set(neurons) == {min(missed, key=missed.get)}
    best, _ = fitted(a, W, neurons)
    np.testing.assert_allclose(V, best, rtol=0.02, atol=0.02)


def test_what_others_can_write_goes_first():
    a, W = activations(8)
    a[:, 3] = a[:, 1]  # a double
    a[:, 5] = 0.7  # what the bias can write
    neurons, V = chosen(a, W, 6)
    assert 5 not in neurons
    assert len({1, 3} & set(neurons)) == 1
    np.testing.assert_allclose(a[:, [*neurons, -1]] @ V, a @ W, atol=0.01 * np.abs(a @ W).max())


@pytest.fixture(scope="module")
def doubled(tmp_path_factory):
    """A model each of whose neurons stands twice in its network."""
    folder = tiny_bert(tmp_path_factory.mktemp("doubled") / "model", intermediate_size=64)
    model = headscope.load(str(folder))
    for layer in model.model.encoder.layer:
        layer.intermediate.dense.weight.data[32:] = layer.intermediate.dense.weight.data[:32]
        layer.intermediate.dense.bias.data[32:] = layer.intermediate.dense.bias.data[:32]
    return headscope.wrap(model.network, model.tokenizer, name=str(folder))


def test_doubles_go_without_a_loss_and_every_library_opens_the_rest(doubled, tmp_path):
    rows = list(encode_rows(doubled, SENTENCES, None))
    small = narrowed(doubled, 32, rows)
    assert (width_of(doubled), width_of(small)) == (64, 32)
    ids = torch.tensor([rows[0].ids])
    expected = doubled.run(ids, torch.ones_like(ids))[0]
    torch.testing.assert_close(small.run(ids, torch.ones_like(ids))[0], expected, atol=2e-2, rtol=0)
    cut = first_neurons(doubled, 32).run(ids, torch.ones_like(ids))[0]
    assert (cut - expected).abs().max() > 0.05  # without the refit it is another model
    headscope.save(small, str(tmp_path / "small"))
    opened = AutoModel.from_pretrained(tmp_path / "small")
    assert opened.config.intermediate_size == 32
    torch.testing.assert_close(opened.eval()(ids).last_hidden_state, small.run(ids, ids * 0 + 1)[0])


def test_networks_that_cannot_be_taken_apart_have_no_width(doubled, monkeypatch):
    def refuse(loaded):
        raise UnsupportedModelError("no")

    monkeypatch.setattr("headscope.shrinking.neurons.feed_forwards", refuse)
    assert width_of(doubled) == 0
