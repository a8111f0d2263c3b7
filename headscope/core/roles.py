"""The roles that a head can have: a row for each, and the thresholds.

A row holds all that is particular to a role: its names, colours and sentences, and of a role that
is a mean over queries also which mean, against which threshold. Roles with a test of their own
(positional, syntactic, rare, and those of cross-attention alone) have it in
``analyses/classify/labels.py``. Terminal, page, figures and lists read the rows, so that a role
that :func:`register` adds is everywhere at once.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headscope.core.errors import InputError
from headscope.core.options import ThresholdSet

_SELF = ("encoder", "decoder")
_ALL = ("encoder", "decoder", "cross")
_VOITA = "Voita et al. 2019, arXiv:1905.09418"
_CLARK = "Clark et al. 2019, arXiv:1906.04341"


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

    def __post_init__(this) -> None:  # noqa: N805  (a field is called self)
        for field in dataclasses.fields(this):
            value = getattr(this, field.name)
            unbounded = field.name in ("min_trials", "syntactic")
            if not (0 <= value < math.inf and (unbounded or value <= 1)):
                raise InputError(
                    f"The threshold {field.name} is {value}; give a number of 0 or more"
                    f"{'' if unbounded else ', at most 1'}."
                )


@dataclass(frozen=True)
class Role:
    """One role: how it is measured, and how it is shown.

    A new one is a row of :data:`ROLES` with ``keys``, a ``threshold`` and ``measure`` as its key.
    """

    key: str  # What results and limits call it
    name: str  # What a reader sees
    #: At most five characters for a map; empty where the label's detail stands there, such as -1.
    mark: str
    #: In figures, ``#RRGGBB``; in the terminal, as rich writes styles; on the page under dark
    #: letters, and under light ones.
    colour: str
    style: str
    light: str
    dark: str
    stacks: tuple[str, ...] = _ALL  # Where heads can have it: ``encoder``, ``decoder``, ``cross``
    words: str = ""  # What a head with it does, on one line
    source: str = ""  # Who described it; empty where nobody did
    #: The mean over queries that is held against the threshold: a field of a head's result; empty
    #: where the role has a test of its own. Baseline is uniform attention, where that is known.
    measure: str = ""
    threshold: str | float = ""  # The name of the threshold of :class:`Thresholds`, or the number.
    strict: bool = False  # Whether the mean has to be above the threshold: equal is not enough
    #: The keys whose weight is the mean of a registered role, as :func:`register` takes them.
    keys: Callable[[Any], Any] | None = None
    #: What a head with it does, in numbers: filled in with a label's ``score`` and ``baseline``,
    #: and with ``detail`` and ``against`` in words.
    sentence: str = ""
    detail: Callable[[str], str] = str  # Puts a label's detail into words.
    legend: str = ""  # What stands below a map; empty: made of mark and name.
    family: str = ""  # Key of the role whose colours it shares; empty: it has its own


#: Relations of Universal Dependencies in words; others keep their label.
_RELATIONS = {
    **{"nsubj": "subject", "obj": "object", "iobj": "indirect object", "obl": "oblique argument"},
    **{"csubj": "clausal subject", "ccomp": "clausal object", "xcomp": "open complement"},
    **{"advcl": "adverbial clause", "acl": "clause that modifies it", "advmod": "adverb"},
    **{"amod": "adjective", "nmod": "noun that modifies it", "nummod": "number"},
    **{"det": "determiner", "case": "preposition", "aux": "auxiliary verb", "cop": "copula"},
    **{"mark": "conjunction that opens the clause", "cc": "coordinating conjunction"},
    **{"conj": "conjunct", "appos": "apposition", "flat": "further part of the name"},
    **{"compound": "other part of the compound", "fixed": "rest of the fixed expression"},
    **{"parataxis": "parataxis", "punct": "punctuation mark", "discourse": "discourse element"},
}


def _offset_words(offset: str) -> str:
    """``-1``: the token before."""
    side = "back" if offset.startswith("-") else "ahead"
    near = {"-1": "the token before", "+1": "the token after"}
    return near.get(offset, f"the token {offset.lstrip('+-')} places {side}")


def _relation_words(relation: str) -> str:
    """``obj dep->head``: looks from the object to the word that it belongs to (obj)."""
    relation, _, direction = relation.partition(" ")
    name = _RELATIONS.get(relation.partition(":")[0], relation)
    if direction == "dep->head":
        return f"Looks from the {name} to the word that it belongs to ({relation})"
    return f"Looks from a word to its {name} ({relation})"


def _special_words(token: str) -> str:
    names = {"first": "the first special token (CLS)", "last": "the last one (SEP)"}
    return names.get(token, "special tokens")


#: In the order of priority: a head's primary role is the first that it has. Figures have a palette
#: that colour-blind readers can tell apart (Okabe & Ito 2008), and three more that differ clearly.
ROLES = [
    Role(
        "positional",
        "positional",
        "",
        "#0072B2",
        "bold blue",
        "#bcd7ff",
        "#1d4e89",
        stacks=_SELF,
        words="looks at a fixed distance, such as the token before",
        source=_VOITA,
        sentence="{score:.0%} of tokens look most at {detail}; a random choice would in "
        "{baseline:.0%}.",
        detail=_offset_words,
        legend="-1, +1 = offset of the token attended to",
    ),
    Role(
        "syntactic",
        "syntactic",
        "syn",
        "#009E73",
        "bold green",
        "#bfe5c5",
        "#1f5c33",
        stacks=("encoder",),
        words="looks from a word to its syntactic head, or to a dependent of one relation",
        source=_VOITA,
        sentence="{detail}: right {score:.0%} of the time on sentences that had no say in choosing "
        "it. Best rule of thumb: {baseline:.0%} ({against}).",
        detail=_relation_words,
    ),
    Role(
        "rare",
        "rare-word",
        "rare",
        "#CC79A7",
        "bold magenta",
        "#f3c4ea",
        "#7a2a6a",
        stacks=("encoder",),
        words="looks at the rarest word of the sentence",
        source=_VOITA,
        sentence="{score:.0%} of words look most at the rarest word of the sentence; at a random "
        "word: {baseline:.0%}.",
    ),
    Role(
        "monotonic",
        "monotonic",
        "mono",
        "#4B0092",
        "bold bright_blue",
        "#d7c9f7",
        "#4a2a80",
        stacks=("cross",),
        words="cross-attention that goes through the source in order",
    ),
    Role(
        "anti_monotonic",
        "anti-monotonic",
        "anti",
        "#2F4F4F",
        "bold bright_magenta",
        "#b9cccc",
        "#2e4a4a",
        stacks=("cross",),
        words="cross-attention that goes through the source backwards",
    ),
    Role(
        "sharp",
        "sharp",
        "sharp",
        "#80BA5A",
        "bright_green",
        "#d9ebc2",
        "#456320",
        stacks=("cross",),
        words="cross-attention that puts nearly all weight on one source token",
    ),
    Role(
        "special",
        "special-token",
        "",
        "#E69F00",
        "yellow",
        "#fbe3a4",
        "#6b5200",
        words="looks at special tokens, such as [CLS] and [SEP]",
        source=_CLARK,
        measure="special_mass",
        threshold="special",
        strict=True,
        sentence="Puts {score:.2f} of its attention on special tokens, most of it on {detail}; "
        "evenly spread attention puts {baseline:.2f} there.",
        detail=_special_words,
        legend="CLS, SEP = first, last special token",
    ),
    Role(
        "punctuation",
        "punctuation",
        "punct",
        "#56B4E9",
        "cyan",
        "#b9e9ec",
        "#0f5a61",
        stacks=_SELF,
        words="looks at punctuation",
        source=_CLARK,
        measure="punctuation_mass",
        threshold="punctuation",
        strict=True,
    ),
    Role(
        "broad",
        "broad",
        "broad",
        "#D55E00",
        "red",
        "#f9c9c2",
        "#7a2d22",
        words="spreads its attention over the whole sentence",
        source=_CLARK,
        measure="long_entropy",
        threshold="broad_relative",
        strict=True,
        sentence="Spreads its attention: its entropy is {score:.0%} of the most that is possible. "
        "Heads with random weights do so too.",
    ),
    Role(
        "self",
        "self",
        "self",
        "#8B4513",
        "bright_yellow",
        "#ecd9c6",
        "#5e3a17",
        stacks=_SELF,
        words="looks at the token itself",
        source=_CLARK,
        measure="self_rate",
        threshold="self",
    ),
    Role(
        "duplicate",
        "duplicate-token",
        "dup",
        "#6A5ACD",
        "bright_cyan",
        "#dcd8f6",
        "#3d3480",
        stacks=_SELF,
        words="looks at another copy of the same token",
        measure="duplicate_rate",
        threshold="duplicate",
    ),
]
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
#: A head without any role.
NO_ROLE = Role("none", "no role", ".", "#999999", "dim", "#e9ebee", "#333944")


def primary_roles() -> tuple[Role, ...]:
    """Return what can be a head's primary role, in the order of priority; no role comes last."""
    return (*ROLES, NO_ROLE)


def registered_roles() -> list[Role]:
    """Return the roles that name their keys, as those of :func:`register` do, by priority."""
    return [role for role in ROLES if role.keys is not None]


PAIR = "pair:"  # What the key of a role begins with that is a label of a user's own pairs.


def pair_role(label: str) -> Role:
    """Return the role of heads that follow a user's own pairs with this label."""
    syntactic = next(role for role in ROLES if role.key == "syntactic")
    return dataclasses.replace(
        syntactic,
        key=PAIR + label,
        name=label,
        mark=label[:5],
        stacks=("encoder", "cross"),
        words=f"looks along the pairs labelled {label}",
        source="",
        detail=_pair_words,
        family=syntactic.key,
    )


def _pair_words(detail: str) -> str:
    """``contact to->from``: looks from the second to the first of a pair labelled contact."""
    label, _, direction = detail.rpartition(" ")
    ways = {"from->to": "the first to the second", "to->from": "the second to the first"}
    way = ways.get(direction, "the target to the source")
    return f"Looks from {way} of a pair labelled {label}"


def role_of(key: str) -> Role:
    """Return the role with this key; of one that is not registered here, a plain row."""
    if key.startswith(PAIR):
        return pair_role(key.removeprefix(PAIR))
    unknown = dataclasses.replace(NO_ROLE, key=key, name=key, mark=key[:5], words=key)
    return next((role for role in primary_roles() if role.key == key), unknown)


def role_class(key: str) -> str:
    """Return the role whose colours a role has on a page: its own key, or that of its family."""
    return role_of(key).family or key


def roles_of(*stacks: str, labels: Sequence[str] = ()) -> tuple[Role, ...]:
    """Return the roles that heads of any of these stacks can have, in the order of priority.

    ``labels``: those of a user's own pairs. An encoder has them in place of syntactic roles.
    """
    at = next(i for i, role in enumerate(ROLES) if role.key == "syntactic")
    after = at + bool(labels and "cross" not in stacks)
    rows = (*ROLES[:at], *map(pair_role, labels), *ROLES[after:])
    return tuple(role for role in rows if set(role.stacks) & set(stacks))


def role_name(key: str) -> str:
    """Return what a reader sees; a key that is no role stays as it is."""
    return role_of(key).name


def role_in(key: str, stack: str) -> str:
    """Return what results call a role of a stack, as heads are named: ``rare``, ``cross:broad``."""
    return key if stack == "encoder" else f"{stack}:{key}"


def register(
    key: str,
    keys: Callable[[Any], Any],
    *,
    threshold: float,
    words: str = "",
    name: str = "",
    mark: str = "",
    source: str = "",
    stacks: tuple[str, ...] = _SELF,
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
    order = [role.key for role in primary_roles()]
    taken = {*order, *_OTHER_NAMES, *(role.measure for role in ROLES)}
    if not re.fullmatch("[a-z][a-z0-9_]*", key):
        raise InputError(f"The role {key!r} needs a name of lower-case letters, digits and _.")
    if key in taken | {field.name for field in dataclasses.fields(Thresholds)}:
        raise InputError(f"Results call something else {key!r} already; choose another name.")
    if (name or key) in [role.name for role in primary_roles()]:
        raise InputError(f"Another role is shown as {name or key!r} already; choose another name.")
    number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
    if not number or not 0 < threshold < 1:
        raise InputError(
            f"The threshold of the role {key} is {threshold!r}; give the least mean weight on its "
            "keys, a number between 0 and 1."
        )
    if len(mark) > 5:
        raise InputError(f"The mark {mark!r} of the role {key} is longer than five characters.")
    if not stacks or not {*stacks} <= {*_SELF}:
        raise InputError(f"The stacks of the role {key} are {stacks!r}; choose from {_SELF}.")
    if not re.fullmatch("#[0-9a-fA-F]{6}", colour):
        raise InputError(f"The colour of the role {key} is {colour!r}; write it as #RRGGBB.")
    if before not in order:
        raise InputError(f"There is no role {before!r}; choose from {', '.join(order)}.")
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    light = "#" + "".join(f"{255 - (255 - part) // 4:02x}" for part in parts)
    dark = "#" + "".join(f"{part // 2:02x}" for part in parts)
    shown = name or key, mark or key[:5], colour, colour, light, dark
    role = Role(
        key,
        *shown,
        stacks=tuple(stacks),
        words=words or key,
        source=source,
        measure=key,
        threshold=float(threshold),
        keys=keys,
    )
    ROLES.insert(order.index(before), role)
    return role


def unregister(key: str) -> None:
    """Remove a role that :func:`register` added; InputError where there is none of this name."""
    known = [role.key for role in registered_roles()]
    if key not in known:
        raise InputError(f"No role {key!r} was registered.")
    ROLES[:] = [role for role in ROLES if role.key != key]
