"""Heads with another formula: loops over a BERT written out, planted models, every family."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny
from tiny_models import VOCABULARY, tiny_tokenizer
from torch import Tensor

import headscope
from headscope.analyses.linear.view import blocks
from headscope.analyses.symmetric.measure import square_scores
from headscope.analyses.symmetric.run import random_sets
from headscope.attention import attention_pattern
from headscope.core.errors import CorpusError, InputError, UnsupportedModelError
from headscope.core.progress import silent
from headscope.data.corpus import as_plain
from headscope.models.run.formulas import ExchangedHeads, HeadInputs, removed
from headscope.models.run.loaded import LoadedModel
from headscope.session.exchanged_heads import Effects, bootstrapped_mean, text_stack
from headscope.session.pooled_states import PooledStates

LINES = [
    "the cat sat on the mat",
    "he saw a big dog in the red house and ran",
    "a dog",
    "she ran to the house of the cat",
]


def opened(family: str = "bert", dtype: str = "float64", **changes: Any) -> LoadedModel:
    model = tiny(family, dtype, vocab_size=len(VOCABULARY), **changes)
    return headscope.wrap(model, tiny_tokenizer(38))


def covered(name: str) -> LoadedModel:
    return text_stack(opened(name, "float32"), "linear")


def own(inputs: HeadInputs) -> Tensor:
    return attention_pattern(inputs.q, inputs.k, scale=inputs.scale, mask=inputs.mask) @ inputs.v


@pytest.fixture
def one_thread():
    """Run every operator on one thread: SqueezeBERT's convolutions give other bits on two."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.mark.parametrize(
    "name", ["bert", "albert", "t5", "squeezebert", "modernbert", "gpt2", "distilbert", "convbert"]
)
def test_layers_before_the_change_are_as_if_they_had_run(name, one_thread):
    """The output is the same wherever it changes; SqueezeBERT's layers cannot be played back."""
    loaded = covered(name)
    effects = Effects(loaded, as_plain(LINES))
    states = PooledStates(loaded, effects.batches)
    versions = [ExchangedHeads(removed, {site.row: (1,)}) for site in loaded.sites]
    cosines = effects.cosines(versions, silent, "")
    expected = np.array([np.concatenate(states.cosines(version)) for version in versions])
    np.testing.assert_allclose(cosines, expected, rtol=0, atol=1e-12)
    assert (cosines < 1 - 1e-9).any()
    same = [ExchangedHeads(own, {site.row: (0, 2)}) for site in loaded.sites]
    np.testing.assert_allclose(effects.cosines(same, silent, ""), 1.0, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["deberta-v2, as v3", "gpt2", "bart"])
def test_both_commands_say_what_they_leave_out(name):
    loaded = opened(name, "float32")
    symmetric = headscope.symmetric(loaded, LINES)
    linear = headscope.linear(loaded, LINES, control=False)
    assert symmetric.left_out == linear.left_out == loaded.stacks[1:]  # that no text shows
    assert {head.stack for head in (*symmetric.heads, *linear.heads)} == {loaded.stacks[0]}
    assert symmetric.causal == (name == "gpt2")
    assert linear.bias_left_out == ("deberta" in name)
    assert 0 < symmetric.whole["symmetric"].cosine.value < 1
    assert linear.form("linear").whole_scaled.cosine.value < 1


def test_linear_says_that_a_soft_cap_is_lost_and_symmetric_keeps_it():
    loaded = opened("gemma2", "float32")
    linear = headscope.linear(loaded, LINES, control=False)
    assert linear.softcap == 2.0
    shown = " ".join(str(block) for block in blocks(linear))
    assert "bounds its scores by a soft cap of 2 before the softmax" in shown
    assert headscope.linear(opened("gemma", "float32"), LINES, control=False).softcap is None
    # Symmetric scores are bounded too: those of a head that is symmetric already stay as they are.
    site = loaded.sites[0]
    q = torch.randn(1, 4, 5, 8, generator=torch.Generator().manual_seed(0))
    scores, _ = square_scores(q, q, scale=3.0, softcap=site.softcap)
    assert float(scores.abs().max()) <= 2.0


def by_loops(
    model: Any,
    weigh: Callable[[list[list[float]], float], list[list[float]]],
    scales: list[list[float]],
) -> Callable:
    """Run the model with z_i = sum_j weigh(S, c)_ij v_j in every head, one line at a time.

    ``scales`` are c by layer and head.
    """

    layers = [layer.attention.self for layer in model.encoder.layer]

    def attention(module: Any, hidden: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        shape = (hidden.shape[1], 4, 8)
        q = module.query(hidden)[0].view(shape)
        k = module.key(hidden)[0].view(shape)
        v = module.value(hidden)[0].view(shape)
        out = torch.zeros_like(v)
        for h in range(4):
            n = len(q)
            s = [[float(q[i, h] @ k[j, h]) / 8**0.5 for j in range(n)] for i in range(n)]
            weights = weigh(s, scales[layers.index(module)][h])
            for i in range(n):
                for j in range(n):
                    out[i, h] += weights[i][j] * v[j, h]
        return out.flatten(1)[None], None

    def run(ids: Tensor) -> Tensor:
        with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
            for module in layers:
                patch.setattr(module, "forward", attention.__get__(module))
            return model(input_ids=ids).last_hidden_state.mean(1)

    return run


def softmaxed(s: list[list[float]], _: float = 1.0) -> list[list[float]]:
    return [torch.softmax(torch.tensor(row, dtype=torch.float64), 0).tolist() for row in s]


def made_symmetric(s: list[list[float]], _: float = 1.0) -> list[list[float]]:
    n = range(len(s))
    return softmaxed([[(s[i][j] + s[j][i]) / 2 for j in n] for i in n])


def test_all_heads_changed_is_the_model_written_out_in_loops():
    loaded = opened()
    linear = headscope.linear(loaded, LINES, control=False)
    symmetric = headscope.symmetric(loaded, LINES)
    by_head = iter([head.error("linear").scale for head in linear.heads])
    scales = [[next(by_head) for _ in range(4)] for _ in range(3)]
    plain = by_loops(loaded.model, softmaxed, scales)
    lines = [loaded.tokenizer(line, return_tensors="pt").input_ids for line in LINES]
    own_states = [plain(ids) for ids in lines]
    with torch.no_grad():  # the loops themselves are the model
        states = loaded.model(input_ids=lines[0]).last_hidden_state.mean(1)
    torch.testing.assert_close(own_states[0], states, rtol=0, atol=1e-9)
    for estimate, weigh in (
        (linear.form("linear").whole_scaled.cosine, lambda s, c: [[c * x for x in r] for r in s]),
        (symmetric.whole["symmetric"].cosine, made_symmetric),
    ):
        changed = by_loops(loaded.model, weigh, scales)
        expected = [
            float(torch.cosine_similarity(changed(ids), original))
            for ids, original in zip(lines, own_states, strict=True)
        ]
        assert estimate.value == pytest.approx(np.mean(expected), abs=1e-9)
        assert abs(estimate.value) < 0.99


@torch.no_grad()
def test_tied_queries_and_keys_are_as_good_as_no_head_removed():
    loaded = opened()
    for layer in loaded.model.encoder.layer:
        layer.attention.self.key.load_state_dict(layer.attention.self.query.state_dict())
    result = headscope.symmetric(loaded, LINES)
    assert result.whole["removed"].cosine.value < 0.999
    assert result.equivalent_heads.value == pytest.approx(0, abs=1e-6)
    assert all(head.asymmetry.value < 1e-9 for head in result.heads)


def test_sets_of_random_heads_are_what_effects_measure():
    loaded = opened()
    result = headscope.symmetric(loaded, LINES)
    effects = Effects(loaded, as_plain(LINES))
    drawn = random_sets(list(itertools.product(range(3), range(4))), seed=0)
    versions = [ExchangedHeads(removed, heads) for heads in drawn[4]]
    cosines = effects.cosines(versions, silent, "")
    assert result.sets[0].removed.cosine.value == pytest.approx(float(cosines.mean()))
    assert [chosen.heads for chosen in result.sets] == [4, 8]
    assert all(chosen.removed.draws == 5 for chosen in result.sets)
    assert result.whole["symmetric"].draws == 1
    assert result.whole["symmetric"].cosine_std is None
    assert result.whole["noise"].draws == 5
    # Fewer than 8 lines tell no interval.
    assert result.whole["symmetric"].cosine.low is None
    low, high = bootstrapped_mean(np.linspace(0.9, 0.99, 8), 0).interval or (0.0, 0.0)
    assert 0.9 < low < 0.945 < high < 0.99


def test_a_task_stands_beside_the_cosine(tmp_path):
    loaded = opened(dtype="float32")
    data = tmp_path / "lines.txt"
    data.write_text("\n".join(LINES))
    result = headscope.symmetric(loaded, LINES, task="fidelity", data=data)
    assert result.task.baseline.value == pytest.approx(1)
    assert result.whole["symmetric"].metric < 1
    assert result.whole_difference.value == pytest.approx(result.whole["symmetric"].metric - 1)
    linear = headscope.linear(loaded, LINES, task="fidelity", data=data, control=False)
    assert linear.form("linear").whole_scaled.difference.value < 0
    assert linear.mean_output.metric < 1


def test_another_seed_draws_anew_and_one_line_has_no_interval():
    loaded = opened(dtype="float32")
    one = headscope.symmetric(loaded, LINES[:1], seed=3)
    same = headscope.symmetric(loaded, LINES[:1], seed=3)
    other = headscope.symmetric(loaded, LINES[:1], seed=4)
    assert one.whole["symmetric"].cosine.interval is None
    assert one.sets == same.sets != other.sets
    one = headscope.linear(loaded, LINES[:1], control=False)
    assert one.heads[0].coherence.interval is None


def test_what_cannot_be_measured_is_refused():
    loaded = opened(dtype="float32")
    with pytest.raises(InputError, match="name the task too"):
        headscope.linear(loaded, LINES, data="x.csv")
    with pytest.raises(CorpusError, match="limit"):
        headscope.symmetric(loaded, ["the cat " * 40])
    with pytest.raises(InputError, match="tokenizer"):
        headscope.symmetric(headscope.wrap(tiny("bert")), LINES)
    heads = list(itertools.product(["encoder"], range(2), range(4)))
    none = headscope.remove_heads(opened("bart", "float32"), heads)
    for command in (headscope.linear, headscope.symmetric):
        with pytest.raises(UnsupportedModelError, match="no head that reads a text"):
            command(none, LINES)
