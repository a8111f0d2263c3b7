"""What no other test saw the lack of: each held against a fault of tests/bench/mutants.py."""

import numpy as np
import pytest
import torch
from families import tiny
from hand_made import encode
from judging import judged
from result_files import INSIGHTS, changed
from scipy import stats
from tiny_models import tiny_tokenizer

import headscope
from headscope.analyses.classify.cross import CrossHeads
from headscope.analyses.classify.rows import RowReducer, RowSummary
from headscope.analyses.classify.sums import HeadMeasures
from headscope.analyses.classify.syntactic import Syntactic
from headscope.analyses.classify.two_halves import SyntacticTest, judge_relations
from headscope.artefacts.onnx_graph import INPUTS
from headscope.artefacts.runtime_files import OnnxFile
from headscope.attention import masked_softmax, with_bias
from headscope.core.activations import Activations
from headscope.core.roles import Thresholds
from headscope.data.sentences import Sentence
from headscope.models.run.intervene import gated
from headscope.models.surgery.output_maps import make_permanent
from headscope.reports.compare import unlike
from headscope.reports.reading import results_of
from headscope.stats.statistics import crossed_mean, finite


@pytest.mark.parametrize("mean", [0.1, -0.1])
def test_an_alignment_may_lie_on_either_side_of_zero(mean):
    """The p-value of the order has two tails: which way a head reads is not said beforehand."""
    pairs = 50
    deviation = 0.4
    sums = CrossHeads(1, 1)
    for counted in (sums.units, sums.sampled, sums.queries, sums.queries_squared):
        counted += pairs
    quantity = CrossHeads.quantities.index("alignment")
    sums.sums[..., quantity] = sums.products[..., quantity] = pairs * mean
    sums.squares[..., quantity] = (pairs - 1) * deviation**2 + pairs * mean**2
    alignment = judged(sums, "cross")[0].alignment
    assert alignment is not None
    expected = 2 * stats.t.sf(abs(mean) / (deviation / np.sqrt(pairs)), pairs - 1)
    assert alignment.p_adjusted == pytest.approx(expected)


def test_a_bias_is_added_to_the_numbers_of_a_mask():
    """A mask may hold finite numbers beside those that forbid, and a bias does not replace them."""
    mask = torch.tensor([[0.0, -1.5, -torch.inf], [2.0, torch.finfo(torch.float32).min, 0.25]])
    bias = torch.tensor([[0.5, 3.0, 1.0], [-1.0, 4.0, 0.0]])
    expected = torch.softmax(mask + bias, dim=-1)
    pattern = masked_softmax(torch.zeros(2, 3), with_bias(mask, bias))
    torch.testing.assert_close(pattern, expected)
    assert bool((pattern[0, 2] == 0) & (pattern[1, 1] == 0))


def test_an_interval_over_sequences_and_draws_allows_for_both():
    """The squares of both half widths add up, each Student's over its own factor."""
    random = np.random.default_rng(0)
    values = random.normal(size=(9, 1)) + random.normal(size=(1, 5))
    half = [stats.t.ppf(0.975, len(x) - 1) * stats.sem(x) for x in (values.mean(1), values.mean(0))]
    assert crossed_mean(values).half_width == pytest.approx(np.hypot(*half))
    assert min(half) > 0.3 * max(half), "neither is lost in the other"


def test_models_differ_by_nature_and_settings_do_not():
    model = {"id": "a", "family": "bert", "weights_sha256": "11", "n_layers": 2}
    first = changed(INSIGHTS, "provenance", to={"model": model, "seed": 0})
    other = changed(first, "provenance", "model", to={**model, "family": "esm", "n_layers": 6})
    assert unlike([results_of(first, "a"), results_of(other, "b")]) == ()
    other = changed(other, "provenance", "seed", to=1)
    (row,) = unlike([results_of(first, "a"), results_of(other, "b")])
    assert (row.what, row.name, row.values) == ("setting", "seed", ("0", "1"))


def _halves() -> Syntactic:
    """Half A hangs every word on the one before, half B, the longer one, on the one behind."""
    corpus = []
    for i in range(20):
        n, step = (5, -1) if i % 2 == 0 else (9, 1)
        heads = tuple(j + step if 0 <= j + step < n else -1 for j in range(n))
        relations = tuple("root" if head < 0 else "obj" for head in heads)
        corpus.append(Sentence(tuple(f"w{j}" for j in range(n)), heads, relations))
    batch = encode(corpus)
    nothing = torch.zeros(0)
    argmax = torch.zeros(batch.size[0], 1, batch.size[1], dtype=torch.int64)
    sums = Syntactic(1, 1)
    sums.update(RowSummary(*[nothing] * 5, argmax, argmax), batch)
    return sums


def _judged(sums: Syntactic) -> SyntacticTest:
    limits = Thresholds(min_trials=1)
    tests = judge_relations(sums, np.zeros_like(sums.hits), np.ones((1, 1), bool), limits)
    by_name = {(test.relation, test.direction): test for test in tests}
    return by_name["obj", "dep->head"]


def test_what_is_confirmed_is_compared_with_the_offset_of_the_other_half():
    test = _judged(_halves())
    assert test.offset == 1
    rates = [counts.rates["offset"].item() for counts in (test.overall, test.chosen, test.held_out)]
    assert rates == pytest.approx([80 / 120, 1.0, 0.0])


@pytest.mark.parametrize(("hits", "selected"), [(17, False), (18, True)])
def test_an_accuracy_that_reaches_the_margin_on_paper_is_selected(hits, selected):
    """Of 40 trials of half A the best offset hits 14: 18 hits are 0.10 more, but for rounding."""
    sums = _halves()
    name = (0, "obj", "dep->head")
    relation = list(sums.relations.names).index(name)
    sums.wordless[relation] = 0
    sums.hits[relation] = hits
    for offset_index, key in enumerate(sums.offsets.names):
        if key[:3] == name:
            sums.offset_trials[offset_index] = 14 if key[3] == -1 else 0
    assert bool(_judged(sums).selected[0, 0]) is selected


def test_the_best_of_ten_offsets_is_tested_as_one_of_ten():
    sums = HeadMeasures(1, 1)
    sums.positional.queries += 40
    sums.positional.hits[0, 0, 4] = 20
    sums.positional.content += 400
    sums.positional.chance += 120.0
    positional = judged(sums)[0].positional
    assert positional is not None
    assert positional.p_adjusted == pytest.approx(10 * stats.binom.sf(19, 40, 0.3))


def test_where_no_query_has_a_target_no_offset_is_the_best():
    positional = judged(HeadMeasures(1, 1))[0].positional
    assert positional is not None
    assert (positional.score.value, positional.offset, positional.chance) == (None, None, None)


@pytest.mark.parametrize(("uniform", "roles"), [(0.45, ("rare",)), (0.52, ())])
def test_a_rare_word_head_gains_on_uniform_attention(uniform, roles):
    """Of 50 sentences with 2 queries 10 have two hits and 40 one: well above chance, 0.2."""
    sums = HeadMeasures(1, 1)
    rare = sums.rare
    expected = 2 * np.array([0.2, uniform])
    for name, value in {"units": 50, "sampled": 50, "queries": 100, "queries_squared": 200}.items():
        vars(rare)[name] += value
    hits = np.repeat([2, 1], [10, 40])
    rare.uniform += 50 * expected
    for i, gain in enumerate((hits, hits, *(hits - of_sentence for of_sentence in expected))):
        rare.sums[..., i] += gain.sum()
        rare.squares[..., i] += (gain**2).sum()
        rare.products[..., i] += 2 * gain.sum()
    head = judged(sums)[0]
    assert head.roles == roles
    assert head.rare is not None
    assert head.rare.p_adjusted < 0.01


@pytest.mark.parametrize(("tokens", "long"), [(19, None), (20, 1.0), (21, 1.0)])
def test_a_row_of_twenty_keys_is_a_long_one(tokens, long):
    """Beside it a sentence of one word, whose only query hits by chance for sure."""
    batch = encode([Sentence(tuple("w" * n), None, None) for n in (tokens - 2, 1)])
    sums = HeadMeasures(1, 1)
    reducer = RowReducer(1, 1, sums.update)
    reducer.start(batch)
    pattern = torch.full((2, 1, tokens, tokens), 1 / tokens, dtype=torch.float64)
    rows = slice(0, 2)
    heads = slice(0, 1)
    reducer.observe(Activations("encoder", 0, 0, rows, heads, 1, *[pattern] * 5))
    reducer.finish("encoder", 0)
    assert (float(sums.positional.chance), int(sums.positional.content)) == (
        pytest.approx(2.0),
        tokens - 1,
    )
    mean = sums.profile.mean("long_entropy")[0, 0]
    assert finite(mean) == (None if long is None else pytest.approx(long))


def test_sentences_of_the_fit_are_not_measured():
    """The second half repeats three sentences of the first, in other letters."""
    words = [("the", "dog", "saw", word) for word in ("a", "cat", "mat", "she", "ran", "on", "and")]
    corpus = []
    for i in range(14):
        text = words[i // 2] if i % 2 == 0 or i < 6 else (*words[i // 2], "red")
        corpus.append(Sentence(tuple(map(str.upper, text)) if i % 2 else text, None, None))
    loaded = headscope.wrap(tiny("bert"), tiny_tokenizer())
    loaded.model.resize_token_embeddings(len(tiny_tokenizer()))
    read = headscope.flow(loaded, corpus, control=False, validate=False).sentences
    assert (read.chosen_on, read.repeated, read.measured_on) == (7, 3, 4)


def test_a_graph_is_fed_which_of_two_texts_a_token_is_of():
    graph = object.__new__(OnnxFile)  # without a file: what it is fed needs none
    graph.inputs = INPUTS
    ids = torch.arange(12).view(2, 6)
    mask = torch.ones_like(ids)
    types = (torch.arange(6) >= 3).long().expand(2, 6)
    for tensor, name in zip((ids, mask, types), INPUTS, strict=True):
        np.testing.assert_array_equal(graph.feed(ids, mask, types)[name], tensor)
    assert not graph.feed(ids, mask)["token_type_ids"].any()


def test_the_gates_made_permanent_are_those_of_the_heads_that_are_left():
    full = headscope.wrap(tiny("bert"))
    gates = torch.linspace(0.5, 2.0, 12).view(3, 4)
    gates[0, 0] = gates[1, 2] = 0.0
    compact = headscope.remove_heads(full, [(0, 0), (1, 2)])
    make_permanent(compact, full, gates, {})
    ids = torch.arange(5, 17).view(2, 6)
    with gated(full, gates) as run, torch.no_grad():
        expected = run(ids, torch.ones_like(ids))[0]
    with torch.no_grad():
        output = compact.run(ids, torch.ones_like(ids))[0]
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=0)
