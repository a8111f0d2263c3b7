"""What is shown of ``classify --patch``: which heads carry their role, with the numbers."""

from __future__ import annotations

from collections.abc import Iterator

from headscope.analyses.classify.patch_result import HeadPatch
from headscope.analyses.classify.result import ClassifyResult, HeadResult
from headscope.core.safe_text import visible
from headscope.show import blocks as b
from headscope.show.cells import interval_text, p_text

#: In the order in which they are told.
_VERDICTS = {
    "carries": "carry their role",
    "does not": "do not",
    "not told apart": "are not told apart from the other heads of their layer",
    "not measured": "have too few minimal pairs in this corpus",
}


def patch_blocks(result: ClassifyResult) -> Iterator[b.Block]:
    """Show the verdicts, and for each head, role and reader what they rest on."""
    patching = result.patching
    if patching is None:
        return
    rows = [(head, patch) for head in result.heads for patch in head.patched]
    parts = []
    for verdict, words in _VERDICTS.items():
        named = [_name(head, patch) for head, patch in rows if patch.verdict == verdict]
        if named:
            parts.append(f"{len(named)} {words} ({', '.join(named)})")
    if parts:
        yield b.Text(f"Of {len(rows)} roles of heads {'; '.join(parts)}.", "lead")
    yield from map(b.Text, patching.notes)
    if not rows:
        return
    columns: list[b.Column] = [
        ("head", lambda row: _name(*row[:2]), str),
        ("pairs", lambda row: row[1].pairs, str),
        ("follows", lambda row: row[1].follows.value, 2),
        ("read by", lambda row: row[2].reader, str),
        ("elsewhere", lambda row: row[2].elsewhere, 3),
        ("same place", lambda row: row[2].same, 3),
        ("gain", lambda row: row[2].gain.value, 3),
        ("95% interval", lambda row: row[2].gain.interval, interval_text),
        ("beyond others", lambda row: row[2].over_others.value, 3),
        ("95% interval", lambda row: row[2].over_others.interval, interval_text),
        ("p", lambda row: row[2].p_carries, p_text),
        ("others carry", lambda row: f"{row[2].others_carry} of {row[1].others}", str),
        ("verdict", lambda row: row[2].verdict, str),
    ]
    effects = [(head, patch, effect) for head, patch in rows for effect in patch.effects]
    yield b.Table(columns, effects, on=b.VERBOSE | b.PAGE)
    yield b.Text(
        "One head alone looks where it would in another sentence: elsewhere, where the relation "
        "points to another place; same place, where as many other words leave the answer equal. "
        "Both are what then changes in q, k and v of later heads at that word, or in its last "
        "state (output), as a share of the change when all heads of the layer do so. gain: the "
        "difference; beyond others: less the mean gain of the layer's heads without the role. A "
        "head carries its role if both lie above 0 (p, adjusted over heads and readers), and does "
        f"not if its gain is significantly below {patching.smallest:g}. follows: share of pairs in "
        "which it does look at the new place; others carry: heads without the role of which the "
        "same tests, unadjusted, would say so.",
        "soft",
        b.VERBOSE | b.PAGE,
    )


def _name(head: HeadResult, patch: HeadPatch) -> str:
    """Write a head with its role, as ``L0H2 -1`` or ``L3H5 obj dep->head``."""
    return visible(f"{head.name} {patch.detail}")
