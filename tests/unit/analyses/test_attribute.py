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
from headscope.analyses.attribute.sentences import agreement_sentence, sum_sentence
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
def cosine(bert):
    """The cosine of A and B, taken apart by token too."""
    return headscope.attribute(bert, A, B, tokens=True)


def parts_of_mean_embedding(loaded, text: str) -> dict[str, np.ndarray]:
    """The oracle: vectors that add up to the mean of the last states, by the name of the part."""
    network = loaded.model
    x = network.embeddings(torch.tensor([loaded.tokenizer(text)["input_ids"]]))[0]
    carried = Carried(network, x.detach().numpy(), heads=4, eps=network.config.layer_norm_eps)
    for layer in range(2):
        prefix = f"encoder.layer.{layer}"
        attention = f"{prefix}.attention"
        maps = [f"{attention}.self.{name}" for name in ("query", "key", "value")]
        carried.attend(f"L{layer}H", [*maps, f"{attention}.output.dense"])
        carried.norm(f"{attention}.output.LayerNorm")
        carried.feed_forward(f"F{layer}", f"{prefix}.intermediate.dense", f"{prefix}.output.dense")
        carried.norm(f"{prefix}.output.LayerNorm")
    return {name: written.mean(0) for name, written in carried.parts.items()}


def test_parts_of_a_cosine_are_those_of_the_oracle(bert, cosine):
    a = parts_of_mean_embedding(bert, A)
    b = parts_of_mean_embedding(bert, B)
    embedding_a = sum(a.values())
    embedding_b = sum(b.values())
    lengths = np.linalg.norm(embedding_a) * np.linalg.norm(embedding_b)
    expected = {name: (a[name] @ embedding_b + embedding_a @ b[name]) / (2 * lengths) for name in a}
    assert cosine.output.value == pytest.approx(embedding_a @ embedding_b / lengths, abs=1e-12)
    for head in cosine.heads:
        assert head.direct.value == pytest.approx(expected[head.name], abs=1e-12)
    for layer in cosine.layers:
        assert layer.feed_forward.value == pytest.approx(expected[f"F{layer.layer}"], abs=1e-12)
    for kind in ("embeddings", "biases"):
        assert cosine.part(kind).value == pytest.approx(expected[kind], abs=1e-12)
    assert cosine.check.error < 1e-12
    embedding_parts = sum(token.embeddings for token in cosine.tokens)
    assert embedding_parts == pytest.approx(expected["embeddings"])


def test_tokens_and_pairs_of_tokens_are_all_of_the_output_again(cosine):
    by_token = sum(token.heads for token in cosine.tokens)
    assert by_token == pytest.approx(cosine.part("heads").value)
    pairs = cosine.pairs
    total = sum(map(sum, pairs.values)) + pairs.biases
    assert total == pytest.approx(cosine.output.value, abs=1e-12)
    assert (len(pairs.rows), len(pairs.columns)) == (len(pairs.values), len(pairs.values[0]))


def test_lengths_counted_is_the_derivative_of_the_cosine(bert, cosine):
    """By a gate on the head's write to the last states, all other parts as they are: autograd."""
    names = [head.name for head in cosine.heads]
    gates = torch.ones(len(names), dtype=torch.float64, requires_grad=True)
    embeddings = []
    for text in (A, B):
        written = parts_of_mean_embedding(bert, text)
        heads = torch.tensor(np.stack([written.pop(name) for name in names]))
        rest = torch.tensor(sum(written.values()))
        embeddings.append(rest + gates @ heads)
    (expected,) = torch.autograd.grad(torch.cosine_similarity(*embeddings, dim=0), gates)
    for head, slope in zip(cosine.heads, expected.tolist(), strict=True):
        assert head.first_order.value == pytest.approx(slope, abs=1e-12)
        assert abs(head.first_order.value - 2 * head.direct.value) > 1e-6  # lengths do count


def test_a_layer_has_the_rank_correlation_of_its_heads(cosine):
    last = cosine.layers[-1]
    heads = [head for head in cosine.heads if head.layer == last.layer]
    removed = [head.removed.value for head in heads]
    direct = [head.direct.value for head in heads]
    first_order = [head.first_order.value for head in heads]
    assert last.spearman == pytest.approx(spearmanr(direct, removed).statistic)
    assert last.spearman_first_order == pytest.approx(spearmanr(first_order, removed).statistic)
    assert f"with lengths counted at {last.spearman_first_order:.2f}" in agreement_sentence(cosine)


def test_removed_is_the_model_that_lacks_the_head(bert, cosine):
    def cosine_of(model) -> float:
        embeddings = []
        for text in (A, B):
            states = model.forward(*model.pad([model.tokenizer(text)["input_ids"]]))
            embeddings.append(states[0].mean(0).detach())
        return float(torch.cosine_similarity(*embeddings, dim=0))

    for head in cosine.heads:
        smaller = headscope.remove_heads(bert, [(head.layer, head.head)])
        expected = cosine_of(bert) - cosine_of(smaller)
        assert head.removed.value == pytest.approx(expected, abs=1e-9)


def test_against_a_third_text_every_number_is_the_difference_of_two_cosines(bert, cosine):
    difference = headscope.attribute(bert, A, B, against=C, tokens=True, validate=False)
    other = headscope.attribute(bert, A, C, tokens=True, validate=False)
    assert difference.is_difference
    assert difference.texts == (A, B, C)
    expected = cosine.output.value - other.output.value
    assert difference.output.value == pytest.approx(expected, abs=1e-12)
    assert difference.check.error < 1e-12
    for name in ("direct", "first_order", "removed"):
        for head, nearer, farther in zip(difference.heads, cosine.heads, other.heads, strict=True):
            expected = getattr(nearer, name).value - getattr(farther, name).value
            assert getattr(head, name).value == pytest.approx(expected, abs=1e-10)
    # The third text's tokens stand behind the second's, and count negatively.
    pairs = difference.pairs
    assert pairs.columns == (*cosine.pairs.columns, *other.pairs.columns)
    n_second = len(cosine.pairs.columns)
    np.testing.assert_allclose(np.array(pairs.values)[:, :n_second], cosine.pairs.values)
    np.testing.assert_allclose(-np.array(pairs.values)[:, n_second:], other.pairs.values)
    total = sum(map(sum, pairs.values)) + pairs.biases
    assert total == pytest.approx(difference.output.value, abs=1e-12)
    assert {token.text for token in difference.tokens} == {0, 1, 2}
    assert sum_sentence(difference).startswith("The difference of the cosines ")


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
    logits = loaded.run(ids, real, select=select)[1].flatten(1)
    torch.testing.assert_close(readout.value, logits.detach())
    weights = torch.zeros_like(logits)
    weights[:, 1] = 1.0
    read_by, constant = readout.of(weights)
    assert error_of(run.contributions(read_by), logits[:, 1].detach() - constant) < 1e-12


def test_a_function_is_held_at_its_secant():
    u = torch.tensor([[-1.5, 0.0, 2.0]], dtype=torch.float64)

    def sigmoid(x, held):
        with held:
            return torch.sigmoid(x)

    readout = Readout(sigmoid, u)
    read_by, constant = readout.of(torch.ones_like(u))
    slope_at_zero = 0.25
    slopes = [(1 / (1 + math.exp(-x)) - 0.5) / x if x else slope_at_zero for x in u[0].tolist()]
    assert read_by[0].tolist() == pytest.approx(slopes)
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
    checkpoint = tiny_bert(folder, task_head="classification", **config)
    loaded = headscope.load(str(checkpoint), dtype="float64", task_head="auto")
    with torch.no_grad():
        for layer in loaded.model.encoder.layer:
            for linear in (layer.attention.output.dense, layer.output.dense):
                linear.bias.zero_()
            layer.output.dense.weight.zero_()
        layers = loaded.model.encoder.layer
        layers[0].attention.output.dense.weight.zero_()
        W_O = layers[1].attention.output.dense.weight
        columns_of_head = 3 * W_O[:, 16:24]
        W_O.zero_()
        W_O[:, 16:24] = columns_of_head
    return loaded


def test_a_planted_head_is_the_only_one_that_counts(planted):
    result = headscope.attribute(planted, A, validate=False)
    for head in result.heads:
        if head.name == "L1H2":
            assert abs(head.direct.value) > 1e-3
            assert abs(head.removed.value) > 1e-3
        else:
            assert head.direct.value == 0
            assert abs(head.removed.value) < 1e-12
    assert result.part("feed-forward").value == 0
    as_cross_encoder = headscope.attribute(planted, A, B, validate=False)
    assert as_cross_encoder.check.error < 1e-12


@pytest.mark.parametrize("number", [0, 1])
def test_of_independent_labels_the_named_one_is_taken_apart(tmp_path, number):
    loaded = planted_in(tmp_path, problem_type="multi_label_classification")
    with torch.no_grad():
        ids = loaded.pad([loaded.tokenizer(A)["input_ids"]])
        logits = loaded.run(*ids)[1][0]
    result = headscope.attribute(loaded, A, label=f"LABEL_{number}", validate=False)
    assert result.output.value == pytest.approx(float(logits[number]))
    assert sum_sentence(result).startswith(f"The logit of the label LABEL_{number} ")


def test_the_words_of_results_are_those_of_the_models_outputs():
    assert (HeadOutputs.LABELS.value, HeadOutputs.NUMBERS.value) == (INDEPENDENT, NUMBERS)


# --- many examples, and what is refused -----------------------------------------------------------


def test_data_gives_means_of_single_runs(bert, tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text(f"{A},{B},1\n{A},{C},2\n{C},{B},3\n")
    many = headscope.attribute(bert, data=path, removals=2, control=True, seed=1, validate=False)
    alone = [headscope.attribute(bert, *pair, validate=False) for pair in ((A, B), (A, C), (C, B))]
    assert (many.examples, many.removals) == (3, 2)
    assert many.output.value == pytest.approx(np.mean([single.output.value for single in alone]))
    for i, head in enumerate(many.heads):
        same_head = [single.heads[i] for single in alone]
        assert head.direct.value == pytest.approx(np.mean([h.direct.value for h in same_head]))
        assert head.direct.interval is None, "three examples have no interval"
        expected = (same_head[0].removed.value + same_head[1].removed.value) / 2
        assert head.removed.value == pytest.approx(expected)
    assert alone[0].heads[0].direct.interval is None
    assert [group.heads for group in many.groups] == [4, 4]
    together = sum(group.direct.value for group in many.groups)
    assert together == pytest.approx(many.part("heads").value)
    assert many.shuffled.examples == 3
    assert many.control.output.value != many.output.value


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"first": A}, "give a second one"),
        ({"first": A, "second": " "}, "A text is empty"),
        ({"first": A, "against": C}, "give two texts"),
        ({"first": A, "second": B, "against": "cat " * 90}, "longer than"),
        ({"first": A, "second": B, "label": "cat"}, "this output is a cosine"),
        ({"first": A, "second": B, "of": "class"}, "has no classification head"),
        ({"first": A, "second": B, "of": "target"}, "has no seq2seq head"),
        ({"first": A, "second": B, "target": C}, "what an encoder-decoder or a causal"),
        ({"first": A, "data": "x.csv"}, "give one of them"),
        ({"first": "cat " * 90, "second": B}, "longer than"),
    ],
)
def test_what_is_refused(bert, options, words):
    with pytest.raises(InputError, match=words):
        headscope.attribute(bert, **options, validate=False)


def test_against_is_for_cosines(planted):
    with pytest.raises(InputError, match="against compares cosines"):
        headscope.attribute(planted, A, B, against=C, validate=False)


def test_one_output_is_a_score(tmp_path):
    reranker = tiny_bert(tmp_path / "reranker", task_head="classification", num_labels=1)
    score = headscope.attribute(str(reranker), A, B, validate=False)
    assert sum_sentence(score).startswith("The score ")


def test_one_of_several_numbers_has_to_be_named(tmp_path):
    numbers = {"num_labels": 3, "problem_type": "regression"}
    model = tiny_bert(tmp_path / "numbers", task_head="classification", **numbers)
    with pytest.raises(InputError, match="3 numbers, none of which is its prediction; name one"):
        headscope.attribute(str(model), A, validate=False)
    named = headscope.attribute(str(model), A, label="LABEL_2", validate=False)
    assert sum_sentence(named).startswith("The score LABEL_2 ")


def test_calibration_text_may_be_the_compared_text(bert):
    result = headscope.attribute(bert, A, B, calibration=[B, B], validate=False)
    assert (result.calibration["same"], result.shuffled.examples) == (True, 2)


def test_rounding_alone_is_not_correlated(bert):
    result = headscope.attribute(bert, A, A, validate=False)
    assert result.output.value == pytest.approx(1.0)
    assert (result.spearman, result.layers[1].spearman_first_order) == (None, None)
    assert "Spearman" not in agreement_sentence(result)
