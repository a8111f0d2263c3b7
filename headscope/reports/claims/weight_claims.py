"""Claims 0 and 3: attention is a directed graph, and the heads of a layer share projections."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

from headscope.analyses.rank.result import RankResult
from headscope.analyses.symmetric.result import SymmetricResult
from headscope.core.rounding import ROUNDING
from headscope.reports.claims.finding import (
    FAILS,
    HOLDS,
    OPEN,
    UNKNOWN,
    Evidence,
    Finding,
    above,
    below,
    common,
    every,
    mean_estimate,
    shown,
    within,
)
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.result import InsightPart
from headscope.stats.estimate import Estimate

#: Random changes of the scores, each as large as what symmetric scores change.
_RANDOM = {"noise": "noise", "shuffled": "a step towards the scores of shuffled tokens"}


def judge_asymmetry(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 0 by every head's asymmetry of W_Q W_K^T and of its pattern P.

    ``||B - B^T||_F / ||B||_F``: 0 where W_Q = W_K, sqrt(2) for independent random factors, 2 where
    B is antisymmetric. What symmetric scores do to the model's output is a part of its own, which
    counts where it was measured. Where W_Q W_K^T was not measured, as in families that rotate
    queries and keys, the scores of the text take its place.
    """
    limit, rank, symmetric = thresholds.asymmetry, evidence.rank, evidence.symmetric
    rule = (
        f"Holds if every head's W_Q W_K^T (exact) and pattern (lower end of the 95% interval over "
        f"lines) have an asymmetry above {limit:g}, a weak bound, as independent random factors "
        "have 1.41 (where W_Q W_K^T was not measured or is not the score: if every head's scores "
        "have); and, where that is measured, if making all scores symmetric before the softmax "
        "moves the output further than random changes of the scores of the same size (upper end of "
        "the cosine's interval below the lower end of each of theirs). Does not hold if no head's "
        "W_Q W_K^T, or scores, are above."
    )
    output = _output_part(symmetric)
    function_values: dict[str, object] = {}
    function_control = ""
    if symmetric is not None:
        cosines = {name: drawn.cosine.value for name, drawn in symmetric.whole.items()}
        function_values = {f"{name}_cosine": value for name, value in cosines.items()}
        function_values["equivalent_heads"] = symmetric.equivalent_heads.value
        others = {"removed": "all heads removed", "pairs": "symmetric pairs alone (sinks kept)"}
        texts = (f"{text} {cosines[n]:.3f}" for n, text in others.items() if cosines[n] is not None)
        function_control = f" Cosine with other changes: {', '.join(texts)}."

    if rank is None:
        if symmetric is None:
            why = "neither rank nor symmetric was part of this run"
            return Finding("not measured yet", rule, why)
        every_head = ((head.name, head.asymmetry) for head in symmetric.heads)
        scores = {name: score for name, score in every_head if score.value is not None}
        part = _every_head_part("every head's scores are asymmetric", scores, limit)
        low = [name for name, score in scores.items() if above(score, limit) == FAILS]
        means = [score.value for score in scores.values() if score.value is not None]
        return Finding.concluded(
            (part, output),
            f"W_Q W_K^T was not measured, or is not the score. Asymmetry of the scores over "
            f"{len(scores)} heads: {part.measured}, median {median(means or [math.nan]):.2f}.",
            f"0 for symmetric scores, 1.41 for independent directions.{function_control}",
            rule,
            {
                "heads": len(scores),
                "scores_least": min(means, default=None),
                "symmetric_scores": low,
                **function_values,
            },
            refuted=bool(scores) and len(low) == len(scores),
        )

    weights = {head.name: head.asymmetry for head in rank.heads if head.asymmetry is not None}
    if not weights:
        return Finding("not applicable", rule, "Every W_Q W_K^T is zero.")
    asymmetries = ((head.name, head.pattern_asymmetry) for head in rank.heads)
    patterns = {name: pattern for name, pattern in asymmetries if pattern is not None}
    low = [name for name, value in weights.items() if value <= limit]
    least_head = min(weights, key=lambda name: weights[name])
    least, middle, most = weights[least_head], median(weights.values()), max(weights.values())
    means = [pattern.value for pattern in patterns.values() if pattern.value is not None]
    random: dict[str, float | None] = {}
    for name in ("gaussian", "fresh"):
        control = rank.controls.get(name)
        geometries = control.geometries if control else ()
        random[name] = next((g.asymmetry for g in geometries if g.asymmetry is not None), None)
    gaussian, fresh = random["gaussian"], random["fresh"]

    measured = (
        f"Asymmetry of W_Q W_K^T over {len(weights)} heads: least {least:.2f} ({least_head}), "
        f"median {middle:.2f}, most {most:.2f}"
    )
    if undefined := len(rank.heads) - len(weights):
        measured += f" ({undefined} more have W_Q W_K^T = 0)"
    if means:
        measured += f"; of the patterns: least {min(means):.2f}, median {median(means):.2f}."
    else:
        measured += "; of the patterns: not measured (no text)."
    control_text = "0 where W_Q = W_K"
    if gaussian is not None:
        control_text += f", {gaussian:.2f} for independent random factors"
    if fresh is not None:
        control_text += f", {fresh:.2f} freshly initialised"
    share = 1 - middle / gaussian if gaussian else None
    if share is not None:
        side = "below" if share >= 0 else "above"
        control_text += f"; the median head lies {abs(share):.0%} {side} random"
    return Finding.concluded(
        (
            InsightPart(
                "W_Q W_K^T of every head is asymmetric",
                FAILS if low else HOLDS,
                f"least {least:.2f} ({least_head}), no sampling",
            ),
            _every_head_part("every head's pattern is asymmetric", patterns, limit),
            output,
        ),
        measured,
        f"{control_text}: asymmetry alone is no sign of learning.{function_control}",
        rule,
        {
            "heads": len(weights),
            "undefined": undefined,
            "least": least,
            "least_head": least_head,
            "median": middle,
            "most": most,
            "pattern_least": min(means, default=None),
            "pattern_median": median(means) if means else None,
            "gaussian": gaussian,
            "fresh": fresh,
            "below_gaussian": share,
            "symmetric_weights": low,
            "symmetric_patterns": [n for n, p in patterns.items() if above(p, limit) == FAILS],
            **function_values,
        },
        refuted=len(low) == len(weights),
    )


def _every_head_part(name: str, heads: Mapping[str, Estimate], limit: float) -> InsightPart:
    """Whether every head lies above a limit, with the one that lies lowest."""
    if not heads:
        return InsightPart(name, UNKNOWN, "no text was read")
    least = min(heads, key=lambda head: heads[head].value or 0.0)
    outcome = every([above(number, limit) for number in heads.values()])
    return InsightPart(name, outcome, f"least {shown(heads[least])} ({least})")


def _output_part(symmetric: SymmetricResult | None) -> InsightPart:
    """Whether the model makes use of the asymmetry: by its output with all scores symmetric."""
    name = "symmetric scores move the output more than random changes"
    if symmetric is None:
        why = "so whether the model makes use of the asymmetry is open"
        return InsightPart(name, "not measured yet", why)
    changes = [change for change in ("symmetric", *_RANDOM) if change in symmetric.whole]
    if len(changes) < 1 + len(_RANDOM):
        why = "an earlier version's result, without scores of shuffled tokens"
        return InsightPart(name, "not measured yet", why)
    own, *random = [symmetric.whole[change].cosine for change in changes]
    if own.value is None or any(cosine.value is None for cosine in random):
        return InsightPart(name, UNKNOWN, "the embeddings are not finite")
    outcomes = []
    for cosine in random:  # the lower the cosine, the further the output has moved
        if own.low is None or own.high is None or cosine.low is None or cosine.high is None:
            outcomes.append(UNKNOWN)
        elif own.high < cosine.low - ROUNDING:
            outcomes.append(HOLDS)
        else:
            outcomes.append(FAILS if own.low >= cosine.high - ROUNDING else OPEN)
    pairs = zip(_RANDOM.values(), random, strict=True)
    text = f"cosine {shown(own, '.3f')} with all heads symmetric, " + ", ".join(
        f"{shown(cosine, '.3f')} with {change}" for change, cosine in pairs
    )
    if (equal := symmetric.equivalent_heads.value) is not None:
        n = len(symmetric.heads)
        text += f"; as far as removing about {equal:.0f} random heads of {n} moves it"
    return InsightPart(name, every(outcomes), text)


def judge_shared_projections(evidence: Evidence, thresholds: InsightThresholds) -> Finding:
    """Decide claim 3 by dims90 of W_Q W_K^T, of layers and of heads, over each control's."""
    least, near = thresholds.layer_below, thresholds.head_within
    rule = (
        f"Holds if, against every control, the layers' dims90 lies more than {least:.0%} below "
        f"the control's and the heads' within {near:.0%} of it (95% intervals over layers and "
        "over heads; one layer has none); does not hold if the layers' does not against "
        "any."
    )
    rank = evidence.rank
    if rank is None:
        return Finding("not measured yet", rule, "rank was not part of this run")
    ratios = {name: _over_control(rank, name) for name in rank.controls}
    layers = {
        name: layer
        for name, (layer, head) in ratios.items()
        if None not in (layer.value, head.value)
    }
    heads = {name: ratios[name][1] for name in layers}
    if not layers:
        return Finding("not measured yet", rule, "no control was measured")
    if max(len(layer.heads) for layer in rank.layers) < 2:
        return Finding("not applicable", rule, "Each layer has one head, which shares with nobody.")
    fewer = "layers need fewer dimensions than the control"  # Decides against the claim
    parts = [
        InsightPart(title, outcome, ", ".join(f"{shown(r)} of {name}" for name, r in rows.items()))
        for title, outcome, rows in (
            (fewer, common([below(ratio, 1 - least) for ratio in layers.values()]), layers),
            (
                "single heads need about as many",
                common([within(ratio, 1 - near, 1 + near) for ratio in heads.values()]),
                heads,
            ),
        )
    ]
    of_heads = [dims for head in rank.heads if (dims := head.qk.dims["90"]) is not None]
    of_layers = [dims for layer in rank.layers if (dims := layer.qk.dims["90"]) is not None]
    of_head, of_layer = (sum(dims) / max(len(dims), 1) for dims in (of_heads, of_layers))
    values: dict[str, object] = {"head_dims90": of_head, "layer_dims90": of_layer}
    for name in layers:
        values[name] = {
            f"{key}_ratio": {"mean": ratio.value, "low": ratio.low, "high": ratio.high}
            for key, ratio in (("layer", layers[name]), ("head", heads[name]))
        }
    return Finding.concluded(
        parts,
        f"dims90 of W_Q W_K^T: {of_head:.1f} for one head, {of_layer:.1f} for all heads "
        f"of a layer together.",
        "; ".join(
            f"{name}: layers at {shown(layers[name])} of it, heads at {shown(heads[name])}"
            for name in layers
        )
        + ".",
        rule,
        values,
        refuting=(fewer,),
    )


def _over_control(rank: RankResult, name: str) -> tuple[Estimate, Estimate]:
    """Return dims90 over a control's: of the layers, and of the heads."""
    control, layers, heads = rank.controls[name], list[float](), list[float]()
    for layer in rank.layers if control else ():
        random = control.of(len(layer.heads)) if control else None
        if random is None:
            continue
        if of_layers := random.layers["qk"].dims["90"]:
            layers += [dims / of_layers for dims in [layer.qk.dims["90"]] if dims is not None]
        if of_heads := random.heads["qk"].dims["90"]:
            heads += [
                dims / of_heads
                for head in rank.heads
                if (head.stack, head.layer) == (layer.stack, layer.layer)
                and (dims := head.qk.dims["90"]) is not None
            ]
    return mean_estimate(layers), mean_estimate(heads)
