r"""Running a model with its heads gated: z of head h is multiplied by xi_h before W_O.

::

    z_h = xi_h * pattern_h v_h         xi_h = 0 removes head h, its b_V included; b_O stays

Gates may differ by example or by token, so that one backward pass gives every derivative that a
score of heads is made of: d loss_i / d xi_h for each example i, or z . dL/dz for each token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from headscope.attention import Mask, attention_pattern, stream_attention
from headscope.models.hooks import grouped
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Router, routed

#: Runs one batch: hidden state and logits, as :meth:`LoadedModel.run`.
Run = Callable[..., tuple[Tensor, Tensor | None]]


def gate(z: Tensor, site: AttentionSite, gates: Tensor) -> Tensor:
    """Multiply a site's z (batch, n_heads, pos, d_head) by its gates.

    These are (n_layers, n_heads), (batch, n_layers, n_heads) or (batch, n_layers, n_heads, pos),
    where ``pos`` has room for the queries of every stack.
    """
    if gates.dim() < 4:
        gates = gates[..., None]
    return z * gates[..., site.row, : site.n_heads, : z.shape[2], None].to(z)


@contextmanager
def gated(
    loaded: LoadedModel, gates: Tensor | None = None, *, gradients: bool = False
) -> Iterator[Run]:
    """Yield a function that runs ``loaded`` through our attention, with gates if there are any.

    Parameters
    ----------
    loaded : LoadedModel
        Its task head runs too, if it has one.
    gates : Tensor, optional
        As :func:`gate` takes them.
    gradients : bool
        Let autograd record; the model's parameters get no gradient.

    Yields
    ------
    callable
        Takes what :meth:`LoadedModel.run` takes and returns the same; checks that our attention
        ran once at every site.
    """

    def attend(
        site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        if gradients:
            z = attention_pattern(q, k, scale=scale, mask=mask) @ v
        else:
            z = stream_attention(q, k, v, mask=mask, scale=scale)
        return z if gates is None else gate(z, site, gates)

    router = Router(loaded.sites, others=loaded.others, mechanism=attend)
    with _frozen(loaded.network), routed(loaded.network, router, gradients=gradients):
        yield lambda *args, **options: router.checked(loaded.run, *args, **options)


def shared_layers(sites: Sequence[AttentionSite]) -> tuple[tuple[int, ...], ...]:
    """Group rows whose sites run one and the same module (ALBERT): their heads go together."""
    groups = grouped(sites, lambda site: site.module).values()
    return tuple(tuple(site.row for site in group) for group in groups)


@contextmanager
def _frozen(network: nn.Module) -> Iterator[None]:
    """Keep autograd from recording anything for the sake of the parameters."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
