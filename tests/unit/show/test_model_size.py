"""How large a model is, in words, from the description of it in a result's provenance."""

import pytest

from headscope.show.cells import model_size


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"n_layers": 6, "n_heads": 12}, "6 layers x 12 heads"),
        (
            {"n_layers": 18, "n_heads": 8, "stacks": {"encoder": 6, "decoder": 6, "cross": 6}},
            "6 encoder, 6 decoder and 6 cross-attention layers x 8 heads",
        ),
        ({}, "? layers x ? heads"),
    ],
)
def test_the_layers_of_each_stack_are_counted(model, words):
    assert model_size(model) == words
