"""What a role is (:class:`Role`), the list of all roles, and the thresholds that they ask for.

A *role* is something that a head may do, such as looking at the next token; a *label* says that one
head has a role, with the score that earned it. The roles themselves are in
``analyses/classify/roles/``: each module there puts its roles on the list :data:`ROLES`. Terminal,
page, figures, limits and lists read that list.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headscope.core.errors import WrongOptionError
from headscope.core.options import ThresholdSet

SELF_ATTENTION = ("encoder", "decoder")
ALL_STACKS = ("encoder", "decoder", "cross")
VOITA = "Voita et al. 2019, arXiv:1905.09418"
CLARK = "Clark et al. 2019, arXiv:1906.04341"
PAIR = "pair:"  # Begins the key of a role that is a label of a user's own pairs


@dataclass(frozen=True)
class Thresholds(ThresholdSet):
    """When a head earns a label; every field is an option and a TOML key.

    Attributes
    ----------
    positional : float
        Least hit rate at one offset (Voita et al. 2019, arXiv:1905.09418, section 5.1: at least 90%
        of the time).
    syntactic : float
        Least gain in accuracy over every baseline, on both halves (Voita et al., section 5.2, ask
        for 0.10 over the best offset).
    syntactic_relative : bool
        Whether that gain is relative to the baseline's accuracy instead of absolute.
    min_trials : int
        Fewest trials a relation needs on each half.
    q : float
        False discovery rate of the Benjamini-Hochberg adjustment (Benjamini & Hochberg 1995).
    rare : float
        Least rate on the rarest word (Voita et al., section 5.3, report 0.66 for their one such
        head).
    rare_gain : float
        Least gain of that rate over uniform attention (as for syntactic heads: 0.10).
    special, punctuation : float
        Least mean mass on special tokens, on punctuation (Clark et al. 2019, arXiv:1906.04341,
        section 3.2, show more than half).
    broad_relative : float
        Least mean row entropy as a share of ln n, over sequences of 20 tokens or more (the 3.8 nats
        of Clark et al., section 3.3, are 0.78 of ln 128, and no sentence of 40 tokens reaches
        them).
    self : float
        Least share of rows whose largest content weight is the diagonal (as for an offset).
    duplicate : float
        Least share of repeated tokens that look at another copy of themselves.
    monotonic : float
        Least rank correlation, in either direction, between target and source positions of a
        cross-attention head.
    monotonic_gain : float
        Least gain of its confidence over uniform attention (as for syntactic heads: 0.10): the
        largest of nearly even weights says nothing.
    sharp : float
        Least confidence of a cross-attention head.
    first_token : float
        Least mean mass on the first position of a causal stack (as for special tokens).
    induction : float
        Least gain of the weight on the token after an earlier copy, over that where nothing is
        repeated.
    """

    positional: float = 0.90
    syntactic: float = 0.10
    syntactic_relative: bool = False
    min_trials: int = 50
    q: float = 0.05
    rare: float = 0.50
    rare_gain: float = 0.10
    special: float = 0.60
    punctuation: float = 0.60
    broad_relative: float = 0.80
    self: float = 0.90
    duplicate: float = 0.50
    monotonic: float = 0.60
    monotonic_gain: float = 0.10
    sharp: float = 0.80
    first_token: float = 0.60
    induction: float = 0.15

    def __post_init__(this) -> None:  # noqa: N805  (a field is called self)
        for field in dataclasses.fields(this):
            value = getattr(this, field.name)
            unbounded = field.name in ("min_trials", "syntactic")
            if not (0 <= value < math.inf and (unbounded or value <= 1)):
                bounds = "0 or more" if unbounded else "0 or more, at most 1"
                raise WrongOptionError(
                    f"The threshold {field.name} is {value}; give a number of {bounds}."
                )


@dataclass(frozen=True, kw_only=True)
class Role:
    """One role: what a reader sees of it, and how heads earn it.

    There are two ways to earn one. *By a mean*: the role names a mean over queries (``measure``, or
    the ``keys`` whose weight it is) and the threshold that the mean has to reach. *By a test of its
    own*: the role has ``judge``.
    """

    # What a reader sees
    rank: int  # Order of priority: a head's primary role is the first that it has
    key: str  # What results and limits call it
    name: str  # What a reader sees
    #: At most five characters for a map; empty where a label's detail, such as -1, stands there
    mark: str
    colour: str  # In figures, ``#RRGGBB``
    style: str  # In the terminal, as rich writes styles
    light: str  # On the page under dark letters, ``#RRGGBB``
    dark: str  # The same under light letters
    stacks: tuple[str, ...] = ALL_STACKS  # Whose heads can have it
    words: str = ""  # What a head with it does, on one line
    source: str = ""  # Who described it; empty if nobody did
    #: What a head with it does, in numbers: filled in with a label's ``score`` and ``baseline``,
    #: and with ``detail`` and ``against`` in words
    sentence: str = ""
    detail: Callable[[str], str] = str  # Puts a label's detail into words
    legend: str = ""  # Stands below a map; empty: mark and name
    family: str = ""  # Key of the role whose colours it shares; empty: it has its own

    # How heads earn it: by a mean
    #: A field of a head's result that is a mean over queries. Its baseline is uniform attention.
    measure: str = ""
    #: In place of ``measure``: returns, of a padded batch, the keys whose total weight is meant, as
    #: a tensor of bool. The mean is then called after the role's key.
    keys: Callable[[Any], Any] | None = None
    threshold: str | float = ""  # The name of a field of :class:`Thresholds`, or a number
    strict: bool = False  # Whether the mean has to be above the threshold, not only reach it
    #: Returns the detail of every head's label from the means, (n_layers, n_heads); None: no detail
    details: Callable[[Any], Any] | None = None

    # How heads earn it: by a test of its own
    #: Judges every head by :class:`headscope.analyses.classify.evidence.Evidence`, all that a run
    #: measured. Roles with the same function are judged together.
    judge: Callable[[Any], Any] | None = None
    #: Says, from the same evidence, why no head could have earned the role; empty if one could
    untestable: Callable[[Any], str] | None = None
    #: Makes the role of a label of a user's own pairs, which is judged by this role's test
    of_pairs: Callable[[str], Role] | None = None

    @property
    def quantity(self) -> str:
        """The name of the mean by which it is earned; empty if it has a test of its own."""
        return self.key if self.keys is not None else self.measure

    def least(self, thresholds: Thresholds) -> float:
        """Return what the mean has to reach."""
        if isinstance(self.threshold, str):
            return float(getattr(thresholds, self.threshold))
        return self.threshold


#: All roles, in the order of priority: filled by ``analyses/classify/roles/`` when it is imported,
#: which everything does that reads the result of a classification.
ROLES: list[Role] = []
#: Stands for the role of a head that has none.
NO_ROLE = Role(
    rank=1000,
    key="none",
    name="no role",
    mark=".",
    words="earned no role here, which does not mean that it does nothing",
    colour="#999999",
    style="dim",
    light="#e9ebee",
    dark="#333944",
)


def primary_roles() -> tuple[Role, ...]:
    """Return what can be a head's primary role: all roles by priority, and last "no role"."""
    return (*ROLES, NO_ROLE)


def roles_with_keys() -> list[Role]:
    """Return the roles that name their keys, in the order of priority."""
    return [role for role in ROLES if role.keys is not None]


def pair_role(label: str) -> Role:
    """Return the role of heads that follow a user's own pairs with this label."""
    of_pairs = next(role.of_pairs for role in ROLES if role.of_pairs is not None)
    return of_pairs(label)


def role_of(key: str) -> Role:
    """Return the role with this key; for an unknown key (of another version), a plain role."""
    if key.startswith(PAIR):
        return pair_role(key.removeprefix(PAIR))
    for role in primary_roles():
        if role.key == key:
            return role
    return dataclasses.replace(NO_ROLE, key=key, name=key, mark=key[:5], words=key)


def role_class(key: str) -> str:
    """Return the key by which a page colours a role: its own, or that of its family."""
    family = role_of(key).family
    return family if family else key


def roles_of(*stacks: str, labels: Sequence[str] = ()) -> tuple[Role, ...]:
    """Return the roles that heads of any of these stacks can have, in the order of priority.

    ``labels`` are those of a user's own pairs. Each becomes a role: in cross-attention beside the
    role by whose test it is judged, elsewhere in place of that role.
    """
    roles: list[Role] = []
    for role in ROLES:
        if role.of_pairs is None or not labels:
            roles.append(role)
            continue
        roles += map(role.of_pairs, labels)
        if "cross" in stacks:
            roles.append(role)
    return tuple(role for role in roles if set(role.stacks) & set(stacks))


def role_name(key: str) -> str:
    """Return the name of a role that a reader sees; an unknown key stays as it is."""
    return role_of(key).name


def role_in(key: str, stack: str) -> str:
    """Return a role's key with its stack, written as in heads' names: ``rare``, ``cross:broad``."""
    return key if stack == "encoder" else f"{stack}:{key}"
