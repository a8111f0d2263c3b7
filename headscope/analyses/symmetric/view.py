"""What is shown of ``symmetric``: heads with symmetric scores, compared with heads removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headscope.analyses.symmetric.result import (
    DrawnEffect,
    HeadSymmetry,
    RandomHeads,
    SymmetricResult,
)
from headscope.show import blocks as b
from headscope.show.cells import decimal, joined, mean_of, model_name
from headscope.show.estimates import cosine_text, ranged, run_lines
from headscope.show.page.parts import Card, Place, Scale
from headscope.show.view import KeyNumber, next_step, view
from headscope.stats.estimate import Estimate

#: What the changes of all heads are called.
CHANGES = {
    "symmetric": "symmetric scores",
    "pairs": "symmetric pairs, sinks kept",
    "noise": "control for size: random change",
    "shuffled": "control for structure: shuffled tokens",
    "even": "even attention",
    "removed": "heads removed",
}
#: Colour and marker of the changes that the chart shows of all heads alone.
_ALL_HEADS = {
    "pairs": (b.SKY, "D"),
    "noise": (b.GREEN, "^"),
    "even": (b.GREY, "x"),
}


def blocks(result: SymmetricResult) -> Iterator[b.Block]:
    """Show all heads at once, random sets of heads, and every head alone."""
    yield b.Text(whole_sentence(result), "lead")
    columns: list[b.Column] = [
        ("all heads at once", lambda row: CHANGES.get(row[0], row[0]), 0),
        ("similarity to the original", lambda row: row[1].cosine, 3),
        ("draws", lambda row: row[1].draws if row[1].draws > 1 else None, 0),
    ]
    if result.task is not None:
        columns.append((result.task.metric, lambda row: row[1].metric, 2))
    yield b.Table(columns, result.whole.items())
    yield _curves(result)
    alone = [head for head in result.heads if head.symmetric is not None]
    means = {
        name: mean_of(effect.cosine.value for head in alone if (effect := getattr(head, name)))
        for name in ("symmetric", "noise", "removed")
    }
    sets = list(result.sets)
    if alone:
        one = (DrawnEffect(Estimate(means[name]), None, 1) for name in ("symmetric", "removed"))
        sets.insert(0, RandomHeads(1, *one))
    yield b.Table(
        (
            ("heads", lambda row: str(row.heads) if row.heads > 1 else "1 (mean of all)", str),
            ("symmetric", "symmetric.cosine", 3),
            ("std", "symmetric.cosine_std", 3),
            ("removed", "removed.cosine", 3),
            ("std", "removed.cosine_std", 3),
        ),
        sets,
        "Random heads, made symmetric or removed: similarity to the original, std over draws",
        on=b.VERBOSE | b.PAGE,
    )
    if alone:
        most = sorted(alone, key=_cosine)[:3]
        names = joined([f"{head.name} ({decimal(_cosine(head), 3)})" for head in most])
        yield b.Text(
            f"In one head alone the similarity stays at {decimal(means['symmetric'], 4)} on "
            f"average (random change of the same size {decimal(means['noise'], 4)}, head removed "
            f"{decimal(means['removed'], 4)}). It falls most with {names}."
        )
        yield b.HeadMap(
            f"One head's scores made symmetric, {model_name(result)}",
            "1000 x (1 - similarity)",
            {(head.layer_name, head.head): _moved(head, 1000) for head in result.heads},
            digits=1,
            file="symmetric_map",
            bold_from=10,
        )
    if result.causal:
        yield b.Text(
            "A mask hides later tokens: scores are made symmetric before it, so that each query "
            "attends to earlier tokens by the mean of both directions."
        )
    if result.left_out:
        cross = "; cross-attention has no square of scores to make symmetric"
        yield b.Text(
            f"Left out: {joined(result.left_out)}, which no text alone shows"
            f"{cross if 'cross' in result.left_out else ''}."
        )
    yield b.Text(run_lines(result), "soft", on=b.TERMINAL)
    yield next_step(result, "are the weights themselves symmetric?", "rank {}")


def whole_sentence(result: SymmetricResult) -> str:
    """Say what symmetric scores in all heads do, and how many removed heads that is."""
    n = len(result.heads)
    equal = result.equivalent_heads
    text = (
        f"With symmetric scores in all {n} heads, similarity to the original falls to "
        f"{ranged(result.whole['symmetric'].cosine)}"
    )
    if equal.value is None:
        return f"{text}, further than with every head removed."
    between = ""
    if equal.interval is not None:
        between = f" ({equal.interval[0]:.0f} to {equal.interval[1]:.0f})"
    return f"{text}, as far as with about {equal.value:.0f}{between} random heads removed."


def _curves(result: SymmetricResult) -> b.Chart:
    """Draw the cosine by number of heads made symmetric, or removed; other changes at the end."""
    n = len(result.heads)
    x = [0, *(chosen.heads for chosen in result.sets), n]
    series = []
    for name, colour in (("symmetric", b.VERMILION), ("removed", b.BLACK)):
        sets = (getattr(chosen, name).cosine for chosen in result.sets)
        y = [1.0, *sets, result.whole[name].cosine]
        series.append(b.Series(CHANGES[name], x, y, colour=colour))
    for name, (colour, marker) in _ALL_HEADS.items():
        y = [result.whole[name].cosine]
        series.append(b.Series(CHANGES[name], [n], y, "points", colour, marker))
    return b.Chart(
        f"What symmetric scores cost, {model_name(result)}",
        "heads changed, drawn at random",
        "cosine to the model's own embedding",
        series,
        "Cosine of the embeddings to the model's own by the number of random heads that are made "
        "symmetric, or removed; the numbers are in symmetric_sets.csv.",
        "symmetric_curves",
    )


def _cosine(head: HeadSymmetry) -> float:
    value = None if head.symmetric is None else head.symmetric.cosine.value
    return 1.0 if value is None else value


def _moved(head: HeadSymmetry, scale: float = 1) -> float | None:
    if head.symmetric is None or head.symmetric.cosine.value is None:
        return None
    return scale * (1 - _cosine(head))


def _cards(result: SymmetricResult, places: Sequence[Place]) -> Iterator[Card]:
    """Yield a card for each head: the output with its scores symmetric, noisy, or without it."""
    for head in result.heads:
        text = f"asymmetry of the scores {ranged(head.asymmetry, 2)}"
        if head.symmetric is not None and _moved(head) is not None:
            text = (
                f"cosine {ranged(head.symmetric.cosine)} with this head's scores symmetric (random "
                f"change of the same size {cosine_text(head.noise)}, removed "
                f"{cosine_text(head.removed)}); {text}"
            )
        values = {"symmetric": _moved(head)}
        yield Card(head.layer, head.head, facts=[("Symmetric", text)], values=values)


def _key_numbers(result: SymmetricResult) -> Iterator[KeyNumber]:
    """Yield the cosine with all scores symmetric, with noise of the same size, without heads."""
    cosines = {name: effect.cosine for name, effect in result.whole.items()}
    control = (
        f"random change {decimal(cosines['noise'].value)}, all heads removed "
        f"{decimal(cosines['removed'].value)}"
    )
    cosine = cosines["symmetric"]
    yield KeyNumber("cosine with all scores symmetric", ranged(cosine), control, cosine)


VIEW = view(
    "Symmetric scores",
    blocks,
    {"symmetric": SymmetricResult.to_frame, "symmetric_sets": SymmetricResult.sets_frame},
    facts=_cards,
    scales=(Scale("symmetric", "What symmetric scores in it change, 1 - cosine"),),
    key_numbers=_key_numbers,
)
