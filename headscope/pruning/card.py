"""The model card: README.md of a saved folder, taken from the result of the run that wrote it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from headscope.core.heads import layer_name
from headscope.core.safe_text import markdown, visible
from headscope.core.serialise import warnings_of
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.task_heads import class_for
from headscope.pruning.result import Point, PruneResult
from headscope.pruning.sentences import number_of_times, scheme_words, speed_sentence
from headscope.removal.card import HUB_TASKS, base_model, command_block, inherited_header
from headscope.removal.metric_words import (
    METRIC_NAMES,
    amount,
    change_words,
    number,
    percent,
    span,
)
from headscope.stats.estimate import Estimate

#: How a folder is opened, by what opens it; FOLDER stands for its path.
_OPEN = {
    "import headscope": (
        'import headscope\n\nmodel = headscope.load("FOLDER")',
        "import headscope\nfrom transformers import CLASS\n\nheadscope.register()\n"
        'model = CLASS.from_pretrained("FOLDER")',
    ),
    "trust_remote_code": (
        "from transformers import CLASS\n\n"
        'model = CLASS.from_pretrained("FOLDER", trust_remote_code=True)',
    ),
    "transformers": ('from transformers import CLASS\n\nmodel = CLASS.from_pretrained("FOLDER")',),
}


def model_card(result: PruneResult, loaded: LoadedModel, *, sentences: bool) -> str:
    """Write the card of a saved folder; ``sentences``: whether sentence-transformers opens it."""
    kept, saved = result.kept, result.saved
    assert kept is not None  # nothing is written otherwise
    assert saved is not None
    points = result.curve(kept.method, kept.repair).points
    point = next(p for p in points if p.heads_removed and p.fraction == kept.fraction)
    source = str(result.provenance["model"]["id"])
    source = base_model(source) or source
    name = markdown(source.rstrip("/").rpartition("/")[2])
    title = f"{name} without {len(point.heads_removed)} of its {result.n_heads} attention heads"
    codes, opened_by = list(_OPEN[saved.opens]), class_for(loaded.task_head).__name__
    if sentences:
        registered = "import headscope\n\nheadscope.register()\n"
        first = registered if saved.opens == "import headscope" else ""
        trust = ", trust_remote_code=True" if saved.opens == "trust_remote_code" else ""
        codes.append(
            f"{first}from sentence_transformers import SentenceTransformer\n\n"
            f'model = SentenceTransformer("FOLDER"{trust})'
        )
    opening = [
        f"```python\n{code.replace('FOLDER', 'path/to/this').replace('CLASS', opened_by)}\n```"
        for code in codes
    ]
    blocks = [
        f"---\n{_header(result, loaded, point, title, sentences)}\n---",
        f"# {title}",
        _answer(result, point),
        _what(result, point),
        "## Opening it\n\n" + "\n\n".join(opening),
        "## Heads removed\n\n" + "\n".join(_heads_table(point, loaded)),
        "## What it costs\n\n" + "\n".join(_metric_table(result, point)),
        "## How it was made\n\n" + "\n".join(_made(result)),
    ]
    return "\n\n".join(blocks) + "\n"


def _header(
    result: PruneResult, loaded: LoadedModel, point: Point, title: str, sentences: bool
) -> str:
    """Write what the hub reads, with everything that the metric's value rests on."""

    def ends(estimate: Estimate) -> list[float] | None:
        return None if estimate.interval is None else [round(end, 4) for end in estimate.interval]

    value, full = point.value.value, result.baseline.value.value
    assert value is not None
    assert full is not None
    certainty: dict[str, Any] = {
        "examples": result.measured_examples,
        "interval": ends(point.value),
        "full_model": round(full, 4),
    }
    if point.difference is not None and point.difference.value is not None:
        certainty["difference"] = round(point.difference.value, 4)
        certainty["difference_interval"] = ends(point.difference)
        certainty["difference_level"] = round(point.level, 4)
    if (search := result.max_drop) is not None:
        certainty["max_drop"] = search.wanted
        certainty["refused_heads"] = [look.heads for look in search.refusals]
        certainty["sequence_of_heads"] = list(search.sequence)
        certainty["examples_left_out"] = search.left_out
    task = HUB_TASKS[result.task]
    evaluation = EvalResult(
        task_type=task,
        dataset_type="file",
        dataset_name=Path(visible(result.data.name)).name,
        dataset_split="examples without calibration sentences"
        if search is not None and search.left_out
        else None,
        metric_type=result.metric,
        metric_value=round(value, 4),
        metric_name=METRIC_NAMES.get(result.metric, result.metric),
        metric_args=certainty,
    )
    data = ModelCardData(
        base_model=base_model(str(result.provenance["model"]["id"])),
        tags=[
            *(["sentence-transformers", "sentence-similarity"] if sentences else []),
            *("headscope", "attention-head-pruning", "pruned"),
        ],
        library_name="sentence-transformers" if sentences else "transformers",
        model_name=title,
        eval_results=[evaluation],
        **{"pipeline_tag": task, **inherited_header(loaded)},
    )
    text: str = data.to_yaml().strip()
    return text


def _answer(result: PruneResult, point: Point) -> str:
    """Say in one line how much smaller and faster the model is, and what its metric became."""
    parts = []
    if (speed := result.speed) is not None:
        saved = 1 - speed.parameters_pruned / speed.parameters_full
        parts += [f"{saved:.0%} smaller", f"{number_of_times(speed.speed)} times as fast"]
    metric = result.metric
    name = METRIC_NAMES.get(metric, metric).partition(" (")[0]
    full, value = result.baseline.value.value, point.value.value
    parts.append(f"{name} {number(full, metric)} -> {number(value, metric)}")
    text = ", ".join(parts)
    return f"**{text[0].upper()}{text[1:]}.**"


def _what(result: PruneResult, point: Point) -> str:
    made_by = "Made by [headscope](https://pypi.org/project/headscope/)."
    metric, full = result.metric, result.baseline.value.value
    change = change_words(metric, point.difference, point.level)
    text = (
        f"{len(point.heads_removed)} of {result.n_heads} attention heads ({point.fraction:.0%}) "
        f"are gone from the weights. {_name(metric)}: {number(full, metric)} with all heads, "
        f"{number(point.value.value, metric)} without these; {change}. "
    )
    if (search := result.max_drop) is not None:
        text += (
            f"The number of heads is one that is confirmed to cost at most "
            f"{amount(search.wanted, metric)}. "
            f"{scheme_words(metric, search, result.data.examples)} All values are of these "
            "examples. "
        )
    if result.speed is not None:
        text += f"{speed_sentence(result.speed)} "
    return f"{text}{made_by}"


def _name(metric: str) -> str:
    name = METRIC_NAMES.get(metric, metric)
    return name[0].upper() + name[1:]


def _heads_table(point: Point, loaded: LoadedModel) -> Iterator[str]:
    """Yield a row per layer of attention: how many heads are left, and which are gone."""
    gone: dict[tuple[str, int], list[int]] = {}
    for *stack, layer, head in point.heads_removed:
        gone.setdefault((stack[0] if stack else "encoder", layer), []).append(head)
    yield "| layer | heads left | removed |\n|---|---|---|"
    for site in (loaded.whole or loaded).sites:
        heads = gone.get((site.stack, site.layer), [])
        names = ", ".join(f"H{head}" for head in heads) or "none"
        left = f"{site.n_heads - len(heads)} of {site.n_heads}"
        yield f"| {layer_name(site.layer, site.stack)} | {left} | {names} |"


def _metric_table(result: PruneResult, point: Point) -> Iterator[str]:
    metric = result.metric
    yield f"| {_name(metric)} | value | interval (95% unless said) |\n|---|---|---|"
    whole, value = result.baseline.value, point.value
    # Fidelity is a model's distance to itself.
    interval = "by definition" if result.task == "fidelity" else span(whole, metric)
    yield f"| all {result.n_heads} heads | {number(whole.value, metric)} | {interval} |"
    yield f"| this model | {number(value.value, metric)} | {span(value, metric)} |"
    if point.difference is not None:
        change = number(point.difference.value, metric, signed=True)
        level = "" if point.level == 0.95 else f" ({percent(point.level)})"
        ends = span(point.difference, metric, signed=True)
        yield f"| change (paired) | {change} | {ends}{level} |"
    if result.max_drop is not None:
        yield f"| loss that was allowed | {number(result.max_drop.wanted, metric)} | |"
    if result.saved is not None:
        yield f"| this folder, opened again | {number(result.saved.measured, metric)} | |"
    all_used = result.measured_examples == result.data.examples
    used = "" if all_used else f"{result.measured_examples:,} tested of "
    drawn = f"; {result.data.drawn}" if result.data.drawn else ""
    yield (
        f"\nMeasured on {_data(result.data.name, result.data.sha256)}: {used}"
        f"{result.data.examples:,} examples, {result.data.skipped:,} left out as too long{drawn}."
    )
    for warning in (*result.warnings, *warnings_of(result)):
        yield f"\n> {markdown(warning)}"


def _made(result: PruneResult) -> Iterator[str]:
    model, kept = result.provenance["model"], result.kept
    weights = model.get("weights_sha256")
    source = str(model["id"])
    sha256 = f", weights SHA-256 `{weights}`" if weights else ""
    yield f"* Source: {markdown(base_model(source) or Path(source).name)}{sha256}"
    if kept is not None:
        yield f"* Heads chosen by `{kept.method}`, repair `{kept.repair}`"
    if (chosen := result.calibration) is not None:
        how = "with labels" if chosen.labels else "no labels used"
        data = _data(chosen.name, chosen.sha256)
        yield f"* Chosen on {data}: {chosen.examples:,} examples, {how}"
    passed = {True: "passed", False: "failed", None: "not run"}[result.validation.passed]
    yield f"* Check that headscope's attention is the model's own: {passed}"
    versions = ", ".join(
        f"{name} {result.provenance[name]}" for name in ("headscope", "torch", "transformers")
    )
    yield f"* {versions}; seed {result.provenance['seed']}"
    yield f"\n{command_block(result.provenance['command'])}"


def _data(name: str, sha256: str) -> str:
    return f"{markdown(Path(name).name)} (SHA-256 `{sha256[:12]}`)"
