"""The embedding and the unembedding of a model: W_E and W_U."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from headscope.core.errors import InputError
from headscope.models.run.loaded import LoadedModel

_ROWS = 1 << 14  # Tokens of a vocabulary that are widened to float64 at a time.


class TokenMaps(NamedTuple):
    """W_E and W_U of the stack that predicts tokens, both (vocabulary, d_model)."""

    embedding: Tensor
    unembedding: Tensor
    #: Whether the model has an unembedding; else W_E stands for it, as the configuration ties them.
    own: bool

    def product(self) -> Tensor:
        """Return W_U W_E with W_U centred, (d_model, d_model) in float64 on the CPU.

        What all tokens' logits share cannot change a probability, so each column of W_U (d_model,
        vocabulary) has its mean over tokens taken off.
        """
        d_model, n = self.embedding.shape[1], len(self.embedding)
        total = torch.zeros(d_model, d_model, dtype=torch.float64)
        sums = torch.zeros(2, d_model, dtype=torch.float64)
        for first in range(0, n, _ROWS):
            rows = slice(first, first + _ROWS)
            read, write = (
                table[rows].detach().cpu().double() for table in (self.embedding, self.unembedding)
            )
            total += write.T @ read
            sums += torch.stack([write.sum(0), read.sum(0)])
        return total - torch.outer(sums[0], sums[1]) / n


def token_maps(loaded: LoadedModel) -> TokenMaps:
    """Find W_E and W_U.

    Raises
    ------
    InputError
        If there is no unembedding, or it has another width than the states.
    """
    network = loaded.network
    base = network.get_decoder() if loaded.encoder_decoder else loaded.model
    read = getattr(base.get_input_embeddings(), "weight", None)
    head: Any = getattr(network, "get_output_embeddings", lambda: None)()
    write = getattr(head, "weight", None)
    own = write is not None
    if not own and getattr(network.config, "tie_word_embeddings", False):
        write = read
    if read is None or write is None:
        raise InputError(
            f"{loaded.name} has no unembedding, so it is not known which tokens its heads write; "
            "copying scores need a masked language model, a decoder, or a model that ties its "
            "embeddings."
        )
    widths = {read.shape[1], write.shape[1], loaded.sites[0].weights().W_V.shape[1]}
    if len(widths) > 1 or len(read) != len(write):
        raise InputError(
            f"{loaded.name} ({loaded.family}) has embeddings of another size than its states or "
            "its unembedding, with a map between them, so W_E W_V W_O W_U is not what its heads "
            "do; leave copying out."
        )
    return TokenMaps(read, write, own)
