"""The largest size that reaches a target, where the costs of all sizes are planted."""

from types import SimpleNamespace

import pytest

from headscope.shrinking import sizes
from headscope.shrinking.neurons import width_of
from headscope.shrinking.result import Target
from headscope.shrinking.serving import GRAPH
from headscope.shrinking.sizes import Shape


@pytest.fixture
def planted(bert, monkeypatch):
    """Every layer costs one megabyte, and each of its 64 neurons a quarter of that."""
    monkeypatch.setattr(sizes, "MULTIPLE", 4)
    weighed = []

    def files(model, n_texts):
        megabytes = len(model.sites) * (1 + width_of(model) / 4)
        weighed.append((len(model.sites), width_of(model)))
        return SimpleNamespace(
            served=lambda form: None, megabytes=lambda form: megabytes, close=lambda: None
        )

    return SimpleNamespace(full_model=bert, files=files, weighed=weighed)


@pytest.mark.parametrize(
    ("megabytes", "shape"),
    [
        (4 * 17.0, Shape(4, 64)),  # the whole model
        (4 * 13.0, Shape(4, 48)),
        (4 * 9.0, Shape(4, 32)),  # half of the neurons, which is as narrow as layers get
        (4 * 9.0 - 1, Shape(3, 40)),
        (3 * 9.0 - 1, Shape(2, 48)),
        (9.0, Shape(1, 32)),
        (8.9, None),
    ],
)
def test_layers_get_narrower_before_one_goes(planted, megabytes, shape):
    target = Target("mb", megabytes)
    largest, words = sizes.largest_that_reaches(
        planted, GRAPH, target, speed=1.0, tell=lambda *step: None
    )
    assert largest == shape
    if shape is None:
        assert words == "9.0 MB"
    else:
        assert planted.weighed[-1] in {(shape.layers, shape.width), (shape.layers, 64)}


def test_numbers_of_layers_that_are_surely_too_slow_are_not_tried(bert):
    """Half of the neurons make a layer at most 1.6 times as fast."""
    fast = Target("speed", 6.5)
    assert sizes._possible_counts(bert, fast, speed=2.0) == [1]
    assert sizes._possible_counts(bert, fast, speed=2.1) == [2, 1]
    assert sizes._possible_counts(bert, Target("speed", 99.0), speed=1.0) == [1]
    assert sizes._possible_counts(bert, Target("mb", 1.0), speed=1.0) == [4, 3, 2, 1]
