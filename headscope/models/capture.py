"""See what enters some attention layers, and the z of all their heads, while others run gated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from torch import Tensor

from headscope.attention import Mask, stream_attention
from headscope.data.token_rows import Padded
from headscope.models.gating import Run, gate
from headscope.models.hooks import watch_inputs
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.routing import LastSiteSeen, Router, routed


def capture_layers(
    loaded: LoadedModel,
    batch: Padded,
    gates: Tensor,
    layers: Sequence[int],
    see: Callable[[AttentionSite, Tensor, Tensor], None],
) -> None:
    """Run one batch up to the last of ``layers``, whose input and ungated z are shown.

    Parameters
    ----------
    loaded : LoadedModel
        Run with its task head, as far as it gets.
    batch : Padded
        What the model reads; of pairs also what its decoder reads.
    gates : Tensor
        As :func:`~headscope.models.gating.gate` takes them.
    layers : sequence of int
        Zero-based, at least one.
    see : callable
        Told (site, x, z) with what queries are made from, x (batch, pos, d_model), and
        z (batch, n_heads, pos, d_head), the latter before the gates.
    """
    last = max(layers)
    entered: dict[int, Tensor] = {}

    def attend(
        site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        z = stream_attention(q, k, v, mask=mask, scale=scale)
        if site.row in layers:
            see(site, entered[site.row], z)
        if site.row == last:
            raise LastSiteSeen
        return gate(z, site, gates)

    router = Router(loaded.sites, others=loaded.others, mechanism=attend)
    watching = watch_inputs(
        loaded.sites, lambda site, inputs: entered.update({site.row: inputs.x_q})
    )
    with routed(loaded.network, router), watching, suppress(LastSiteSeen):
        run: Run = loaded.run
        run(*batch.inputs, **batch.decoder_inputs)
