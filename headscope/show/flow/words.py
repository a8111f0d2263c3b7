"""The sentences that say what ``flow`` found."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from headscope.core.safe_text import visible
from headscope.results.estimated import Estimated
from headscope.results.flow import ChosenTrees, FlowResult, HeadFlow, Trees
from headscope.show.cells import decimal, joined, plural, plus_minus

#: What each R^2 is of.
TARGETS = {
    "whole": "all that is read",
    "directions": "all that is read, from random directions",
    "token": "the attended word's state",
    "token_directions": "the attended word's state, from random directions",
    "value": "the attended word where W_V reads",
    "gaussian": "the attended word, Gaussian W_V",
    "other": "a random word where W_V reads",
}
BASELINE_NAMES = {
    "previous": "previous word (right-branching)",
    "next": "next word (left-branching)",
    "offset": "best distance",
    "root": "all on the root",
    "random": "random trees",
}
_WIDE = 0.8  # Effective rank over d_head from which on W_V is called wide here, as in claim 1.


def number(found: Estimated | None, digits: int = 2) -> str:
    """Write a number with half of its interval."""
    if found is None or found.value is None:
        return "-"
    return plus_minus(f"{found.value:z.{digits}f}", found.half_width, f".{digits}f")


def percent(found: Estimated | None) -> str:
    """Write a share with half of its interval."""
    if found is None or found.value is None:
        return "-"
    return plus_minus(f"{found.value:z.0%}", found.half_width, ".1%")


def mean_wide(heads: Iterable[HeadFlow], matrix: str = "w_v") -> float | None:
    """Return the mean effective rank over d_head of the heads that have one."""
    known = [value for head in heads if (value := head.wide(matrix)) is not None]
    return fmean(known) if known else None


def control_wide(result: FlowResult, name: str, matrix: str = "w_v") -> float | None:
    """Return the same of a control, mean over its shapes; None where it was not measured."""
    found = [
        ranks / shape.d_head
        for shape in result.spectra.get(name, ())
        if (ranks := getattr(shape, matrix).effective_rank) is not None
    ]
    return fmean(found) if found else None


def width_sentence(result: FlowResult) -> str:
    """Say how much of its width W_V uses, beside the controls."""
    wide = [value for head in result.heads if (value := head.wide()) is not None]
    if not wide:
        return "Every W_V is zero."
    n = sum(value > _WIDE for value in wide)
    controls = [
        f"{said} {value:.2f}"
        for name, said in (("gaussian", "Gaussian entries"), ("fresh", "untrained"))
        if (value := control_wide(result, name)) is not None
    ]
    return (
        f"W_V uses {fmean(wide):.0%} of its width (effective rank over d_head, mean of heads; "
        f"above {_WIDE:.0%} in {n} of {len(wide)}; {', '.join(controls)})."
    )


def recovery_sentence(result: FlowResult) -> str:
    """Say how much of what is read z holds, beside random directions and random weights."""
    found, missing = result.recovery, result.not_measured
    if set(missing) >= {"whole", "value"}:
        return f"How much of what a head reads its z holds is not measured: {missing['whole']}."

    texts = []
    if "whole" not in missing:
        texts.append(
            f"A linear readout of z recovers {percent(found.whole)} of the variance of what a head "
            "reads (held out, mean of heads; as many random directions in the place of W_V "
            f"{percent(found.directions)}{random_weights(result, 'whole')})."
        )
    if "value" not in missing:
        texts.append(
            f"A linear readout of z recovers {percent(found.value)} of the variance of the state "
            "of the word attended to most, in the space that W_V reads (the same patterns with a "
            f"Gaussian W_V {percent(found.gaussian)}{random_weights(result, 'value')}; a random "
            f"word of the sentence {percent(found.other)})."
        )
    texts += [f"R^2 of {TARGETS[name]} is not measured: {why}." for name, why in missing.items()]
    return " ".join(texts)


def random_weights(result: FlowResult, name: str) -> str:
    """Say what random weights have of a number, where they were measured."""
    if result.control is None:
        return ""
    return f"; random weights {percent(getattr(result.control.recovery, name))}"


def hub_sentence(result: FlowResult) -> str:
    """Say how much goes to few words, and which these are."""
    graph = result.graph
    if graph.top_share.value is None:
        return "Hubs are not measured: no sentence is left to measure them on."
    even = "-" if graph.even_top_share is None else f"{graph.even_top_share:.0%}"
    beside = f"evenly spread: {even}"
    if result.control is not None:
        beside += f"; random weights: {percent(result.control.top_share)}"
    names = [f"{visible(hub.name)} ({number(hub.ratio, 1)} times)" for hub in graph.hubs[:5]]
    hubs = f"Hubs, beside even attention: {joined(names)}." if names else "No word is a hub."
    return (
        "The most-attended 10% of a sentence's words and special tokens receive "
        f"{percent(graph.top_share)} of the attention between them ({beside}). {hubs}"
    )


def heads_text(chosen: ChosenTrees) -> str:
    """Name chosen heads with their directions."""
    return ", ".join(f"{name} {direction}" for name, direction in chosen.heads)


def over_text(chosen: ChosenTrees, trees: Trees) -> str:
    """Say on which side of the strongest baseline chosen heads lie."""
    gap = chosen.over_baseline
    if gap.value is None or gap.interval is None:
        return f"no interval of the difference to {BASELINE_NAMES[trees.strongest]}"
    low, high = gap.interval
    side = "above" if low > 0 else "below" if high < 0 else "no different from"
    by = f" by {abs(gap.value):.3f} +-{gap.half_width:.3f}" if side[0] in "ab" else ""
    base = trees.baselines[trees.strongest]
    return f"{side} {BASELINE_NAMES[trees.strongest]} ({decimal(base.value)}){by}"


def tree_sentences(result: FlowResult) -> list[str]:
    """Say how well the best head, and the best combination, hold gold trees."""
    trees = result.trees
    if trees is None:
        return ["Trees: not measured (no gold trees, or a decoder)."]
    texts = [
        f"Best head for trees: {heads_text(trees.best)}, UAS {number(trees.best.uas, 3)}, "
        f"{over_text(trees.best, trees)}."
    ]
    n = len(trees.combination.heads)
    texts.append(
        f"{n} {plural(n, 'head')} added up: UAS {number(trees.combination.uas, 3)}, "
        f"{over_text(trees.combination, trees)}; against trees of other sentences "
        f"{number(trees.combination.swapped, 3)}{_untrained(result)}."
    )
    return texts


def _untrained(result: FlowResult) -> str:
    if result.control is None or result.control.combination_uas is None:
        return ""
    return f"; with random weights {number(result.control.combination_uas, 3)}"


def sentences_text(result: FlowResult) -> str:
    """Say what was read, and that nothing is measured where it was chosen."""
    read = result.sentences
    text = (
        f"{visible(read.name)}: fitted and chosen on {read.chosen_on:,} sentences, measured on "
        f"{read.measured_on:,} others"
    )
    left = [f"{read.repeated} repeated"] * bool(read.repeated)
    left += [f"{read.skipped} that cannot be read"] * bool(read.skipped)
    return f"{text} ({joined(left)} left out)" if left else text
