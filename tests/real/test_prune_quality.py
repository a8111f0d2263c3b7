"""Choosing and repairing on the real demo model: directions that must come out right."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

import headscope
from headscope.data.examples import read_texts
from headscope.pruning.ranking import Context
from headscope.tasks.calibration import pick
from headscope.tasks.making import make_task


@pytest.fixture(scope="module")
def half(demo, measured):
    """Half of the heads removed in every way of repair, on a small part of the sample."""
    return headscope.prune(
        demo,
        methods=["surgeon", "fisher", "random"],
        repairs=["none", "scale", "surgeon"],
        fractions=[0.5],
        calibration_limit=48,
        limit=48,
        draws=6,
        ablation=False,
        roles=measured("classify", limit=160, validate=False),
    )


def test_chosen_heads_beat_random_ones_and_each_repair_helps(half):
    random, point = (half.curve(name).points[1] for name in ("random", "surgeon"))
    assert point.value.value > random.value.high + 0.05
    assert random.spread is not None
    repairs = ("none", "scale", "surgeon")
    none, scale, refitted = (half.curve("fisher", r).points[1].value.value for r in repairs)
    assert none < scale < refitted < 1.0
    gone = {tuple(head) for head in point.heads_removed}
    syntactic = [h for h in half.roles if "syntactic" in h.roles and (h.layer, h.head) not in gone]
    assert point.roles_left["syntactic"] == len(syntactic)


def _given(demo, sentences):
    task = make_task("fidelity", pick(read_texts(None), sentences, "fidelity", 0), demo)
    return Context.of_task(demo, task, roles={}, use_labels=False, largest=36, seed=0)


def test_label_free_fisher_agrees_with_finite_differences_of_the_outputs(demo):
    given = _given(demo, 6)
    matrix = given.gauss_newton(100).matrix
    units, step, columns = given.units, 1e-2, {}
    for unit in (2, 43, 65):
        both = []
        for sign in (step, -step):
            gates = torch.ones(len(units))
            gates[unit] += sign
            both.append(_outputs(given, gates))
        columns[unit] = (both[0] - both[1]) / (2 * step)
    for i, j in itertools.combinations_with_replacement(columns, 2):
        exact = float((columns[i] * columns[j]).sum(axis=1).mean())
        scale = float(matrix[i, i] * matrix[j, j]) ** 0.5
        assert float(matrix[i, j]) == pytest.approx(exact, abs=0.2 * scale)


def _outputs(given, gates):
    """Unit pooled states with gates, from plain forward passes."""
    found = []
    for batch in given.calibration.batches(labels=False):
        grid = given.units.expand(gates).expand_as(batch.gates("example")).detach()
        found.append(batch.embed(grid).detach().double().numpy())
    return np.concatenate(found)


def test_scores_are_the_same_whatever_is_remembered(demo):
    given = _given(demo, 8)
    first = given.gauss_newton(1).unit_squares
    again = dataclasses.replace(given, memo={}).gauss_newton(1).unit_squares
    torch.testing.assert_close(first, again, rtol=0, atol=0)


def test_the_default_keeps_the_repaired_choice_and_never_the_control(demo, tmp_path):
    """``headscope prune demo --fraction 0.5 --save DIR`` on less text."""
    found = headscope.prune(
        demo,
        fractions=[0.5],
        ablation=False,
        limit=32,
        calibration_limit=32,
        draws=5,
        roles=False,
        save=tmp_path / "small",
    )
    assert found.kept is not None
    assert (found.kept.method, found.kept.repair) == ("surgeon", "surgeon")
    chosen, random = found.curve("surgeon", "surgeon").points[1], found.curve("random").points[1]
    assert chosen.heads_removed != random.heads_removed
    small = headscope.load(str(tmp_path / "small"))
    left = {(site.layer, head) for site in small.sites for head in site.head_ids}
    assert len(left) == 36
    assert not left & set(chosen.heads_removed)
    assert found.saved.measured == pytest.approx(chosen.value.value, abs=1e-4)
    assert found.saved.measured > random.value.high + 0.05
