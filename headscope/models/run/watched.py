"""One tiny run of a model, with what every call of a module took and returned.

Whatever headscope knows of a layer's parts, it reads from these calls and not from their names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import AttentionInput
from headscope.models.run.hooks import first_tensor, hooked
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.site_hooks import watch_inputs

_CLOSE = 1e-4  # Share of the largest entry; float32 sums in another order differ by far less


class ModuleTurn(NamedTuple):
    """A module in one of its calls of a pass: ALBERT, for example, runs one in every layer."""

    module: nn.Module
    number: int  # Of the call, from 0


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a LayerNorm or an RMSNorm, torch's or a family's own."""
    named = type(module).__name__.endswith(("RMSNorm", "LayerNorm"))
    return isinstance(module, nn.LayerNorm) or (named and hasattr(module, "weight"))


@dataclass(frozen=True)
class Call:
    """One call of a module: what it took first and returned first."""

    module_turn: ModuleTurn
    start: int  # Counted in events of the run, the beginnings and ends of calls
    stop: int
    x: Tensor | None
    y: Tensor

    def encloses(self, other: Call) -> bool:
        """Whether another call was made inside this one."""
        return self.start < other.start and other.stop < self.stop

    @property
    def is_norm(self) -> bool:
        """Whether it is a LayerNorm or an RMSNorm."""
        return is_norm(self.module_turn.module)

    @property
    def is_map(self) -> bool:
        """Whether it is a linear map."""
        return isinstance(self.module_turn.module, nn.Linear | Conv1D)


@dataclass(frozen=True)
class Seen:
    """One tiny run of a model."""

    calls: tuple[Call, ...]  # In the order of their starts
    sites: tuple[AttentionSite, ...]
    inputs: dict[int, AttentionInput]  # By the row of the site
    last: Tensor  # The last hidden state

    @cached_property
    def by_module(self) -> dict[nn.Module, list[Call]]:
        """The calls of each module, in order."""
        calls: dict[nn.Module, list[Call]] = defaultdict(list)
        for call in self.calls:
            calls[call.module_turn.module].append(call)
        return calls

    def call_in(self, module_turn: ModuleTurn) -> Call:
        """Return what a module took and returned in its turn."""
        return self.by_module[module_turn.module][module_turn.number]

    @cached_property
    def writes(self) -> dict[int, Call]:
        """The call of each site's W_O, by its row: in ALBERT that of the module's turn."""
        writes: dict[int, Call] = {}
        turns = defaultdict[nn.Module, int](int)
        for site in self.sites:
            calls = self.by_module[site.projections.out.module]
            if turns[site.module] < len(calls):
                writes[site.row] = calls[turns[site.module]]
            turns[site.module] += 1
        return writes

    def around(self, sites: Sequence[AttentionSite]) -> list[Call]:
        """List the calls in which these sites run and no others, the innermost first."""
        rows = {site.row for site in sites}
        writes = [write for row, write in self.writes.items() if row in rows]
        other_writes = [write for row, write in self.writes.items() if row not in rows]
        return [
            call
            for call in reversed(self.calls)
            if all(map(call.encloses, writes)) and not any(map(call.encloses, other_writes))
        ]


def watch(loaded: LoadedModel) -> Seen:
    """Run three tokens, and keep every module's calls.

    Beginnings and ends of calls are counted, so that it is known which call was made in which.
    """
    calls: list[Call] = []
    starts: list[int] = []  # Of the calls that have not ended yet
    inputs: dict[int, AttentionInput] = {}
    events = 0
    turns = defaultdict[nn.Module, int](int)

    def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
        nonlocal events
        starts.append(events)
        events += 1

    def end(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        nonlocal events
        start = starts.pop()
        if (y := first_tensor(output)) is not None:
            module_turn = ModuleTurn(module, turns[module])
            calls.append(Call(module_turn, start, events, first_tensor(args, kwargs), y))
        turns[module] += 1
        events += 1

    modules = [module for module in loaded.model.modules() if module is not loaded.model]
    hooks = [m.register_forward_pre_hook(begin, with_kwargs=True) for m in modules]
    hooks += [m.register_forward_hook(end, with_kwargs=True) for m in modules]
    reading = watch_inputs(loaded.sites, lambda site, read: inputs.update({site.row: read}))
    with hooked(hooks), reading:
        last = loaded.run_tiny(_three_tokens(loaded))
    in_order = tuple(sorted(calls, key=lambda call: call.start))
    return Seen(in_order, loaded.sites, inputs, last)


def _three_tokens(loaded: LoadedModel) -> list[int]:
    """Return ids of tokens whose embedding is not zero: else every sum would equal its terms."""
    table = loaded.model.get_input_embeddings().weight.detach()
    used = table.any(1).nonzero()[:, 0].tolist()
    if not used:
        return [0, 0, 0]
    return [used[-1], used[len(used) // 3], used[len(used) // 2]]


#: The first tensors that some calls took and returned.
Captured = dict[ModuleTurn, tuple[Tensor, Tensor]]


@contextmanager
def capture(calls: Iterable[ModuleTurn]) -> Iterator[Captured]:
    """Capture the first tensor that goes into some calls of one run, and what comes out of them."""
    watched = set(calls)
    captured = Captured()
    turns = defaultdict[nn.Module, int](int)

    def keep(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        module_turn = ModuleTurn(module, turns[module])
        turns[module] += 1
        if module_turn in watched:
            captured[module_turn] = first_tensor(args, kwargs), first_tensor(output)

    modules = dict.fromkeys(module_turn.module for module_turn in watched)
    with hooked(module.register_forward_hook(keep, with_kwargs=True) for module in modules):
        yield captured


def near(a: Tensor, b: Tensor | None, minuend: Tensor | None = None) -> bool:
    """Whether tensors have one shape and equal numbers up to rounding.

    Where ``a`` is a difference, the rounding of the ``minuend`` is allowed, too.
    """
    if b is None or b.shape != a.shape or not a.is_floating_point():
        return False
    step = 4 * torch.finfo(a.dtype).eps
    slack = max(_CLOSE, step) * max(1e-6, float(a.abs().max()))
    if minuend is not None:
        slack += step * float(minuend.abs().max())
    return float((a - b).abs().max()) <= slack


def preceding_norms(loaded: LoadedModel) -> dict[int, nn.LayerNorm]:
    """Find the LayerNorm whose output is the input of each layer's W_Q, by the row of the site.

    A layer whose input comes from anything else (a projection of the embeddings, in ALBERT and
    ELECTRA) is missing. Post-LN and pre-LN models need no case of their own, and the rest of the
    layer need not be known.
    """
    seen = watch(loaded)
    norms: dict[int, nn.LayerNorm] = {}
    for row, read in seen.inputs.items():
        for call in seen.calls:
            module = call.module_turn.module
            same_memory = call.y.data_ptr() == read.x_q.data_ptr()
            same_tensor = same_memory and call.y.shape == read.x_q.shape
            if isinstance(module, nn.LayerNorm) and same_tensor:
                norms[row] = module
    return norms


def gain_and_shift(norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """Return what a LayerNorm multiplies by and adds; ones and zeros where it has none."""
    ones = torch.ones(norm.normalized_shape, dtype=torch.float64)
    gain: Tensor | None = norm.weight
    shift: Tensor | None = norm.bias
    if gain is None:
        gain = ones
    if shift is None:
        shift = torch.zeros_like(ones)
    return gain, shift
