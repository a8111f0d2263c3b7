"""THE table of commands: one row for each, read by Python, the command line, reports and the docs.

Nothing is imported until a row is asked for its function, its options, its result or its view. The
rows stand in the order in which a report runs them; what no report runs comes last.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

LOOK = "Look at heads"
CHANGE = "Change the model"
PUBLISH = "Publish and compare"


@dataclass(frozen=True)
class Command:
    """A command, and where what belongs to it is found."""

    name: str
    heading: str  # In the help of the command line
    #: The module that has its function, which has the command's name.
    module: str
    #: The class of its options, in the same module; a command without one measures nothing, and its
    #: function is a command of typer.
    options_class: str = ""
    #: The class of its result, in the same module, or ``module:class``; none prints no JSON.
    result_class: str = ""
    #: The module that has its ``VIEW``: how the result looks.
    view_module: str = ""
    in_report: bool = False  # Whether it is a section of a report
    #: Sections of a report whose result it makes use of.
    uses: tuple[str, ...] = ()
    #: Examples at the end of its help, if it measures nothing; else its options have them.
    examples: tuple[str, ...] = ()

    @property
    def measures(self) -> bool:
        """Whether it measures a model, so that Python has a function of its name too."""
        return bool(self.options_class)

    @property
    def function(self) -> Any:
        """Its public function, or the function of typer."""
        return getattr(importlib.import_module(self.module), self.name)

    @property
    def options(self) -> Any:
        """The class of its options."""
        return getattr(importlib.import_module(self.module), self.options_class)

    @property
    def result(self) -> type:
        """The class of its result."""
        module, _, name = self.result_class.rpartition(":")
        kind: type = getattr(importlib.import_module(module or self.module), name)
        return kind

    @property
    def state_file(self) -> str:
        """The name of the file, in its folder of results, that a long run saves its sums in."""
        return f".{self.name}.state.safetensors"

    @property
    def view(self) -> Any:
        """How its result looks: a :class:`headscope.show.view.View`."""
        return importlib.import_module(self.view_module).VIEW


def _analysis(name: str, *, heading: str = LOOK, uses: tuple[str, ...] = ()) -> Command:
    """Return the row of a section of a report that has a package of its own in ``analyses``."""
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
