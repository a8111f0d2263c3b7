"""The roles that a head can have: the one list that terminal, page, figures and limits read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

_SELF, _ALL = ("encoder", "decoder"), ("encoder", "decoder", "cross")
_VOITA = "Voita et al. 2019, arXiv:1905.09418"
_CLARK = "Clark et al. 2019, arXiv:1906.04341"


@dataclass(frozen=True)
class Role:
    """One role, and how it is shown."""

    key: str  # What results and limits call it
    name: str  # What a reader sees
    #: At most five characters for a map; ``positional`` and ``special`` heads show their offset and
    #: token instead.
    mark: str
    stacks: tuple[str, ...] = _ALL  # Where heads can have it: ``encoder``, ``decoder``, ``cross``
    words: str = ""  # What a head with it does, on one line
    source: str = ""  # Who described it; empty where nobody did

    @property
    def colour(self) -> str:
        """Its colour in figures, ``#RRGGBB``."""
        return _COLOURS[self.key][0]

    @property
    def style(self) -> str:
        """Its style in the terminal, as rich writes styles."""
        return _COLOURS[self.key][1]

    @property
    def light(self) -> str:
        """Background of the page under dark letters, ``#RRGGBB``."""
        return _COLOURS[self.key][2]

    @property
    def dark(self) -> str:
        """Background of the page under light letters."""
        return _COLOURS[self.key][3]


_DISTANCE = "looks at a fixed distance, such as the token before"
_SYNTAX = "looks from a word to its syntactic head, or to a dependent of one relation"
_RAREST = "looks at the rarest word of the sentence"
_FORWARDS = "cross-attention that goes through the source in order"
_BACKWARDS = "cross-attention that goes through the source backwards"
_ONE_TOKEN = "cross-attention that puts nearly all weight on one source token"
_SPECIAL = "looks at special tokens, such as [CLS] and [SEP]"
_WHOLE = "spreads its attention over the whole sentence"
_COPY = "looks at another copy of the same token"
#: In the order of priority: a head's primary role is the first that it has.
ROLES = (
    Role("positional", "positional", "", _SELF, _DISTANCE, _VOITA),
    Role("syntactic", "syntactic", "syn", ("encoder",), _SYNTAX, _VOITA),
    Role("rare", "rare-word", "rare", ("encoder",), _RAREST, _VOITA),
    Role("monotonic", "monotonic", "mono", ("cross",), _FORWARDS),
    Role("anti_monotonic", "anti-monotonic", "anti", ("cross",), _BACKWARDS),
    Role("sharp", "sharp", "sharp", ("cross",), _ONE_TOKEN),
    Role("special", "special-token", "", _ALL, _SPECIAL, _CLARK),
    Role("punctuation", "punctuation", "punct", _SELF, "looks at punctuation", _CLARK),
    Role("broad", "broad", "broad", _ALL, _WHOLE, _CLARK),
    Role("self", "self", "self", _SELF, "looks at the token itself", _CLARK),
    Role("duplicate", "duplicate-token", "dup", _SELF, _COPY),
)
#: Colours of the figures, of the terminal, and of the page in light and in dark mode. The figures'
#: are a palette that colour-blind readers can tell apart (Okabe & Ito 2008), and three more that
#: differ clearly from it.
_COLOURS = {
    "positional": ("#0072B2", "bold blue", "#bcd7ff", "#1d4e89"),
    "syntactic": ("#009E73", "bold green", "#bfe5c5", "#1f5c33"),
    "rare": ("#CC79A7", "bold magenta", "#f3c4ea", "#7a2a6a"),
    "monotonic": ("#4B0092", "bold bright_blue", "#d7c9f7", "#4a2a80"),
    "anti_monotonic": ("#2F4F4F", "bold bright_magenta", "#b9cccc", "#2e4a4a"),
    "sharp": ("#80BA5A", "bright_green", "#d9ebc2", "#456320"),
    "special": ("#E69F00", "yellow", "#fbe3a4", "#6b5200"),
    "punctuation": ("#56B4E9", "cyan", "#b9e9ec", "#0f5a61"),
    "broad": ("#D55E00", "red", "#f9c9c2", "#7a2d22"),
    "self": ("#8B4513", "bright_yellow", "#ecd9c6", "#5e3a17"),
    "duplicate": ("#6A5ACD", "bright_cyan", "#dcd8f6", "#3d3480"),
    "none": ("#999999", "dim", "#e9ebee", "#333944"),
}
NO_ROLE = Role("none", "no role", ".")  # A head without any role.
PRIMARY = (*ROLES, NO_ROLE)  # What :attr:`HeadResult.primary` can be, ``none`` last.
_BY_KEY = {role.key: role for role in PRIMARY}


def role_of(key: str) -> Role:
    """Return the role with this key."""
    return _BY_KEY[key]


def roles_of(*stacks: str) -> tuple[Role, ...]:
    """Return the roles that heads of any of these stacks can have, in the order of priority."""
    return tuple(role for role in ROLES if set(role.stacks) & set(stacks))


def primary_of(roles: Collection[str]) -> str:
    """Return the key of the primary role of a head that has these roles."""
    return next((role.key for role in PRIMARY if role.key in roles), NO_ROLE.key)


def role_name(key: str) -> str:
    """Return what a reader sees; a key that is no role stays as it is."""
    return _BY_KEY[key].name if key in _BY_KEY else key


def role_in(key: str, stack: str) -> str:
    """Return what results call a role of a stack, as heads are named: ``rare``, ``cross:broad``."""
    return key if stack == "encoder" else f"{stack}:{key}"
