"""A head's output, taken away once more in a random direction: an intervention of the same size."""

from __future__ import annotations

import torch
from torch import Tensor

from headscope.models.layouts import AttentionSite
from headscope.models.output_maps import OutputMap, output_map
from headscope.models.surgery import head_rows


def less_random_write(site: AttentionSite, head: int, generator: torch.Generator) -> OutputMap:
    """Return a site's output map that takes ``z W_O Q`` from what it writes, Q a random rotation.

    Removing the head takes ``z W_O`` away. The rotation keeps the length of what is taken at every
    token, and the angles between tokens; only the directions are random.

    Parameters
    ----------
    site : AttentionSite
        Where the head is.
    head : int
        Its place in the site.
    generator : torch.Generator
        Draws the rotation, on the CPU.
    """
    own = output_map(site)
    rows = head_rows([head], site.d_head).to(own.W.device)
    W = own.W[rows].cpu().double()  # (d_head, d_model)
    # W = R^T Q^T, so a random orthonormal frame in the place of Q is W times a random rotation.
    size: Tensor = torch.linalg.qr(W.t(), mode="r").R
    frame = _random_frame(W.shape[1], len(size), generator)
    new = own.W.clone()
    new[rows] = (W - size.t() @ frame.t()).to(new)
    return OutputMap(new, own.b)


def _random_frame(d: int, width: int, generator: torch.Generator) -> Tensor:
    """Draw (d, width) orthonormal columns, uniformly distributed."""
    Q, R = torch.linalg.qr(torch.randn(d, width, generator=generator, dtype=torch.float64))
    frame: Tensor = Q * R.diagonal().sign()
    return frame
