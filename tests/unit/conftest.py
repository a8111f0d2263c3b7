"""Results of a tiny model, made once."""

from pathlib import Path
from typing import Any

import pytest
from result_files import make_results, read
from tiny_models import tiny_bert


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every command's result on a tiny BERT of 2 x 4 heads; read only."""
    base = tmp_path_factory.mktemp("results")
    return make_results(tiny_bert(base / "model"), base / "out")


@pytest.fixture(scope="session")
def documents(folder: Path) -> dict[str, Any]:
    """The same as plain values, by command; to be copied, not changed."""
    return {path.stem: read(path) for path in folder.glob("*.json")}
