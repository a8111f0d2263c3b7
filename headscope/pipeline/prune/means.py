r"""Repair by means: a head that goes leaves behind what it puts out on average.

::

    b_O + sum over heads of (1 - xi_h) (mean over calibration tokens of z_h) W_O[h]

Gates then multiply deviations from the mean. The means are free at run time: they are part of b_O.

References
----------
Li & Janson 2024, arXiv:2409.09951 (there as ablation by the optimal constant).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from headscope.data.token_rows import Padded
from headscope.models.intervene import Means, capture_layers, shared_layers
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.output_maps import OutputMap, output_map
from headscope.pipeline.tasks import Task
from headscope.processes.sharing import share, summed


def mean_z(loaded: LoadedModel, task: Task, *, everywhere: bool = False) -> dict[int, Tensor]:
    """Average the full model's z over the real queries of each layer.

    Parameters
    ----------
    loaded : LoadedModel
        The full model.
    task : Task
        The examples to average over.
    everywhere : bool
        Also where there is no b_O to keep a mean (T5): gates can leave it behind all the same.

    Returns
    -------
    dict of int to Tensor, (n_heads, d_head), float64
        By row of the site. Layers that share a module have one b_O, so each has the mean of all of
        them. Zeros where there is no b_O, unless ``everywhere``.
    """
    sums = {site.row: torch.zeros(site.n_heads, site.d_head).double() for site in loaded.sites}
    counts = dict.fromkeys(sums, 0)
    ones = torch.ones(loaded.n_layers, loaded.n_heads)
    for batch in share(task.batches(loaded)):
        see = partial(_add, sums, counts, batch)
        capture_layers(loaded, batch, ones, range(loaded.n_layers), see)
    totals = torch.tensor(list(counts.values()))
    *added, totals = summed("means of z", *sums.values(), totals)
    sums = dict(zip(sums, added, strict=True))
    counts = dict(zip(counts, totals.tolist(), strict=True))
    means = {}
    for layers in shared_layers(loaded.sites):
        total = torch.stack([sums[row] / max(counts[row], 1) for row in layers]).mean(dim=0)
        kept = everywhere or loaded.sites[layers[0]].projections.out.bias is not None
        means.update(dict.fromkeys(layers, total if kept else torch.zeros_like(total)))
    return means


def _add(
    sums: dict[int, Tensor],
    counts: dict[int, int],
    batch: Padded,
    site: AttentionSite,
    _: Tensor,
    z: Tensor,
) -> None:
    """Add a site's z (batch, n_heads, pos, d_head) at real queries."""
    rows = z.transpose(1, 2)[batch.queries_of(site.stack).bool()].cpu().double()
    sums[site.row] += rows.sum(dim=0)
    counts[site.row] += len(rows)


def with_means(loaded: LoadedModel, means: Means, gates: Tensor) -> dict[int, OutputMap]:
    """Fold into b_O what gates leave behind.

    Parameters
    ----------
    loaded : LoadedModel
        The full model.
    means : mapping of int to Tensor, (n_heads, d_head)
        As :func:`mean_z` gives them.
    gates : Tensor, (n_layers, n_heads)
        Of each head; the same for layers that share a module.

    Returns
    -------
    dict of int to OutputMap
        W_O as it is, and the new b_O, of the first layer of each module where any gate is not 1.
    """
    found = {}
    for layers in shared_layers(loaded.sites):
        site = loaded.sites[layers[0]]
        left = 1 - gates[site.row, : site.n_heads].cpu().double()
        if left.any() and site.projections.out.bias is not None:
            own = output_map(site)
            shift = (left[:, None] * means[site.row]).flatten() @ own.W.cpu().double()
            found[site.row] = OutputMap(own.W, own.b + shift.to(own.b))
    return found
