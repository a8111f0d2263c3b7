"""The tables of families are what the tests say, and the examples of docs/families.md work."""

import importlib.util
import re
import sys

import pytest
import torch
from families import COVERED
from family_table import (
    PLACES,
    ROOT,
    TABLES,
    markers,
    shown,
    standing,
    standing_cells,
    table_of,
)
from transformers import AutoConfig, AutoModel

import headscope
from headscope.models.certificate.certificate import validate_model
from headscope.models.layouts import handed, sites
from headscope.models.layouts.fused import Stacked
from headscope.models.layouts.layout import Layout
from headscope.models.layouts.registry import LAYOUTS
from headscope.models.run.intervene import gated

PAGE = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
FILE = ROOT / "docs" / "example_layout" / "mpt.py"
SIZES = {
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 300},
    "ctrl": {"n_embd": 32, "n_head": 4, "n_layer": 3, "dff": 48, "n_positions": 40},
}


@pytest.mark.parametrize("name", TABLES)
def test_the_table_is_what_the_tests_say(name):
    text = PLACES[name].read_text(encoding="utf-8")
    for marker in markers(name):
        assert text.count(marker) == 1
    if name == "families":  # tests/parity/test_every_command.py holds it against the commands
        cells = standing_cells()
        assert {shown(family) for family in COVERED} == {*cells}
        in_order = [tuple(cells[shown(family)].values()) for family in COVERED]
        assert text.count(table_of(in_order)) == 1, "no single run has written the table"
        return
    assert standing(name) == TABLES[name](), f"write it anew with: {markers(name)[0]}"


def test_the_page_names_every_family_and_layout():
    table = standing("families")
    for family in COVERED:
        assert re.search(rf"[ ,]{re.escape(family.kind)}[ ,]", table), family.name
    listed = PAGE.partition("## Models that are refused")[0]
    for layout in LAYOUTS:
        assert re.search(rf"\b{re.escape(layout.name)}\b", listed), layout.name


def block(info):
    (text,) = re.findall(rf"^```python {re.escape(info)}\n(.*?)^```$", PAGE, re.DOTALL | re.M)
    return str(text)


@pytest.fixture
def listed(monkeypatch):
    """Both examples in the list of layouts."""
    spec = importlib.util.spec_from_file_location("mpt_layout", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mpt_layout", module)
    spec.loader.exec_module(module)
    names = {**vars(module), "Layout": Layout, "Stacked": Stacked}
    ctrl = eval(block("registry ctrl").strip(), names)
    mpt = eval(block("registry mpt").strip(), names)
    monkeypatch.setattr(sites, "LAYOUTS", (*LAYOUTS, ctrl, mpt))


def opened(family):
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=61, initializer_range=0.3, **SIZES[family])
    return headscope.wrap(AutoModel.from_config(config).eval())


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize("family", SIZES)
def test_the_examples_cover_their_families(family, tmp_path):
    loaded = opened(family)
    assert {site.layout.name for site in loaded.sites} == {family}
    assert loaded.stacks == ("decoder",)
    result = validate_model(loaded)
    assert result.passed, result.reasons
    heads = [(0, 1), *((1, head) for head in range(4)), (2, 0), (2, 3)]
    gates = torch.ones(3, 4)
    gates[tuple(zip(*heads, strict=True))] = 0.0
    ids, mask = loaded.pad([[5, 6, 7, 8, 9], [10, 11, 12]])
    with gated(loaded, gates) as run:
        expected = run(ids, mask)[0][mask.bool()]
    compact = headscope.remove_heads(loaded, heads)
    headscope.save(compact, tmp_path / "x")
    again = headscope.load(str(tmp_path / "x"), need_tokenizer=False, device="cpu")
    for smaller in (compact, again):
        with torch.no_grad():
            states = smaller.forward(ids, mask)[mask.bool()]
        torch.testing.assert_close(states, expected, rtol=0, atol=1e-5)
        assert validate_model(smaller).passed, validate_model(smaller).reasons


def test_without_the_examples_the_families_are_unknown():
    result = validate_model(opened("mpt"))
    assert result.reasons == ("headscope knows no attention layout of the family 'mpt'",)
    loaded = opened("ctrl")  # asks transformers for its attention
    assert {site.layout.name for site in loaded.sites} == {handed.NAME}
    assert validate_model(loaded).passed
