"""One padded batch of pairs of source and target: what the measurements need to know of them.

The encoder reads the source, the decoder its own input: the target behind a first token that every
target begins with (teacher forcing). In cross-attention the target's positions are queries, the
source's are keys.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class PairBatch:
    """A padded batch of pairs; padding stands on the right.

    Attributes
    ----------
    source_ids, source_mask : Tensor, (batch, key_pos), int64
        What the encoder reads; the mask is 1 at real tokens.
    source_content : Tensor, (batch, key_pos), bool
        Real tokens of the source that are not special.
    target_ids, target_mask : Tensor, (batch, query_pos), int64
        What the decoder reads: its first token, then the target.
    predicts_content : Tensor, (batch, query_pos), bool
        Positions at which the decoder is to write a token that is not special: the queries. What
        it reads there is the token before.
    """

    source_ids: Tensor
    source_mask: Tensor
    source_content: Tensor
    target_ids: Tensor
    target_mask: Tensor
    predicts_content: Tensor

    @property
    def size(self) -> tuple[int, int, int]:
        """(batch, query_pos, key_pos)."""
        (batch, query_pos), key_pos = self.target_ids.shape, self.source_ids.shape[1]
        return batch, query_pos, key_pos

    def to(self, device: torch.device | str) -> PairBatch:
        """Copy every tensor to ``device``."""
        return PairBatch(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})
