"""Every attention layout, and the families that each of them is tested with."""

from __future__ import annotations

from dataclasses import dataclass

from headscope.models.layouts.convbert import ConvBertLayout
from headscope.models.layouts.disentangled import (
    DisentangledLayout,
    InterleavedLayout,
    PositionTerms,
)
from headscope.models.layouts.esm import EsmLayout
from headscope.models.layouts.fused import Stacked
from headscope.models.layouts.gpt2 import Gpt2Layout
from headscope.models.layouts.layout import Layout
from headscope.models.layouts.mobilebert import MobileBertLayout
from headscope.models.layouts.relative import MPNetLayout, T5Bias, T5Layout, UMT5Layout
from headscope.models.layouts.roformer import NeighbourRotation
from headscope.models.layouts.squeezebert import SqueezeBertLayout
from headscope.models.layouts.steps import HandedBias, Rotation, SharedKeys
from headscope.models.layouts.xlm import XlmLayout

#: Tried in order; the first that fits wins.
LAYOUTS: tuple[Layout, ...] = (
    MobileBertLayout("mobilebert", needs="value_tensor"),
    EsmLayout("esm", needs="position_embedding_type", steps=(Rotation(in_float32=True),)),
    Layout("bert"),
    Layout("albert", out="dense"),
    Layout("distilbert", q="q_lin", k="k_lin", v="v_lin", out="out_lin"),
    Layout("bart", q="q_proj", k="k_proj", v="v_proj", out="out_proj"),
    UMT5Layout(
        "umt5", q="q", k="k", v="v", out="o", needs="encoder_hidden_states", steps=(T5Bias(),)
    ),
    T5Layout("t5", q="q", k="k", v="v", out="o", needs="key_value_proj_dim", steps=(T5Bias(),)),
    Layout(
        "roformer",
        needs="rotary_value",
        steps=(NeighbourRotation(),),
        bypasses=True,
        decoder_flag="is_decoder",
    ),
    ConvBertLayout("convbert", needs="conv_kernel_layer", bypasses=True, decoder_flag="is_decoder"),
    Layout("rembert", bypasses=True, decoder_flag="is_decoder"),
    XlmLayout("xlm", q="q_lin", k="k_lin", v="v_lin", out="out_lin", bypasses=True),
    SqueezeBertLayout("squeezebert", out="..post_attention.conv1d", bypasses=True),
    MPNetLayout(
        "mpnet",
        q="q",
        k="k",
        v="v",
        out="o",
        needs="position_bias",
        steps=(HandedBias(),),
        bypasses=True,
    ),
    DisentangledLayout(
        "deberta-v2",
        q="query_proj",
        k="key_proj",
        v="value_proj",
        needs="pos_att_type",
        steps=(PositionTerms(),),
        bypasses=True,
    ),
    InterleavedLayout("deberta", needs="pos_att_type", steps=(PositionTerms(),), bypasses=True),
    Layout(
        "rotary",
        q="q_proj",
        k="k_proj",
        v="v_proj",
        out="o_proj",
        steps=(Rotation(), SharedKeys()),
    ),
    Layout("modernbert", fused=Stacked("Wqkv"), out="Wo", steps=(Rotation(in_float32=True),)),
    Gpt2Layout("gpt2", fused=Stacked("c_attn"), out="c_proj"),
)


@dataclass(frozen=True)
class Covered:
    """A family that is tested."""

    layout: str = "bert"  # The name of the layout that covers it
    #: What its models can have: ``encoder``, ``decoder``, ``cross``.
    stacks: tuple[str, ...] = ("encoder",)


_ENCODER_DECODER = ("encoder", "decoder", "cross")
_BERT = Covered()
_ROTARY = Covered("rotary")
_BART = Covered("bart", _ENCODER_DECODER)
_T5 = Covered("t5", _ENCODER_DECODER)

#: By ``model_type`` of transformers. A family that is not here is measured all the same if it
#: passes the certificate. tests/families.py has a tiny model of each.
COVERED = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "xlm-roberta-xl": _BERT,
    "roberta-prelayernorm": _BERT,
    "camembert": _BERT,
    "electra": _BERT,
    "ernie": _BERT,
    "data2vec-text": _BERT,
    "layoutlm": _BERT,
    "markuplm": _BERT,
    "roc_bert": _BERT,
    "bert-generation": _BERT,
    "xmod": _BERT,
    "splinter": _BERT,
    "distilbert": Covered("distilbert"),
    "albert": Covered("albert"),
    "mobilebert": Covered("mobilebert"),
    "modernbert": Covered("modernbert"),
    "esm": Covered("esm"),
    "nomic_bert": _ROTARY,
    "gte": _ROTARY,
    "jina_embeddings_v3": _ROTARY,
    "eurobert": _ROTARY,
    "mpnet": Covered("mpnet"),
    "deberta": Covered("deberta"),
    "deberta-v2": Covered("deberta-v2"),
    "convbert": Covered("convbert"),
    "squeezebert": Covered("squeezebert"),
    "rembert": Covered("rembert"),
    "megatron-bert": Covered("rembert"),
    "xlm": Covered("xlm", ("encoder", "decoder")),
    "flaubert": Covered("xlm"),
    "roformer": Covered("roformer"),
    "gpt2": Covered("gpt2", ("decoder",)),
    "bart": _BART,
    "mbart": _BART,
    "marian": _BART,
    "pegasus": _BART,
    "m2m_100": _BART,
    "blenderbot": _BART,
    "blenderbot-small": _BART,
    "plbart": _BART,
    "t5": _T5,
    "mt5": _T5,
    "umt5": Covered("umt5", _ENCODER_DECODER),
}
