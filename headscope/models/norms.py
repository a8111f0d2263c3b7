"""Which LayerNorm, if any, hands each attention site its input."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headscope.models.hooks import hooked, watch_inputs
from headscope.models.layouts import AttentionInput, AttentionSite
from headscope.models.loaded import LoadedModel


def preceding_norms(loaded: LoadedModel) -> dict[int, nn.LayerNorm]:
    """Find the LayerNorm whose output is the input of each layer's W_Q, by layer.

    Watched in one tiny forward pass, so post-LN and pre-LN models need no case of their own. A
    layer whose input comes from anything else (a projection of the embeddings, in ALBERT and
    ELECTRA) is missing.
    """
    written: dict[int, tuple[nn.LayerNorm, Tensor]] = {}
    found: dict[int, nn.LayerNorm] = {}

    def note(norm: nn.Module, _: object, out: Tensor) -> None:
        if isinstance(norm, nn.LayerNorm):
            # The tensor is kept, so that its address cannot be given to another one.
            written[out.data_ptr()] = (norm, out)

    def see(site: AttentionSite, inputs: AttentionInput) -> None:
        x = inputs.x_q
        norm, out = written.get(x.data_ptr(), (None, None))
        if norm is not None and out is not None and out.shape == x.shape:
            found[site.row] = norm

    norms = [module for module in loaded.model.modules() if isinstance(module, nn.LayerNorm)]
    notes = hooked(norm.register_forward_hook(note) for norm in norms)
    with notes, watch_inputs(loaded.sites, see):
        loaded.run_tiny()
    return found


def gain_and_shift(norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """Return what a LayerNorm multiplies by and adds; ones and zeros where it has none."""
    like = torch.ones(norm.normalized_shape, dtype=torch.float64)
    gain: Tensor | None = norm.weight
    shift: Tensor | None = norm.bias
    return like if gain is None else gain, torch.zeros_like(like) if shift is None else shift
