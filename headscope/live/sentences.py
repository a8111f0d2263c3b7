"""The sentence above the page: what has become of the model's answer, and its control.

With every head on it says what the model answers, and invites to switch a layer off. Without some
heads it says how the answer changes, and then what random sets of as many heads do to it.

What follows from the comparison is judged on numbers as they are shown, so that no reader sees two
equal numbers called different. Of n random sets, a set of heads like any others lies below all of
them in 1 of n + 1 cases, and above all of them in as many: only then is it said to matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headscope.live.random_sets import RANDOM, RandomSets
from headscope.show.cells import tidy

INVITE = "Click a layer\u2019s name to switch it off."
NO_SETS = (
    "There are no random sets to compare with: most of their heads would be the same ones again."
)
#: Which of so many texts a value belongs to.
_WHERE = {1: ("",), 2: (" for the first text", " for the second")}
_SHOWN_DECIMALS = (2, 3)  # Decimals of a number: the fewest that tell what is compared apart


class NumberChange(NamedTuple):
    """One of several numbers that a model gives, of the full one and without some heads."""

    name: str
    full: float
    without: float

    @property
    def size(self) -> float:
        """How much it changes, in units of its own."""
        return abs(self.without - self.full)

    @property
    def is_seen(self) -> bool:
        """Whether it changes with all decimals that are shown."""
        return _rounded(self.full) != _rounded(self.without)


class Lead(NamedTuple):
    """The number that the sentence is about, and how the sentence calls it."""

    statement: str  # What the model answers with all heads on: "The model says: negative 0.93"
    subject: str  # What the values are: "negative"
    values: Sequence[float]  # One for each model: the full one, heads off, random sets
    before: str = ""  # What is said first of the model without heads: "it writes x in place of y"
    after: str = ""  # What follows from the change: "so the answer becomes positive (0.42)"
    counted: int | None = None  # The values count changes, among so many; None: other numbers
    #: Several numbers, of which none is the answer: the values are then the largest change of any.
    several: Sequence[NumberChange] = ()


class Said(NamedTuple):
    """What the page says in words."""

    answer: str
    control: str  # Empty with all heads on
    note: str = ""  # How often chance alone does this; empty where nothing is claimed


def said(
    lead: Lead, off: Sequence[str], sets: RandomSets, *, of_second: Lead | None = None
) -> Said:
    """Say what the model answers with these heads ``off``, and what random sets do.

    Of two texts that are read each on its own, ``of_second`` is about the second.
    """
    leads = [lead] if of_second is None else [lead, of_second]
    if not off:
        return Said(f"{'; '.join(each.statement for each in leads)}. {INVITE}", "")
    these = f"Without {off[0]}" if len(off) == 1 else f"Without these {len(off)} heads"
    changes = [f"{_change(each)}{each.after}" for each in leads]
    if of_second is None:
        answer = f"{these}: {changes[0]}."
    else:
        answer = f"{these}, first text: {changes[0]}; second text: {changes[1]}."
    if not lead.values[2:]:
        return Said(answer, NO_SETS)

    n_sets = len(sets.sets)
    verdicts = [judged(each.values[0], each.values[1], each.values[2:]) for each in leads]
    found = [
        f"{_range(each)}{where}, so {_follows(verdict, len(off), n_sets)}"
        for each, where, verdict in zip(leads, _WHERE[len(leads)], verdicts, strict=True)
    ]
    control = f"{_sets_in_words(len(off), sets)}: {'; '.join(found)}."
    return Said(answer, control, "" if set(verdicts) == {LIKE_RANDOM} else _chance(n_sets))


def _change(lead: Lead) -> str:
    """Say how the value changes: ``negative falls from 0.93 to 0.58``."""
    full = lead.values[0]
    without = lead.values[1]
    if lead.counted is not None:
        return f"{without:.0f} of {lead.counted} {lead.subject}"
    if lead.several:
        return _largest_change(lead)
    decimals = _decimals(lead)
    before = _written(full, decimals)
    now = _written(without, decimals)
    if before == now:
        return f"{lead.before}{lead.subject} stays at {now}"
    verb = "rises" if without > full else "falls"
    return f"{lead.before}{lead.subject} {verb} from {before} to {now}"


def _largest_change(lead: Lead) -> str:
    """Say which of several numbers changes most, and how many others change at all.

    ``coherence changes most of 4 numbers, by 0.10 (from 1.08 to 1.18); 2 of the 3 others change``
    """
    most = max(lead.several, key=lambda number: number.size)
    if not most.is_seen:
        return f"none of the {len(lead.several)} numbers changes"
    decimals = _decimals(lead)
    if _written(most.full, decimals) == _written(most.without, decimals):
        decimals = _SHOWN_DECIMALS[1]
    before = _written(most.full, decimals)
    now = _written(most.without, decimals)
    change = (
        f"{most.name} changes most of {len(lead.several)} numbers, by "
        f"{_written(most.size, decimals)} (from {before} to {now})"
    )
    n_others = len(lead.several) - 1
    n_changed = sum(number.is_seen for number in lead.several) - 1
    if n_others == 1 and n_changed == 0:
        return f"{change}; the other stays"
    if n_others == 1:
        return f"{change}; the other changes too"
    if n_changed == n_others:
        return f"{change}; the {n_others} others change too"
    verb = "changes" if n_changed == 1 else "change"
    return f"{change}; {n_changed or 'none'} of the {n_others} others {verb}"


def _range(lead: Lead) -> str:
    """Write the smallest and the largest value of random sets: ``0.91 to 0.95``."""
    random = lead.values[2:]
    decimals = _decimals(lead)
    low = _written(min(random), decimals)
    high = _written(max(random), decimals)
    values = f"{low} to {high}" if low != high else low
    return f"their largest change is {values}" if lead.several else values


def _sets_in_words(n_off: int, sets: RandomSets) -> str:
    """Say which sets the heads are compared with."""
    n_sets = len(sets.sets)
    if sets.anywhere:
        heads = "head" if n_off == 1 else "heads"
        return f"{n_sets} random sets of {n_off} {heads} from all layers"
    if n_off == 1 and n_sets < RANDOM:
        return f"The {n_sets} other heads of its layer, one at a time"
    kind = "random sets" if n_sets >= RANDOM else "other sets"  # fewer than that are all there are
    return f"{n_sets} {kind} of {n_off} in the same layers"


# --- what follows ---------------------------------------------------------------------------------

MORE = "more"
LESS = "less"
LIKE_RANDOM = "like random"


def judged(full: float, without: float, random: Sequence[float]) -> str:
    """Judge whether heads matter more here than random ones, less, or as they do.

    They matter more if the value without them lies outside the range of the random sets and further
    from the full model's, in its direction, than any of these; less if it lies outside on the side
    where the full model's is.
    """
    full = _rounded(full)
    without = _rounded(without)
    low = _rounded(min(random))
    high = _rounded(max(random))
    if low <= without <= high:
        return LIKE_RANDOM
    moved_beyond = without > max(high, full) or without < min(low, full)
    return MORE if moved_beyond else LESS


def _follows(verdict: str, n_off: int, n_sets: int) -> str:
    """Say what follows of one head, or of several.

    Sets fewer than :data:`RANDOM` are all that there are: what is said is then said of each.
    """
    heads = "this head" if n_off == 1 else "these heads"
    matter = "matters" if n_off == 1 else "matter"
    if verdict == LIKE_RANDOM:
        return "this head does as the others do" if n_off == 1 else f"{heads} do as random ones do"
    if n_sets < RANDOM:
        return f"{heads} {matter} {verdict} here than each of them"
    return (
        f"{heads} {matter} here" if verdict == MORE else f"{heads} {matter} less here than others"
    )


def _chance(n_sets: int) -> str:
    """Say how often heads like any others would look special."""
    return (
        f"Heads like any others lie outside the range of the {n_sets} in 2 of {n_sets + 1} cases: "
        "try other sentences too."
    )


# --- numbers --------------------------------------------------------------------------------------


def _decimals(lead: Lead) -> int:
    """Return the fewest decimals with which no comparison looks otherwise than it was judged."""
    if lead.counted is not None:
        return 0
    fewest, most = _SHOWN_DECIMALS
    without = lead.values[1]
    random = lead.values[2:]
    compared = [lead.values[0]]
    if random:
        compared += [min(random), max(random)]
    for value in compared:
        differ = _rounded(value) != _rounded(without)
        if differ and round(value, fewest) == round(without, fewest):
            return most
    return fewest


def _rounded(value: float) -> float:
    """Round a number to the most decimals that are shown."""
    return round(value, _SHOWN_DECIMALS[1])


def _written(value: float, decimals: int) -> str:
    """Write a number with a true minus."""
    return tidy(f"{value:.{decimals}f}")
