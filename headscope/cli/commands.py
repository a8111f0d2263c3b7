"""THE list of commands that measure a model: what each can be asked, and what is special to it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import typer

import headscope
from headscope.analyses.classify.options import ClassifyOptions
from headscope.analyses.depth.options import DepthFlags, DepthOptions
from headscope.analyses.explain.options import ExplainOptions
from headscope.analyses.flow.options import FlowOptions
from headscope.analyses.linear.options import LinearOptions
from headscope.analyses.rank.options import RankOptions
from headscope.analyses.spectrum.options import SpectrumOptions
from headscope.analyses.symmetric.options import SymmetricOptions
from headscope.analyses.transfer.options import TransferOptions
from headscope.analyses.validate.options import ValidateOptions
from headscope.cli.command import Call
from headscope.cli.made import section_settings
from headscope.cli.output import print_note
from headscope.cli.report import run_report
from headscope.pruning.options import PruneOptions
from headscope.reports.options import InsightsOptions, ReportFlags, ReportOptions, SectionFlags
from headscope.reports.registry import SECTIONS, section_of
from headscope.session.options import ModelOptions


class Made(NamedTuple):
    """A command: its options, what its run does beyond the usual, and flags that only it has."""

    options: type[ModelOptions]
    body: Callable[[Call], Any] = Call.run
    flags: type | None = None


def _depth(call: Call) -> None:
    call.run(log=call.values["log"])


def _spectrum(call: Call) -> None:
    call.run({**call.arguments(), "folder": call.values["output"]})


def _validate(call: Call) -> None:
    result = call.run()
    if not result.passed:
        print_note(f"validation failed: {'; '.join(result.reasons)}", call.values["quiet"])
        raise typer.Exit(3)


def _insights(call: Call) -> None:
    settings = section_settings(call.context, section_of("insights").uses, call.values)
    announce = functools.partial(print_note, quiet=call.values["quiet"])
    call.run({**call.arguments(), "settings": settings, "announce": announce})


#: By name.
MADE = {
    "classify": Made(ClassifyOptions),
    "depth": Made(DepthOptions, _depth, DepthFlags),
    "explain": Made(ExplainOptions),
    "flow": Made(FlowOptions),
    "insights": Made(InsightsOptions, _insights, SectionFlags),
    "linear": Made(LinearOptions),
    "prune": Made(PruneOptions),
    "rank": Made(RankOptions),
    "report": Made(ReportOptions, run_report, ReportFlags),
    "spectrum": Made(SpectrumOptions, _spectrum),
    "symmetric": Made(SymmetricOptions),
    "transfer": Made(TransferOptions),
    "validate": Made(ValidateOptions, _validate),
}
# Sections of the report that need nothing special.
MADE |= {name: Made(getattr(headscope, name).options) for name in SECTIONS if name not in MADE}
