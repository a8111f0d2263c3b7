"""Encoder-decoder models without some heads: equal to zeroing by name, saved, generating."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from families import (
    SITES,
    Named,
    batch,
    ids_and_mask,
    opened,
    out_name,
    real,
    run,
    zeroed,
)
from tiny_models import write_translator
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

import headscope
from headscope.core.errors import InputError
from headscope.models.certificate.certificate import validate_model
from headscope.models.run.intervene import gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.copies import removed_heads

STACKS = ("encoder", "decoder", "cross")
#: Some of a layer in every stack, and the first layer of the decoder whole: T5's keeps the table of
#: biases that the other layers use.
SOME: list[Named] = [
    *(("encoder", 1, head) for head in (0, 3)),
    *(("decoder", 0, head) for head in range(4)),
    ("decoder", 2, 1),
    *(("cross", 1, head) for head in (1, 2)),
]


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def own_run(loaded: LoadedModel, whole: Any, implementation: str = "eager") -> Tensor:
    """Run another network of the same family in the model's own way."""
    whole.set_attn_implementation(implementation)
    return run(headscope.wrap(whole), batch(loaded))


def reopened(folder: Path, task_head: str | None = "auto") -> LoadedModel:
    return headscope.load(str(folder), task_head=task_head, need_tokenizer=False, device="cpu")


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_removed_is_zeroed_and_stays_so_when_saved(kind, tmp_path):
    loaded = opened(kind)
    compact = headscope.remove_heads(loaded, SOME)
    expected = own_run(loaded, zeroed(kind, loaded.network, SOME))
    close(run(compact, batch(compact)), expected)
    with gated(compact) as through_ours:
        close(through_ours(**batch(compact))[0][real(batch(compact))], expected)
    for site in compact.sites:
        gone = {head for stack, layer, head in SOME if (stack, layer) == (site.stack, site.layer)}
        assert {*range(4)} - {*site.head_ids} == gone
        out = compact.network.get_parameter(out_name(kind, site.stack, site.layer))
        assert out.shape == (32, 8 * (4 - len(gone)))
    headscope.save(compact, tmp_path / "compact")
    headscope.save_dense(compact, tmp_path / "dense")
    for name, task_head in itertools.product(("compact", "dense"), ("auto", None)):
        again = reopened(tmp_path / name, task_head)
        assert again.task_head == ("seq2seq" if task_head else None)
        with torch.no_grad():
            close(again.run(**batch(again))[0][real(batch(again))], expected)
        result = validate_model(again)
        assert result.passed, result.reasons
        if name == "compact":
            assert [s.head_ids for s in again.sites] == [s.head_ids for s in compact.sites]
    # Others need nothing of ours to open the dense one.
    close(own_run(loaded, AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "dense")), expected)

    # Cut once more, and saved over the folder that it was read from.
    more: list[Named] = [("encoder", 1, 1), ("decoder", 2, 3), ("cross", 0, 0)]
    once = reopened(tmp_path / "compact")
    headscope.save(headscope.remove_heads(once, more), tmp_path / "compact")
    twice = reopened(tmp_path / "compact")
    close(run(twice, batch(twice)), own_run(loaded, zeroed(kind, loaded.network, [*SOME, *more])))
    assert twice.sites[1].head_ids == (2,)
    assert twice.origin["id"] == f"tiny {kind}"
    assert validate_model(twice).passed
    with pytest.raises(InputError, match="cross:L0H0 has been removed"):
        headscope.remove_heads(twice, [("cross", 0, 0)])


@pytest.mark.parametrize(
    ("kind", "stack"), [("bart", "encoder"), ("t5", "decoder"), ("t5", "cross")]
)
def test_a_layer_a_stack_and_heads_of_a_view_may_go(kind, stack):
    loaded = opened(kind)
    layers = [layer for name, layer in SITES if name == stack]
    for gone in ([0], layers):
        heads = [(stack, layer, head) for layer in gone for head in range(4)]
        compact = headscope.remove_heads(loaded, heads)
        for implementation in ("eager", "sdpa"):
            expected = own_run(loaded, zeroed(kind, loaded.network, heads), implementation)
            compact.network.set_attn_implementation(implementation)
            close(run(compact, batch(compact)), expected)
        assert validate_model(compact).passed, validate_model(compact).reasons
    # Heads of a view are named by layer and head, or in full.
    heads_of_view = [(0, 1), (1, 0), (1, 3)]
    named = [(stack, *head) for head in heads_of_view]
    expected = own_run(loaded, zeroed(kind, loaded.network, named))
    for names in (heads_of_view, named):
        view = headscope.remove_heads(loaded.only(stack), names)
        assert view.stacks == (stack,)
        assert removed_heads(view) == tuple(heads_of_view)
        close(run(view.whole, batch(loaded)), expected)


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_gates_of_a_view_are_those_of_its_rows_and_so_are_their_gradients(kind):
    loaded = opened(kind)
    whole = torch.rand(8, 4, generator=torch.Generator().manual_seed(4))
    for stack in STACKS:
        rows = [row for row, (name, _) in enumerate(SITES) if name == stack]
        alone = torch.ones(8, 4)
        alone[rows] = whole[rows]
        with gated(loaded.only(stack), whole[rows]) as through_ours:
            views = through_ours(**batch(loaded))
        with gated(loaded, alone) as through_ours:
            every = through_ours(**batch(loaded))
        torch.testing.assert_close(views, every, rtol=0, atol=0)
    scaled = zeroed(kind, loaded.network, [])
    with torch.no_grad():
        for (stack, layer), factors in zip(SITES, whole, strict=True):
            scaled.get_parameter(out_name(kind, stack, layer)).mul_(factors.repeat_interleave(8))
    with gated(loaded, whole) as through_ours:
        close(through_ours(**batch(loaded))[0][real(batch(loaded))], own_run(loaded, scaled))

    # A gate scales a head's columns of W_O: d loss / d gate is the sum of W_O * d loss / d W_O.
    gates = torch.ones(8, 4, requires_grad=True)
    weights = torch.linspace(-1, 1, 32)
    with gated(loaded, gates, gradients=True) as through_ours:
        hidden, _ = through_ours(**batch(loaded))
        (found,) = torch.autograd.grad((hidden[real(batch(loaded))] @ weights).sum(), gates)
    own = loaded.network
    own.set_attn_implementation("eager")
    out = own(**batch(loaded), output_hidden_states=True)
    (out.decoder_hidden_states[-1][real(batch(loaded))] @ weights).sum().backward()
    for row, site in enumerate(SITES):
        W_O = own.get_parameter(out_name(kind, *site))
        by_head = (W_O * W_O.grad).detach().sum(0).view(4, 8).sum(1)
        torch.testing.assert_close(found[row], by_head, rtol=1e-3, atol=1e-3)
    assert bool((found.abs() > 1e-3).any(1).all())


@pytest.mark.parametrize(
    ("view", "heads", "words"),
    [
        ("all", [(0, 1)], r"several stacks: name a head as \(stack, layer, head\)"),
        ("all", [("cross", 0, 4)], "no head cross:L0H4.*layers 0 to 2"),
        ("all", [(stack, n, h) for stack, n in SITES for h in range(4)], "every head"),
        ("cross", [("encoder", 0, 0)], "no stack 'encoder'; it has cross"),
    ],
)
def test_heads_that_cannot_go(view, heads, words):
    with pytest.raises(InputError, match=words):
        headscope.remove_heads(opened("bart").only(view), heads)


def test_a_view_is_saved_with_the_stacks_it_leaves_out(tmp_path):
    loaded = opened("t5")
    compact = headscope.remove_heads(loaded.only("cross"), [(0, 1), (2, 0)])
    headscope.save(compact, tmp_path / "x")
    manifest = json.loads((tmp_path / "x" / "headscope.json").read_text())
    lost = {("cross", 0): 1, ("cross", 2): 0}
    for site, part in zip(SITES, manifest["attention"], strict=True):
        kept = [head for head in range(4) if head != lost.get(site)]
        assert (part["stack"], part["layers"], part["kept"]) == (site[0], [site[1]], kept)
    assert "pruned_heads" not in json.loads((tmp_path / "x" / "config.json").read_text())
    again = reopened(tmp_path / "x")
    close(run(again, batch(again)), run(compact.whole, batch(loaded)))


def generated(model: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Return ten tokens a sentence, and what each of them was chosen by."""
    ids, mask = ids_and_mask((9, 5, 7), 1)
    options |= {"max_new_tokens": 10, "min_new_tokens": 10, "num_beams": 1, "do_sample": False}
    options |= {"return_dict_in_generate": True, "output_logits": True}
    out = model.generate(input_ids=ids, attention_mask=mask, **options)
    return out.sequences, torch.stack(out.logits)


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_a_compact_model_generates_what_the_zeroed_one_does(kind):
    """With and without a cache of keys and values, whose shape a removed head changes."""
    # transformers makes T5's cache as long as its encoder
    loaded = opened(kind, "float64", **({"num_layers": 3} if kind == "t5" else {}))
    for heads in (SOME, [head for head in SOME if head[:2] != ("decoder", 0)]):
        compact = headscope.remove_heads(loaded, heads)
        tokens, logits = generated(zeroed(kind, loaded.network, heads), use_cache=False)
        assert float((generated(loaded.network)[1] - logits).abs().max()) > 1e-2  # they matter
        for cached in (True, False):
            found = generated(compact.network, use_cache=cached)
            assert torch.equal(found[0], tokens)
            # (T5's norms are computed in float32, whatever its weights are)
            torch.testing.assert_close(found[1], logits, rtol=0, atol=1e-5)
    assert loaded.network.config.use_cache is not False


def test_stacks_may_have_different_numbers_of_heads(tmp_path):
    loaded = opened("bart", encoder_attention_heads=2, decoder_attention_heads=4)
    assert [site.n_heads for site in loaded.sites] == [2] * 2 + [4] * 6
    compact = headscope.remove_heads(
        loaded, [("encoder", 0, 1), ("decoder", 1, 0), ("cross", 2, 1)]
    )
    headscope.save(compact, tmp_path / "x")
    again = reopened(tmp_path / "x")
    assert [site.head_ids for site in again.sites] == [site.head_ids for site in compact.sites]
    close(run(again, batch(again)), run(compact, batch(compact)))
    assert validate_model(again).passed, validate_model(again).reasons


def test_rounding_that_a_model_magnifies_is_no_other_model(tmp_path):
    """This one's logits differ by 2e-4 between eager attention and SDPA, of equal weights."""
    loaded = reopened(write_translator(tmp_path / "model", "bart"))
    headscope.save(headscope.remove_heads(loaded, [("cross", 0, 0)]), tmp_path / "smaller")
    assert reopened(tmp_path / "smaller").sites[4].head_ids == (1, 2, 3)
