"""Every way of choosing heads, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headscope.errors import InputError
from headscope.pruning.ablation import ablation, ablation_greedy
from headscope.pruning.baselines import magnitude, random
from headscope.pruning.by_role import confidence, roles
from headscope.pruning.fisher import fisher
from headscope.pruning.gates import gates
from headscope.pruning.importance import importance_example, importance_token
from headscope.pruning.joint import fisher_joint
from headscope.pruning.method import Given, Ranking
from headscope.pruning.relinearised import fisher_mean, fisher_relinearised
from headscope.pruning.topk import topk

#: The method of a run that names none.
DEFAULT = "fisher-joint"


@dataclass(frozen=True)
class MethodInfo:
    """One method and what it needs.

    Attributes
    ----------
    run : callable
        From :class:`Given` (and ``normalise``, where it can) to a :class:`Ranking`.
    needs_labels : bool
        A loss whose gradient does not vanish at the unpruned model.
    needs_roles : bool
        The classification of the heads.
    can_normalise : bool
        Whether it takes ``normalise``.
    control : bool
        Whether it is there to be compared with only: no model that it makes is ever kept.
    """

    run: Callable[..., Ranking]
    needs_labels: bool = False
    needs_roles: bool = False
    can_normalise: bool = False
    control: bool = False


METHODS: dict[str, MethodInfo] = {
    "fisher-joint": MethodInfo(fisher_joint),
    "fisher-relinearised": MethodInfo(fisher_relinearised),
    "fisher-mean": MethodInfo(fisher_mean),
    "fisher": MethodInfo(fisher, can_normalise=True),
    "importance-token": MethodInfo(importance_token, needs_labels=True, can_normalise=True),
    "importance-example": MethodInfo(importance_example, needs_labels=True, can_normalise=True),
    "gates": MethodInfo(gates),
    "topk": MethodInfo(topk),
    "ablation": MethodInfo(ablation),
    "ablation-greedy": MethodInfo(ablation_greedy),
    "roles": MethodInfo(roles, needs_roles=True),
    "magnitude": MethodInfo(magnitude),
    "confidence": MethodInfo(confidence, needs_roles=True),
    "random": MethodInfo(random, control=True),
}


def check_methods(names: tuple[str, ...]) -> None:
    """Refuse names that are no method; the message lists those there are."""
    for name in names:
        if name not in METHODS:
            raise InputError(f"There is no method {name!r}; choose {', '.join(METHODS)}.")


def rank(name: str, given: Given, *, normalise: bool | None = None) -> Ranking:
    """Run a method by name; ``normalise`` by layer as the method itself does, if None."""
    info = METHODS[name]
    if normalise is None or not info.can_normalise:
        return info.run(given)
    return info.run(given, normalise=normalise)
