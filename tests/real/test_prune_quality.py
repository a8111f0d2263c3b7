"""Choosing and repairing on the real demo model: directions that must come out right."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

import headscope
from headscope.data.examples import read_texts
from headscope.pruning import keep
from headscope.pruning.ranking import Context
from headscope.tasks.calibration import pick
from headscope.tasks.making import make_task


@pytest.fixture(scope="module", autouse=True)
def _small_card():
    """Time a small input for the cards of models that are saved."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keep, "CARD_BATCH", 1)
        patch.setattr(keep, "CARD_TOKENS", 16)
        yield


@pytest.fixture(scope="module")
def half(demo, measured):
    """Half of the heads removed in every way of repair, on a small part of the sample."""
    return headscope.prune(
        demo,
        methods=["fisher-joint", "random"],
        repairs=["none", "scale", "refit"],
        fractions=[0.5],
        calibration_limit=48,
        limit=48,
        draws=6,
        ablation=False,
        roles=measured("classify", limit=160, validate=False),
    )


def test_chosen_heads_beat_random_ones_and_each_repair_helps(half):
    random, point = (half.curve(name).points[1] for name in ("random", "fisher-joint"))
    assert point.value > random.ci[1] + 0.05
    assert random.spread is not None
    repairs = ("none", "scale", "refit")
    none, scale, refit = (half.curve("fisher-joint", r).points[1].value for r in repairs)
    assert none < scale < refit < 1.0
    gone = {tuple(head) for head in point.heads_removed}
    syntactic = [h for h in half.roles if "syntactic" in h.roles and (h.layer, h.head) not in gone]
    assert point.roles_left["syntactic"] == len(syntactic)


def test_means_of_removed_heads_bring_unseen_text_nearer(demo):
    found = headscope.prune(
        demo,
        methods=["fisher-joint"],
        repairs=["scale", "mean"],
        fractions=[0.75],
        calibration_limit=16,
        limit=32,
        ablation=False,
        roles=False,
    )
    scale, mean = (found.curve("fisher-joint", name).points[1].value for name in ("scale", "mean"))
    assert scale + 0.01 < mean < 1.0


def _given(demo, sentences):
    task = make_task("fidelity", pick(read_texts(None), sentences, "fidelity", 0), demo)
    return Context.of_task(demo, task, roles={}, use_labels=False, budget=36, largest=36, seed=0)


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
        save_dense=tmp_path / "dense",
    )
    assert found.kept is not None
    assert (found.kept.method, found.kept.repair) == ("fisher-joint", "scale")
    chosen, random = found.curve("fisher-joint", "scale").points[1], found.curve("random").points[1]
    assert chosen.heads_removed != random.heads_removed
    small = headscope.load(str(tmp_path / "small"))
    left = {(site.layer, head) for site in small.sites for head in site.head_ids}
    assert len(left) == 36
    assert not left & set(chosen.heads_removed)
    for saved in found.saved:
        assert saved.measured == pytest.approx(chosen.value, abs=1e-4)
        assert saved.measured > random.ci[1] + 0.05
