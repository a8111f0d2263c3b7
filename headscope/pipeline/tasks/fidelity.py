"""Fidelity: how near the pruned model's outputs stay to the unpruned model's; needs no label."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from headscope.data.examples import Examples
from headscope.data.token_rows import Padded, Row
from headscope.measures.metrics import Outputs, mean_of
from headscope.models.loaded import LoadedModel
from headscope.models.task_heads import Select
from headscope.pipeline.tasks.base import Task


class Fidelity(Task):
    """Mean cosine of embeddings and, for a model with a head, mean KL of its outputs.

    A masked language model reads text with 15% of the tokens masked, and its KL is taken there.
    """

    name = "fidelity"
    has_labels = False

    def __init__(
        self, examples: Examples, loaded: LoadedModel, rows: Sequence[Row], skipped: int
    ) -> None:
        super().__init__(examples, loaded, rows, skipped)
        # Text runs the encoder of an encoder-decoder model, and not its head.
        has_outputs = loaded.task_head not in (None, "seq2seq")
        self.table = {name: mean_of(name) for name in ("cosine", "kl")[: 1 + has_outputs]}

    def _select(self, batch: Padded) -> Select | None:
        return self.distance.select(batch)

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        found = self.distance.measure(batch, hidden, logits)
        return {**found, "cosine": found["cosine"].clamp(max=1.0)}  # rounding may exceed it

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where the states to stay near to are the same whatever is read."""
        if not self.distance.constant():
            return None
        return "gives every text the same embedding"

    def _label_free_loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        found = self.distance.measure(batch, hidden, logits)
        loss = 1 - found["cosine"]
        return loss + found["kl"] if "kl" in found else loss
