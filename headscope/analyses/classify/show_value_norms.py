"""Which labels are left when keys count by what they contribute: a table and a sentence."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from headscope.analyses.classify.result import ClassifyResult, RoleSurvival
from headscope.core.roles import role_name
from headscope.show.cells import decimal, make_table
from headscope.show.page.parts import Part

_HEADER = (
    "by norms",
    "heads",
    "kept",
    "95%",
    "gained",
    "mass",
    "by norms",
    "random: heads",
    "kept",
)
NOTE = (
    "All numbers above weigh each key by the norm of what it contributes, ||P v W_O||, as a share "
    "of the row. heads: with the role by the pattern itself; kept: by norms too; mass: mean weight "
    "on such tokens over these heads; random: heads with random weights, and kept."
)


def terminal(result: ClassifyResult) -> Iterator[RenderableType]:
    """Show what is left of every role."""
    if result.norms is None:
        return
    yield Text("\n" + sentence(result), style="bold")
    yield make_table(_HEADER, rows(result))
    yield Text(NOTE, style="dim")


def rows(result: ClassifyResult) -> Iterator[tuple[str, ...]]:
    """One row per role that a head has either way."""
    several = len(result.stacks) > 1
    for role in result.norms.roles if result.norms else ():
        name = role_name(role.role)
        yield (
            f"{role.stack}: {name}" if several else name,
            str(role.heads),
            str(len(role.kept)),
            "-".join(decimal(end, 2) for end in role.interval) or "-",
            str(len(role.gained)),
            decimal(role.mass, 2),
            decimal(role.norm_mass, 2),
            *("-" if n is None else str(n) for n in (role.control_heads, role.control_kept)),
        )


def sentence(result: ClassifyResult) -> str:
    """Say which labels of special tokens and punctuation survive."""
    found = {(r.role, r.stack): r for r in (result.norms.roles if result.norms else ())}
    told = [
        _told(found[role, stack], several=len(result.stacks) > 1)
        for stack in result.stacks
        for role in ("special", "punctuation")
        if (role, stack) in found and found[role, stack].heads
    ]
    if not told:
        return "By the pattern no head looks at special tokens or punctuation, so none can lose it."
    return f"By the norm of what keys contribute: {'; '.join(told)}."


def _told(role: RoleSurvival, *, several: bool) -> str:
    where = f" of the {role.stack}" if several else ""
    named = ", ".join(role.kept[:4]) + (", ..." if len(role.kept) > 4 else "")
    left = f"{len(role.kept)} of {role.heads} {role_name(role.role)} heads{where} stay"
    return f"{left} ({named})" if role.kept else left


def part(result: ClassifyResult) -> Part | None:
    """The same for the report's page."""
    if result.norms is None:
        return None
    texts = [sentence(result), NOTE]
    return Part("norms", "Norm-weighted attention", texts, header=_HEADER, rows=list(rows(result)))
