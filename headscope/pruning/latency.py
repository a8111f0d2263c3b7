"""Costs that are measured: milliseconds of a layer's heads and neurons, on this machine.

Models are really built with as many heads, or neurons, in every layer, and whole passes are timed,
all models taking turns (:mod:`headscope.pruning.turns`)::

    time(h heads and w neurons in every layer) = rest + layers * (attention(h) + feed_forward(w))

Each model is cut in one kind of unit only; that the times of both kinds add up is checked with a
model that lost some of each and had no say in the table.
"""

from __future__ import annotations

import copy
import dataclasses
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from headscope.artefacts.onnx_graph import need_packages, quantize, write_graph
from headscope.artefacts.onnx_session import Graph
from headscope.core.errors import InputError, UnsupportedModelError
from headscope.core.progress import Progress, silent
from headscope.data.token_rows import Padded
from headscope.models.compact import as_before
from headscope.models.cutting import cut_modules
from headscope.models.feed_forward import feed_forwards, remove_neurons
from headscope.models.loaded import LoadedModel
from headscope.models.loading import wrap
from headscope.pruning.latency_fit import fit_times
from headscope.pruning.latency_result import (
    Counts,
    Group,
    LatencyTable,
    Shape,
    UnitTimes,
)
from headscope.pruning.mix.sublayers import HEADS, NEURONS
from headscope.pruning.turns import Clock, in_turns, passes, typical

Runtime = Literal["torch", "onnxruntime"]
#: Units that every layer keeps, by group; groups that are not there keep all of theirs.
Cut = Mapping[Group, int]

#: Neurons are measured at multiples of this, which processors compute in one go.
STEP = 32
#: Shares of a layer's units that are measured, beside the whole layer. A graph takes seconds to
#: write, a torch model none. A layer's first head costs more than its next ones.
_SHARES: dict[str, dict[str, Sequence[float]]] = {
    "torch": {
        HEADS: (0, 1 / 12, 1 / 6, 1 / 3, 1 / 2, 2 / 3, 5 / 6),
        NEURONS: tuple(i / 8 for i in range(8)),
    },
    "onnxruntime": {HEADS: (0, 1 / 6, 1 / 2), NEURONS: (0, 1 / 3, 2 / 3)},
}
#: Share of the units that the model keeps by which the table is checked.
_CHECKED = 0.45
_FEWEST, _MOST, _SECONDS = 7, 51, 30.0


def measure_table(
    loaded: LoadedModel,
    batches: Sequence[Padded],
    *,
    runtime: Runtime = "torch",
    precision: str = "float32",
    kinds: Sequence[str] = (HEADS, NEURONS),
    folder: Path | None = None,
    seconds: float = _SECONDS,
    progress: Progress = silent,
    clock: Clock = time.perf_counter,
) -> LatencyTable:
    """Measure what heads and neurons of one layer cost, by stack, on this machine.

    Parameters
    ----------
    loaded : LoadedModel
        Left as it is. Layers may have lost different numbers of units already.
    batches : sequence of Padded
        What a pass reads, such as :func:`~headscope.pruning.turns.usual_batches`; as many texts are
        taken to come in one as in another. Passes use the runtime's own number of threads.
    runtime, precision : str
        ``torch``, in the type of the model's weights, or ``onnxruntime`` with ``float32`` or
        ``int8`` weights (as they are exported).
    kinds : sequence of str
        ``heads``, ``neurons`` or both.
    folder : Path, optional
        Where float32 graphs of this model lie, or are left for the next call: they take longer to
        write than to time.
    seconds : float
        No round is started after so many, once there are seven.
    clock : callable
        Seconds, which ``seconds`` are counted in too: of the wall by default. For one thread on a
        busy machine ``time.process_time`` is far steadier, as it leaves other programs out.

    Raises
    ------
    InputError
        If the runtime does not run this precision, or packages are missing.
    UnsupportedModelError
        If a layer cannot be taken apart, or no graph be written of the model.
    """
    check_measurable(loaded, runtime, precision)
    whole = units_of(loaded, kinds)
    shares = _SHARES[runtime]
    knots = {group: grid(group[0], max(own), shares[group[0]]) for group, own in whole.items()}
    cuts: list[Cut] = [{}]
    cuts += [{group: count} for group, counts in knots.items() for count in counts[:-1]]
    cuts.append({group: _checked(group[0], max(own)) for group, own in whole.items()})
    with (
        _models(loaded, cuts, batches, runtime, precision, folder, progress) as models,
        passes(models, batches) as runs,
    ):
        spent = in_turns(
            runs,
            fewest=_FEWEST,
            most=_MOST,
            seconds=seconds,
            clock=clock,
            did=lambda rounds: progress("rounds timed", rounds, _MOST),
        )
    progress("rounds timed", _MOST, _MOST)
    shapes = shapes_of(batches)
    times = 1e3 * typical(spent) @ np.array([shape.share / shape.batch for shape in shapes])
    counts = [_cut_counts(whole, cut) for cut in cuts]
    rest, curves = fit_times(knots, counts[:-1], times[:-1].tolist())
    table = LatencyTable(
        runtime=runtime,
        precision=precision,
        device=loaded.device if runtime == "torch" else "cpu",
        threads=torch.get_num_threads(),
        shapes=shapes,
        repeats=len(spent),
        units=tuple(
            UnitTimes(*group, len(whole[group]), knots[group], ms) for group, ms in curves.items()
        ),
        rest=rest,
        whole=float(times[0]),
        checked=float(times[-1]),
        checked_predicted=0.0,
    )
    return dataclasses.replace(table, checked_predicted=table.predicted(counts[-1]))


def check_measurable(loaded: LoadedModel, runtime: str, precision: str) -> None:
    """Refuse what cannot be timed; to be asked before a long run."""
    if runtime == "torch":
        if precision != loaded.dtype:
            raise InputError(
                f"{loaded.name} runs in {loaded.dtype} in torch, so its times in {precision} "
                "cannot be measured there; choose the runtime onnxruntime for int8, or load the "
                "model in the type that you want."
            )
        return
    if precision not in ("float32", "int8"):
        raise InputError(f"Exported graphs are timed in float32 or int8, not in {precision}.")
    if loaded.encoder_decoder:
        raise UnsupportedModelError(
            f"{loaded.name} is an encoder-decoder model, of which headscope writes no ONNX graph, "
            "so its times are not measured in onnxruntime; choose the runtime torch."
        )
    need_packages()


def shapes_of(batches: Sequence[Padded]) -> tuple[Shape, ...]:
    """Describe batches; as many texts are taken to come in one as in another."""
    found = []
    for batch in batches:
        targets = batch.decoder_inputs.get("decoder_input_ids")
        target_length = None if targets is None else targets.shape[1]
        size, length = batch.input_ids.shape
        found.append(Shape(size, length, target_length, 1 / len(batches)))
    return tuple(found)


# --- which models -------------------------------------------------------------------------------


def units_of(loaded: LoadedModel, kinds: Sequence[str]) -> dict[Group, tuple[int, ...]]:
    """Count the units of every layer, as often as it runs, by kind and stack, if any can go."""
    found: dict[Group, list[int]] = {}
    if HEADS in kinds:
        for site in loaded.sites:
            found.setdefault((HEADS, site.stack), []).append(site.n_heads)
    if NEURONS in kinds:
        for item in feed_forwards(loaded):
            found.setdefault((NEURONS, item.stack), []).extend([item.width] * len(item.layers))
    fewest = {HEADS: 0, NEURONS: 1}  # one neuron always stays
    return {group: tuple(own) for group, own in found.items() if max(own) > fewest[group[0]]}


def grid(kind: str, most: int, shares: Iterable[float]) -> tuple[int, ...]:
    """Return the counts of units to measure, ascending: about these shares, and the whole layer.

    Neurons are multiples of 32, at least 32, but for the whole layer; a narrower one is measured
    with 1.
    """
    spaced = [most * share for share in shares]
    counts = [round(n) if kind == HEADS else max(1, round(n / STEP)) * STEP for n in spaced]
    fewer = sorted({n for n in counts if n < most}) or [1]
    return (*fewer, most)


def _checked(kind: str, most: int) -> int:
    """Return how many units the model keeps by which the table is checked."""
    kept = _CHECKED * most
    return max(1, round(kept)) if kind == HEADS or most < 2 * STEP else round(kept / STEP) * STEP


def _cut_counts(whole: Counts, cut: Cut) -> Counts:
    return {
        group: [min(n, cut[group]) for n in own] if group in cut else own
        for group, own in whole.items()
    }


def cut_evenly(loaded: LoadedModel, cut: Cut) -> LoadedModel:
    """Copy a model whose layers keep as many units each: the first ones, since all cost the same.

    Unlike :func:`~headscope.models.compact.remove_heads` this takes every head where it is asked
    to; such a model is good for nothing but timing. Weights are shared where nothing is cut.
    """
    heads = {stack: count for (kind, stack), count in cut.items() if kind == HEADS}
    neurons = {stack: count for (kind, stack), count in cut.items() if kind == NEURONS}
    if heads:
        kept = {s.name: s.head_ids[: heads[s.stack]] for s in loaded.sites if s.stack in heads}
        tensors = (*loaded.network.parameters(), *loaded.network.buffers())
        network = copy.deepcopy(loaded.network, {id(tensor): tensor for tensor in tensors})
        cut_modules(network, lambda _, item: kept.get(item.name))
        loaded = as_before(wrap(network, loaded.tokenizer, name=loaded.name), loaded)
    if neurons:
        gone = {
            item.name: item.neuron_ids[neurons[item.stack] :]
            for item in feed_forwards(loaded)
            if item.stack in neurons
        }
        loaded = remove_neurons(loaded, gone, share=True)
    return loaded


@contextmanager
def _models(
    loaded: LoadedModel,
    cuts: Sequence[Cut],
    batches: Sequence[Padded],
    runtime: str,
    precision: str,
    folder: Path | None,
    progress: Progress,
) -> Iterator[list[LoadedModel | Graph]]:
    """Yield the models to time; graphs lie in a folder, which is deleted unless it was given."""
    if runtime == "torch":
        yield [cut_evenly(loaded, cut) for cut in cuts]
        return
    typed = batches[0].token_type_ids is not None
    with tempfile.TemporaryDirectory() as own:
        graphs: list[LoadedModel | Graph] = []
        for done, cut in enumerate(cuts):
            progress("graphs written", done, len(cuts))
            path = (folder or Path(own)) / f"{done}.onnx"
            if not path.exists():
                write_graph(cut_evenly(loaded, cut), path, typed=typed)
            if precision == "int8":
                written, path = path, Path(own) / f"{done}.int8.onnx"
                quantize(written, path)
            graphs.append(Graph(path))
        progress("graphs written", len(cuts), len(cuts))
        yield graphs
