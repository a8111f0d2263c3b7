"""Classification: which class a sentence, or a pair of sentences, belongs to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.data.examples import Examples
from headscope.data.token_rows import Padded, Row
from headscope.errors import InputError
from headscope.measures.accumulator import Array
from headscope.measures.metrics import Outputs, accuracy, macro_f1, matthews
from headscope.measures.pooling import wide
from headscope.models.loaded import LoadedModel
from headscope.pipeline.tasks.base import Task, need_logits


class Classification(Task):
    """Accuracy, macro F1 and Matthews correlation of the largest logit, all times 100."""

    name = "classification"
    table = {"accuracy": accuracy, "f1": macro_f1, "matthews": matthews}  # noqa: RUF012

    def __init__(
        self,
        examples: Examples,
        loaded: LoadedModel,
        rows: Sequence[Row],
        skipped: int,
        labels: Sequence[int],
    ) -> None:
        super().__init__(examples, loaded, rows, skipped)
        self._labels = np.array(labels)

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        return {"predicted": need_logits(logits).argmax(dim=-1)}

    def _by_example(self, found: dict[str, Array]) -> dict[str, Array]:
        return {**found, "label": self._labels}

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where one class is predicted whatever is read."""
        if np.ptp(outputs["predicted"]) > 0:
            return None
        return "predicts one class for every example"

    def _loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        scores = wide(need_logits(logits))
        gold = torch.as_tensor(self._labels[batch.index], device=scores.device)
        return F.cross_entropy(scores, gold, reduction="none")

    def _label_free_loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        return self.distance.measure(batch, hidden, need_logits(logits))["kl"]

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        return wide(need_logits(logits)).log_softmax(dim=-1)


def classes_of(loaded: LoadedModel) -> dict[int, str]:
    """Return the classes that a model tells apart."""
    config = loaded.network.config
    if config.num_labels < 2 or config.problem_type in ("regression", "multi_label_classification"):
        raise InputError(
            f"The head of {loaded.name} does not choose one of several classes "
            f"({config.num_labels} outputs, {config.problem_type or 'regression'}); the task "
            "classification needs one that does."
        )
    return {int(number): str(name) for number, name in config.id2label.items()}
