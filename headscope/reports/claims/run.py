"""How long a run of ``insights`` will take: said beforehand, and how far it has come as a whole."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from headscope.core.errors import InputError, UnsupportedModelError
from headscope.core.serialise import SCHEMA, warnings_of
from headscope.data.corpus import as_corpus, encode_lines, sample_plain
from headscope.models.loaded import LoadedModel
from headscope.reports.claims.finding import Evidence
from headscope.reports.claims.kept_roles import measure_kept_roles, prune_stacks, with_sources
from headscope.reports.claims.scoreboard import scoreboard
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.options import InsightsOptions
from headscope.reports.registry import section_of
from headscope.reports.result import InsightsResult
from headscope.reports.sections import Run, check_settings, run_sections
from headscope.session.opening import Model, open_for_tasks
from headscope.session.progress import SECONDS, Progress, part_of
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid

__all__ = ["Whole", "announcement", "expected_seconds"]


_SENTENCES = 16  # Sentences whose pass is timed.
#: Passes over these that each part takes as long as, by its defaults; measured on the demo model.
#: "insights" are the kept roles of claim 2.
_PASSES = {
    **{"classify": 170, "rank": 30, "spectrum": 65, "depth": 245, "flow": 125, "linear": 125},
    **{"symmetric": 180, "insights": 350, "transfer": 6000},
}


def expected_seconds(loaded: LoadedModel, parts: Sequence[str], budget: float) -> dict[str, float]:
    """Guess the seconds of each part from one pass of the model; transfer keeps to the budget."""
    lines = [] if loaded.tokenizer is None else list(sample_plain())[:_SENTENCES]
    encoded = encode_lines(loaded, lines)
    batch = loaded.pad([ids for ids in encoded if ids is not None] or [[0]])
    seconds = []
    for _ in range(3):  # the first one warms up
        started = time.perf_counter()
        with torch.no_grad():
            loaded.forward(*batch)
        seconds.append(time.perf_counter() - started)
    expected = {name: _PASSES[name] * min(seconds) for name in parts}
    others = sum(value for name, value in expected.items() if name != "transfer")
    if "transfer" in expected:
        expected["transfer"] = min(expected["transfer"], max(budget - others, 1.0))
    return expected


def announcement(expected: Mapping[str, float], budget: float) -> str:
    """Say what will be measured, about how long that takes, and what leaves the longest out."""
    names = ["the roles kept alone" if name == "insights" else name for name in expected]
    text = f"insights measures {', '.join(names)}: about {_minutes(sum(expected.values()))}"
    if "transfer" not in expected:
        return f"{text}."
    return (
        f"{text}, {_minutes(expected['transfer'])} of it transfer, which ends {budget:g} s after "
        "the start (budget). Skip transfer to leave out claims 8 to 10."
    )


def _minutes(seconds: float) -> str:
    return f"{max(seconds, 1):.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


class Whole:
    """Tells beside every part how many seconds the whole run has taken and will take.

    What was expected is priced anew by the pace so far; transfer ends with the budget.
    """

    def __init__(
        self,
        expected: dict[str, float],
        budget: float,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._expected, self._budget, self._progress = expected, budget, progress
        self._clock, self._start = clock, clock()
        self._all, self._done = sum(expected.values()), 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        """Tell of a part ("name, what"), and of the whole."""
        names, name = list(self._expected), what.partition(",")[0]
        if name in names:
            before = sum(self._expected[other] for other in names[: names.index(name)])
            now = before + self._expected[name] * done / max(total, 1)
            self._done = max(self._done, now)  # a part may count several things, one by one
            so_far = self._clock() - self._start
            self._progress(SECONDS, int(so_far), math.ceil(so_far + max(self._left(so_far), 1.0)))
        self._progress(what, done, total)

    def finish(self) -> None:
        """Say that nothing is left."""
        so_far = max(round(self._clock() - self._start), 1)
        self._progress(SECONDS, so_far, so_far)

    def _left(self, so_far: float) -> float:
        trust = 0.05 * self._all  # in what was expected, until as much has been done
        pace = (so_far + trust) / (self._done + trust)
        tuning = min(self._expected.get("transfer", 0.0), self._all - self._done)
        others = pace * (self._all - self._done - tuning)
        return others + min(pace * tuning, max(self._budget - so_far - others, 0.0))


def run(model: Model, options: InsightsOptions) -> InsightsResult:
    """Hold the claims of the source articles against one model."""
    skip, sections, budget = options.skip, options.sections, options.budget
    task, data, limit, seed = options.task, options.data, options.limit, options.seed
    known = [name for name in section_of("insights").uses if name != "prune"]
    for name in skip:
        if name not in known:
            raise InputError(
                f"There is no section {name!r} to skip; insights runs {', '.join(known)}."
            )
    for name, table in (options.settings or {}).items():
        check_settings(name, table)
    started = time.monotonic()
    loaded = open_for_tasks(model, **options.loading)
    loaded.pooling.check()
    validation = require_valid(loaded, options.validate)
    thresholds = options.thresholds or InsightThresholds()
    settings: Mapping[str, Mapping[str, Any]] = options.settings or {}
    tell: Progress = options.tell
    translating = loaded.encoder_decoder and task == "seq2seq"
    last: Run | None = None
    whole: Whole | None = None
    if sections is None:
        if translating:
            settings = with_sources(settings, data)
        names = [name for name in section_of("insights").uses if name not in ("prune", *skip)]
        first = [name for name in names if name != "transfer"]
        parts = [*first, *(["insights"] if "classify" in first else [])]
        parts += ["transfer"] if "transfer" in names else []
        expected = expected_seconds(loaded, parts, budget)
        if options.announce is not None:
            options.announce(announcement(expected, budget))
        tell = whole = Whole(expected, budget - (time.monotonic() - started), tell)
        shared = Run(loaded, settings, seed, options.command, check=options.validate, progress=tell)
        sections = run_sections(first, shared).sections
        last = shared if "transfer" in names else None
        tell = part_of("insights", tell)
    if translating and sections.prune is None:
        sections = dataclasses.replace(
            sections, prune=prune_stacks(loaded, data, limit, seed, tell)
        )
    kept = None
    if sections.classify is not None:
        with contextlib.suppress(UnsupportedModelError):
            kept = measure_kept_roles(
                loaded.only("encoder" if loaded.encoder_decoder else "all"),
                sections.classify,
                task=task,
                data=data,
                draws=options.draws,
                limit=limit,
                seed=seed,
                corpus=as_corpus(settings.get("classify", {}).get("corpus")),
                progress=tell,
            )
    if last is not None:
        left = max(budget - (time.monotonic() - started), 1.0)
        table = settings.get("transfer", {})
        limits = {**settings, "transfer": {**table, "budget": min(left, table.get("budget", left))}}
        tuned = run_sections(["transfer"], dataclasses.replace(last, settings=limits)).sections
        sections = dataclasses.replace(sections, transfer=tuned.transfer)
    if whole is not None:
        whole.finish()
    evidence = Evidence(**sections.sections, kept=kept, stacks=loaded.stacks)
    found = scoreboard(thresholds, evidence)
    return InsightsResult(
        schema=SCHEMA,
        provenance=provenance(
            loaded,
            command=options.command,
            seed=seed,
            warnings=warnings_of(*sections.sections.values()),
        ),
        validation=validation,
        insights=found,
        thresholds=dataclasses.asdict(thresholds),
        kept_roles=kept,
    )
