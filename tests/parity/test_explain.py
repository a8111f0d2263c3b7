"""``explain`` on every kind of family: plain loops give the same numbers, wrong ones are caught."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny
from numpy.typing import NDArray
from tiny_models import VOCABULARY, tiny_bert, tiny_tokenizer
from torch import Tensor

import headscope
from headscope.analyses.explain import measure
from headscope.analyses.explain.measure import links
from headscope.analyses.explain.result import ExplainResult
from headscope.core.errors import ValidationFailedError
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.loaded import LoadedModel

SENTENCE = "the cat sat on the mat, dogs ran"
Array = NDArray[np.float64]


def loaded(name: str) -> LoadedModel:
    return headscope.wrap(tiny(name, vocab_size=len(VOCABULARY)), tiny_tokenizer(38))


def explained(model: LoadedModel, **options: Any) -> ExplainResult:
    return headscope.explain(model, SENTENCE, validate=False, **options)


def numbers(result: ExplainResult, step: str, name: str) -> Array:
    measured = result.step(step)
    return np.array(measured.matrix(name).values, dtype=float)


class Slow:
    """One layer of BERT in plain numpy, from the checkpoint's own tensors, one head at a time."""

    def __init__(self, model: LoadedModel, layer: int, head: int) -> None:
        weights = {k: v.double().numpy() for k, v in model.model.state_dict().items()}
        self.weight = lambda name: weights[f"encoder.layer.{layer}.{name}"]
        ids = model.tokenizer(SENTENCE, return_tensors="pt")
        with torch.no_grad():
            states = model.model(**ids, output_hidden_states=True).hidden_states
        self.x = states[layer][0].double().numpy()
        self.after = states[layer + 1][0].double().numpy()
        self.n = len(self.x)
        self.d_head = 8
        self.n_heads = self.x.shape[1] // self.d_head
        self.head_rows = slice(head * self.d_head, (head + 1) * self.d_head)

    def projected(self, name: str) -> Array:
        return self.x @ self.weight(f"attention.self.{name}.weight").T + self.weight(
            f"attention.self.{name}.bias"
        )

    def pattern(self, cut: slice, scale: float, seen: Callable[[int, int], bool]) -> Array:
        q = self.projected("query")[:, cut]
        k = self.projected("key")[:, cut]
        weights = np.zeros((self.n, self.n))
        for i in range(self.n):
            sizes = [math.exp(scale * q[i] @ k[j]) if seen(i, j) else 0.0 for j in range(self.n)]
            weights[i] = [size / sum(sizes) for size in sizes]
        return weights

    def z(self, cut: slice) -> Array:
        pattern = self.pattern(cut, self.d_head**-0.5, lambda i, j: True)
        return pattern @ self.projected("value")[:, cut]

    def norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(1, keepdims=True)
        spread = np.sqrt((centred**2).mean(1, keepdims=True) + 1e-12)
        return centred / spread * self.weight(f"{name}.weight") + self.weight(f"{name}.bias")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return headscope.load(str(tiny_bert(tmp_path_factory.mktemp("m") / "bert")))


def test_every_step_is_what_a_slow_program_says(bert):
    layer = 1
    head = 2
    result = explained(bert, layer=layer, head=head)
    slow = Slow(bert, layer, head)
    cut = slow.head_rows
    scale = slow.d_head**-0.5

    def same(step: str, name: str, expected: Array) -> None:
        # Kept with four digits.
        np.testing.assert_allclose(numbers(result, step, name), expected, rtol=6e-4, atol=2e-5)

    same("input", "x", slow.x)
    same("qkv", "q", slow.projected("query")[:, cut])
    same("qkv", "k", slow.projected("key")[:, cut])
    same("qkv", "v", slow.projected("value")[:, cut])
    products = slow.projected("query")[:, cut] @ slow.projected("key")[:, cut].T
    same("scores", "q k^T", products)
    same("scores", "scores", products * scale)
    same("scores", "sequence scale", slow.pattern(cut, slow.n**-0.5, lambda i, j: True))
    same("mask", "other direction", slow.pattern(cut, scale, lambda i, j: j <= i))
    same("softmax", "pattern", slow.pattern(cut, scale, lambda i, j: True))
    same("z", "z", slow.z(cut))
    W_O = slow.weight("attention.output.dense.weight").T
    starts = range(0, slow.n_heads * slow.d_head, slow.d_head)
    head_outputs = [slow.z(slice(s, s + slow.d_head)) @ W_O[s : s + slow.d_head] for s in starts]
    b_O = slow.weight("attention.output.dense.bias") + np.zeros_like(slow.x)
    out = sum(head_outputs) + b_O
    same("mix", "z W_O", head_outputs[head])
    same("mix", "output", out)
    rows = []
    for added in [*head_outputs, b_O]:
        share = (added * out).sum() / (out**2).sum()
        size = np.sqrt((added**2).sum() / (out**2).sum())
        rows.append([share, size])
    same("mix", "heads", np.array(rows))
    same("skip", "x + attention", slow.x + out)
    y = slow.norm(slow.x + out, "attention.output.LayerNorm")
    same("layernorm", "LayerNorm", y)
    gelu = np.vectorize(lambda t: 0.5 * t * (1 + math.erf(t / math.sqrt(2))))
    hidden = gelu(
        y @ slow.weight("intermediate.dense.weight").T + slow.weight("intermediate.dense.bias")
    )
    network = hidden @ slow.weight("output.dense.weight").T + slow.weight("output.dense.bias")
    same("ffn", "layer output", slow.norm(y + network, "output.LayerNorm"))
    np.testing.assert_allclose(slow.norm(y + network, "output.LayerNorm"), slow.after, atol=1e-5)


#: Steps, where LayerNorms stand, how positions come in, whether the future is hidden, and what the
#: sentences on what is left out speak of.
EXPECTED = {
    "roberta-prelayernorm": (12, "pre", "", False, ()),
    "mpnet": (12, "post", "bias", False, ()),
    "squeezebert": (9, "", "", False, ("squeezebert",)),
    "eurobert, shared keys": (9, "", "rotated", False, ("eurobert",)),
    "xlm, causal": (12, "post", "", True, ()),
    "gpt2": (12, "pre", "", True, ()),
    "mbart": (12, "pre", "", False, ("decoder",)),
    "t5": (9, "", "bias", False, ("decoder", "t5")),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_each_family_is_explained_as_far_as_its_layer_is_known(name):
    result = explained(loaded(name))
    steps, norm, positions, causal, left_out = EXPECTED[name]
    assert (len(result.steps), result.layer_norm) == (steps, norm)
    assert (result.positions, result.causal) == (positions, causal)
    assert len(result.left_out) == len(left_out)
    for text, word in zip(result.left_out, left_out, strict=True):
        assert word in text
    assert [step.number for step in result.steps] == list(range(1, steps + 1))
    for step in result.steps:
        assert all(check.max_abs <= check.tolerance for check in step.checks), step.key
    checked = {step.key for step in result.steps if step.checks}
    assert checked == {step.key for step in result.steps} - {"input", "weights"}
    pattern = numbers(result, "softmax", "pattern")
    np.testing.assert_allclose(pattern.sum(1), 1, atol=1e-3)
    assert (np.triu(pattern, 1) == 0).all() == causal
    other = numbers(result, "mask", "other direction")
    assert (np.triu(other, 1) == 0).all() == (not causal)


def _reordered(weights: Callable[..., Any]) -> Callable[..., Any]:
    return lambda site: replace(weights(site), W_O=weights(site).W_O.flip(0))


#: What is spoilt, where, and what is said of it.
WRONG: dict[str, tuple[Any, str, Callable[..., Any], str]] = {
    "scale": (
        AttentionSite,
        "scale",
        lambda scale: property(lambda site: scale.fget(site) * 1.01),
        r"Step 5 of explain \(scores of all heads\)",
    ),
    "mask": (
        measure,
        "masked_softmax",
        lambda function: lambda scores, mask=None: function(scores),
        r"Step 6 of explain \(pattern of all heads with 2 positions",
    ),
    # Heads in another order: what each adds is no longer its own.
    "order of heads": (AttentionSite, "weights", _reordered, "Step 9 of explain"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_mechanism_is_caught_at_its_step(fault, bert, monkeypatch):
    module, name, spoil, said = WRONG[fault]
    monkeypatch.setattr(module, name, spoil(getattr(module, name)))
    with pytest.raises(ValidationFailedError, match=said):
        explained(bert)


def test_the_chosen_head_links_words_best(bert):
    result = explained(bert)
    best = max(result.heads, key=lambda head: head.link)
    assert (result.chosen, result.layer, result.head) == (True, best.layer, best.head)


def test_a_sentence_that_fills_the_model_is_explained_without_padding(tmp_path):
    model = headscope.load(str(tiny_bert(tmp_path / "short", max_position_embeddings=8)))
    result = headscope.explain(model, "the cat sat on the mat", validate=False)
    assert len(result.tokens) == 8
    assert "Padding is left out" in result.left_out[-1]
    mask = result.step("mask")
    assert (mask.numbers["pads"], mask.checks) == (0, ())


# --- numbers on patterns and sums made by hand ----------------------------------------------------

N = 6
WORDS = torch.tensor([False, True, True, True, True, False])


def looking(*keys: int) -> Tensor:
    """A pattern whose query i puts all its weight on keys[i]."""
    return torch.eye(N)[list(keys)]


def test_links_prefers_a_word_of_ones_own_to_everything_duller():
    linking = looking(0, 3, 4, 1, 2, 5)  # each word looks at another one, two away
    neighbour = looking(0, 0, 1, 2, 3, 4)
    hub = looking(0, 4, 4, 4, 4, 4)
    special = looking(0, 0, 0, 0, 0, 0)
    even = torch.full((N, N), 1 / N)
    scores = links(torch.stack([linking, neighbour, hub, special, even]), WORDS).tolist()
    # Each word gets 1 from one of four words and 0.25 on average.
    assert scores == pytest.approx([0.75, 0.0, 0.0, 0.0, 0.0])
    # There are no words that are apart.
    for words in (torch.zeros(N, dtype=torch.bool), torch.arange(N) < 2):
        assert not links(torch.softmax(torch.randn(3, N, N), dim=-1), words).any()
