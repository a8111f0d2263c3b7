"""What a run of ``prune`` is to do: one frozen value, checked before any model is opened."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headscope.artefacts.onnx_graph import need_packages
from headscope.artefacts.saving import check_target
from headscope.core.errors import InputError
from headscope.data.examples import Examples
from headscope.models.pooling import chosen
from headscope.pipeline.prune.choosing import fractions_of, needs
from headscope.pipeline.prune.repairing import Repair
from headscope.pruning.methods import DEFAULT, METHODS, check_methods
from headscope.session.known_roles import Classification
from headscope.session.resume import check_resume

#: Sentences that heads are chosen on, unless the user says otherwise.
CALIBRATION_LIMIT = 1024
#: Between the fractions of a curve, and random sets at each: what runs unless more is asked for.
STEP, DRAWS = 0.25, 5
#: Fewest random sets that say anything about spread.
FEWEST_DRAWS = 5
#: Fewest evaluation examples of a search, both halves together: with 20 of them 7% of searches
#: named a number that cost too much.
FEWEST = 60
#: The name of the curve of heads that were removed by hand.
MANUAL = "manual"


@dataclass(frozen=True)
class PruneOptions:
    """The choices of one run, as the user makes them.

    Every field is the parameter of :func:`headscope.prune` that has its name; lists become tuples.
    What was left open is filled in by the properties.

    Raises
    ------
    InputError
        If choices contradict each other, or do not say which one model is to be kept.
    """

    task: str = "fidelity"
    data: str | Path | Examples | None = None
    calibration: str | Path | Examples | None = None
    stack: str | None = None
    methods: Sequence[str] | None = None
    repairs: Sequence[str] | None = None
    step: float = STEP
    fractions: Sequence[float] | None = None
    heads: str | None = None
    keep_roles: Sequence[str] | None = None
    draws: int = DRAWS
    normalise: bool | None = None
    labels: bool = False
    ablation: bool | None = None
    roles: bool | Classification = True
    save: str | Path | None = None
    save_dense: str | Path | None = None
    benchmark: bool = False
    max_drop: float | None = None
    even: bool = False
    standalone: bool = False
    export: tuple[str, str | Path] | None = None
    quantize: str | None = None
    pooling: str | None = None
    limit: int | None = None
    calibration_limit: int = CALIBRATION_LIMIT
    validate: bool = True
    seed: int = 0
    state: str | Path | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        check_resume(self.state, self.resume)
        for name in ("methods", "repairs", "fractions", "keep_roles"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(value))
        self._check_choices()
        self._check_export()
        if self.keeps:
            self._check_kept()

    # --- what was left open -------------------------------------------------------------------

    @property
    def manual(self) -> bool:
        """Whether heads are removed by hand."""
        return self.heads is not None or bool(self.keep_roles)

    @property
    def method_names(self) -> tuple[str, ...]:
        """Methods, each once; none where heads are removed by hand."""
        return () if self.manual else tuple(dict.fromkeys(self.methods or (DEFAULT, "random")))

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
        """Fractions of the curves: the whole curve, or 0 and what was chosen.

        Where the number of heads is searched for, it may be any of them.
        """
        if self.max_drop is not None:
            return (0.0, 1.0)
        return fractions_of(self.step, self.fractions)

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

    def needing(self, what: str) -> list[str]:
        """List the methods of this run that need ``labels`` or ``roles``."""
        return needs(self.method_names, what)

    # --- what is kept -------------------------------------------------------------------------

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
        """Method and repair of each model that may be kept, by name and before the run.

        A control is none: random heads are measured to be compared with, not to be used.
        """
        names = (MANUAL,) if self.manual else self.method_names
        return tuple(
            (name, kind)
            for name in names
            if name == MANUAL or not METHODS[name].control
            for kind in self.repair_kinds
        )

    def _check_choices(self) -> None:
        if self.heads is not None and self.keep_roles:
            raise InputError("Give heads or keep_roles, not both.")
        if self.manual and (self.methods or self.fractions or self.step != STEP):
            raise InputError(
                "heads and keep_roles say which heads go; leave out methods, fractions and step."
            )
        if self.fractions and self.step != STEP:
            raise InputError("step makes a whole curve of fractions; leave out step or fractions.")
        check_methods(self.method_names)
        if self.pooling is not None:
            chosen(self.pooling)
        for name in self.repairs or ():
            if name not in list(Repair):
                raise InputError(f"There is no repair {name!r}; choose {', '.join(Repair)}.")
        self._check_roles()
        self._check_number()
        if self.draws < FEWEST_DRAWS:
            raise InputError(
                f"draws is {self.draws}; give {FEWEST_DRAWS} or more, fewer say nothing."
            )
        if self.standalone and not self.save:
            raise InputError(
                "standalone writes a file beside the weights of save; give save a folder too."
            )
        if self.calibration_limit < 2:
            raise InputError(
                f"calibration_limit is {self.calibration_limit}; give 2 or more (1024 is usual)."
            )
        if not -(2**62) <= self.seed < 2**62:
            raise InputError(f"The seed {self.seed} is too large; give one of at most 62 bits.")
        fractions_of(self.step, self.fractions)

    def _check_number(self) -> None:
        """Refuse what says twice how many heads are to go, or asks for an impossible number."""
        if self.manual and self.even:
            raise InputError(
                "even says how many heads each layer loses; leave out heads and keep_roles."
            )
        if self.max_drop is None:
            return
        if not (math.isfinite(self.max_drop) and self.max_drop >= 0):
            raise InputError(
                f"max_drop is {self.max_drop:g}; give 0 or more, in the unit of the task's metric "
                "(0.5 is half a point of accuracy)."
            )
        if self.limit is not None and self.limit < FEWEST:
            raise InputError(
                f"limit is {self.limit}, and max_drop needs {FEWEST} or more examples (better "
                "hundreds): one half to choose on and one to confirm on."
            )
        if self.manual or self.fractions or self.step != STEP:
            raise InputError(
                "max_drop finds out how many heads can go; leave out fractions, step, heads and "
                "keep_roles."
            )
        if not self.candidates:
            raise InputError(
                "Random heads are a control, and no number of them is searched for; name another "
                "method for max_drop, such as fisher-joint."
            )

    def _check_export(self) -> None:
        """Refuse a form that there is not, or that this installation cannot write."""
        if self.export is None:
            if self.quantize is not None:
                raise InputError("quantize needs export: it is the exported graph that it changes.")
            return
        if self.export[0] != "onnx":
            raise InputError(
                f"There is no form {self.export[0]!r} to export to; give onnx and a folder."
            )
        if self.quantize not in (None, "int8"):
            raise InputError(f"There is no quantize {self.quantize!r}; give int8.")
        need_packages()

    def _check_roles(self) -> None:
        wanting = [*self.needing("roles"), *(["keep_roles"] if self.keep_roles else [])]
        if self.task == "seq2seq" and wanting and isinstance(self.roles, bool):
            raise InputError(
                f"{wanting[0]} needs to know what the heads do, and for the task seq2seq no model "
                "is classified on the way: give roles, the classify.json that 'headscope classify "
                "MODEL -o DIR' wrote of this model's stacks."
            )

    def _check_kept(self) -> None:
        """Refuse before a long run what would not name one model, or could not be written."""
        if not self.candidates:
            raise InputError(
                "Random heads are a control and are never kept; name another method for save, "
                "save_dense, export and benchmark, such as fisher-joint."
            )
        by_share = not self.manual and self.max_drop is None
        if by_share and len(set(self.fractions or ())) != 1:
            raise InputError(
                "save, save_dense, export and benchmark need one model: give one fraction, such as "
                "0.5, or max_drop, or name the heads with heads or keep_roles."
            )
        if by_share and self.shares in ((0.0,), (0.0, 1.0)):
            raise InputError(
                f"The fraction {self.shares[-1]:g} leaves no pruned model to keep: it removes "
                f"{'everything' if self.shares[-1] else 'nothing'}."
            )
        places = [folder.resolve() for _, folder in self.folders]
        for _, folder in self.folders:
            check_target(folder)
        if len(set(places)) < len(places):
            raise InputError("save, save_dense and export name the same folder; give each its own.")
        inside = {place for place in places if set(place.parents) & set(places)}
        if inside:
            raise InputError(
                f"{', '.join(map(str, sorted(inside)))} lies inside another folder that is to be "
                "written; give each its own."
            )
        if self.state is not None:
            output = Path(self.state).resolve().parent
            if {output, *output.parents} & set(places):
                raise InputError(
                    f"The folder of results {output} is, or lies in, one that a model is saved in; "
                    "give each its own."
                )
