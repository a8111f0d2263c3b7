"""Masked language modelling: loss and accuracy at masked positions, the same for every model."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.data.token_rows import Padded
from headscope.measures.metrics import Outputs, TokenRate, ratio_of
from headscope.measures.pooling import wide
from headscope.pipeline.tasks.base import Task, need_logits
from headscope.pipeline.tasks.distance import by_row


class MaskedLM(Task):
    """Mean negative log-probability (nats) of masked tokens, and how many are guessed right."""

    name = "mlm"
    higher_is_better = False
    table = {  # noqa: RUF012  (never changed)
        "loss": ratio_of("nll", "positions"),
        "masked_accuracy": TokenRate("correct", "positions"),
    }

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        scores, rows, size = need_logits(logits)[0], batch.masked[0], len(batch.index)
        nll = F.cross_entropy(wide(scores), batch.gold, reduction="none")
        guess = scores.argmax(dim=-1)
        correct = (guess == batch.gold).to(nll.dtype)
        zeros = nll.new_zeros(size)
        return {
            "nll": zeros.index_add(0, rows, nll),
            "correct": zeros.index_add(0, rows, correct),
            "positions": torch.bincount(rows, minlength=size).float(),
            "least_guess": _extreme(guess, rows, size, "amin"),
            "most_guess": _extreme(guess, rows, size, "amax"),
        }

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where one token is guessed at every mask."""
        if outputs["most_guess"].max() > outputs["least_guess"].min():
            return None
        return "guesses the same token at every mask"

    def _loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        scores = wide(need_logits(logits)[0])
        return by_row(batch, F.cross_entropy(scores, batch.gold, reduction="none"))

    def _label_free_loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        return self.distance.measure(batch, hidden, need_logits(logits))["kl"]

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Log-probabilities at a row's masks, one after the other; rows of fewer masks end in 0."""
        rows, size = batch.masked[0], len(batch.index)
        count = torch.bincount(rows, minlength=size)
        place = torch.arange(len(rows), device=rows.device) - (count.cumsum(0) - count)[rows]
        flat = wide(need_logits(logits)[0]).log_softmax(dim=-1)
        room = flat.new_zeros(size, int(count.max()), flat.shape[-1])
        return room.index_put((rows, place), flat).flatten(1)


def _extreme(guess: Tensor, rows: Tensor, size: int, reduce: str) -> Tensor:
    """Least or greatest guess of each row."""
    room = guess.new_zeros(size)
    return room.scatter_reduce(0, rows, guess, reduce, include_self=False)
