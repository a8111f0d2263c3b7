"""What is shown of ``classify --patch``: which heads carry their role, with the numbers."""

from __future__ import annotations

from collections.abc import Iterator

from headscope.analyses.classify.patch_result import HeadPatch, PatchEffect
from headscope.analyses.classify.result import ClassifyResult, HeadResult
from headscope.core.safe_text import visible
from headscope.show import blocks as b
from headscope.show.cells import decimal
from headscope.show.estimates import ranged

#: In the order in which they are told.
_VERDICTS = {
    "carries": "are carried by their head",
    "does not": "are not",
    "not told apart": "are not told apart from no effect or from other heads of the layer",
    "not measured": "have too few minimal pairs in this corpus",
}


def patch_sentences(result: ClassifyResult) -> Iterator[str]:
    """Say which roles are carried, and what was not patched; nothing where it was not asked for."""
    if result.patching is None:
        return
    rows = [(head, patch) for head in result.heads for patch in head.patched]
    parts = []
    for verdict, words in _VERDICTS.items():
        named = [_name(head, patch) for head, patch in rows if patch.verdict == verdict]
        if named:
            parts.append(f"{len(named)} {words} ({', '.join(named)})")
    if parts:
        yield f"Of {len(rows)} roles, {'; '.join(parts)}."
    yield from result.patching.notes


def patch_blocks(result: ClassifyResult) -> Iterator[b.Block]:
    """Show for each head, role and reader what the verdicts rest on."""
    yield from (b.Text(sentence, on=b.PAGE) for sentence in patch_sentences(result))
    effects = [
        (h, patch, effect) for h in result.heads for patch in h.patched for effect in patch.effects
    ]
    if not effects or result.patching is None:
        return
    columns: list[b.Column] = [
        ("head and role", lambda row: _name(*row[:2]), str),
        ("read by", lambda row: row[2].reader, str),
        ("gain [95%]", lambda row: ranged(row[2].gain, 2), str),
        ("others", lambda row: _others(row[2]), str),
        ("verdict", lambda row: row[2].verdict, str),
    ]
    yield b.Table(columns, effects, on=b.VERBOSE | b.PAGE)
    yield b.Text(
        "One head alone looks where it would in another sentence. gain: what then changes in the "
        "q, k and v of later heads, or in the output at that word, where the relation points to "
        "another place, less the same where as many other words leave the answer equal; as a "
        "share of the change when all heads of the layer do so. others: mean gain of up to five "
        "other heads of the layer. A head carries its role if its gain exceeds both 0 and "
        f"theirs, and does not if it is below {result.patching.smallest:g} (tests "
        "adjusted over heads).",
        "soft",
        b.VERBOSE | b.PAGE,
    )


def _name(head: HeadResult, patch: HeadPatch) -> str:
    """Write a head with its role, as ``L0H2 -1`` or ``L3H5 obj dep->head``."""
    return visible(f"{head.name} {patch.detail}")


def _others(effect: PatchEffect) -> str:
    """Write the mean gain of the other heads that were patched."""
    own, over = effect.gain.value, effect.over_others.value
    return decimal(None if own is None or over is None else own - over, 2)
