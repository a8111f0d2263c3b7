"""Heads removed one at a time: planted models, and transformers' networks cut by hand."""

import dataclasses
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
    framed_tokenizer,
    tiny_bert,
    tiny_tokenizer,
    translator,
    write_pairs,
)
from transformers import AutoModel

import headscope
from headscope.analyses.classify.causes import CauseSource, with_causes
from headscope.analyses.classify.result import ClassifyResult
from headscope.core.errors import CorpusError, InputError
from headscope.core.progress import silent
from headscope.models.surgery.output_maps import less_random_write, output_map
from headscope.stats.statistics import joint_mean

LINES = [
    *SOURCES,
    *OTHERS,
    *("the big dog sat", "a red mat is in it", "she saw the house and he ran", "cat and dog"),
]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    path.write_text("\n".join(LINES) + "\n")
    return path


def classified(model: Any, text: Path, **options: Any) -> ClassifyResult:
    given = {"ablate": True, "data": text, "validate": False, "limit": 8, **options}
    return headscope.classify(model, text, **given)


def dense_of(network: Any) -> list[torch.nn.Linear]:
    return [layer.attention.output.dense for layer in network.encoder.layer]


@torch.no_grad()
def planted(folder: Path) -> Any:
    """One head carries all that attention does (L1H2); another writes a constant (L0H1)."""
    loaded = headscope.load(str(tiny_bert(folder)))
    carrier, constant = loaded.sites[1], loaded.sites[0]
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
    result = classified(planted(tmp_path), text)
    losses = {head.name: head.cause for head in result.heads if head.cause}
    assert len(losses) == 8
    carrier, constant = losses.pop("L1H2"), losses.pop("L0H1")
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


def cut(folder: Path, row: int, head: int, left: torch.Tensor) -> Any:
    """Read the network by transformers, and put ``left`` in the place of one head's z."""
    network = AutoModel.from_pretrained(folder).eval()

    def replace(_: Any, args: Any) -> Any:
        z = args[0].clone()
        z[..., 8 * head : 8 * head + 8] = left.to(z)
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
    for kept, dense in zip(seen, dense_of(plain), strict=True):
        dense.register_forward_pre_hook(lambda _, args, kept=kept: kept.append(args[0][0]))
    for line in source.calibration.first:
        pooled(plain, line)
    means = [torch.cat(kept).double().mean(0) for kept in seen]
    for row, head in ((0, 0), (1, 3)):
        cause = result.heads[4 * row + head].cause
        wanted = {"zero": torch.zeros(8), "mean": means[row][8 * head : 8 * head + 8]}
        for name, left in wanted.items():
            network = cut(folder, row, head, left)
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
    found = [head.cause for head in result.heads if head.cause]
    measured = sum(cause.zero.value for cause in found)
    # Along random directions: the sum over heads and sentences is right to some 20%.
    assert sum(cause.zero_estimate for cause in found) == pytest.approx(measured, rel=0.4)
    assert result.causes.estimate == "squared"


def test_a_mean_over_rotations_errs_as_examples_and_rotations_do():
    """A planted loss with both errors: its interval covers it, for one head and for forty."""
    rng = np.random.default_rng(0)
    runs, heads, rotations, n = 12, 40, 5, 60
    missed = any_missed = 0
    for _ in range(runs):
        inside = []
        for _ in range(heads):
            shared = rng.normal(0, 1.0, n)  # what examples share over rotations
            drawn = 2.0 + rng.normal(0, 0.2, rotations)  # what a rotation costs
            rows = drawn[:, None] + shared + rng.normal(0, 0.5, (rotations, n))
            half = 1.96 * rows.std(axis=1, ddof=1) / np.sqrt(n)
            found = joint_mean(rows.mean(axis=1).tolist(), half.tolist(), half.tolist(), of=heads)
            missed += not found.interval[0] <= 2.0 <= found.interval[1]
            inside.append(found.all_low <= 2.0 <= found.all_high)
        any_missed += not all(inside)
    assert missed <= stats.binom.ppf(0.999, runs * heads, 0.06)
    assert any_missed <= stats.binom.ppf(0.999, runs, 0.07)
    same = joint_mean([1.0] * 5, [0.5] * 5, [0.25] * 5, of=72)  # rotations that agree
    assert same.interval == pytest.approx((0.5, 1.25))
    assert same.all_low < 0.5 < 1.25 < same.all_high


def test_noise_has_the_size_of_the_head(tmp_path):
    loaded = headscope.load(str(tiny_bert(tmp_path)))
    site = loaded.sites[1]
    own, other = output_map(site), less_random_write(site, 2, torch.Generator().manual_seed(0))
    taken = (own.W - other.W)[16:24].double()
    W = own.W[16:24].double()
    torch.testing.assert_close(taken @ taken.t(), W @ W.t(), rtol=1e-4, atol=1e-6)
    assert float((taken * W).sum() / (W * W).sum()) < 0.5  # another direction
    untouched = torch.ones(32, dtype=torch.bool)
    untouched[16:24] = False
    torch.testing.assert_close(other.W[untouched], own.W[untouched], rtol=0, atol=0)
    torch.testing.assert_close(other.b, own.b, rtol=0, atol=0)


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
    found = with_causes(labelled, loaded, source, silent)
    test = next(t for t in found.causes.tests if (t.role, t.removal) == ("any", "zero"))
    assert test.verdict == "costs more"
    assert found.causes.rotations >= 5
    cause = found.heads[5].cause
    assert cause.beyond_noise.value == pytest.approx(cause.zero.value - cause.noise.value, abs=1e-6)
    assert all(torch.equal(before[name], t) for name, t in loaded.model.state_dict().items())


def test_labels_give_a_first_order_estimate(tmp_path):
    folder = tiny_bert(tmp_path / "model", task_head="classification", num_labels=2)
    rows = [f"{line}\t{i % 2}" for i, line in enumerate(LINES)]
    (tmp_path / "rows.tsv").write_text("sentence\tlabel\n" + "\n".join(rows) + "\n")
    given = {"task": "classification", "data": tmp_path / "rows.tsv"}
    result = classified(str(folder), tmp_path / "rows.tsv", **given, ablate_limit=20)
    assert (result.causes.metric, result.causes.estimate) == ("accuracy", "first-order")
    assert all(np.isfinite(h.cause.zero_estimate) for h in result.heads if h.cause)


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
    found = [h.cause for h in sentences.heads if h.cause]
    assert any(abs(c.zero.value - c.mean.value) > 1e-4 for c in found)
    with pytest.raises(InputError, match="runs the encoder"):
        classified(loaded, path, data=text, stack="cross")


def test_too_few_examples_are_refused(tmp_path):
    (tmp_path / "few.txt").write_text("one line\nanother\nthird\n")
    with pytest.raises(CorpusError, match="four different ones or more"):
        CauseSource.read("fidelity", tmp_path / "few.txt", 64, 0)
