"""Tags of real sentences by a probe on the demo model, and real sentences as documents."""

import copy

import pytest
import torch
from torch.nn.functional import one_hot
from transformers import AutoModelForTokenClassification

import headscope
from headscope.data.annotated import read_tagged
from headscope.data.files import Sentence
from headscope.data.pieces import encode_words, placed
from headscope.data.queries import read_retrieval
from headscope.tasks.making import make_task


@pytest.fixture(scope="module")
def tagger(demo, shared):
    """The demo model with a linear head for parts of speech: ridge regression on its states."""
    train = read_tagged(shared / "data/en_ewt-ud-dev.conllu")
    names = sorted({tag for tags in train.tags for tag in tags})
    train = train.pick(range(160))
    encoded = list(encode_words(demo, placed(map(Sentence, train.words))))
    states, gold = [], []
    for start in range(0, len(encoded), 40):
        part = [(i, item) for i, item in enumerate(encoded) if item][start : start + 40]
        with torch.no_grad():
            hidden = demo.forward(*demo.pad([item.ids for _, item in part]))
        for row, (i, item) in zip(hidden, part, strict=True):
            states.append(row[torch.from_numpy(item.first)])
            gold += [names.index(tag) for tag in train.tags[i]]
    x = torch.cat(states).double()
    x = torch.cat([x, torch.ones(len(x), 1)], dim=1)
    y = one_hot(torch.tensor(gold), len(names)).double()
    weights = 10 * torch.linalg.solve(x.T @ x + 2 * torch.eye(x.shape[1]), x.T @ y).T
    config = copy.deepcopy(demo.model.config)
    config.id2label, config.label2id = dict(enumerate(names)), {n: i for i, n in enumerate(names)}
    network = AutoModelForTokenClassification.from_config(config)
    own = {k: v for k, v in demo.model.state_dict().items() if not k.startswith("pooler")}
    network.bert.load_state_dict(own)
    network.classifier.weight.data, network.classifier.bias.data = (
        weights[:, :-1].float().contiguous(),
        weights[:, -1].float().contiguous(),
    )
    return headscope.wrap(network, demo.tokenizer, name="demo with tags")


def test_parts_of_speech_of_ewt(tagger, shared):
    """The probe is far better than the commonest tag (17%), and paired intervals are narrow.

    Without half of its heads this model of sentences tells the tags of single words better, by
    about 6 points: its last states then hold less of the words around them.
    """
    found = headscope.prune(
        tagger,
        task="token-classification",
        data=shared / "data/en_ewt-ud-test.conllu",
        calibration=shared / "data/en_ewt-ud-dev.conllu",
        limit=96,
        calibration_limit=32,
        fractions=[0.5],
        methods=["surgeon"],
        repairs=["none"],
        ablation=False,
        roles=False,
        validate=False,
    )
    assert found.metric == "word_accuracy"
    assert found.baseline.value.value > 65  # 70.0 of these 96 sentences, chosen at random
    assert found.baseline.value.half_width < 6
    half = found.curve("surgeon").points[1]
    assert len(half.heads_removed) == 36
    assert 0 < half.difference.low < half.difference.value < half.difference.high
    assert half.difference.half_width < 4
    assert found.calibration.task == "token-classification"


def test_sts_b_as_a_small_retrieval(demo, shared):
    data = read_retrieval(shared / "data/stsb-en-test.csv").pick(range(40))
    places = sorted({p for grades in data.relevance for p in grades})
    few = data.with_documents([*places, *range(600, 720)])
    task = make_task("retrieval", few, demo)
    outputs = task.outputs(demo)
    assert task.metrics(outputs)["recall_at_10"] > 95
    assert task.value(outputs) > 85
    assert task.degenerate(outputs) is None
    gates = torch.ones(6, 12)
    gates[:5] = 0
    worse = task.outputs(demo, gates)
    assert task.value(worse) < task.value(outputs)
    assert 0 < len(task.changed(worse)) <= 40
    change = task.change(outputs, worse)
    assert change.low < change.difference < change.high
