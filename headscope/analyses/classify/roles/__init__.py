"""The roles that a head can have: a module of this folder for each, or for a few close ones.

A module says what its role is called, what a head with it does, how that is measured and judged,
and why a corpus may not show it: one :class:`headscope.core.roles.Role` or more, in a tuple
``ROLES``. Every module of this folder is imported; the rank of a role says where it stands. A new
role is a new module.

Roles are read where results are shown, too, and there no array library is loaded: a module imports
numpy and the statistics inside its functions.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from headscope.analyses.classify.registering import register, unregister
from headscope.core.roles import (
    NO_ROLE,
    PAIR,
    ROLES,
    Role,
    Thresholds,
    primary_roles,
    role_class,
    role_in,
    role_name,
    role_of,
    roles_of,
    roles_with_keys,
)

__all__ = [
    "NO_ROLE",
    "PAIR",
    "ROLES",
    "Role",
    "Thresholds",
    "primary_roles",
    "register",
    "role_class",
    "role_in",
    "role_name",
    "role_of",
    "roles_of",
    "roles_with_keys",
    "unregister",
]


def _in_this_folder() -> Iterator[Role]:
    """Yield the roles of every module of this folder."""
    for module in pkgutil.iter_modules(__path__):
        yield from importlib.import_module(f"{__name__}.{module.name}").ROLES


# In place: other modules hold this list.
ROLES[:] = sorted(_in_this_folder(), key=lambda role: role.rank)
