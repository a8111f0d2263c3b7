"""A tiny model with a layer that does nothing, and three texts."""

import pytest
from shrinking_models import sentences
from tiny_models import tiny_bert

import headscope


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """Four layers, the third of which returns what it is given."""
    folder = tiny_bert(tmp_path_factory.mktemp("bert") / "model", layers=4)
    model = headscope.load(str(folder))
    third = model.model.encoder.layer[2]
    for linear in (third.attention.output.dense, third.output.dense):
        linear.weight.data.zero_()
        linear.bias.data.zero_()
    return headscope.wrap(model.network, model.tokenizer, name=str(folder))


@pytest.fixture(scope="session")
def lines(tmp_path_factory):
    """A folder with train.txt, judge.txt and other.txt."""
    folder = tmp_path_factory.mktemp("text")
    for seed, name in enumerate(("train", "judge", "other")):
        (folder / f"{name}.txt").write_text("\n".join(sentences(90, seed)) + "\n")
    return folder
