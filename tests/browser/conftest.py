"""A small report of the demo model, and Debian's chromium to open it in."""

import shutil

import pytest
from hostile import hostile

import headscope
from headscope.reports.page import report_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def browser():
    """Headless chromium."""
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (apt-get install chromium)")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def small(demo):
    """A report of the demo model: most of its sections, little of each."""
    settings = {
        "classify": {"limit": 64, "control": False, "ablate": False, "prefix_matching": False},
        "rank": {"limit": 8, "fresh": False, "control_seeds": 2},
        "spectrum": {"length": 24, "sequences": 4, "control": False},
        "flow": {"limit": 16, "control": False},
        "prune": {"methods": ["magnitude", "random"], "repairs": ["none"]},
    }
    settings["prune"] |= {"fractions": [0.5], "draws": 5, "limit": 8, "calibration_limit": 8}
    skipped = ["depth", "transfer", "linear", "symmetric", "insights"]
    return headscope.report(demo, skip=skipped, settings=settings)


@pytest.fixture(scope="session")
def page_file(small, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(report_html(small), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def hostile_file(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "<img src=x onerror=alert(1)>"
    folder.mkdir()
    path = folder / "report.html"
    path.write_text(report_html(hostile(small)), encoding="utf-8")
    return path
