"""The model card: README.md of a saved folder, taken from the result of the run that wrote it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from huggingface_hub.repocard import metadata_load

from headscope.core.heads import layer_name
from headscope.core.safe_text import markdown, visible
from headscope.core.serialise import warnings_of
from headscope.models.loaded import LoadedModel
from headscope.models.source import is_hub_id
from headscope.pruning.metric_words import (
    METRIC_NAMES,
    amount,
    change_words,
    number,
    percent,
    scheme_words,
    span,
)
from headscope.pruning.result import ExportedModel, Point, PruneResult, SpeedResult

CARD = "README.md"
#: The hub's names: of the task that a metric belongs to, and of what such models are used for.
HUB_TASKS = {
    "similarity": "sentence-similarity",
    "classification": "text-classification",
    "mlm": "fill-mask",
    "retrieval": "sentence-similarity",
    "rerank": "text-ranking",
    "token-classification": "token-classification",
    "question-answering": "question-answering",
    "seq2seq": "translation",
    "fidelity": "feature-extraction",
}
DEMO = "sentence-transformers/all-MiniLM-L6-v2"  # The published model behind the packaged demo.
#: What of the source's own card still holds for a copy with fewer heads.
_INHERITED = ("language", "license", "license_name", "license_link", "pipeline_tag")
#: How a folder is opened, by what opens it; FOLDER stands for its path.
_OPEN = {
    "import headscope": (
        'import headscope\n\nmodel = headscope.load("FOLDER")',
        "import headscope\nfrom transformers import AutoModel\n\nheadscope.register()\n"
        'model = AutoModel.from_pretrained("FOLDER")',
    ),
    "trust_remote_code": (
        "from transformers import AutoModel\n\n"
        'model = AutoModel.from_pretrained("FOLDER", trust_remote_code=True)',
    ),
    "transformers": (
        'from transformers import AutoModel\n\nmodel = AutoModel.from_pretrained("FOLDER")',
    ),
    "onnxruntime": (
        "import onnxruntime\nfrom transformers import AutoTokenizer\n\n"
        'session = onnxruntime.InferenceSession("FOLDER/model.onnx")\n'
        'tokenizer = AutoTokenizer.from_pretrained("FOLDER")\n'
        "asked = {item.name for item in session.get_inputs()}\n"
        'inputs = tokenizer(["A sentence."], return_tensors="np")\n'
        "inputs = {name: values for name, values in inputs.items() if name in asked}\n"
        "embeddings = session.run(None, inputs)[0]",
    ),
}
_LIBRARY = {"import headscope": "headscope", "onnxruntime": "onnx"}
#: A path of the machine that the command ran on; its last part is enough.
ABSOLUTE = re.compile(r"(?<![\w.])(?:/[^\s/'\"]+)+/([^\s/'\"]+)")


@dataclass(frozen=True)
class CardFacts:
    """What a card says of its own folder."""

    form: str  # ``compact``, ``dense`` or ``onnx``.
    #: What opens it: ``import headscope``, ``trust_remote_code``, ``transformers`` or
    #: ``onnxruntime``.
    opens: str
    measured: float  # The metric of what the folder holds, opened again.
    sentences: bool = False  # Whether sentence-transformers opens it.
    graphs: tuple[ExportedModel, ...] = ()  # The ONNX graphs in it.


def model_card(result: PruneResult, loaded: LoadedModel, facts: CardFacts) -> str:
    """Write the card of one saved folder."""
    kept = result.kept
    assert kept is not None  # nothing is written otherwise
    points = result.curve(kept.method, kept.repair).points
    point = next(p for p in points if p.heads_removed and p.fraction == kept.fraction)
    source = _base(result) or str(result.provenance["model"]["id"])
    name = markdown(source.rstrip("/").rpartition("/")[2])
    title = f"{name} without {len(point.heads_removed)} of its {result.n_heads} attention heads"
    codes = list(_OPEN[facts.opens])
    if facts.sentences:
        registered = "import headscope\n\nheadscope.register()\n"
        first = registered if facts.opens == "import headscope" else ""
        trust = ", trust_remote_code=True" if facts.opens == "trust_remote_code" else ""
        codes.append(
            f"{first}from sentence_transformers import SentenceTransformer\n\n"
            f'model = SentenceTransformer("FOLDER"{trust})'
        )
    opening = [f"```python\n{code.replace('FOLDER', 'path/to/this')}\n```" for code in codes]
    opening += [
        f"`{graph.file}`: {graph.weights} weights, {graph.size / 1e6:.1f} MB, takes "
        f"{', '.join(graph.inputs)}, gives {', '.join(graph.outputs)}; at most "
        f"{graph.max_difference:.1e} from the torch model on {graph.texts} texts."
        for graph in facts.graphs
    ]
    blocks = [
        f"---\n{_header(result, loaded, point, facts, title)}\n---",
        f"# {title}",
        _answer(result, point),
        _what(result, point, facts),
        "## Opening it\n\n" + "\n\n".join(opening),
        "## Heads removed\n\n" + "\n".join(_heads_table(point, loaded)),
        "## What it costs\n\n" + "\n".join(_metric_table(result, point, facts)),
        *([] if result.speed is None else [_speed(result.speed)]),
        "## How it was made\n\n" + "\n".join(_made(result)),
    ]
    return "\n\n".join(blocks) + "\n"


def _header(
    result: PruneResult, loaded: LoadedModel, point: Point, facts: CardFacts, title: str
) -> str:
    """Write what the hub reads, with everything that the metric's value rests on."""

    def ends(ci: Sequence[float] | None) -> list[float] | None:
        return None if ci is None else [round(end, 4) for end in ci]

    certainty: dict[str, Any] = {
        "examples": result.measured_examples,
        "interval": ends(point.ci),
        "full_model": round(result.baseline.value, 4),
    }
    if point.difference is not None:
        certainty["difference"] = round(point.difference, 4)
        certainty["difference_interval"] = ends(point.difference_ci)
        certainty["difference_level"] = round(point.level, 4)
    if (search := result.max_drop) is not None:
        certainty["max_drop"] = search.wanted
        certainty["refused_heads"] = [look.heads for look in search.refusals]
        certainty["sequence_of_heads"] = list(search.sequence)
        certainty["examples_left_out"] = search.left_out
        if (near := search.fidelity) is not None:
            certainty["fidelity"] = round(near.value, 4)
            certainty["fidelity_interval"] = ends(near.ci)
            certainty["min_fidelity"] = near.wanted
    task = HUB_TASKS[result.task]
    evaluation = EvalResult(
        task_type=task,
        dataset_type="file",
        dataset_name=Path(visible(result.data.name)).name,
        dataset_split="examples without calibration sentences"
        if search is not None and search.left_out
        else None,
        metric_type=result.metric,
        metric_value=round(point.value, 4),
        metric_name=METRIC_NAMES.get(result.metric, result.metric),
        metric_args=certainty,
    )
    data = ModelCardData(
        base_model=_base(result),
        tags=[
            *(["sentence-transformers", "sentence-similarity"] if facts.sentences else []),
            *("headscope", "attention-head-pruning", "pruned"),
        ],
        library_name="sentence-transformers"
        if facts.sentences
        else _LIBRARY.get(facts.opens, "transformers"),
        model_name=title,
        eval_results=[evaluation],
        **{"pipeline_tag": task, **inherited_header(loaded)},
    )
    text: str = data.to_yaml().strip()
    return text


def inherited_header(loaded: LoadedModel) -> dict[str, Any]:
    """Read what the source's card says of language and license; nothing if it cannot be read."""
    card = None if loaded.folder is None else loaded.folder / CARD
    if card is None or not card.is_file():
        return {}
    try:
        header = metadata_load(card)
    except Exception:  # a card is prose: whatever is wrong with its header is no error of ours
        return {}
    inherited = {}
    for name in _INHERITED:
        value = header.get(name) if isinstance(header, Mapping) else None
        names = value if isinstance(value, list) else [value]
        if names and all(isinstance(item, str) for item in names):
            inherited[name] = value
    return inherited


def _base(result: PruneResult) -> str | None:
    """Return the hub id of the source; None for a folder, which the hub would not know."""
    name = str(result.provenance["model"]["id"])
    if name == "demo":
        return DEMO
    return name if is_hub_id(name) and "/" in name and not Path(name).exists() else None


def _answer(result: PruneResult, point: Point) -> str:
    """Say in one line how much smaller and faster the model is, and what its metric became."""
    parts = []
    if (speed := result.speed) is not None:
        saved = 1 - speed.parameters_pruned / speed.parameters_full
        parts.append(f"{saved:.0%} smaller")
        row = speed.rows[0]
        times = f"{row.full_ms / row.pruned_ms:.2g} times as fast"
        parts.append(f"{times} ({row.batch_size} x {row.length} tokens, {speed.device})")
    metric, full = result.metric, result.baseline.value
    name = METRIC_NAMES.get(metric, metric).partition(" (")[0]
    parts.append(f"{name} {number(full, metric)} -> {number(point.value, metric)}")
    text = ", ".join(parts)
    return f"**{text[0].upper()}{text[1:]}.**"


def _what(result: PruneResult, point: Point, facts: CardFacts) -> str:
    made_by = "Made by [headscope](https://pypi.org/project/headscope/)."
    metric, full = result.metric, result.baseline.value
    lost = "are gone from the weights" if facts.form != "dense" else "are zeros"
    change = change_words(metric, point.difference, point.difference_ci, point.level)
    text = (
        f"{len(point.heads_removed)} of {result.n_heads} attention heads ({point.fraction:.0%}) "
        f"{lost}. {_name(metric)}: {number(full, metric)} with all heads, "
        f"{number(point.value, metric)} without these; {change}. "
    )
    if (search := result.max_drop) is not None:
        text += (
            f"The number of heads is one that is confirmed to cost at most "
            f"{amount(search.wanted, metric)}. "
            f"{scheme_words(metric, search, result.data.examples)} All values are of these "
            "examples. "
        )
    return f"{text}{made_by}"


def _name(metric: str) -> str:
    name = METRIC_NAMES.get(metric, metric)
    return name[0].upper() + name[1:]


def _heads_table(point: Point, loaded: LoadedModel) -> Iterator[str]:
    """One row per layer of attention: how many heads are left, and which are gone."""
    gone: dict[tuple[str, int], list[int]] = {}
    for *stack, layer, head in point.heads_removed:
        gone.setdefault((stack[0] if stack else "encoder", layer), []).append(head)
    yield "| layer | heads left | removed |\n|---|---|---|"
    for site in (loaded.whole or loaded).sites:
        heads = gone.get((site.stack, site.layer), [])
        names = ", ".join(f"H{head}" for head in heads) or "none"
        left = f"{site.n_heads - len(heads)} of {site.n_heads}"
        yield f"| {layer_name(site.layer, site.stack)} | {left} | {names} |"


def _metric_table(result: PruneResult, point: Point, facts: CardFacts) -> Iterator[str]:
    metric = result.metric
    yield f"| {_name(metric)} | value | interval (95% unless said) |\n|---|---|---|"
    full, interval = number(result.baseline.value, metric), span(result.baseline.ci, metric)
    if result.task == "fidelity":  # a model's distance to itself
        interval = "by definition"
    yield f"| all {result.n_heads} heads | {full} | {interval} |"
    yield f"| this model | {number(point.value, metric)} | {span(point.ci, metric)} |"
    if point.difference is not None:
        change = number(point.difference, metric, signed=True)
        level = "" if point.level == 0.95 else f" ({percent(point.level)})"
        ends = span(point.difference_ci, metric, signed=True)
        yield f"| change (paired) | {change} | {ends}{level} |"
    if result.max_drop is not None:
        yield f"| loss that was allowed | {number(result.max_drop.wanted, metric)} | |"
    yield f"| this folder, opened again | {number(facts.measured, metric)} | |"
    for graph in facts.graphs[1:]:
        yield f"| {graph.file} ({graph.weights}) | {number(graph.measured, metric)} | |"
    whole = result.measured_examples == result.data.examples
    used = "" if whole else f"{result.measured_examples:,} tested of "
    drawn = f"; {result.data.drawn}" if result.data.drawn else ""
    yield (
        f"\nMeasured on {_data(result.data.name, result.data.sha256)}: {used}"
        f"{result.data.examples:,} examples, {result.data.skipped:,} left out as too long{drawn}."
    )
    for warning in (*result.warnings, *warnings_of(result)):
        yield f"\n> {markdown(warning)}"


def _speed(speed: SpeedResult) -> str:
    lines = []
    for row in speed.rows:
        programs = [("torch", row.full_ms, row.pruned_ms)]
        if row.onnx is not None:
            programs.append(("onnxruntime", row.onnx.full_ms, row.onnx.pruned_ms))
        for program, full, pruned in programs:
            lines.append(
                f"| {row.batch_size} x {row.length} | {program} | {full:.1f} | {pruned:.1f} | "
                f"{full / pruned:.2f} | {1 / row.predicted_ratio:.2f} |"
            )
    graphs = f", onnxruntime {speed.onnxruntime}" if speed.onnxruntime else ""
    return (
        "## Speed\n\n"
        "| batch x tokens | run by | full, ms | this, ms | times as fast | by multiplications |\n"
        "|---|---|---|---|---|---|\n"
        + "\n".join(lines)
        + f"\n\nMedians, in turns; {speed.device}, {speed.dtype}, "
        f"{speed.threads} thread{'s' if speed.threads > 1 else ''}, transformers' "
        f"{speed.implementation} attention{graphs}. "
        f"Parameters: {speed.parameters_full:,} and {speed.parameters_pruned:,}."
    )


def _made(result: PruneResult) -> Iterator[str]:
    model, kept = result.provenance["model"], result.kept
    weights = model.get("weights_sha256")
    yield f"* Source: {markdown(_base(result) or Path(str(model['id'])).name)}" + (
        f", weights SHA-256 `{weights}`" if weights else ""
    )
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
    command = ABSOLUTE.sub(r"\1", visible(result.provenance["command"]).replace("```", ""))
    yield f"\n```sh\n{command}\n```"


def _data(name: str, sha256: str) -> str:
    return f"{markdown(Path(name).name)} (SHA-256 `{sha256[:12]}`)"
