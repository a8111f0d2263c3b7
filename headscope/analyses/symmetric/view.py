"""What is shown of ``symmetric``: heads with symmetric scores, compared with heads removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headscope.analyses.symmetric.result import SymmetricResult
from headscope.show import blocks as b
from headscope.show.cells import decimal, joined, model_name
from headscope.show.estimates import ranged, run_lines
from headscope.show.page.parts import Card, Place
from headscope.show.view import KeyNumber, next_step, view
from headscope.stats.estimate import Estimate

#: What the changes of all heads are called.
CHANGE_NAMES = {
    "symmetric": "symmetric scores",
    "pairs": "symmetric pairs, sinks kept",
    "noise": "control for size: random change",
    "shuffled": "control for structure: shuffled tokens",
    "even": "even attention",
    "removed": "heads removed",
}
#: Colour and marker of the changes that the chart shows as single points, at all heads.
_POINT_STYLES = {
    "pairs": (b.SKY, "D"),
    "noise": (b.GREEN, "^"),
    "even": (b.ORANGE, "x"),
}


def blocks(result: SymmetricResult) -> Iterator[b.Block]:
    """Show all heads at once, then random sets of heads."""
    yield b.Text(whole_sentence(result), "lead")
    # A row is a pair: the name of a change, and its effect.
    columns: list[b.Column] = [
        ("all heads at once", lambda row: CHANGE_NAMES.get(row[0], row[0]), 0),
        ("similarity to the original", lambda row: row[1].cosine, 3),
        ("draws", lambda row: row[1].draws if row[1].draws > 1 else None, 0),
    ]
    if result.task is not None:
        columns.append((result.task.metric, lambda row: row[1].metric, 2))
    yield b.Table(columns, result.whole.items())
    yield _curves(result)
    yield b.Table(
        (
            ("heads", "heads", str),
            ("symmetric", "symmetric.cosine", 3),
            ("std", "symmetric.cosine_std", 3),
            ("removed", "removed.cosine", 3),
            ("std", "removed.cosine_std", 3),
        ),
        result.sets,
        "Random heads, made symmetric or removed: similarity to the original, std over draws",
        on=b.VERBOSE | b.PAGE,
    )
    if result.causal:
        yield b.Text(
            "A mask hides later tokens: scores are made symmetric before it, so that each query "
            "attends to earlier tokens by the mean of both directions."
        )
    if result.left_out:
        text = f"Left out: {joined(result.left_out)}, which no text alone shows"
        if "cross" in result.left_out:
            text += "; cross-attention has no square of scores to make symmetric"
        yield b.Text(f"{text}.")
    yield b.Text(run_lines(result), "soft", on=b.TERMINAL)
    yield next_step(result, "are the weights themselves symmetric?", "rank {}")


def whole_sentence(result: SymmetricResult) -> str:
    """Say what symmetric scores in all heads do, and how many removed heads that is."""
    n = len(result.heads)
    removed_heads = result.equivalent_heads
    text = (
        f"With symmetric scores in all {n} heads, similarity to the original falls to "
        f"{ranged(result.whole['symmetric'].cosine)}"
    )
    if removed_heads.value is None:
        return f"{text}, further than with every head removed."
    return f"{text}, as far as with about {ranged(removed_heads, 0)} random heads removed."


def _curves(result: SymmetricResult) -> b.Chart:
    """Draw the cosine by number of heads made symmetric, or removed; other changes at the end."""
    n = len(result.heads)
    x = [0, *(drawn.heads for drawn in result.sets), n]
    unchanged = Estimate(1.0)
    symmetric = [unchanged, *(drawn.symmetric.cosine for drawn in result.sets)]
    symmetric.append(result.whole["symmetric"].cosine)
    removed = [unchanged, *(drawn.removed.cosine for drawn in result.sets)]
    removed.append(result.whole["removed"].cosine)
    series = [
        b.Series(CHANGE_NAMES["symmetric"], x, symmetric, colour=b.VERMILION),
        b.Series(CHANGE_NAMES["removed"], x, removed, colour=b.BLACK),
    ]
    for name, (colour, marker) in _POINT_STYLES.items():
        y = [result.whole[name].cosine]
        series.append(b.Series(CHANGE_NAMES[name], [n], y, "points", colour, marker))
    return b.Chart(
        f"What symmetric scores cost, {model_name(result)}",
        "heads changed, drawn at random",
        "cosine to the model's own embedding",
        series,
        "Cosine of the embeddings to the model's own by the number of random heads that are made "
        "symmetric, or removed; the numbers are in symmetric_sets.csv.",
        "symmetric_curves",
    )


def _cards(result: SymmetricResult, places: Sequence[Place]) -> Iterator[Card]:
    """Yield a card for each head: how asymmetric its scores are."""
    for head in result.heads:
        text = f"asymmetry of the scores {ranged(head.asymmetry, 2)}"
        yield Card(head.layer, head.head, facts=[("Symmetric", text)])


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
    "Does it matter which token asks and which is looked at?",
    blocks,
    {"symmetric": SymmetricResult.to_frame, "symmetric_sets": SymmetricResult.sets_frame},
    cards=_cards,
    key_numbers=_key_numbers,
    term="symmetric scores",
)
