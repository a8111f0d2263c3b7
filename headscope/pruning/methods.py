"""Every way of choosing heads, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headscope.core.errors import InputError
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
    words : str
        What a head is worth by it, on one line.
    source : str
        Where it comes from; empty where it has no source.
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
    words: str
    source: str = ""
    needs_labels: bool = False
    needs_roles: bool = False
    can_normalise: bool = False
    control: bool = False


_VOITA = "Voita et al. 2019, arXiv:1905.09418"
_MICHEL = "Michel et al. 2019, arXiv:1905.10650"
_KWON = "Kwon et al. 2022, arXiv:2204.09656"
_HASSIBI = "Hassibi & Stork 1993, on gates; Kwon et al. 2022, arXiv:2204.09656"

METHODS: dict[str, MethodInfo] = {
    "fisher-joint": MethodInfo(
        fisher_joint, "place in joint elimination on the Gauss-Newton matrix of all heads", _HASSIBI
    ),
    "fisher-relinearised": MethodInfo(
        fisher_relinearised,
        "the same, with the matrix taken again after each eighth of the heads",
        _HASSIBI,
    ),
    "fisher-mean": MethodInfo(
        fisher_mean,
        "the same for heads that leave their mean behind; goes with the repair mean",
        _HASSIBI,
    ),
    "fisher": MethodInfo(
        fisher,
        "diagonal of the Fisher matrix, then exchanges inside each layer",
        _KWON,
        can_normalise=True,
    ),
    "importance-token": MethodInfo(
        importance_token,
        "mean over tokens of the absolute derivative of the loss by the head",
        _MICHEL,
        needs_labels=True,
        can_normalise=True,
    ),
    "importance-example": MethodInfo(
        importance_example,
        "mean over examples of the absolute derivative of the loss by the head",
        _MICHEL,
        needs_labels=True,
        can_normalise=True,
    ),
    "gates": MethodInfo(gates, "gates trained to be few; the weights stay as they are", _VOITA),
    "topk": MethodInfo(
        topk,
        "gates trained with exactly as many heads as are to stay",
        "Li et al. 2021, arXiv:2108.04657",
    ),
    "ablation": MethodInfo(ablation, "drop of the metric without this head", _MICHEL),
    "ablation-greedy": MethodInfo(ablation_greedy, "the same, measured again after every removal"),
    "roles": MethodInfo(
        roles,
        "heads with a role before those without, the clearest first",
        _VOITA,
        needs_roles=True,
    ),
    "magnitude": MethodInfo(magnitude, "norm of the head's weights"),
    "confidence": MethodInfo(
        confidence, "mean largest attention weight on a content token", _VOITA, needs_roles=True
    ),
    "random": MethodInfo(
        random, "drawn at random: the control that every method must beat", control=True
    ),
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
