"""See the z of all heads of some layers while the layers below run with gates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from torch import Tensor

from headscope.attention import stream_attention
from headscope.models.layouts import AttentionSite
from headscope.models.loading import LoadedModel
from headscope.models.routing import Router, routed

__all__ = ["capture_z"]


class _Seen(BaseException):
    """Raised and caught here: what follows the last layer of interest is of no use."""


def capture_z(
    loaded: LoadedModel,
    inputs: tuple[Tensor, Tensor, Tensor | None],
    gates: Tensor,
    layers: Sequence[int],
    see: Callable[[AttentionSite, Tensor], None],
) -> None:
    """Run one batch up to the last of ``layers``, whose ungated z is shown.

    Parameters
    ----------
    loaded : LoadedModel
    inputs : (input_ids, attention_mask, token_type_ids)
    gates : Tensor, (n_layers, n_heads)
    layers : sequence of int
    see : callable
        Told (site, z) with z (batch, n_heads, pos, d_head), before the gates.
    """
    last = max(layers)

    def attend(
        site: AttentionSite,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        scale: float | None,
    ) -> Tensor:
        z = stream_attention(q, k, v, mask=mask, scale=scale)
        if site.layer in layers:
            see(site, z)
        if site.layer == last:
            raise _Seen
        return z * gates[site.layer, : site.n_heads, None, None].to(z)

    router = Router(loaded.sites, mechanism=attend)
    with routed(loaded.network, router):
        router.begin()
        with suppress(_Seen):
            loaded.run(*inputs)
