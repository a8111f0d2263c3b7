"""What is shown of ``reach``: the heads that look least far for their sentences, all as CSV."""

from __future__ import annotations

from collections.abc import Iterator

from headscope.analyses.reach import ReachResult
from headscope.show import blocks as b
from headscope.show.cells import model_line
from headscope.show.view import view


def blocks(result: ReachResult) -> Iterator[b.Block]:
    """Show how many heads look further than evenly spread attention, and which look closest."""
    further = sum(row.distance > row.even for row in result.reaches)
    yield b.Text(str(model_line(result)), on=b.TERMINAL)
    yield b.Text(
        f"{further} of {len(result.reaches)} heads look further than evenly spread attention.",
        "lead",
    )
    closest = sorted(result.reaches, key=lambda row: row.distance - row.even)[:8]
    columns = (("head", "name", str), ("tokens", "distance", 3), ("if spread evenly", "even", 3))
    yield b.Table(columns, closest, "The heads that look closest")


VIEW = view("Reach", blocks, {"reach": ReachResult.to_frame})
