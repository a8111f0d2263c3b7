r"""Seq2seq: does an encoder-decoder model write the target that belongs to a source?

Corpus BLEU compares what a model writes (the hypotheses) with the targets (the references). It is
made of ten counts that each sentence adds to, so that resamples need no text: the words of the
hypothesis (h in all) and of the reference (r), and for n = 1 to 4 the n-grams of the hypothesis
that match the reference, and how many n-grams the hypothesis has::

    BLEU = 100 * min(1, exp(1 - r / h)) * (p_1 p_2 p_3 p_4)^(1/4)        p_n = match_n / total_n

The k-th order without a match counts as ``p_n = 1 / (2^k total_n)``; without any match, or without
any n-gram of some order, BLEU is 0. Words are those of sacreBLEU's tokenizer ``13a`` (signature
``nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp``), or every character is one.

Papineni et al. 2002 (BLEU); Post 2018, arXiv:1804.08771 (sacreBLEU); Koehn 2004 (resampling).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.core.accumulator import Array
from headscope.core.processes import gathered_in_order, share
from headscope.core.widest import wide
from headscope.data.examples import Examples
from headscope.data.token_rows import Ends, Padded, encode_pairs
from headscope.models.run.implementation import quiet_transformers
from headscope.models.run.intervene import gated
from headscope.models.run.loaded import LoadedModel, ends_of
from headscope.models.run.task_heads import Select, empty_cache
from headscope.stats.metrics import Metric, Outputs, rate_of, token_rate, value_of
from headscope.tasks.base import Taken, TokenTask, numbered
from headscope.tasks.positions import one_position

#: Tokens of the pairs that are decoded together: a step reads one of each, so batches can be large.
_DECODED_TOGETHER = 4096

COUNTS = "bleu_counts"  # Name of the ten counts of each sentence among a model's outputs.
_ORDER = 4  # BLEU counts n-grams of 1 to 4 words.
# Two tokenizers of sacreBLEU:
WORDS = "13a"  # cuts at spaces and punctuation
CHARACTERS = "char"  # takes every character for a word


class Seq2Seq(TokenTask):
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
    """

    name = "seq2seq"
    head = "seq2seq"
    writes = True
    words = "accuracy of target tokens; sources with targets, and an encoder-decoder"
    same_guess = "gives the same token at every position"

    def _take(self, examples: Examples, loaded: LoadedModel) -> Taken:
        """Tokenise sources with their targets; choose the metrics that suit the targets."""
        targets = examples.second or ()
        encoded = encode_pairs(loaded, examples.first, targets, ends_of(loaded))
        rows, fitting = numbered(encoded)
        self._targets = tuple(targets[i].strip() for i in fitting)
        self._longest = max((len(row.labels) for row in rows), default=0)
        self.table: dict[str, Metric] = {
            "token_accuracy": token_rate("correct", "tokens"),
            "exact_match": rate_of("exact"),
        }
        self._add_bleu()
        return rows, len(rows), len(examples)

    def _add_bleu(self) -> None:
        """Add BLEU of words or of characters to the metrics, or say why it is left out."""
        self._unit: str | None = None
        if find_spec("sacrebleu") is None:
            self.notes = (
                "BLEU is left out: the package sacrebleu, which counts it, is not installed.",
            )
            return
        self._unit = bleu_unit(self._targets)
        if self._unit == WORDS:
            self.table["bleu"] = bleu
            return
        instead = "is left out"
        if self._unit == CHARACTERS:
            self.table["bleu_characters"] = bleu
            instead = "is of characters (bleu_characters)"
        self.notes = (
            "The targets have fewer than four words on average, and BLEU of words is 0 for "
            f"every model then: BLEU {instead}.",
        )

    def outputs(
        self, loaded: LoadedModel, gates: Tensor | None = None, *, all_metrics: bool = False
    ) -> dict[str, Array]:
        """Run a model over all pairs; decode its own outputs only for ``all_metrics``."""
        outputs = super().outputs(loaded, gates)
        if not all_metrics:
            return outputs
        texts = self.decode(loaded, gates)
        pairs = zip(texts, self._targets, strict=True)
        outputs["exact"] = np.array([text == target for text, target in pairs], dtype=float)
        outputs["text"] = np.unique(np.array(texts), return_inverse=True)[1]
        if self._unit is not None:
            outputs[COUNTS] = bleu_counts(texts, self._targets, tokenize=self._unit)
        return outputs

    def decode(self, loaded: LoadedModel, gates: Tensor | None = None) -> list[str]:
        """Return what a model writes greedily for each source, without white space around it."""
        texts: dict[int, Array] = {}  # by row, as bytes: processes exchange arrays
        # A good model is never cut short, and one that has lost its end token is stopped.
        limit = min(loaded.max_length, 2 * self._longest + 10)
        with gated(loaded, gates):
            for batch in share(self.batches(loaded, _DECODED_TOGETHER)):
                written = decode_greedily(
                    loaded.network,
                    batch.input_ids,
                    batch.attention_mask,
                    target_ends=ends_of(loaded),
                    pad_id=loaded.pad_id,
                    max_new_tokens=limit,
                )
                for i, ids in zip(batch.index, written, strict=True):
                    text: str = loaded.tokenizer.decode(ids, skip_special_tokens=True)
                    texts[i] = np.frombuffer(text.strip().encode(), dtype=np.uint8)
        return [array.tobytes().decode() for array in gathered_in_order("decoded texts", texts)]

    def metrics(self, outputs: Outputs) -> dict[str, float]:
        """Return the metrics of what was measured; token accuracy alone if nothing was decoded."""
        if "exact" in outputs:
            return super().metrics(outputs)
        return {self.metric: value_of(self.table[self.metric], outputs)}

    def degenerate(self, outputs: Outputs) -> str | None:
        """Say so where one text, or one token, is written whatever the source is."""
        if "text" in outputs and np.ptp(outputs["text"]) == 0:
            return "writes the same text for every source"
        return super().degenerate(outputs)

    def _select_embed(self, batch: Padded) -> Select | None:
        """Spare the head, whose outputs are not needed for :meth:`_embed`."""
        return one_position

    def _embed(self, batch: Padded, hidden: Tensor, logits: Tensor | None) -> Tensor:
        """Return the last decoder states at a target, end to end, over the root of their number.

        Positions are kept apart: in a mean over them, what a head does to one token cancels what it
        does to another, and heads that matter look harmless. The head of the model is linear in the
        states, so that they choose heads as well as log-probabilities do, and they are far smaller.
        Every row has room for the longest target, so that all embeddings are of one size.
        """
        real = batch.hidden_mask.to(wide(hidden).dtype)  # (rows, pos)
        factors = real / real.sum(dim=1, keepdim=True).sqrt()
        states = wide(hidden) * factors[..., None]  # (rows, pos, d_model)
        n_missing = self._longest - states.shape[1]
        return F.pad(states, (0, 0, 0, n_missing)).flatten(1)


def decode_greedily(
    network: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    *,
    target_ends: Ends,
    pad_id: int,
    max_new_tokens: int,
) -> list[list[int]]:
    """Let an encoder-decoder model write, token by token, with cached keys and values.

    Returns the token ids of each row between the start token and the end token. The checkpoint's
    other settings of generation hold (forced first and last tokens, suppressed tokens, penalties),
    but not its beams, sampling and lengths.
    """
    settings = copy.deepcopy(network.generation_config)
    # A setting that is None would be filled from the checkpoint again.
    settings.update(
        do_sample=False,
        num_beams=1,
        num_return_sequences=1,
        early_stopping=False,
        length_penalty=1.0,
        min_new_tokens=0,
        max_new_tokens=max_new_tokens,
        use_cache=True,
        return_dict_in_generate=False,
        decoder_start_token_id=target_ends.start,
        pad_token_id=pad_id,
    )
    if target_ends.first is not None:
        settings.forced_bos_token_id = target_ends.first
    if settings.eos_token_id is None:
        settings.eos_token_id = target_ends.stop
    with quiet_transformers(), torch.no_grad():
        written = network.generate(
            input_ids=input_ids,
            attention_mask=attention_mask,
            generation_config=settings,
            past_key_values=empty_cache(),
        )
    eos = settings.eos_token_id
    stop_tokens = {eos} if isinstance(eos, int) else set(eos)
    texts = []
    for _, *tokens in written.tolist():  # the first one is the start token
        texts.append(list(takewhile(lambda token: token not in stop_tokens, tokens)))
    return texts


def bleu_unit(references: Sequence[str]) -> str | None:
    """Choose the tokenizer of BLEU: texts need four words each on average, or four letters.

    None where they have fewer letters.
    """
    fewest = _ORDER * len(references)
    n_words = sum(len(text.split()) for text in references)
    n_letters = sum(len("".join(text.split())) for text in references)
    if n_words >= fewest:
        return WORDS
    return CHARACTERS if n_letters >= fewest else None


def bleu_counts(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = WORDS
) -> Array:
    """Count what BLEU is made of, sentence by sentence: (sentences, 10).

    Of each: the words of the hypothesis and of the reference, the n-grams of 1 to 4 words that
    match, and the n-grams of 1 to 4 words that the hypothesis has.
    """
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize=tokenize)
    rows = np.zeros((len(hypotheses), 2 + 2 * _ORDER))
    for row, hypothesis, reference in zip(rows, hypotheses, references, strict=True):
        score = metric.corpus_score([hypothesis], [[reference]])
        row[:] = (score.sys_len, score.ref_len, *score.counts, *score.totals)
    return rows


def bleu(outputs: Outputs, counts: Array) -> Array:
    """Return corpus BLEU, 0 to 100, of every resample; 0 where no hypothesis has four words.

    ``counts`` (resamples, sentences) says how often each sentence is drawn.
    """
    sums = counts @ outputs[COUNTS]  # (resamples, 10), as :func:`bleu_counts` orders them
    n_written = sums[:, 0]
    n_reference = sums[:, 1]
    match = sums[:, 2 : 2 + _ORDER]
    total = sums[:, 2 + _ORDER :]
    # The k-th order without a match counts as 1 / 2^k of one: match [5, 0, 2, 0] -> 5, 1/2, 2, 1/4.
    halvings = np.cumsum(match == 0, axis=1)
    smoothed = np.where(match > 0, match, 0.5**halvings) / np.maximum(total, 1.0)
    log_brevity = np.minimum(0.0, 1.0 - n_reference / np.maximum(n_written, 1e-300))
    score = 100.0 * np.exp(log_brevity + np.log(smoothed).mean(axis=1))
    return np.where(match.any(axis=1) & total.all(axis=1), score, 0.0)
