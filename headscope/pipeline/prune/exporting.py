"""The one pruned model that is kept, as an ONNX graph: written, compared, measured, made small."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope.artefacts.onnx_graph import EMBEDDING, HIDDEN, LOGITS, OPSET, quantize, write_graph
from headscope.artefacts.onnx_session import FLOAT32, INT8, Graph, describe_folder, runtime_version
from headscope.artefacts.opened_again import distance
from headscope.core.errors import ArtefactError
from headscope.data.batches import BATCH_TOKENS
from headscope.data.token_rows import Padded, Row, pad_rows
from headscope.measures.metrics import Outputs
from headscope.models.loaded import LoadedModel
from headscope.pipeline.prune.curves import Inputs, Version
from headscope.pipeline.prune.measuring import at
from headscope.pipeline.prune.options import PruneOptions
from headscope.pipeline.prune.speed import GraphFiles
from headscope.results import ExportedModel
from headscope.tasks.base import Task

#: Largest difference between a graph's outputs and the pruned torch model's, relative to the
#: largest output if that exceeds 1.
TOLERANCE = 1e-4
#: How many texts each batch holds that both are compared on, and tokens of the longest text.
_BATCHES, _LONGEST = (1, 2, 4, 8, 16, 32), 512
#: Tokens of a batch of a model that puts out a row of its vocabulary for each.
_FEW_TOKENS = BATCH_TOKENS // 4


@dataclass(frozen=True)
class _Found:
    """What was found out about one graph."""

    graph: Graph
    path: Path
    texts: int
    difference: float
    relative: float
    outputs: Outputs


@dataclass(frozen=True)
class Graphs:
    """Graphs that were written and measured; ``room`` is where they lie for now."""

    room: Path
    models: tuple[ExportedModel, ...]


def export_measured(
    compact: LoadedModel,
    version: Version,
    inputs: Inputs,
    options: PruneOptions,
    provenance: dict[str, Any],
    folder: Path,
    room: Path,
) -> Graphs:
    """Write the graphs that were asked for, open them in onnxruntime, compare and measure them.

    They are written into ``room``, which is to be called ``folder``.

    Raises
    ------
    ArtefactError
        If the graph differs from the pruned torch model by more than :data:`TOLERANCE`.
    UnsupportedModelError
        If the model cannot be written as a graph.
    """
    task = inputs.evaluation
    write_graph(compact, room / FLOAT32, typed=task.rows[0].types is not None)
    found = [_examined(compact, room / FLOAT32, task)]
    _check(found[0].difference, found[0].relative, found[0].texts, compact, folder)
    if options.quantize is not None:
        quantize(room / FLOAT32, room / INT8)
        found.append(_examined(compact, room / INT8, task))
    how = {"method": version.method, "repair": version.repair.value}
    describe_folder(compact, room, found[0].graph, **how, provenance=provenance)
    models = (_exported(each, found[0], version, folder, task, options) for each in found)
    return Graphs(room, tuple(models))


def try_export(
    trial: LoadedModel, room: Path, task: Task, batches: Sequence[Padded], options: PruneOptions
) -> None:
    """Write a model as the graphs that will be asked for, and open them, before a long run."""
    write_graph(trial, room / FLOAT32, typed=task.rows[0].types is not None)
    names = [FLOAT32]
    if options.quantize is not None:
        quantize(room / FLOAT32, room / INT8)
        names.append(INT8)
    found = [_largest(trial, Graph(room / name), batches) for name in names]
    _check(*found[0], sum(len(batch.index) for batch in batches), trial, room)


def _examined(compact: LoadedModel, path: Path, task: Task) -> _Found:
    graph = Graph(path)
    batches = list(_compared(compact, task))
    difference, relative = _largest(compact, graph, batches)
    tokens = _FEW_TOKENS if compact.task_head == "mlm" else BATCH_TOKENS
    outputs = task.outputs_of(graph, task.batches(compact, tokens))
    texts = sum(len(batch.index) for batch in batches)
    return _Found(graph, path, texts, difference, relative, outputs)


def _compared(loaded: LoadedModel, task: Task) -> Iterator[Padded]:
    """Yield batches of the evaluation texts, in their own order, of very different lengths.

    The last holds a text as long as the model allows beside a short one: there a window or a table
    of positions that the graph has wrong would show.
    """
    rows = iter(task.rows)
    for size in _BATCHES:
        if batch := list(islice(rows, size)):
            yield pad_rows(batch, loaded.pad_id, loaded.device)
    short = min(task.rows, key=len)
    yield pad_rows([_repeated(task.rows, loaded), short], loaded.pad_id, loaded.device)


def _repeated(rows: Sequence[Row], loaded: LoadedModel) -> Row:
    """Join the texts to one that is as long as the model allows."""
    length = min(loaded.max_length, _LONGEST)
    ids = islice(cycle(token for row in rows for token in row.ids), length)
    types = None if rows[0].types is None else (0,) * length
    return dataclasses.replace(rows[0], ids=tuple(ids), types=types, masked=(), gold=())


def _largest(loaded: LoadedModel, graph: Graph, batches: Sequence[Padded]) -> tuple[float, float]:
    """Return the largest difference of any output, padding aside, absolute and relative."""
    found = []
    for batch in batches:
        with torch.inference_mode():
            hidden, logits = loaded.run(*batch.inputs)
            pooled = loaded.pooling.embed(hidden, batch.attention_mask)
        ours = {HIDDEN: hidden, LOGITS: logits, EMBEDDING: pooled}
        for name, theirs in graph.run(*batch.inputs).items():
            expected = ours[name]
            assert expected is not None
            found.append(distance(_real(expected, batch), _real(theirs, batch)))
    largest, relative = torch.tensor(found, dtype=torch.float64).max(dim=0).values.tolist()
    return largest, relative


def _real(values: Tensor, batch: Padded) -> Tensor:
    return values[batch.attention_mask.bool()] if values.dim() == 3 else values


def _check(largest: float, relative: float, texts: int, compact: LoadedModel, folder: Path) -> None:
    if relative <= TOLERANCE:  # NaN is no less
        return
    raise ArtefactError(
        f"The graph written for {folder} differs from the pruned model {compact.name} by "
        f"{largest:.2g} on {texts} texts, so the folder was not kept; please report this."
    )


def _exported(
    found: _Found,
    first: _Found,
    version: Version,
    folder: Path,
    task: Task,
    options: PruneOptions,
) -> ExportedModel:
    found_files = found.path.parent.glob(f"{found.path.name}*")
    return ExportedModel(
        folder=str(folder),
        file=found.path.name,
        weights="float32" if found is first else "int8",
        method=version.method,
        repair=version.repair.value,
        size=sum(path.stat().st_size for path in found_files),
        inputs=found.graph.inputs,
        outputs=found.graph.outputs,
        opset=OPSET,
        onnxruntime=runtime_version(),
        texts=found.texts,
        max_difference=found.difference,
        value=version.point.value,
        measured=task.value(at(found.outputs, version.places)),
        **({} if found is first else _beside(found, first, version, task, options.seed)),
    )


def _beside(
    found: _Found, first: _Found, version: Version, task: Task, seed: int
) -> dict[str, Any]:
    """Compare the metric of a graph with that of the one in float32, example by example."""
    first_outputs, outputs = (at(each.outputs, version.places) for each in (first, found))
    beside = task.change(first_outputs, outputs, seed=seed)
    return {"difference": beside.difference, "difference_ci": beside.ci}


@contextmanager
def graphs_beside(full: LoadedModel, graphs: Graphs | None) -> Iterator[GraphFiles | None]:
    """Yield the exported graphs with the full model's, which is there for the benchmark alone."""
    if graphs is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as beside:
        write_graph(full, Path(beside) / FLOAT32)
        small = graphs.room / INT8
        files = (Path(beside) / FLOAT32, graphs.room / FLOAT32)
        yield GraphFiles(*files, small if small.is_file() else None)
