"""One layer of a half-precision model, run once more in float32 on the very same inputs.

In half precision a rotation that is wrong by one percent moves scores by less than they are rounded
to, and no fit of a factor shows it. The layer's own module shows it in float32: its weights and its
inputs are those of the model, only the arithmetic is finer. One layer at a time is widened, so
memory grows by the weights of one layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.cache_utils import Cache

from headscope.models.certificate.canonical import (
    Distance,
    distance,
    rounding_units,
    run_canonical,
)
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import AttentionInput
from headscope.models.run.hooks import hooked
from headscope.models.run.implementation import use_implementation
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.recording import MISREAD, SiteRecord, Softmaxes

_HALF = (torch.float16, torch.bfloat16)


def float32_distance(
    loaded: LoadedModel,
    site: AttentionSite,
    inputs: AttentionInput,
    allowed: Tensor,
    real: Tensor,
) -> Distance | None:
    """Compare the layer's own module with the textbook form, both in float32.

    ``inputs`` is what the eager run handed to the layer, ``allowed`` (batch, query_pos, key_pos)
    which keys each query may see, and ``real`` (batch, query_pos) marks queries that are no
    padding. None where the module does not run alone.
    """
    if loaded.model.dtype not in _HALF or site.n_heads == 0:
        return None
    with _widened([site.module, site.projections.out.module]), torch.no_grad():
        record = _run_alone(loaded, site, inputs.arguments)
        if record is None:
            return None
        canonical = run_canonical(site, record, allowed)
        if canonical is None or record.inputs is None:
            return Distance(None, None)
        units = rounding_units(site, canonical, record.inputs)
        return distance(site, canonical, record, units, real)


def _run_alone(
    loaded: LoadedModel, site: AttentionSite, arguments: Mapping[str, Any]
) -> SiteRecord | None:
    """Run one attention module with its model's eager attention; None where it does not run."""
    wide = {name: _wide(argument) for name, argument in arguments.items()}
    softmaxes = Softmaxes(joined=site.layout.joins_examples)
    outputs: list[tuple[Tensor, Tensor]] = []  # What entered and left the output map, if it ran

    def keep(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        outputs.append((args[0], output))

    def hook() -> Iterator[RemovableHandle]:
        yield site.projections.out.module.register_forward_hook(keep)

    try:
        with use_implementation(loaded.model, "eager"), hooked(hook()), softmaxes:
            returned = site.module(**wide)
            if not outputs:  # BERT's map lies outside of the module
                site.projections.out.module(returned[0])
        inputs = site.layout.read(site.module, (), wide)
    except MISREAD:
        return None
    z, out = outputs[-1]
    return SiteRecord(
        inputs=inputs,
        q=None,
        k=None,
        z=site.projections.out.entering(z),
        out=site.projections.out.leaving(out),
        pattern=softmaxes.taken(site),
    )


def _wide(argument: Any) -> Any:
    """Return an argument with its half-precision tensors in float32, also those in a tuple.

    A cache is left out: it has the keys of the run already.
    """
    if isinstance(argument, Cache):
        return None
    if isinstance(argument, Tensor):
        return argument.float() if argument.dtype in _HALF else argument
    if isinstance(argument, tuple | list):
        return type(argument)(_wide(item) for item in argument)
    return argument


@contextmanager
def _widened(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Hold the half-precision weights of some modules in float32 while the block runs."""
    before: dict[Tensor, Tensor] = {}
    for module in modules:
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.dtype in _HALF:
                before[tensor] = tensor.data
                tensor.data = tensor.data.float()
    try:
        yield
    finally:
        for tensor, data in before.items():
            tensor.data = data
