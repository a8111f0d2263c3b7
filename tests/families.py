"""Every tiny random network: the families that headscope covers (README's table), and variants."""

import copy
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

import headscope
from headscope.models.run.loaded import LoadedModel

ENCODER: dict[str, Any] = {
    **{"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"intermediate_size": 48, "max_position_embeddings": 40, "initializer_range": 0.3},
}
ENCODER_DECODER: dict[str, Any] = {
    **{"vocab_size": 61, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "init_std": 0.3},
    **{"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 40},
    **{"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1, "decoder_start_token_id": 2},
}


@dataclass(frozen=True)
class Family:
    """One row: ``variant`` tells two configurations of one ``kind`` (its model_type) apart."""

    kind: str
    layout: str = "bert"
    stacks: tuple[str, ...] = ("encoder",)
    changes: dict[str, Any] = field(default_factory=dict)  # of the common sizes
    variant: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.variant}" if self.variant else self.kind

    def model(self, dtype: str = "float32", auto: Any = None, **more: Any) -> Any:
        """Build a random model in which no bias is zero, so that a lost one shows."""
        crossed = "cross" in self.stacks
        sizes = {} if self.layout == "t5" else ENCODER_DECODER if crossed else ENCODER
        torch.manual_seed(7)
        config = AutoConfig.for_model(self.kind, **{**sizes, **self.changes, **more})
        auto = auto or (AutoModelForSeq2SeqLM if crossed else AutoModel)
        model = auto.from_config(config)
        for module in model.modules():
            plain = not isinstance(module, nn.Embedding | nn.LayerNorm)
            bias = getattr(module, "bias", None)
            if plain and isinstance(bias, nn.Parameter) and bias.is_floating_point():
                nn.init.normal_(bias, std=0.3)
            if hasattr(module, "dense_bias") and module.dense_bias is not None:
                nn.init.normal_(module.dense_bias, std=0.3)
        for name, gain in model.named_parameters():
            if re.search(r"\.[qk]_(layer)?norm\.weight", name):  # or a lost one would not show
                gain.data += torch.empty_like(gain).uniform_(-0.5, 0.5)
        return model.to(getattr(torch, dtype)).eval()


_ALL = ("encoder", "decoder", "cross")
_EMBEDDING = {"embedding_size": 16}
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_XLM: dict[str, Any] = {"emb_dim": 32, "n_layers": 3, "n_heads": 4}
# Without LayerNorm, states grow with the weights.
_MOBILE = {**_EMBEDDING, "intra_bottleneck_size": 16, "initializer_range": 0.1}
_MODERN = {
    **{"num_hidden_layers": 4, "local_attention": 8, "global_attn_every_n_layers": 2},
    **{"max_position_embeddings": 64, "cls_token_id": 1, "sep_token_id": 2, **_ENDS},
}
_ESM = {"pad_token_id": 0, "mask_token_id": 4}
_RELATIVE = {"relative_attention": True, "position_biased_input": False}
_BOTH = {**_RELATIVE, "pos_att_type": ["c2p", "p2c"]}
_V3 = {"share_att_key": True, "norm_rel_ebd": "layer_norm"}
_CONV = {**_EMBEDDING, "num_attention_heads": 8, "head_ratio": 2, "conv_kernel_size": 3}
_SQUEEZE = {"embedding_size": 32, "q_groups": 2, "k_groups": 2, "v_groups": 2}
_EURO = {"num_key_value_heads": 2, **_ENDS}
_NEOX: dict[str, Any] = {**_ENDS, "rotary_pct": 0.25}
_NEO: dict[str, Any] = {
    **{**_ENDS, "num_hidden_layers": 2, "window_size": 5},
    "attention_types": [[["global", "local"], 1]],
}
_GPTJ: dict[str, Any] = {**_ENDS, "rotary_dim": 4}
#: Two heads in each of its four parts.
_CODEGEN = {**_GPTJ, "num_attention_heads": 8, "hidden_size": 64}
_OPT: dict[str, Any] = {**_ENDS, "ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3}
_XGLM: dict[str, Any] = {**_ENDS, "ffn_dim": 48, "init_std": 0.3}
_FALCON: dict[str, Any] = {**_ENDS, "bias": True}
_T5: dict[str, Any] = {
    **{"vocab_size": 61, "d_model": 32, "d_kv": 8, "d_ff": 48},
    **{"num_layers": 2, "num_decoder_layers": 3, "num_heads": 4},
    **{"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
}
#: Causal models that rotate; two heads share keys.
_LLAMA: dict[str, Any] = {**_EURO, "head_dim": 8}
_LOCAL = "sliding_attention"
#: Windows that every probe goes beyond, in some layers.
_WINDOW = {"sliding_window": 6, "sliding_window_pattern": 2}
_QWEN = {**_LLAMA, **_WINDOW, "use_sliding_window": True, "max_window_layers": 1}
#: A layer without a window between two that have one.
_GLOBAL = {**_LLAMA, "sliding_window": 6, "layer_types": [_LOCAL, "full_attention", _LOCAL]}
_GEMMA = {**_LLAMA, **_WINDOW, "query_pre_attn_scalar": 6}
_EXPERTS = {"num_local_experts": 3, "num_experts": 3, "num_experts_per_tok": 2}
_MOE: dict[str, Any] = {**_LLAMA, **_EXPERTS, "moe_intermediate_size": 16}
_DECODER = ("decoder",)

COVERED = (
    Family("bert"),
    Family("roberta"),
    Family("xlm-roberta"),
    Family("xlm-roberta-xl"),
    Family("roberta-prelayernorm"),
    Family("camembert"),
    Family("distilbert", "distilbert", changes={"hidden_dim": 48}),
    Family("electra", changes=_EMBEDDING),
    Family("albert", "albert", changes=_EMBEDDING),
    Family(
        "albert", "albert", changes={**_EMBEDDING, "num_hidden_groups": 2}, variant="two groups"
    ),
    Family("mobilebert", "mobilebert", changes=_MOBILE),
    Family("modernbert", "modernbert", changes=_MODERN),
    Family("ernie"),
    Family("data2vec-text"),
    Family("esm", "esm", changes={**_ESM, "position_embedding_type": "rotary"}),
    Family("layoutlm"),
    Family("markuplm"),
    Family("roc_bert"),
    Family("bert-generation"),
    Family("xmod", changes={"languages": ["en_XX"], "default_language": "en_XX"}),
    Family("nomic_bert", "rotary"),
    Family("gte", "rotary"),
    Family("jina_embeddings_v3", "rotary"),
    Family("splinter"),
    Family("mpnet", "mpnet"),
    Family("deberta", "deberta", changes=_BOTH),
    Family(
        "deberta-v2",
        "deberta-v2",
        changes={**_BOTH, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16, **_V3},
        variant="as v3",
    ),
    Family(
        "deberta-v2",
        "deberta-v2",
        changes={"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        variant="own position maps",
    ),
    Family("convbert", "convbert", changes=_CONV),
    Family("squeezebert", "squeezebert", changes=_SQUEEZE),
    Family("rembert", "rembert", changes={"input_embedding_size": 16}),
    Family("megatron-bert", "rembert"),
    Family("xlm", "xlm", changes=_XLM),
    Family("xlm", "xlm", ("decoder",), changes={**_XLM, "causal": True}, variant="causal"),
    Family("flaubert", "xlm", changes=_XLM),
    Family("roformer", "roformer", changes=_EMBEDDING),
    Family(
        "roformer",
        "roformer",
        changes={**_EMBEDDING, "rotary_value": True},
        variant="rotated values",
    ),
    Family("eurobert", "rotary", changes=_EURO, variant="shared keys"),
    Family("gpt2", "gpt2", ("decoder",)),
    Family("gpt_bigcode", "gpt_bigcode", _DECODER),
    Family("openai-gpt", "openai-gpt", _DECODER),
    Family("llama", "rotary", _DECODER, _LLAMA),
    Family("mistral", "rotary", _DECODER, {**_LLAMA, "sliding_window": 6}),
    Family("qwen2", "rotary", _DECODER, _QWEN),
    Family("gemma", "rotary", _DECODER, _LLAMA),
    Family("gemma2", "rotary", _DECODER, {**_GEMMA, "attn_logit_softcapping": 2.0}),
    Family(
        "granite",
        "rotary",
        _DECODER,
        {**_LLAMA, "attention_multiplier": 0.2, "residual_multiplier": 0.3},
    ),
    Family("starcoder2", "rotary", _DECODER, {**_LLAMA, "sliding_window": 6}),
    Family("smollm3", "rotary", _DECODER, {**_LLAMA, "no_rope_layer_interval": 2}),
    Family("mixtral", "rotary", _DECODER, _MOE),
    Family("qwen2_moe", "rotary", _DECODER, {**_MOE, "shared_expert_intermediate_size": 16}),
    Family("phimoe", "rotary", _DECODER, _MOE),
    Family("granitemoe", "rotary", _DECODER, {**_MOE, "attention_multiplier": 0.2}),
    Family("olmo", "rotary", _DECODER, {**_LLAMA, "clip_qkv": 1.0}),
    Family("qwen3", "normed", _DECODER, _QWEN),
    Family("qwen3_moe", "normed", _DECODER, _MOE),
    Family("gemma3_text", "normed", _DECODER, _GEMMA),
    Family(
        "gemma3_text",
        "normed",
        changes={**_GEMMA, "use_bidirectional_attention": True},
        variant="both directions",
    ),
    Family("olmo2", "normed", _DECODER, _LLAMA),
    Family("olmoe", "normed", _DECODER, {**_MOE, "clip_qkv": 1.0}),
    Family("phi", "phi", _DECODER, {**_EURO, "qk_layernorm": True}),
    Family("phi3", "phi3", _DECODER, {**_EURO, "sliding_window": 6}),
    Family("modernbert-decoder", "modernbert-decoder", _DECODER, _MODERN),
    Family("gpt_neox", "gpt_neox", ("decoder",), changes=_NEOX),
    Family("gpt_neox_japanese", "gpt_neox_japanese", ("decoder",), changes=_NEOX),
    Family("gpt_neo", "gpt_neo", ("decoder",), changes=_NEO),
    Family("gptj", "gptj", ("decoder",), changes=_GPTJ),
    Family("codegen", "codegen", _DECODER, _CODEGEN),
    Family("xglm", "xglm", _DECODER, _XGLM),
    Family("opt", "opt", ("decoder",), changes=_OPT),
    Family("bloom", "bloom", ("decoder",), changes=_ENDS),
    Family("falcon", "falcon", ("decoder",), changes=_FALCON, variant="one key"),
    Family(
        "falcon",
        "falcon",
        ("decoder",),
        changes={**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2},
        variant="shared keys",
    ),
    Family("bart", "bart", _ALL),
    Family("mbart", "bart", _ALL),
    Family("marian", "bart", _ALL),
    Family("pegasus", "bart", _ALL),
    Family("m2m_100", "bart", _ALL),
    Family("blenderbot", "bart", _ALL),
    Family("blenderbot-small", "bart", _ALL),
    Family("plbart", "bart", _ALL),
    Family("mvp", "xglm", _ALL),
    Family("t5", "t5", _ALL, changes=_T5),
    Family("mt5", "t5", _ALL, changes=_T5),
    Family("umt5", "umt5", _ALL, changes=_T5),
)
_BY_NAME = {family.name: family for family in COVERED}
#: The first family of every layout.
FIRST = tuple({family.layout: family for family in reversed(COVERED)}.values())


def _variant(base: str, variant: str, **changes: Any) -> Family:
    """Return a covered family configured otherwise, as checkpoints may be."""
    family = _BY_NAME[base]
    stacks = ("decoder",) if changes.get("is_decoder") else family.stacks
    return Family(family.kind, family.layout, stacks, {**family.changes, **changes}, variant)


def _deberta(version: int, variant: str, **changes: Any) -> Family:
    kind = "deberta-v2" if version == 2 else "deberta"
    return Family(kind, kind, changes=changes, variant=variant)


_LATER_LESS = {"scale_attn_by_inverse_layer_idx": True}
_ROPE = {"rope_type": "linear", "factor": 4.0}
_NARROW = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
#: Beside the table; every probe of 40 tokens or more goes beyond tables and buckets named "short".
VARIANTS = (
    _variant("bert", "two wide heads", num_attention_heads=2, num_hidden_layers=2),
    _variant("albert", "inner group", inner_group_num=2),
    _variant("modernbert", "biases", attention_bias=True),
    _variant("eurobert, shared keys", "one key", num_key_value_heads=1, attention_bias=True),
    _variant("eurobert, shared keys", "own keys", num_key_value_heads=4),
    _variant("gpt2", "by layer", **_LATER_LESS),
    _variant("gpt2", "unscaled", scale_attn_weights=False),
    _variant("gpt_bigcode", "own keys", multi_query=False),
    _variant("phi", "without norms", qk_layernorm=False),
    _variant("olmo2", "own keys", num_key_value_heads=4),
    _variant("gemma2", "unbounded", attn_logit_softcapping=None),
    Family("stablelm", "rotary", _DECODER, _EURO),  # its forward counts heads
    Family("nemotron", "rotary", _DECODER, _LLAMA),  # a LayerNorm of its own
    _variant("llama", "an unread window", sliding_window=6),  # as converted checkpoints name one
    *(Family(kind, "rotary", _DECODER, _LLAMA) for kind in ("cohere", "glm", "ernie4_5", "helium")),
    Family("cohere2", "rotary", _DECODER, _GLOBAL),  # whose layers without a window do not turn
    Family("exaone4", "normed", _DECODER, _GLOBAL),
    _variant("smollm3", "windows", use_sliding_window=True, **_WINDOW),
    _variant("gpt2", "reordered", **_LATER_LESS, reorder_and_upcast_attn=True),
    Family("esm", "esm", changes=_ESM, variant="absolute"),
    _variant("esm", "masked tokens", token_dropout=True, emb_layer_norm_before=True),
    _variant("nomic_bert", "far", rope_parameters=_ROPE),
    Family("persimmon", "gpt_neox", _DECODER, _ENDS),
    _variant("gpt_neox", "one after the other", use_parallel_residual=False, rotary_pct=1.0),
    _variant("opt", "norms after", do_layer_norm_before=False, word_embed_proj_dim=16),
    _variant("gptj", "all turned", rotary_dim=8),
    _variant("falcon, one key", "own keys", multi_query=False),
    _variant("falcon, one key", "by distance", multi_query=False, alibi=True, parallel_attn=False),
    _variant("rembert", "decoder", is_decoder=True),
    _variant("xlm", "sinusoids", sinusoidal_embeddings=True),
    _variant("convbert", "wide kernel", conv_kernel_size=9),
    _variant("convbert", "one head", num_attention_heads=2, head_ratio=4),
    _variant("squeezebert", "one group", q_groups=1, k_groups=1, v_groups=1),
    _variant("squeezebert", "mixed", q_groups=1, k_groups=2, v_groups=8),
    _variant("mobilebert", "narrow", use_bottleneck_attention=True),
    _variant("mobilebert", "wide", key_query_shared_bottleneck=False, intra_bottleneck_size=32),
    _variant("mobilebert", "no bottleneck", use_bottleneck=False),
    _variant("mpnet", "long", max_position_embeddings=202),
    _variant("deberta", "short", max_relative_positions=8),
    _deberta(
        2,
        "as v3, short",
        **{**_BOTH, **_V3, "conv_kernel_size": 3},
        **{"position_buckets": 8, "max_relative_positions": 16},
    ),
    _deberta(2, "own maps, short", **_BOTH, max_relative_positions=8),
    _variant("umt5", "short", **_NARROW),
    # The scale counts terms that are listed and not computed.
    _deberta(1, "c2p", **_RELATIVE, pos_att_type=["c2p"]),
    _deberta(1, "p2c", **_RELATIVE, pos_att_type=["p2c"]),
    _deberta(1, "plain"),
    _deberta(1, "listed", pos_att_type=["c2p", "p2c"]),
    _deberta(2, "c2p", **_RELATIVE, pos_att_type=["c2p"], share_att_key=True),
    _deberta(2, "p2c", **_RELATIVE, pos_att_type=["p2c"]),
    _deberta(2, "no term", **_RELATIVE),
    _deberta(2, "plain"),
    _deberta(2, "listed", pos_att_type="c2p|p2c"),
    _deberta(2, "buckets", **_BOTH, position_buckets=6),
)
BY_NAME = {**_BY_NAME, **{family.name: family for family in VARIANTS}}
#: BERT and its nearest kin, where every family would say the same.
FAMILIES = (
    "bert",
    "roberta",
    "distilbert",
    "electra",
    "albert",
    "albert, two groups",
    "xlm-roberta",
    "camembert",
    "bert, two wide heads",
)


def tiny(family: str, dtype: str = "float32", auto: Any = AutoModel, **changes: Any) -> Any:
    return BY_NAME[family].model(dtype, auto, **changes)


def padded_batch() -> tuple[Tensor, Tensor]:
    ids = torch.randint(5, 61, (3, 9), generator=torch.Generator().manual_seed(1))
    valid = torch.ones_like(ids)
    valid[1, 4:] = 0
    valid[2, 7:] = 0
    return ids, valid


#: Stacks, layers and how many of each: two layers in the encoder, three in the decoder.
SITES = [("encoder", 0), ("encoder", 1)]
SITES += [("decoder", 0), ("decoder", 1), ("decoder", 2), ("cross", 0), ("cross", 1), ("cross", 2)]
D_HEAD = 8

#: A head named in full: (stack, layer, head).
Named = tuple[str, int, int]


def network(kind: str, dtype: str = "float32", **changes: Any) -> Any:
    model = BY_NAME[kind].model(dtype, **changes)
    if kind == "t5":  # biases by position that matter
        for name, parameter in model.named_parameters():
            if "relative_attention_bias" in name:
                torch.nn.init.normal_(parameter, std=1.5)
    return model


def opened(kind: str, dtype: str = "float32", **changes: Any) -> LoadedModel:
    return headscope.wrap(network(kind, dtype, **changes), name=f"tiny {kind}")


def ids_and_mask(lengths: tuple[int, ...], seed: int, start: int | None = None) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 61, (len(lengths), max(lengths)), generator=generator)
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    if start is not None:
        ids[:, 0] = start
    return [ids.masked_fill(mask == 0, 0), mask]


def batch(loaded: LoadedModel) -> dict[str, Tensor]:
    """Three pairs; source and target are of different lengths, and padded in different rows."""
    names = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
    target = ids_and_mask((4, 6, 7), 2, loaded.start_id)
    return dict(zip(names, [*ids_and_mask((9, 5, 7), 1), *target], strict=True))


def real(inputs: dict[str, Tensor]) -> Tensor:
    return inputs["decoder_attention_mask"].bool()


def run(loaded: LoadedModel, inputs: dict[str, Tensor]) -> Tensor:
    """Return the decoder's last states of real tokens, by the model's own forward."""
    with torch.no_grad():
        out = loaded.network(**inputs, output_hidden_states=True)
    last: Tensor = out.decoder_hidden_states[-1]
    return last[real(inputs)]


def out_name(kind: str, stack: str, layer: int) -> str:
    """Say how transformers calls W_O of a layer, without anything of headscope."""
    half = "encoder" if stack == "encoder" else "decoder"
    if kind == "t5":
        module = "1.EncDecAttention" if stack == "cross" else "0.SelfAttention"
        return f"{half}.block.{layer}.layer.{module}.o.weight"
    module = "encoder_attn" if stack == "cross" else "self_attn"
    return f"model.{half}.layers.{layer}.{module}.out_proj.weight"


def zeroed(kind: str, full_network: Any, heads: Iterable[Named]) -> Any:
    """Copy a network with the columns of W_O that belong to some heads set to zero."""
    changed = copy.deepcopy(full_network)
    with torch.no_grad():
        for stack, layer, head in heads:
            out = changed.get_parameter(out_name(kind, stack, layer))
            out[:, head * D_HEAD : (head + 1) * D_HEAD] = 0.0
    return changed
