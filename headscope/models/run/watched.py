"""One tiny run of a model, with the input and the output of every module that was called in it.

Whatever headscope knows of a layer's parts, it reads from these calls and not from module names:
the norm before a layer, say, is the one whose output is the layer's input.

:func:`watch` makes the run and returns it as :class:`Seen`. :func:`capture` watches a few known
calls in any other run. At the end stand the comparisons that are made with their tensors.

A *site* is a layer of attention, and its *row* its place among the sites of the model. An
``AttentionInput`` is what a site's attention is called with: ``x_q``, ``x_k`` and ``x_v``, the
states that W_Q, W_K and W_V are applied to.
"""

from __future__ import annotations

from collections import Counter, defaultdict
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
from headscope.models.layouts.normed import gain_of
from headscope.models.run.hooks import first_tensor, hooked
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.site_hooks import watch_inputs

_TOKENS = 3  # Of the tiny run
_CLOSE = 1e-4  # Share of the largest entry; float32 sums in another order differ by far less


class ModuleTurn(NamedTuple):
    """Which call of which module: ``(norm, 2)`` is the third call of ``norm`` in a pass.

    Most modules are called once a pass; those of ALBERT once in every layer.
    """

    module: nn.Module
    number: int  # Of its call in the pass, from 0


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a LayerNorm or an RMSNorm, torch's or a family's own."""
    named = type(module).__name__.endswith(("RMSNorm", "LayerNorm"))
    if isinstance(module, nn.LayerNorm):
        return True
    return named and (hasattr(module, "weight") or hasattr(module, "normalized_shape"))


@dataclass(frozen=True)
class Call:
    """One call of a module, with the first tensor of its arguments and of its output.

    Beginnings and ends of all calls are numbered in the order in which they happen: where a layer
    calls a norm and then a map, the layer has (start, stop) = (0, 5), the norm (1, 2), the map
    (3, 4).
    """

    module_turn: ModuleTurn
    start: int
    stop: int
    x: Tensor | None  # Its input; None where no argument is a tensor
    y: Tensor  # Its output

    @property
    def module(self) -> nn.Module:
        """The module that was called."""
        return self.module_turn.module

    @property
    def is_norm(self) -> bool:
        """Whether the module is a LayerNorm or an RMSNorm."""
        return is_norm(self.module)

    @property
    def is_map(self) -> bool:
        """Whether the module is a linear map."""
        return isinstance(self.module, nn.Linear | Conv1D)

    def encloses(self, other: Call) -> bool:
        """Whether another call was made inside this one."""
        return self.start < other.start and other.stop < self.stop


@dataclass(frozen=True)
class Seen:
    """One tiny run of a model."""

    calls: tuple[Call, ...]  # In the order of their starts
    sites: tuple[AttentionSite, ...]
    inputs: dict[int, AttentionInput]  # What each site's attention is called with, by its row
    last: Tensor  # The last hidden state

    @cached_property
    def by_module(self) -> dict[nn.Module, list[Call]]:
        """The calls of each module, in order."""
        calls: dict[nn.Module, list[Call]] = defaultdict(list)
        for call in self.calls:
            calls[call.module].append(call)
        return calls

    def call_in(self, module_turn: ModuleTurn) -> Call:
        """Look up the call of a module by its number, with its tensors in this run."""
        return self.by_module[module_turn.module][module_turn.number]

    @cached_property
    def writes(self) -> dict[int, Call]:
        """The call of each site's output map W_O, by the row of the site.

        With that call a site writes into the residual stream. Where layers share one module
        (ALBERT), the first of them has its first call, and so on.
        """
        writes: dict[int, Call] = {}
        earlier_sites = Counter[nn.Module]()  # How many sites before have the same module
        for site in self.sites:
            calls = self.by_module[site.projections.out.module]
            number = earlier_sites[site.module]
            if number < len(calls):
                writes[site.row] = calls[number]
            earlier_sites[site.module] += 1
        return writes

    def around(self, sites: Sequence[AttentionSite]) -> list[Call]:
        """List the calls inside which all these sites run and no other site, innermost first.

        For the one site of a BERT layer: the attention block, then the layer.
        """
        rows = {site.row for site in sites}
        writes = [write for row, write in self.writes.items() if row in rows]
        other_writes = [write for row, write in self.writes.items() if row not in rows]
        around: list[Call] = []
        for call in reversed(self.calls):  # a call starts after the calls that enclose it
            holds_all = all(call.encloses(write) for write in writes)
            holds_others = any(call.encloses(write) for write in other_writes)
            if holds_all and not holds_others:
                around.append(call)
        return around


def watch(loaded: LoadedModel) -> Seen:
    """Run three tokens, and keep the calls of every module."""
    calls: list[Call] = []
    open_starts: list[int] = []  # Starts of the calls that have not ended yet, the innermost last
    inputs: dict[int, AttentionInput] = {}
    events = 0  # Beginnings and ends of calls so far
    call_counts = Counter[nn.Module]()

    def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
        nonlocal events
        open_starts.append(events)
        events += 1

    def end(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        nonlocal events
        start = open_starts.pop()
        if (y := first_tensor(output)) is not None:
            module_turn = ModuleTurn(module, call_counts[module])
            x = first_tensor(args, kwargs)
            x = None if x is None else _by_example(x)
            # A copy: what follows may add to it in place (Falcon).
            call = Call(module_turn, start=start, stop=events, x=x, y=_by_example(y).clone())
            calls.append(call)
        call_counts[module] += 1
        events += 1

    def read(site: AttentionSite, site_inputs: AttentionInput) -> None:
        inputs[site.row] = site_inputs

    modules = [module for module in loaded.model.modules() if module is not loaded.model]
    hooks = [m.register_forward_pre_hook(begin, with_kwargs=True) for m in modules]
    hooks += [m.register_forward_hook(end, with_kwargs=True) for m in modules]
    with hooked(hooks), watch_inputs(loaded.sites, read):
        last = loaded.run_tiny(_three_tokens(loaded))
    in_order = tuple(sorted(calls, key=lambda call: call.start))
    return Seen(in_order, loaded.sites, inputs, last)


def _by_example(tensor: Tensor) -> Tensor:
    """Give the states of the one example their axis of examples, where a family flattens it (OPT).

    (3, d_model) -> (1, 3, d_model): a run has three tokens.
    """
    return tensor[None] if tensor.dim() == 2 and len(tensor) == _TOKENS else tensor


def _three_tokens(loaded: LoadedModel) -> list[int]:
    """Return ids of three tokens whose embeddings are not zero, from all over the vocabulary.

    With embeddings of zero, x + f(x) could not be told from f(x).
    """
    table = loaded.model.get_input_embeddings().weight.detach()  # [tokens, width]
    not_zero = table.any(dim=1).nonzero()[:, 0].tolist()
    if not not_zero:
        return [0, 0, 0]
    return [not_zero[-1], not_zero[len(not_zero) // 3], not_zero[len(not_zero) // 2]]


#: Input and output of some calls: the first tensor of the arguments, and of what is returned.
Captured = dict[ModuleTurn, tuple[Tensor, Tensor]]


@contextmanager
def capture(calls: Iterable[ModuleTurn]) -> Iterator[Captured]:
    """Keep input and output of some calls, in the one run that is made in the block."""
    watched = set(calls)
    captured = Captured()
    call_counts = Counter[nn.Module]()

    def keep(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        module_turn = ModuleTurn(module, call_counts[module])
        call_counts[module] += 1
        if module_turn in watched:
            # A copy: what follows may change it in place (the clip of OLMo).
            captured[module_turn] = first_tensor(args, kwargs), first_tensor(output).clone()

    modules = dict.fromkeys(module_turn.module for module_turn in watched)
    with hooked(module.register_forward_hook(keep, with_kwargs=True) for module in modules):
        yield captured


def near(a: Tensor, b: Tensor | None, minuend: Tensor | None = None) -> bool:
    """Whether two tensors have one shape and equal numbers up to rounding.

    Where ``a`` is a difference ``minuend - x`` of two large, nearly equal tensors, give the
    ``minuend``: its rounding, which may be far larger than that of ``a``, is allowed for too.
    """
    if b is None or b.shape != a.shape or not a.is_floating_point():
        return False
    rounding = 4 * torch.finfo(a.dtype).eps  # of one number, relative to it
    largest = max(1e-6, float(a.abs().max()))  # zeros equal numbers below rounding
    slack = max(_CLOSE, rounding) * largest
    if minuend is not None:
        slack += rounding * float(minuend.abs().max())
    return float((a - b).abs().max()) <= slack


def preceding_norms(loaded: LoadedModel) -> dict[int, nn.Module]:
    """Find the norm whose output is the input of each layer's W_Q, by the row of the site.

    A layer whose input comes from anything else (a projection of the embeddings, in ALBERT and
    ELECTRA) is missing. It does not matter whether norms stand before or after a layer.
    """
    seen = watch(loaded)
    norms: dict[int, nn.Module] = {}
    for row, inputs in seen.inputs.items():
        for call in seen.calls:
            # The same numbers, as a view of the norm's output may be what reaches the layer.
            if call.is_norm and torch.equal(call.y, inputs.x_q):
                norms[row] = call.module
    return norms


def gain_and_shift(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the gain and the shift of a norm; ones and zeros where it has none.

    Those of a family's own norm are told by what it does: Nemotron's LayerNorm adds 1 to its
    weight.
    """
    any_norm: Any = norm
    if getattr(any_norm, "weight", None) is None and hasattr(
        any_norm, "normalized_shape"
    ):  # OLMo 1
        ones = torch.ones(any_norm.normalized_shape, dtype=torch.float64)
        return ones, torch.zeros_like(ones)
    if type(norm).forward is not nn.LayerNorm.forward:
        gain = gain_of(norm)
        own_shift: Tensor | None = getattr(norm, "bias", None)
        return gain, torch.zeros_like(gain) if own_shift is None else own_shift.detach()
    assert isinstance(norm, nn.LayerNorm)
    ones = torch.ones(norm.normalized_shape, dtype=torch.float64)
    weight: Tensor | None = norm.weight
    bias: Tensor | None = norm.bias
    if weight is None:
        weight = ones
    if bias is None:
        bias = torch.zeros_like(ones)
    return weight, bias
