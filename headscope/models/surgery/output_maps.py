"""W_O and b_O of a model's layers, exchanged for a while or for good."""

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
    """What one layer does with its heads' z."""

    #: W_O of all heads, stacked, (n_heads * d_head, d_model); without what a family puts beside
    #: attention.
    W: Tensor
    b: Tensor  # b_O, (d_model,); zeros where the layer has none


def output_map(site: AttentionSite) -> OutputMap:
    """Copy a site's W_O and b_O."""
    b = bias_of(site.projections.out)
    return OutputMap(site.output_weight.detach().t().clone(), b.detach().clone())


#: Original output maps of modules whose map is temporarily replaced.
_ORIGINALS: dict[nn.Module, OutputMap] = {}


@contextmanager
def replaced_outputs(loaded: LoadedModel, maps: Mapping[int, OutputMap]) -> Iterator[None]:
    """Run a model with other output maps, given by row, then put back those it had."""
    maps_before = {row: output_map(loaded.sites[row]) for row in maps}
    newly_replaced: dict[nn.Module, OutputMap] = {}
    for row, map_before in maps_before.items():
        module = loaded.sites[row].module
        if module not in _ORIGINALS:
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
    """Write a repair of ``full`` into its compact copy, in place.

    ``gates`` (n_layers, n_heads) are as the full model counts its heads; layers that ``maps`` lacks
    keep their W_O.
    """
    done: set[nn.Module] = set()
    for site, full_site in zip(compact.sites, full.sites, strict=True):
        if site.module in done:  # ALBERT: one map, many layers
            continue
        done.add(site.module)
        indices = [full_site.head_ids.index(head) for head in site.head_ids]
        if site.row in maps:
            repaired = maps[site.row]
            by_head = repaired.W.reshape(-1, site.d_head, repaired.W.shape[1])
            _fill(site, OutputMap(by_head[indices].flatten(0, 1), repaired.b))
        factors = gates[site.row, indices].to(site.output_weight)
        with torch.no_grad():  # a gate made permanent
            site.output_weight.mul_(factors.repeat_interleave(site.d_head))


def _fill(site: AttentionSite, new: OutputMap) -> None:
    """Write another output map into a site's module; b_O only where the module has one."""
    out = site.projections.out
    with torch.no_grad():
        site.output_weight.copy_(new.W.t())
        if out.bias is not None:
            out.bias.copy_(new.b)


def minus_random_write(site: AttentionSite, head: int, generator: torch.Generator) -> OutputMap:
    """Return a site's output map that takes ``z W_O Q`` from what it writes, Q a random rotation.

    An intervention of the same size as removing the head, which takes ``z W_O`` away: the rotation
    keeps the length of what is taken at every token, and the angles between tokens; only the
    directions are random. The generator is one on the CPU.
    """
    original = output_map(site)
    rows = slice(head * site.d_head, (head + 1) * site.d_head)
    W = original.W[rows].cpu().double()  # (d_head, d_model)
    # W = R^T Q^T, so a random orthonormal frame in the place of Q is W times a random rotation.
    R: Tensor = torch.linalg.qr(W.t(), mode="r").R
    noise = torch.randn(W.shape[1], len(R), generator=generator, dtype=torch.float64)
    Q, triangle = torch.linalg.qr(noise)
    frame = Q * triangle.diagonal().sign()  # (d_model, d_head), uniformly distributed
    new = original.W.clone()
    new[rows] = (W - R.t() @ frame.t()).to(new)
    return OutputMap(new, original.b)
