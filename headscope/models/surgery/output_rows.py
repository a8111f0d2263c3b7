"""The rows by which a model puts out its vocabulary: found, cut, and filled up again for a while.

They are the weight (and bias) of the output embedding, which may be the input embedding itself, and
whatever else behind the base model has a number, or a vector, for each piece: biases that stand by
themselves (BERT's, the ``final_logits_bias`` of BART), the second table of MobileBERT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headscope.core.errors import UnsupportedModelError


@dataclass(frozen=True)
class OutputRows:
    """One tensor with a number, or a vector, for each piece that a model puts out."""

    module: nn.Module
    place: str  # The module's name in the network
    name: str
    tensor: Tensor
    axis: int  # Along which pieces are counted

    def write(self, tensor: Tensor) -> None:
        """Put another tensor in its place, of whatever length."""
        if isinstance(self.tensor, nn.Parameter) and not isinstance(tensor, nn.Parameter):
            tensor = nn.Parameter(tensor, requires_grad=self.tensor.requires_grad)
        setattr(self.module, self.name, tensor)


def output_rows(network: Any, rows: int) -> list[OutputRows]:
    """Find these tensors in a network with a vocabulary of ``rows``; none if it puts out none.

    Raises
    ------
    UnsupportedModelError
        If its output embedding has another number of rows.
    """
    head = getattr(network, "get_output_embeddings", lambda: None)()
    if head is None:
        return []
    if not isinstance(head, nn.Linear) or head.weight.shape[0] != rows:
        raise UnsupportedModelError(
            f"{type(network).__name__} puts out its vocabulary by something else than one row for "
            f"each of its {rows:,} pieces; leave the vocabulary whole."
        )
    base = getattr(network, "base_model", network)
    inside = set(base.modules())
    found = []
    for place, module in network.named_modules():
        own = {**module._parameters, **module._buffers}
        for name, tensor in own.items():
            behind = module not in inside or module is head or name == "final_logits_bias"
            if behind and tensor is not None and rows in tensor.shape:
                axis = tuple(tensor.shape).index(rows)
                found.append(OutputRows(module, place, name, tensor, axis))
    return found


def cut_outputs(
    network: Any, kept: Sequence[int], rows: int, known: dict[int, nn.Parameter]
) -> None:
    """Leave only the rows ``kept`` of what a network puts out, in place.

    ``known`` has the cut tensors of its input, by the ids of the old ones: tied ones stay tied.
    """
    made: dict[int, Tensor] = dict(known)
    for item in output_rows(network, rows):
        old = item.tensor
        if id(old) not in made:
            left = old.detach().index_select(item.axis, torch.tensor(kept, device=old.device))
            is_parameter = isinstance(old, nn.Parameter)
            made[id(old)] = nn.Parameter(left, old.requires_grad) if is_parameter else left
        item.write(made[id(old)])
        if isinstance(item.module, nn.Linear):
            width = "in_features" if item.axis else "out_features"
            setattr(item.module, width, len(kept))
