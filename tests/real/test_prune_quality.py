"""Choosing and repairing on the real demo model: directions that must come out right."""

import re

import pytest

import headscope

FEW = {"limit": 32, "calibration_limit": 32}


def test_each_repair_helps(demo):
    repairs = ("none", "scale", "surgeon")
    half = headscope.prune(demo, methods=["fisher"], repairs=repairs, fractions=[0.5], **FEW)
    values = {repair: half.curve("fisher", repair).points[1].value.value for repair in repairs}
    assert values["none"] < values["scale"] < values["surgeon"] < 1.0


def test_the_repaired_choice_beats_random_heads_is_kept_and_its_card_runs(demo, tmp_path):
    """``headscope prune demo --fraction 0.5 --save DIR`` on less text, and without the repair."""
    pytest.importorskip("sentence_transformers")
    options = {"methods": ["surgeon", "random"], "repairs": ["none", "surgeon"], "fractions": [0.5]}
    result = headscope.prune(demo, **options, **FEW, save=tmp_path / "small")
    assert (result.kept.method, result.kept.repair) == ("surgeon", "surgeon")
    chosen = result.curve("surgeon", "surgeon").points[1]
    random = result.curve("random").points[1]
    assert result.curve("surgeon").points[1].value.value > random.value.high + 0.05
    small = headscope.load(str(tmp_path / "small"))
    remaining: set[tuple[int, int]] = set()
    for site in small.sites:
        remaining |= {(site.layer, head) for head in site.head_ids}
    assert len(remaining) == 36
    assert not remaining & set(chosen.heads_removed)
    assert result.saved.measured == pytest.approx(chosen.value.value, abs=1e-4)
    assert result.saved.measured > random.value.high + 0.05
    card = (tmp_path / "small" / "README.md").read_text("utf-8")
    assert str(tmp_path) not in card
    assert "library_name: sentence-transformers" in card
    snippets = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(snippets) == 2
    for code in snippets:
        names: dict[str, object] = {}
        exec(code.replace("path/to/this", str(tmp_path / "small")), names)
        assert names["model"] is not None
