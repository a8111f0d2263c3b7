"""What a run of ``prune`` is to do: methods and repairs by name, and all options as one value."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headscope.core.errors import InputError

if TYPE_CHECKING:
    from headscope.analyses.classify.known_roles import Classification
    from headscope.data.examples import Examples

DEFAULT = "fisher-joint"  # The method of a run that names none.
CALIBRATION_LIMIT = 1024  # Sentences that heads are chosen on, unless the user says otherwise.
#: Between the fractions of a curve, and random sets at each: what runs unless more is asked for.
STEP, DRAWS = 0.25, 5
FEWEST_DRAWS = 5  # Fewest random sets that say anything about spread.
#: Fewest evaluation examples of a search, both halves together: with 20 of them 7% of searches
#: named a number that cost too much.
FEWEST = 60
MANUAL = "manual"  # The name of the curve of heads that were removed by hand.


@dataclass(frozen=True)
class MethodInfo:
    """One method of choosing heads, and what it needs."""

    words: str  # what a head is worth by it, on one line
    source: str = ""
    needs_labels: bool = False  # a loss whose gradient does not vanish at the unpruned model
    needs_roles: bool = False  # the classification of the heads
    can_normalise: bool = False
    control: bool = False  # only compared with: no model that it makes is ever kept


_VOITA = "Voita et al. 2019, arXiv:1905.09418"
_MICHEL = "Michel et al. 2019, arXiv:1905.10650"
_HASSIBI = "Hassibi & Stork 1993, on gates; Kwon et al. 2022, arXiv:2204.09656"

METHODS = {
    "fisher-joint": MethodInfo(
        "place in joint elimination on the Gauss-Newton matrix of all heads", _HASSIBI
    ),
    "fisher-relinearised": MethodInfo(
        "the same, with the matrix taken again after each eighth of the heads", _HASSIBI
    ),
    "fisher-mean": MethodInfo(
        "the same for heads that leave their mean behind; goes with the repair mean", _HASSIBI
    ),
    "fisher": MethodInfo(
        "diagonal of the Fisher matrix, then exchanges inside each layer",
        "Kwon et al. 2022, arXiv:2204.09656",
        can_normalise=True,
    ),
    "importance-token": MethodInfo(
        "mean over tokens of the absolute derivative of the loss by the head",
        _MICHEL,
        needs_labels=True,
        can_normalise=True,
    ),
    "importance-example": MethodInfo(
        "mean over examples of the absolute derivative of the loss by the head",
        _MICHEL,
        needs_labels=True,
        can_normalise=True,
    ),
    "gates": MethodInfo("gates trained to be few; the weights stay as they are", _VOITA),
    "topk": MethodInfo(
        "gates trained with exactly as many heads as are to stay",
        "Li et al. 2021, arXiv:2108.04657",
    ),
    "ablation": MethodInfo("drop of the metric without this head", _MICHEL),
    "ablation-greedy": MethodInfo("the same, measured again after every removal"),
    "roles": MethodInfo(
        "heads with a role before those without, the clearest first", _VOITA, needs_roles=True
    ),
    "magnitude": MethodInfo("norm of the head's weights"),
    "confidence": MethodInfo(
        "mean largest attention weight on a content token", _VOITA, needs_roles=True
    ),
    "random": MethodInfo("drawn at random: the control that every method must beat", control=True),
}


class Repair(enum.StrEnum):
    """What is done to the heads that are left."""

    none = "none"
    scale = "scale"
    mean = "mean"
    refit = "refit"


def check_methods(names: Sequence[str]) -> None:
    """Refuse names that are no method; the message lists those there are."""
    for name in names:
        if name not in METHODS:
            raise InputError(f"There is no method {name!r}; choose {', '.join(METHODS)}.")


def needs(methods: Sequence[str], what: str) -> list[str]:
    """List the methods that need ``labels`` or ``roles``."""
    return [name for name in methods if getattr(METHODS[name], f"needs_{what}")]


@dataclass(frozen=True)
class PruneOptions:
    """The choices of one run, as the user makes them; see :func:`headscope.prune`.

    Lists become tuples. What was left open is filled in by the properties.
    """

    task: str = "fidelity"
    data: str | Path | Examples | None = None  # what the curves are measured on
    calibration: str | Path | Examples | None = None  # what heads are chosen on
    stack: str | None = None  # where heads may be removed
    methods: Sequence[str] | None = None
    repairs: Sequence[str] | None = None
    step: float = STEP  # between the fractions of a curve
    fractions: Sequence[float] | None = None  # instead of a whole curve
    heads: str | None = None  # remove these by hand
    keep_roles: Sequence[str] | None = None  # remove heads without any of these
    draws: int = DRAWS  # random sets at each fraction
    normalise: bool | None = None  # by layer
    labels: bool = False  # let methods use labels that can do without
    ablation: bool | None = None  # tables of single heads
    roles: bool | Classification = True
    save: str | Path | None = None  # folder of the compact model
    save_dense: str | Path | None = None  # folder of the model in its old shape
    benchmark: bool = False
    max_drop: float | None = None  # search for a number of heads that costs at most this
    even: bool = False  # the same number in every layer
    standalone: bool = False  # a modelling file beside the weights of ``save``
    export: tuple[str, str | Path] | None = None  # form and folder
    quantize: str | None = None
    pooling: str | None = None
    limit: int | None = None  # evaluation examples
    calibration_limit: int = CALIBRATION_LIMIT
    validate: bool = True
    seed: int = 0
    state: str | Path | None = None  # file that the run saves itself in
    resume: bool = False

    def __post_init__(self) -> None:
        for name in ("methods", "repairs", "fractions", "keep_roles"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(value))
        self.check()

    # --- what was left open -----------------------------------------------------------------------

    @property
    def manual(self) -> bool:
        """Whether heads are removed by hand."""
        return self.heads is not None or bool(self.keep_roles)

    @property
    def method_names(self) -> tuple[str, ...]:
        """Methods, each once; none where heads are removed by hand."""
        return () if self.manual else tuple(dict.fromkeys(self.methods or (DEFAULT, "random")))

    @property
    def scored(self) -> tuple[str, ...]:
        """Methods that score heads, controls aside."""
        return tuple(name for name in self.method_names if not METHODS[name].control)

    @property
    def repair_kinds(self) -> tuple[Repair, ...]:
        """Repairs, each once."""
        if self.repairs:
            return tuple(dict.fromkeys(Repair(name) for name in self.repairs))
        if self.manual:
            return (Repair.none,)
        searched = self.max_drop is not None  # then the best repair is worth its time
        return (Repair.none, Repair.scale, *((Repair.mean,) if searched else ()))

    @property
    def shares(self) -> tuple[float, ...]:
        """Fractions of the curves: 0, step, ... 1, or 0 and what was chosen.

        Where the number of heads is searched for, it may be any of them.
        """
        if self.max_drop is not None:
            return (0.0, 1.0)
        if self.fractions:
            return tuple(sorted({0.0, *self.fractions}))
        count = int(1.0 / self.step + 1e-9)
        return tuple(sorted({*(round(i * self.step, 10) for i in range(count + 1)), 1.0}))

    @property
    def tables(self) -> bool:
        """Whether the tables of single heads are made."""
        if self.ablation is None:
            return self.data is None and not self.manual and self.max_drop is None
        return self.ablation

    @property
    def needs_calibration(self) -> bool:
        """Whether anything is chosen, repaired or tabulated with calibration data."""
        chosen = any(name not in ("random", "magnitude") for name in self.method_names)
        return chosen or self.repair_kinds != (Repair.none,) or self.tables

    # --- what is kept -----------------------------------------------------------------------------

    @property
    def keeps(self) -> bool:
        """Whether one model is wanted beyond its numbers: saved, exported or timed."""
        return bool(self.save or self.save_dense or self.benchmark or self.export)

    @property
    def folders(self) -> tuple[tuple[str, Path], ...]:
        """Name and folder of each option that writes a model."""
        graph = None if self.export is None else self.export[1]
        wanted = (("save", self.save), ("save_dense", self.save_dense), ("export", graph))
        return tuple((option, Path(folder)) for option, folder in wanted if folder is not None)

    @property
    def candidates(self) -> tuple[tuple[str, Repair], ...]:
        """Method and repair of each model that may be kept; a control never is."""
        names = (MANUAL,) if self.manual else self.scored
        return tuple((name, kind) for name in names for kind in self.repair_kinds)

    def of_one_stack(self) -> PruneOptions:
        """Leave out what is done once with all stacks: keeping a model, and the single heads."""
        return dataclasses.replace(
            self,
            save=None,
            save_dense=None,
            standalone=False,
            export=None,
            quantize=None,
            benchmark=False,
            ablation=False,
        )

    # --- checks -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse choices that contradict each other, or do not name the one model to keep."""
        form = None if self.export is None else self.export[0]
        _refuse(self.heads is not None and self.keep_roles, "Give heads or keep_roles, not both.")
        _refuse(
            self.manual and (self.methods or self.fractions or self.step != STEP),
            "heads and keep_roles say which heads go; leave out methods, fractions and step.",
        )
        _refuse(
            self.fractions and self.step != STEP,
            "step makes a whole curve of fractions; leave out step or fractions.",
        )
        check_methods(self.method_names)
        for name in self.repairs or ():
            known = name in list(Repair)
            _refuse(not known, f"There is no repair {name!r}; choose {', '.join(Repair)}.")
        wanting = needs(self.method_names, "roles") + (["keep_roles"] if self.keep_roles else [])
        if self.task == "seq2seq" and wanting and isinstance(self.roles, bool):
            raise InputError(
                f"{wanting[0]} needs to know what the heads do, and for the task seq2seq no model "
                "is classified on the way: give roles, the classify.json that 'headscope classify "
                "MODEL -o DIR' wrote of this model's stacks."
            )
        _refuse(
            self.manual and self.even,
            "even says how many heads each layer loses; leave out heads and keep_roles.",
        )
        if self.max_drop is not None:
            self._check_search(self.max_drop)
        _refuse(
            self.draws < FEWEST_DRAWS,
            f"draws is {self.draws}; give {FEWEST_DRAWS} or more, fewer say nothing.",
        )
        _refuse(
            self.standalone and not self.save,
            "standalone writes a file beside the weights of save; give save a folder too.",
        )
        _refuse(
            self.calibration_limit < 2,
            f"calibration_limit is {self.calibration_limit}; give 2 or more (1024 is usual).",
        )
        _refuse(
            not -(2**62) <= self.seed < 2**62,
            f"The seed {self.seed} is too large; give one of at most 62 bits.",
        )
        for share in self.fractions or ():
            _refuse(not 0.0 <= share <= 1.0, f"The fraction {share:g} is not between 0 and 1.")
        _refuse(
            not 0.01 <= self.step <= 1.0,
            f"The step {self.step:g} is not between 0.01 and 1 (0.1 is usual).",
        )
        _refuse(
            form is None and self.quantize is not None,
            "quantize needs export: it is the exported graph that it changes.",
        )
        _refuse(
            form not in (None, "onnx"),
            f"There is no form {form!r} to export to; give onnx and a folder.",
        )
        _refuse(
            self.quantize not in (None, "int8"),
            f"There is no quantize {self.quantize!r}; give int8.",
        )
        if self.keeps:
            self._check_kept()

    def _check_search(self, max_drop: float) -> None:
        """Refuse a search for a number of heads that is impossible, or that is said already."""
        _refuse(
            not (math.isfinite(max_drop) and max_drop >= 0),
            f"max_drop is {max_drop:g}; give 0 or more, in the unit of the task's metric "
            "(0.5 is half a point of accuracy).",
        )
        _refuse(
            self.limit is not None and self.limit < FEWEST,
            f"limit is {self.limit}, and max_drop needs {FEWEST} or more examples (better "
            "hundreds): one half to choose on and one to confirm on.",
        )
        _refuse(
            self.manual or self.fractions or self.step != STEP,
            "max_drop finds out how many heads can go; leave out fractions, step, heads and "
            "keep_roles.",
        )
        _refuse(
            not self.candidates,
            "Random heads are a control, and no number of them is searched for; name another "
            "method for max_drop, such as fisher-joint.",
        )

    def _check_kept(self) -> None:
        """Refuse, before a long run, what does not name one model or one folder for each form."""
        _refuse(
            not self.candidates,
            "Random heads are a control and are never kept; name another method for save, "
            "save_dense, export and benchmark, such as fisher-joint.",
        )
        if not self.manual and self.max_drop is None:
            _refuse(
                len(set(self.fractions or ())) != 1,
                "save, save_dense, export and benchmark need one model: give one fraction, such as "
                "0.5, or max_drop, or name the heads with heads or keep_roles.",
            )
            _refuse(
                self.shares in ((0.0,), (0.0, 1.0)),
                f"The fraction {self.shares[-1]:g} leaves no pruned model to keep: it removes "
                f"{'everything' if self.shares[-1] else 'nothing'}.",
            )
        folders = [folder.resolve() for _, folder in self.folders]
        _refuse(
            len(set(folders)) < len(folders),
            "save, save_dense and export name the same folder; give each its own.",
        )
        inside = sorted(str(folder) for folder in folders if set(folder.parents) & set(folders))
        _refuse(
            inside,
            f"{', '.join(inside)} lies inside another folder that is to be written; give each its "
            "own.",
        )
        if self.state is not None:
            output = Path(self.state).resolve().parent
            _refuse(
                {output, *output.parents} & set(folders),
                f"The folder of results {output} is, or lies in, one that a model is saved in; "
                "give each its own.",
            )


def _refuse(wrong: object, message: str) -> None:
    """Refuse the options if anything is ``wrong``."""
    if wrong:
        raise InputError(message)
