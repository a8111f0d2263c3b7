"""Which kinds of heads are left when heads are removed: a table and a figure of ``prune``.

Both show one curve, the first whose points say how many heads of each role are left; none does
where the heads were not classified.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headscope.analyses.classify.roles import role_name, role_of
from headscope.pruning.result import Point, PruneResult
from headscope.pruning.tables import spaced
from headscope.show import blocks as b
from headscope.show.cells import model_name

#: A point, and how many heads with each role it leaves.
RolesLeft = tuple[Point, dict[str, int]]


def survivors(result: PruneResult) -> Iterator[b.Block]:
    """Show which kinds of heads are left along the first curve that says so."""
    with_roles = (curve for curve in result.curves if curve.points[-1].roles_left is not None)
    curve = next(with_roles, None)
    if curve is None:
        return
    points = [(point, point.roles_left) for point in curve.points if point.roles_left is not None]
    if result.roles:
        yield _survivors_table(result, curve.method, points)
    _, roles_at_start = points[0]
    if len(curve.points) >= 3 and roles_at_start:
        yield _survivors_chart(result, curve.method, points)


def _survivors_table(result: PruneResult, method: str, points: Sequence[RolesLeft]) -> b.Table:
    """Write how many heads of each role are left: a row for each role, a column for each share."""
    shown = spaced(points)  # as many as fit
    _, roles_at_start = points[0]

    def cells(role: str) -> list[str]:
        return [str(counts.get(role, 0)) for _, counts in shown]

    rows = [[role_name(role), *cells(role)] for role in roles_at_start]
    heads_left = [str(result.n_heads - len(point.heads_removed)) for point, _ in shown]
    rows.append(["all heads", *heads_left])
    return b.text_table(
        ("heads removed", *(f"{point.fraction:.0%}" for point, _ in shown)),
        rows,
        f"Which kinds of heads are left ({method}; roles from {result.roles_from}; a head can "
        "have several)",
    )


def _survivors_chart(result: PruneResult, method: str, points: Sequence[RolesLeft]) -> b.Chart:
    """Draw the share of the heads of each role that is left, beside heads taken evenly."""
    x = [point.fraction for point, _ in points]
    _, roles_at_start = points[0]
    series = []
    for i, (role, count) in enumerate(roles_at_start.items()):
        if count:
            y = [100 * counts[role] / count for _, counts in points]
            name = f"{role_name(role)} ({count})"
            marker = "osd^v<>P"[i % 8]
            series.append(b.Series(name, x, y, colour=role_of(role).colour, marker=marker))
    evenly = b.Series("heads taken evenly", (0, 1), (100, 0), "line", b.GREY, "", "--", width=0.8)
    return b.Chart(
        f"Which heads of {model_name(result)} are left by {method}",
        "heads removed",
        "heads of that role left, %",
        [*series, evenly],
        "Share of the heads of each role that is left, by share of all heads removed; the numbers "
        "are in prune.json.",
        "survivors",
        x_scale="percent",
    )
