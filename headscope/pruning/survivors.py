"""Which kinds of heads are left when heads are removed: a table and a figure of ``prune``.

Both show one curve, the first whose points say how many heads of each role are left
(``point.roles_left``, such as {"positional": 4, "syntactic": 9}); none does where the heads were
not classified. Roles go by their keys, from which come their names and colours.
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
_MARKERS = "osd^v<>P"  # Of lines, as matplotlib names them


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
    shown = spaced(points)  # as many columns as fit into a terminal
    _, roles_at_start = points[0]

    def cells(role: str) -> list[str]:
        """Write how many heads of a role each of the points leaves."""
        return [str(counts.get(role, 0)) for _, counts in shown]

    rows = [[role_name(role), *cells(role)] for role in roles_at_start]
    heads_left = [str(result.n_heads - len(point.heads_removed)) for point, _ in shown]
    rows.append(["all heads", *heads_left])
    return b.text_table(
        ("heads removed", *(f"{point.fraction:.0%}" for point, _ in shown)),
        rows,
        f"Which kinds of heads are left ({method}; roles from {result.roles_from}; a head can "
        "have several)",
        on=b.ASKED | b.PAGE,
    )


def _survivors_chart(result: PruneResult, method: str, points: Sequence[RolesLeft]) -> b.Chart:
    """Draw the share of the heads of each role that is left, by the share of all heads removed.

    A grey line shows what would be left if heads of all roles went at the same rate.
    """
    x = [point.fraction for point, _ in points]
    _, roles_at_start = points[0]
    series = []
    for i, (role, count) in enumerate(roles_at_start.items()):
        if count:
            y = [100 * counts[role] / count for _, counts in points]
            name = f"{role_name(role)} ({count})"
            marker = _MARKERS[i % len(_MARKERS)]
            series.append(b.Series(name, x, y, colour=role_of(role).colour, marker=marker))
    evenly = b.Series(
        name="heads taken evenly",
        x=(0, 1),
        y=(100, 0),
        colour=b.BLACK,
        marker="",
        dash="--",
        width=0.8,
    )
    return b.Chart(
        title=f"Which heads of {model_name(result)} are left by {method}",
        x="heads removed",
        y="heads of that role left, %",
        series=[*series, evenly],
        alt="Share of the heads of each role that is left, by share of all heads removed; the "
        "numbers are in prune.json.",
        file="survivors",
        x_scale="percent",
    )
