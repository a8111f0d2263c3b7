"""What a head puts out, by its configuration, and the distances of each kind by SciPy."""

import json

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from scipy.stats import entropy
from tiny_models import tiny_bert

import headscope
from headscope.core.errors import InputError
from headscope.models.run.head_outputs import HeadOutputs, gives_one_score, head_outputs, spread_of
from headscope.tasks.making import check_task

SIGMOID = "torch.nn.modules.activation.Sigmoid"
MULTI = "multi_label_classification"
SINGLE = "single_label_classification"


def opened(folder, **config):
    tiny_bert(folder, layers=1, task_head="classification", **config)
    return headscope.load(str(folder), task_head="auto")


@pytest.mark.parametrize(
    ("config", "outputs"),
    [
        ({"num_labels": 3}, HeadOutputs.CHOICE),
        ({"num_labels": 3, "problem_type": SINGLE}, HeadOutputs.CHOICE),
        ({"num_labels": 3, "problem_type": MULTI}, HeadOutputs.LABELS),
        ({"num_labels": 3, "problem_type": "regression"}, HeadOutputs.NUMBERS),
        ({"num_labels": 1}, HeadOutputs.NUMBERS),
        ({"num_labels": 1, "problem_type": MULTI}, HeadOutputs.LABELS),
        ({"num_labels": 1, "sentence_transformers": {"activation_fn": SIGMOID}}, "numbers"),
        ({"num_labels": 3, "sentence_transformers": {"activation_fn": SIGMOID}}, "labels"),
        ({"num_labels": 3, "sbert_ce_default_activation_function": SIGMOID}, "labels"),
        (
            {
                "num_labels": 3,
                "sbert_ce_default_activation_function": SIGMOID,
                "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"},
            },
            "choice",
        ),
    ],
)
def test_the_configuration_says_what_a_head_puts_out(tmp_path, config, outputs):
    expected = HeadOutputs[outputs.upper()] if isinstance(outputs, str) else outputs
    loaded = opened(tmp_path / "model", **config)
    assert head_outputs(loaded) is expected
    assert gives_one_score(loaded) == (config["num_labels"] == 1)
    assert not gives_one_score(loaded.pooled_by("mean"))  # then embeddings are asked for


def test_the_folder_of_a_cross_encoder_says_it_too(tmp_path):
    """As sentence-transformers 6 writes it: not in config.json."""
    folder = tiny_bert(tmp_path / "model", layers=1, task_head="classification", num_labels=3)
    kind = "sentence_transformers.base.modules.transformer.Transformer"
    modules = [{"idx": 0, "name": "0", "path": "", "type": kind}]
    settings = {"model_type": "CrossEncoder", "activation_fn": SIGMOID}
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    loaded = headscope.load(str(folder), task_head="auto")
    assert head_outputs(loaded) is HeadOutputs.LABELS
    assert "independent of each other" in loaded.remarks[0]
    smaller = headscope.remove_heads(loaded, [(0, 1)])
    assert head_outputs(smaller) is HeadOutputs.LABELS
    assert smaller.network.config.sentence_transformers == {"activation_fn": SIGMOID}


def test_a_head_of_tags_chooses_one_tag_or_gives_a_number(tmp_path):
    for n, expected in ((3, HeadOutputs.CHOICE), (1, HeadOutputs.NUMBERS)):
        folder = tiny_bert(
            tmp_path / str(n), layers=1, task_head="token-classification", num_labels=n
        )
        assert head_outputs(headscope.load(str(folder), task_head="auto")) is expected


def test_distances_are_those_of_scipy():
    logits, other_logits = np.random.default_rng(0).normal(size=(2, 5, 3))
    x = torch.tensor(logits)
    y = torch.tensor(other_logits)
    choice = [entropy(softmax(t), softmax(o)) for o, t in zip(logits, other_logits, strict=True)]
    np.testing.assert_allclose(HeadOutputs.CHOICE.distance(y, x), choice)
    labels = np.zeros((5, 3))
    for index in np.ndindex(5, 3):
        full = expit(other_logits[index])
        other = expit(logits[index])
        labels[index] = entropy([full, 1 - full], [other, 1 - other])
    np.testing.assert_allclose(HeadOutputs.LABELS.distance(y, x), labels.sum(1))
    numbers = HeadOutputs.NUMBERS.distance(y, x)
    np.testing.assert_allclose(numbers, ((logits - other_logits) ** 2).mean(1))
    scaled = HeadOutputs.NUMBERS.distance(7 * y + 2, 7 * x + 2, spread_of(7 * y + 2))
    np.testing.assert_allclose(scaled, ((logits - other_logits) ** 2 / other_logits.var(0)).mean(1))
    assert spread_of(torch.full((4, 1), 3.0)).tolist() == [1.0]
    np.testing.assert_allclose(HeadOutputs.LABELS.shares(x), expit(logits))
    np.testing.assert_allclose(HeadOutputs.CHOICE.shares(x), softmax(logits, axis=1))
    assert HeadOutputs.NUMBERS.shares(x) is x


def test_a_cross_encoder_searches_no_documents(tmp_path):
    loaded = opened(tmp_path / "model", num_labels=1)
    with pytest.raises(InputError, match="cannot search all documents; choose the task rerank"):
        check_task("retrieval", loaded)
    check_task("retrieval", loaded.pooled_by("mean"))
