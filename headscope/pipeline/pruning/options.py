"""What a run of ``prune`` is to do, checked before any model is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headscope.errors import InputError
from headscope.pipeline.pruning.choosing import fractions_of, needs
from headscope.pipeline.pruning.repairing import Repair
from headscope.pruning.methods import DEFAULT, check_methods

__all__ = ["PruneOptions", "make_options"]

#: Fewest random sets that say anything about spread.
FEWEST_DRAWS = 5


@dataclass(frozen=True)
class PruneOptions:
    """Choices of one run; see :func:`headscope.prune`.

    Attributes
    ----------
    methods : tuple of str
        Empty where heads are removed by hand.
    repairs : tuple of Repair
    fractions : tuple of float
        The whole curve, or what was chosen.
    single : float or None
        The one fraction that was chosen, if it was one.
    """

    methods: tuple[str, ...]
    repairs: tuple[Repair, ...]
    fractions: tuple[float, ...]
    single: float | None
    heads: str | None
    keep_roles: tuple[str, ...]
    draws: int
    normalise: bool | None
    labels: bool
    ablation: bool
    seed: int

    @property
    def manual(self) -> bool:
        """Whether heads are removed by hand."""
        return self.heads is not None or bool(self.keep_roles)

    @property
    def needs_calibration(self) -> bool:
        """Whether anything is chosen, repaired or tabulated with calibration data."""
        chosen = any(name not in ("random", "magnitude") for name in self.methods)
        return chosen or self.repairs != (Repair.none,) or self.ablation

    def needing(self, what: str) -> list[str]:
        """List the methods of this run that need ``labels`` or ``roles``."""
        return needs(self.methods, what)


def make_options(
    *,
    methods: Sequence[str] | None,
    repairs: Sequence[str] | None,
    step: float,
    fractions: Sequence[float] | None,
    heads: str | None,
    keep_roles: Sequence[str] | None,
    draws: int,
    normalise: bool | None,
    labels: bool,
    ablation: bool,
    seed: int,
) -> PruneOptions:
    """Check the choices and fill in what was left open.

    Raises
    ------
    InputError
    """
    manual = heads is not None or bool(keep_roles)
    if heads is not None and keep_roles:
        raise InputError("Give --heads or --keep-roles, not both.")
    if manual and (methods or fractions):
        raise InputError("--heads and --keep-roles say which heads go; leave out --method and "
                         "--fraction.")  # fmt: skip
    names = () if manual else tuple(dict.fromkeys(methods or (DEFAULT, "random")))
    check_methods(names)
    if draws < FEWEST_DRAWS:
        raise InputError(f"--draws {draws}: give {FEWEST_DRAWS} or more, fewer say nothing.")
    if not -(2**62) <= seed < 2**62:
        raise InputError(f"The seed {seed} is too large; give one of at most 62 bits.")
    return PruneOptions(
        methods=names,
        repairs=_repairs(repairs, manual),
        fractions=fractions_of(step, fractions),
        single=fractions[0] if fractions and len(fractions) == 1 else None,
        heads=heads,
        keep_roles=tuple(keep_roles or ()),
        draws=draws,
        normalise=normalise,
        labels=labels,
        ablation=ablation,
        seed=seed,
    )


def _repairs(names: Sequence[str] | None, manual: bool) -> tuple[Repair, ...]:
    if not names:
        return (Repair.none,) if manual else (Repair.none, Repair.scale)
    for name in names:
        if name not in list(Repair):
            raise InputError(f"There is no repair {name!r}; choose {', '.join(Repair)}.")
    return tuple(dict.fromkeys(Repair(name) for name in names))
