"""The benchmark: the full model and the pruned one, timed side by side as a user would run them.

Both run transformers' own attention (SDPA, or eager of a family that has no other), without
gradients and without anything of ours: what is measured is what is gained after the model was saved
and left this program. Where the pruned model
was exported, both run as ONNX graphs too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headscope.artefacts.onnx_graph import attention_parts
from headscope.artefacts.onnx_session import Graph, runtime_version
from headscope.core.errors import InputError
from headscope.core.progress import Progress, silent
from headscope.models.loaded import LoadedModel
from headscope.models.routing import own_implementation, use_implementation
from headscope.pruning.result import GraphTimes, SpeedResult, SpeedRow
from headscope.pruning.turns import wait

LENGTHS, BATCH_SIZES = (32, 128, 512), (1, 8)
#: Passes of each model and kind: at least, at most, and seconds after which no more are started.
_FEWEST, _MOST, _SECONDS = 5, 101, 6.0


class GraphFiles(NamedTuple):
    """Both models as ONNX graphs, on disk."""

    full: Path
    pruned: Path
    int8: Path | None = None  # the pruned one with weights of 8 bits


def benchmark(
    full: LoadedModel,
    pruned: LoadedModel,
    *,
    lengths: Sequence[int] = LENGTHS,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    seed: int = 0,
    progress: Progress = silent,
    graphs: GraphFiles | None = None,
    seconds: float | None = None,
) -> SpeedResult:
    """Time two models on the same inputs, taking turns, and compare with their multiplications.

    Every combination of lengths and batch sizes is timed; lengths over the model's limit are left
    out. The same models as ``graphs`` run in onnxruntime on the CPU with as many threads. After
    ``seconds`` no more passes of one shape and kind are started; five are made in any case.
    """
    shapes = list(product(fitting_lengths(full, lengths, batch_sizes), batch_sizes))
    sessions = [Graph(path) for path in graphs or () if path is not None]
    rows = []
    implementation = own_implementation(full.network)
    with (
        use_implementation(full.network, implementation),
        use_implementation(pruned.network, implementation),
        torch.inference_mode(),
    ):
        for done, (n, size) in enumerate(shapes):
            progress("benchmark", done, len(shapes))
            generator = torch.Generator().manual_seed(seed)
            tokens = min(full.vocab_size, pruned.vocab_size)  # ids that both of them have
            ids = torch.randint(tokens, (size, n), generator=generator).to(full.device)
            rows.append(_row(full, pruned, ids, graphs, sessions, seconds))
    progress("benchmark", len(shapes), len(shapes))
    heads = [sum(site.n_heads for site in model.sites) for model in (full, pruned)]
    sizes = [sum(p.numel() for p in model.network.parameters()) for model in (full, pruned)]
    return SpeedResult(
        device=full.device,
        dtype=full.dtype,
        threads=torch.get_num_threads(),
        implementation=implementation,
        heads_full=heads[0],
        heads_pruned=heads[1],
        parameters_full=sizes[0],
        parameters_pruned=sizes[1],
        rows=tuple(rows),
        onnxruntime=None if graphs is None else runtime_version(),
    )


def shapes_of(full: LoadedModel) -> list[tuple[int, int]]:
    """List the shapes that a benchmark times by default: length and batch size."""
    return [(n, size) for n in LENGTHS if n <= full.max_length for size in BATCH_SIZES]


def seconds_of_shape(one: float, graphs: int) -> float:
    """Say about how many seconds one shape takes: passes of ``one`` second, ``graphs`` besides."""

    def in_turns(runs: int) -> float:
        turn = runs * one
        return min((1 + _MOST) * turn, max(_SECONDS + turn, (1 + _FEWEST) * turn))

    return in_turns(2 + graphs) + in_turns(2) + (in_turns(2) if graphs else 0.0)


def fitting_lengths(
    full: LoadedModel, lengths: Sequence[int] = LENGTHS, batch_sizes: Sequence[int] = BATCH_SIZES
) -> list[int]:
    """Return the lengths that a model can be timed at; refuses if there is none."""
    fitting = [n for n in lengths if n <= full.max_length]
    if not fitting or min((*fitting, *batch_sizes), default=0) < 1:
        raise InputError(
            f"No length of {list(lengths)} with batches of {list(batch_sizes)} can be timed: "
            f"{full.name} takes 1 to {full.max_length} tokens."
        )
    return fitting


def _row(
    full: LoadedModel,
    pruned: LoadedModel,
    ids: Tensor,
    graphs: GraphFiles | None,
    sessions: Sequence[Graph],
    seconds: float | None,
) -> SpeedRow:
    """Time one shape of input."""
    mask, models = torch.ones_like(ids), (full, pruned)
    runs: list[Callable[[], object]] = [partial(_pass, model, ids, mask) for model in models]
    runs += [partial(session.run, ids, mask) for session in sessions]
    spent = _in_turns(runs, seconds)
    times = [1e3 * statistics.median(each) for each in spent]
    attention = _attention_in_turns(models, ids, mask, seconds)
    work, attention_work = zip(*(_work(m, ids, mask) for m in models), strict=True)
    onnx = None
    if graphs is not None:
        profiled = [Graph(path, profile=True) for path in (graphs.full, graphs.pruned)]
        _in_turns([partial(graph.run, ids, mask) for graph in profiled], seconds)
        onnx_attention = [graph.attention_seconds() for graph in profiled]
        onnx = GraphTimes(
            full_ms=times[2],
            pruned_ms=times[3],
            int8_ms=None if graphs.int8 is None else times[4],
            ratio=times[3] / times[2],
            attention_full_ms=1e3 * onnx_attention[0],
            attention_pruned_ms=1e3 * onnx_attention[1],
            attention_ratio=onnx_attention[1] / onnx_attention[0],
        )
    return SpeedRow(
        length=ids.shape[1],
        batch_size=ids.shape[0],
        repeats=len(spent[0]),
        full_ms=times[0],
        pruned_ms=times[1],
        ratio=times[1] / times[0],
        predicted_ratio=work[1] / work[0],
        attention_full_ms=1e3 * attention[0],
        attention_pruned_ms=1e3 * attention[1],
        attention_ratio=attention[1] / attention[0],
        attention_predicted_ratio=attention_work[1] / attention_work[0],
        onnx=onnx,
    )


# --- time -------------------------------------------------------------------------------------


def _in_turns(runs: Sequence[Callable[[], object]], seconds: float | None) -> list[list[float]]:
    """Return the seconds of every pass of each run, after one that is not counted.

    The first pass of a shape compiles products and fills caches.
    """
    for run in runs:
        run()
    spent: list[list[float]] = [[] for _ in runs]
    start, most = time.perf_counter(), _SECONDS if seconds is None else seconds
    for repeat in range(_MOST):
        if repeat >= _FEWEST and time.perf_counter() - start > most:
            break
        # Taking turns in both orders: nobody always runs on the same other's warm cache.
        order = range(len(runs)) if repeat % 2 else reversed(range(len(runs)))
        for i in order:
            began = time.perf_counter()
            runs[i]()
            spent[i].append(time.perf_counter() - began)
    return spent


def _attention_in_turns(
    models: Sequence[LoadedModel], ids: Tensor, mask: Tensor, seconds: float | None
) -> tuple[float, ...]:
    """Return the seconds that one pass of each model spends in attention.

    Of every part of every layer (W_O, where it lies outside, is one) the median is taken, then
    their sum: a pass that was interrupted by another program was so in one part.
    """
    parts: list[list[list[float]]] = [[] for _ in models]

    def clocked(i: int) -> None:
        spent: list[float] = []

        def started(_module: nn.Module, _args: object) -> None:
            wait(ids.device)
            spent.append(-time.perf_counter())

        def ended(_module: nn.Module, _args: object, _output: object) -> None:
            wait(ids.device)
            spent[-1] += time.perf_counter()

        with ExitStack() as hooks:
            for part in attention_parts(models[i].sites):
                hooks.callback(part.register_forward_pre_hook(started).remove)
                hooks.callback(part.register_forward_hook(ended).remove)
            _pass(models[i], ids, mask)
        parts[i].append(spent)

    _in_turns([partial(clocked, i) for i in range(len(models))], seconds)
    return tuple(sum(map(statistics.median, zip(*each[1:], strict=True))) for each in parts)


def _pass(loaded: LoadedModel, ids: Tensor, mask: Tensor) -> None:
    """Run one whole pass, and wait until it is done."""
    # The decoder of an encoder-decoder model reads as many tokens as its encoder.
    loaded.run(ids, mask, decoder_input_ids=ids if loaded.encoder_decoder else None)
    wait(ids.device)


# --- multiplications ----------------------------------------------------------------------------


def _work(loaded: LoadedModel, ids: Tensor, mask: Tensor) -> tuple[int, int]:
    """Count multiplications of one pass: of the whole model, and of the attention in its sites.

    Those of every linear map, and 2 n^2 d_head for each head and sequence (scores, and pattern v);
    in cross-attention as many target as source positions. Softmax, LayerNorm, activations and
    embeddings are not counted.
    """
    ours = {linear.module for site in loaded.sites for linear in vars(site.projections).values()}
    done = {True: 0, False: 0}

    def count(linear: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        done[linear in ours] += args[0].shape[-1] * output.numel()

    with ExitStack() as hooks:
        for module in loaded.network.modules():  # GPT-2's linear maps are of a class of their own
            if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
                hooks.callback(module.register_forward_hook(count).remove)
        _pass(loaded, ids, mask)
    batch, n = ids.shape

    heads, others = (
        sum(2 * batch * n * n * site.n_heads * site.d_head for site in sites)
        for sites in (loaded.sites, loaded.others)
    )
    attention = done[True] + heads
    return attention + done[False] + others, attention
