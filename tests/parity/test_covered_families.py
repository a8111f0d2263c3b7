"""Every family of the table that README is made from: certified, cut, saved and opened again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from families import COVERED, Family
from torch import Tensor

import headscope
from headscope.models import families
from headscope.models.certificate import validate_model
from headscope.models.families import REFUSED
from headscope.models.gating import gated
from headscope.models.loaded import LoadedModel
from headscope.models.probes import probes

each_family = pytest.mark.parametrize("family", COVERED, ids=lambda family: family.name)
#: Source and target, padded in different rows.
PAIRS = ([[5, 6, 7, 8, 9, 10], [11, 12, 13]], [[14, 15], [16, 17, 18, 19]])


def given(loaded: LoadedModel) -> tuple[dict[str, Tensor], Tensor]:
    """Return what a model reads, and which of its last states are no padding."""
    source, target = PAIRS
    inputs = dict(zip(("input_ids", "attention_mask"), loaded.pad(source), strict=True))
    if loaded.start_id is None:
        return inputs, inputs["attention_mask"].bool()
    ids, mask = loaded.pad([[loaded.start_id, *tokens] for tokens in target])
    return {**inputs, "decoder_input_ids": ids, "decoder_attention_mask": mask}, mask.bool()


def states(loaded: LoadedModel) -> Tensor:
    inputs, real = given(loaded)
    with torch.no_grad():
        return loaded.run(**inputs)[0][real]


def some_heads(loaded: LoadedModel) -> list[tuple[str, int, int]]:
    """One or two of every module, and the second layer whole where layers share no weights."""
    first = {site.module: site for site in reversed(loaded.sites)}
    alone = len(first) == len(loaded.sites)
    return [
        (site.stack, site.layer, head)
        for site in first.values()
        for head in range(site.n_heads)
        if (site.row + head) % 3 == 0 or (alone and site.row == 1)
    ]


@each_family
def test_a_family_of_the_table(family: Family, tmp_path: Path) -> None:
    loaded = headscope.wrap(family.model())
    assert {site.layout.name for site in loaded.sites} == {family.layout}
    assert loaded.stacks == family.stacks
    result = validate_model(loaded)
    assert result.passed, result.reasons
    assert probes(loaded)[0].padded > 0
    assert result.mask_reached

    whole = loaded.network
    whole.set_attn_implementation("eager")
    gates = torch.ones(loaded.n_layers, loaded.n_heads)
    removed = some_heads(loaded)
    shared = [
        (other.row, head)
        for stack, layer, head in removed
        for site in loaded.sites
        if (site.stack, site.layer) == (stack, layer)
        for other in loaded.sites
        if other.module is site.module
    ]
    for row, head in shared:
        gates[row, head] = 0.0
    with gated(loaded, gates) as through_ours:
        inputs, real = given(loaded)
        expected = through_ours(**inputs)[0][real]
    compact = headscope.remove_heads(loaded, removed)
    assert float((states(loaded) - expected).abs().max()) > 1e-3  # the heads matter
    compact.network.set_attn_implementation("eager")
    size = max(
        1.0, float(expected.abs().max())
    )  # of float32 states: other CPUs add in other orders
    torch.testing.assert_close(states(compact), expected, rtol=0, atol=1e-5 * size)

    headscope.save(compact, tmp_path / "x")
    again = headscope.load(
        str(tmp_path / "x"), task_head="auto", need_tokenizer=False, device="cpu"
    )
    assert [site.head_ids for site in again.sites] == [site.head_ids for site in compact.sites]
    torch.testing.assert_close(states(again), states(compact), rtol=0, atol=1e-5)
    result = validate_model(again)
    assert result.passed, result.reasons


def test_the_package_lists_the_families_that_are_tested() -> None:
    tested: dict[str, tuple[set[str], set[str]]] = {}
    for family in COVERED:
        layouts, stacks = tested.setdefault(family.kind, (set(), set()))
        layouts.add(family.layout)
        stacks.update(family.stacks)
    assert tested == {
        name: ({known.layout}, set(known.stacks)) for name, known in families.COVERED.items()
    }


def test_no_family_is_both_covered_and_refused() -> None:
    assert not {family.kind for family in COVERED} & {*REFUSED}
    names = [family.name for family in COVERED]
    assert len(set(names)) == len(names)
