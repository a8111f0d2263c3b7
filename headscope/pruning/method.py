"""The small interface behind which every way of choosing heads stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar, cast

from torch import Tensor

from headscope.attention import AttentionWeights
from headscope.core.errors import InputError
from headscope.measures.rounding import tied
from headscope.pruning.units import Head, Units
from headscope.results import HeadResult

T = TypeVar("T")


class GradientBatch(Protocol):
    """Some calibration examples, differentiable by the gates of heads."""

    @property
    def size(self) -> int:
        """Examples."""

    @property
    def query_mask(self) -> Tensor:
        """(rows, n_layers, pos), 1 where a layer's query is a real token."""

    def gates(self, kind: str = "example") -> Tensor:
        """Return gates of one: per ``example`` (size, n_layers, n_heads), or per ``token``."""

    def loss(self, gates: Tensor) -> Tensor:
        """Return each example's loss, (size,)."""

    def embed(self, gates: Tensor) -> Tensor:
        """Return each example's output e, (size, d): embedding or log-probabilities."""

    def full(self) -> Tensor:
        """Return each example's output e of the unpruned model, (size, d), without a gradient."""


class Calibration(Protocol):
    """What scores are computed on: a model and examples, apart from those of the curves."""

    @property
    def has_labels(self) -> bool:
        """Whether there is a loss that does not vanish at the unpruned model."""

    def batches(self, *, labels: bool) -> Iterator[GradientBatch]:
        """Pass over the examples once; without labels the loss is the distance to the full model.

        The order is the same in every pass.
        """

    def leaving_means(self) -> Calibration:
        """Return the same examples for heads that leave their mean z behind: m + xi (z - m)."""

    def quality(self, gates: Tensor) -> float:
        """Measure the task's metric, signed so that higher is better, at gates (layers, heads)."""


@dataclass(frozen=True)
class Given:
    """Everything that a method may look at.

    Attributes
    ----------
    units : Units
        What can be removed.
    calibration : Calibration
        The model, and the examples that scores are computed on.
    weights : sequence of AttentionWeights
        Of each layer.
    roles : mapping of (layer, head) to HeadResult
        The classification, by places in the loaded model; empty where it was not classified.
    use_labels : bool
        Whether methods that can do with or without labels use them.
    budget : int
        Units to remove, for methods that are trained for one number of them.
    largest : int
        Most units that any point of the curve removes; greedy methods may stop there.
    seed : int
        Of everything that a method draws at random.
    progress : callable
        Told (what, done, total).
    memo : dict
        What several methods and repairs would otherwise compute again, by name.
    """

    units: Units
    calibration: Calibration
    weights: Sequence[AttentionWeights] = ()
    roles: Mapping[Head, HeadResult] = field(default_factory=dict)
    use_labels: bool = False
    budget: int = 0
    largest: int = 0
    seed: int = 0
    progress: Callable[[str, int, int], None] = lambda *_: None
    memo: dict[str, object] = field(default_factory=dict)

    @property
    def labelled(self) -> bool:
        """Whether the loss is the labelled one, and not the distance to the unpruned model."""
        return self.use_labels and self.calibration.has_labels

    def remember(self, name: str, make: Callable[[], T]) -> T:
        """Return what ``make`` gives; made once for each name."""
        if name not in self.memo:
            self.memo[name] = make()
        return cast(T, self.memo[name])

    def leaving_means(self) -> Given:
        """Return the same, where a gate of zero leaves the head's mean z behind; made once."""

        def make() -> Given:
            memo = {name: self.memo[name] for name in ("full outputs",) if name in self.memo}
            return replace(self, calibration=self.calibration.leaving_means(), memo=memo)

        return self.remember("leaving means", make)

    def need_labels(self, method: str) -> None:
        """Refuse calibration data without labels; the message names ``method``."""
        if not self.calibration.has_labels:
            raise InputError(
                f"{method} is made of first derivatives of a loss, and the label-free loss has "
                "none at the unpruned model (distance 0, gradient 0); choose fisher, or a task "
                "with labels (mlm needs only text) and calibration data that have them."
            )

    def need_roles(self, method: str) -> None:
        """Refuse a model that was not classified; the message names ``method``."""
        if not self.roles:
            raise InputError(
                f"{method} needs to know what the heads do; give roles (the classify.json of "
                "this model), or let the model be classified."
            )


class Ranking:
    """Which units go, for every number of them.

    Parameters
    ----------
    values : Tensor, (n_units,)
        Higher: rather kept.
    order : sequence of int, optional
        Units, the first to go first; by ascending value if not given. Of values that are equal to
        rounding (:func:`headscope.measures.rounding.tied`) the later unit goes first.
    passes : mapping, optional
        See below.
    size : float
        How large the numbers were whose differences the values are.

    Attributes
    ----------
    values : Tensor, (n_units,), float64
        The same, on the CPU.
    passes : dict
        How often the calibration data were run ``forward`` and ``backward``.
    """

    def __init__(
        self,
        values: Tensor,
        order: Sequence[int] | None = None,
        passes: Mapping[str, int] | None = None,
        size: float = 0.0,
    ) -> None:
        self.values = values.detach().cpu().double()
        if order is None:
            level = tied(self.values.numpy(), size)
            order = sorted(range(len(level)), key=lambda unit: (level[unit], -unit))
        self._order = tuple(order)
        self.passes = dict(passes or {})

    @property
    def order(self) -> tuple[int, ...]:
        """Units, the first to go first."""
        return self._order

    def remove(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go."""
        return tuple(sorted(self._order[:count]))
