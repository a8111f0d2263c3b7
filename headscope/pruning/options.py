"""The options of ``headscope prune``, its methods and repairs, and which options contradict others.

A field of :class:`PruneOptions` is a flag, a parameter in Python and a line of a config file; the
properties say what the fields amount to, defaults filled in. In a message ``$methods`` stands for
an option: each interface spells its name in its own way, as ``--method`` or ``methods``.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from headscope.core.errors import WrongOptionError, nearest
from headscope.core.options import Option, OptionError, Usual, names
from headscope.session.options import POOLING, STACK, TASKS, Held, RunOptions
from headscope.stats.estimate import FEWEST_TESTED

if TYPE_CHECKING:
    from headscope.analyses.classify.result import ClassifyResult
    from headscope.data.examples import Examples

    Data = str | Path | Examples
    Roles = str | Path | ClassifyResult
else:
    Data = Roles = Path

DEFAULT = "surgeon"  # The method, and the repair, of a run that names none.
CALIBRATION_LIMIT = 1024  # Sentences that heads are chosen on, unless the user says otherwise.
STEP = 0.25  # Between the fractions of a curve.
MANUAL = "manual"  # The name of the curve of heads that were removed by hand.


@dataclass(frozen=True)
class MethodInfo:
    """One method of choosing heads, and what it needs."""

    words: str  # What a head is worth by it, on one line
    source: str = ""  # The article that it is from
    needs_labels: bool = False  # Its gradient is zero at the unpruned model without them
    needs_roles: bool = False  # Whether the heads must have been classified
    control: bool = False  # Only compared with: no model that it makes is ever kept


_VOITA = "Voita et al. 2019, arXiv:1905.09418"
_MICHEL = "Michel et al. 2019, arXiv:1905.10650"

METHODS = {
    "surgeon": MethodInfo(
        "order of eliminating blocks of W_O, which is refitted; goes with the repair surgeon",
        "Hassibi & Stork 1993; Kurtic et al. 2023, arXiv:2302.04089",
    ),
    "fisher": MethodInfo(
        "diagonal of the Fisher matrix, then exchanges inside each layer",
        "Kwon et al. 2022, arXiv:2204.09656",
    ),
    "importance-token": MethodInfo(
        "mean over tokens of the absolute derivative of the loss by the head",
        _MICHEL,
        needs_labels=True,
    ),
    "importance-example": MethodInfo(
        "mean over examples of the absolute derivative of the loss by the head",
        _MICHEL,
        needs_labels=True,
    ),
    "gates": MethodInfo("gates trained to be few; the weights stay as they are", _VOITA),
    "ablation": MethodInfo("drop of the metric without this head", _MICHEL),
    "roles": MethodInfo(
        "heads with a role before those without, the clearest first", _VOITA, needs_roles=True
    ),
    "magnitude": MethodInfo("norm of the head's weights"),
    "random": MethodInfo("drawn at random: the control that every method must beat", control=True),
}


class Repair(enum.StrEnum):
    """What is done to the heads that are left."""

    none = "none"
    scale = "scale"
    surgeon = "surgeon"


def check_methods(methods: Sequence[str]) -> None:
    """Refuse names that are no method; the message lists those there are."""
    for name in methods:
        if name not in METHODS:
            hint = nearest(name, METHODS, "choose from")
            raise WrongOptionError(f"There is no method {name!r}; {hint}")


def methods_with_labels(methods: Sequence[str]) -> tuple[str, ...]:
    """Return those of some methods that cannot choose heads without labels."""
    return tuple(name for name in methods if METHODS[name].needs_labels)


def methods_with_roles(methods: Sequence[str]) -> tuple[str, ...]:
    """Return those of some methods that have to know what the heads do."""
    return tuple(name for name in methods if METHODS[name].needs_roles)


def _role_names(text: str) -> list[str]:
    """Read ``positional,syntactic``; an empty list is refused as a mistake."""
    if chosen := names(text):
        return chosen
    raise ValueError("name a role, such as positional")


@dataclass(frozen=True, kw_only=True)
class PruneOptions(RunOptions):
    """Choose heads, remove them for real, measure again, keep a model that loads.

    Several methods side by side, with intervals and random heads as the baseline.

    Examples
    --------
    >>> import headscope
    >>> few = {"limit": 16, "calibration_limit": 16}
    >>> result = headscope.prune("demo", heads="L0H1,L3H*", **few)
    >>> result.curves[0].method, len(result.curves[0].points[0].heads_removed)
    ('manual', 13)
    """

    held: ClassVar[Held] = Held(5.0, 500.0)
    usual_seconds: ClassVar[Mapping[str, float]] = {"choosing heads": 5.0, "removing heads": 40.0}
    examples: ClassVar[tuple[str, ...]] = (
        "headscope prune demo",
        "headscope prune demo --fraction 0.5 --save smaller",
        "headscope prune demo --task similarity --data test.csv --calibration train.csv",
        "headscope prune demo --task retrieval --data ./scifact",
        "headscope prune ./my-bert --heads 'L0H1,L3H*' --save smaller",
        "headscope prune ./my-marian --task seq2seq --data a.tsv --calibration b.tsv",
        "headscope prune demo --method fisher --repair scale --fraction 0.5",
    )

    task: Annotated[
        str, Usual(help="What the model is measured by; fidelity needs no labels.", choices=TASKS)
    ] = "fidelity"
    data: Annotated[
        Data | None,
        Usual(
            help="What curves are measured on: text, CSV, TSV, JSONL with labels or targets, or "
            "what the task reads."
        ),
    ] = None
    calibration: Annotated[
        Data | None,
        Usual(help="What heads are chosen on; other sentences than those of the data."),
    ] = None
    stack: Annotated[str | None, STACK] = None
    methods: Annotated[
        Sequence[str] | None,
        Option(
            help=f"{', '.join([*METHODS][:-1])} or random; repeatable. "
            f"Default: {DEFAULT} and random.",
            flags=("--method",),
        ),
    ] = None
    repairs: Annotated[
        Sequence[str] | None,
        Option(
            help="What is done to the heads that stay; repeatable. Default: surgeon; none and "
            "surgeon where methods are named; none for heads by hand.",
            flags=("--repair",),
            choices=tuple(Repair),
        ),
    ] = None
    step: Annotated[
        float,
        Option(
            help="Step between the fractions of a curve; 0.1 takes about three times as long.",
            at_least=0.01,
            at_most=1,
            why="0.1 is usual",
        ),
    ] = STEP
    fractions: Annotated[
        Sequence[float] | None,
        Usual(
            help="Remove this share of heads, no whole curve; repeatable, but once where a model "
            "is saved.",
            flags=("--fraction",),
            at_least=0,
            at_most=1,
        ),
    ] = None
    heads: Annotated[
        str | None, Usual(help="Remove these by hand: L0H1,L3H* (all of layer 3).")
    ] = None
    keep_roles: Annotated[
        Sequence[str] | None,
        Option(
            help="Keep only heads with one of these roles: positional,syntactic.",
            metavar="<str>",
            read=_role_names,
        ),
    ] = None
    draws: Annotated[
        int,
        Option(help="Random sets of heads at each fraction.", at_least=5, why="fewer say nothing"),
    ] = 5
    roles: Annotated[
        Roles | None,
        Option(
            help="classify.json of this model: show which kinds of heads are left. Without it only "
            "the method roles and keep_roles ask, and classify the built-in sample."
        ),
    ] = None
    save: Annotated[
        str | Path | None,
        Usual(
            help="Folder for the pruned model, heads removed for real; loaded again and measured. "
            "Of several methods or repairs the best on the calibration data; never random heads."
        ),
    ] = None
    max_drop: Annotated[
        float | None,
        Usual(
            help="Instead of fractions: find a number of heads that is confirmed to cost at most "
            "this much of the metric, the bad end of the 95% interval included.",
            at_least=0,
            why="in the unit of the task's metric (0.5 is half a point of accuracy)",
        ),
    ] = None
    limit: Annotated[
        int | None,
        Option(help="So many examples of the data, chosen at random (mlm, lm: the first windows)."),
    ] = None
    calibration_limit: Annotated[
        int,
        Option(
            help="Calibration sentences, drawn at random (mlm: half as many windows; lm: a "
            "quarter).",
            at_least=2,
            why="1024 is usual",
        ),
    ] = CALIBRATION_LIMIT
    pooling: Annotated[str | None, POOLING] = None

    @property
    def manual(self) -> bool:
        """Whether heads are removed by hand."""
        return self.heads is not None or bool(self.keep_roles)

    @property
    def method_names(self) -> tuple[str, ...]:
        """Methods, each once; none where heads are removed by hand."""
        if self.manual:
            return ()
        return tuple(dict.fromkeys(self.methods or (DEFAULT, "random")))

    @property
    def scored(self) -> tuple[str, ...]:
        """Names of the methods that choose heads: all but the control."""
        return tuple(name for name in self.method_names if not METHODS[name].control)

    @property
    def repair_kinds(self) -> tuple[Repair, ...]:
        """Repairs, each once; by default those that :attr:`repairs` says."""
        if self.repairs:
            return tuple(dict.fromkeys(Repair(name) for name in self.repairs))
        if self.manual:
            return (Repair.none,)
        return (Repair.none, Repair.surgeon) if self.methods else (Repair.surgeon,)

    @property
    def shares(self) -> tuple[float, ...]:
        """Shares of the heads that curves remove: 0, 0.25, ... 1, or 0 and the given fractions."""
        if self.max_drop is not None:  # the search finds out what lies between
            return (0.0, 1.0)
        if self.fractions:
            return tuple(sorted({0.0, *self.fractions}))
        whole_steps = int(1.0 / self.step + 1e-9)  # 10 of 0.1, not 9
        multiples = {round(i * self.step, 10) for i in range(whole_steps + 1)}
        return tuple(sorted(multiples | {1.0}))

    @property
    def what_needs_roles(self) -> tuple[str, ...]:
        """Names of methods, and ``keep_roles``, that have to know what the heads do."""
        methods = methods_with_roles(self.method_names)
        return (*methods, "keep_roles") if self.keep_roles else methods

    @property
    def needs_calibration(self) -> bool:
        """Whether anything is chosen or repaired with calibration data."""
        cuts_heads = self.manual or bool(self.scored)
        repairs_them = self.repair_kinds != (Repair.none,)
        reads_text = any(name != "magnitude" for name in self.scored)
        return (cuts_heads and repairs_them) or reads_text

    def check(self) -> None:
        """Refuse options that contradict each other, or do not name the one model to keep."""
        check_methods(self.method_names)
        problems = (
            *self._problems_of_choice(),
            *self._problems_of_search(),
            *self._problems_of_saving(),
        )
        if problems:
            raise OptionError(problems[0])

    @property
    def _step_was_chosen(self) -> bool:
        """Whether the user gave a step, which only a whole curve of fractions has."""
        return self.step != STEP

    def _problems_of_choice(self) -> Iterator[str]:
        """Say what is wrong with how heads are chosen."""
        if self.heads is not None and self.keep_roles:
            yield "Give $heads or $keep_roles, not both."
        if self.manual and (self.methods or self.fractions or self._step_was_chosen):
            yield (
                "$heads and $keep_roles say which heads go; leave out $methods, $fractions and "
                "$step."
            )
        if self.fractions and self._step_was_chosen:
            yield "$step makes a whole curve of fractions; leave out $step or $fractions."
        if self.task == "seq2seq" and self.roles is None and self.what_needs_roles:
            yield (
                f"{self.what_needs_roles[0]} needs to know what the heads do, and for the task "
                "seq2seq no model is classified on the way: give $roles, the classify.json that "
                "'headscope classify MODEL -o DIR' wrote of this model's stacks."
            )

    def _problems_of_search(self) -> Iterator[str]:
        """Say what contradicts ``max_drop``."""
        if self.max_drop is None:
            return
        if math.isinf(self.max_drop):
            yield "$max_drop is inf; give a number in the unit of the task's metric."
        if self.limit is not None and self.limit < FEWEST_TESTED:
            yield (
                f"$limit is {self.limit}, and $max_drop needs {FEWEST_TESTED} or more examples "
                "(better hundreds) to test on."
            )
        if self.manual or self.fractions or self._step_was_chosen:
            yield (
                "$max_drop finds out how many heads can go; leave out $fractions, $step, $heads "
                "and $keep_roles."
            )
        if not (self.manual or self.scored):
            yield (
                "Random heads are a control, and no number of them is searched for; name "
                "another method for $max_drop, such as surgeon."
            )

    def _problems_of_saving(self) -> Iterator[str]:
        """Say why there is not exactly one model that could be saved."""
        if self.save is None or self.manual:
            return
        if not self.scored:
            yield "Random heads are a control and are never saved; name another method."
        if self.max_drop is not None:
            return
        if len(set(self.fractions or ())) != 1:
            yield (
                "$save needs one model: give one fraction, such as 0.5, or $max_drop, or name "
                "the heads with $heads or $keep_roles."
            )
        elif self.shares == (0.0,):
            yield "The fraction 0 removes nothing: no pruned model is left."
        elif self.shares == (0.0, 1.0):
            yield "The fraction 1 removes everything: no pruned model is left."

    def step_names(self) -> tuple[str, ...]:
        """Name the steps of a run."""
        steps = ["removing heads"]
        if self.scored:
            steps.insert(0, "choosing heads")
        if self.save is not None:
            steps.append("saving")
        return tuple(steps)
