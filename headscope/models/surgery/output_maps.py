"""W_O and b_O of a model's layers, exchanged for a while or for good.

A head's z (pos, d_head) is its mixture of values. A layer adds ``z W_O + b_O`` to the residual
stream, z of all its heads side by side. ``loaded.sites`` lists where attention runs, one site for
each layer of each stack; a site's row is its place there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import bias_of
from headscope.models.run.loaded import LoadedModel


@dataclass(frozen=True)
class OutputMap:
    """What one layer does with its heads' z: ``z W + b``."""

    #: W_O of all heads, stacked, (n_heads * d_head, d_model); without the columns that some
    #: families store in the same tensor for their feed-forward network.
    W: Tensor
    b: Tensor  # b_O, (d_model,); zeros where the layer has none


def output_map(site: AttentionSite) -> OutputMap:
    """Copy a site's W_O and b_O."""
    b = bias_of(site.projections.out)
    return OutputMap(site.output_weight.detach().t().clone(), b.detach().clone())


#: Original output maps of the attention modules whose map is replaced while a block runs; only
#: :func:`replaced_outputs` writes here.
_ORIGINALS: dict[nn.Module, OutputMap] = {}


@contextmanager
def replaced_outputs(loaded: LoadedModel, maps: Mapping[int, OutputMap]) -> Iterator[None]:
    """Run a model with other output maps, given by row, then put back those it had.

    Such blocks may be nested: the outermost one knows the original maps.
    """
    maps_before = {row: output_map(loaded.sites[row]) for row in maps}
    newly_replaced: dict[nn.Module, OutputMap] = {}
    for row, map_before in maps_before.items():
        module = loaded.sites[row].module
        if module not in _ORIGINALS:  # else an outer block has noted it
            newly_replaced[module] = map_before
    _ORIGINALS.update(newly_replaced)
    try:
        for row, new_map in maps.items():
            _fill(loaded.sites[row], new_map)
        yield
    finally:
        for row, map_before in maps_before.items():
            _fill(loaded.sites[row], map_before)
        for module in newly_replaced:
            del _ORIGINALS[module]


@contextmanager
def original_outputs(loaded: LoadedModel) -> Iterator[None]:
    """Run a model with its original output maps, even while :func:`replaced_outputs` has others."""
    originals = {
        site.row: _ORIGINALS[site.module] for site in loaded.sites if site.module in _ORIGINALS
    }
    with replaced_outputs(loaded, originals):
        yield


def make_permanent(
    compact: LoadedModel, full: LoadedModel, gates: Tensor, maps: Mapping[int, OutputMap]
) -> None:
    """Write a repair of a model with gated heads into its compact copy, in place.

    A repair is gates, and new output maps of some layers, that make up for the heads whose gate is
    zero. The compact copy has lost these heads.

    Parameters
    ----------
    compact, full : LoadedModel
        The copy without the heads, which is changed, and the model with all of them.
    gates : Tensor, (n_layers, n_heads)
        What z of each head of ``full`` is multiplied by.
    maps : mapping of int to OutputMap
        New output maps by row, of all heads of ``full``; other layers keep theirs.
    """
    done: set[nn.Module] = set()
    for site, full_site in zip(compact.sites, full.sites, strict=True):
        if site.module in done:  # ALBERT: one map, many layers
            continue
        done.add(site.module)
        # positions among the full layer's heads of the heads that are left
        indices = [full_site.head_ids.index(head) for head in site.head_ids]
        if site.row in maps:
            repaired = maps[site.row]
            d_model = repaired.W.shape[1]
            by_head = repaired.W.reshape(-1, site.d_head, d_model)  # [heads, d_head, d_model]
            _fill(site, OutputMap(by_head[indices].flatten(0, 1), repaired.b))
        # a gate on z is a factor of the head's columns of the output weight
        factors = gates[site.row, indices].to(site.output_weight)  # [heads]
        with torch.no_grad():
            site.output_weight.mul_(factors.repeat_interleave(site.d_head))


def _fill(site: AttentionSite, new: OutputMap) -> None:
    """Write another output map into a site's module; b_O only where the module has one."""
    out = site.projections.out
    with torch.no_grad():
        site.output_weight.copy_(new.W.t())
        if out.bias is not None:
            out.bias.copy_(new.b)


def minus_random_write(site: AttentionSite, head: int, generator: torch.Generator) -> OutputMap:
    """Return an output map that subtracts a head's write, turned in a random direction.

    This is the control for removing the head, which subtracts its write ``z W_O`` itself. Here W_O
    is first multiplied by a random rotation of the residual stream, which keeps the length of what
    is subtracted at every token, and the angles between tokens. ``head`` is an index among the
    heads that the site has; the generator is one on the CPU.
    """
    original = output_map(site)
    rows = slice(head * site.d_head, (head + 1) * site.d_head)
    W = original.W[rows].cpu().double()  # (d_head, d_model)
    # W^T = Q R, with orthonormal columns Q. R^T F^T, with random orthonormal columns F in place of
    # Q, is W times a random rotation.
    R: Tensor = torch.linalg.qr(W.t(), mode="r").R
    noise = torch.randn(W.shape[1], len(R), generator=generator, dtype=torch.float64)
    columns, triangle = torch.linalg.qr(noise)
    F = columns * triangle.diagonal().sign()  # (d_model, d_head), uniformly distributed
    W_rotated = R.t() @ F.t()  # (d_head, d_model)
    new = original.W.clone()
    new[rows] = (W - W_rotated).to(new)
    return OutputMap(new, original.b)
