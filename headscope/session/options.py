"""Options that commands share: how a model is opened, what every run takes, texts and tasks.

:class:`ModelOptions` is the root of every command's class of options. Each class that derives from
it adds what a kind of command takes besides: a certificate, a seed, a state to resume from, a text.
A field ``Annotated[type, Option(...)]`` is one option, with its help and its bounds
(:mod:`headscope.core.options`); ``Usual`` is an option that the short help shows too. Fields below
``_: KW_ONLY`` are keywords alone in Python. ``$name`` in a message becomes the name of the keyword
or of the flag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from headscope.core.options import Declared, Option, OptionError, Usual, options_of
from headscope.core.progress import Progress

if TYPE_CHECKING:
    from headscope.data.corpus import AnyCorpus as AnyCorpus
    from headscope.data.corpus import Corpus

    #: One sentence a line: a file, or lines in memory.
    Text = str | Path | Corpus | Sequence[str]
else:
    # At run time, without :class:`Corpus`: its module needs torch, which a signature must not load.
    Text = str | Path | Sequence[str]
    AnyCorpus = Text | Sequence[tuple[str, str]] | None

DTYPES = ("float64", "float32", "bfloat16", "float16")
TASKS = (
    "fidelity",
    "mlm",
    "lm",
    "lm-accuracy",
    "classification",
    "similarity",
    "retrieval",
    "rerank",
    "token-classification",
    "question-answering",
    "seq2seq",
)
#: Names of options by which a run measures a model of random weights too, which takes memory.
SECOND_MODEL = ("control", "fresh")
STACKS = ("encoder", "decoder", "cross", "all")
MODEL = "Model"  # The heading in the help under which options of loading stand
POOLING = Option(
    help="How states become one embedding. Default: what the model's folder says.",
    choices=("mean", "cls", "max", "weighted"),
    loading=True,
)

WINDOWS = Option(
    help="Read lines of a text that are too long for the model in windows of whole sentences; "
    "else they are left out.",
    flags=("--windows",),
)


def _language(text: str, example: str) -> Option:
    """Return the option for the language of the source, or of the target."""
    return Option(
        help=f"Code of the {text}'s language, such as {example}, for a model of several "
        "languages. Default: what its files say.",
        metavar="CODE",
        loading=True,
        panel=MODEL,
    )


#: Of models such as NLLB and mBART.
SOURCE_LANGUAGE = _language("source", "eng_Latn")
TARGET_LANGUAGE = _language("target", "fra_Latn")
STACK = Option(
    help="Attention of an encoder-decoder model. Default: all that the input runs.",
    choices=STACKS,
)
#: Options of most commands, which come after those of the command itself, in this order.
_SHARED = (
    "pooling",
    "validate",
    "state",
    "resume",
    "seed",
    "dtype",
    "device",
    "revision",
    "source_language",
    "target_language",
    "task_head",
    "progress",
    "command",
)


def ordered(kind: type) -> dict[str, Declared]:
    """Return the options of a class by name: first the command's own, then :data:`_SHARED`."""
    declared = options_of(kind)
    specific = [name for name in declared if name not in _SHARED]
    return {name: declared[name] for name in (*specific, *_SHARED) if name in declared}


class Held(NamedTuple):
    """Memory that a run holds beside its model, as measured: a share of the weights, and the rest.

    ``Held(0.6, 250)`` is 0.6 times the bytes of the model's weights, and 250 MiB.
    """

    weights: float  # As a multiple of the weights' bytes
    mib: float  # Whatever the model


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What every command on a model takes."""

    # Facts about the command, which its own class overrides
    examples: ClassVar[tuple[str, ...]] = ()  # At the end of the command's help
    flags: ClassVar[type | None] = None  # A dataclass of options that only the command line has
    in_report: ClassVar[dict[str, Any]] = {}  # Defaults that differ in a report
    #: Parts that a report leaves out of a model with many heads, unless they are asked for: by
    #: the names of their switches, what they measure.
    too_long_in_report: ClassVar[dict[str, str]] = {}
    #: Memory that a run holds beside its model, without a second one (:data:`SECOND_MODEL`).
    held: ClassVar[Held] = Held(0.6, 250.0)
    #: How long steps take, in seconds on the demo: which share of a run is left is told by these.
    usual_seconds: ClassVar[Mapping[str, float]] = {}
    #: Finds the model from the flags, if the command line may leave it out.
    default_model: ClassVar[Callable[[Mapping[str, Any]], str] | None] = None
    #: Whether a report computes this section in the device's widest type, whatever the others use.
    widest_dtype: ClassVar[bool] = False

    dtype: Annotated[
        str | None,
        Option(
            help="Compute in this type, whatever the checkpoint stores.",
            choices=DTYPES,
            loading=True,
            panel=MODEL,
        ),
    ] = "float32"
    device: Annotated[
        str,
        Option(
            help="Where to compute; auto: cuda, else cpu.",
            choices=("auto", "cpu", "cuda", "mps"),
            free_in_python=True,
            loading=True,
            panel=MODEL,
        ),
    ] = "auto"
    revision: Annotated[
        str | None,
        Option(help="Branch, tag or commit of a hub id.", loading=True, panel=MODEL),
    ] = None
    source_language: Annotated[str | None, SOURCE_LANGUAGE] = None
    target_language: Annotated[str | None, TARGET_LANGUAGE] = None
    pooling: Annotated[
        str | None,
        Option(help=POOLING.help, choices=POOLING.choices, loading=True, python_only=True),
    ] = None
    task_head: Annotated[
        str | None,
        Option(
            help="The task head to keep, as headscope.load takes it.",
            loading=True,
            python_only=True,
        ),
    ] = None
    command: Annotated[str, Option(help="Recorded in the result.", python_only=True)] = ""

    def __post_init__(self) -> None:
        for option in options_of(type(self)).values():
            value = getattr(self, option.name)
            if option.takes_several and value is not None:
                # one stands for a list of one; a list would not be frozen
                is_one = isinstance(value, str | Path | int | float)
                value = (value,) if is_one else tuple(value)
                object.__setattr__(self, option.name, value)
            option.check(value)
        self.check()

    def check(self) -> None:
        """Refuse options that do not fit together; a command's own class overrides this."""

    def step_names(self) -> tuple[str, ...]:
        """Return the names of the steps under which the run reports progress, in their order."""
        return ()

    def step_seconds(self) -> dict[str, float]:
        """Return the names of the steps, each with the seconds that it takes on the demo."""
        return {name: self.usual_seconds.get(name, 1.0) for name in self.step_names()}

    @classmethod
    def report_defaults(cls) -> dict[str, Any]:
        """Return the defaults that a report has in place of the class's own."""
        return cls.in_report

    def needs(self, weights: int) -> tuple[float, dict[str, float]]:
        """Estimate the bytes that the run holds beside its model.

        ``weights`` are the bytes of the model's weights. The second value has the bytes without a
        second model, by the option that leaves it out: {"control (--no-control)": 3e8}.
        """
        without_second = self.held.weights * weights + self.held.mib * 2**20
        second_models = [name for name in SECOND_MODEL if getattr(self, name, False)]
        without = {f"{name} (--no-{name})": without_second for name in second_models}
        return without_second + len(second_models) * weights, without

    @property
    def loading(self) -> dict[str, Any]:
        """The arguments of :func:`~headscope.session.opening.open_model`: options that are set."""
        arguments: dict[str, Any] = {"needs": self.needs}
        for name, option in options_of(type(self)).items():
            value = getattr(self, name)
            if option.marker.loading and value is not None:
                arguments[name] = value
        return arguments


@dataclass(frozen=True, kw_only=True)
class CertifiedOptions(ModelOptions):
    """What commands take that first prove our attention equal to the model's."""

    validate: Annotated[
        bool,
        Option(
            help="Skip the certificate; the result records it.",
            python_help="Refuse a model on which our attention is not the model's; else recorded.",
            flags=("--no-validate",),
        ),
    ] = True


@dataclass(frozen=True, kw_only=True)
class RunOptions(CertifiedOptions):
    """What commands take that draw at random and report their progress."""

    seed: Annotated[
        int,
        Option(
            help="For everything that is drawn at random.",
            at_least=0,
            at_most=2**63 - 1,
            why="as a seed has 64 bits",
        ),
    ] = 0
    progress: Annotated[
        Progress | None, Option(help='Called with ("what", done, total).', python_only=True)
    ] = None

    def tell(self, step: str, done: int, total: int) -> None:
        """Report that ``done`` of ``total`` of a step are done, to whoever listens."""
        if self.progress is not None:
            self.progress(step, done, total)


@dataclass(frozen=True, kw_only=True)
class ResumableOptions(RunOptions):
    """What commands take whose runs can be interrupted and resumed."""

    state: Annotated[
        str | Path | None,
        Option(help="File in which a long run saves its sums.", python_only=True),
    ] = None
    resume: Annotated[
        bool,
        Option(
            help="Go on from an interrupted run in the folder of -o. Without it such a folder is "
            "refused.",
            python_help="Go on from what state holds.",
            flags=("--resume",),
        ),
    ] = False


@dataclass(frozen=True)
class EffectOptions(RunOptions):
    """What commands take that change heads and measure the effect, on a text and perhaps a task."""

    text: Annotated[
        Text | None, Usual(help="One sentence a line. Default: the built-in sample.")
    ] = None
    _: KW_ONLY
    sentences: Annotated[
        int, Usual(help="Lines to read, spread evenly over the text.", at_least=1)
    ] = 64
    task: Annotated[
        str | None,
        Usual(help="Measure changed models by this task too; takes longer.", choices=TASKS),
    ] = None
    data: Annotated[str | Path | None, Usual(help="What the task is measured on.")] = None
    limit: Annotated[
        int | None,
        Usual(
            help="Only the first lines of the text, and so many examples of the task, chosen at "
            "random.",
            at_least=1,
        ),
    ] = None
    pooling: Annotated[str | None, POOLING] = None

    def check(self) -> None:
        """Refuse data without a task."""
        if self.task is None and self.data is not None:
            raise OptionError("$data is what a task is measured on; name the $task too.")


@dataclass(frozen=True)
class CorpusFlags:
    """The flags ``--treebank`` and ``--text`` of an option ``corpus``, of which one may be set."""

    treebank: Annotated[
        Path | None, Usual(help="CoNLL-U file with gold trees. Default: the built-in sample.")
    ] = None
    text: Annotated[
        Path | None,
        Usual(
            help="Plain text, one sentence a line: nothing that needs trees then. For an "
            "encoder-decoder model also a table of source and target (.tsv, .csv, .jsonl)."
        ),
    ] = None

    def value(self) -> Any:
        """Open the file that was named."""
        from headscope.data.corpus import open_text, open_treebank

        if self.treebank is not None:
            return open_treebank(self.treebank)
        return None if self.text is None else open_text(self.text)
