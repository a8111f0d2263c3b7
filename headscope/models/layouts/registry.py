"""The one list of attention layouts."""

from __future__ import annotations

from headscope.models.layouts.disentangled import DisentangledLayout, InterleavedLayout
from headscope.models.layouts.layout import Layout
from headscope.models.layouts.relative import MPNetLayout, T5Layout, UMT5Layout
from headscope.models.layouts.rotary import EsmLayout, Gpt2Layout, ModernBertLayout, RotaryLayout
from headscope.models.layouts.variants import (
    ConvBertLayout,
    MobileBertLayout,
    RemBertLayout,
    RoFormerLayout,
    SqueezeBertLayout,
    XlmLayout,
)

#: Tried in order; the first that fits wins.
LAYOUTS: tuple[Layout, ...] = (
    MobileBertLayout("mobilebert"),
    EsmLayout("esm"),
    Layout("bert"),
    Layout("albert", out="dense"),
    Layout("distilbert", q="q_lin", k="k_lin", v="v_lin", out="out_lin"),
    Layout("bart", q="q_proj", k="k_proj", v="v_proj", out="out_proj"),
    UMT5Layout("umt5", q="q", k="k", v="v", out="o"),
    T5Layout("t5", q="q", k="k", v="v", out="o"),
    RoFormerLayout("roformer"),
    ConvBertLayout("convbert"),
    RemBertLayout("rembert"),
    XlmLayout("xlm", q="q_lin", k="k_lin", v="v_lin", out="out_lin"),
    SqueezeBertLayout("squeezebert"),
    MPNetLayout("mpnet", q="q", k="k", v="v", out="o"),
    DisentangledLayout("deberta-v2", q="query_proj", k="key_proj", v="value_proj"),
    InterleavedLayout("deberta"),
    RotaryLayout("rotary"),
    ModernBertLayout("modernbert"),
    Gpt2Layout("gpt2"),
)
