"""transformers knows headscope's folders once both are imported, in whatever order."""

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import tiny_bert
from transformers import AutoModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import headscope
from headscope.artefacts.registration import _TableFinder, register


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    whole = headscope.load(str(tiny_bert(tmp_path_factory.mktemp("source"))))
    small = headscope.remove_heads(whole, [(0, 1), (1, 0)])
    return headscope.save(small, tmp_path_factory.mktemp("saved") / "small")


FIRST = """
import sys, headscope
from headscope.artefacts.registration import _TableFinder
waiting = [finder for finder in sys.meta_path if isinstance(finder, _TableFinder)]
assert len(waiting) == 1 and "transformers" not in sys.modules
headscope.artefacts.registration.register()  # once more changes nothing
from transformers import AutoModel
assert "headscope.models" not in sys.modules  # nothing is loaded until a folder is opened
assert not {*waiting} & {*sys.meta_path}
"""


def test_headscope_first(folder):
    code = f"{FIRST}\nassert AutoModel.from_pretrained(sys.argv[1]).config.kept_heads"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_transformers_first(folder, monkeypatch):
    """The table is there already when headscope is imported."""
    monkeypatch.setattr(CONFIG_MAPPING, "_extra_content", {})
    with pytest.raises(ValueError, match="run 'import headscope' before you open this folder"):
        AutoModel.from_pretrained(folder)
    register()
    assert AutoModel.from_pretrained(folder).config.kept_heads
    assert not any(isinstance(finder, _TableFinder) for finder in sys.meta_path)
