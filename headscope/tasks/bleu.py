r"""Corpus BLEU from what each sentence adds to it, so that resamples need no text.

For one sentence sacreBLEU counts the words of the hypothesis and of the reference, and for n = 1
to 4 the n-grams that match and those that there are. All ten numbers add up over sentences, and::

    BLEU = 100 * min(1, exp(1 - r / h)) * (p_1 p_2 p_3 p_4)^(1/4)        p_n = match_n / total_n

with h and r the words of all hypotheses and references. The k-th order without a match counts as
``p_n = 1 / (2^k total_n)``; without any match, or without any n-gram of some order, BLEU is 0.

Words are those of sacreBLEU's tokenizer ``13a`` unless another is asked for (signature
``nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp``). Hypotheses of fewer than four words have no
4-gram: on single names BLEU of words is 0 however good they are, which :func:`bleu_unit` decides.

Papineni et al. 2002 (BLEU); Post 2018, arXiv:1804.08771 (sacreBLEU); Koehn 2004 (resampling).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np

from headscope.core.accumulator import Array
from headscope.core.errors import InputError
from headscope.stats.metrics import Outputs

COUNTS = "bleu_counts"  # Name of the ten counts of each sentence among a model's outputs.
_ORDER = 4  # Longest n-grams.
#: sacreBLEU's tokenizers: at spaces and punctuation, and every character for a word.
WORDS, CHARACTERS = "13a", "char"


def has_sacrebleu() -> bool:
    """Whether BLEU can be measured here."""
    return find_spec("sacrebleu") is not None


def bleu_unit(references: Sequence[str]) -> str | None:
    """Choose the tokenizer for which BLEU says something of texts as long as these."""
    if sum(len(text.split()) for text in references) >= _ORDER * len(references):
        return WORDS
    letters = sum(len("".join(text.split())) for text in references)
    return CHARACTERS if letters >= _ORDER * len(references) else None


def bleu_counts(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = WORDS
) -> Array:
    """Count what BLEU is made of, sentence by sentence."""
    if not has_sacrebleu():
        raise InputError(
            "BLEU is counted by the package sacrebleu, which is not installed; install headscope "
            "with the extra [seq2seq]."
        )
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize=tokenize)
    rows = np.zeros((len(hypotheses), 2 + 2 * _ORDER))
    for row, hypothesis, reference in zip(rows, hypotheses, references, strict=True):
        score = metric.corpus_score([hypothesis], [[reference]])
        row[:] = (score.sys_len, score.ref_len, *score.counts, *score.totals)
    return rows


def bleu(outputs: Outputs, counts: Array) -> Array:
    """Corpus BLEU, 0 to 100, of every resample; 0 where no hypothesis has four words."""
    sums = counts @ outputs[COUNTS]
    written, wanted = sums[:, 0], sums[:, 1]
    match, total = sums[:, 2 : 2 + _ORDER], sums[:, 2 + _ORDER :]
    halvings = np.cumsum(match == 0, axis=1)
    smoothed = np.where(match > 0, match, 0.5**halvings) / np.maximum(total, 1.0)
    brevity = np.minimum(0.0, 1.0 - wanted / np.maximum(written, 1e-300))
    score = 100.0 * np.exp(brevity + np.log(smoothed).mean(axis=1))
    return np.where(match.any(axis=1) & total.all(axis=1), score, 0.0)
