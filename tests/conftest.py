"""Fixtures for all tests: offline, on the real demo model, and on ../shared where it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

SHARED = Path(os.environ.get("HEADSCOPE_SHARED", Path(__file__).parents[2] / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of models and data that is not part of the project."""
    if not SHARED.is_dir():
        pytest.skip(f"no shared models and data at {SHARED} (set HEADSCOPE_SHARED)")
    return SHARED


@pytest.fixture(scope="session")
def ewt(shared: Path) -> Path:
    return shared / "data" / "en_ewt-ud-test.conllu"


@pytest.fixture(scope="session")
def demo():
    """The packaged demo model, loaded once."""
    import headscope

    return headscope.load("demo")
