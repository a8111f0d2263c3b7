"""Attention layouts: where each family keeps W_Q, W_K, W_V and W_O, and how it makes scores.

One small adapter per attention layout, not per model: ``maps.py`` says what stored maps are,
``layout.py`` what a layout is, ``registry.py`` lists them all, ``sites.py`` finds where attention
runs.
"""

from headscope.models.layouts.layout import AttentionModule as AttentionModule
from headscope.models.layouts.layout import AttentionSite as AttentionSite
from headscope.models.layouts.layout import Layout as Layout
from headscope.models.layouts.layout import follow as follow
from headscope.models.layouts.maps import AttentionInput as AttentionInput
from headscope.models.layouts.maps import HeadRows as HeadRows
from headscope.models.layouts.maps import Heads as Heads
from headscope.models.layouts.maps import LinearMap as LinearMap
from headscope.models.layouts.maps import Projections as Projections
from headscope.models.layouts.maps import bias_of as bias_of
from headscope.models.layouts.registry import LAYOUTS as LAYOUTS
from headscope.models.layouts.sites import HEAD_IDS as HEAD_IDS
from headscope.models.layouts.sites import HEADS_BEFORE as HEADS_BEFORE
from headscope.models.layouts.sites import LAYER as LAYER
from headscope.models.layouts.sites import STACKS as STACKS
from headscope.models.layouts.sites import attention_modules as attention_modules
from headscope.models.layouts.sites import find_sites as find_sites
from headscope.models.layouts.sites import numbered as numbered
