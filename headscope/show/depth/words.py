"""The sentences that say what ``depth`` found."""

from __future__ import annotations

from headscope.results.depth import DepthCurves, DepthResult, Protection
from headscope.show.cells import joined, plural, ratio_text

#: What the variants of the layers are called.
VARIANTS = {
    "full": "full model",
    "full-without-layernorm": "full, LayerNorm off",
    "attention+skip": "attention + skip",
    "attention+ffn": "attention + FFN",
    "attention": "attention only",
}
PART_NAMES = {
    "skip": "the skip connection",
    "ffn": "the feed-forward network",
    "layernorm": "LayerNorm",
}
WAYS = {"removed": "lost without it", "added": "gained beside attention"}
PLACEMENTS = {
    "post": "after each sum (post-LN)",
    "pre": "before each sublayer (pre-LN)",
    "mixed": "on both sides of the sums, layer by layer (mixed)",
}


def _layers(n: int) -> str:
    """Write a number of layers."""
    return f"{n} {plural(n, 'layer')}"


def collapse_sentence(result: DepthResult) -> str:
    """Say whether attention alone collapses, from which layer on, and what the model keeps."""
    alone, full = result.variants["attention"], result.variants["full"]
    n, after = len(alone) - 1, result.collapsed_after["attention"]
    ends = f"{ratio_text(alone[0])} at the embeddings, {ratio_text(alone[-1])} after {_layers(n)}"
    if after is None:
        found = f"Attention alone does not collapse within {_layers(n)}: {ends}"
    else:
        found = (
            f"Attention alone collapses: after {_layers(after)} its residual is below 1% of "
            f"its start ({ends}{_rounding(result)})"
        )
    return f"{found}. The full model still has {ratio_text(full[-1])}."


def _rounding(result: DepthResult) -> str:
    last = result.variants["attention"][-1]
    at_floor = last is not None and last < result.floor
    return f", no more than {result.provenance['dtype']}'s rounding" if at_floor else ""


def protection_sentence(result: DepthResult) -> str:
    """Say which parts keep the full model's residual up after the last layer, and which cost it."""
    removed = [p for p in result.protected if p.way == "removed" and p.mean[-1] is not None]
    if any(p.low[-1] is None for p in removed):
        return "A single window gives no interval, so nothing is said of what each part protects."
    removed.sort(key=lambda p: -abs(p.mean[-1] or 0.0))
    lost = [f"{_without(p)} {_share(p)}" for p in removed if _sign(p) > 0]
    kept = [f"{_without(p)} {_share(p)}" for p in removed if _sign(p) < 0]
    same = [_without(p) for p in removed if _sign(p) == 0]
    overflow = result.variants["full-without-layernorm"][-1] is None
    parts = [
        f"{joined(lost)} of that is lost" if lost else "",
        f"{joined(kept)} more is left" if kept else "",
        f"{joined(same)} no difference shows" if same else "",
        f"without LayerNorm the states overflow {result.provenance['dtype']}" if overflow else "",
    ]
    found = "; ".join(part for part in parts if part)
    return f"{found[:1].upper()}{found[1:]} (each taken out alone)." if found else ""


def _without(p: Protection) -> str:
    return f"without {PART_NAMES[p.part]}"


def _sign(p: Protection) -> int:
    """Return 1 or -1 where the 95% interval excludes zero, else 0."""
    low, high = p.low[-1], p.high[-1]
    return int(low is not None and low > 0) - int(high is not None and high < 0)


def _share(p: Protection) -> str:
    return f"{abs(p.mean[-1] or 0.0):.1%}"


def control_sentence(result: DepthResult) -> str:
    """Say what the same architecture with random weights does."""
    control = result.control
    if control is None:
        return "Control: not run; --control measures the same architecture with random weights."
    return (
        f"Control: with random weights (seed {control.seed}) attention alone "
        f"{_control_collapse(control)}; the full model has "
        f"{ratio_text(control.variants['full'][-1])} at the end, "
        f"{ratio_text(control.variants['attention+ffn'][-1])} without its skip connections."
    )


def _control_collapse(control: DepthCurves) -> str:
    after = control.collapsed_after["attention"]
    if after is None:
        return "does not collapse"
    return f"is below 1% of its start after {_layers(after)}"
