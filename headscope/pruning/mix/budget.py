"""What a target asks for, in the unit of costs, and whether any mix can reach it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headscope.core.errors import InputError
from headscope.models.loaded import LoadedModel
from headscope.pruning.latency_result import Confirmed
from headscope.pruning.mix.costs import Costs
from headscope.pruning.mix.eliminate import GRID
from headscope.pruning.mix.result import MixModel, budget_words
from headscope.pruning.mix.sublayers import HEADS, Sublayer
from headscope.pruning.options import PruneOptions


@dataclass(frozen=True)
class Budget:
    """One target."""

    name: str  # ``speed``, ``ms``, ``mb``, ``max_drop`` or ``fraction``
    wanted: float  # As it was asked for
    limit: float  # In the unit of the costs

    @property
    def words(self) -> str:
        """Say what was asked for: ``2 times as fast``."""
        return budget_words(self.name, self.wanted)


def budget_of(options: PruneOptions, whole_cost: float) -> Budget:
    """Read the target; ``whole_cost`` is that of the whole model, in the unit of the costs."""
    if options.target_speed is not None:
        return Budget("speed", options.target_speed, whole_cost / options.target_speed)
    if options.target_ms is not None:
        return Budget("ms", options.target_ms, options.target_ms)
    if options.target_mb is not None:
        return Budget("mb", options.target_mb, options.target_mb)
    if options.max_drop is not None:
        return Budget("max_drop", options.max_drop, 0.0)
    fraction = max(options.fractions or (0.5,))
    return Budget("fraction", fraction, whole_cost * (1 - fraction))


def check_reachable(
    loaded: LoadedModel,
    layers: Sequence[Sublayer],
    costs: Costs,
    budget: Budget,
    whole_cost: float,
    units: Sequence[str],
) -> None:
    """Refuse a target that even the smallest mix would miss, before the long part."""
    least = [0 if item.kind == HEADS else min(GRID, item.n_units) for item in layers]
    # One head stays: a model without any cannot be built.
    heads = [i for i, item in enumerate(layers) if item.kind == HEADS]
    if heads:
        least[heads[0]] = 1
    smallest = costs.total(layers, least)
    if budget.name == "max_drop" or smallest <= budget.limit:
        return
    reached = {
        "speed": f"{whole_cost / smallest:.2g} times as fast",
        "ms": f"{smallest:.2g} ms",
        "mb": f"{smallest:.3g} MB",
        "fraction": f"{1 - smallest / whole_cost:.0%}",
    }[budget.name]
    others = [
        unit
        for unit in ("heads", "neurons", "layers", "vocabulary", "int8")
        if unit not in units
        and (unit != "vocabulary" or budget.name == "mb")
        and (unit != "layers" or budget.name != "mb")
    ]
    more = f", or let other units go too ({', '.join(others)})" if others else ""
    verb = "has" if budget.name == "fraction" else "is"
    raise InputError(
        f"No mix of {' and '.join(units)} of {loaded.name} {verb} {budget.words}: with next to "
        f"nothing left of them the nearest is {reached}; ask for less{more}."
    )


def missed_sentence(budget: Budget, mix: MixModel, speed: Confirmed | None) -> str:
    """Say that a target was not reached, and what was the nearest; empty where it was."""
    if speed is not None and not speed.reached:
        fast = f"{speed.ratio:.2f} times as fast"
        if speed.low is not None:
            fast += f" (95%: {speed.low:.2f} to {speed.high:.2f})"
        ms = f"{speed.ms_cut:.2g} ms a text"
        if speed.ms_low is not None:
            ms += f" (95%: {speed.ms_low:.2g} to {speed.ms_high:.2g})"
        nearest = fast if budget.name == "speed" else ms
        words = budget.words[0].upper() + budget.words[1:]
        return (
            f"{words} was not confirmed; the nearest is {nearest}. Other programs on this machine "
            "make times uncertain: try again when it is idle, or ask for less."
        )
    if budget.name == "mb" and mix.megabytes > budget.wanted * 1.001:
        return (
            f"The nearest to {budget.wanted:g} MB is {mix.megabytes:.1f} MB; ask for more, or let "
            "other units go too."
        )
    return ""
