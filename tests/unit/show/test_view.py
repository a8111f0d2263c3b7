"""A section shows itself: what it puts on the page comes through its view alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from headscope.results import SECTIONS, ReportResult
from headscope.show.markdown import report_markdown
from headscope.show.page.html import report_html
from headscope.show.page.parts import Card, Part, Place, Scale
from headscope.show.view import KeyNumber, View, view_of


@dataclass(frozen=True)
class NormResult:
    """A measurement that headscope does not have."""

    norms: dict[Place, float]


class LargerReport(ReportResult):
    """A report with one more section."""

    @property
    def sections(self) -> dict[str, Any]:
        return {**super().sections, "norm": NormResult({(0, 0): 1.25, (1, 1): 3.5})}


def report(kind: type[ReportResult]) -> ReportResult:
    model = {"id": "m", "family": "bert", "n_layers": 2, "n_heads": 2, "weights_sha256": None}
    versions = {"headscope": "0", "torch": "0", "transformers": "0"}
    made = {**versions, "dtype": "float32", "device": "cpu", "seed": 0, "command": "c"}
    return kind(2, {**made, "model": model}, {}, {}, {})


def facts(result: NormResult, places: Sequence[Place]) -> Iterator[Card]:
    for place, norm in result.norms.items():
        yield Card(*place, facts=[("Norm", f"{norm:.2f}")], values={"norm": norm})


def key_numbers(result: NormResult) -> Iterator[KeyNumber]:
    yield KeyNumber("largest norm", f"{max(result.norms.values())}")


@pytest.fixture
def norm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Enter the view of the new section, as its folder would."""
    module = ModuleType("headscope.show.norm")
    module.VIEW = View(  # type: ignore[attr-defined]
        human=lambda result: (),
        csv=lambda result: "",
        files=lambda result: {},
        facts=facts,
        scales=(Scale("norm", "Norm of W_O"),),
        section=lambda result: Part("norm", "Norms", ["Every norm is finite."]),
        key_numbers=key_numbers,
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_a_new_section_appears_on_the_page_and_in_the_markdown(norm: ModuleType) -> None:
    page = report_html(report(LargerReport))
    for shown in ('data-head="L1H1"', "Norm of W_O", "Every norm is finite.", "largest norm"):
        assert shown in page
    assert '"facts":[["Norm","1.25"]]' in page
    assert "| largest norm | 3.5 | - |" in report_markdown(report(LargerReport))


def test_a_view_may_leave_the_report_alone() -> None:
    view: View[NormResult] = View(
        human=lambda result: (), csv=lambda result: "", files=lambda result: {}
    )
    result = NormResult({})
    assert list(view.facts(result, [])) == list(view.key_numbers(result)) == list(view.scales) == []
    assert view.section(result) is None


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_has_a_view_and_its_scales_have_names_of_their_own(section: str) -> None:
    keys = [scale.key for scale in view_of(section).scales]
    others = {s.key for name in SECTIONS if name != section for s in view_of(name).scales}
    assert len(set(keys)) == len(keys)
    assert not others & set(keys)
