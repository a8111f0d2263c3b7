"""Batches that run at the same time: in order, on the model's weights, errors in their place."""

import threading
import time
from contextlib import contextmanager

import pytest
import torch
from families import padded_batch, tiny

import headscope
from headscope.models.run.intervene import intervene
from headscope.models.run.side_by_side import AT_ONCE, side_by_side


@pytest.fixture(params=[1, 2 * AT_ONCE])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    assert torch.get_num_threads() == request.param  # as it was
    torch.set_num_threads(before)


def each(run):
    """Let every copy of the model do ``run(copy, item)``."""

    @contextmanager
    def start(copy):
        yield lambda item: run(copy, item)

    return start


@pytest.mark.parametrize("threads", [2], indirect=True)
@pytest.mark.parametrize("family", ["bert", "albert, two groups", "mpnet"])
def test_every_family_runs_as_it_does_alone(family, threads):
    loaded = headscope.wrap(tiny(family))
    ids, mask = padded_batch()
    batches = [(ids[:1], mask[:1]), (ids, mask), (ids[1:], mask[1:])] * 3

    @contextmanager
    def start(copy):
        with intervene(copy, z=lambda site, z: z * (site.row + 0.5)) as router:
            yield lambda batch: router.checked(copy.forward, *batch)

    expected = list(side_by_side(loaded, batches, start, alone=True))
    results = list(side_by_side(loaded, batches, start))
    for one, other in zip(results, expected, strict=True):
        torch.testing.assert_close(one, other)
    for module in loaded.network.modules():
        assert "forward" not in vars(module)


def test_results_come_in_the_order_of_the_items_from_copies_with_the_models_weights(threads):
    loaded = headscope.wrap(tiny("bert"))
    seen = {}

    @contextmanager
    def start(copy):
        assert torch.get_num_threads() == max(1, threads // AT_ONCE)
        pairs = zip(copy.network.parameters(), loaded.network.parameters(), strict=True)
        assert all(one is other for one, other in pairs)
        seen[threading.get_ident()] = copy

        def run(i):
            time.sleep(0.02 if i % 3 == 0 else 0)
            return i

        yield run

    assert list(side_by_side(loaded, range(40), start)) == list(range(40))
    assert len({id(copy.model) for copy in seen.values()}) == len(seen) == min(threads, AT_ONCE)
    assert (loaded.model in [copy.model for copy in seen.values()]) == (threads == 1)


def test_an_error_is_raised_in_its_place_and_ends_the_rest(threads):
    done = []

    def run(_, i):
        if i == 3:
            raise ValueError("three")
        done.append(i)
        return i

    results = side_by_side(headscope.wrap(tiny("bert")), range(1000), each(run))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)
    assert len(done) < 30


def test_a_caller_who_stops_early_leaves_nothing_behind(threads):
    before = set(threading.enumerate())
    results = side_by_side(headscope.wrap(tiny("bert")), range(1000), each(lambda _, i: i))
    assert next(results) == 0
    results.close()
    assert set(threading.enumerate()) <= before


def test_a_single_item_or_a_module_that_cannot_be_copied_runs_alone(threads):
    loaded = headscope.wrap(tiny("bert"))

    def run(copy, _):
        assert copy is loaded
        return torch.get_num_threads()

    assert list(side_by_side(loaded, [0], each(run))) == [threads]
    assert list(side_by_side(loaded, [], each(run))) == []
    loaded.model.theirs = threading.Lock()  # something of the user's own
    assert list(side_by_side(loaded, range(3), each(run))) == [threads] * 3
