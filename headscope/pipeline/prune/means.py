r"""Repair by means: a removed head leaves behind what it puts out on average.

::

    b_O + sum over removed h of (mean over calibration tokens of z_h) W_O[h]

A removed head then costs no more than its deviations from its mean, and the mean is free at run
time: it is part of b_O.

References
----------
Li & Janson 2024, arXiv:2409.09951 (there as ablation by the optimal constant).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from headscope.models.capture import capture_layers
from headscope.models.gating import shared_layers
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.output_maps import OutputMap, output_map
from headscope.pipeline.tasks import Task
from headscope.pruning.surgery import head_rows


def mean_z(loaded: LoadedModel, task: Task) -> dict[int, Tensor]:
    """Average the full model's z over the real queries of each layer.

    Returns
    -------
    dict of int to Tensor, (n_heads * d_head,), float64
        By row of the site.
    """
    totals: dict[int, Tensor] = {}
    counts = dict.fromkeys(range(loaded.n_layers), 0)
    ones = torch.ones(loaded.n_layers, loaded.n_heads)
    for batch in task.batches(loaded):
        real = {stack: batch.queries_of(stack).bool() for stack in loaded.stacks}

        def see(
            site: AttentionSite, _: Tensor, z: Tensor, real: Mapping[str, Tensor] = real
        ) -> None:
            rows = z.transpose(1, 2).flatten(2)[real[site.stack]].double()
            totals[site.row] = totals.get(site.row, 0) + rows.sum(dim=0).cpu()
            counts[site.row] += len(rows)

        capture_layers(loaded, batch, ones, range(loaded.n_layers), see)
    return {row: total / max(counts[row], 1) for row, total in totals.items()}


def with_means(
    loaded: LoadedModel, means: Mapping[int, Tensor], removed: Iterable[tuple[int, int]]
) -> dict[int, OutputMap]:
    """Fold the means of removed heads into b_O.

    Parameters
    ----------
    loaded : LoadedModel
        The full model.
    means : mapping of int to Tensor, (n_heads * d_head,)
        As :func:`mean_z` gives them.
    removed : iterable of (int, int)
        Row and place of each head that goes; of layers that share a module, all.

    Returns
    -------
    dict of int to OutputMap
        Of the first layer of each module that loses a head and has a b_O (T5 has none: a head that
        goes leaves nothing behind there). Layers that share one have one b_O, so it gets the
        average of what each of them would.
    """
    gone = set(removed)
    found = {}
    for layers in shared_layers(loaded.sites):
        site = loaded.sites[layers[0]]
        heads = [head for head in range(site.n_heads) if (site.row, head) in gone]
        if heads and site.projections.out.bias is not None:
            own, rows = output_map(site), head_rows(heads, site.d_head)
            average = torch.stack([means[layer][rows] for layer in layers]).mean(dim=0)
            W = own.W[rows.to(own.W.device)]
            found[layers[0]] = OutputMap(own.W, own.b + average.to(W) @ W)
    return found
