"""What the page of a saved model shows runs as it stands."""

import re
import shlex

import pytest

from headscope.cli.app import main


def saved(model, folder):
    few = "--limit 24 --calibration-limit 24 --draws 5 --no-ablation --no-roles --repair none -q"
    words = shlex.split(f"prune {model} --fraction 0.5 {few} --save {folder}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["headscope", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code


def test_the_snippets_run_and_the_card_names_no_path(tmp_path):
    pytest.importorskip("sentence_transformers")
    folder = tmp_path / "small"
    saved("demo", folder)
    card = (folder / "README.md").read_text("utf-8")
    answer = re.search(r"^\*\*(.*)\*\*$", card, re.MULTILINE)
    assert answer is not None
    assert "1.0000 -> 0." in answer[1]
    assert str(tmp_path) not in card
    assert "library_name: sentence-transformers" in card
    snippets = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(snippets) == 2
    for code in snippets:
        names: dict[str, object] = {}
        exec(code.replace("path/to/this", str(folder)), names)
        assert names["model"] is not None
