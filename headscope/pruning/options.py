"""What ``headscope prune`` can be asked, its methods and repairs, and what contradicts itself.

A field is a flag, a parameter in Python and a line of a config file; what was left open is filled
in by the properties.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from headscope.core.errors import InputError
from headscope.core.options import Option, names
from headscope.core.progress import SECONDS
from headscope.session.options import POOLING, STACK, TASKS, ResumableOptions

if TYPE_CHECKING:
    from headscope.analyses.classify.result import ClassifyResult
    from headscope.data.examples import Examples

    Data = str | Path | Examples
    Roles = bool | str | Path | ClassifyResult
else:
    Data = Roles = Path

DEFAULT = "fisher-joint"  # The method of a run that names none.
SEARCHED = "surgeon"  # Method, and repair, of a search that names none.
CALIBRATION_LIMIT = 1024  # Sentences that heads are chosen on, unless the user says otherwise.
STEP = 0.25  # Between the fractions of a curve.
#: Fewest evaluation examples of a search: with 20 of them, in two halves, 7% of searches named a
#: number that cost too much.
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
_DERIVATIVE = "mean over {} of the absolute derivative of the loss by the head"

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
    "surgeon": MethodInfo(
        "the same for blocks of W_O, which is refitted; goes with the repair surgeon",
        "Hassibi & Stork 1993; Kurtic et al. 2023, arXiv:2302.04089",
    ),
    "fisher": MethodInfo(
        "diagonal of the Fisher matrix, then exchanges inside each layer",
        "Kwon et al. 2022, arXiv:2204.09656",
        can_normalise=True,
    ),
    **{
        f"importance-{kind}": MethodInfo(
            _DERIVATIVE.format(f"{kind}s"), _MICHEL, needs_labels=True, can_normalise=True
        )
        for kind in ("token", "example")
    },
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
    surgeon = "surgeon"

    @property
    def step(self) -> str:
        """What the clock of a run calls it: a method may have the same name."""
        return f"repair {self.value}"


def check_methods(methods: Sequence[str]) -> None:
    """Refuse names that are no method; the message lists those there are."""
    for name in methods:
        if name not in METHODS:
            raise InputError(f"There is no method {name!r}; choose {', '.join(METHODS)}.")


def needs(methods: Sequence[str], what: str) -> list[str]:
    """List the methods that need ``labels`` or ``roles``."""
    return [name for name in methods if getattr(METHODS[name], f"needs_{what}")]


def _role_names(text: str) -> list[str]:
    """Read ``positional,syntactic``; an empty list is a slip, not a wish."""
    if chosen := names(text):
        return chosen
    raise ValueError("name a role, such as positional")


@dataclass(frozen=True)
class RolesFlags:
    """A classification, or none."""

    roles: Annotated[
        Path | None,
        Option(help="classify.json of this model. Default: classify the built-in sample."),
    ] = None
    no_roles: Annotated[
        bool, Option(help="Do not ask what the heads do.", flags=("--no-roles",))
    ] = False

    def value(self) -> Any:
        """Return the file that was named, or False for none."""
        return self.roles or False


@dataclass(frozen=True, kw_only=True)
class PruneOptions(ResumableOptions):
    """Choose heads, remove them for real, measure again, keep a model that loads.

    Several methods side by side, with intervals and random heads as the baseline.

    Examples
    --------
    >>> import headscope
    >>> few = {"limit": 64, "calibration_limit": 64, "roles": False, "ablation": False}
    >>> result = headscope.prune("demo", heads="L0H1,L3H*", **few)
    >>> result.curves[0].method, len(result.curves[0].points[0].heads_removed)
    ('manual', 13)
    """

    moved: ClassVar[dict[str, str]] = dict.fromkeys(
        (
            *("target_speed", "target_ms", "target_mb", "units", "tune", "tune_minutes", "runtime"),
            *("batch_size", "keep_vocabulary", "controls", "no_controls"),
        ),
        "a smaller or faster model is made by shrink: headscope shrink MODEL --speed 2",
    )
    held: ClassVar[tuple[float, float]] = (5.0, 500.0)
    examples: ClassVar[tuple[str, ...]] = (
        "headscope prune demo",
        "headscope prune demo --fraction 0.5 --save smaller",
        "headscope prune demo --task similarity --data test.csv --calibration train.csv",
        "headscope prune demo --task retrieval --data ./scifact",
        "headscope prune demo --step 0.1 --draws 20",
        "headscope prune ./my-bert --heads 'L0H1,L3H*' --save smaller",
        "headscope prune ./my-marian --task seq2seq --data a.tsv --calibration b.tsv",
        "headscope prune demo --fraction 0.5 --repair scale --save small --benchmark",
    )

    task: Annotated[
        str, Option(help="What the model is measured by; fidelity needs no labels.", choices=TASKS)
    ] = "fidelity"
    data: Annotated[
        Data | None,
        Option(
            help="What curves are measured on: text, CSV, TSV, JSONL with labels or targets, or "
            "what the task reads."
        ),
    ] = None
    calibration: Annotated[
        Data | None,
        Option(help="What heads are chosen on; other sentences than those of the data."),
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
            help="Repeatable. Default: none and scale, with a largest drop surgeon; none for heads "
            "by hand.",
            flags=("--repair",),
            choices=tuple(Repair),
        ),
    ] = None
    step: Annotated[
        float,
        Option(
            help="Between the fractions of a curve; 0.1 takes about three times as long.",
            at_least=0.01,
            at_most=1,
            why="0.1 is usual",
        ),
    ] = STEP
    fractions: Annotated[
        Sequence[float] | None,
        Option(
            help="Remove this share of heads, no whole curve; repeatable, but once where a model "
            "is saved.",
            flags=("--fraction",),
            at_least=0,
            at_most=1,
        ),
    ] = None
    heads: Annotated[
        str | None, Option(help="Remove these by hand: L0H1,L3H* (all of layer 3).")
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
    normalise: Annotated[
        bool | None,
        Option(help="Divide scores by each layer's l2 norm. Default: for importance-* only."),
    ] = None
    labels: Annotated[bool, Option(help="Let fisher, gates and topk use labels.")] = False
    ablation: Annotated[
        bool | None,
        Option(
            help="Tables of single heads: each removed alone, each layer's best alone. Default: "
            "only for the built-in sample."
        ),
    ] = None
    roles: Annotated[
        Roles,
        Option(
            help="A result of classify for this model, or False; True classifies the built-in "
            "sample.",
            spelled=RolesFlags,
        ),
    ] = True
    save: Annotated[
        str | Path | None,
        Option(
            help="Folder for the pruned model, heads removed for real; loaded again and measured. "
            "Of several methods or repairs the best on the calibration data; never random heads."
        ),
    ] = None
    save_dense: Annotated[
        str | Path | None,
        Option(help="Folder for a plain checkpoint: same shapes, zeros where heads were."),
    ] = None
    benchmark: Annotated[
        bool,
        Option(help="Time the full model against the one that is kept.", flags=("--benchmark",)),
    ] = False
    max_drop: Annotated[
        float | None,
        Option(
            help="Instead of fractions: find a number of heads that is confirmed to cost at most "
            "this much of the metric, the bad end of the 95% interval included.",
            at_least=0,
            why="in the unit of the task's metric (0.5 is half a point of accuracy)",
        ),
    ] = None
    fidelity_text: Annotated[
        Data | None,
        Option(
            help="Text without labels on which max_drop also keeps the outputs near to the whole "
            "model's; one sentence a line, not those of calibration."
        ),
    ] = None
    min_fidelity: Annotated[
        float | None,
        Option(
            help="Least fidelity on that text, the lower end of the 95% interval included: mean "
            "cosine of embeddings, or the share of a head's guesses that stay the same.",
            at_least=0,
            at_most=1,
            why="1 is unchanged, 0.95 is usual",
        ),
    ] = None
    even: Annotated[
        bool, Option(help="Remove the same number of heads in every layer.", flags=("--even",))
    ] = False
    standalone: Annotated[
        bool,
        Option(
            help="Refuse to save what transformers cannot open without headscope, by the folder's "
            "modelling file (trust_remote_code).",
            flags=("--standalone",),
        ),
    ] = False
    export: Annotated[
        tuple[str, str | Path] | None,
        Option(
            help="onnx and a folder: the pruned model as one ONNX graph, compared and measured.",
            kind=tuple[str, Path],
        ),
    ] = None
    quantize: Annotated[
        str | None, Option(help="Also export 8-bit weights, measured again.", choices=("int8",))
    ] = None
    limit: Annotated[
        int | None,
        Option(help="So many examples of the data, chosen at random (mlm: the first windows)."),
    ] = None
    calibration_limit: Annotated[
        int,
        Option(
            help="Calibration sentences (mlm: half as many windows), drawn at random.",
            at_least=2,
            why="1024 is usual",
        ),
    ] = CALIBRATION_LIMIT
    pooling: Annotated[str | None, POOLING] = None

    def __post_init__(self) -> None:
        for name in ("methods", "repairs", "fractions", "keep_roles"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(value))
        super().__post_init__()

    @property
    def manual(self) -> bool:
        """Whether heads are removed by hand."""
        return self.heads is not None or bool(self.keep_roles)

    @property
    def method_names(self) -> tuple[str, ...]:
        """Methods, each once; none where heads are removed by hand."""
        if self.manual:
            return ()
        usual = DEFAULT if self.max_drop is None else SEARCHED
        return tuple(dict.fromkeys(self.methods or (usual, "random")))

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
        if self.method_names[:1] == ("surgeon",) and not self.methods:
            return (Repair.surgeon,)
        searched = self.max_drop is not None  # then the best repair is worth its time
        return (Repair.none, Repair.scale, *((Repair.mean,) if searched else ()))

    @property
    def shares(self) -> tuple[float, ...]:
        """Fractions of the curves: 0, step, ... 1, or 0 and those chosen; 0 and 1 of a search."""
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
        methods = (MANUAL,) if self.manual else self.scored
        return tuple((name, kind) for name in methods for kind in self.repair_kinds)

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

    def check(self) -> None:
        """Refuse options that contradict each other, or do not name the one model to keep."""
        if (problem := next(self._problems(), None)) is not None:
            raise InputError(problem)

    def _problems(self) -> Iterator[str]:
        whole_curve = self.step != STEP
        form = None if self.export is None else self.export[0]
        if self.heads is not None and self.keep_roles:
            yield "Give heads or keep_roles, not both."
        if self.manual and (self.methods or self.fractions or whole_curve):
            yield "heads and keep_roles say which heads go; leave out methods, fractions and step."
        if self.fractions and whole_curve:
            yield "step makes a whole curve of fractions; leave out step or fractions."
        check_methods(self.method_names)
        wanting = needs(self.method_names, "roles") + (["keep_roles"] if self.keep_roles else [])
        if self.task == "seq2seq" and wanting and isinstance(self.roles, bool):
            yield (
                f"{wanting[0]} needs to know what the heads do, and for the task seq2seq no model "
                "is classified on the way: give roles, the classify.json that 'headscope classify "
                "MODEL -o DIR' wrote of this model's stacks."
            )
        if self.manual and self.even:
            yield "even says how many heads each layer loses; leave out heads and keep_roles."
        if self.max_drop is not None:
            if math.isinf(self.max_drop):
                yield "max_drop is inf; give a number in the unit of the task's metric."
            if self.limit is not None and self.limit < FEWEST:
                yield (
                    f"limit is {self.limit}, and max_drop needs {FEWEST} or more examples (better "
                    "hundreds) to test on."
                )
            if self.manual or self.fractions or whole_curve:
                yield (
                    "max_drop finds out how many heads can go; leave out fractions, step, heads "
                    "and keep_roles."
                )
            if not self.candidates:
                yield (
                    "Random heads are a control, and no number of them is searched for; name "
                    "another method for max_drop, such as fisher-joint."
                )
        if (self.fidelity_text is None) != (self.min_fidelity is None):
            yield "fidelity_text and min_fidelity go together: give both, or leave out both."
        if self.min_fidelity is not None and self.max_drop is None:
            yield "min_fidelity is a second condition of max_drop; give max_drop too."
        if self.min_fidelity is not None and self.task == "seq2seq":
            yield (
                "fidelity_text is text that an encoder reads, and the task seq2seq prunes the "
                "decoder too; leave out fidelity_text and min_fidelity."
            )
        if self.standalone and not self.save:
            yield "standalone writes a file beside the weights of save; give save a folder too."
        if not -(2**62) <= self.seed < 2**62:
            yield f"The seed {self.seed} is too large; give one of at most 62 bits."
        if form is None and self.quantize is not None:
            yield "quantize needs export: it is the exported graph that it changes."
        if form not in (None, "onnx"):
            yield f"There is no form {form!r} to export to; give onnx and a folder."
        if self.keeps:
            yield from self._problems_of_keeping()

    def _problems_of_keeping(self) -> Iterator[str]:
        """Find, before a long run, what does not name one model or one folder for each form."""
        if not self.candidates:
            yield (
                "Random heads are a control and are never kept; name another method for save, "
                "save_dense, export and benchmark, such as fisher-joint."
            )
        if not self.manual and self.max_drop is None:
            if len(set(self.fractions or ())) != 1:
                yield (
                    "save, save_dense, export and benchmark need one model: give one fraction, "
                    "such as 0.5, or max_drop, or name the heads with heads or keep_roles."
                )
            if self.shares in ((0.0,), (0.0, 1.0)):
                what = "everything" if self.shares[-1] else "nothing"
                yield (
                    f"The fraction {self.shares[-1]:g} leaves no pruned model to keep: it removes "
                    f"{what}."
                )
        folders = [folder.resolve() for _, folder in self.folders]
        if len(set(folders)) < len(folders):
            yield "save, save_dense and export name the same folder; give each its own."
        inside = sorted(str(folder) for folder in folders if set(folder.parents) & set(folders))
        if inside:
            yield (
                f"{', '.join(inside)} lies inside another folder that is to be written; give each "
                "its own."
            )
        output = None if self.state is None else Path(self.state).resolve().parent
        if output is not None and {output, *output.parents} & set(folders):
            yield (
                f"The folder of results {output} is, or lies in, one that a model is saved in; "
                "give each its own."
            )

    def expected(self) -> dict[str, float]:
        """Pruning prices its steps itself, once it runs."""
        at_each = len(self.scored) * len(self.repair_kinds)
        at_each += self.draws * ("random" in self.method_names)
        return {SECONDS: 1.0 + 0.3 * len(self.shares) * at_each + 70.0 * self.tables}
