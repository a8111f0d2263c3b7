"""What the page of a saved model shows runs as it stands."""

import re
import shlex

import numpy as np
import pytest
from tiny_models import tiny_bert

from headscope.cli.app import main


def saved(model, folder, option):
    few = "--limit 24 --calibration-limit 24 --draws 5 --no-ablation --no-roles --repair none -q"
    words = shlex.split(f"prune {model} --fraction 0.5 {few} {option} {folder}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["headscope", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code


@pytest.mark.parametrize("name", ["small", "graph"])
def test_the_snippets_run_and_the_card_names_no_path(name, tmp_path):
    """The real model as a folder; a graph of a tiny one, whose export takes less time."""
    pytest.importorskip("sentence_transformers")
    folder = tmp_path / name
    if name == "small":
        saved("demo", folder, "--save")
    else:
        saved(tiny_bert(tmp_path / "model"), folder, "--export onnx")
    card = (folder / "README.md").read_text("utf-8")
    answer = re.search(r"^\*\*(.*)\*\*$", card, re.MULTILINE)
    assert answer is not None
    assert "1.0000 -> 0." in answer[1]
    assert str(tmp_path) not in card
    assert "library_name: " + ("sentence-transformers" if name == "small" else "onnx") in card
    snippets = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(snippets) == (2 if name == "small" else 1)
    for code in snippets:
        names: dict[str, object] = {}
        exec(code.replace("path/to/this", str(folder)), names)
        if name == "graph":
            assert np.shape(names["embeddings"])[0] == 1
        else:
            assert names["model"] is not None
