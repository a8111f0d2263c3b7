"""Every family that headscope covers, as a tiny random model: README's table is made from this."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

ENCODER: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
}
ENCODER_DECODER: dict[str, Any] = {
    "vocab_size": 61,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 40,
    "init_std": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "decoder_start_token_id": 2,
}
_T5: dict[str, Any] = {
    "vocab_size": 61,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
_XLM: dict[str, Any] = {"emb_dim": 32, "n_layers": 3, "n_heads": 4}


@dataclass(frozen=True)
class Family:
    """One row of the table.

    ``kind`` is the model_type of transformers, ``layout`` the name of headscope's layout,
    ``stacks`` what the model has, ``changes`` its configuration beside the common sizes;
    ``variant`` tells two configurations of one family apart.
    """

    kind: str
    layout: str = "bert"
    stacks: tuple[str, ...] = ("encoder",)
    changes: dict[str, Any] = field(default_factory=dict)
    variant: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.variant}" if self.variant else self.kind

    def model(self, dtype: str = "float32", **more: Any) -> Any:
        """Build a random model in which no bias is zero, so that a lost one shows."""
        crossed = "cross" in self.stacks
        sizes = {} if self.layout == "t5" else ENCODER_DECODER if crossed else ENCODER
        torch.manual_seed(7)
        config = AutoConfig.for_model(self.kind, **{**sizes, **self.changes, **more})
        model = (AutoModelForSeq2SeqLM if crossed else AutoModel).from_config(config)
        for module in model.modules():
            plain = not isinstance(module, nn.Embedding | nn.LayerNorm)
            if plain and isinstance(bias := getattr(module, "bias", None), Tensor):
                nn.init.normal_(bias, std=0.3)
        return model.to(getattr(torch, dtype)).eval()


_ALL = ("encoder", "decoder", "cross")
COVERED = (
    Family("bert"),
    Family("roberta"),
    Family("xlm-roberta"),
    Family("xlm-roberta-xl"),
    Family("roberta-prelayernorm"),
    Family("camembert"),
    Family("distilbert", "distilbert", changes={"hidden_dim": 48}),
    Family("electra", changes={"embedding_size": 16}),
    Family("albert", "albert", changes={"embedding_size": 16}),
    Family(
        "albert",
        "albert",
        changes={"embedding_size": 16, "num_hidden_groups": 2},
        variant="two groups",
    ),
    Family(
        "mobilebert",
        "mobilebert",
        # Without LayerNorm, states grow with the weights.
        changes={"embedding_size": 16, "intra_bottleneck_size": 16, "initializer_range": 0.1},
    ),
    Family(
        "modernbert",
        "modernbert",
        changes={
            "num_hidden_layers": 4,
            "local_attention": 8,
            "global_attn_every_n_layers": 2,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
        },
    ),
    Family("ernie"),
    Family("data2vec-text"),
    Family(
        "esm",
        "esm",
        changes={"pad_token_id": 0, "mask_token_id": 4, "position_embedding_type": "rotary"},
    ),
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
    Family(
        "deberta",
        "deberta",
        changes={
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
            "position_biased_input": False,
        },
    ),
    Family(
        "deberta-v2",
        "deberta-v2",
        changes={
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "position_buckets": 16,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": False,
        },
        variant="as v3",
    ),
    Family(
        "deberta-v2",
        "deberta-v2",
        changes={"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        variant="own position maps",
    ),
    Family(
        "convbert",
        "convbert",
        changes={
            "embedding_size": 16,
            "num_attention_heads": 8,
            "head_ratio": 2,
            "conv_kernel_size": 3,
        },
    ),
    Family(
        "squeezebert",
        "squeezebert",
        changes={"embedding_size": 32, "q_groups": 2, "k_groups": 2, "v_groups": 2},
    ),
    Family("rembert", "rembert", changes={"input_embedding_size": 16}),
    Family("megatron-bert", "rembert"),
    Family("xlm", "xlm", changes=_XLM),
    Family("xlm", "xlm", ("decoder",), changes={**_XLM, "causal": True}, variant="causal"),
    Family("flaubert", "xlm", changes=_XLM),
    Family("roformer", "roformer", changes={"embedding_size": 16}),
    Family(
        "roformer",
        "roformer",
        changes={"embedding_size": 16, "rotary_value": True},
        variant="rotated values",
    ),
    Family(
        "eurobert",
        "rotary",
        changes={"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        variant="shared keys",
    ),
    Family("gpt2", "gpt2", ("decoder",)),
    Family("bart", "bart", _ALL),
    Family("mbart", "bart", _ALL),
    Family("marian", "bart", _ALL),
    Family("pegasus", "bart", _ALL),
    Family("m2m_100", "bart", _ALL),
    Family("blenderbot", "bart", _ALL),
    Family("blenderbot-small", "bart", _ALL),
    Family("plbart", "bart", _ALL),
    Family("t5", "t5", _ALL, changes=_T5),
    Family("mt5", "t5", _ALL, changes=_T5),
    Family("umt5", "umt5", _ALL, changes=_T5),
)
