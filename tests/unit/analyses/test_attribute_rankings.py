"""``attribute``: whether rankings name the heads that matter, and more than one way to remove."""

import itertools
import math

import numpy as np
import pytest
import torch
from contribution_sums import uneven
from scipy import stats
from tiny_models import tiny_bert

import headscope
from headscope.analyses.attribute.removal import donors
from headscope.analyses.attribute.reversal import matched_sets, search
from headscope.analyses.attribute.view import VIEW
from headscope.core.errors import InputError
from headscope.data.halves import halve
from headscope.data.token_rows import encode_rows
from headscope.show.blocks import Table

A = "the cat sat on the mat"
B = "a big dog ran"
C = "it was red and she saw it"
LINES = ["the dog sat", "he saw a big house", "it ran to the red mat", "she was in the house"]
WIDTH = 8  # of a head


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tiny_bert(tmp_path_factory.mktemp("bert"))
    return uneven(headscope.load(str(folder), dtype="float64"))


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
        return torch.tensor([token in (2, 3) for token in self.ids(text)])

    def states(self, text, replaced=None):
        """Last states (pos, d_model), and z of every head as the model computes it."""
        seen = {}
        handles = []
        for number, dense in enumerate(self.dense):

            def hook(_, args, number=number):
                z = args[0].clone()
                for head in range(4):
                    own = slice(head * WIDTH, (head + 1) * WIDTH)
                    seen[number, head] = z[0, :, own].clone()
                    if (number, head) in (replaced or {}):
                        z[0, :, own] = replaced[number, head]
                return (z,)

            handles.append(dense.register_forward_pre_hook(hook))
        with torch.no_grad():
            states = self.loaded.model(torch.tensor([self.ids(text)])).last_hidden_state[0]
        for handle in handles:
            handle.remove()
        return states, seen

    def at_mean(self, lines):
        """What the heads leave in a text: their mean over lines, special tokens apart."""
        runs = [(self.states(line)[1], self.special(line)) for line in lines]
        means = {
            head: [torch.cat([z[head][at == kind] for z, at in runs]).mean(0) for kind in (0, 1)]
            for head in self.heads
        }
        return lambda text, heads: {
            head: torch.where(self.special(text)[:, None], means[head][1], means[head][0])
            for head in heads
        }

    def cosine(self, texts, replaced=lambda text, heads: {}, heads=()):
        a, b = (self.states(text, replaced(text, heads))[0].mean(0) for text in texts)
        return float(torch.cosine_similarity(a, b, dim=0))


def areas(plain, pairs, left, signed, absolute, kept):
    """CPR and CMD of an order each, one pair, one number of heads and one set after the other."""
    ablated = [plain.cosine(pair, left, plain.heads) for pair in pairs]
    whole = [plain.cosine(pair) for pair in pairs]
    curves = []
    for order in (signed, absolute):
        curve = []
        for k in kept:
            back = total = 0.0
            for pair, start, end in zip(pairs, ablated, whole, strict=True):
                found = plain.cosine(pair, left, order[k:])
                back += (found - start) * math.copysign(1, end - start)
                total += abs(end - start)
            curve.append(back / total)
        curves.append(curve)
    steps = [(b - a) / kept[-1] for a, b in itertools.pairwise(kept)]
    cpr = sum(
        w * (a + b) / 2 for w, (a, b) in zip(steps, itertools.pairwise(curves[0]), strict=True)
    )
    gaps = [abs(1 - f) for f in curves[1]]
    cmd = sum(w * (a + b) / 2 for w, (a, b) in zip(steps, itertools.pairwise(gaps), strict=True))
    return curves, cpr, cmd


def test_areas_are_those_of_a_slow_script(bert):
    found = headscope.attribute(bert, A, B, calibration=LINES, curves=True, validate=False)
    plain = Plain(bert)
    judged = found.faithfulness
    left = plain.at_mean(LINES)
    assert judged.same
    assert judged.kept == (0, 1, 2, 3, 4, 6, 8)
    direction = math.copysign(1, judged.output - judged.ablated)
    assert judged.output == pytest.approx(plain.cosine((A, B)), abs=1e-9)
    assert judged.ablated == pytest.approx(plain.cosine((A, B), left, plain.heads), abs=1e-9)
    assert [c.ranking for c in judged.rankings] == [
        "direct",
        "first_order",
        "removed",
        "removed_mean",
        "resampled",
    ]
    for curve in judged.rankings:
        effect = {
            (h.layer, h.head): direction * getattr(h, curve.ranking).value for h in found.heads
        }
        signed = sorted(plain.heads, key=lambda head: -effect[head])
        absolute = sorted(plain.heads, key=lambda head: -abs(effect[head]))
        curves, cpr, cmd = areas(plain, [(A, B)], left, signed, absolute, judged.kept)
        assert curve.signed == pytest.approx(curves[0], abs=1e-8)
        assert curve.absolute == pytest.approx(curves[1], abs=1e-8)
        assert curve.cpr.value == pytest.approx(cpr, abs=1e-8)
        assert curve.cmd.value == pytest.approx(cmd, abs=1e-8)
        assert curve.cpr.interval is None  # one example
        better = sum(other.cpr.value >= cpr for other in judged.random)
        assert curve.cpr_p == pytest.approx((1 + better) / 20)
    assert len(judged.random) == 19


def test_one_half_ranks_and_the_other_judges(bert, tmp_path):
    words = ["cat", "dog", "mat", "house", "red", "big", "she", "he", "it", "was"]
    twos = itertools.islice(itertools.permutations(words, 2), 16)
    pairs = [(f"the {a} {b} sat", f"a {b} {a} ran on it") for a, b in twos]
    path = tmp_path / "pairs.csv"
    path.write_text("".join(f"{a},{b},{i % 5}\n" for i, (a, b) in enumerate(pairs)))
    found = headscope.attribute(
        bert, data=path, removals=16, calibration=LINES, resamples=0, seed=4, validate=False
    )
    judged = found.faithfulness
    plain = Plain(bert)
    left = plain.at_mean(LINES)
    ranks, judges = halve(pairs, 4)
    assert (judged.ranked, judged.judged, judged.same) == (len(ranks), len(judges), False)
    score = dict.fromkeys(plain.heads, 0.0)
    for i in ranks:
        whole = plain.cosine(pairs[i])
        ablated = plain.cosine(pairs[i], left, plain.heads)
        for head in plain.heads:
            effect = whole - plain.cosine(pairs[i], left, [head])
            score[head] += effect * math.copysign(1, whole - ablated)
    signed = sorted(plain.heads, key=lambda head: -score[head])
    absolute = sorted(plain.heads, key=lambda head: -abs(score[head]))
    others = [pairs[i] for i in judges]
    _, cpr, cmd = areas(plain, others, left, signed, absolute, judged.kept)
    (curve,) = (c for c in judged.rankings if c.ranking == "removed_mean")
    assert (curve.cpr.value, curve.cmd.value) == pytest.approx((cpr, cmd), abs=1e-8)
    assert curve.cpr.low < cpr < curve.cpr.high
    assert curve.cmd.low < cmd < curve.cmd.high
    # The intervals of single heads: their own, and the one that holds for all eight at once.
    each = [plain.cosine(pair) - plain.cosine(pair, left, [(1, 2)]) for pair in pairs]
    head = next(h for h in found.heads if h.name == "L1H2")
    error = np.std(each, ddof=1) / math.sqrt(16)
    for tail, ends in (
        (0.025, head.removed_mean.interval),
        (0.025 / 8, head.removed_mean.joint.interval),
    ):
        half = stats.t.isf(tail, 15) * error
        assert ends == pytest.approx((np.mean(each) - half, np.mean(each) + half), abs=1e-9)
    # Only heads whose interval excludes zero, all heads taken together, are named.
    tables = [block for block in VIEW.blocks(found) if isinstance(block, Table)]
    named = [row.name for t in tables if "most when removed" in t.title for row in t.rows]
    beyond = {h.name for h in found.heads if h.removed.above or h.removed.below}
    assert set(named) == beyond != {h.name for h in found.heads}
    zeros = [
        plain.cosine(pair)
        - plain.cosine(pair, lambda text, heads: dict.fromkeys(heads, 0.0), [(1, 2)])
        for pair in pairs
    ]
    assert head.removed_size.value == pytest.approx(np.mean(np.abs(zeros)), abs=1e-9)


def test_resampled_z_comes_from_positions_of_the_same_kind(bert):
    plain = Plain(bert)
    rows = [row for row in encode_rows(bert, LINES, None) if row is not None]
    pool = donors(bert, rows, 5)
    runs = [(plain.states(line)[1], plain.special(line)) for line in LINES]
    drawn = {}
    for text in (A, B):
        (row,) = encode_rows(bert, [text], None)
        drawn[text] = [pool(number)(row) for number in range(8)]
        for means in drawn[text]:
            for layer, head in plain.heads:
                seen = torch.cat([z[layer, head] for z, _ in runs])
                kinds = torch.cat([special for _, special in runs])
                for z, special in zip(means[layer][0, head], plain.special(text), strict=True):
                    near = (seen[kinds == special] - z).abs().amax(1)
                    assert near.min() < 1e-9
        first = torch.stack([means[0][0, 0] for means in drawn[text]])
        assert (first.std(0) > 0).any()  # draws differ
    found = headscope.attribute(bert, A, B, calibration=LINES, seed=5, validate=False)
    whole = plain.cosine((A, B))
    for layer, head in ((0, 1), (1, 3)):
        without = [
            plain.cosine(
                (A, B),
                lambda text, heads, i=i: {h: drawn[text][i][h[0]][0, h[1]] for h in heads},
                [(layer, head)],
            )
            for i in range(8)
        ]
        own = next(h for h in found.heads if (h.layer, h.head) == (layer, head))
        assert own.resampled.value == pytest.approx(whole - np.mean(without), abs=1e-9)


# --- a planted circuit ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def circuit(tmp_path_factory):
    """A classifier that reads what L1H2 writes, which reads what L0H1 writes; L0H3 is a decoy.

    L0H1 writes to coordinates that the classifier does not see, so it has no direct part. L0H3
    writes the same everywhere, where the classifier does see it: a large direct part, and nothing
    that its mean would not give. All other heads write nothing.
    """
    where = tiny_bert(tmp_path_factory.mktemp("circuit"), task_head="classification")
    loaded = headscope.load(str(where), dtype="float64", task_head="auto")
    one, two, three = (slice(8 * i, 8 * i + 8) for i in (1, 2, 3))
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

        def write(layer, head, to):
            """Let a head write to some coordinates, with a sum of zero over them."""
            weight = torch.randn(8, 8, dtype=torch.float64)
            layers[layer].attention.output.dense.weight[to, 8 * head : 8 * head + 8] = (
                weight - weight.mean(0)
            )

        torch.manual_seed(1)
        write(0, 1, one)
        write(1, 2, three)
        write(0, 3, three)
        decoy = layers[0].attention.self
        reader = layers[1].attention.self
        decoy.value.weight[three] = 0.0
        decoy.value.bias[three] = 1.0 + torch.rand(8, dtype=torch.float64)
        reader.value.weight[two, :8] = reader.value.weight[two, 16:] = 0.0
        reader.value.weight[two] *= 10
        for name in ("query", "key"):
            getattr(reader, name).weight[two] = 0.0
        loaded.model.pooler.dense.weight[:, :24] = 0.0
    return loaded


def test_a_planted_circuit_is_found_by_removal_and_not_by_direct_parts(circuit):
    found = headscope.attribute(circuit, A, calibration=LINES, circuit="L0H1, L1H2", validate=False)
    heads = {head.name: head for head in found.heads}
    assert abs(heads["L0H1"].direct.value) < 1e-12 < 1e-4 < abs(heads["L0H1"].removed_mean.value)
    assert abs(heads["L0H3"].direct.value) > 1e-3
    assert abs(heads["L0H3"].removed_mean.value) < 1e-9
    curves = {curve.ranking: curve for curve in found.faithfulness.rankings}
    assert "first_order" not in curves  # a logit has no lengths
    # One pair of the twelve is lost to the decoy; with no direct part, L0H1 ties with five others.
    assert curves["direct"].roc == pytest.approx((5 + 2.5) / 12, abs=0.2)
    for name in ("removed_mean", "resampled"):
        assert curves[name].roc == 1.0
        assert curves[name].absolute[2] == pytest.approx(1.0, abs=1e-9)  # two heads do it all
        assert curves[name].cmd.value < curves["direct"].cmd.value
    assert curves["removed_mean"].cmd_p < 0.2
    with pytest.raises(InputError, match="L7H0: there is no layer 7"):
        headscope.attribute(circuit, A, circuit="L7H0", validate=False)


# --- sets of heads --------------------------------------------------------------------------------


class Margins:
    """Margins by set, in place of a model."""

    def __init__(self, margins):
        self.of = {frozenset(heads): margin for heads, margin in margins.items()}

    def measure(self, sets, left=None, base=()):
        return np.array([self.of[frozenset(heads)] for heads in sets])


def test_heads_that_are_not_needed_are_put_back():
    a = (0, 0)
    b = (0, 1)
    c = (1, 0)
    margins = {(): 1.0, (a,): 0.4, (b,): 0.6, (c,): 0.7, (a, b): 0.2, (a, c): 0.3, (b, c): -0.1}
    found = search(Margins({**margins, (a, b, c): -0.2}), [a, b, c], 3)
    assert found.chosen == (a, b, c)
    assert found.heads == (b, c)
    assert found.margins == (1.0, 0.4, 0.2, -0.2)
    assert (found.margin, found.put_back) == (-0.1, (0.7, 0.6))
    assert found.reversed
    kept = search(Margins({**margins, (b, c): 0.1, (a, b, c): -0.2}), [a, b, c], 3)
    assert kept.heads == kept.chosen == (a, b, c)
    assert kept.put_back == (0.1, 0.3, 0.2)
    short = search(Margins(margins), [a, b, c], 2)
    assert (short.heads, short.margin, short.put_back) == ((a, b), 0.2, ())
    assert not short.reversed


def test_random_sets_have_as_many_heads_in_the_same_layers():
    heads = list(itertools.product(range(3), range(4)))
    found = [(0, 1), (2, 0), (2, 3)]
    sets = matched_sets(found, heads, 15, seed=2)
    assert len({frozenset(s) for s in sets}) == 15
    assert frozenset(found) not in map(frozenset, sets)
    assert all(sorted(row for row, _ in s) == [0, 2, 2] for s in sets)
    assert len(matched_sets(found, heads, 1000, seed=2)) == 4 * 6 - 1  # all that there are
    assert matched_sets([(1, i) for i in range(4)], heads, 5, seed=2) == []


def test_other_triples_have_the_same_margin(bert):
    plain = Plain(bert)
    words = ("cat", "dog", "mat", "house", "red", "big")
    lines = [f"the {a} saw a {b}" for a, b in itertools.permutations(words, 2)]
    found = headscope.attribute(
        bert, A, B, against=C, calibration=lines, most=2, validate=False
    ).reversal
    second, third = (C, B) if found.swapped else (B, C)
    margin = plain.cosine((A, second)) - plain.cosine((A, third))
    assert found.margins[0] == pytest.approx(margin, abs=1e-9)
    assert found.others
    assert all(abs(other.margin - margin) <= 0.2 * margin for other in found.others)
    gone = {(int(name[1]), int(name[3])) for name in found.heads}
    left = plain.at_mean(lines)
    at_mean = plain.cosine((A, second), left, gone) - plain.cosine((A, third), left, gone)
    assert found.margin_mean == pytest.approx(at_mean, abs=1e-9)
    assert len(found.margins_resampled) == 8
