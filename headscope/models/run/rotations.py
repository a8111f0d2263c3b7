"""In which planes each layer of a model turns its queries and keys, and by which angles.

The model is run on three tokens. What it hands to each layer tells the planes and, rounded to its
dtype, the angles; the exact ones are those of its own rotary module (``inv_freq``) that they are
nearest to. Layers that look near and far (ModernBERT, Gemma 3) differ in their angles, and some
(SmolLM3) turn nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from headscope.core.errors import InputError
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import AttentionInput
from headscope.models.run.devices import DTYPES
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.site_hooks import watch_inputs
from headscope.stats.planes import Planes


def rotations(loaded: LoadedModel) -> dict[int, Planes]:
    """Return the planes of each layer by the row of its site, without layers that turn nothing."""
    handed: dict[int, Planes] = {}

    def read(site: AttentionSite, inputs: AttentionInput) -> None:
        planes = site.planes(inputs)
        if planes is not None:
            handed[site.row] = planes

    with watch_inputs(loaded.sites, read):
        loaded.run_tiny()
    kept: list[Tensor] = []  # the angles that rotary modules keep
    for name, buffer in loaded.model.named_buffers():
        if name.endswith("inv_freq"):
            kept.append(buffer.detach().cpu().double())
    return {row: _exact(loaded, planes, kept) for row, planes in handed.items()}


def _exact(loaded: LoadedModel, planes: Planes, kept: Sequence[Tensor]) -> Planes:
    """Exchange angles that were rounded for the nearest that a rotary module keeps.

    A model without such a module has a table of cosines and sines; its angles are read from that.
    """
    tolerance = 8 * torch.finfo(DTYPES[loaded.dtype]).eps
    nearest = None
    for angle in kept:
        if angle.shape == planes.angle.shape:
            error = float((_on_circle(angle) - _on_circle(planes.angle)).abs().max())
            if error < tolerance:
                nearest = angle
                tolerance = error
    if nearest is not None:
        return dataclasses.replace(planes, angle=nearest)
    if DTYPES[loaded.dtype].itemsize < torch.float32.itemsize:
        raise InputError(
            f"{loaded.name} keeps the angles of its rotation rounded to {loaded.dtype}, too coarse "
            "for far positions; give dtype='float32'."
        )
    return planes


def _on_circle(angle: Tensor) -> Tensor:
    """Return the point of the unit circle at each angle, a complex number."""
    return torch.polar(torch.ones_like(angle), angle)
