"""The model card: README.md of a saved folder, taken from the result of the run that wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from headscope.artefacts.config_json import HEADSCOPE, REMOTE
from headscope.core.heads import layer_name
from headscope.core.safe_text import markdown, visible
from headscope.core.serialise import warnings_of
from headscope.models.run.loaded import LoadedModel
from headscope.pruning.result import DataInfo, KeptModel, Point, PruneResult, SavedModel
from headscope.pruning.sentences import speed_sentence, verdict
from headscope.removal.card import (
    HUB_TASKS,
    MADE_BY,
    base_model,
    card_text,
    hub_task,
    inherited_header,
    sentence_code,
    sentence_tags,
    table,
    transformers_code,
    without_folders,
)
from headscope.removal.metric_words import METRIC_NAMES, number, span
from headscope.stats.estimate import Estimate


def snippets(opens: str, loaded: LoadedModel, *, sentences: bool) -> list[str]:
    """Return pieces of Python that open a saved folder; FOLDER stands for its path.

    ``opens`` says what has to open it: HEADSCOPE (``headscope.register()`` before transformers),
    REMOTE (``trust_remote_code``), or transformers alone. ``sentences`` says that
    sentence-transformers opens it too; the first piece then does so.
    """
    registered = "import headscope\nheadscope.register()\n" if opens == HEADSCOPE else ""
    trust = ", trust_remote_code=True" if opens == REMOTE else ""
    codes = [f"{registered}{transformers_code(loaded, opens)}"]
    if sentences:
        codes.insert(0, f"{registered}{sentence_code(loaded, trust)}")
    if registered:
        codes.append('import headscope\n\nmodel = headscope.load("FOLDER")')
    return codes


def model_card(result: PruneResult, loaded: LoadedModel, *, sentences: bool) -> str:
    """Write the card of a saved folder; ``sentences``: whether sentence-transformers opens it."""
    kept_model = result.kept
    saved = result.saved
    speed = result.speed
    assert kept_model is not None  # all three are known when a model was saved
    assert saved is not None
    assert speed is not None
    # The point of the curve that the saved model was measured as.
    points = result.curve(kept_model.method, kept_model.repair).points
    removing = [point for point in points if point.heads_removed]
    point = next(point for point in removing if point.fraction == kept_model.fraction)
    source = str(result.provenance["model"]["id"])
    name = markdown((base_model(source) or source).rstrip("/").rpartition("/")[2])
    title = f"{name} without {len(point.heads_removed)} of its {result.n_heads} attention heads"
    return card_text(
        _header(result, loaded, point, title, sentences),
        title,
        " ".join([without_folders(verdict(result)), speed_sentence(speed), MADE_BY]),
        codes=snippets(saved.opens, loaded, sentences=sentences),
        sections={
            "Heads removed": table(
                ("layer", "heads left", "removed"), _heads_of_layers(point, loaded)
            ),
            "What it costs": _what_it_costs(result, point, saved),
            "How it was made": "\n".join(f"* {line}" for line in _how_made(result, kept_model)),
        },
        command=str(result.provenance["command"]),
    )


def _header(
    result: PruneResult, loaded: LoadedModel, point: Point, title: str, sentences: bool
) -> ModelCardData:
    """Write the header that the hub reads, with everything that the metric's value rests on."""
    value = point.value.value
    assert value is not None
    search = result.max_drop
    split = None
    if search is not None and search.left_out:
        split = "examples without calibration sentences"
    evaluation = EvalResult(
        task_type=HUB_TASKS[result.task],
        dataset_type="file",
        dataset_name=Path(visible(result.data.name)).name,
        dataset_split=split,
        metric_type=result.metric,
        metric_value=round(value, 4),
        metric_name=METRIC_NAMES.get(result.metric, result.metric),
        metric_args=_certainty(result, point),
    )
    tags = ["headscope", "attention-head-pruning", "pruned"]
    if sentences:
        tags = [*sentence_tags(loaded), *tags]
    inherited = inherited_header(loaded)
    return ModelCardData(
        base_model=base_model(str(result.provenance["model"]["id"])),
        tags=tags,
        library_name="sentence-transformers" if sentences else "transformers",
        model_name=title,
        eval_results=[evaluation],
        **{"pipeline_tag": hub_task(result.task, loaded), **inherited},
    )


def _certainty(result: PruneResult, point: Point) -> dict[str, Any]:
    """Return how sure the metric's value is, and how it differs from the full model's."""
    full = result.baseline.value.value
    assert full is not None
    certainty: dict[str, Any] = {
        "examples": result.measured_examples,
        "interval": _rounded_interval(point.value),
        "full_model": round(full, 4),
    }
    if point.difference is not None and point.difference.value is not None:
        certainty["difference"] = round(point.difference.value, 4)
        certainty["difference_interval"] = _rounded_interval(point.difference)
        certainty["difference_level"] = 0.95
    search = result.max_drop
    if search is not None:
        certainty["max_drop"] = search.wanted
        certainty["refused_heads"] = [test.heads for test in search.refusals]
        certainty["sequence_of_heads"] = list(search.sequence)
        certainty["examples_left_out"] = search.left_out
    return certainty


def _rounded_interval(estimate: Estimate) -> list[float] | None:
    """Return both ends of an interval to four digits; None where it is not known."""
    if estimate.interval is None:
        return None
    low, high = estimate.interval
    return [round(low, 4), round(high, 4)]


def _heads_of_layers(point: Point, loaded: LoadedModel) -> Iterator[tuple[str, str, str]]:
    """Yield a row per layer of attention: how many heads are left, and which are gone."""
    removed: dict[tuple[str, int], list[int]] = {}  # Heads by stack and layer
    for name in point.heads_removed:
        # (layer, head), or (stack, layer, head) of a model that has more than an encoder.
        stack, layer, head = name if len(name) == 3 else ("encoder", *name)
        removed.setdefault((stack, layer), []).append(head)
    for site in loaded.with_all_stacks.sites:
        heads = removed.get((site.stack, site.layer), [])
        names = ", ".join(f"H{head}" for head in heads) or "none"
        heads_left = f"{site.n_heads - len(heads)} of {site.n_heads}"
        yield layer_name(site.layer, site.stack), heads_left, names


def _what_it_costs(result: PruneResult, point: Point, saved: SavedModel) -> str:
    """Compare the metric with and without the heads, and say what it was measured on."""
    data = result.data
    metric_name = METRIC_NAMES.get(result.metric, result.metric)
    columns = (f"{metric_name[0].upper()}{metric_name[1:]}", "value", "95% interval")
    tested = ""
    if result.measured_examples != data.examples:
        tested = f"{result.measured_examples:,} tested of "
    drawn = f"; {data.drawn}" if data.drawn else ""
    measured_on = (
        f"Measured on {_data(data)}: {tested}{data.examples:,} examples, {data.skipped:,} left out "
        f"as too long{drawn}."
    )
    warnings = [
        f"> {markdown(without_folders(warning))}"
        for warning in (*result.warnings, *warnings_of(result))
    ]
    return "\n\n".join([table(columns, _cost_rows(result, point, saved)), measured_on, *warnings])


def _cost_rows(
    result: PruneResult, point: Point, saved: SavedModel
) -> Iterator[tuple[str, str, str]]:
    """Yield what is compared, its value, and its interval."""
    metric = result.metric
    baseline = result.baseline.value
    value = point.value
    # Fidelity compares with the unpruned model: its own value is known without an interval.
    interval = "by definition" if result.task == "fidelity" else span(baseline, metric)
    yield f"all {result.n_heads} heads", number(baseline.value, metric), interval
    yield "this model", number(value.value, metric), span(value, metric)
    if point.difference is not None:
        change = number(point.difference.value, metric, signed=True)
        yield "change (paired)", change, span(point.difference, metric, signed=True)
    if result.max_drop is not None:
        yield "loss that was allowed", number(result.max_drop.wanted, metric), ""
    yield "this folder, opened again", number(saved.measured, metric), ""


def _how_made(result: PruneResult, kept_model: KeptModel) -> Iterator[str]:
    """Yield where the model comes from, how its heads were chosen, and by which versions."""
    model = result.provenance["model"]
    source = str(model["id"])
    weights = model.get("weights_sha256")
    sha256 = f", weights SHA-256 `{weights}`" if weights else ""
    yield f"Source: {markdown(base_model(source) or Path(source).name)}{sha256}"
    yield f"Heads chosen by `{kept_model.method}`, repair `{kept_model.repair}`"
    calibration = result.calibration
    if calibration is not None:
        how = "with labels" if calibration.labels else "no labels used"
        yield f"Chosen on {_data(calibration)}: {calibration.examples:,} examples, {how}"
    passed = {True: "passed", False: "failed", None: "not run"}[result.validation.passed]
    yield f"Check that headscope's attention is the model's own: {passed}"
    packages = ("headscope", "torch", "transformers")
    versions = ", ".join(f"{name} {result.provenance[name]}" for name in packages)
    yield f"{versions}; seed {result.provenance['seed']}"


def _data(data: DataInfo) -> str:
    """Name a file without its folder, with the beginning of its checksum."""
    return f"{markdown(Path(data.name).name)} (SHA-256 `{data.sha256[:12]}`)"
