"""The one pruned model that is kept, as an ONNX graph: written, compared, measured, made small."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch

from headscope.artefacts.onnx_graph import EMBEDDING, HIDDEN, LOGITS, OPSET, quantize, write_graph
from headscope.artefacts.onnx_session import FLOAT32, INT8, Graph, describe_folder, runtime_version
from headscope.artefacts.opened_again import distance
from headscope.core.errors import ArtefactError
from headscope.data.batches import BATCH_TOKENS
from headscope.data.token_rows import Padded, pad_rows
from headscope.models.loaded import LoadedModel
from headscope.pruning.curves import Version
from headscope.pruning.measure import at
from headscope.pruning.options import PruneOptions
from headscope.pruning.result import ExportedModel
from headscope.pruning.speed import GraphFiles
from headscope.stats.metrics import Outputs
from headscope.tasks.base import Task

#: Largest difference between a graph's outputs and the pruned torch model's, relative to the
#: largest output if that exceeds 1.
TOLERANCE = 1e-4
#: How many texts each batch holds that both are compared on, and tokens of the longest text.
_BATCHES, _LONGEST = (1, 2, 4, 8, 16, 32), 512
#: Tokens of a batch of a model that puts out a row of its vocabulary for each.
_FEW_TOKENS = BATCH_TOKENS // 4


def export_measured(
    compact: LoadedModel,
    version: Version,
    task: Task,
    options: PruneOptions,
    provenance: dict[str, Any],
    folder: Path,
    room: Path,
) -> tuple[ExportedModel, ...]:
    """Write the graphs that were asked for, open them in onnxruntime, compare and measure them."""
    batches = list(_compared(compact, task))
    texts = sum(len(batch.index) for batch in batches)
    graphs = write_and_open(compact, room, task, options, batches, folder)
    how = {"method": version.method, "repair": version.repair.value}
    describe_folder(compact, room, graphs[0][0], **how, provenance=provenance)
    tokens = _FEW_TOKENS if compact.task_head == "mlm" else BATCH_TOKENS
    models: list[ExportedModel] = []
    first: Outputs | None = None
    for name, (graph, difference) in zip((FLOAT32, INT8), graphs, strict=False):
        outputs = at(task.outputs_of(graph, task.batches(compact, tokens)), version.examples)
        # The metric of a smaller graph is compared with the first one's, example by example.
        change = None if first is None else task.change(first, outputs, seed=options.seed)
        first = outputs if first is None else first
        models.append(
            ExportedModel(
                folder=str(folder),
                file=name,
                weights="float32" if name == FLOAT32 else "int8",
                **how,
                size=sum(path.stat().st_size for path in room.glob(f"{name}*")),
                inputs=graph.inputs,
                outputs=graph.outputs,
                opset=OPSET,
                onnxruntime=runtime_version(),
                texts=texts,
                max_difference=difference,
                value=version.point.value,
                measured=task.value(outputs),
                difference=None if change is None else change.difference,
                difference_ci=None if change is None else change.ci,
            )
        )
    return tuple(models)


def write_and_open(
    compact: LoadedModel,
    room: Path,
    task: Task,
    options: PruneOptions,
    batches: Sequence[Padded],
    folder: Path,
) -> list[tuple[Graph, float]]:
    """Write the graphs and open them; returns each with its largest difference to the model.

    They are written into ``room``, which is to be called ``folder``.
    """
    write_graph(compact, room / FLOAT32, typed=task.rows[0].types is not None)
    graph = Graph(room / FLOAT32)
    largest, relative = _largest_difference(compact, graph, batches)
    if not relative <= TOLERANCE:  # NaN is no less
        texts = sum(len(batch.index) for batch in batches)
        raise ArtefactError(
            f"The graph written for {folder} differs from the pruned model {compact.name} by "
            f"{largest:.2g} on {texts} texts, so the folder was not kept; please report this."
        )
    graphs = [(graph, largest)]
    if options.quantize is not None:
        quantize(room / FLOAT32, room / INT8)
        small = Graph(room / INT8)
        graphs.append((small, _largest_difference(compact, small, batches)[0]))
    return graphs


def _compared(loaded: LoadedModel, task: Task) -> Iterator[Padded]:
    """Yield batches of the evaluation texts, in their own order, of very different lengths.

    The last holds a text as long as the model allows beside a short one: there a window or a table
    of positions that the graph has wrong would show.
    """
    rows = iter(task.rows)
    for size in _BATCHES:
        if batch := list(islice(rows, size)):
            yield pad_rows(batch, loaded.pad_id, loaded.device)
    length = min(loaded.max_length, _LONGEST)
    ids = islice(cycle(token for row in task.rows for token in row.ids), length)
    first, short = task.rows[0], min(task.rows, key=len)
    types = None if first.types is None else (0,) * length
    joined = dataclasses.replace(first, ids=tuple(ids), types=types, masked=(), gold=())
    yield pad_rows([joined, short], loaded.pad_id, loaded.device)


def _largest_difference(
    loaded: LoadedModel, graph: Graph, batches: Sequence[Padded]
) -> tuple[float, float]:
    """Return the largest difference of any output, padding aside, absolute and relative."""
    differences = []
    for batch in batches:
        with torch.inference_mode():
            hidden, logits = loaded.run(*batch.inputs)
            pooled = loaded.pooling.embed(hidden, batch.attention_mask)
        ours = {HIDDEN: hidden, LOGITS: logits, EMBEDDING: pooled}
        real = batch.attention_mask.bool()
        for name, theirs in graph.run(*batch.inputs).items():
            expected = ours[name]
            assert expected is not None
            differences.append(
                distance(*(t[real] if t.dim() == 3 else t for t in (expected, theirs)))
            )
    largest, relative = torch.tensor(differences, dtype=torch.float64).max(dim=0).values.tolist()
    return largest, relative


@contextmanager
def graphs_of_both(full: LoadedModel, pruned: Path | None) -> Iterator[GraphFiles | None]:
    """Yield the exported graphs and the full model's, which is there for the benchmark alone."""
    if pruned is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        write_graph(full, Path(folder) / FLOAT32)
        small = pruned / INT8
        files = (Path(folder) / FLOAT32, pruned / FLOAT32)
        yield GraphFiles(*files, small if small.is_file() else None)
