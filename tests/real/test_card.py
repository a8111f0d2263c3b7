"""What the page of a saved model shows runs as it stands."""

import re
import shlex

import numpy as np
import pytest

from headscope.cli.app import main


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    few = "--limit 24 --calibration-limit 24 --draws 5 --no-ablation --no-roles --repair none"
    words = f"prune demo --fraction 0.5 {few} --save {folder}/small --export onnx {folder}/graph -q"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["headscope", *shlex.split(words)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    return folder


@pytest.mark.parametrize("name", ["small", "graph"])
def test_the_snippets_run_and_the_card_names_no_path(saved, name):
    pytest.importorskip("sentence_transformers")
    folder = saved / name
    card = (folder / "README.md").read_text("utf-8")
    answer = re.search(r"^\*\*(.*)\*\*$", card, re.MULTILINE)
    assert answer is not None
    assert "1.0000 -> 0." in answer[1]
    assert str(saved) not in card
    assert "library_name: " + ("sentence-transformers" if name == "small" else "onnx") in card
    snippets = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(snippets) == (3 if name == "small" else 1)
    for code in snippets:
        names: dict[str, object] = {}
        exec(code.replace("path/to/this", str(folder)), names)
        if name == "graph":
            assert np.shape(names["embeddings"]) == (1, 384)
        else:
            assert names["model"] is not None
