"""``attribute``: whether rankings name the heads that matter, and removal at the mean.

A slow script does the same from plain modules, one text, one head and one set after the other.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from contribution_sums import uneven
from scipy import stats
from tiny_models import tiny_bert

import headscope
from headscope.analyses.attribute.view import VIEW
from headscope.core.errors import InputError
from headscope.data.halves import halve
from headscope.show.blocks import Table

A = "the cat sat on the mat"
B = "a big dog ran"
LINES = ["the dog sat", "he saw a big house", "it ran to the red mat", "she was in the house"]
WIDTH = 8  # of a head
SPECIAL_IDS = (2, 3)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tiny_bert(tmp_path_factory.mktemp("bert"))
    return uneven(headscope.load(str(folder), dtype="float64"))


# --- the slow script ------------------------------------------------------------------------------


class Plain:
    """The same model from plain modules: z are the inputs of the output maps, one text at a time.

    ``replaced`` says what takes the place of heads, by (layer, head): (pos, width).
    """

    def __init__(self, loaded):
        self.loaded = loaded
        self.dense = [layer.attention.output.dense for layer in loaded.model.encoder.layer]
        self.heads = list(itertools.product(range(len(self.dense)), range(4)))

    def ids(self, text):
        return self.loaded.tokenizer(text)["input_ids"]

    def special(self, text):
        return torch.tensor([token in SPECIAL_IDS for token in self.ids(text)])

    def states(self, text, replaced=None):
        """Last states (pos, d_model), and z of every head as the model computes it."""
        z_of_heads = {}
        handles = []
        for number, dense in enumerate(self.dense):

            def hook(_, args, number=number):
                z = args[0].clone()
                for head in range(4):
                    columns = slice(head * WIDTH, (head + 1) * WIDTH)
                    z_of_heads[number, head] = z[0, :, columns].clone()
                    if (number, head) in (replaced or {}):
                        z[0, :, columns] = replaced[number, head]
                return (z,)

            handles.append(dense.register_forward_pre_hook(hook))
        with torch.no_grad():
            states = self.loaded.model(torch.tensor([self.ids(text)])).last_hidden_state[0]
        for handle in handles:
            handle.remove()
        return states, z_of_heads

    def at_mean(self, lines):
        """Return what heads leave in a text: their mean over lines, special tokens apart."""
        runs = [(self.states(line)[1], self.special(line)) for line in lines]
        ordinary = {}
        special = {}
        for head in self.heads:
            ordinary[head] = torch.cat([z[head][~marks] for z, marks in runs]).mean(0)
            special[head] = torch.cat([z[head][marks] for z, marks in runs]).mean(0)

        def replaced(text, heads):
            marks = self.special(text)[:, None]
            return {head: torch.where(marks, special[head], ordinary[head]) for head in heads}

        return replaced

    def at_zero(self, text, heads):
        """Return zeros in place of heads."""
        return dict.fromkeys(heads, 0.0)

    def cosine(self, texts, heads=(), replacement=None):
        """Return the cosine of two texts' mean states; ``replacement(text, heads)`` as above."""
        embeddings = []
        for text in texts:
            replaced = {} if replacement is None else replacement(text, heads)
            embeddings.append(self.states(text, replaced)[0].mean(0))
        return float(torch.cosine_similarity(*embeddings, dim=0))


def slow_curve(plain, pairs, means, order, kept_counts):
    """Return what the first heads of an order bring back, over what all bring back."""
    ablated = [plain.cosine(pair, plain.heads, means) for pair in pairs]
    outputs = [plain.cosine(pair) for pair in pairs]
    curve = []
    for count in kept_counts:
        back = 0.0
        total = 0.0
        for pair, start, output in zip(pairs, ablated, outputs, strict=True):
            change = plain.cosine(pair, order[count:], means) - start
            back += change * math.copysign(1, output - start)
            total += abs(output - start)
        curve.append(back / total)
    return curve


def area_under(curve, kept_counts):
    """Return the area by the trapezoidal rule over the share of heads kept."""
    area = 0.0
    for i in range(1, len(curve)):
        width = (kept_counts[i] - kept_counts[i - 1]) / kept_counts[-1]
        area += width * (curve[i] + curve[i - 1]) / 2
    return area


def gap_to_one(curve, kept_counts):
    return area_under([abs(1 - share) for share in curve], kept_counts)


def both_orders(effects):
    """Return the heads with the largest effects first, and with the largest sizes first."""
    signed = sorted(effects, key=lambda head: -effects[head])
    absolute = sorted(effects, key=lambda head: -abs(effects[head]))
    return signed, absolute


# --- areas ----------------------------------------------------------------------------------------


def test_areas_are_those_of_a_slow_script(bert):
    result = headscope.attribute(bert, A, B, calibration=LINES, curves=True, validate=False)
    plain = Plain(bert)
    means = plain.at_mean(LINES)
    judged = result.faithfulness
    assert judged.same
    assert judged.kept == (0, 1, 2, 3, 4, 6, 8)
    direction = math.copysign(1, judged.output - judged.ablated)
    assert judged.output == pytest.approx(plain.cosine((A, B)), abs=1e-9)
    assert judged.ablated == pytest.approx(plain.cosine((A, B), plain.heads, means), abs=1e-9)
    names = [curve.ranking for curve in judged.rankings]
    assert names == ["direct", "first_order", "removed", "removed_mean"]
    for curve in judged.rankings:
        effects = {}
        for head in result.heads:
            effects[head.layer, head.head] = direction * getattr(head, curve.ranking).value
        signed_order, absolute_order = both_orders(effects)
        signed = slow_curve(plain, [(A, B)], means, signed_order, judged.kept)
        absolute = slow_curve(plain, [(A, B)], means, absolute_order, judged.kept)
        cpr = area_under(signed, judged.kept)
        assert curve.signed == pytest.approx(signed, abs=1e-8)
        assert curve.absolute == pytest.approx(absolute, abs=1e-8)
        assert curve.cpr.value == pytest.approx(cpr, abs=1e-8)
        assert curve.cmd.value == pytest.approx(gap_to_one(absolute, judged.kept), abs=1e-8)
        assert curve.cpr.interval is None  # one example
        better = sum(other.cpr.value >= cpr for other in judged.random)
        assert curve.cpr_p == pytest.approx((1 + better) / 20)
    assert len(judged.random) == 19


@pytest.fixture(scope="module")
def pairs():
    words = ["cat", "dog", "mat", "house", "red", "big", "she", "he", "it", "was"]
    two_words = itertools.islice(itertools.permutations(words, 2), 16)
    return [(f"the {a} {b} sat", f"a {b} {a} ran on it") for a, b in two_words]


@pytest.fixture(scope="module")
def over_pairs(bert, pairs, tmp_path_factory):
    """Attributed over 16 pairs, all of which lose their heads."""
    path = tmp_path_factory.mktemp("data") / "pairs.csv"
    path.write_text("".join(f"{a},{b},{i % 5}\n" for i, (a, b) in enumerate(pairs)))
    return headscope.attribute(
        bert, data=path, removals=16, calibration=LINES, seed=4, validate=False
    )


def test_one_half_ranks_and_the_other_judges(bert, pairs, over_pairs):
    plain = Plain(bert)
    means = plain.at_mean(LINES)
    judged = over_pairs.faithfulness
    ranking, judging = halve(pairs, 4)
    assert (judged.ranked, judged.judged, judged.same) == (len(ranking), len(judging), False)
    effects = dict.fromkeys(plain.heads, 0.0)
    for i in ranking:
        output = plain.cosine(pairs[i])
        ablated = plain.cosine(pairs[i], plain.heads, means)
        for head in plain.heads:
            effect = output - plain.cosine(pairs[i], [head], means)
            effects[head] += effect * math.copysign(1, output - ablated)
    signed_order, absolute_order = both_orders(effects)
    judging_pairs = [pairs[i] for i in judging]
    signed = slow_curve(plain, judging_pairs, means, signed_order, judged.kept)
    absolute = slow_curve(plain, judging_pairs, means, absolute_order, judged.kept)
    cpr = area_under(signed, judged.kept)
    cmd = gap_to_one(absolute, judged.kept)
    curve = next(curve for curve in judged.rankings if curve.ranking == "removed_mean")
    assert (curve.cpr.value, curve.cmd.value) == pytest.approx((cpr, cmd), abs=1e-8)
    assert curve.cpr.low < cpr < curve.cpr.high
    assert curve.cmd.low < cmd < curve.cmd.high


def test_a_head_has_two_intervals_and_a_size_over_examples(bert, pairs, over_pairs):
    """The interval of this head alone, and the one that holds for all eight at once."""
    plain = Plain(bert)
    means = plain.at_mean(LINES)
    head = next(head for head in over_pairs.heads if head.name == "L1H2")
    at_mean = [plain.cosine(pair) - plain.cosine(pair, [(1, 2)], means) for pair in pairs]
    error = np.std(at_mean, ddof=1) / math.sqrt(16)
    for tail, interval in (
        (0.025, head.removed_mean.interval),
        (0.025 / 8, head.removed_mean.joint.interval),
    ):
        half = stats.t.isf(tail, 15) * error
        mean = np.mean(at_mean)
        assert interval == pytest.approx((mean - half, mean + half), abs=1e-9)
    at_zero = [plain.cosine(pair) - plain.cosine(pair, [(1, 2)], plain.at_zero) for pair in pairs]
    assert head.removed_size.value == pytest.approx(np.mean(np.abs(at_zero)), abs=1e-9)


def test_only_heads_whose_joint_interval_excludes_zero_are_named(over_pairs):
    tables = [block for block in VIEW.blocks(over_pairs) if isinstance(block, Table)]
    table = next(table for table in tables if "most when removed" in table.title)
    beyond_zero = {
        head.name for head in over_pairs.heads if head.removed.above or head.removed.below
    }
    assert {row.name for row in table.rows} == beyond_zero
    assert 0 < len(beyond_zero) < len(over_pairs.heads)


# --- a planted circuit ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def circuit(tmp_path_factory):
    """A classifier that reads what L1H2 writes, which reads what L0H1 writes; L0H3 is a decoy.

    L0H1 writes to coordinates that the classifier does not see, so it has no direct part. L0H3
    writes the same everywhere, where the classifier does see it: a large direct part, and nothing
    that its mean would not give. All other heads write nothing.
    """
    folder = tiny_bert(tmp_path_factory.mktemp("circuit"), task_head="classification")
    loaded = headscope.load(str(folder), dtype="float64", task_head="auto")
    # Coordinates 0 to 7 hold the token, 8 to 15 what L0H1 writes, 24 to 31 what the head reads.
    from_first = slice(8, 16)
    rows_of_reader = slice(16, 24)
    seen_by_classifier = slice(24, 32)
    with torch.no_grad():
        embeddings = loaded.model.embeddings
        for table in (embeddings.position_embeddings, embeddings.token_type_embeddings):
            table.weight.zero_()
        embeddings.word_embeddings.weight[:, 8:] = 0.0  # tokens are told apart by these alone
        layers = loaded.model.encoder.layer
        for layer in layers:
            for linear in (layer.attention.output.dense, layer.output.dense):
                linear.weight.zero_()
                linear.bias.zero_()

        def write(layer, head, coordinates):
            """Let a head write to some coordinates, with a sum of zero over them."""
            weight = torch.randn(8, 8, dtype=torch.float64)
            W_O = layers[layer].attention.output.dense.weight
            W_O[coordinates, 8 * head : 8 * head + 8] = weight - weight.mean(0)

        torch.manual_seed(1)
        write(0, 1, from_first)
        write(1, 2, seen_by_classifier)
        write(0, 3, seen_by_classifier)
        decoy = layers[0].attention.self
        decoy.value.weight[seen_by_classifier] = 0.0
        decoy.value.bias[seen_by_classifier] = 1.0 + torch.rand(8, dtype=torch.float64)
        reader = layers[1].attention.self
        reader.value.weight[rows_of_reader, :8] = 0.0
        reader.value.weight[rows_of_reader, 16:] = 0.0
        reader.value.weight[rows_of_reader] *= 10
        reader.query.weight[rows_of_reader] = 0.0
        reader.key.weight[rows_of_reader] = 0.0
        loaded.model.pooler.dense.weight[:, :24] = 0.0
    return loaded


def test_a_planted_circuit_is_found_by_removal_and_not_by_direct_parts(circuit):
    result = headscope.attribute(
        circuit, A, calibration=LINES, circuit="L0H1, L1H2", validate=False
    )
    heads = {head.name: head for head in result.heads}
    assert abs(heads["L0H1"].direct.value) < 1e-12
    assert abs(heads["L0H1"].removed_mean.value) > 1e-4
    assert abs(heads["L0H3"].direct.value) > 1e-3
    assert abs(heads["L0H3"].removed_mean.value) < 1e-9
    curves = {curve.ranking: curve for curve in result.faithfulness.rankings}
    assert "first_order" not in curves  # a logit has no lengths
    # One pair of the twelve is lost to the decoy; with no direct part, L0H1 ties with five others.
    assert curves["direct"].roc == pytest.approx((5 + 2.5) / 12, abs=0.2)
    by_mean = curves["removed_mean"]
    assert by_mean.roc == 1.0
    assert by_mean.absolute[2] == pytest.approx(1.0, abs=1e-9)  # two heads do it all
    assert by_mean.cmd.value < curves["direct"].cmd.value
    assert by_mean.cmd_p < 0.2


def test_a_circuit_names_heads_that_there_are(circuit):
    with pytest.raises(InputError, match="L7H0: there is no layer 7"):
        headscope.attribute(circuit, A, circuit="L7H0", validate=False)
