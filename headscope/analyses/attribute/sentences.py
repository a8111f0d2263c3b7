"""What is said of ``attribute``: the sum, how far it agrees with removal, the controls.

A head's *direct part* is its term of the exact sum, the *effect of removal* the output minus the
output without it. With ``spearman_first_order`` direct parts count the lengths of embeddings, too.
"""

from __future__ import annotations

from headscope.analyses.attribute.result import INDEPENDENT, NUMBERS, AttributeResult
from headscope.core.safe_text import visible
from headscope.show.cells import decimal, joined, tiny
from headscope.show.estimates import ranged

# --- what the output is called --------------------------------------------------------------------


def output_name(result: AttributeResult) -> str:
    """Name the output inside a sentence: ``the logit of the class negative``."""
    if result.is_difference:
        return "the difference of the cosines"
    if result.kind == "cosine":
        return "the cosine"
    label = visible(result.label)
    if result.own_tokens:
        named = {
            "target": "the logit of each prompt's target",
            "target and against": "the logit of each target minus that of its alternative",
        }
        return named[result.own_tokens]
    if result.kind == "next":
        if result.against:
            return f"the logit of {label} minus that of {visible(result.against)}"
        return f"the logit of {label} as the next token" if label else "the next token's logit"
    if result.kind == "target":
        return f"the logit of {label}" if label else "the mean target logit"
    if result.outputs == NUMBERS:
        has_name = result.label not in ("", "LABEL_0")  # transformers' name of what has none
        return f"the score {label}" if has_name else "the score"
    kind = "label" if result.outputs == INDEPENDENT else result.kind
    return f"the logit of the {kind} {label}" if label else "the logit"


def kind_name(result: AttributeResult) -> str:
    """Name what kind of number the output is."""
    if result.is_difference:
        return "a difference of cosines"
    if result.against or result.own_tokens == "target and against":
        return "a difference of logits"
    if result.outputs == NUMBERS:
        return "a score"
    return "a cosine" if result.kind == "cosine" else "a logit"


def heads_shown(result: AttributeResult) -> str:
    """Name the heads whose part is shown: in a decoder, those that read the source."""
    return "cross-attention" if result.kind == "target" else "heads"


# --- the sum, and removal -------------------------------------------------------------------------


def sum_sentence(result: AttributeResult) -> str:
    """Say what the output is the sum of, and how exactly."""
    name = output_name(result)
    terms = [f"{term.kind} {ranged(term.direct)}" for term in result.parts]
    mean = f" (mean of {result.examples:,} examples)" if result.examples > 1 else ""
    return (
        f"{name[0].upper()}{name[1:]} {ranged(result.output)}{mean} is the sum of {joined(terms)} "
        f"(exact up to rounding: {tiny(result.check.error)})."
    )


def next_tokens_sentence(result: AttributeResult) -> str:
    """Say what the model predicts after the text, and how likely the tokens that were named are."""
    shares = [
        f"{visible(candidate.token)} ({100 * candidate.probability:.2g}%)"
        for candidate in result.next_tokens
    ]
    return f"After this text the model predicts {joined(shares)}; ␣ is a space."


def largest_effects_sentence(result: AttributeResult, n_named: int) -> str:
    """Say of how many heads removal changes the output on average, over several examples."""
    n = len(result.heads)
    interval = f"that holds for all {n} heads at once ({result.removals} examples)"
    name = output_name(result)
    if n_named == 0:
        return f"No single head changes {name} on average beyond an interval {interval}."
    return (
        f"Removing each of {n_named} of {n} heads alone changes {name} on average: zero lies "
        f"outside the interval {interval}."
    )


def agreement_sentence(result: AttributeResult) -> str:
    """Say that the direct part is not the effect of removal, how far they agree, and why not."""
    *earlier_layers, last = result.layers
    text = "A head's direct part is not what is lost without it"
    if result.spearman is not None:
        # An encoder's heads have no direct part in a decoder's logit.
        n_direct = sum(head.direct.value is not None for head in result.heads)
        text += (
            f": over {n_direct} heads the two have a Spearman correlation of "
            f"{decimal(result.spearman, 2)} ({decimal(result.spearman_mean, 2)} where removed "
            "heads leave their mean)"
        )

    # One reason: what the sum holds fixed
    is_cosine = result.kind == "cosine"
    held = "the scales of norms"
    if is_cosine:
        held = "the texts' lengths" if result.is_difference else "both texts' lengths"
    text += f". One reason: the sum holds {held} fixed, and removing a head changes them"
    if last.spearman is not None:
        text += (
            f"; in {last.name}, which no layer follows, they agree at {decimal(last.spearman, 2)}"
        )
        if last.spearman_first_order is not None:
            text += f", and with lengths counted at {decimal(last.spearman_first_order, 2)}"

    # The other: later layers
    correlations = [
        layer.spearman_first_order if is_cosine else layer.spearman for layer in earlier_layers
    ]
    known = [value for value in correlations if value is not None]
    if known:
        lowest = decimal(min(known), 2)
        highest = decimal(max(known), 2)
        span = lowest if lowest == highest else f"{lowest} to {highest}"
        text += (
            ". The other: later layers read what earlier ones write; in the layers before "
            f"{last.name} they agree at {span}"
        )
        if is_cosine:
            text += " with lengths counted"
    return f"{text}."


# --- controls -------------------------------------------------------------------------------------


def shuffled_sentence(result: AttributeResult) -> str:
    """Say what the same sum is on texts that do not belong together."""
    control = result.shuffled
    texts = "other texts"
    if result.is_difference:
        texts = "triples of texts that do not belong together"
    elif result.kind == "cosine":
        texts = "pairs of texts that do not belong together"
    elif result.kind == "target":
        texts = "targets with sources that they do not belong to"
    kind = heads_shown(result)
    heads = next(term.direct for term in control.parts if term.kind == kind)
    agreement = _correlated("the heads' parts there and here", control.agreement)
    return (
        f"Control: on {control.examples} {texts} the mean is {ranged(control.output)}, of which "
        f"{kind} {ranged(heads)}{agreement}."
    )


def random_weights_sentence(result: AttributeResult) -> str:
    """Say what the same sum is with random weights."""
    control = result.control
    assert control is not None
    terms = joined([f"{term.kind} {decimal(term.direct.value)}" for term in control.parts])
    agreement = _correlated("direct part and effect of removal there", control.spearman)
    return (
        f"Control: with random weights {output_name(result)} is {ranged(control.output)} ({terms})"
        f"{agreement}."
    )


def _correlated(what_agrees: str, spearman: float | None) -> str:
    """Say how far two numbers of heads agree; nothing where that is unknown."""
    if spearman is None:
        return ""
    return f"; {what_agrees} have a Spearman correlation of {spearman:.2f}"
