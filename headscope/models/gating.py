r"""Running a model with its heads gated: z of head h is multiplied by xi_h before W_O.

::

    z_h = xi_h * pattern_h v_h         xi_h = 0 removes head h, its b_V included; b_O stays

A head may also leave its mean m behind, in place of nothing: ``z_h = m_h + xi_h (pattern_h v_h -
m_h)``.

Gates may differ by example or by token, so that one backward pass gives every derivative that a
score of heads is made of: d loss_i / d xi_h for each example i, or z . dL/dz for each token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from headscope.attention import Mask, attention_pattern, stream_attention
from headscope.models.hooks import grouped
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Router, routed

#: Runs one batch: hidden state and logits, as :meth:`LoadedModel.run`.
Run = Callable[..., tuple[Tensor, Tensor | None]]
#: What each head of a site puts out on average, (n_heads, d_head), by the site's row.
Means = Mapping[int, Tensor]


def gate(z: Tensor, site: AttentionSite, gates: Tensor, means: Means | None = None) -> Tensor:
    """Multiply a site's z (batch, n_heads, pos, d_head), or what it differs by from its mean.

    Gates are (n_layers, n_heads), (batch, n_layers, n_heads) or (batch, n_layers, n_heads, pos),
    where ``pos`` has room for the queries of every stack.
    """
    if gates.dim() < 4:
        gates = gates[..., None]
    own = gates[..., site.row, : site.n_heads, : z.shape[2], None].to(z)
    if means is None:
        return z * own
    mean = means[site.row][:, None].to(z)
    return mean + (z - mean) * own


@contextmanager
def gated(
    loaded: LoadedModel,
    gates: Tensor | None = None,
    *,
    gradients: bool = False,
    means: Means | None = None,
    start: int = 0,
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
    means : mapping of int to Tensor, optional
        What gates of zero leave behind, as :func:`gate` takes it; nothing if not given.
    start : int
        The first row whose site has to run; those before it are played back by whoever says so.

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
        return z if gates is None else gate(z, site, gates, means)

    before = loaded.sites[:start]
    router = Router(loaded.sites[start:], others=(*loaded.others, *before), mechanism=attend)
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
