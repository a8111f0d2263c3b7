"""GPT-Neo and GPT-J: modules that never ask transformers for their attention.

References
----------
Black et al. 2021, GPT-Neo, doi:10.5281/zenodo.5297715; Wang and Komatsuzaki 2021, GPT-J-6B.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from headscope.models.layouts.layout import AttentionSite, Layout, Step
from headscope.models.layouts.maps import AttentionInput, Heads
from headscope.models.layouts.roformer import rotate_neighbours
from headscope.stats.planes import Planes, planes_of_neighbours


@dataclass(frozen=True)
class GptNeoLayout(Layout):
    """GPT-Neo: scores without a scale, and a window in every second layer (``local``)."""

    def scale(self, module: nn.Module, d_head: int) -> float:
        """Return 1."""
        return 1.0

    def window(self, module: Any) -> int | None:
        """Return how many positions back a key may be; None in a ``global`` layer."""
        return module.config.window_size - 1 if module.attention_type == "local" else None

    def read(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> AttentionInput:
        """Read the arguments; the module itself hides later keys and those before the window."""
        inputs = super().read(module, args, kwargs)
        n_pos = inputs.x_q.shape[1]
        visible: Tensor = module.bias[:, :, :n_pos, :n_pos]
        mask = inputs.mask
        if mask is not None:
            allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
            visible = visible & allowed
        # A padded query may lie beyond the window of every token. Its output is never used, so it
        # may see every key.
        return replace(inputs, mask=visible | ~visible.any(dim=-1, keepdim=True))


class NeighbourPairs(Step):
    """GPT-J's rotation: of neighbouring coordinates, and of the first ``rotary_dim`` alone."""

    def change(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        """Turn q and k, (batch, n_heads, pos, d_head)."""
        table = self.table(site, inputs)[:, None].to(heads.q.dtype)  # (1 or batch, 1, pos, width)
        width = table.shape[-1]
        turned = [
            torch.cat([rotate_neighbours(x[..., :width], table), x[..., width:]], dim=-1)
            for x in (heads.q, heads.k)
        ]
        return Heads(turned[0], turned[1], heads.v)

    def planes(self, site: AttentionSite, inputs: AttentionInput) -> Planes | None:
        """Return the planes of the neighbouring coordinates that turn, with the model's angles."""
        sin, cos = self.table(site, inputs)[0].chunk(2, dim=-1)
        return planes_of_neighbours(cos, sin)

    def table(self, site: AttentionSite, inputs: AttentionInput) -> Tensor:
        """Return sines, then cosines, of the positions of a call, (1 or batch, pos, width)."""
        module: Any = site.module
        table: Tensor = module.embed_positions[inputs.arguments["position_ids"]]
        return table
