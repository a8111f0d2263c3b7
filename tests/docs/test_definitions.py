"""The page of definitions names what there is, and links of all pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headscope.pipeline.tasks.making import TASKS
from headscope.pruning.methods import METHODS
from headscope.results.points import Point
from headscope.results.rank import MatrixRank
from headscope.results.roles import PRIMARY
from headscope.results.validate import ValidationResult

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DEFINITIONS = (ROOT / "docs" / "definitions.md").read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """Names of a page's headings as code forges make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        other = page.parent / path if path else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_sends_its_reader_to_a_page_that_is_not_there(page: Path) -> None:
    here = re.sub(r"https?://\S+", "", page.read_text(encoding="utf-8"))
    for name in re.findall(r"[\w./-]+\.md\b", here):
        places = (page.parent / name, ROOT / name, ROOT / "docs" / name)
        made = Path(name).name in {"report.md", "diff.md", "comment.md", "reach.md"}
        assert made or any(place.exists() for place in places), name


@pytest.mark.parametrize(
    "command",
    [
        "classify",
        "validate",
        "explain",
        "rank",
        "spectrum",
        "depth",
        "flow",
        "linear",
        "symmetric",
        "transfer",
        "prune",
        "insights",
    ],
)
def test_command_pages_point_to_the_definitions(command: str) -> None:
    assert "(definitions.md" in (ROOT / "docs" / f"{command}.md").read_text(encoding="utf-8")


def test_every_role_method_and_task_is_defined() -> None:
    for name in (*METHODS, "mlm", "fidelity"):
        assert f"`{name}`" in DEFINITIONS, name
    for role in (role.key for role in PRIMARY):
        assert role in DEFINITIONS, role
    for task in TASKS:
        assert f"`{task}`" in DEFINITIONS, task


def test_numbers_of_results_are_defined() -> None:
    for kind, names in (
        (MatrixRank, ("numerical_rank", "stable_rank", "effective_rank", "dims")),
        (Point, ("difference", "spread", "ci")),
        (ValidationResult, ("max_abs_hidden_eager", "max_abs_pattern", "mask_reached")),
    ):
        for name in names:
            assert hasattr(kind, name) or name in kind.__dataclass_fields__, name
            assert f"`{name}`" in DEFINITIONS, name
