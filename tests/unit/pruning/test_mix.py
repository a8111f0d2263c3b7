"""Heads and neurons chosen together, against brute force, autograd and planted dead units."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from families import opened
from tiny_models import tiny_bert

import headscope
from headscope.core.errors import InputError
from headscope.data.examples import Examples
from headscope.pruning.mix.budget import Budget, check_reachable
from headscope.pruning.mix.build import build, check_equal
from headscope.pruning.mix.choose import Shrinking, allocate, distance_to, outputs_of
from headscope.pruning.mix.costs import Milliseconds, PerUnit, megabytes, multiplications
from headscope.pruning.mix.eliminate import Elimination, eliminate, refitted
from headscope.pruning.mix.judge import megabytes_of
from headscope.pruning.mix.sublayers import HEADS, NEURONS, Moments, moments, sublayers
from headscope.pruning.mix.tune import distil
from headscope.tasks.encoder_tasks import Fidelity

KINDS = (HEADS, NEURONS)
WORDS = (
    "the",
    "a",
    "big",
    "red",
    "cat",
    "dog",
    "house",
    "mat",
    "sat",
    "ran",
    "saw",
    "it",
    "she",
    "on",
    "was",
)


def texts(n: int, seed: int) -> Examples:
    rng = np.random.default_rng(seed)
    lines = tuple(" ".join(rng.choice(WORDS, size=rng.integers(3, 9))) for _ in range(n))
    return Examples("planted.txt", "0" * 64, lines)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return headscope.load(tiny_bert(tmp_path_factory.mktemp("mix") / "bert"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Feed-forward networks of 128 neurons, 64 of which are dead, and one dead head a layer."""
    loaded = headscope.load(tiny_bert(tmp_path_factory.mktemp("mix") / "bert"))
    torch.manual_seed(3)
    config = type(loaded.model.config)(
        **{**loaded.model.config.to_dict(), "intermediate_size": 128}
    )
    network = type(loaded.network)(config).eval()
    with torch.no_grad():
        for p in network.parameters():
            p.normal_(std=0.3) if p.dim() > 1 else p.add_(0.1 * torch.randn_like(p))
        for i, layer in enumerate(network.encoder.layer):
            layer.output.dense.weight[:, i::2] = 0
            d_head = (
                32 // 4 if network.config.hidden_size == 32 else network.config.hidden_size // 4
            )
            layer.attention.output.dense.weight[:, i * d_head : (i + 1) * d_head] = 0
    return headscope.wrap(network, loaded.tokenizer, name="planted")


def item(kind: str, n_units: int, size: int, name: str = "a") -> Any:
    units = tuple(range(n_units))
    return SimpleNamespace(
        kind=kind, n_units=n_units, size=size, name=name, stack="encoder", uses=1, units=units
    )


def drawn(n_in: int, d: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, Moments]:
    """Inputs with a column of ones, a map, and the moments of inputs and gradients."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(400, n_in, generator=g, dtype=torch.float64)
    X = X @ torch.randn(n_in, n_in, generator=g, dtype=torch.float64) / n_in**0.5 + 0.3
    X = torch.cat([X, torch.ones(400, 1, dtype=torch.float64)], dim=1)
    W = torch.randn(n_in + 1, d, generator=g, dtype=torch.float64)
    root = torch.randn(d, d, generator=g, dtype=torch.float64)
    return X, W, Moments(X.t() @ X / 400, root @ root.t())


def least_change(X: torch.Tensor, W: torch.Tensor, C: torch.Tensor, kept: list[int]) -> float:
    """The best map on ``kept`` inputs by lstsq, and what it changes: the slow oracle."""
    solution = np.linalg.lstsq(X[:, kept].numpy(), (X @ W).numpy(), rcond=None)[0]
    gap = X[:, kept] @ torch.from_numpy(solution) - X @ W
    return float(torch.trace(gap.t() @ gap @ C)) / len(X)


def test_heads_go_as_a_greedy_search_by_least_squares_has_them():
    X, W, found = drawn(12, 5, seed=1)
    path = eliminate(item(HEADS, 4, 3), W, found, ridge=0.0)
    left, order, costs = [0, 1, 2, 3], [], [0.0]
    while left:

        def rest(gone: int, left: list[int] = left) -> list[int]:
            return [r for h in left if h != gone for r in range(3 * h, 3 * h + 3)] + [12]

        best = min(left, key=lambda h: least_change(X, W, found.C, rest(h)))
        costs.append(least_change(X, W, found.C, rest(best)))
        left.remove(best)
        order.append(best)
    assert path.order == tuple(order)
    assert path.costs == pytest.approx(costs, rel=1e-3)
    assert path.counts == (4, 3, 2, 1, 0)


def test_neurons_go_by_grids_and_cost_what_least_squares_says():
    X, W, found = drawn(100, 6, seed=2)
    path = eliminate(item(NEURONS, 100, 1), W, found, ridge=0.0)
    assert path.counts == (100, 96, 64, 32)
    assert len(path.order) == len(set(path.order)) == 68
    for count, cost in zip(path.counts, path.costs, strict=True):
        kept = [*path.kept(count, 100), 100]
        assert cost == pytest.approx(least_change(X, W, found.C, kept), rel=1e-2, abs=1e-9)
    rng = np.random.default_rng(0)  # random neurons cost more
    others = [[*rng.choice(100, 32, replace=False).tolist(), 100] for _ in range(10)]
    assert path.costs[-1] < min(least_change(X, W, found.C, kept) for kept in others)


def test_a_refit_is_ridge_regression_and_keeps_the_mean_in_the_bias():
    X, W, found = drawn(8, 3, seed=3)
    rows = torch.tensor([1, 1, 0, 1, 0, 0, 1, 1, 1], dtype=torch.bool)
    new = refitted(W, found.A, rows, ridge=0.01)
    own = float(found.A.diagonal()[:-1].mean()) * 0.01 * 400
    # Ridge towards the map as it was, as rows of data; none for the row of ones.
    extra = torch.diag(torch.tensor([own**0.5] * 8 + [0.0], dtype=torch.float64))
    both = torch.cat([X, extra])
    target = both @ W
    solution = np.linalg.lstsq(both[:, rows].numpy(), target.numpy(), rcond=None)[0]
    assert new[rows].numpy() == pytest.approx(solution, abs=1e-4)
    assert not new[~rows].any()


def test_the_moments_are_those_of_the_jacobian(bert):
    task = Fidelity(texts(3, seed=4), bert)
    layers = sublayers(bert, KINDS)
    found = moments(task, bert, layers, directions=500, seed=0)
    for i in (0, len(layers) - 1):
        A, C, weight = 0.0, 0.0, 0.0
        for batch in task.loss_batches(bert, labels=False):
            seen: list[Any] = []
            hook = layers[i].module.register_forward_hook(
                lambda _, args, out, seen=seen: seen.append((args[0].detach(), out))
            )
            out = batch.embed(batch.gates("example"))
            hook.remove()
            [(x, written)] = seen
            rows = [
                torch.autograd.grad(out[:, k].sum(), written, retain_graph=True)[0]
                for k in range(out.shape[1])
            ]
            J = torch.stack(rows).double()  # (outputs, batch, pos, d_model)
            C = C + torch.einsum("obpi,obpj->ij", J, J)
            w = (J**2).sum((0, 3))
            ones = torch.ones(*x.shape[:-1], 1)
            x1 = torch.cat([x, ones], dim=-1).double()
            A = A + torch.einsum("bp,bpi,bpj->ij", w, x1, x1)
            weight = weight + float(w.sum())
        assert found[i].C.numpy() == pytest.approx(
            (C / 3).numpy(), abs=0.2 * float(C.abs().max()) / 3
        )
        expected = (A / weight).numpy()
        assert found[i].A.numpy() == pytest.approx(expected, abs=0.1 * np.abs(expected).max())


def test_dead_units_go_first_and_cost_nothing(wide):
    task = Fidelity(texts(24, seed=5), wide)
    costs = multiplications(wide, sublayers(wide, KINDS), 8.0)
    shrinking = Shrinking(wide, task, KINDS, costs)
    dead = sum(costs.of(x, 1 if x.kind == HEADS else 64) for x in shrinking.layers)
    choices = shrinking.to(costs.total(shrinking.layers, shrinking.counts) - dead, rounds=2)
    for i, choice in enumerate(c for c in choices if c.item.kind == HEADS):
        assert choice.removed == (i,)
    for i, choice in enumerate(c for c in choices if c.item.kind == NEURONS):
        assert choice.removed == tuple(range(i, 128, 2))
    assert shrinking.distance() < 1e-9
    small = build(wide, choices)
    assert check_equal(small, shrinking.zeroed, task) < 1e-5
    assert outputs_of(small, task)[0].numpy() == pytest.approx(
        shrinking.targets[0].numpy(), abs=1e-5
    )


def test_half_of_a_model_is_nearer_than_random_units_and_the_whole_stays_as_it_was(wide):
    task = Fidelity(texts(48, seed=6), wide)
    other = Fidelity(texts(48, seed=7), wide)
    before = [p.clone() for p in wide.network.parameters()]
    costs = multiplications(wide, sublayers(wide, KINDS), 8.0)
    shrinking = Shrinking(wide, task, KINDS, costs)
    whole = costs.total(shrinking.layers, shrinking.counts)
    choices = shrinking.to(whole * 0.35, rounds=3)
    assert costs.total(shrinking.layers, shrinking.counts) <= whole * 0.35
    small = build(wide, choices)
    distance = distance_to(small, other, outputs_of(wide, other))
    rng = np.random.default_rng(1)
    drawn_ones = []
    for _ in range(3):
        kept = [
            tuple(sorted(rng.choice(c.item.n_units, len(c.kept), replace=False).tolist()))
            for c in choices
        ]
        random = build(wide, Shrinking(wide, task, KINDS, costs).keep(kept))
        drawn_ones.append(distance_to(random, other, outputs_of(wide, other)))
    assert distance < min(drawn_ones)
    assert all(torch.equal(*pair) for pair in zip(before, wide.network.parameters(), strict=True))


def test_a_new_beginning_is_a_new_model_without_a_new_look(wide, monkeypatch):
    task = Fidelity(texts(24, seed=11), wide)
    costs = multiplications(wide, sublayers(wide, KINDS), 8.0)
    first = Shrinking(wide, task, KINDS, costs)
    budget = costs.total(first.layers, first.counts) / 2
    first.to(budget, rounds=2)
    for kinds in (KINDS, (HEADS,), (NEURONS,)):
        anew = Shrinking(wide, task, kinds, costs)
        wanted = anew.to(0.8 * costs.total(anew.layers, anew.counts), rounds=1)
        with monkeypatch.context() as patch:
            patch.setattr("headscope.pruning.mix.choose.moments", None)
            again = first.whole(kinds)
            found = again.to(0.8 * costs.total(again.layers, again.counts), rounds=1)
        assert [(c.item.name, c.kept) for c in found] == [(c.item.name, c.kept) for c in wanted]
        assert all(
            torch.equal(*pair)
            for pair in zip(*([c.W for c in x] for x in (found, wanted)), strict=True)
        )
        assert again.distance() == anew.distance()


@pytest.mark.parametrize("kind", ["albert", "modernbert", "gpt2", "t5", "bart"])
def test_other_families_are_cut_as_their_zeros(kind):
    """Shared layers, fused gates, transposed maps, no biases, two stacks."""
    loaded = opened(kind)
    layers = sublayers(loaded, KINDS)
    assert {x.kind for x in layers} == set(KINDS)
    from headscope.pruning.mix.choose import Choice

    choices = []
    for x in layers:
        kept = x.units[1:] if x.kind == HEADS else x.units[: len(x.units) - 5]
        W = x.weights()
        places = [x.units.index(unit) for unit in kept]
        rows = torch.zeros(len(W), dtype=torch.bool)
        rows[[p * x.size + k for p in places for k in range(x.size)]] = True
        rows[-1] = True
        choices.append(Choice(x, tuple(kept), torch.where(rows[:, None], W, 0.0)))
    small = build(loaded, choices)
    for x, choice in zip(layers, choices, strict=True):
        x.write(choice.W)  # zeros, in place
    ids, mask = loaded.pad([[5, 7, 9, 11], [4, 5]])
    more = (
        () if loaded.start_id is None else loaded.pad([[loaded.start_id, 8], [loaded.start_id, 3]])
    )
    with torch.no_grad():
        zeros, cut = loaded.forward(ids, mask, *more), small.forward(ids, mask, *more)
    real = (more[1] if more else mask).bool()
    assert cut[real].numpy() == pytest.approx(zeros[real].numpy(), abs=1e-5)


def test_units_are_shared_out_as_an_exhaustive_search_would():
    """On convex curves the best slope first is the best for the cost that it arrives at."""
    rng = np.random.default_rng(8)
    layers = [item(NEURONS, 4, 1, name) for name in "abc"]
    costs = PerUnit({"a": 1.0, "b": 2.0, "c": 1.5}, rest=3.0)
    for _ in range(5):
        paths = []
        for _ in layers:
            steps = np.sort(rng.random(4))
            paths.append(
                Elimination((0, 1, 2, 3), (4, 3, 2, 1, 0), (0.0, *steps.cumsum().tolist()))
            )
        for budget in (18.0, 14.0, 10.0, 6.0):
            counts = allocate(layers, paths, costs, budget)
            spent = costs.total(layers, counts)
            assert spent <= budget

            def change(chosen: Any, paths: Any = paths) -> float:
                return sum(p.costs[4 - n] for p, n in zip(paths, chosen, strict=True))

            every = itertools.product(range(5), repeat=3)
            cheap = [c for c in every if costs.total(layers, c) <= spent + 1e-9]
            assert change(counts) == pytest.approx(min(map(change, cheap)))


def test_costs_are_counted_and_interpolated(bert):
    layers = sublayers(bert, KINDS)
    config = bert.model.config
    d, w, n = config.hidden_size, config.intermediate_size, config.num_attention_heads
    counted = multiplications(bert, layers, 10.0)
    assert counted.of(layers[0], n) == pytest.approx(4 * d * d + 2 * 10 * d)
    neurons = next(x for x in layers if x.kind == NEURONS)
    assert counted.of(neurons, w) == pytest.approx(2 * d * w, rel=0.05)
    size = megabytes(bert, layers, megabytes_of(bert))
    smaller = headscope.remove_neurons(bert, {neurons.name: range(w // 2)})
    gone = size.of(neurons, w) - size.of(neurons, w - w // 2)
    assert megabytes_of(bert) - megabytes_of(smaller) == pytest.approx(gone, rel=1e-6)
    times = Milliseconds({(NEURONS, "encoder"): ((0, 0.0), (64, 1.0), (128, 4.0))}, rest=2.0)
    assert times.of(item(NEURONS, 128, 1), 96) == pytest.approx(2.5)
    assert times.total([item(NEURONS, 128, 1)] * 2, [64, 32]) == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("budget", "nearest"),
    [
        (Budget("speed", 9.0, 1.0), "2.2 times as fast"),
        (Budget("ms", 2.0, 2.0), "4 ms"),
        (Budget("mb", 3.0, 3.0), "4 MB"),
    ],
)
def test_a_budget_that_no_mix_reaches_is_one_sentence(bert, budget, nearest):
    layers = [item(NEURONS, 64, 1)]
    costs = PerUnit({"a": 1 / 32}, rest=3.0)
    with pytest.raises(InputError, match=nearest) as refused:
        check_reachable(bert, layers, costs, budget, 9.0, ("neurons",))
    assert "let other units go too" in str(refused.value)
    check_reachable(bert, layers, costs, Budget("ms", 5.0, 5.0), 9.0, ("neurons",))


def test_distillation_brings_a_cut_model_back_without_touching_either(wide):
    examples = texts(96, seed=9)
    task = Fidelity(examples, wide)
    costs = multiplications(wide, sublayers(wide, KINDS), 8.0)
    shrinking = Shrinking(wide, task, KINDS, costs)
    total = costs.total(shrinking.layers, shrinking.counts)
    small = build(wide, shrinking.to(0.2 * total, rounds=1))
    before = [p.clone() for p in (*wide.network.parameters(), *small.network.parameters())]
    ticks = iter(np.linspace(0, 200, 101).tolist())  # no real clock: 100 looks
    tuned = distil(small, wide, (task, task), 3.0, clock=lambda: next(ticks))
    assert tuned.steps > 80
    assert tuned.after < tuned.before
    now = [*wide.network.parameters(), *small.network.parameters()]
    assert all(torch.equal(*pair) for pair in zip(before, now, strict=True))
    other = Fidelity(texts(32, seed=10), wide)
    targets = outputs_of(wide, other)
    assert distance_to(tuned.model, other, targets) < distance_to(small, other, targets)


def test_tuning_never_leaves_a_model_farther_away(wide, monkeypatch):
    from headscope.pruning.mix import tune

    monkeypatch.setattr(tune, "RATE", 10.0)  # which destroys it
    task = Fidelity(texts(40, seed=11), wide)
    small = headscope.remove_neurons(wide, {sublayers(wide, (NEURONS,))[0].name: range(8)})
    ticks = iter(np.linspace(0, 90, 31).tolist())
    tuned = distil(small, wide, (task, task), 1.0, clock=lambda: next(ticks))
    assert tuned.after <= tuned.before
    same = zip(outputs_of(small, task), outputs_of(tuned.model, task), strict=True)
    if tuned.after == tuned.before:
        assert all(torch.equal(*pair) for pair in same)
