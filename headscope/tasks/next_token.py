"""Causal language models: how well is each token of a text predicted from those before it?

The logits of all positions of a text are never held at once: the head reads slices of positions,
and what is kept of each position is a number or two (:class:`InSlices`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.core.accumulator import Array
from headscope.core.errors import InputError
from headscope.core.widest import wide
from headscope.data.examples import Examples
from headscope.data.token_rows import Padded, row_of_next_tokens
from headscope.models.run.intervene import gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.task_heads import InSlices
from headscope.models.surgery.output_maps import original_outputs
from headscope.stats.metrics import Outputs, ratio_of, token_rate
from headscope.tasks.base import Taken, TokenTask
from headscope.tasks.loss_batches import LossBatch, example_generator
from headscope.tasks.positions import at_masks, by_row, mean_by_row, need_logits
from headscope.tasks.text_rows import tokenised, windows

WINDOW = 128  # Tokens of a window, special tokens included.
WINDOWS = 128  # Windows that are read, unless they are limited.


_nll = ratio_of("nll", "tokens")


def perplexity(outputs: Outputs, counts: Array) -> Array:
    """Return the exponential of the mean negative log-likelihood, of every resample."""
    return np.exp(_nll(outputs, counts))


class NextToken(TokenTask):
    """Mean negative log-likelihood (nats) of the next token, its perplexity, and right guesses.

    An example is a window of running text, or a sentence where texts stand apart, as in a treebank.
    Special tokens are read and not predicted, and neither is a first token with nothing before it.
    """

    name = "lm"
    words = "loss at the next token, perplexity; any text, and a causal language model"
    head = "causal"
    higher_is_better = False
    same_guess = "guesses the same next token everywhere"
    identifying = "nll"
    table = {  # noqa: RUF012  (never changed)
        "nll": _nll,
        "perplexity": perplexity,
        "next_token_accuracy": token_rate("correct", "tokens"),
    }

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        """Cut running text into windows, or take each sentence; ask for every next token."""
        if loaded.stacks != ("decoder",):
            raise InputError(
                f"{loaded.name} sees later tokens too, so it has no next token to predict; choose "
                "the task fidelity, or give a causal language model."
            )
        if examples.apart:
            texts = examples.draw(self._limit, self._seed).first
            rows, _ = tokenised(loaded, texts)
            n_before = len(texts)
        else:
            count = self._limit or WINDOWS
            rows = windows(loaded, examples, examples.first, length=WINDOW, count=count)
            n_before = len(rows)
        rows = [row_of_next_tokens(row) for row in rows]
        self._longest = max(len(row.before_next) for row in rows)
        #: Of each row, tokens that the whole model itself might write; empty until they are drawn.
        self._drawn: dict[int, Tensor] = {}
        return rows, len(rows), n_before

    def _select(self, batch: Padded) -> InSlices:
        """Read each position's negative log-likelihood, and the likeliest token."""

        def read(logits: Tensor, positions: slice) -> Tensor:
            nll = F.cross_entropy(wide(logits), batch.gold[positions], reduction="none")
            return torch.stack([nll, logits.argmax(dim=-1).to(nll)], dim=1)

        return InSlices(partial(at_masks, batch), read)

    def _select_loss(self, batch: Padded) -> InSlices:
        """Read each position's negative log-likelihood."""
        return _losses(batch, batch.gold)

    def _select_embed(self, batch: Padded) -> InSlices:
        """Read the negative log-likelihood of what the whole model might have written there."""
        drawn = [self._drawn[i] for i in batch.index if i in self._drawn]
        return _losses(batch, torch.cat(drawn) if drawn else batch.gold)

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        """Add up the negative log-likelihoods of each row, and count its right guesses."""
        nll, guess = need_logits(logits).unbind(dim=1)
        total = nll.new_zeros(len(batch.index)).index_add(0, batch.masked[0], nll)
        return {"nll": total, **self._counted(batch, guess.long())}

    def _loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return the mean negative log-likelihood of each row's tokens."""
        return mean_by_row(batch, need_logits(logits))

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return log-probabilities of drawn tokens, over the root of their number; (batch, tokens).

        The tokens are drawn by the whole model's own probabilities. So the mean of their squared
        derivatives is the second derivative of the KL divergence from the whole model's
        predictions: half the squared distance of two outputs is that divergence, to second order,
        in the mean over draws. All log-probabilities of a position would be the vocabulary's size,
        and most of them say how unlikely an unlikely token is.
        """
        table = by_row(batch, -need_logits(logits), self._longest)
        counts = torch.bincount(batch.masked[0], minlength=len(batch.index))
        return table / counts.clamp(min=1).sqrt()[:, None].to(table)

    def loss_batches(
        self, loaded: LoadedModel, *, labels: bool = True, value_only: bool = False
    ) -> Iterator[LossBatch]:
        """Yield batches as every task does; without labels tokens are drawn before the first."""
        if not labels and not self._drawn:
            self._drawn = self._draw(loaded)
        yield from super().loss_batches(loaded, labels=labels, value_only=value_only)

    def _draw(self, loaded: LoadedModel) -> dict[int, Tensor]:
        """Draw a token by the whole model's probabilities at each position, by row."""
        drawn: dict[int, Tensor] = {}
        with original_outputs(loaded), gated(loaded) as run:
            for batch in self.batches(loaded):
                counts = torch.bincount(batch.masked[0], minlength=len(batch.index)).tolist()
                levels = [
                    torch.rand(count, generator=example_generator(self._seed, row))
                    for row, count in zip(batch.index.tolist(), counts, strict=True)
                ]
                _, tokens = run(*batch.inputs, select=_draws(batch, torch.cat(levels)))
                by_index = torch.split(need_logits(tokens), counts)
                drawn |= dict(zip(batch.index.tolist(), by_index, strict=True))
        return drawn


class NextTokenAccuracy(NextToken):
    """What :class:`NextToken` measures, with the share of right guesses as the value."""

    name = "lm-accuracy"
    words = "accuracy of the next token; any text, and a causal language model"
    higher_is_better = True
    table = dict(reversed(NextToken.table.items()))  # noqa: RUF012  (never changed)


def _losses(batch: Padded, tokens: Tensor) -> InSlices:
    """Read the negative log-likelihood of one token at each predicted position."""

    def read(logits: Tensor, positions: slice) -> Tensor:
        return F.cross_entropy(wide(logits), tokens[positions], reduction="none")

    return InSlices(partial(at_masks, batch), read)


def _draws(batch: Padded, levels: Tensor) -> InSlices:
    """Read a token at each predicted position: drawn, with the probability that it has there.

    ``levels`` (predicted,) are numbers drawn evenly from 0 to 1. With the probabilities of all
    tokens laid end to end, a level lies in that of the token that is read.
    """

    def read(logits: Tensor, positions: slice) -> Tensor:
        ends = wide(logits).softmax(dim=-1).cumsum(dim=-1)  # (n, vocabulary)
        places = levels[positions].to(ends)[:, None] * ends[:, -1:]
        tokens = torch.searchsorted(ends, places, right=True)[:, 0]
        return tokens.clamp(max=logits.shape[-1] - 1)

    return InSlices(partial(at_masks, batch), read)
