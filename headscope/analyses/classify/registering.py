"""Roles that a user adds: heads that put much of their attention on keys of the user's choice."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from headscope.core.errors import InputError
from headscope.core.roles import (
    NO_ROLE,
    ROLES,
    SELF_ATTENTION,
    Role,
    Thresholds,
    primary_roles,
)

#: Other names in results, which no registered role can have.
_OTHER_NAMES = (
    "any",
    "layer",
    "head",
    "heads",
    "name",
    "stack",
    "primary",
    "roles",
    "confidence",
    "entropy",
    "relative_entropy",
    "first_special_mass",
    "last_special_mass",
)
_REGISTERED: list[str] = []  # Keys of the roles that were added


def register(
    key: str,
    keys: Callable[[Any], Any],
    *,
    threshold: float,
    words: str = "",
    name: str = "",
    mark: str = "",
    source: str = "",
    stacks: tuple[str, ...] = SELF_ATTENTION,
    colour: str = "#B8860B",
    before: str = "none",
) -> Role:
    """Add a role: heads that put much of their attention on keys of your choice.

    A head's score is the mean over content queries of its weight on these keys. It earns the role
    when the score reaches the threshold and is significantly above that of evenly spread attention
    (one-sided z-test with the sentence as the unit, Benjamini-Hochberg over heads). From then on
    :func:`headscope.classify` of this process measures the role like its own, in the controls too.

    Parameters
    ----------
    key : str
        What results call the role: lower-case letters, digits and ``_``.
    keys : callable
        From a padded batch (:class:`headscope.data.batches.Batch`) to a tensor of bool that
        broadcasts to (batch, query_pos, key_pos): where a head with the role looks. The batch has
        ``input_ids`` and the masks ``content``, ``special`` and ``punctuation``, each (batch, pos).
        Padding, and keys that a decoder's query cannot see, never count.
    threshold : float
        Least mean weight on these keys, between 0 and 1.
    words : str
        What a head with the role does, as ``looks at the token before``.
    name : str, optional
        What a reader sees; default: ``key``.
    mark : str, optional
        At most five characters for maps; default: the first of ``key``.
    source : str, optional
        Who described such heads.
    stacks : tuple of str, default ("encoder", "decoder")
        Where heads can have the role.
    colour : str, default "#B8860B"
        On maps, ``#RRGGBB``.
    before : str, optional
        The role over which this one has priority on maps, where a head has both; default: none.

    Raises
    ------
    InputError
        If the key or the name is taken, or the threshold, the mark, the stacks, the colour or
        ``before`` cannot be used.
    """
    if not re.fullmatch("#[0-9a-fA-F]{6}", colour):
        raise InputError(f"The colour of the role {key} is {colour!r}; write it as #RRGGBB.")
    rgb = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    pale = [255 - (255 - value) // 4 for value in rgb]
    deep = [value // 2 for value in rgb]
    role = Role(
        rank=NO_ROLE.rank,
        key=key,
        name=name or key,
        mark=mark or key[:5],
        colour=colour,
        style=colour,
        light="#" + "".join(f"{value:02x}" for value in pale),
        dark="#" + "".join(f"{value:02x}" for value in deep),
        stacks=tuple(stacks),
        words=words or key,
        source=source,
        threshold=threshold,
        keys=keys,
    )
    _check_names(role)
    _check_threshold(role)
    if len(mark) > 5:
        raise InputError(f"The mark {mark!r} of the role {key} is longer than five characters.")
    if not stacks or not {*stacks} <= {*SELF_ATTENTION}:
        raise InputError(
            f"The stacks of the role {key} are {stacks!r}; choose from {SELF_ATTENTION}."
        )
    order = [other.key for other in primary_roles()]
    if before not in order:
        raise InputError(f"There is no role {before!r}; choose from {', '.join(order)}.")
    ROLES.insert(order.index(before), role)
    _REGISTERED.append(key)
    return role


def unregister(key: str) -> None:
    """Remove a role that :func:`register` added; InputError where there is none of this name."""
    if key not in _REGISTERED:
        raise InputError(f"No role {key!r} was registered.")
    _REGISTERED.remove(key)
    ROLES[:] = [role for role in ROLES if role.key != key]


def _check_names(role: Role) -> None:
    """Refuse a key that results use already, and a name that another role is shown as."""
    taken = {*_OTHER_NAMES, *(field.name for field in dataclasses.fields(Thresholds))}
    for other in primary_roles():
        taken |= {other.key, other.quantity}
    if not re.fullmatch("[a-z][a-z0-9_]*", role.key):
        raise InputError(f"The role {role.key!r} needs a name of lower-case letters, digits and _.")
    if role.key in taken:
        raise InputError(f"Results call something else {role.key!r} already; choose another name.")
    if role.name in [other.name for other in primary_roles()]:
        raise InputError(f"Another role is shown as {role.name!r} already; choose another name.")


def _check_threshold(role: Role) -> None:
    """Refuse what is no number between 0 and 1; True counts as none."""
    threshold = role.threshold
    is_number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
    if not is_number or not 0 < float(threshold) < 1:
        raise InputError(
            f"The threshold of the role {role.key} is {threshold!r}; give the least mean weight on "
            "its keys, a number between 0 and 1."
        )
