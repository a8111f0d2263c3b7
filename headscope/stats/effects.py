"""What a change of some heads does to a model's output, and how results become tables.

First the values that results hold (:class:`Effect`), then :func:`columns`, which lays fields of
results out as columns of a pandas table, and :func:`head_frame`, which makes one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from headscope.core.heads import head_name
from headscope.stats.compared import Compare, field_types
from headscope.stats.estimate import Estimate

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class EffectTask:
    """The task by which changed models are measured besides the cosine."""

    name: str
    metric: str  # What its value is called
    higher_is_better: bool  # False for a loss
    data: dict[str, Any]  # Name and SHA-256 of the data that it was measured on
    examples: int  # Number of examples that were measured
    baseline: Estimate  # Value of the unchanged model; interval over examples


@dataclass(frozen=True)
class Effect:
    """A changed model compared with the unchanged one."""

    #: Mean cosine of the lines' embeddings to the unchanged model's own; interval by a bootstrap
    #: over lines.
    cosine: Annotated[Estimate, Compare(better=1)]
    metric: float | None = None  # The task's value; None without a task
    #: Difference from the unchanged model's value, paired over examples.
    difference: Annotated[Estimate | None, Compare("change of the metric")] = None


def estimated_columns(name: str, number: Estimate | None) -> Mapping[str, float | None]:
    """Lay a number and its interval out as columns of a table."""
    number = number or Estimate(None)
    return {name: number.value, f"{name}_low": number.low, f"{name}_high": number.high}


def columns(row: Any, *names: str) -> dict[str, Any]:
    """Lay fields of a result row out as columns of a table.

    An estimate ``rate`` has the columns ``rate``, ``rate_low`` and ``rate_high``; an effect has
    those of its cosine, and of a task where there is one. The type of the field decides, so that an
    estimate that is None has its columns too.
    """
    row_type: type = type(row)
    types_of = field_types(row_type)
    cells: dict[str, Any] = {}
    for name in names:
        value = getattr(row, name)
        if Estimate in types_of[name]:
            cells |= estimated_columns(name, value)
        elif Effect in types_of[name]:
            cells |= _effect_columns(name, value)
        else:
            cells[name] = value
    return cells


def _effect_columns(name: str, effect: Effect | None) -> dict[str, float | None]:
    """Lay an effect out as columns of a table."""
    cosine = None if effect is None else effect.cosine
    cells = dict(estimated_columns(f"{name}_cosine", cosine))
    if effect is not None and effect.metric is not None:
        cells[f"{name}_metric"] = effect.metric
        cells |= estimated_columns(f"{name}_difference", effect.difference)
    return cells


def head_frame(rows: Iterable[Mapping[str, Any]]) -> pandas.DataFrame:
    """Make a table of heads, whose index is their names: ``frame.loc["L2H8"]`` (pandas)."""
    import pandas as pd

    rows = list(rows)
    addresses = ((row["layer"], row["head"], row.get("stack", "encoder")) for row in rows)
    index = pd.Index([head_name(*address) for address in addresses], name="name", dtype=object)
    return pd.DataFrame(rows, index=index)
