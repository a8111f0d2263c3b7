"""Every attention layout, in the order in which they are tried on a module.

A row names the module's attributes where they differ from BERT's (``query``, ``key``, ``value`` and
``..output.dense``). ``needs`` is an attribute or argument by which modules with like-named maps are
told apart, and ``bypasses`` says that they do not look their attention up in transformers' table.
"""

from __future__ import annotations

from headscope.models.layouts.codegen import ByPart, CodeGenLayout
from headscope.models.layouts.convbert import ConvBertLayout
from headscope.models.layouts.disentangled import (
    DisentangledLayout,
    InterleavedLayout,
    PositionTerms,
)
from headscope.models.layouts.distance import (
    BloomLayout,
    DistanceBias,
    FalconLayout,
    heads_per_group,
)
from headscope.models.layouts.esm import EsmLayout, ScaledQueriesLayout
from headscope.models.layouts.fused import ByGroup, ByHead, Stacked
from headscope.models.layouts.gpt2 import Gpt2Layout
from headscope.models.layouts.gpt_bigcode import GptBigCodeLayout, one_group
from headscope.models.layouts.gpt_neo import GptNeoLayout, NeighbourPairs
from headscope.models.layouts.gpt_neox_japanese import JapaneseNeoXLayout
from headscope.models.layouts.layout import Layout
from headscope.models.layouts.mobilebert import MobileBertLayout
from headscope.models.layouts.normed import HeadNorm, NormedLayout
from headscope.models.layouts.openai import OpenAiLayout
from headscope.models.layouts.phi3 import Phi3Layout, StackedGroups
from headscope.models.layouts.relative import MPNetLayout, T5Bias, T5Layout, UMT5Layout
from headscope.models.layouts.roformer import NeighbourRotation
from headscope.models.layouts.squeezebert import SqueezeBertLayout
from headscope.models.layouts.steps import Clip, HandedBias, Rotation, SharedKeys
from headscope.models.layouts.xglm import XglmLayout
from headscope.models.layouts.xlm import XlmLayout

#: Tried in order; the first that fits wins.
LAYOUTS: tuple[Layout, ...] = (
    MobileBertLayout("mobilebert", needs="value_tensor"),
    EsmLayout("esm", needs="position_embedding_type", steps=(Rotation(in_float32=True),)),
    Layout("bert"),
    Layout("albert", out="dense"),
    Layout("distilbert", q="q_lin", k="k_lin", v="v_lin", out="out_lin"),
    ScaledQueriesLayout(
        "opt", q="q_proj", k="k_proj", v="v_proj", out="out_proj", needs="enable_bias"
    ),
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
    NormedLayout(
        "normed",
        q="q_proj",
        k="k_proj",
        v="v_proj",
        out="o_proj",
        needs="q_norm",
        steps=(HeadNorm(), Clip(), Rotation(), SharedKeys()),
    ),
    Layout(
        "rotary",
        q="q_proj",
        k="k_proj",
        v="v_proj",
        out="o_proj",
        steps=(Clip(), Rotation(), SharedKeys()),
    ),
    Layout(
        "phi",
        q="q_proj",
        k="k_proj",
        v="v_proj",
        out="dense",
        steps=(HeadNorm("q_layernorm", "k_layernorm"), Rotation(), SharedKeys()),
    ),
    Layout(
        "modernbert-decoder",
        q="q_proj",
        k="k_proj",
        v="v_proj",
        out="Wo",
        steps=(Rotation(in_float32=True), SharedKeys()),
    ),
    Phi3Layout(
        "phi3",
        fused=StackedGroups("qkv_proj"),
        out="o_proj",
        steps=(Rotation(), SharedKeys()),
    ),
    Layout("modernbert", fused=Stacked("Wqkv"), out="Wo", steps=(Rotation(in_float32=True),)),
    GptBigCodeLayout(
        "gpt_bigcode",
        fused=ByGroup("c_attn", one_group),
        out="c_proj",
        needs="multi_query",
        steps=(SharedKeys(),),
    ),
    Gpt2Layout("gpt2", fused=Stacked("c_attn"), out="c_proj"),
    OpenAiLayout(
        "openai-gpt",
        fused=Stacked("c_attn"),
        out="c_proj",
        needs="n_head",
        bypasses=True,
        one_way=True,
    ),
    Layout(
        "gpt_neox",
        fused=ByHead("query_key_value"),
        out="dense",
        steps=(HeadNorm("q_layernorm", "k_layernorm"), Rotation()),  # Persimmon norms
    ),
    JapaneseNeoXLayout(
        "gpt_neox_japanese",
        fused=ByHead("query_key_value"),
        out="dense",
        needs="dense_bias",
        steps=(Rotation(),),
        bypasses=True,
        one_way=True,
    ),
    GptNeoLayout(
        "gpt_neo",
        q="q_proj",
        k="k_proj",
        v="v_proj",
        out="out_proj",
        needs="attention_type",
        bypasses=True,
        rounds_products=True,
    ),
    Layout(
        "gptj",
        q="q_proj",
        k="k_proj",
        v="v_proj",
        out="out_proj",
        needs="pos_embd_dim",
        steps=(NeighbourPairs(),),
        bypasses=True,
        rounds_products=True,
    ),
    CodeGenLayout(
        "codegen",
        fused=ByPart("qkv_proj"),
        out="out_proj",
        needs="scale_attn",
        steps=(NeighbourPairs(),),
        bypasses=True,
        rounds_products=True,
        one_way=True,
    ),
    XglmLayout(
        "xglm",
        q="q_proj",
        k="k_proj",
        v="v_proj",
        out="out_proj",
        needs="key_value_states",
        bypasses=True,
        joins_examples=True,
        decoder_flag="is_decoder",
    ),
    FalconLayout(
        "falcon",
        fused=ByGroup("query_key_value", heads_per_group),
        out="dense",
        needs="multi_query",
        steps=(DistanceBias(scaled=True), SharedKeys()),
        bypasses=True,
    ),
    BloomLayout(
        "bloom",
        fused=ByHead("query_key_value"),
        out="dense",
        needs="slow_but_exact",
        steps=(DistanceBias(),),
        bypasses=True,
        one_way=True,
    ),
)
