"""Families by properties: each tiny random model against transformers, cut, and measured."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import pytest
import torch
from families import BY_NAME, COVERED, FIRST, VARIANTS, Family, out_name, padded_batch, tiny
from torch import Tensor, nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    CLIPConfig,
    T5Config,
    T5EncoderModel,
)

import headscope
from headscope.core.activations import Activations
from headscope.core.errors import InputError, UnsupportedModelError
from headscope.models.certificate.certificate import validate_model
from headscope.models.certificate.validation import ValidationResult
from headscope.models.certificate.verdict import TOLERANCES
from headscope.models.layouts import families
from headscope.models.layouts.families import REFUSED
from headscope.models.run.intervene import gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Router, routed
from headscope.models.surgery.copies import removed_heads

#: Source and target, padded in different rows.
PAIRS = ([[5, 6, 7, 8, 9, 10], [11, 12, 13]], [[14, 15], [16, 17, 18, 19]])
Heads = list[tuple[str, int, int]]


def assert_passed(loaded: LoadedModel) -> ValidationResult:
    """The certificate is whole: each site ran once, padding was there, and gaps are small."""
    result = validate_model(loaded)
    assert result.passed, result.reasons
    assert result.reasons == ()
    places = [(check.stack, check.layer, check.calls) for check in result.layers]
    assert places == [(site.stack, site.layer, 1) for site in loaded.sites]
    assert result.mask_reached
    assert result.padded > 0
    return result


@dataclass
class Built:
    """A family's network, and what it gives."""

    family: Family
    network: Any
    loaded: LoadedModel = field(init=False)

    def __post_init__(self) -> None:
        self.loaded = headscope.wrap(self.network, name=self.family.name)

    @cached_property
    def heads(self) -> Heads:
        """One or two of every module, and the second layer whole where layers share no weights."""
        sites = self.loaded.sites
        first = {site.module: site for site in reversed(sites)}
        alone = len(first) == len(sites)
        heads: Heads = []
        for site in first.values():
            for head in range(site.n_heads):
                if (site.row + head) % 3 == 0 or (alone and site.row == 1):
                    heads.append((site.stack, site.layer, head))
        return heads

    def gates(self) -> Tensor:
        """Zeros for those heads, in every layer that runs their module."""
        gates = torch.ones(self.loaded.n_layers, self.loaded.n_heads)
        modules = {(site.stack, site.layer): site.module for site in self.loaded.sites}
        for stack, layer, head in self.heads:
            for site in self.loaded.sites:
                if site.module is modules[stack, layer]:
                    gates[site.row, head] = 0.0
        return gates

    @contextmanager
    def zeroed(self) -> Iterator[None]:
        """Put zeros where those heads' z enter W_O, as transformers names it; then put it back."""
        kind = self.family.kind
        d_head = 4 if kind in ("convbert", "mobilebert") else 8  # half the state is convolution
        before = {key: tensor.clone() for key, tensor in self.network.state_dict().items()}
        for stack, layer, head in self.heads:
            if kind == "albert":
                groups = self.network.encoder.albert_layer_groups
                name = f"encoder.albert_layer_groups.{layer * len(groups) // 3}"
                name += ".albert_layers.0.attention.dense.weight"
            elif "cross" in self.family.stacks:
                name = out_name("t5" if "t5" in kind else kind, stack, layer)
            else:
                name = W_O.get(kind, "encoder.layer.{}.attention.output.dense").format(layer)
                name += ".weight"
            weight = self.network.get_parameter(name).data
            columns = slice(head * d_head, (head + 1) * d_head)
            (weight.t() if kind in ("gpt2", "openai-gpt") else weight)[:, columns] = 0.0
        yield
        self.network.load_state_dict(before)


_ROTARY = "layers.{}.self_attn.o_proj"
_ROTATED = {family.kind for family in COVERED if family.layout in ("rotary", "normed", "phi3")}
W_O = {
    **dict.fromkeys(_ROTATED, _ROTARY),
    "phi": "layers.{}.self_attn.dense",
    "modernbert-decoder": "layers.{}.attn.Wo",
    **dict.fromkeys(("xlm", "flaubert"), "attentions.{}.out_lin"),
    "distilbert": "transformer.layer.{}.attention.out_lin",
    "modernbert": "layers.{}.attn.Wo",
    "mpnet": "encoder.layer.{}.attention.attn.o",
    "squeezebert": "encoder.layers.{}.post_attention.conv1d",
    **dict.fromkeys(("gpt2", "gpt_bigcode", "openai-gpt"), "h.{}.attn.c_proj"),
    "codegen": "h.{}.attn.out_proj",
    "xglm": "layers.{}.self_attn.out_proj",
    **dict.fromkeys(("gpt_neox", "gpt_neox_japanese"), "layers.{}.attention.dense"),
    "gpt_neo": "h.{}.attn.attention.out_proj",
    "gptj": "h.{}.attn.out_proj",
    "opt": "decoder.layers.{}.self_attn.out_proj",
    "bloom": "h.{}.self_attention.dense",
    "falcon": "h.{}.self_attention.dense",
}


#: Models that return no cache.
UNCACHED = ("openai-gpt", "xlm")


@pytest.fixture(scope="module", params=COVERED, ids=lambda family: family.name)
def built(request: pytest.FixtureRequest) -> Built:
    return Built(request.param, request.param.model())


#: What costs more is done for one family of every layout.
of_every_layout = pytest.mark.parametrize("built", FIRST, ids=lambda f: f.name, indirect=True)
#: test_compact.py does it to BART and T5.
ONE_SIDE = [family for family in FIRST if family.name not in ("bart", "t5")]
ONE_SIDE.append(BY_NAME["olmo2"])  # whose norms read the heads that are gone
ONE_SIDE.append(BY_NAME["stablelm"])  # whose forward counts its heads


def given(loaded: LoadedModel) -> tuple[dict[str, Tensor], Tensor]:
    """Return what a model reads, and which of its last states are no padding."""
    source, target = PAIRS
    inputs = dict(zip(("input_ids", "attention_mask"), loaded.pad(source), strict=True))
    if loaded.start_id is None:
        return inputs, inputs["attention_mask"].bool()
    ids, mask = loaded.pad([[loaded.start_id, *tokens] for tokens in target])
    return {**inputs, "decoder_input_ids": ids, "decoder_attention_mask": mask}, mask.bool()


def states(loaded: LoadedModel, attention: str = "eager") -> Tensor | None:
    """Run a model by its own forward; None where it has no such attention."""
    try:
        loaded.network.set_attn_implementation(attention)
    except ValueError:
        return None
    inputs, real = given(loaded)
    with torch.no_grad():
        return loaded.run(**inputs)[0][real]


def close(actual: Tensor | None, expected: Tensor) -> None:
    size = max(1.0, float(expected.abs().max()))  # of float32 states: CPUs add in other orders
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * size)


def test_certificate(built):
    assert {site.layout.name for site in built.loaded.sites} == {built.family.layout}
    assert built.loaded.stacks == built.family.stacks
    if built.family.kind == "albert":  # its layers share one module, groups do not
        groups = len(built.network.encoder.albert_layer_groups)
        assert len({site.module for site in built.loaded.sites}) == groups
    before = built.loaded.model.config._attn_implementation
    assert_passed(built.loaded)
    assert built.loaded.model.config._attn_implementation == before


def test_removed_heads_are_zeroed_heads(built):
    """In the model's own run and through gates."""
    loaded = built.loaded
    heads = built.heads
    before = {key: value.clone() for key, value in built.network.state_dict().items()}
    with built.zeroed():
        expected = states(loaded)
    inputs, real = given(loaded)
    with gated(loaded, built.gates()) as run:
        close(run(**inputs)[0][real], expected)
    full = states(loaded)
    assert float((full - expected).abs().max()) > 1e-3  # the heads matter
    cut = headscope.remove_heads(loaded, heads)
    close(states(cut), expected)
    if (sdpa := states(cut, "sdpa")) is not None:
        close(sdpa, expected)
    assert all(torch.equal(value, before[key]) for key, value in built.network.state_dict().items())


@pytest.mark.parametrize("built", ONE_SIDE, ids=lambda f: f.name, indirect=True)
def test_heads_removed_in_two_steps_and_saved_in_between(built, tmp_path):
    loaded = built.loaded
    heads = built.heads
    cut = headscope.remove_heads(loaded, heads)
    half = headscope.remove_heads(loaded, heads[::2])
    sizes = [sum(p.numel() for p in one.model.parameters()) for one in (loaded, half, cut)]
    assert sizes[0] > sizes[1] > sizes[2]
    headscope.save(half, tmp_path / "half")
    load = partial(headscope.load, task_head="auto", need_tokenizer=False, device="cpu")
    opened = load(str(tmp_path / "half"))
    assert [site.head_ids for site in opened.sites] == [site.head_ids for site in half.sites]
    assert_passed(opened)
    opened = headscope.remove_heads(opened, heads[1::2])
    assert [site.head_ids for site in opened.sites] == [site.head_ids for site in cut.sites]
    assert removed_heads(opened) == removed_heads(cut)
    shapes = [[t.shape for t in one.model.state_dict().values()] for one in (opened, cut)]
    assert shapes[0] == shapes[1]
    expected = states(cut)
    close(states(opened), expected)


#: Those that keep the keys and values of earlier tokens as they write.
WRITERS = [f.name for f in COVERED if f.stacks == ("decoder",) and f.kind not in UNCACHED]


def next_tokens(network: Any, ids: Tensor, start: int) -> Tensor:
    """Run tokens from ``start`` on one by one, as ``generate`` does; return what follows each."""
    mask = torch.ones_like(ids)
    cache = None
    logits = []
    for last in range(start, ids.shape[1]):
        new = ids[:, last : last + 1] if cache else ids[:, : last + 1]
        out = network(new, attention_mask=mask[:, : last + 1], past_key_values=cache)
        cache = out.past_key_values
        logits.append(out.logits[:, -1])
    return torch.stack(logits, dim=1)


@pytest.mark.parametrize("name", WRITERS)
def test_a_layer_without_heads_still_counts_the_tokens_that_were_read(name):
    """transformers counts them by the keys of a cache; windows end before the last token."""
    loaded = headscope.wrap(tiny(name, auto=AutoModelForCausalLM))
    ids = torch.randint(5, 61, (1, 12), generator=torch.Generator().manual_seed(3))
    for layer in (0, 1):
        heads = [("decoder", layer, head) for head in range(loaded.sites[layer].n_heads)]
        network: Any = headscope.remove_heads(loaded, heads).network
        with torch.no_grad():
            expected = network(ids, attention_mask=torch.ones_like(ids)).logits[:, 5:]
            close(next_tokens(network, ids, 5), expected)


def test_falcon_without_some_heads_keeps_the_biases_of_the_others():
    """Its mask holds those of all heads: through ours, by its own forward, by zeros in W_O."""
    heads = [(0, 1), (1, 0), (1, 2)]
    loaded = headscope.wrap(tiny("falcon, by distance"))
    cut = headscope.remove_heads(loaded, heads)
    assert_passed(cut)
    inputs, real = given(loaded)
    for layer, head in heads:
        weight = loaded.network.get_parameter(W_O["falcon"].format(layer) + ".weight")
        weight.data[:, head * 8 : (head + 1) * 8] = 0.0
    with torch.no_grad():
        expected = loaded.run(**inputs)[0][real]
        close(cut.run(**inputs)[0][real], expected)
    with gated(cut, torch.ones(cut.n_layers, cut.n_heads)) as run:
        close(run(**inputs)[0][real], expected)


class Keep:
    def __init__(self) -> None:
        self.chunks: list[Activations] = []

    def observe(self, site: Activations) -> None:
        self.chunks.append(site)

    def finish(self, stack: str, layer: int) -> None:
        """Nothing to do."""


@of_every_layout
def test_what_is_shown(built):
    """Patterns are those of the eager model."""
    loaded = built.loaded
    network = built.network
    ids, mask = padded_batch()
    target = (ids[:, :5],) if loaded.encoder_decoder else ()
    observer = Keep()
    router = Router(
        loaded.sites, [observer], unmeasured_sites=loaded.unmeasured_sites, chunk_entries=300
    )
    with routed(loaded.model, router) as inside:
        inside.checked(lambda: loaded.forward(ids, mask, *target))
    network.set_attn_implementation("eager")
    network.config._attn_implementation = "eager"  # of Falcon too, where transformers sets nothing
    with torch.no_grad():
        decoder = {"decoder_input_ids": target[0]} if target else {}
        output = network(input_ids=ids, attention_mask=mask, output_attentions=True, **decoder)
    patterns = {s: output[f"{s}_attentions" if target else "attentions"] for s in loaded.stacks}
    assert {stack: len(by_layer) for stack, by_layer in patterns.items()} == {
        stack: sum(site.stack == stack for site in loaded.sites) for stack in patterns
    }
    assert len(observer.chunks) > len(loaded.sites)
    for chunk in observer.chunks:
        expected = patterns[chunk.stack][chunk.layer][chunk.examples, chunk.heads]
        if built.family.kind == "squeezebert":  # hands out its scores
            expected = expected.softmax(-1)
        is_target = chunk.stack != "encoder" and bool(target)
        real = torch.ones(3, 5).bool() if is_target else mask.bool()
        queries = real[chunk.examples]
        torch.testing.assert_close(
            chunk.pattern.transpose(1, 2)[queries],
            expected.transpose(1, 2)[queries],
            rtol=1e-3,
            atol=2e-5,
        )


_TYPED = [
    *((f.name, "bfloat16") for f in FIRST if "cross" not in f.stacks),
    *((name, "bfloat16") for name in ("roformer, rotated values", "gpt2, by layer", "umt5")),
    *((name, "float16") for name in ("bert", "modernbert", "deberta", "eurobert, shared keys")),
]


@pytest.mark.parametrize(("name", "dtype"), _TYPED)
def test_certificate_in_other_types(name, dtype):
    # Half precision has absolute tolerances for activations of the usual size: 1 / sqrt(hidden).
    spread = {"initializer_range": min(0.15, BY_NAME[name].changes.get("initializer_range", 0.3))}
    loaded = headscope.wrap(tiny(name, dtype, **({} if name == "umt5" else spread)))
    assert loaded.dtype == dtype
    result = assert_passed(loaded)
    if BY_NAME[name].layout in ("bert", "distilbert", "albert"):
        assert result.max_abs_pattern <= TOLERANCES[dtype]["pattern"]


@pytest.mark.parametrize("name", [family.name for family in VARIANTS])
def test_certificate_of_other_configurations(name):
    exact = BY_NAME[name].layout not in ("rotary", "esm", "modernbert", "gpt2")
    dtype = "float64" if exact else "float32"
    loaded = headscope.wrap(tiny(name, dtype))
    assert loaded.stacks == BY_NAME[name].stacks
    assert {site.layout.name for site in loaded.sites} == {BY_NAME[name].layout}
    heads = {"convbert, one head": 1, "bert, two wide heads": 2}.get(name, 4)
    assert {site.n_heads for site in loaded.sites} == {heads}
    assert_passed(loaded)


@pytest.mark.parametrize(("family", "positions"), [("roberta", 8), ("distilbert", 10)])
def test_probe_respects_a_short_position_table(family, positions):
    """Ten rows; RoBERTa and its kin keep the first two for padding."""
    loaded = headscope.wrap(tiny(family, max_position_embeddings=10))
    assert loaded.max_length == positions
    short, long = assert_passed(loaded).probes
    assert (short.tokens, short.padded) == (
        positions + 7 + positions + 3,
        4 * positions - (2 * positions + 10),
    )
    assert (long.sequences, long.length, long.padded) == (1, positions, 0)


def test_the_package_lists_the_families_that_are_tested():
    tested: dict[str, tuple[set[str], set[str]]] = {}
    for family in COVERED:
        layouts, stacks = tested.setdefault(family.kind, (set(), set()))
        layouts.add(family.layout)
        stacks.update(family.stacks)
    assert tested == {
        name: ({known.layout}, set(known.stacks)) for name, known in families.COVERED.items()
    }
    assert not {*tested} & {*REFUSED}
    assert len({family.name for family in COVERED}) == len(COVERED)


def test_missing_biases_are_zeros():
    model = tiny("bert", "float64")
    attention = model.encoder.layer[1].attention
    for name in ("query", "value"):
        linear = nn.Linear(32, 32, bias=False, dtype=torch.float64)
        linear.weight = getattr(attention.self, name).weight
        setattr(attention.self, name, linear)
    loaded = headscope.wrap(model)
    assert not bool(loaded.sites[1].weights().b_V.any())
    assert_passed(loaded)


def test_heads_that_somebody_else_removed():
    model = tiny("bert", "float64")
    keep = [0, 2]
    full = headscope.wrap(tiny("bert", "float64")).sites[1].weights()
    attention = model.encoder.layer[1].attention
    rows = torch.arange(32).view(4, 8)[keep].flatten()
    for linear in (attention.self.query, attention.self.key, attention.self.value):
        linear.weight = nn.Parameter(linear.weight.data[rows])
        linear.bias = nn.Parameter(linear.bias.data[rows])
    attention.output.dense.weight = nn.Parameter(attention.output.dense.weight.data[:, rows])
    loaded = headscope.wrap(model)
    assert [site.n_heads for site in loaded.sites] == [4, len(keep), 4]
    assert loaded.n_heads == 4
    assert_passed(loaded)
    rest = loaded.sites[1].weights()
    for name in ("W_Q", "b_Q", "W_K", "b_K", "W_V", "b_V", "W_O"):
        assert torch.equal(getattr(rest, name), getattr(full, name)[keep]), name
    assert torch.equal(rest.b_O, full.b_O)


def test_the_encoder_of_t5_alone_is_loaded_pruned_and_saved(tmp_path):
    """As sentence-t5 and GTR are stored: config.json names T5EncoderModel."""
    sizes = {"d_model": 16, "d_kv": 4, "d_ff": 8, "num_layers": 2, "num_heads": 2}
    encoder = T5EncoderModel(T5Config(vocab_size=61, **sizes)).eval()
    encoder.save_pretrained(tmp_path / "whole")
    loaded = headscope.load(str(tmp_path / "whole"), device="cpu", need_tokenizer=False)
    assert type(loaded.network) is T5EncoderModel
    assert_passed(loaded)
    small = headscope.remove_heads(loaded, [(0, 1)])
    headscope.save(small, tmp_path / "small")
    again = headscope.load(str(tmp_path / "small"), device="cpu", need_tokenizer=False)
    assert [site.head_ids for site in again.sites] == [(0,), (0, 1)]
    ids = torch.arange(3, 12)[None]
    with torch.no_grad():
        states = [m.network(input_ids=ids).last_hidden_state for m in (small, again)]
    torch.testing.assert_close(*states)


def test_a_task_head_is_unwrapped():
    model = tiny("bert", auto=AutoModelForMaskedLM)
    loaded = headscope.wrap(model.train())
    assert loaded.model is model.bert
    assert not model.bert.training
    assert_passed(loaded)


def test_what_is_no_model_or_cannot_classify():
    with pytest.raises(InputError, match="str is not a transformers model"):
        headscope.wrap("demo")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    clip = AutoModel.from_config(CLIPConfig(text_config=sizes, vision_config=sizes))
    with pytest.raises(UnsupportedModelError, match=r"\(clip\) is not a model of text"):
        headscope.wrap(clip)
    classifier = tiny("gpt2", auto=AutoModelForSequenceClassification)
    with pytest.raises(InputError, match="in memory has no pad_token_id"):
        headscope.prune(classifier, methods=["magnitude"])
