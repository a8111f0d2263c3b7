"""The table of all commands: one row each, read by Python, the command line, reports and the docs.

Two kinds of command share it. Those that *measure* a model have a class of options and a class of
results, and are functions in Python too: ``headscope.classify``. The others (``serve``, ``export``,
``compare``, ...) are for the command line only, plain functions of typer.

A row names modules and classes as text: nothing is imported until a row is asked for its function,
its options, its result or its view. The rows stand in the order in which ``headscope report`` runs
them as its *sections*; commands that no report runs come last.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

# Headings under which the help of the command line groups commands
LOOK = "Look at heads"
CHANGE = "Change the model"
PUBLISH = "Publish and compare"


@dataclass(frozen=True)
class Command:
    """One row of the table: the name of a command, and where its code is found."""

    name: str
    heading: str  # One of the three above
    module: str  # Has a function of the command's name
    #: Name of the class of its options, in ``module``; empty if it measures nothing.
    options_class: str = ""
    #: Name of the class of its result, in ``module``, or ``module:class`` if it is elsewhere; empty
    #: if it writes no JSON.
    result_class: str = ""
    view_module: str = ""  # Has a ``VIEW``, which draws the result
    in_report: bool = False  # Whether it is a section of a report
    uses: tuple[str, ...] = ()  # Names of the sections whose results it reads in a report
    room: int = 4_000_000  # Bytes that its folder of results may take
    #: Examples at the end of its help; a command that measures has them in its class of options.
    examples: tuple[str, ...] = ()

    @property
    def measures(self) -> bool:
        """Whether it measures a model, so that Python has a function of its name too."""
        return bool(self.options_class)

    @property
    def function(self) -> Any:
        """Its function: ``function(model, options=...)`` if it measures, else one for typer."""
        return getattr(importlib.import_module(self.module), self.name)

    @property
    def options(self) -> Any:
        """The class of its options."""
        return getattr(importlib.import_module(self.module), self.options_class)

    @property
    def result(self) -> type:
        """The class of its result."""
        module, _, name = self.result_class.rpartition(":")
        result_class: type = getattr(importlib.import_module(module or self.module), name)
        return result_class

    @property
    def state_file(self) -> str:
        """The name of the file in which a long run saves its sums, to be resumed from there."""
        return f".{self.name}.state.safetensors"

    @property
    def view(self) -> Any:
        """What draws its result: a :class:`headscope.show.view.View`."""
        return importlib.import_module(self.view_module).VIEW


def _analysis(name: str, *, heading: str = LOOK, uses: tuple[str, ...] = ()) -> Command:
    """Return the row of a package of ``analyses``, whose names follow from the command's.

    ``rank`` has RankOptions and RankResult in headscope.analyses.rank.
    """
    package = f"headscope.analyses.{name}"
    return Command(
        name,
        heading,
        package,
        options_class=f"{name.title()}Options",
        result_class=f"{name.title()}Result",
        view_module=f"{package}.view",
        in_report=True,
        uses=uses,
    )


_ROWS = (
    Command(
        "validate",
        LOOK,
        "headscope.analyses.validate",
        options_class="ValidateOptions",
        result_class="ValidationResult",
        view_module="headscope.analyses.validate.view",
        in_report=True,
    ),
    _analysis("explain"),
    _analysis("classify"),
    _analysis("attribute", uses=("classify",)),
    _analysis("rank"),
    _analysis("spectrum", uses=("classify",)),
    _analysis("depth"),
    _analysis("flow"),
    _analysis("transfer", heading=CHANGE),
    _analysis("linear"),
    _analysis("symmetric"),
    Command(
        "prune",
        CHANGE,
        "headscope.pruning",
        options_class="PruneOptions",
        result_class="PruneResult",
        view_module="headscope.pruning.view",
        in_report=True,
        uses=("classify",),
    ),
    Command(
        "insights",
        PUBLISH,
        "headscope.reports.options",
        options_class="InsightsOptions",
        result_class="InsightsResult",
        view_module="headscope.reports.claims.view",
        in_report=True,
        uses=(
            "classify",
            "rank",
            "spectrum",
            "depth",
            "flow",
            "transfer",
            "linear",
            "symmetric",
            "prune",
        ),
    ),
    Command(
        "shrink",
        CHANGE,
        "headscope.shrinking",
        options_class="ShrinkOptions",
        result_class="ShrinkResult",
        view_module="headscope.shrinking.view",
    ),
    Command(
        "report",
        PUBLISH,
        "headscope.reports.options",
        options_class="ReportOptions",
        result_class="ReportResult",
        room=10_000_000,
    ),
    Command(
        "serve",
        LOOK,
        "headscope.cli.serve",
        examples=(
            "headscope serve demo",
            "headscope serve ./my-bert --roles out/classify.json --no-browser",
        ),
    ),
    Command(
        "export",
        CHANGE,
        "headscope.cli.export",
        examples=(
            "headscope export ./small onnx",
            "headscope export ./small openvino --precision int8 --text sentences.txt",
        ),
    ),
    Command(
        "compare",
        PUBLISH,
        "headscope.cli.compare",
        result_class="headscope.reports.result:CompareResult",
        examples=(
            "headscope compare reports/bert-base reports/bert-large reports/minilm",
            "headscope compare reports/* -o out/",
            "headscope compare old new newer --fail-on role-lost,metric-drop=2%",
            "headscope compare a/report.json b/report.json --format csv",
        ),
    ),
    Command(
        "diff",
        PUBLISH,
        "headscope.cli.compare",
        result_class="headscope.reports.result:DiffResult",
        examples=(
            "headscope diff old/classify.json new/classify.json",
            "headscope diff reports/demo out --fail-on role-changed,metric-drop=2%",
            "headscope diff reports/demo out --format md",
        ),
    ),
    Command(
        "list",
        PUBLISH,
        "headscope.cli.lookup",
        result_class="headscope.reports.result:ListResult",
        examples=(
            "headscope list",
            "headscope list methods",
            "headscope list families --format csv",
        ),
    ),
    Command(
        "schema",
        PUBLISH,
        "headscope.cli.lookup",
        examples=("headscope schema classify", "headscope schema report"),
    ),
    Command("config", PUBLISH, "headscope.cli.config"),
)

COMMANDS = {row.name: row for row in _ROWS}
#: The sections of a report, in the order in which it runs them.
SECTIONS = tuple(row.name for row in _ROWS if row.in_report)
