"""Seq2seq: does an encoder-decoder model write the target that belongs to a source?"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.data.examples import Examples
from headscope.data.pair_rows import Ends, PairRow, encode_pairs
from headscope.data.token_rows import Padded
from headscope.errors import CorpusError, InputError
from headscope.measures.accumulator import Array
from headscope.measures.bleu import (
    COUNTS,
    WORDS,
    bleu,
    bleu_counts,
    bleu_unit,
    has_sacrebleu,
)
from headscope.measures.metrics import Metric, Outputs, TokenRate, rate_of
from headscope.measures.pooling import wide
from headscope.models.intervene import gated
from headscope.models.loaded import LoadedModel
from headscope.models.task_heads import Select
from headscope.pipeline.tasks.base import Task, need_logits
from headscope.pipeline.tasks.decoding import decode_greedily, text_of, token_limit
from headscope.pipeline.tasks.distance import by_row, one_position
from headscope.processes.sharing import share, texts_in_order

#: Tokens of the pairs that are decoded together: a step reads one of each, so batches can be large.
_DECODED_TOGETHER = 4096


class Seq2Seq(Task):
    """Token accuracy under teacher forcing, and what greedy decoding writes; all times 100.

    * ``token_accuracy``: share of target tokens, end tokens included, that are the likeliest ones
      after the true tokens before them. One pass, and the task's value.
    * ``exact_match``: share of sources for which greedy decoding writes the target, letter for
      letter, but for white space around it.
    * ``bleu``: corpus BLEU of the same texts, by sacreBLEU where that is installed. Where targets
      have fewer than four words on average, BLEU of words is 0 for every model; then it is
      ``bleu_characters``, with every character for a word, and ``notes`` say so.

    The last two are measured by :meth:`outputs` with ``all_metrics`` only: decoding runs the
    decoder once for every token.

    Parameters
    ----------
    examples : Examples
        Sources and targets.
    loaded : LoadedModel
        The unpruned encoder-decoder model.
    rows : sequence of PairRow
        Numbered from 0 without gaps.
    skipped : int
        Pairs that are no rows, because either side is longer than the model's limit.
    targets : sequence of str
        The text that each row should give.
    """

    name = "seq2seq"

    def __init__(
        self,
        examples: Examples,
        loaded: LoadedModel,
        rows: Sequence[PairRow],
        skipped: int,
        targets: Sequence[str],
    ) -> None:
        super().__init__(examples, loaded, rows, skipped)
        self._targets = tuple(text.strip() for text in targets)
        self._ends = ends_of(loaded)
        self._longest = max(len(row.labels) for row in rows)
        self.table: dict[str, Metric] = {
            "token_accuracy": TokenRate("correct", "tokens"),
            "exact_match": rate_of("exact"),
        }
        self._unit = bleu_unit(self._targets) if has_sacrebleu() else None
        if self._unit is not None:
            self.table["bleu" if self._unit == WORDS else "bleu_characters"] = bleu
        self.notes = tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        """Say what stands in the place of BLEU of words."""
        if not has_sacrebleu():
            yield "BLEU is left out: the package sacrebleu, which counts it, is not installed."
        elif self._unit != WORDS:
            instead = "is of characters (bleu_characters)" if self._unit else "is left out"
            yield (
                "The targets have fewer than four words on average, and BLEU of words is 0 for "
                f"every model then: BLEU {instead}."
            )

    # --- measuring ----------------------------------------------------------------------------

    def outputs(
        self, loaded: LoadedModel, gates: Tensor | None = None, *, all_metrics: bool = False
    ) -> dict[str, Array]:
        """Run a model over all pairs; decode its own outputs only for ``all_metrics``.

        Parameters
        ----------
        loaded, gates
            As :meth:`Task.outputs` takes them.
        all_metrics : bool
            Whether to decode.
        """
        found = super().outputs(loaded, gates)
        return {**found, **self._judged(self.decode(loaded, gates))} if all_metrics else found

    def decode(self, loaded: LoadedModel, gates: Tensor | None = None) -> list[str]:
        """Return what a model writes greedily for each source, without white space around it.

        Parameters
        ----------
        loaded : LoadedModel
            The model, or a pruned copy of it.
        gates : Tensor, (n_layers, n_heads), optional
            Multiply each head's z.
        """
        texts = dict[int, str]()
        limit = token_limit(self._longest, loaded.max_length)
        with gated(loaded, gates):
            for batch in share(self.batches(loaded, _DECODED_TOGETHER)):
                written = decode_greedily(
                    loaded.network,
                    batch.input_ids,
                    batch.attention_mask,
                    ends=self._ends,
                    pad_id=loaded.pad_id,
                    max_new_tokens=limit,
                )
                for i, ids in zip(batch.index, written, strict=True):
                    texts[i] = text_of(loaded.tokenizer, ids)
        return texts_in_order("decoded texts", texts)

    def metrics(self, outputs: Outputs) -> dict[str, float]:
        """Return the metrics of what was measured; token accuracy alone if nothing was decoded."""
        if "exact" in outputs:
            return super().metrics(outputs)
        value = self.table[self.metric](outputs, np.ones((1, len(outputs["correct"]))))
        return {self.metric: float(value[0])}

    def _judged(self, texts: Sequence[str]) -> dict[str, Array]:
        """Compare what was written with the targets."""
        pairs = zip(texts, self._targets, strict=True)
        found = {"exact": np.array([text == target for text, target in pairs], dtype=float)}
        found["text"] = np.unique(np.array(texts), return_inverse=True)[1]
        if self._unit is not None:
            found[COUNTS] = bleu_counts(texts, self._targets, tokenize=self._unit)
        return found

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where one text, or one token, is written whatever the source is."""
        if "text" in outputs and np.ptp(outputs["text"]) == 0:
            return "writes the same text for every source"
        if outputs["most_guess"].max() > outputs["least_guess"].min():
            return None
        return "gives the same token at every position"

    def _read(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        guess, rows, size = need_logits(logits)[0].argmax(dim=-1), batch.masked[0], len(batch.index)
        zeros = torch.zeros(size, device=guess.device)
        whole = guess.new_zeros(size)
        return {
            "correct": zeros.index_add(0, rows, (guess == batch.gold).float()),
            "tokens": torch.bincount(rows, minlength=size).float(),
            "least_guess": whole.scatter_reduce(0, rows, guess, "amin", include_self=False),
            "most_guess": whole.scatter_reduce(0, rows, guess, "amax", include_self=False),
        }

    # --- differentiating ----------------------------------------------------------------------

    def _loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Mean cross-entropy of each target's tokens."""
        scores = wide(need_logits(logits)[0])
        return by_row(batch, F.cross_entropy(scores, batch.gold, reduction="none"))

    def _label_free_loss(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Mean KL of the unpruned model's next-token distributions to this one's."""
        return self.distance.measure(batch, hidden, need_logits(logits))["kl"]

    def _select_embed(self, batch: Padded) -> Select | None:
        return one_position

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Last decoder states at a target's positions, end to end, over the root of their number.

        Positions are kept apart: in a mean over them, what a head does to one token cancels what it
        does to another, and heads that matter look harmless. The head of the model is linear in the
        states, so that they choose heads as well as log-probabilities do, and they are far smaller.
        Every row has room for the longest target, so that all embeddings are of one size.
        """
        real = batch.hidden_mask.to(wide(hidden).dtype)
        states = wide(hidden) * (real / real.sum(dim=1, keepdim=True).sqrt())[..., None]
        return F.pad(states, (0, 0, 0, self._longest - states.shape[1])).flatten(1)


def seq2seq_task(
    examples: Examples, loaded: LoadedModel, _seed: int = 0, _limit: int | None = None
) -> Seq2Seq:
    """Tokenise sources and targets for a model.

    Raises
    ------
    CorpusError
        If fewer than two pairs fit the model.
    InputError
        If the model has no start or no end token.
    """
    sources, targets = examples.first, examples.second or ()
    encoded = encode_pairs(loaded, sources, targets, ends_of(loaded))
    kept = [row for row in encoded if row is not None]
    if len(kept) < 2:
        raise CorpusError(
            f"{len(kept)} of {len(examples)} pairs fit the model's limit of {loaded.max_length} "
            "tokens on either side; give shorter ones (nothing is ever cut)."
        )
    rows = [dataclasses.replace(row, index=i) for i, row in enumerate(kept)]
    wanted = [targets[row.index] for row in kept]
    return Seq2Seq(examples, loaded, rows, len(examples) - len(rows), wanted)


def ends_of(loaded: LoadedModel) -> Ends:
    """Return the tokens with which a model's targets start and end.

    Raises
    ------
    InputError
        If it is no encoder-decoder model, or its settings name no end token.
    """
    if loaded.start_id is None:
        raise InputError(
            f"{loaded.name} ({loaded.family}) is no encoder-decoder model; the task seq2seq needs "
            "one, such as Marian, BART or T5."
        )
    network = loaded.network
    for settings in (network.config, getattr(network, "generation_config", None)):
        stop = getattr(settings, "eos_token_id", None)
        if isinstance(stop, list | tuple):
            stop = next(iter(stop), None)
        if stop is not None:
            return Ends(loaded.start_id, int(stop))
    raise InputError(
        f"The config of {loaded.name} has no eos_token_id, so it is not known where its targets "
        "end; add it to config.json."
    )
