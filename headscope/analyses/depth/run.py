"""``headscope depth``: how different tokens are layer by layer, with and without parts of layers.

*Windows* are stretches of the text, all of one length; they are what numbers are averaged over.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from headscope.analyses.depth import WINDOWS, DepthOptions
from headscope.analyses.depth.curves import curves_of
from headscope.analyses.depth.measure import measure_ratios, own_run
from headscope.analyses.depth.result import Decomposition, DepthControl, DepthCurves, DepthResult
from headscope.core.accumulator import Array
from headscope.core.errors import ValidationFailedError
from headscope.core.memory import release_memory
from headscope.core.progress import Progress
from headscope.core.serialise import SCHEMA
from headscope.data.batches import BATCH_TOKENS, LARGE
from headscope.data.corpus import as_plain
from headscope.data.packing import LENGTH, Windows, pack
from headscope.models.anatomy.layers import take_apart
from headscope.models.certificate.verdict import TOLERANCES
from headscope.models.run.devices import DTYPES, widest_dtype
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.side_by_side import side_by_side
from headscope.models.surgery.copies import cast, random_twin
from headscope.session.opening import Model, need_tokenizer, open_model
from headscope.session.provenance import provenance
from headscope.session.validate import require_valid


def run(model: Model, options: DepthOptions) -> DepthResult:
    """Measure how fast tokens become the same with depth, and what prevents it."""
    # Open the model and the text, and prove that our attention is the model's
    source = as_plain(options.text).first(options.limit)
    dtype = options.dtype or widest_dtype(options.device)
    opened = open_model(model, dtype=dtype, **options.loading)
    loaded = cast(opened, options.dtype) if options.dtype else opened
    need_tokenizer(loaded, "depth")
    if loaded.encoder_decoder:
        loaded = loaded.only("encoder")
    length = options.length
    if length is None:
        length = min(LENGTH, loaded.max_length)
    windows = pack(source, loaded, length)
    validation = require_valid(loaded, options.validate)

    # The model
    anatomy = take_apart(loaded)
    chosen = windows.spread(options.sequences or _windows_by_default(loaded))
    floor = float(10 * torch.finfo(DTYPES[loaded.dtype]).eps)
    curves, gap = _measure(loaded, windows, chosen, floor, options.tell, "model")
    result = DepthResult(
        **vars(curves),
        schema=SCHEMA,
        provenance=provenance(loaded, command=options.command, seed=options.seed, data=source),
        validation=validation,
        decomposition=Decomposition(gap, TOLERANCES[loaded.dtype]["hidden"]),
        layer_norm=anatomy.norm_placement,
        stack=loaded.stacks[0],
        layers=tuple(layer.sites[0].layer for layer in anatomy.layers),
        length=length,
        sequences=len(chosen),
        available=len(windows),
        floor=floor,
    )
    if not options.control:
        return result

    # Random weights. Two models in float64 at a time would be the most memory that depth takes, so
    # a model that was opened or copied here makes room for its twin.
    is_ours = isinstance(model, str | Path) or loaded.network is not opened.network
    twin = random_twin(loaded, options.seed, instead=is_ours)
    del loaded, anatomy
    random, _ = _measure(twin, windows, chosen, floor, options.tell, "control")
    return dataclasses.replace(result, control=DepthControl(**vars(random), seed=options.seed))


def _windows_by_default(loaded: LoadedModel) -> int:
    """Return how many windows are measured: fewer of a large model."""
    parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
    return WINDOWS if parameters <= LARGE else WINDOWS // 2


def _measure(
    loaded: LoadedModel,
    windows: Windows,
    chosen: Array,
    floor: float,
    progress: Progress,
    name: str,
) -> tuple[DepthCurves, float]:
    """Run the ``chosen`` windows (their indices) through every variant.

    Also returns how far the full variant is from the model, which is refused if it is too far.
    """
    measured: list[Array] = []
    worst = 0.0
    done = 0
    at_once = max(1, BATCH_TOKENS // 4 // windows.length)  # in float64
    batches = [chosen[start : start + at_once] for start in range(0, len(chosen), at_once)]

    @contextmanager
    def running(replica: LoadedModel) -> Iterator[Callable[[Array], tuple[Array, float]]]:
        """Give the function that one replica of the model, in its own thread, runs on batches."""
        layers = take_apart(replica).layers

        def run(batch: Array) -> tuple[Array, float]:
            input_ids = torch.from_numpy(windows.batch(batch)).to(replica.device)
            return measure_ratios(replica, layers, own_run(replica, layers, input_ids))

        yield run

    for ratios, gap in side_by_side(loaded, batches, running):
        worst = max(worst, gap)
        done += ratios.shape[-1]
        check_decomposition(loaded, worst)
        measured.append(ratios)
        release_memory()  # what lies between blocks in use grows with every batch
        progress(name, done, len(chosen))
    return curves_of(np.concatenate(measured, axis=-1), floor), worst


def check_decomposition(loaded: LoadedModel, gap: float) -> None:
    """Refuse a model whose layers, put together again, do not give its own hidden states."""
    tolerance = TOLERANCES[loaded.dtype]["hidden"]
    if not gap <= tolerance:
        raise ValidationFailedError(
            f"The layers of {loaded.name}, taken apart and put together again, do not give its own "
            f"hidden states (they differ by {gap:.1e}, tolerance {tolerance:.1e}), so nothing is "
            f"reported: this {loaded.family} layer has parts that headscope does not know."
        )
