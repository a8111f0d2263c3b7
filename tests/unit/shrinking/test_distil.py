"""Distillation: losses against scipy's, gradients, which weights are kept, what stays as it is."""

import itertools

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from scipy.stats import entropy
from shrinking_models import clock, outputs, rows_of, sentences
from tiny_models import tiny_bert
from transformers import BertConfig, BertForSequenceClassification

import headscope
from headscope.models.run.head_outputs import HeadOutputs
from headscope.models.surgery.layers import remove_layers
from headscope.shrinking import distil as d


@pytest.fixture(scope="module")
def logits():
    """Random outputs of a smaller model and of a whole one, (texts, outputs) each."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(5, 3)), rng.normal(size=(5, 3))


def loss(smaller, expected, kind, spread=None):
    return d.loss_of(torch.tensor(smaller), torch.tensor(expected), kind, spread).numpy()


def test_the_loss_of_one_class_is_the_divergence_of_its_probabilities(logits):
    smaller, teacher = logits
    expected = entropy(softmax(teacher, axis=1), softmax(smaller, axis=1), axis=1)
    np.testing.assert_allclose(loss(smaller, teacher, HeadOutputs.CHOICE), expected)


def test_the_loss_of_independent_labels_is_summed_over_them(logits):
    smaller, teacher = logits
    p = expit(teacher)
    q = expit(smaller)
    divergence = entropy(np.stack([p, 1 - p]), np.stack([q, 1 - q]))
    np.testing.assert_allclose(loss(smaller, teacher, HeadOutputs.LABELS), divergence.sum(axis=1))


def test_the_loss_of_numbers_is_in_units_of_their_spread(logits):
    smaller, teacher = logits
    spread = np.array([0.5, 2.0, 4.0])
    numbers = loss(smaller, teacher, HeadOutputs.NUMBERS, torch.tensor(spread))
    expected = np.square((smaller - teacher) / spread).mean(axis=1)
    np.testing.assert_allclose(numbers, expected, rtol=1e-6)


def test_the_loss_of_embeddings_is_what_is_missing_to_a_cosine_of_one(logits):
    lengths = np.linalg.norm(logits, axis=2, keepdims=True)
    smaller, teacher = np.asarray(logits) / lengths
    expected = 1 - (smaller * teacher).sum(axis=1)
    np.testing.assert_allclose(loss(smaller, teacher, None), expected, atol=1e-12)


def test_a_smaller_model_comes_nearer_and_the_others_stay_as_they_are(bert):
    small = remove_layers(bert, [1])
    before = {name: tensor.clone() for name, tensor in small.network.state_dict().items()}
    trained, training = d.distil(small, bert, rows_of(bert), 3.0, clock=clock())
    assert training.steps > 50
    assert training.after < 0.5 * training.before
    for name, tensor in small.network.state_dict().items():
        assert torch.equal(tensor, before[name])
    table = trained.model.embeddings.word_embeddings.weight
    assert torch.equal(table, small.model.embeddings.word_embeddings.weight)
    unseen = sentences(50, 9)
    expected = outputs(bert, unseen)
    distance = 1 - (outputs(trained, unseen) * expected).sum(-1).mean()
    distance_before = 1 - (outputs(small, unseen) * expected).sum(-1).mean()
    assert distance < distance_before


@pytest.mark.parametrize("tokens", [1, 24])
def test_a_step_in_parts_has_the_gradient_of_the_whole_step(bert, monkeypatch, tokens):
    monkeypatch.setattr(d, "TOKENS", tokens)
    small = remove_layers(bert, [1])
    rows = rows_of(bert)
    chosen = sorted(range(13), key=lambda i: len(rows[i]))
    lesson = d.Lesson(small, bert, rows, {})
    with d._trained(small.network) as parameters:
        lesson.backward(chosen, in_bfloat16=False)
        gradients = [p.grad for p in parameters if p.grad is not None]
        for parameter in parameters:
            parameter.grad = None
        lesson.loss(chosen).backward()
        expected = [p.grad for p in parameters if p.grad is not None]
    assert len(gradients) == len(expected) > 10
    for gradient, in_one_step in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, in_one_step, atol=1e-6, rtol=1e-3)


def test_weights_that_came_no_nearer_are_not_kept(bert, monkeypatch):
    further = itertools.count(1)
    monkeypatch.setattr(d, "SECONDS", 1.5)
    monkeypatch.setattr(d.Lesson, "distance", lambda lesson, chosen: float(next(further)))
    small = remove_layers(bert, [1])
    trained, training = d.distil(small, bert, rows_of(bert), 30.0, clock=clock())
    assert (training.after, training.ended) == (training.before, "no nearer")
    for name, tensor in trained.network.state_dict().items():
        assert torch.equal(tensor, small.network.state_dict()[name])


def test_a_classifier_learns_its_whole_model_s_probabilities(tmp_path):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=400,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        num_labels=3,
        initializer_range=0.3,
    )
    tokenizer = headscope.load(str(tiny_bert(tmp_path / "model"))).tokenizer
    full = headscope.wrap(BertForSequenceClassification(config).eval(), tokenizer)
    small = remove_layers(full, [1])
    _, training = d.distil(small, full, rows_of(full), 3.0, clock=clock())
    assert training.after < 0.7 * training.before


def test_a_score_s_distance_does_not_depend_on_its_scale(tmp_path):
    """So that the same loss ruins a model whose scores run from 0 to 1 and one of logits."""
    folder = tiny_bert(tmp_path / "model", layers=3, task_head="classification", num_labels=1)
    distances = []
    for factor in (1.0, 50.0):
        full = headscope.load(str(folder), task_head="auto")
        for parameter in full.network.classifier.parameters():
            parameter.data *= factor
        full = headscope.wrap(full.network, full.tokenizer, name="scaled")
        small = remove_layers(full, [1])
        rows = rows_of(full)
        distance = d.Lesson(small, full, rows, {}).distance(range(len(rows)))
        scores = outputs(full, sentences(120)).numpy()[:, 0]
        scores_of_small = outputs(small, sentences(120)).numpy()[:, 0]
        expected = np.mean((scores_of_small - scores) ** 2) / scores.var()
        assert distance == pytest.approx(expected, rel=1e-3)
        distances.append(distance)
    assert distances[0] == pytest.approx(distances[1], rel=1e-3)
    assert distances[0] > 0.01
