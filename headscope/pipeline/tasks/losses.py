"""Differentiable losses of a batch as functions of head gates: what scores are made of."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.data.token_rows import Padded
from headscope.models.intervene import Means, gated
from headscope.models.loaded import LoadedModel
from headscope.models.output_maps import own_outputs
from headscope.models.task_heads import Select

#: From a batch's hidden states and logits to a loss (size,) or an embedding (size, d).
Read = Callable[[Padded, Tensor, Tensor | None], Tensor]


class LossBatch:
    """Some examples whose loss can be differentiated by the gates of heads.

    Parameters
    ----------
    loaded : LoadedModel
        Runs the batch, with gates.
    batch : Padded
        Token ids and mask, (rows, pos), on the model's device.
    owner : Tensor, (rows,)
        The example that each row belongs to.
    loss, embed : callable
        ``(batch, hidden, logits) -> (size,)`` and ``-> (size, d)``.
    select_loss, select_embed : callable, optional
        What the head gets for either.

    Notes
    -----
    With gates ``(size, n_layers, n_heads)`` the gradient of ``loss(gates).sum()`` holds every
    example's own derivative d loss_i / d xi. With gates ``(rows, n_layers, n_heads, pos)`` it is
    z . dL/dz of every query; ``pos`` is the length of the longest sequence that any stack reads.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        batch: Padded,
        owner: Tensor,
        *,
        loss: Read,
        embed: Read,
        select_loss: Select | None = None,
        select_embed: Select | None = None,
    ) -> None:
        self._loaded, self._batch, self._owner = loaded, batch, owner
        self._loss, self._embed = loss, embed
        self._select_loss, self._select_embed = select_loss, select_embed
        self._means: Means | None = None

    def leaving(self, means: Means) -> LossBatch:
        """Return the same batch, in which a gate of zero leaves the head's mean behind."""
        other = copy(self)
        other._means = means
        return other

    @property
    def size(self) -> int:
        """Examples in the batch."""
        return int(self._owner.max()) + 1

    @property
    def query_mask(self) -> Tensor:
        """(rows, n_layers, pos): 1 where a layer's query is a real token.

        The queries of decoder and cross-attention are target positions, those of the encoder are
        source positions.
        """
        masks = [self._batch.queries_of(site.stack) for site in self._loaded.sites]
        longest = max(mask.shape[1] for mask in masks)
        return torch.stack([F.pad(mask, (0, longest - mask.shape[1])) for mask in masks], dim=1)

    def gates(self, kind: str = "example") -> Tensor:
        """Return gates of one to differentiate by.

        Parameters
        ----------
        kind : str
            ``shared`` (n_layers, n_heads), ``example`` (size, n_layers, n_heads) or ``token``
            (rows, n_layers, n_heads, pos).
        """
        heads = (self._loaded.n_layers, self._loaded.n_heads)
        rows, _, pos = self.query_mask.shape
        shape = {"shared": heads, "example": (self.size, *heads), "token": (rows, *heads, pos)}
        dtype = next(self._loaded.model.parameters()).dtype
        return torch.ones(shape[kind], dtype=dtype, device=self._loaded.device, requires_grad=True)

    def loss(self, gates: Tensor) -> Tensor:
        """Return each example's loss, (size,)."""
        return self._read(gates, self._loss, self._select_loss)

    def embed(self, gates: Tensor) -> Tensor:
        """Return each example's output e, (size, d): what label-free derivatives are taken of."""
        return self._read(gates, self._embed, self._select_embed)

    def full(self) -> Tensor:
        """Return the unpruned model's e, (size, d), whatever its output maps are for now."""
        with own_outputs(self._loaded):
            return self.embed(self.gates().detach())

    def _read(self, gates: Tensor, read: Read, select: Select | None) -> Tensor:
        by_row = gates[self._owner] if gates.dim() == 3 else gates
        # Without gradients to record, the faster products serve.
        with gated(self._loaded, by_row, gradients=gates.requires_grad, means=self._means) as run:
            batch = self._batch
            return read(batch, *run(*batch.inputs, **batch.decoder_inputs, select=select))
