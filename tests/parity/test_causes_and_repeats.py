"""Heads removed one at a time, attention by norms and on repeated tokens: planted, and by hand."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import tiny
from scipy import stats
from tiny_models import (
    OTHERS,
    SOURCES,
    VOCABULARY,
    framed_tokenizer,
    tiny_bert,
    tiny_tokenizer,
    translator,
    write_pairs,
)
from torch import nn
from transformers import AutoModel

import headscope
from headscope.analyses.classify.optional.causes import CauseSource, with_causes
from headscope.analyses.classify.repeats import PLACES, PrefixWeights
from headscope.analyses.classify.result import ClassifyResult
from headscope.core.activations import Activations
from headscope.core.errors import CorpusError, InputError
from headscope.core.progress import silent
from headscope.models.surgery.output_maps import minus_random_write, output_map
from headscope.stats.statistics import joint_mean

LINES = [
    *SOURCES,
    *OTHERS,
    "the big dog sat",
    "a red mat is in it",
    "she saw the house and he ran",
    "cat and dog",
]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def classified(model: Any, text: Path, **options: Any) -> ClassifyResult:
    settings = {"ablate": True, "data": text, "validate": False, "limit": 8, **options}
    return headscope.classify(model, text, **settings)


def dense_of(network: Any) -> list[torch.nn.Linear]:
    return [layer.attention.output.dense for layer in network.encoder.layer]


@torch.no_grad()
def carrying(folder: Path) -> Any:
    """One head carries all that attention does (L1H2); another writes a constant (L0H1)."""
    loaded = headscope.load(str(tiny_bert(folder)))
    carrier = loaded.sites[1]
    constant = loaded.sites[0]
    for site in loaded.sites:
        keep = {1: 2, 0: 1}[site.row]
        for head in range(site.n_heads):
            if head != keep:
                site.output_weight[:, 8 * head : 8 * head + 8] = 0.0
    constant.projections.v.weight[8:16] = 0.0
    constant.projections.v.bias[8:16] = 1.0
    carrier.output_weight[:, 16:24] *= 3.0
    return loaded


def test_the_head_that_carries_the_output_is_found(tmp_path, text):
    result = classified(carrying(tmp_path), text)
    losses = {head.name: head.cause for head in result.heads if head.cause}
    assert len(losses) == 8
    carrier = losses.pop("L1H2")
    constant = losses.pop("L0H1")
    assert carrier.zero.above
    assert carrier.mean.above
    assert carrier.zero_estimate > 0
    # What is always the same can be replaced by its mean, not by nothing.
    assert constant.zero.above
    assert constant.mean.value == pytest.approx(0.0, abs=1e-6)
    assert constant.mean_estimate == pytest.approx(0.0, abs=1e-6)
    for cause in losses.values():
        for effect in (cause.zero, cause.mean, cause.noise, cause.beyond_noise):
            assert effect.value == pytest.approx(0.0, abs=1e-6)
        assert cause.zero_estimate == pytest.approx(0.0, abs=1e-12)


def cut(folder: Path, row: int, head: int, replacement: torch.Tensor) -> Any:
    """Read the network by transformers, and put ``left`` in the place of one head's z."""
    network = AutoModel.from_pretrained(folder).eval()

    def replace(_: Any, args: Any) -> Any:
        z = args[0].clone()
        z[..., 8 * head : 8 * head + 8] = replacement.to(z)
        return (z,)

    dense_of(network)[row].register_forward_pre_hook(replace)
    return network


def pooled(network: Any, line: str) -> torch.Tensor:
    ids = torch.tensor([tiny_tokenizer()(line).input_ids])
    with torch.no_grad():
        return network(input_ids=ids).last_hidden_state[0].double().mean(0)


def test_losses_are_those_of_networks_cut_by_hand(tmp_path, text):
    folder = tiny_bert(tmp_path, seed=3)
    source = CauseSource.read("fidelity", text, 64, 0)
    assert not set(source.measured.first) & set(source.calibration.first)
    result = classified(folder, text)
    plain = AutoModel.from_pretrained(folder).eval()
    seen: list[list[torch.Tensor]] = [[], []]
    for states, dense in zip(seen, dense_of(plain), strict=True):
        dense.register_forward_pre_hook(lambda _, args, states=states: states.append(args[0][0]))
    for line in source.calibration.first:
        pooled(plain, line)
    means = [torch.cat(states).double().mean(0) for states in seen]
    for row, head in ((0, 0), (1, 3)):
        cause = result.heads[4 * row + head].cause
        replacements = {"zero": torch.zeros(8), "mean": means[row][8 * head : 8 * head + 8]}
        for name, replacement in replacements.items():
            network = cut(folder, row, head, replacement)
            cosines = [
                torch.cosine_similarity(pooled(network, line), pooled(plain, line), dim=0)
                for line in source.measured.first
            ]
            loss = 1 - float(torch.stack(cosines).mean())
            assert getattr(cause, name).value == pytest.approx(loss, abs=2e-6)


def test_the_squared_estimate_is_right_for_a_small_change(tmp_path, text):
    """With W_O of all heads a hundredth, what removal does is nearly linear in the embedding."""
    loaded = headscope.load(str(tiny_bert(tmp_path, seed=1)))
    with torch.no_grad():
        for site in loaded.sites:
            site.output_weight.mul_(0.05)
    result = classified(loaded, text)
    causes = [head.cause for head in result.heads if head.cause]
    measured = sum(cause.zero.value for cause in causes)
    # Along random directions: the sum over heads and sentences is right to some 20%.
    assert sum(cause.zero_estimate for cause in causes) == pytest.approx(measured, rel=0.4)
    assert result.causes.estimate == "squared"


def test_a_mean_over_rotations_errs_as_examples_and_rotations_do():
    """A planted loss with both errors: its interval covers it, for one head and for forty."""
    rng = np.random.default_rng(0)
    runs = 12
    heads = 40
    rotations = 5
    n = 60
    missed = any_missed = 0
    for _ in range(runs):
        inside = []
        for _ in range(heads):
            shared = rng.normal(0, 1.0, n)  # what examples share over rotations
            drawn = 2.0 + rng.normal(0, 0.2, rotations)  # what a rotation costs
            rows = drawn[:, None] + shared + rng.normal(0, 0.5, (rotations, n))
            half = 1.96 * rows.std(axis=1, ddof=1) / np.sqrt(n)
            loss = joint_mean(
                rows.mean(axis=1).tolist(), half.tolist(), half.tolist(), n_means=heads
            )
            missed += not loss.interval[0] <= 2.0 <= loss.interval[1]
            inside.append(loss.all_low <= 2.0 <= loss.all_high)
        any_missed += not all(inside)
    assert missed <= stats.binom.ppf(0.999, runs * heads, 0.06)
    assert any_missed <= stats.binom.ppf(0.999, runs, 0.07)
    same = joint_mean([1.0] * 5, [0.5] * 5, [0.25] * 5, n_means=72)  # rotations that agree
    assert same.interval == pytest.approx((0.5, 1.25))
    assert same.all_low < 0.5 < 1.25 < same.all_high


def test_noise_has_the_size_of_the_head(tmp_path):
    loaded = headscope.load(str(tiny_bert(tmp_path)))
    site = loaded.sites[1]
    full_map = output_map(site)
    other = minus_random_write(site, 2, torch.Generator().manual_seed(0))
    taken = (full_map.W - other.W)[16:24].double()
    W = full_map.W[16:24].double()
    torch.testing.assert_close(taken @ taken.t(), W @ W.t(), rtol=1e-4, atol=1e-6)
    assert float((taken * W).sum() / (W * W).sum()) < 0.5  # another direction
    untouched = torch.ones(32, dtype=torch.bool)
    untouched[16:24] = False
    torch.testing.assert_close(other.W[untouched], full_map.W[untouched], rtol=0, atol=0)
    torch.testing.assert_close(other.b, full_map.b, rtol=0, atol=0)


def test_what_a_role_costs_is_said_and_the_model_left_as_it_was(tmp_path, text):
    """Heads 0 to 3 of every layer do little; the others have a role."""
    loaded = headscope.load(str(tiny_bert(tmp_path, layers=3, heads=8)))
    plain = headscope.classify(loaded, text, validate=False, limit=8)
    with torch.no_grad():
        for site in loaded.sites:
            site.output_weight[:, :32] *= 0.05
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    heads = tuple(
        dataclasses.replace(head, roles=("broad",) if head.head >= 4 else ())
        for head in plain.heads
    )
    labelled = dataclasses.replace(plain, heads=heads)
    source = CauseSource.read("fidelity", text, 64, 0)
    result = with_causes(labelled, loaded, source, silent)
    test = next(t for t in result.causes.tests if (t.role, t.removal) == ("any", "zero"))
    assert test.verdict == "costs more"
    assert result.causes.rotations >= 5
    cause = result.heads[5].cause
    assert cause.beyond_noise.value == pytest.approx(cause.zero.value - cause.noise.value, abs=1e-6)
    assert all(torch.equal(before[name], t) for name, t in loaded.model.state_dict().items())


def test_layers_that_share_a_module_lose_a_head_together(text):
    model = tiny("albert", vocab_size=len(tiny_tokenizer()), initializer_range=0.02)
    result = classified(headscope.wrap(model, tiny_tokenizer(38)), text)
    assert result.heads[1].cause == result.heads[5].cause == result.heads[9].cause is not None
    assert result.causes.tests == ()
    assert "share one module" in result.causes.notes[0]


def test_stacks_of_an_encoder_decoder_model(tmp_path, text):
    network = translator("t5")
    path = write_pairs(tmp_path / "pairs.tsv", [(a, "the cat") for a in SOURCES])
    loaded = headscope.wrap(network, framed_tokenizer("$A [SEP]"), name="t5")
    with_targets = classified(loaded, path, task="seq2seq", data=path)
    assert {h.stack for h in with_targets.heads if h.cause} == {"encoder", "decoder", "cross"}
    # Text runs the encoder only: the other heads are not removed, and nothing is said of them.
    sentences = classified(loaded, path, data=text)
    assert {h.stack for h in sentences.heads if h.cause} == {"encoder"}
    assert len({h.stack for h in sentences.heads}) == 3
    # A mean is left behind by gates, also where T5 has no b_O to keep it in.
    causes = [h.cause for h in sentences.heads if h.cause]
    assert any(abs(c.zero.value - c.mean.value) > 1e-4 for c in causes)
    with pytest.raises(InputError, match="runs the encoder"):
        classified(loaded, path, data=text, stack="cross")


def test_too_few_examples_are_refused(tmp_path):
    (tmp_path / "few.txt").write_text("one line\nanother\nthird\n")
    with pytest.raises(CorpusError, match="four different ones or more"):
        CauseSource.read("fidelity", tmp_path / "few.txt", 64, 0)


# --- attention on repeated tokens -----------------------------------------------------------------


COPY = 5


def test_weights_are_read_where_the_first_copy_stands():
    """[CLS] 1 2 3 4 5 1 2 3 4 5 [SEP]: each query's places, in a loop."""
    n = 2 * COPY + 2
    pattern = torch.rand(3, 2, n, n, generator=torch.Generator().manual_seed(0)).softmax(-1)
    prefix = PrefixWeights(n_layers=1, n_heads=3, sequences=3, start=1, copy=COPY)
    none = torch.empty(0)
    for rows in (slice(0, 2), slice(2, 3)):
        seen = (rows, slice(1, 3), 3, none, none, none, pattern[rows], none)
        prefix.observe(Activations("encoder", 0, 0, *seen))
    for i_target, (name, step) in enumerate(PLACES.items()):
        for sequence in range(3):
            for head in range(2):
                rows = pattern[sequence, head]
                total = [float(rows[i, i - COPY + step]) for i in range(COPY + 2, 2 * COPY)]
                value = prefix.weights[i_target, 0, head + 1, sequence]
                assert value == pytest.approx(np.mean(total)), name
    assert np.isnan(prefix.weights[:, :, 0]).all()


CODE = 32
PLACE = 32


@torch.no_grad()
def induction() -> Any:
    """Two layers: L0H0 writes each token's predecessor beside it, L1H0 looks for its own there.

    L1H1 looks for its own token; L1H2 for the successor's (the mirror image), which L0H1 writes.
    The vector of a token: a code of its identity, its position, the codes of its predecessor and
    of its successor; each block stands twice, with opposite signs, so that the mean is zero.
    """
    n_positions = 64
    d = 2 * (3 * CODE + PLACE)
    sizes = {"hidden_size": d, "num_hidden_layers": 2, "max_position_embeddings": n_positions}
    model = tiny("bert", vocab_size=len(VOCABULARY), initializer_range=0.02, **sizes)
    for parameter in model.encoder.parameters():
        if parameter.dim() == 2:
            parameter.zero_()
    for module in model.modules():  # no biases
        if isinstance(module, nn.Linear):
            module.bias.zero_()
    half = d // 2
    blocks = {
        "own": slice(0, CODE),
        "place": slice(CODE, CODE + PLACE),
        "before": slice(CODE + PLACE, 2 * CODE + PLACE),
        "after": slice(2 * CODE + PLACE, half),
    }

    def fill(rows: torch.Tensor, block: str, values: torch.Tensor) -> None:
        rows[:, blocks[block]] = values
        rows[:, half:][:, blocks[block]] = -values

    words = model.embeddings.word_embeddings.weight
    places = model.embeddings.position_embeddings
    words.zero_(), places.weight.zero_(), model.embeddings.token_type_embeddings.weight.zero_()
    fill(words, "own", torch.randn(len(words), CODE).sign())
    angle = torch.arange(n_positions)[:, None] * (2 * math.pi / n_positions)
    angle = angle * torch.arange(1, PLACE // 2 + 1)
    fill(places.weight, "place", torch.stack([angle.cos(), angle.sin()], -1).flatten(1))

    def attend(layer: int, head: int, query: str, key: str, steps: int = 0) -> None:
        """Let a head look for the key whose block is the query's, turned by so many positions."""
        attention = model.encoder.layer[layer].attention.self
        rows = slice(head * half // 2, head * half // 2 + CODE)
        attention.query.weight[rows, blocks[query]] = 6.0 * _turned(steps)
        attention.key.weight[rows, blocks[key]] = 6.0 * torch.eye(CODE)

    def write(head: int, block: str) -> None:
        """Let a head of the first layer copy the identity of what it sees into a block."""
        attention = model.encoder.layer[0].attention
        rows = slice(head * half // 2, head * half // 2 + CODE)
        attention.self.value.weight[rows, blocks["own"]] = torch.eye(CODE)
        out = attention.output.dense.weight
        out[blocks[block], rows] = torch.eye(CODE)
        out[half:][blocks[block], rows] = -torch.eye(CODE)

    def _turned(steps: int) -> torch.Tensor:
        if not steps:
            return torch.eye(CODE)
        rotation = torch.zeros(CODE, CODE)
        for i in range(PLACE // 2):
            angle = torch.tensor(steps * (i + 1) * 2 * math.pi / n_positions)
            pair = slice(2 * i, 2 * i + 2)
            rotation[pair, pair] = torch.tensor(
                [[angle.cos(), -angle.sin()], [angle.sin(), angle.cos()]]
            )
        return rotation

    attend(0, 0, "place", "place", -1), write(0, "before")
    attend(0, 1, "place", "place", 1), write(1, "after")
    attend(1, 0, "own", "before")
    attend(1, 1, "own", "own")
    attend(1, 2, "own", "after")
    return headscope.wrap(model, tiny_tokenizer(n_positions), name="induction")


def test_a_planted_induction_head_is_found_and_its_mirror_image_too():
    result = headscope.classify(
        induction(), limit=20, prefix_matching=True, control=True, validate=False
    )
    scores = {head.name: head.prefix for head in result.heads if head.prefix}
    expected = {"L1H0": "after", "L1H1": "same", "L1H2": "before"}
    for name, score in scores.items():
        for target in PLACES:
            match = getattr(score, target)
            if expected.get(name) == target:
                # An encoder's token sees its own copy as well: half of the weight goes there.
                assert match.score == pytest.approx(0.5, abs=0.1), name
                assert match.control < 0.05
                assert match.gain.low > 0.35
            else:
                assert match.gain.value < 0.05, (name, target)
            assert match.gain.value == pytest.approx(match.score - match.control)
    # L0H0 always looks one token back, a great weight that repetition does not change.
    assert all(abs(match.gain.value) < 0.02 for match in vars(scores["L0H0"]).values())
    assert max(result.prefix.random_weights.values()) < 0.05


def test_other_stacks_and_short_limits_are_said_not_to_be_testable(tmp_path):
    loaded = headscope.wrap(translator("t5"), tiny_tokenizer(), name="t5")
    pairs = [("the cat sat on it", "the dog"), ("a big red dog ran", "a cat")] * 3
    result = headscope.classify(
        loaded, pairs, stack="decoder", prefix_matching=True, validate=False
    )
    assert result.prefix is None
    assert "encoder" in result.untestable["prefix matching"]
    short = tiny_bert(tmp_path / "short", max_position_embeddings=8)
    result = headscope.classify(
        str(short), ["the cat sat", "a dog"], prefix_matching=True, validate=False
    )
    assert result.untestable["prefix matching"] == "too few tokens"
    assert all(head.prefix is None for head in result.heads)
