"""The benchmark: the full model and the pruned one, timed side by side as a user would run them.

Both run transformers' own SDPA attention, without gradients and without anything of ours: what is
measured is what is gained after the model was saved and left this program.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headscope.errors import InputError
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.routing import use_implementation
from headscope.pipeline.progress import Progress, silent
from headscope.results.speed import SpeedResult, SpeedRow

LENGTHS, BATCH_SIZES = (32, 128, 512), (1, 8)
_IMPLEMENTATION = "sdpa"
#: Passes of each model and kind: at least, at most, and seconds after which no more are started.
_FEWEST, _MOST, _SECONDS = 5, 31, 6.0


def benchmark(
    full: LoadedModel,
    pruned: LoadedModel,
    *,
    lengths: Sequence[int] = LENGTHS,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    seed: int = 0,
    progress: Progress = silent,
) -> SpeedResult:
    """Time two models on the same inputs, taking turns, and compare with their multiplications.

    Parameters
    ----------
    full, pruned : LoadedModel
        The second with heads physically removed.
    lengths, batch_sizes : sequence of int
        Every combination is timed; lengths over the model's limit are left out.
    seed : int
        Of the token ids.
    progress : callable, optional
        Called as ``progress("benchmark", done, all)``.

    Returns
    -------
    SpeedResult
        Medians, their ratios, and the ratios that the multiplications predict.

    Raises
    ------
    InputError
        If no length fits the model.
    """
    fitting = [n for n in lengths if n <= full.max_length]
    if not fitting or min((*fitting, *batch_sizes), default=0) < 1:
        raise InputError(
            f"No length of {list(lengths)} with batches of {list(batch_sizes)} can be timed: "
            f"{full.name} takes 1 to {full.max_length} tokens."
        )
    shapes = [(n, size) for n in fitting for size in batch_sizes]
    rows = []
    with (
        use_implementation(full.network, _IMPLEMENTATION),
        use_implementation(pruned.network, _IMPLEMENTATION),
        torch.inference_mode(),
    ):
        for done, (n, size) in enumerate(shapes):
            progress("benchmark", done, len(shapes))
            rows.append(_row(full, pruned, n, size, seed))
    progress("benchmark", len(shapes), len(shapes))
    return SpeedResult(
        device=full.device,
        dtype=full.dtype,
        threads=torch.get_num_threads(),
        implementation=_IMPLEMENTATION,
        heads_full=sum(site.n_heads for site in full.sites),
        heads_pruned=sum(site.n_heads for site in pruned.sites),
        parameters_full=sum(parameter.numel() for parameter in full.network.parameters()),
        parameters_pruned=sum(parameter.numel() for parameter in pruned.network.parameters()),
        rows=tuple(rows),
    )


def _row(full: LoadedModel, pruned: LoadedModel, length: int, size: int, seed: int) -> SpeedRow:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(full.vocab_size, (size, length), generator=generator).to(full.device)
    mask = torch.ones_like(ids)
    whole, attention, repeats = _timed(full, pruned, ids, mask)
    work, attention_work = zip(*(_work(m, ids, mask) for m in (full, pruned)), strict=True)
    return SpeedRow(
        length=length,
        batch_size=size,
        repeats=repeats,
        full_ms=1e3 * whole[0],
        pruned_ms=1e3 * whole[1],
        ratio=whole[1] / whole[0],
        predicted_ratio=work[1] / work[0],
        attention_full_ms=1e3 * attention[0],
        attention_pruned_ms=1e3 * attention[1],
        attention_ratio=attention[1] / attention[0],
        attention_predicted_ratio=attention_work[1] / attention_work[0],
    )


# --- time -------------------------------------------------------------------------------------


def _timed(
    full: LoadedModel, pruned: LoadedModel, ids: Tensor, mask: Tensor
) -> tuple[list[float], list[float], int]:
    """Return median seconds of both models: whole passes, and their attention part."""
    models = (full, pruned)
    whole: tuple[list[float], list[float]] = ([], [])
    attention: tuple[list[float], list[float]] = ([], [])
    for model in models:  # the first pass of a shape compiles products and fills caches
        _seconds(model, ids, mask)
    start = time.perf_counter()
    for repeat in range(_MOST):
        if repeat >= _FEWEST and time.perf_counter() - start > _SECONDS:
            break
        # Taking turns in both orders: neither model always runs on the other's warm cache.
        for i in (0, 1) if repeat % 2 else (1, 0):
            whole[i].append(_seconds(models[i], ids, mask))
            with _attention_clock(models[i].sites, ids.device) as spent:
                _seconds(models[i], ids, mask)
            attention[i].append(sum(spent))
    medians = ([statistics.median(t) for t in kind] for kind in (whole, attention))
    return next(medians), next(medians), len(whole[0])


def _seconds(loaded: LoadedModel, ids: Tensor, mask: Tensor) -> float:
    _wait(ids.device)
    start = time.perf_counter()
    _run(loaded, ids, mask)
    _wait(ids.device)
    return time.perf_counter() - start


def _run(loaded: LoadedModel, ids: Tensor, mask: Tensor) -> None:
    """Run one pass; the decoder of an encoder-decoder model reads as many tokens as its encoder."""
    loaded.run(ids, mask, decoder_input_ids=ids if loaded.encoder_decoder else None)


@contextmanager
def _attention_clock(sites: Sequence[AttentionSite], device: torch.device) -> Iterator[list[float]]:
    """Collect the seconds spent in each site's attention and, where it lies outside, in its W_O."""
    spent: list[float] = []

    def started(_module: nn.Module, _args: object) -> None:
        _wait(device)
        spent.append(-time.perf_counter())

    def ended(_module: nn.Module, _args: object, _output: object) -> None:
        _wait(device)
        spent[-1] += time.perf_counter()

    hooks = []
    for part in _attention_parts(sites):
        hooks.append(part.register_forward_pre_hook(started))
        hooks.append(part.register_forward_hook(ended))
    try:
        yield spent
    finally:
        for hook in hooks:
            hook.remove()


def _attention_parts(sites: Sequence[AttentionSite]) -> list[nn.Module]:
    """List the modules that make up attention, none inside another."""
    parts: list[nn.Module] = []
    for module, site in {site.module: site for site in sites}.items():
        parts.append(module)
        if all(part is not site.projections.out.module for part in module.modules()):
            parts.append(site.projections.out.module)
    return parts


def _wait(device: torch.device) -> None:
    """Let a device that works on its own finish."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


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

    linears = [module for module in loaded.network.modules() if _is_linear(module)]
    hooks = [linear.register_forward_hook(count) for linear in linears]
    try:
        _run(loaded, ids, mask)
    finally:
        for hook in hooks:
            hook.remove()
    batch, n = ids.shape

    def heads(sites: Sequence[AttentionSite]) -> int:
        return sum(2 * batch * n * n * site.n_heads * site.d_head for site in sites)

    attention = done[True] + heads(loaded.sites)
    return attention + done[False] + heads(loaded.others), attention


def _is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear map; GPT-2's are of a class of their own."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
