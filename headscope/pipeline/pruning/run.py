"""One run: rank, repair, measure, tabulate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headscope.models.loading import LoadedModel
from headscope.pipeline.pruning.calibrating import Progress, make_given, units_of
from headscope.pipeline.pruning.choosing import (
    by_hand,
    count_for,
    random_rankings,
    rank_all,
    scores_of,
)
from headscope.pipeline.pruning.measuring import Measurer
from headscope.pipeline.pruning.options import PruneOptions
from headscope.pipeline.pruning.repairing import Repair, Repaired, repair
from headscope.pipeline.pruning.roles import KnownRoles
from headscope.pipeline.pruning.tables import ablation_table, kept_alone_table
from headscope.pipeline.tasks import Task
from headscope.pruning.method import Ranking
from headscope.results.prune import Curve, HeadEffect, HeadScores, Point

__all__ = ["Outcome", "Run"]


@dataclass(frozen=True)
class Outcome:
    """What a run found; ``last`` is the model that is kept if one is to be saved."""

    curves: tuple[Curve, ...]
    scores: tuple[HeadScores, ...]
    ablation: tuple[HeadEffect, ...]
    kept_alone: tuple[HeadEffect, ...]
    warnings: tuple[str, ...]
    last: tuple[str, Repair, Repaired] | None


class Run:
    """Everything between the opened inputs and the result.

    Parameters
    ----------
    loaded : LoadedModel
    evaluation : Task
    calibration : Task or None
    roles : KnownRoles
    options : PruneOptions
    progress : callable, optional
    """

    def __init__(
        self,
        loaded: LoadedModel,
        evaluation: Task,
        calibration: Task | None,
        roles: KnownRoles,
        options: PruneOptions,
        progress: Progress | None,
    ) -> None:
        self.loaded, self.options, self.progress = loaded, options, progress
        self._calibration, self._roles = calibration, roles
        self.units = units_of(loaded)
        n = len(self.units)
        self._counts = tuple(sorted({count_for(f, self.units) for f in options.fractions}))
        inner = [count for count in self._counts if 0 < count < n]
        self.given = make_given(
            loaded,
            calibration or evaluation,
            roles=roles.by_place,
            use_labels=options.labels,
            budget=inner[0] if len(inner) == 1 else n // 2,
            largest=max(inner, default=n),
            seed=options.seed,
            progress=progress,
        )
        self.measure = Measurer(
            loaded, evaluation, self.units, seed=options.seed,
            roles={place: role.roles for place, role in roles.by_place.items()},
        )  # fmt: skip
        self._last: tuple[str, Repair, Repaired] | None = None

    def all(self) -> Outcome:
        """Do what the options say."""
        if self.options.manual:
            curves, rankings = self._by_hand(), dict[str, Ranking]()
        else:
            rankings = rank_all(self.options.methods, self.given, self.options.normalise)
            curves = self._curves(rankings)
        tables = self._tables()
        return Outcome(
            curves=tuple(curves),
            scores=tuple(scores_of(name, r, self.units) for name, r in rankings.items()),
            ablation=tables[0],
            kept_alone=tables[1],
            warnings=(),
            last=self._last,
        )

    # --- curves -------------------------------------------------------------------------------

    def _curves(self, rankings: dict[str, Ranking]) -> list[Curve]:
        curves, total = [], self._total()
        done = 0
        for method in self.options.methods:
            kinds = (Repair.none,) if method == "random" else self.options.repairs
            for kind in kinds:
                points = []
                for count in self._counts:
                    points.append(self._point(method, kind, count, rankings))
                    done += 1
                    self._tell("curves", done, total)
                curves.append(Curve(method, kind.value, tuple(points)))
        return curves

    def _total(self) -> int:
        kinds = [1 if m == "random" else len(self.options.repairs) for m in self.options.methods]
        return sum(kinds) * len(self._counts)

    def _point(self, method: str, kind: Repair, count: int, rankings: dict[str, Ranking]) -> Point:
        if method == "random":
            draws = random_rankings(self.given, self.options.draws)
            made = [(seed, self._repaired(Repair.none, r.remove(count))) for seed, r in draws]
            self._remember(method, kind, made[0][1])
            return self.measure.random_point(made)
        made_one = self._repaired(kind, rankings[method].remove(count))
        self._remember(method, kind, made_one)
        return self.measure.point(made_one)

    def _by_hand(self) -> list[Curve]:
        """One curve of one point, and as many heads at random beside it."""
        removed = by_hand(
            self.loaded, self.units, self.options.heads, self._roles.by_place,
            self.options.keep_roles,
        )  # fmt: skip
        curves = []
        for kind in self.options.repairs:
            made = self._repaired(kind, removed)
            self._remember("manual", kind, made)
            curves.append(Curve("manual", kind.value, (self.measure.point(made),)))
        if self.options.keep_roles:
            draws = random_rankings(self.given, self.options.draws)
            sets = [(s, self._repaired(Repair.none, r.remove(len(removed)))) for s, r in draws]
            curves.append(Curve("random", "none", (self.measure.random_point(sets),)))
        return curves

    def _repaired(self, kind: Repair, removed: Sequence[int]) -> Repaired:
        return repair(kind, self.loaded, self._calibration, self.given, removed)

    def _remember(self, method: str, kind: Repair, made: Repaired) -> None:
        """Keep the last model with heads removed: with one method and fraction, the one to save."""
        if made.removed:
            self._last = (method, kind, made)

    # --- tables -------------------------------------------------------------------------------

    def _tables(self) -> tuple[tuple[HeadEffect, ...], tuple[HeadEffect, ...]]:
        if not self.options.ablation:
            return (), ()
        alone = ablation_table(self.units, self.measure, self._ticker("each head alone"))
        kept = kept_alone_table(self.given, self.measure, self._ticker("one head left"))
        return alone, kept

    def _ticker(self, name: str) -> Callable[[int, int], None]:
        return lambda done, total: self._tell(name, done, total)

    def _tell(self, name: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(name, done, total)
