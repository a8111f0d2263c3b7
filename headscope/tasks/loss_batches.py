"""Examples whose loss can be differentiated by the gates of heads.

A *gate* is a factor of a head's output: 1 in the model as it is, 0 for a removed head. An example
is made of one or more *rows*, sequences of tokens that the model reads (a pair has two).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.data.batches import BATCH_TOKENS, LARGE
from headscope.data.token_rows import Padded, Row
from headscope.models.run.intervene import Means, gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.task_heads import InSlices, Select
from headscope.models.surgery.output_maps import original_outputs

#: From a batch's hidden states and logits to a loss (size,) or an output e (size, d), where size is
#: the number of examples.
Read = Callable[[Padded, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True, eq=False)
class LossBatch:
    """Some examples whose loss can be differentiated by the gates of heads.

    :meth:`gates` makes gates of one, and :meth:`loss` and :meth:`embed` run the model with them.
    With gates ``(size, n_layers, n_heads)`` the gradient of ``loss(gates).sum()`` holds every
    example's own derivative, d loss_i / d gates. With gates ``(rows, n_layers, n_heads, pos)`` it
    is z . dL/dz of every query; ``pos`` is the length of the longest sequence that any stack reads.
    """

    loaded: LoadedModel
    batch: Padded
    owner: Tensor  # (rows,): the example that each row belongs to, such as 0, 1, 0, 1
    examples: Sequence[int]  # (size,): the number of each example among all of the task
    read_loss: Read  # Makes the loss of what the model returns
    read_embed: Read  # Makes the output e of what the model returns
    #: Which positions the task head reads for the loss, and for e; None: all
    select_loss: Select | InSlices | None = None
    select_embed: Select | InSlices | None = None
    means: Means | None = None  # The z that a gate of zero leaves behind, by layer; None: zeros

    @property
    def size(self) -> int:
        """Examples in the batch."""
        return len(self.examples)

    @property
    def query_mask(self) -> Tensor:
        """(rows, n_layers, pos): 1 where a layer's query is a real token.

        The queries of decoder and cross-attention are target positions, those of the encoder are
        source positions.
        """
        masks = [self.batch.queries_of(site.stack) for site in self.loaded.sites]  # (rows, pos)
        longest = max(mask.shape[1] for mask in masks)
        padded_masks = [F.pad(mask, (0, longest - mask.shape[1])) for mask in masks]
        return torch.stack(padded_masks, dim=1)

    def gates(self, kind: str = "example") -> Tensor:
        """Return gates of one to differentiate by.

        ``example``: one of each head and example; ``token``: one of each head and query;
        ``shared``: one of each head.
        """
        heads = (self.loaded.n_layers, self.loaded.n_heads)
        rows, _, pos = self.query_mask.shape
        shape = {"shared": heads, "example": (self.size, *heads), "token": (rows, *heads, pos)}
        dtype = next(self.loaded.model.parameters()).dtype
        return torch.ones(shape[kind], dtype=dtype, device=self.loaded.device, requires_grad=True)

    def loss(self, gates: Tensor) -> Tensor:
        """Return each example's loss, (size,)."""
        return self._read(gates, self.read_loss, self.select_loss)

    def embed(self, gates: Tensor) -> Tensor:
        """Return each example's output e, (size, d); its distance to the full model's is a loss."""
        return self._read(gates, self.read_embed, self.select_embed)

    def full(self) -> Tensor:
        """Return the unpruned model's e, (size, d), even while its output maps are replaced."""
        with original_outputs(self.loaded):
            return self.embed(self.gates().detach())

    def _read(self, gates: Tensor, read: Read, select: Select | InSlices | None) -> Tensor:
        """Run the model with gates, and turn what it returns into a loss or an output."""
        # Gates of examples (3 axes) are handed to the rows of each example; others as they are.
        row_gates = gates[self.owner] if gates.dim() == 3 else gates
        batch = self.batch
        # Without gradients to record, the faster products are used.
        gradients = gates.requires_grad
        with gated(self.loaded, row_gates, gradients=gradients, means=self.means) as run:
            hidden, logits = run(*batch.inputs, **batch.decoder_inputs, select=select)
            return read(batch, hidden, logits)


class Directions:
    """Random directions of length 1 in the space of a batch's outputs e, one of each example.

    They point to corners of a cube: a direction of d numbers has entries 1 / sqrt(d) and
    -1 / sqrt(d), and E[r r^T] = I / d. Every example has draws of its own, whichever batch or
    process takes it and however far the batch is padded. So what is estimated with them is the
    same, but for rounding, in batches of any size.
    """

    def __init__(self, batch: LossBatch, seed: int) -> None:
        self._examples = batch.examples
        self._seed = seed
        self._n_drawn = 0

    def draw(self, output: Tensor) -> Tensor:
        """Return each example's next direction, in the shape of its ``output``: (size, d)."""
        width = output.shape[-1]
        bits = []
        for example in self._examples:
            generator = example_generator(self._seed, example, self._n_drawn)
            bits.append(torch.randint(2, (width,), generator=generator))
        self._n_drawn += 1
        signs = 2 * torch.stack(bits) - 1
        return signs.to(output) / math.sqrt(width)


def example_generator(seed: int, example: int, draw: int = 0) -> torch.Generator:
    """Return the generator of one draw for one example of a task."""
    (own_seed,) = np.random.SeedSequence((seed % 2**64, example, draw)).generate_state(1)
    return torch.Generator().manual_seed(int(own_seed))


class RowSet:
    """Rows that are compared with each other, as one item for batching.

    Its length is its number of tokens in a batch: 2 rows of 5 and 7 tokens are padded to 14.
    """

    def __init__(self, index: int, rows: Sequence[Row]) -> None:
        self.index = index
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows) * max(map(len, self.rows))


def tokens_with_gradients(loaded: LoadedModel) -> int:
    """Return how many tokens a batch may have where its gradients are taken.

    For these some ten states of every layer are held, so batches of a large model are smaller.
    """
    n_weights = sum(weight.numel() for weight in loaded.model.parameters())
    return BATCH_TOKENS // 4 if n_weights > LARGE else BATCH_TOKENS
