r"""One way to change what a running model computes: ``with intervene(model, z=change): ...``.

=============  ==========================================  =======================================
keyword        change                                      what then runs
=============  ==========================================  =======================================
``attention``  (site, q, k, v, mask, scale) -> z           a layer's attention; ``ExchangedHeads``
                                                           gives some heads another formula
``scores``     {row: (L, R)}, (n_heads, d_model, width)    scores ``x L_h R_h^T x^T``
``z``          (site, z) -> z, (batch, n_heads, pos,       the heads' outputs before W_O, such as
               d_head)                                     gates: ``z_h = xi_h * pattern_h v_h``
=============  ==========================================  =======================================

*Where.* At every site (a layer of attention) in ``model.sites``: of the stack that a view shows, or
of encoder, decoder and cross-attention in this order. A change tells them apart by ``site.stack``
and by ``site.row``, the place of the site in ``model.sites``. Our attention runs in the other
stacks too, unchanged. A module that serves several layers (ALBERT) is a site in each.
*Together.* ``z`` is changed after what ``attention`` or ``scores`` make it. Nested interventions on
one model do not add up: the innermost applies, and the outer one again when it ends.
*Gradients* flow through the change and the whole model with ``gradients=True``, where the
parameters are frozen; else nothing is recorded.
*Undone.* Implementation, forwards, hooks and ``requires_grad`` are as before when the block ends,
also after an exception inside a forward or a change.

The same holds for :mod:`~headscope.models.run.site_hooks`, which change nothing, for
:func:`~headscope.models.surgery.output_maps.replaced_outputs`, which exchanges W_O and b_O, and for
:mod:`~headscope.models.run.replay`, which skips layers before the first change. Mechanisms for
``attention`` and ``scores`` are in :mod:`~headscope.models.run.formulas`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headscope.attention import Mask, attention_pattern
from headscope.core.widest import exact
from headscope.data.token_rows import Padded
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.formulas import FactoredScores, Factors, in_chunks
from headscope.models.run.hooks import grouped
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Mechanism, Router, routed
from headscope.models.run.site_hooks import watch_inputs

#: Runs one batch as :meth:`LoadedModel.run` does: last hidden state and logits.
Run = Callable[..., tuple[Tensor, Tensor | None]]
#: z that takes the place of removed heads, by the row of their site: (n_heads, d_head) such as a
#: mean over texts, or (batch or 1, n_heads, pos, d_head).
Means = Mapping[int, Tensor]
#: Turns (site, z) into another z, (batch, n_heads, pos, d_head).
ChangeOfZ = Callable[[AttentionSite, Tensor], Tensor]


@contextmanager
def intervene(
    loaded: LoadedModel,
    *,
    attention: Mechanism | None = None,
    scores: Factors | None = None,
    z: ChangeOfZ | None = None,
    gradients: bool = False,
) -> Iterator[Router]:
    """Run ``loaded`` through our attention, changed by one keyword or more of the table above.

    Yields the router, which counts the calls of our attention.
    """
    with ExitStack() as stack:
        if scores is not None:
            factored = FactoredScores(loaded, scores)
            stack.enter_context(watch_inputs(loaded.sites, factored.keep_inputs))
            attention = factored
        router = Router(
            loaded.sites,
            unmeasured_sites=loaded.unmeasured_sites,
            mechanism=_mechanism(attention, z, gradients),
        )
        if gradients:
            stack.enter_context(_frozen(loaded.network))
        stack.enter_context(routed(loaded.network, router, gradients=gradients))
        yield router


def _mechanism(
    attention: Mechanism | None, change_z: ChangeOfZ | None, gradients: bool
) -> Mechanism | None:
    """Return what runs in place of our attention; None where nothing is to be changed."""
    if attention is None and change_z is None and not gradients:
        return None
    make_z: Mechanism
    if attention is not None:
        make_z = attention
    elif gradients:
        make_z = _in_one_piece
    else:
        make_z = in_chunks
    if change_z is None:
        return make_z

    def make_and_change_z(
        site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
    ) -> Tensor:
        return change_z(site, make_z(site, q, k, v, mask, scale))

    return make_and_change_z


def _in_one_piece(
    site: AttentionSite, q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None
) -> Tensor:
    """Attend as autograd can follow: with the whole pattern in memory, not chunk by chunk."""
    return attention_pattern(q, k, scale=scale, softcap=site.softcap, mask=mask) @ v


@contextmanager
def _frozen(network: nn.Module) -> Iterator[None]:
    """Freeze the parameters, so that autograd records nothing for them."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


# --- gates: z_h = xi_h pattern_h v_h + (1 - xi_h) m_h ---------------------------------------------


@contextmanager
def gated(
    loaded: LoadedModel,
    gates: Tensor | None = None,
    *,
    gradients: bool = False,
    means: Means | None = None,
) -> Iterator[Run]:
    """Yield a function that runs ``loaded`` with gates on its heads, as ``loaded.run`` would.

    A gate of zero removes a head, its b_V included, or leaves its mean behind; b_O stays. Without
    ``gates`` the model runs unchanged. Every pass is checked to run our attention once at every
    site.
    """

    def gate_site(site: AttentionSite, z: Tensor) -> Tensor:
        assert gates is not None
        return gate(z, site, gates, means)

    change = None if gates is None else gate_site
    with intervene(loaded, z=change, gradients=gradients) as router:

        def run(*inputs: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
            return router.checked(loaded.run, *inputs, **options)

        yield run


def gate(z: Tensor, site: AttentionSite, gates: Tensor, means: Means | None = None) -> Tensor:
    """Mix a site's z (batch, n_heads, pos, d_head) with zeros or means: all z where a gate is one.

    ``gates`` are those of all sites: (n_layers, n_heads), or with one for each example (batch,
    n_layers, n_heads), or for each position besides (batch, n_layers, n_heads, pos), where ``pos``
    is that of the longest sequence. With gates for each example i, one backward pass gives the
    derivative d loss_i / d xi_h of every example and head.
    """
    if gates.dim() < 4:  # one gate for all positions
        gates = gates[..., None]
    n_queries = z.shape[2]
    site_gates = gates[..., site.row, : site.n_heads, :n_queries]  # (..., heads, queries or 1)
    site_gates = site_gates[..., None].to(z)  # one gate for all of d_head
    if means is None:
        return z * site_gates
    mean = means[site.row].to(z)
    if mean.dim() == 2:  # one mean for all positions
        mean = mean[:, None]
    return z * site_gates + mean * (1 - site_gates)  # exact at gates of one and of zero


def shared_layers(sites: Sequence[AttentionSite]) -> tuple[tuple[int, ...], ...]:
    """Group the rows of sites that share a module: a head is removed from all of them or none.

    BERT with three layers: ((0,), (1,), (2,)); ALBERT: ((0, 1, 2),).
    """
    groups = grouped(sites, lambda site: site.module).values()
    return tuple(tuple(site.row for site in group) for group in groups)


# --- the mean z that may take the place of a removed head -----------------------------------------


def sums_of_z(
    loaded: LoadedModel,
    batches: Iterable[tuple[Padded, Mapping[str, Sequence[Tensor]]]],
    kinds: int = 1,
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Add up every head's z over the positions of each of ``kinds`` kinds, in the unchanged model.

    Kinds may be content tokens and special tokens, say: each batch (token ids and masks) comes with
    a mask (batch, query_pos) of every kind, listed under the name of each stack. Returns sums
    (kinds, n_heads, d_head) and counts (kinds,), float64 on the CPU, by row of the site.
    """
    sums: dict[int, Tensor] = {}
    counts: dict[int, Tensor] = {}
    for site in loaded.sites:
        sums[site.row] = torch.zeros(kinds, site.n_heads, site.d_head, dtype=torch.float64)
        counts[site.row] = torch.zeros(kinds, dtype=torch.float64)
    masks: Mapping[str, Sequence[Tensor]] = {}

    def add(site: AttentionSite, z: Tensor) -> Tensor:
        for kind, mask in enumerate(masks[site.stack]):
            token_z = exact(z.transpose(1, 2)[mask]).cpu()  # (tokens, n_heads, d_head)
            sums[site.row][kind] += token_z.sum(dim=0)
            counts[site.row][kind] += len(token_z)
        return z

    with intervene(loaded, z=add) as router:
        run: Run = loaded.run
        for batch, batch_masks in batches:
            masks = batch_masks  # read by ``add`` in this batch's pass
            router.run(partial(run, *batch.inputs, **batch.decoder_inputs))
    return sums, counts
