"""From queries and keys to the pattern: scores, mask and softmax.

A step is what it measures of a :class:`Trace` (``trace.run`` is the model's own run of a sentence,
``trace.ours`` what headscope computes) and the sentences that say what the numbers mean.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headscope.analyses.explain.measure import compute, entropy, even_entropy, moved, rounded
from headscope.analyses.explain.result import ExplainResult, ExplainStep
from headscope.analyses.explain.steps.step import Measured, Numbers, Step, Trace
from headscope.analyses.explain.words import counted, percent
from headscope.attention import capped, default_scale, masked_softmax
from headscope.core.widest import widest
from headscope.show.cells import tiny

# --- 5: scores ------------------------------------------------------------------------------------


def _measure_scores(trace: Trace) -> Measured:
    """Compare the scores with the model's, and with those scaled by the sentence's length."""
    ours = trace.ours
    seen = trace.run.allowed[0]  # (query_pos, key_pos): which keys each query may see
    products = ours.products[trace.head]
    scores = ours.scores[trace.head]
    pattern = ours.pattern[trace.head]

    # What is often done wrongly: scaled by the length of the sequence.
    length_scale = len(trace.tokens) ** -0.5
    wrong_scores = capped(products * length_scale, trace.run.site.softcap)
    if ours.bias is not None:
        wrong_scores = wrong_scores + ours.bias[trace.head]
    wrong_pattern = masked_softmax(wrong_scores, seen)

    numbers: Numbers = {
        "scale": ours.scale,
        "root_d_head": default_scale(trace.run.site.d_head),
        "root_tokens": length_scale,
        "spread_products": rounded(widest(products[seen]).std(correction=0)),
        "spread_scores": rounded(widest(scores[seen]).std(correction=0)),
        "entropy": rounded(entropy(pattern).mean()),
        "entropy_sequence_scale": rounded(entropy(wrong_pattern).mean()),
        "moved_by_sequence_scale": rounded(moved(pattern, wrong_pattern).mean()),
    }
    if trace.run.site.softcap is not None:
        numbers["softcap"] = trace.run.site.softcap
    tensors = {"q k^T": products, "scores": scores, "sequence scale": wrong_pattern}
    if ours.bias is not None:
        tensors["bias"] = ours.bias[trace.head]
    matrices = [
        trace.matrix(name, tensor, trace.tokens, known=seen) for name, tensor in tensors.items()
    ]
    model_scores = trace.run.record.scores
    if model_scores is not None:
        model_scores = model_scores.expand_as(ours.scores[None])[..., seen]
    # (n_heads, seen pairs); what hidden pairs score is the model's own affair.
    check = trace.check("scores of all heads", ours.scores[:, seen], model_scores)
    return Measured(numbers, matrices, [check])


def _words_of_scores(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    """Say what a score is, what the scale does, and what another scale would do."""
    numbers = step.numbers
    n_tokens = len(result.tokens)
    d_head = result.d_head
    scale = numbers["scale"] or 0.0
    root = numbers["root_d_head"] or 0.0
    if abs(scale - root) < 1e-6:
        formula = f"= 1/sqrt(d_head) = 1/sqrt({d_head})"
    else:
        formula = (
            f"in this family (1/sqrt(d_head) would be {root:.4f}; the rest is in its weights, or "
            "it has more terms)"
        )
    yield (
        "One number per pair of tokens: how well the query of the row fits the key of the column. "
        f"The scale is {scale:.4f} {formula}, whatever the length of the sentence: products of "
        f"{d_head} numbers spread by {numbers['spread_products']:.2f} here, scores by "
        f"{numbers['spread_scores']:.2f} (standard deviations)."
    )
    softcap = numbers.get("softcap")
    if softcap is not None:
        yield (
            f"This family then bends the scaled products s by a soft cap, {softcap:g} "
            f"tanh(s / {softcap:g}): no score is beyond it."
        )
    if result.positions == "bias":
        yield (
            "This family adds terms by relative position to the scaled products: the matrix "
            '"bias", in the model\'s own numbers.'
        )
    yield (
        f'Often said: "divide by the square root of the sequence length". No: with '
        f"1/sqrt({n_tokens}) = {numbers['root_tokens']:.4f} this head would move "
        f"{percent(numbers['moved_by_sequence_scale'])} of its weight (entropy "
        f"{numbers['entropy_sequence_scale']:.2f} instead of {numbers['entropy']:.2f} bits), and "
        "another amount in a sentence of another length."
    )


SCORES = Step(
    key="scores",
    title="Scores",
    formula="scores = q k^T * scale",
    measure=_measure_scores,
    words=_words_of_scores,
)


# --- 6: mask --------------------------------------------------------------------------------------


def _measure_mask(trace: Trace) -> Measured:
    """Show what padding changes, and what hiding later tokens (or seeing them) would change."""
    ours = trace.ours
    n_tokens = len(trace.tokens)

    # The other direction: later tokens seen by a model that hides them, hidden in any other.
    all_pairs = torch.ones(n_tokens, n_tokens, dtype=torch.bool, device=trace.x.device)
    not_later = all_pairs.tril()  # (query_pos, key_pos)
    other_mask = None if trace.run.site.causal else not_later
    other_direction = masked_softmax(ours.scores[trace.head], other_mask)
    moved_by_it = moved(ours.pattern[trace.head], other_direction).mean()
    numbers: Numbers = {"moved_by_other_direction": rounded(moved_by_it), "pads": 0}
    direction = trace.matrix("other direction", other_direction, trace.tokens)
    if trace.padded is None:
        return Measured(numbers, [direction], [])

    # The same sentence with positions of padding behind it.
    padded = trace.padded
    with_pads = compute(padded)
    n_pads = padded.allowed.shape[-1] - n_tokens
    # Weights that the sentence's tokens give to padding, (query_pos, pads).
    on_pads = widest(with_pads.pattern[trace.head, :n_tokens, n_tokens:])
    pattern_without_mask = masked_softmax(with_pads.scores[trace.head])
    unmasked_on_pads = widest(pattern_without_mask[:n_tokens, n_tokens:])
    numbers |= {
        "pads": n_pads,
        "weight_on_pads_without_mask": rounded(unmasked_on_pads.sum(-1).mean()),
        "weight_on_pads": rounded(on_pads.sum(-1).max()),
    }
    columns = (*trace.tokens, *["(padding)"] * n_pads)
    mask = trace.matrix("mask", widest(padded.allowed[0, :n_tokens]), columns)
    model_pattern = padded.record.pattern
    if model_pattern is not None:
        model_pattern = model_pattern[:, :, :n_tokens]  # without the rows of padding
    check = trace.check(
        f"pattern of all heads with {n_pads} positions of padding",
        with_pads.pattern[:, :n_tokens],
        model_pattern,
        kind="pattern",
    )
    return Measured(numbers, [mask, direction], [check])


def _words_of_mask(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    """Say what the mask hides: padding, and later tokens where the model hides them."""
    numbers = step.numbers
    elsewhere = percent(numbers["moved_by_other_direction"])
    if numbers["pads"]:
        yield (
            f"Sentences of one batch are padded to one length. With {counted(numbers['pads'])} "
            "positions of padding behind this sentence, the mask leaves them a weight of "
            f"{percent(numbers['weight_on_pads'])}; without it they would draw "
            f"{percent(numbers['weight_on_pads_without_mask'])}."
        )
    if result.causal:
        yield (
            "This model hides the future: no token sees a later one. If it could, "
            f"{elsewhere} of the weight would lie elsewhere (below)."
        )
    else:
        yield (
            "Nothing else is hidden: each token sees those before and after it. If the future "
            f"were hidden, as in a decoder (below), {elsewhere} of the weight would lie elsewhere."
        )


MASK = Step(
    key="mask",
    title="Mask",
    formula="scores of hidden keys = -infinity",
    measure=_measure_mask,
    words=_words_of_mask,
)


# --- 7: softmax -----------------------------------------------------------------------------------


def _measure_softmax(trace: Trace) -> Measured:
    all_heads = trace.ours.pattern
    pattern = widest(all_heads[trace.head])
    column_sums = pattern.sum(0)
    numbers: Numbers = {
        "row_sum_error": float((pattern.sum(-1) - 1).abs().max()),
        "column_sum_low": rounded(column_sums.min()),
        "column_sum_high": rounded(column_sums.max()),
        "entropy": rounded(entropy(pattern).mean()),
        "even": rounded(even_entropy(trace.run.allowed[0])),
        "strongest": rounded(pattern.max()),
    }
    model_pattern = trace.run.record.pattern
    check = trace.check("pattern of all heads", all_heads, model_pattern, kind="pattern")
    return Measured(numbers, [trace.matrix("pattern", pattern, trace.tokens)], [check])


def _words_of_softmax(result: ExplainResult, step: ExplainStep) -> Iterator[str]:
    numbers = step.numbers
    yield (
        f"Every row sums to 1 (to {tiny(numbers['row_sum_error'])}). The sum runs over the keys, "
        f"not over the queries: columns sum to anything, here {numbers['column_sum_low']:.2f} to "
        f"{numbers['column_sum_high']:.2f}."
    )
    yield (
        f"Entropy {numbers['entropy']:.2f} bits, mean over rows; spread evenly it would be "
        f"{numbers['even']:.2f}. The largest weight is {numbers['strongest']:.2f}."
    )
    yield (
        'Often said: "attention explains the output". It says what a head reads, not what the '
        "output depends on: headscope classify --ablate takes heads out and measures that."
    )


SOFTMAX = Step(
    key="softmax",
    title="Softmax: the pattern",
    formula="pattern = exp(scores) / sum over keys of exp(scores)",
    measure=_measure_softmax,
    words=_words_of_softmax,
)
