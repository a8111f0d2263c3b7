"""``headscope report``: the sections of one run, on one model that is loaded and validated once.

The function behind a section has its name: ``headscope.NAME``. Its parameters are the section's
settings, and its class of options says what a report has to know of it: ``report_defaults()`` the
settings that differ in a report, ``widest_dtype`` that it computes in the device's widest type,
whatever the others use. Results of other sections come in through the parameters ``roles`` (what
classify found) and ``sections`` (everything).
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscope.analyses.explain.run import read_sentence
from headscope.commands import COMMANDS, SECTIONS
from headscope.core.errors import CheckFailedError, InputError, UnsupportedModelError
from headscope.core.heads import head_name
from headscope.core.memory import give_back
from headscope.core.options import ThresholdSet, options_of
from headscope.core.progress import Progress, part_of, silent
from headscope.core.serialise import SCHEMA, warnings_of
from headscope.data.pieces import readable_pieces
from headscope.models.certificate.certificate import validate_model
from headscope.models.load.loading import load
from headscope.models.run.devices import widest_dtype
from headscope.models.run.loaded import LoadedModel, unchanging
from headscope.models.run.recording import Probe, run_ours
from headscope.reports.claims.thresholds import InsightThresholds
from headscope.reports.options import ReportOptions
from headscope.reports.registry import Sections
from headscope.reports.result import ReportResult, SamplePatterns
from headscope.session.opening import Model, need_tokenizer, open_for_tasks
from headscope.session.options import ModelOptions
from headscope.session.provenance import provenance
from headscope.session.texts import handy_sentences

#: Parameters that are no settings: a run of sections decides them, or they name or make files.
_NO_SETTINGS = {
    "model",
    "validate",
    "progress",
    "command",
    "settings",
    "sections",
    "state",
    "resume",
    "folder",
    "save",
}
#: A model's name or folder, and with what options it is opened.
Source = tuple[str, Mapping[str, Any]]


def _plain(value: Any) -> Any:
    """Turn an argument into what JSON can hold, files by their names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return str(value.name) if hasattr(value, "sha256") else dataclasses.asdict(value)  # type: ignore[attr-defined]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)


@dataclass(frozen=True)
class Run:
    """What the sections of one run share."""

    loaded: LoadedModel  # The model of all sections.
    #: Arguments by section, where they are not the defaults.
    settings: Mapping[str, Mapping[str, Any]]
    seed: int  # Of every section that is not given another.
    command: str  # Recorded in the results.
    check: bool = True  # Whether the model must be validated.
    progress: Progress = silent  # Told ("section, what", done, total).
    source: Source | None = None  # None for a model that was handed over in memory

    def __post_init__(self) -> None:
        for name, table in self.settings.items():
            check_settings(name, table)

    def arguments(self, name: str) -> dict[str, Any]:
        """Return the arguments of a section that are not its function's defaults."""
        seeded = {"seed": self.seed} if "seed" in _parameters(name) else {}
        return {**seeded, **_options(name).report_defaults(), **self.settings.get(name, {})}

    def changed(self, name: str) -> dict[str, Any]:
        """Return the arguments that differ from what a report does by default, as plain values."""
        defaults: dict[str, Any] = {key: p.default for key, p in _parameters(name).items()}
        defaults |= _options(name).report_defaults()
        changed: dict[str, Any] = {}
        for key, value in self.arguments(name).items():
            plain = _plain(value)
            usual = _plain(defaults[key])
            if isinstance(value, ThresholdSet):
                usual = _plain(type(value)())
                plain = {k: v for k, v in plain.items() if v != usual[k]} or usual
            changed |= {key: plain} if plain != usual else {}
        return changed


@dataclass(frozen=True)
class SectionResults:
    """What a run measured."""

    sections: Sections  # The results.
    #: Sections that this model does not allow, or whose own check failed, and why.
    left_out: dict[str, str]
    failed: tuple[str, ...]  # Those of them whose own check failed


def run_sections(names: Iterable[str], run: Run) -> SectionResults:
    """Run sections in the order given; what they have in common is computed once."""
    results: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    failed: list[str] = []
    with unchanging(run.loaded.network):
        for name in names:
            shared = {
                "validate": run.check,
                "progress": part_of(name, run.progress),
                "dtype": widest_dtype(run.loaded.device) if _options(name).widest_dtype else None,
                "roles": results.get("classify"),
                "sections": Sections(**results),
                "settings": run.settings,
            }
            takes = _parameters(name)
            shared = {key: v for key, v in shared.items() if key in takes and v is not None}
            arguments = {**shared, **run.arguments(name), "command": run.command}
            try:
                with _model_in(arguments.get("dtype"), run) as (model, loading):
                    results[name] = COMMANDS[name].function(model, **loading, **arguments)
            except (UnsupportedModelError, CheckFailedError) as error:
                left_out[name] = str(error)
                failed += [name] * isinstance(error, CheckFailedError)
            give_back()  # what one section has freed, before the next one grows
    return SectionResults(Sections(**results), left_out, tuple(failed))


def source_of(model: Model, loaded: LoadedModel, options: ModelOptions) -> Source | None:
    """Return how a model that was opened by its name can be opened again in another type."""
    if not isinstance(model, str | Path):
        return None
    decided = ("dtype", "needs")  # by whoever opens it
    loading = {key: value for key, value in options.loading.items() if key not in decided}
    return str(model), {**loading, "task_head": loaded.task_head}


@contextmanager
def _model_in(dtype: str | None, run: Run) -> Iterator[tuple[Model, Mapping[str, Any]]]:
    """Give a section the model, or its name and how to open it where it computes in another type.

    The weights of the model are freed meanwhile and read again, so that it is in memory once.
    """
    if dtype in (None, run.loaded.dtype) or run.source is None:
        yield run.loaded, {}
        return
    name, options = run.source
    weights = tuple(run.loaded.network.parameters())
    for weight in weights:
        weight.data = weight.data.new_empty(0)
    try:
        yield name, options
    finally:
        again = load(name, dtype=run.loaded.dtype, **options)
        if again.file != run.loaded.file:
            raise InputError(
                f"The files of {name} have changed since the report began, which measures one "
                "model; run it again."
            )
        for weight, read in zip(weights, again.network.parameters(), strict=True):
            weight.data = read.data


def _options(name: str) -> type[ModelOptions]:
    """Return a section's class of options."""
    kind: type[ModelOptions] = COMMANDS[name].options
    return kind


def _parameters(name: str) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a section's function, but for those of loading."""
    every = inspect.signature(COMMANDS[name].function).parameters
    declared = options_of(_options(name))
    return {n: p for n, p in every.items() if n == "model" or not declared[n].marker.loading}


def check_settings(name: str, table: Mapping[str, Any]) -> None:
    """Refuse an unknown section, and settings that it does not have."""
    if name not in SECTIONS:
        raise InputError(f"There is no section {name!r} to set; known are {', '.join(SECTIONS)}.")
    settings = sorted(set(_parameters(name)) - _NO_SETTINGS)
    for key in table:
        if key not in settings:
            raise InputError(
                f"The section {name} has no setting {key!r}; known are {', '.join(settings)}."
            )


_DIGITS = 2  # Digits after the decimal point that are kept of a weight.


def run(model: Model, options: ReportOptions) -> ReportResult:
    """Run every section, the scoreboard last, on one model."""
    names = options.section_names()
    loaded = open_for_tasks(model, task=options.task, **options.loading)
    need_tokenizer(loaded, "report")
    if {"prune", "insights"} & set(names):
        loaded.pooling.check()  # before everything else is measured
    # Wrong sentences are refused before anything is measured.
    texts = [(text, read_sentence(loaded, text, "report").ids) for text in options.sentences or ()]
    settings = dict(options.settings or {})
    settings["insights"] = {
        "thresholds": options.thresholds or InsightThresholds(),
        "task": options.task,
        "data": None if options.data is None else Path(options.data),
        "draws": options.draws,
        **settings.get("insights", {}),
    }
    command = options.command
    seed = options.seed
    source = source_of(model, loaded, options)
    shared = Run(loaded, settings, seed, command, options.validate, options.tell, source)
    usable = not options.validate or validate_model(loaded).passed
    result = run_sections(names if usable else ["validate"], shared)  # the failed certificate
    left_out = dict(result.left_out)
    if not usable:
        why = "validation failed, so nothing is reported on this model"
        left_out |= {name: why for name in names if name != "validate"}
    sections = result.sections.sections
    warnings = warnings_of(*sections.values())
    return ReportResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=command, seed=seed, warnings=warnings),
        settings={name: shared.changed(name) for name in names if name != "insights"},
        left_out=left_out,
        samples=_sample_patterns(loaded, texts) if usable and loaded.sites else (),
        failed=result.failed,
        **sections,
    )


def _sample_patterns(
    loaded: LoadedModel, sentences: Sequence[tuple[str, list[int]]]
) -> tuple[SamplePatterns, ...]:
    """Keep all heads' patterns on sentences with their token ids, or on two of the sample."""
    if loaded.encoder_decoder:  # single sentences run only the encoder
        loaded = loaded.only("encoder")
    samples = []
    for text, ids in sentences or handy_sentences(loaded, 2):
        seen = run_ours(loaded, Probe(text, *loaded.pad([ids]))).seen["pattern"]
        patterns = {}
        for site in loaded.sites:
            of_heads = seen[site.row][0].cpu().double().tolist()
            for head, rows in zip(site.head_ids, of_heads, strict=True):
                rounded = tuple(tuple(round(weight, _DIGITS) for weight in row) for row in rows)
                patterns[head_name(site.layer, head)] = rounded
        tokens = readable_pieces(loaded.tokenizer, ids)
        samples.append(SamplePatterns(text, tokens, patterns))
    return tuple(samples)
