"""The options of ``headscope insights`` and ``headscope report``, and both functions of Python.

Both run *sections*, each one command on the same model, so they share :class:`ClaimsOptions`, with
the settings of the sections. A field ``Annotated[type, Option(...)]`` is one option; ``Usual`` is
one that the short help shows too; ``$name`` in a message becomes the keyword or the flag.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from headscope.commands import COMMANDS, SECTIONS
from headscope.core.errors import HeadscopeError, WrongOptionError, nearest
from headscope.core.options import Option, OptionError, Usual, names
from headscope.core.progress import ByTheClock
from headscope.reports.result import InsightsResult, ReportResult
from headscope.session.entry import entry
from headscope.session.options import POOLING, TASKS, ModelOptions, RunOptions

if TYPE_CHECKING:
    from headscope.reports.claims.thresholds import InsightThresholds
    from headscope.reports.registry import Sections
else:
    # Signatures are read at run time, where any type does: the classes' modules are not loaded.
    Sections = InsightThresholds = object

Settings = Mapping[str, Mapping[str, Any]]  # The arguments of sections, by section
# How long these take on the demo, beside the steps of sections
_SECONDS_OF_OWN_TEST = 5.0
_SECONDS_OF_FILES = 8.0
_THRESHOLDS = "What decides the claims; the documented ones by default."


@dataclass(frozen=True, kw_only=True)
class SectionFlags:
    """Flags that set an option of all sections at once."""

    treebank: Annotated[
        Path | None,
        Usual(help="CoNLL-U file that heads are classified on. Default: the built-in sample."),
    ] = None
    text: Annotated[
        Path | None,
        Usual(help="Plain text for all sections; beside a treebank for those without trees."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ReportFlags(SectionFlags):
    """Flags of ``report`` alone: besides those, where it is written and how much it reads."""

    output: Annotated[
        Path | None,
        Usual(
            help="Folder of the report. Default: reports/MODEL.",
            flags=("--output", "-o"),
            folder=True,
        ),
    ] = None
    limit: Annotated[
        int | None,
        Option(help="Only the first sentences; of claim 2's task so many examples.", at_least=1),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ClaimsOptions(RunOptions):
    """What ``insights`` and ``report`` take: how sections are set, and how claim 2 is tested."""

    task: Annotated[
        str,
        Usual(help="Measures the model with only its labelled heads (claim 2).", choices=TASKS),
    ] = "fidelity"
    data: Annotated[
        str | Path | None,
        Usual(help="What that task is measured on. Default: the built-in sample."),
    ] = None
    draws: Annotated[
        int,
        Option(
            help="Random sets of heads that they are compared with, 39 or more.",
            at_least=39,
            why="so that one random set may do as well as the labelled heads and still be the one "
            "in twenty that chance allows",
        ),
    ] = 39
    settings: Annotated[
        Settings | None,
        Option(
            help='Arguments by section, where they are not the defaults: {"rank": {"limit": 100}}.',
            python_only=True,
        ),
    ] = None
    pooling: Annotated[str | None, POOLING] = None

    def check(self) -> None:
        """Refuse values that a section's options do not take, before any section is measured."""
        settings = self.settings or {}
        for name in SECTIONS:
            if name in settings:
                self.options_of(name)  # raises where a value is wrong

    def options_of(self, name: str) -> ModelOptions | None:
        """Return the options of a section.

        None if ``settings`` name an option that the section does not have: the run itself says so.
        """
        kind: type[ModelOptions] = COMMANDS[name].options
        settings = (self.settings or {}).get(name, {})
        try:
            return kind(**{**kind.report_defaults(), **settings})
        except TypeError:  # an unknown option
            return None
        except HeadscopeError as error:
            raise WrongOptionError(f"[{name}] {error}") from None


@dataclass(frozen=True, kw_only=True)
class InsightsOptions(ClaimsOptions):
    """Test the claims of the literature on this model: measured, control, verdict, rule.

    The tables [classify], [rank], [spectrum], [depth], [flow], [transfer], [linear] and [symmetric]
    of a config file, or the settings in Python, set how each is measured.

    Examples
    --------
    >>> import headscope
    >>> from headscope.reports.registry import Sections
    >>> ranks = Sections(rank=headscope.rank("demo"))
    >>> result = headscope.insights("demo", sections=ranks)
    >>> result[3].verdict, result[4].verdict, result[5].verdict
    ('holds', 'not applicable', 'not measured yet')
    """

    flags: ClassVar[type | None] = SectionFlags
    examples: ClassVar[tuple[str, ...]] = (
        "headscope insights demo",
        "headscope insights ./my-bert --treebank en_ewt-ud-test.conllu -o out/",
        "headscope insights demo --skip transfer",
        "headscope insights ./my-bert --task classification --data dev.tsv",
        "headscope insights demo --threshold metric_loss=0.02",
    )

    thresholds: Annotated[
        InsightThresholds | None,
        Option(
            help="Change what decides a claim, e.g. 'most=0.6'; repeatable. See docs/insights.md.",
            python_help=_THRESHOLDS,
            flags=("--threshold",),
            metavar="NAME=VALUE",
            kind=list[str],
            thresholds="InsightThresholds",
            example="most=0.6",
        ),
    ] = None
    skip: Annotated[
        Sequence[str],
        Usual(help="Sections not to run, such as transfer.", metavar="NAME,NAME,...", read=names),
    ] = ()
    sections: Annotated[
        Sections | None,
        Option(
            help="What has been measured already with these settings. A claim whose section it "
            "lacks is not measured; without it all of them are run but those of skip.",
            python_only=True,
        ),
    ] = None
    budget: Annotated[
        float,
        Usual(
            help="Transfer, which comes last, gets what the other sections leave of so many "
            "seconds; they are not cut short.",
            above=0,
            below=inf,
        ),
    ] = 300.0
    limit: Annotated[
        int | None,
        Option(
            help="Only the first sentences; of a task so many examples, chosen at random.",
            python_help="So many of the examples that the task is measured on, chosen at random. "
            "The sections have limits of their own in settings.",
            at_least=1,
        ),
    ] = None

    def check(self) -> None:
        """Refuse to skip sections that insights does not run."""
        super().check()
        known = [name for name in COMMANDS["insights"].uses if name != "prune"]
        for name in self.skip:
            if name not in known:
                hint = nearest(name, known, "insights runs")
                raise WrongOptionError(f"There is no section {name!r} to skip; {hint}")

    def step_seconds(self) -> dict[str, float]:
        """Return the steps: the sections', then the claims' own test, and transfer's last.

        Only that test is left if the sections were measured before.
        """
        own_test = {"insights": _SECONDS_OF_OWN_TEST}
        if self.sections is not None:
            return {"random heads": _SECONDS_OF_OWN_TEST}
        later = ("prune", "transfer")  # prune does not run here
        steps: dict[str, float] = {}
        for name in COMMANDS["insights"].uses:
            if name not in (*later, *self.skip):
                steps |= _steps_of_section(name, self.options_of(name))
        if "classify" not in self.skip:
            steps |= own_test
        if "transfer" not in self.skip:
            tuning = _steps_of_section("transfer", self.options_of("transfer"))
            # It gets what the sections before it leave, and no more than its own budget.
            steps |= {
                step: ByTheClock(min(seconds, self.budget)) for step, seconds in tuning.items()
            }
        return steps


@dataclass(frozen=True, kw_only=True)
class ReportOptions(ClaimsOptions):
    """Write one page about a model: claims, roles, ranks, spectra, depth and pruning.

    Sections: validate, explain, classify, attribute, rank, spectrum, depth, flow, transfer, linear,
    symmetric, prune, insights. Each is set by its table of a config file, or of settings in Python.

    Examples
    --------
    >>> import headscope
    >>> quick = {"classify": {"limit": 32, "control": False, "ablate": False}}
    >>> result = headscope.report("demo", only=["classify"], settings=quick)
    >>> list(result.sections), len(result.samples)
    (['classify'], 2)
    """

    flags: ClassVar[type | None] = ReportFlags
    examples: ClassVar[tuple[str, ...]] = (
        "headscope report demo -o reports/demo",
        "headscope report ./my-bert --config quick -o reports/my-bert",
        'headscope report demo --sentence "The cat sat on the mat." -o out/',
        "headscope report demo --only classify,insights -o reports/demo",
    )

    only: Annotated[
        Sequence[str],
        Usual(help="Only these sections.", metavar="NAME,NAME,...", read=names),
    ] = ()
    skip: Annotated[
        Sequence[str],
        Usual(help="All sections but these.", metavar="NAME,NAME,...", read=names),
    ] = ()
    thresholds: Annotated[InsightThresholds | None, Option(help=_THRESHOLDS, python_only=True)] = (
        None
    )
    sentences: Annotated[
        Sequence[str] | None,
        Usual(
            help="Shown on the page with every head's pattern; repeatable. Default: two short ones "
            "of the built-in sample.",
            metavar="SENTENCE",
            flags=("--sentence",),
        ),
    ] = None

    def check(self) -> None:
        """Refuse unknown sections, and a report without any section."""
        super().check()
        for name in (*self.only, *self.skip):
            if name not in SECTIONS:
                hint = nearest(name, SECTIONS, "choose from")
                raise WrongOptionError(f"There is no section {name!r}; {hint}")
        if not self.section_names():
            raise OptionError("No section is left to run; give fewer to $skip.")

    def section_names(self) -> list[str]:
        """Return the sections that the report runs, in their order."""
        chosen = self.only or SECTIONS
        return [name for name in SECTIONS if name in chosen and name not in self.skip]

    def step_seconds(self) -> dict[str, float]:
        """Return the steps of every section, and writing the files, with their usual seconds."""
        steps: dict[str, float] = {}
        for name, options in self._options_of_sections().items():
            if name == "insights":  # the other sections are its own, so its own test is left
                steps["insights"] = _SECONDS_OF_OWN_TEST
            else:
                steps |= _steps_of_section(name, options)
        return {**steps, "files": _SECONDS_OF_FILES}

    def needs(self, weights: int) -> tuple[float, dict[str, float]]:
        """Return the bytes that the most demanding section holds beside a model of such weights.

        Sections run one after the other. The second value has what is needed if that section is
        skipped, by how a user skips it.
        """
        bytes_by_section = {
            name: options.needs(weights)[0] for name, options in self._options_of_sections().items()
        }
        if not bytes_by_section:
            return 0.0, {}
        largest = max(bytes_by_section, key=lambda name: (bytes_by_section[name], name))
        most = bytes_by_section.pop(largest)
        rest = max(bytes_by_section.values(), default=0.0)
        return most, {f"{largest} (--skip {largest})": rest}

    def _options_of_sections(self) -> dict[str, ModelOptions]:
        """Return the options of every section that the report runs."""
        options_by_section = {}
        for name in self.section_names():
            options = self.options_of(name)
            if options is not None:
                options_by_section[name] = options
        return options_by_section


def _steps_of_section(name: str, options: ModelOptions | None) -> dict[str, float]:
    """Return the steps of a section, as "classify, model", with the seconds on the demo."""
    steps = {} if options is None else options.step_seconds()
    if not steps:
        return {name: 1.0}
    return {f"{name}, {step}": seconds for step, seconds in steps.items()}


insights = entry(InsightsOptions, InsightsResult, "headscope.reports.claims.run")
report = entry(ReportOptions, ReportResult, "headscope.reports.run")
