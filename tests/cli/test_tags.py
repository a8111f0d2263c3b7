"""Tagged words on the command line: GermEval's columns, labels in another scheme, a bad scheme."""

from pathlib import Path

import pytest
from outcomes import Command
from tiny_models import tiny_bert

GERMEVAL = """#\thttp://example.org/page\t[2010-01-01]
1\tthe\tB-PER\tO
2\tcat\tO\tO
3\tsees\tO\tB-LOC
4\thouses\tB-LOC\tO

#\thttp://example.org/other\t[2010-01-02]
1\ta\tO\tO
2\tbig\tB-PER\tB-LOCpart
3\tdog\tI-PER\tO

"""


@pytest.fixture(scope="module")
def tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = dict(enumerate(["O", "U-PER", "B-PER", "L-PER", "U-LOC", "B-LOC", "L-LOC"]))
    numbers = {name: i for i, name in names.items()}
    folder = tmp_path_factory.mktemp("tagger") / "bert"
    return tiny_bert(folder, task_head="token-classification", id2label=names, label2id=numbers)


def test_outer_entities_of_germeval_in_the_scheme_of_the_model(
    run: Command, tagger: Path, tmp_path: Path
) -> None:
    path = tmp_path / "test.tsv"
    path.write_text(GERMEVAL * 4)
    options = ("--task", "token-classification", "--data", path)
    ended = run("prune", tagger, *options, "--fraction", "0.5", "--limit", "6")
    assert ended.code == 0, ended
    said = ended.flat
    assert "Tags are those of the third column, the outer entities of GermEval 2014" in said
    assert "read by the scheme IOB2. The file's tags were rewritten in the model's scheme" in said
    path.write_text(GERMEVAL.replace("B-", "Q-"))
    ended = run("prune", tagger, *options)
    assert ended.code == 1
    assert "follow no scheme of entities that is known" in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr
