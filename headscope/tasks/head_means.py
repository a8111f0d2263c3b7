r"""Mean outputs of heads: what a head that goes may leave behind.

::

    b_O + sum over heads of (1 - xi_h) (mean over calibration tokens of z_h) W_O[h]

Gates then multiply deviations from the mean. The means are free at run time: they are part of b_O.

References
----------
Li & Janson 2024, arXiv:2409.09951 (there as ablation by the optimal constant).
"""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.core.processes import share, summed
from headscope.data.token_rows import Padded
from headscope.models.intervene import Means, capture_layers, shared_layers
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.output_maps import OutputMap, output_map
from headscope.tasks.base import Task


def mean_z(loaded: LoadedModel, task: Task, *, everywhere: bool = False) -> dict[int, Tensor]:
    """Average the full model's z over the real queries of each layer.

    Gives (n_heads, d_head), float64, by row of the site. Layers that share a module have one b_O,
    so each has the mean of all of them. Zeros where there is no b_O to keep a mean (T5), unless
    ``everywhere``: gates can leave it behind all the same.
    """
    sums = {site.row: torch.zeros(site.n_heads, site.d_head).double() for site in loaded.sites}
    counts = dict.fromkeys(sums, 0)
    ones = torch.ones(loaded.n_layers, loaded.n_heads)
    for batch in share(task.batches(loaded)):

        def add(site: AttentionSite, _: Tensor, z: Tensor, batch: Padded = batch) -> None:
            real = batch.queries_of(site.stack).bool()
            rows = z.transpose(1, 2)[real].cpu().double()  # (tokens, n_heads, d_head)
            sums[site.row] += rows.sum(dim=0)
            counts[site.row] += len(rows)

        capture_layers(loaded, batch, ones, range(loaded.n_layers), add)
    totals = torch.tensor(list(counts.values()))
    *added, totals = summed("means of z", *sums.values(), totals)
    means = {
        row: total / max(count, 1)
        for row, total, count in zip(sums, added, totals.tolist(), strict=True)
    }
    for layers in shared_layers(loaded.sites):
        mean = torch.stack([means[row] for row in layers]).mean(dim=0)
        kept = everywhere or loaded.sites[layers[0]].projections.out.bias is not None
        means.update(dict.fromkeys(layers, mean if kept else torch.zeros_like(mean)))
    return means


def with_means(loaded: LoadedModel, means: Means, gates: Tensor) -> dict[int, OutputMap]:
    """Fold into b_O what gates (n_layers, n_heads) leave behind of the means.

    Gives W_O as it is with the new b_O, by the first layer of each module where any gate is not 1;
    layers that share a module have the same gates.
    """
    maps = {}
    for layers in shared_layers(loaded.sites):
        site = loaded.sites[layers[0]]
        left = 1 - gates[site.row, : site.n_heads].cpu().double()
        if left.any() and site.projections.out.bias is not None:
            own = output_map(site)
            shift = (left[:, None] * means[site.row]).flatten() @ own.W.cpu().double()
            maps[site.row] = OutputMap(own.W, own.b + shift.to(own.b))
    return maps
