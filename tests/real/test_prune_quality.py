"""Choosing and repairing on the real demo model: directions that must come out right."""

import itertools
import re

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


def test_the_default_keeps_the_repaired_choice_and_its_card_runs(demo, tmp_path):
    """``headscope prune demo --fraction 0.5 --save DIR`` on less text."""
    pytest.importorskip("sentence_transformers")
    few = {"limit": 32, "calibration_limit": 32, "roles": False, "ablation": False}
    found = headscope.prune(demo, fractions=[0.5], **few, save=tmp_path / "small")
    assert (found.kept.method, found.kept.repair) == ("surgeon", "surgeon")
    chosen, random = found.curve("surgeon", "surgeon").points[1], found.curve("random").points[1]
    small = headscope.load(str(tmp_path / "small"))
    left = {(site.layer, head) for site in small.sites for head in site.head_ids}
    assert len(left) == 36
    assert not left & set(chosen.heads_removed)
    assert found.saved.measured == pytest.approx(chosen.value.value, abs=1e-4)
    assert found.saved.measured > random.value.high + 0.05
    card = (tmp_path / "small" / "README.md").read_text("utf-8")
    assert str(tmp_path) not in card
    assert "library_name: sentence-transformers" in card
    snippets = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(snippets) == 2
    for code in snippets:
        names: dict[str, object] = {}
        exec(code.replace("path/to/this", str(tmp_path / "small")), names)
        assert names["model"] is not None
