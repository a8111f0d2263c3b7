"""Open and check the model that ``headscope serve`` answers for, and make its page.

The page is the HTML report of two commands, ``validate`` (that our attention equals the model's)
and ``classify`` (the roles of heads), with a form on top of it to ask questions.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import headscope
from headscope.core.errors import InputError
from headscope.core.progress import Progress
from headscope.core.safe_text import visible
from headscope.live.answers import Answers
from headscope.live.texts import fields_of
from headscope.reports.page import LivePage, report_html
from headscope.reports.reading import read_results
from headscope.reports.result import ReportResult
from headscope.session.opening import open_for_tasks


def page_and_answers(
    model: str,
    roles: Path | None,
    *,
    seed: int,
    command: str,
    progress: Progress | None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> tuple[str, Answers]:
    """Open and check a model; return the page about it and what answers the page's questions.

    ``roles`` is a file or folder with the result of ``classify``; without it, the heads are
    classified on the built-in sample. Raises InputError if that result is of another model.
    """
    # Open the model, and read the saved roles of its heads.
    loaded = open_for_tasks(model, source_language=source_language, target_language=target_language)
    answers = Answers(loaded, seed=seed)
    saved = None if roles is None else read_results(roles)
    if saved is not None and saved.classify is None:
        raise InputError(f"{visible(roles)} holds no result of headscope classify.")

    # Prove that the re-run equals the model, and classify its heads if need be.
    only = ["validate"] if saved else ["validate", "classify"]
    settings = {"classify": {"control": False, "ablate": False}}
    report: ReportResult = headscope.report(
        loaded, only=only, settings=settings, seed=seed, command=command, progress=progress
    )
    if report.validate is None or not report.validate.passed:
        why = "" if report.validate is None else report.validate.refusal
        raise InputError(f"{loaded.name} fails validation, so nothing is shown: {why}.")

    # Put the saved roles into the report, if they are of the same weights.
    if saved is not None and saved.classify is not None:
        classified_sha256 = saved.classify.provenance["model"].get("weights_sha256")
        opened_sha256 = report.provenance["model"]["weights_sha256"]
        if classified_sha256 != opened_sha256:
            raise InputError(
                f"{visible(roles)} is of other weights ({visible(classified_sha256)[:12]}) than "
                f"{loaded.name} ({visible(opened_sha256)[:12]}); classify this model, or leave "
                "--roles out."
            )
        report = dataclasses.replace(report, classify=saved.classify)
    samples = [sample.text for sample in report.samples]
    live = LivePage(answers.heads, *fields_of(answers.model, samples))
    return report_html(report, live=live), answers
