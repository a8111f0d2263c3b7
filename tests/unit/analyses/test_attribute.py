"""``attribute``: the exact sum against an oracle that goes forwards, and planted models."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from contribution_sums import Carried, error_of, uneven
from families import BY_NAME, padded_batch
from scipy.stats import spearmanr
from tiny_models import tiny_bert
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification

import headscope
from headscope.analyses.attribute.result import INDEPENDENT, NUMBERS
from headscope.analyses.attribute.view import agreement_sentence, sum_sentence
from headscope.core.errors import InputError, ValidationFailedError
from headscope.models.anatomy.readout import Readout, task_head
from headscope.models.anatomy.residual import find_stream, record
from headscope.models.run.head_outputs import HeadOutputs
from headscope.models.run.pooling import Dense, Pooling

A = "the cat sat on the mat"
B = "a big dog ran"
C = "it was red and she saw it"


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tiny_bert(tmp_path_factory.mktemp("bert"))
    return uneven(headscope.load(str(folder), dtype="float64"))


@pytest.fixture(scope="module")
def found(bert):
    return headscope.attribute(bert, A, B, tokens=True)


def parts_of_mean_embedding(loaded, text: str) -> dict[str, np.ndarray]:
    """The oracle: vectors that add up to the mean of the last states, by the name of the part."""
    network = loaded.model
    x = network.embeddings(torch.tensor([loaded.tokenizer(text)["input_ids"]]))[0]
    carried = Carried(network, x.detach().numpy(), heads=4, eps=network.config.layer_norm_eps)
    for layer in range(2):
        at = f"encoder.layer.{layer}"
        own = f"encoder.layer.{layer}.attention"
        maps = [f"{own}.self.{name}" for name in ("query", "key", "value")]
        carried.attend(f"L{layer}H", [*maps, f"{own}.output.dense"])
        carried.norm(f"{own}.output.LayerNorm")
        carried.feed_forward(f"F{layer}", f"{at}.intermediate.dense", f"{at}.output.dense")
        carried.norm(f"{at}.output.LayerNorm")
    return {name: part.mean(0) for name, part in carried.parts.items()}


def test_parts_of_a_cosine_are_those_of_the_oracle(bert, found):
    a, b = (parts_of_mean_embedding(bert, text) for text in (A, B))
    whole_a = sum(a.values())
    whole_b = sum(b.values())
    length = np.linalg.norm(whole_a) * np.linalg.norm(whole_b)
    expected = {n: (a[n] @ whole_b + whole_a @ b[n]) / (2 * length) for n in a}
    assert found.output.value == pytest.approx(whole_a @ whole_b / length, abs=1e-12)
    for head in found.heads:
        assert head.direct.value == pytest.approx(expected[head.name], abs=1e-12)
    for layer in found.layers:
        assert layer.feed_forward.value == pytest.approx(expected[f"F{layer.layer}"], abs=1e-12)
    for kind in ("embeddings", "biases"):
        assert found.part(kind).value == pytest.approx(expected[kind], abs=1e-12)
    assert found.check.error < 1e-12
    # The same heads by the token that they read, and the pairs of tokens, are all of it again.
    assert sum(t.heads for t in found.tokens) == pytest.approx(found.part("heads").value)
    assert sum(t.embeddings for t in found.tokens) == pytest.approx(expected["embeddings"])
    pairs = found.pairs
    total = sum(map(sum, pairs.values)) + pairs.biases
    assert total == pytest.approx(found.output.value, abs=1e-12)
    assert (len(pairs.rows), len(pairs.columns)) == (len(pairs.values), len(pairs.values[0]))


def test_lengths_counted_is_the_derivative_of_the_cosine(bert, found):
    """By a gate on the head's write to the last states, all other parts as they are: autograd."""
    a, b = (parts_of_mean_embedding(bert, text) for text in (A, B))
    names = [head.name for head in found.heads]
    gates = torch.ones(len(names), dtype=torch.float64, requires_grad=True)
    wholes = []
    for parts in (a, b):
        heads = torch.tensor(np.stack([parts[name] for name in names]))
        rest = torch.tensor(sum(part for name, part in parts.items() if name not in names))
        wholes.append(rest + gates @ heads)
    (expected,) = torch.autograd.grad(torch.cosine_similarity(*wholes, dim=0), gates)
    for head, slope in zip(found.heads, expected.tolist(), strict=True):
        assert head.first_order.value == pytest.approx(slope, abs=1e-12)
        assert abs(head.first_order.value - 2 * head.direct.value) > 1e-6  # lengths do count


def test_a_layer_has_the_rank_correlation_of_its_heads(found):
    last = found.layers[-1]
    own = [h for h in found.heads if h.layer == last.layer]
    for name, shown in (("direct", "spearman"), ("first_order", "spearman_first_order")):
        values = [[getattr(h, field).value for h in own] for field in (name, "removed")]
        assert getattr(last, shown) == pytest.approx(spearmanr(*values).statistic)
    assert f"with lengths counted at {last.spearman_first_order:.2f}" in agreement_sentence(found)


def test_removed_is_the_model_that_lacks_the_head(bert, found):
    def cosine(model) -> float:
        states = [model.forward(*model.pad([model.tokenizer(t)["input_ids"]])) for t in (A, B)]
        a, b = (s[0].mean(0).detach() for s in states)
        return float(torch.cosine_similarity(a, b, dim=0))

    for head in found.heads:
        smaller = headscope.remove_heads(bert, [(head.layer, head.head)])
        expected = cosine(bert) - cosine(smaller)
        assert head.removed.value == pytest.approx(expected, abs=1e-9)


# --- what follows the layers; the layers of every family: tests/parity/test_anatomy.py ------------


@pytest.mark.parametrize(
    ("name", "auto"),
    [
        *((name, AutoModelForSequenceClassification) for name in ("bert", "distilbert", "electra")),
        *((name, AutoModelForMaskedLM) for name in ("roberta", "albert")),
    ],
)
def test_heads_of_tasks_are_held_exactly(name, auto):
    loaded = headscope.wrap(BY_NAME[name].model("float64", auto))
    stream = find_stream(loaded)
    ids, real = padded_batch()
    select = (lambda hidden: hidden[:, 1:2]) if loaded.task_head == "mlm" else None
    run = record(loaded, stream, ids, real)
    readout = Readout(task_head(loaded, stream.end, ids, real, None, select), run.hidden)
    own = loaded.run(ids, real, select=select)[1].flatten(1)
    torch.testing.assert_close(readout.value, own.detach())
    weights = torch.zeros_like(own)
    weights[:, 1] = 1.0
    g, constant = readout.of(weights)
    assert error_of(run.contributions(g), own[:, 1].detach() - constant) < 1e-12


def test_a_function_is_held_at_its_secant():
    u = torch.tensor([[-1.5, 0.0, 2.0]], dtype=torch.float64)

    def sigmoid(x, held):
        with held:
            return torch.sigmoid(x)

    readout = Readout(sigmoid, u)
    g, constant = readout.of(torch.ones_like(u))
    slopes = [(1 / (1 + math.exp(-x)) - 0.5) / x if x else 0.25 for x in u[0].tolist()]
    assert g[0].tolist() == pytest.approx(slopes)
    assert float(constant) == pytest.approx(1.5)


class Cubed:
    """A step that no secant stands for."""

    def __call__(self, x):
        return x * x * x


def test_dense_modules_add_up_and_an_unknown_step_is_a_failure(bert):
    torch.manual_seed(0)
    dense = Dense(torch.randn(5, 32), torch.randn(5), "Tanh")
    for modes in (("max",), ("cls", "mean")):
        tall = Dense(torch.randn(5, 32 * len(modes)), dense.bias, "GELU")
        pooled = dataclasses.replace(bert, pooling=Pooling(modes, (tall,)))
        assert headscope.attribute(pooled, A, B).check.error < 1e-12
    odd = dataclasses.replace(bert, pooling=Pooling(("mean",), (Cubed(),)))
    with pytest.raises(ValidationFailedError, match="do not add up") as failure:
        headscope.attribute(odd, A, B)
    assert failure.value.exit_code == 3


# --- planted answers ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return planted_in(tmp_path_factory.mktemp("planted"))


def planted_in(folder, **config):
    """A classifier in which L1H2 alone writes anything, and alone decides the class."""
    where = tiny_bert(folder, task_head="classification", **config)
    loaded = headscope.load(str(where), dtype="float64", task_head="auto")
    with torch.no_grad():
        for number, layer in enumerate(loaded.model.encoder.layer):
            for linear in (layer.attention.output.dense, layer.output.dense):
                kept = linear.weight.clone()
                linear.weight.zero_()
                linear.bias.zero_()
                if number == 1 and linear is layer.attention.output.dense:
                    linear.weight[:, 16:24] = 3 * kept[:, 16:24]
        loaded.model.pooler.dense.bias.zero_()
        logits = []
        for model in (loaded, headscope.remove_heads(loaded, [(1, 2)])):
            ids = model.pad([model.tokenizer(A)["input_ids"]])
            logits.append(model.run(*ids)[1][0].clone())
        # The classes change places halfway between the logits with and without the head.
        loaded.network.classifier.bias -= (logits[0] + logits[1]) / 2
    return loaded


def test_a_planted_head_is_the_only_one_that_counts_and_flips_the_class(planted):
    found = headscope.attribute(planted, A, flip=True, validate=False)
    for head in found.heads:
        if head.name == "L1H2":
            assert abs(head.direct.value) > 1e-3
            assert abs(head.removed.value) > 1e-3
        else:
            assert head.direct.value == 0
            assert abs(head.removed.value) < 1e-12
    reversal = found.reversal
    assert reversal.found
    assert reversal.heads == ("L1H2",)
    assert reversal.margins[0] > 0 > reversal.margins[1]
    # The other heads of its layer are all the other sets there are, and none does it.
    assert (reversal.draws, reversal.random_reversed) == (3, 0)
    assert reversal.put_back == pytest.approx(reversal.margins[:1])
    assert found.part("feed-forward").value == 0
    pair = headscope.attribute(planted, A, B, resamples=0, validate=False)  # as a cross-encoder
    assert pair.check.error < 1e-12


@pytest.mark.parametrize("number", [0, 1])
def test_a_planted_head_flips_a_label_whatever_the_others_are(tmp_path, number):
    """One label is predicted, the other not; neither is an alternative to the other."""
    independent = {"problem_type": "multi_label_classification"}
    loaded = planted_in(tmp_path, **independent)
    with torch.no_grad():
        ids = loaded.pad([loaded.tokenizer(A)["input_ids"]])
        logits = loaded.run(*ids)[1][0]
    few = {"resamples": 0, "validate": False}
    found = headscope.attribute(loaded, A, label=f"LABEL_{number}", flip=True, **few)
    assert found.output.value == pytest.approx(float(logits[number]))
    assert found.reversal.heads == ("L1H2",)
    assert found.reversal.margins[0] == pytest.approx(abs(float(logits[number])))
    assert found.reversal.margins[1] == pytest.approx(-abs(float(logits[number])))
    assert sum_sentence(found).startswith(f"The logit of the label LABEL_{number} ")
    assert (HeadOutputs.LABELS.value, HeadOutputs.NUMBERS.value) == (INDEPENDENT, NUMBERS)


def test_a_comparison_is_reversed_and_its_sides_do_not_matter(bert, monkeypatch):
    monkeypatch.setattr("headscope.analyses.attribute.reversal.SEARCHES", 1)
    few = {"most": 3, "resamples": 0, "validate": False}
    first = headscope.attribute(bert, A, B, against=C, **few).reversal
    other = headscope.attribute(bert, A, C, against=B, **few).reversal
    assert first.swapped != other.swapped
    assert first.heads == other.heads
    assert first.margins == pytest.approx(other.margins)
    assert first.margins[0] > 0
    assert list(first.margins) == sorted(first.margins, reverse=True)
    assert first.found == (first.margins[-1] < 0)


# --- many examples, and what is refused -----------------------------------------------------------


def test_data_gives_means_of_single_runs(bert, tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text(f"{A},{B},1\n{A},{C},2\n{C},{B},3\n")
    few = {"resamples": 0, "validate": False}
    found = headscope.attribute(bert, data=path, removals=2, control=True, seed=1, **few)
    alone = [headscope.attribute(bert, *pair, **few) for pair in ((A, B), (A, C), (C, B))]
    assert (found.examples, found.removals) == (3, 2)
    assert found.output.value == pytest.approx(np.mean([r.output.value for r in alone]))
    for i, head in enumerate(found.heads):
        each = [r.heads[i] for r in alone]
        assert head.direct.value == pytest.approx(np.mean([h.direct.value for h in each]))
        assert head.direct.interval is None, "three examples have no interval"
        expected = (each[0].removed.value + each[1].removed.value) / 2
        assert head.removed.value == pytest.approx(expected)
    assert alone[0].heads[0].direct.interval is None
    assert [group.heads for group in found.groups] == [4, 4]
    assert sum(g.direct.value for g in found.groups) == pytest.approx(found.part("heads").value)
    assert found.shuffled.examples == 3
    assert found.control.output.value != found.output.value


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"first": A}, "give a second one"),
        ({"first": A, "second": " "}, "A text is empty"),
        ({"first": A, "against": C}, "give two texts"),
        ({"first": A, "second": B, "flip": True}, "this output is a cosine"),
        ({"first": A, "second": B, "of": "class"}, "has no classification head"),
        ({"first": A, "second": B, "of": "target"}, "has no seq2seq head"),
        ({"first": A, "second": B, "target": C}, "what an encoder-decoder model writes"),
        ({"first": A, "data": "x.csv"}, "give one of them"),
        ({"first": "cat " * 90, "second": B}, "longer than"),
    ],
)
def test_what_is_refused(bert, options, words):
    with pytest.raises(InputError, match=words):
        headscope.attribute(bert, **options, validate=False)


def test_one_output_has_no_prediction_to_change(tmp_path):
    reranker = tiny_bert(tmp_path / "reranker", task_head="classification", num_labels=1)
    with pytest.raises(InputError, match="no prediction to change"):
        headscope.attribute(str(reranker), A, B, flip=True, validate=False)
    score = headscope.attribute(str(reranker), A, B, resamples=0, validate=False)
    assert sum_sentence(score).startswith("The score ")


def test_one_of_several_numbers_has_to_be_named(tmp_path):
    numbers = {"num_labels": 3, "problem_type": "regression"}
    model = tiny_bert(tmp_path / "numbers", task_head="classification", **numbers)
    with pytest.raises(InputError, match="3 numbers, none of which is its prediction; name one"):
        headscope.attribute(str(model), A, validate=False)
    found = headscope.attribute(str(model), A, label="LABEL_2", resamples=0, validate=False)
    assert sum_sentence(found).startswith("The score LABEL_2 ")


def test_calibration_text_may_be_the_compared_text(bert):
    found = headscope.attribute(bert, A, B, calibration=[B, B], resamples=0, validate=False)
    assert (found.calibration["same"], found.shuffled.examples) == (True, 2)


def test_rounding_alone_is_not_correlated(bert):
    found = headscope.attribute(bert, A, A, resamples=0, validate=False)
    assert found.output.value == pytest.approx(1.0)
    assert (found.spearman, found.layers[1].spearman_first_order) == (None, None)
    assert "Spearman" not in agreement_sentence(found)
