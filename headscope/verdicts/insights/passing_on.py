"""Claim 1: heads route: they pass on nearly all of what they read, not a narrow part."""

from __future__ import annotations

import dataclasses

from headscope.results import Estimated, FlowResult, InsightPart
from headscope.verdicts.insights.finding import Evidence, Finding
from headscope.verdicts.insights.intervals import FAILS, HOLDS, UNKNOWN, Estimate
from headscope.verdicts.insights.thresholds import InsightThresholds

__all__ = ["judge"]


def judge(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 1 by the width of W_V and by what z tells of the word attended to most.

    Two more parts stand beside the verdict without deciding it: whether random directions in the
    place of W_V would pass on as much, and whether attention holds gold trees.
    """
    rule = (
        f"Holds if the effective rank of W_V is above {thresholds.value_width:g} of d_head in more "
        f"than {thresholds.most:.0%} of heads (exact), and if the held-out R^2 of the state of the "
        "word attended to most, from z and in the space that W_V reads, is above that of random "
        "weights (mean of heads, 95% interval over sentences). Random directions and trees stand "
        "beside it and do not decide."
    )
    flow = evidence.flow
    if flow is None:
        return Finding("not measured yet", rule, "flow was not part of this run")
    wide = [value for head in flow.heads if (value := head.wide()) is not None]
    if not wide:
        return Finding("not applicable", rule, "No head has values: every W_V is zero.")
    above = sum(value > thresholds.value_width for value in wide)
    parts = (
        InsightPart(
            "W_V uses nearly all of its width in most heads",
            HOLDS if above > thresholds.most * len(wide) else FAILS,
            f"{above} of {len(wide)} heads above {thresholds.value_width:g}, mean "
            f"{sum(wide) / len(wide):.2f}, no sampling",
        ),
        _over_random_weights(flow),
    )
    beside = (_over_random_directions(flow), *_trees(flow))
    found = Finding.concluded(
        parts, _measured(flow), _control(flow), rule, _values(flow, wide, above)
    )
    return dataclasses.replace(found, parts=(*found.parts, *beside))


def _over_random_weights(flow: FlowResult) -> InsightPart:
    name = "z tells more of the word attended to most than with random weights"
    if flow.control is None:
        return InsightPart(name, UNKNOWN, "random weights were not measured")
    gain = _estimate(flow.control.gain.value)
    return InsightPart(name, gain.above(0.0), f"R^2 minus theirs {gain}")


def _over_random_directions(flow: FlowResult) -> InsightPart:
    mine, theirs = flow.recovery.whole, flow.recovery.directions
    gain = _estimate(flow.over_directions)
    return InsightPart(
        "beside the verdict: z tells more of all that is read than random directions would",
        gain.above(0.0),
        f"R^2 {_number(mine)} against {_number(theirs)}, difference {gain}",
    )


def _trees(flow: FlowResult) -> tuple[InsightPart, ...]:
    trees = flow.trees
    if trees is None:
        return ()
    gap = _estimate(trees.combination.over_baseline)
    return (
        InsightPart(
            "beside the verdict: attention holds gold trees better than the strongest baseline",
            gap.above(0.0),
            f"UAS {_number(trees.combination.uas, 3)}, best single head "
            f"{_number(trees.best.uas, 3)}, {trees.strongest} "
            f"{_number(trees.baselines[trees.strongest], 3)}; difference {gap}",
        ),
    )


def _estimate(found: Estimated) -> Estimate:
    mean = float("nan") if found.value is None else found.value
    return Estimate.around(mean, found.half_width)


def _number(found: Estimated, digits: int = 2) -> str:
    return "-" if found.value is None else f"{found.value:.{digits}f}"


def _values(flow: FlowResult, wide: list[float], above: int) -> dict[str, object]:
    trees, control = flow.trees, flow.control
    return {
        "heads": len(wide),
        "wide": above,
        "mean_width": sum(wide) / len(wide),
        **{f"r2_{name}": found.value for name, found in vars(flow.recovery).items()},
        "r2_value_random_weights": None if control is None else control.recovery.value.value,
        "r2_whole_random_weights": None if control is None else control.recovery.whole.value,
        "uas": None if trees is None else trees.combination.uas.value,
        "uas_best_head": None if trees is None else trees.best.uas.value,
        "uas_baseline": None if trees is None else trees.baselines[trees.strongest].value,
    }


def _measured(flow: FlowResult) -> str:
    found = flow.recovery
    return (
        f"z tells {_number(found.value)} of the state of the word attended to most in the space "
        f"that W_V reads (held-out R^2, mean of {len(flow.heads)} heads), and "
        f"{_number(found.whole)} of all that is read."
    )


def _control(flow: FlowResult) -> str:
    found, control = flow.recovery, flow.control
    gaussian = flow.spectra.get("gaussian", ())
    widths = [
        shape.w_v.effective_rank / shape.d_head
        for shape in gaussian
        if shape.w_v.effective_rank is not None
    ]
    text = (
        f"A random word of the sentence {_number(found.other)}; d_head random directions in the "
        f"place of W_V would tell {_number(found.directions)} of all that is read."
    )
    if control is not None:
        weights = control.recovery
        text = (
            f"Random weights {_number(weights.value)} of the word and {_number(weights.whole)} of "
            f"all. {text}"
        )
    if widths:
        text += (
            f" Gaussian W_V use {sum(widths) / len(widths):.2f} of their width: a wide W_V is no "
            "sign of learning."
        )
    return text
