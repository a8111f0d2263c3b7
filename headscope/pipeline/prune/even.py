"""What it costs that every layer loses the same number of heads."""

from __future__ import annotations

from headscope.pipeline.prune.repairing import Repair, Repaired
from headscope.pipeline.prune.setting_up import Parts, layers_of
from headscope.pruning.even import EvenRanking
from headscope.results.even import EvenPrice
from headscope.results.points import Point


def even_price(
    parts: Parts, ranking: EvenRanking, name: tuple[str, Repair], made: Repaired, point: Point
) -> EvenPrice:
    """Measure the model that may take as many heads from any layer, and compare.

    Parameters
    ----------
    parts : Parts
        Of the run.
    ranking : EvenRanking
        Where both sets of heads come from.
    name : (str, Repair)
        Method and repair of both models.
    made, point : Repaired, Point
        The even model, and what it was measured as.
    """
    method, kind = name
    count = len(made.removed)
    free = ranking.free.remove(count)
    # The same heads: the same model, repaired the same way.
    other = point if free == made.removed else parts.point(parts.repaired(kind, free))
    return EvenPrice(
        method=method,
        repair=kind.value,
        per_layer=count // layers_of(parts.units, parts.options),
        heads=len(point.heads_removed),
        value=point.value,
        uneven=other.value,
        difference=point.value - other.value,
        ci=None if other is point else parts.measure.change(other, point).ci,
    )
