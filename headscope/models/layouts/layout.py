"""What an attention layout is: where its four maps are, and what happens to q and k besides.

A family is covered by a layout, not by its name: families that share one (bert, roberta, electra,
xlm-roberta, camembert, ...) need nothing of their own. Recognising a layout proves nothing: the
certificate does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from headscope.attention import Mask

if TYPE_CHECKING:
    from headscope.models.layouts.sites import AttentionSite


@dataclass(frozen=True)
class LinearMap:
    """One of the maps ``x W + b`` of an attention module."""

    #: Where it is stored: an ``nn.Linear``, or the ``Conv1D`` of GPT-2, which keeps W transposed.
    module: Any
    #: Which of several maps of equal size that are stored one behind the other (fused q, k, v).
    part: int = 0
    parts: int = 1

    @property
    def weight(self) -> Tensor:
        """The map as ``nn.Linear`` has it, (n_out, n_in): a view of what is stored."""
        stored: Tensor = self.module.weight
        return self._own(stored.t() if isinstance(self.module, Conv1D) else stored)

    @property
    def bias(self) -> Tensor | None:
        """Its bias, (n_out,): a view; None where it has none."""
        stored: Tensor | None = self.module.bias
        return None if stored is None else self._own(stored)

    @property
    def in_features(self) -> int:
        """Width of x."""
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        """Width of ``x W + b``."""
        return self.weight.shape[0]

    def __call__(self, x: Tensor) -> Tensor:
        """Return ``x W + b`` for x (..., n_in)."""
        if self.parts > 1:
            return F.linear(x, self.weight, self.bias)
        out: Tensor = self.module(x)
        return out

    def entering(self, given: Tensor) -> Tensor:
        """Turn what the stored module is called with into x (batch, pos, n_in)."""
        return given

    def leaving(self, returned: Tensor) -> Tensor:
        """Turn what the stored module returns into (batch, pos, n_out)."""
        return returned if self.parts == 1 else returned.chunk(self.parts, dim=-1)[self.part]

    def fit(self) -> None:
        """Let the stored module run with no column left, where its own forward cannot."""

    def _own(self, stored: Tensor) -> Tensor:
        if self.parts == 1:
            return stored  # the parameter itself, so that autograd and assignments reach it
        rows = stored.shape[0] // self.parts
        return stored[self.part * rows : (self.part + 1) * rows]


def bias_of(linear: LinearMap) -> Tensor:
    """Return the bias of a map, (n_out,); zeros where it has none."""
    return linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias


@dataclass(frozen=True)
class HeadRows:
    """A stored tensor in which each head owns some rows."""

    module: nn.Module  # What keeps it
    name: str  # Its attribute: ``weight``, ``bias`` or a name of the family's own
    width: int  # Rows of one head, in each part
    axis: int = 0  # The axis that counts them
    #: Maps of equal size one behind the other (fused q, k, v): a head has rows in each.
    parts: int = 1

    @property
    def tensor(self) -> Tensor | None:
        """The stored tensor; None for a bias that the map does not have."""
        found: Tensor | None = getattr(self.module, self.name)
        return found

    def rows(self, there: Sequence[int], heads: Sequence[int]) -> Tensor:
        """Return the places on the axis that some heads own, ascending."""
        places = torch.tensor([there.index(head) for head in sorted(heads)], dtype=torch.long)
        starts = torch.arange(self.parts)[:, None] * len(there) + places
        return (starts.flatten()[:, None] * self.width + torch.arange(self.width)).flatten()


def rows_of_linear(linear: nn.Module, width: int, *, parts: int = 1) -> list[HeadRows]:
    """List what heads own of a map whose outputs are the heads': its rows and its bias."""
    axis = 1 if isinstance(linear, Conv1D) else 0
    return [
        HeadRows(linear, "weight", width, axis, parts),
        HeadRows(linear, "bias", width, 0, parts),
    ]


def columns_of_linear(linear: nn.Module, width: int) -> HeadRows:
    """Return what heads own of a map whose inputs are the heads': columns, or rows in GPT-2."""
    return HeadRows(linear, "weight", width, 0 if isinstance(linear, Conv1D) else 1)


#: The name in a forward function that says that it asks transformers for its attention.
_INTERFACE = "ALL_ATTENTION_FUNCTIONS"


@dataclass(frozen=True)
class Projections:
    """The four linear maps of one attention module."""

    q: LinearMap
    k: LinearMap
    v: LinearMap
    out: LinearMap


@dataclass(frozen=True)
class AttentionInput:
    """What an attention module is called with."""

    x_q: Tensor  # (batch, query_pos, d_model): what queries are made from
    #: (batch, key_pos, d_model): what keys are made from: ``x_q`` itself, or another sequence
    #: (cross-attention).
    x_k: Tensor
    #: As the model hands it over, broadcastable to (batch, n_heads, query_pos, key_pos).
    mask: Mask = None
    given: Mapping[str, Any] = field(default_factory=dict)  # All arguments by name
    #: (batch, key_pos, d_value): what values are made from, where that is not ``x_k``.
    x_value: Tensor | None = None

    @property
    def x_v(self) -> Tensor:
        """What values are made from, (batch, key_pos, d_value)."""
        return self.x_k if self.x_value is None else self.x_value

    @property
    def crossed(self) -> bool:
        """Whether keys come from another sequence."""
        return self.x_k is not self.x_q


class Heads(NamedTuple):
    """q, k, v (batch, n_heads, pos, d_head) as they are scored, with any position in them."""

    q: Tensor
    k: Tensor
    v: Tensor


#: Runs our attention: (q, k, v, mask, scale, bias) to z (batch, n_heads, query_pos, d_head).
Attend = Callable[[Tensor, Tensor, Tensor, Mask, float | None, Tensor | None], Tensor]


@dataclass(frozen=True)
class Layout:
    """Four linear maps under fixed names, and plain scores ``q k^T * scale``.

    Subclasses add what their families add. A subclass overrides only what differs; every method
    here is what the layout of BERT and its kin needs.
    """

    name: str  # The family that it is known from
    q: str = "query"  # Attributes of the attention module.
    k: str = "key"
    v: str = "value"
    #: Dotted path from the attention module, or from its parent when it starts with ``..``.
    out: str = "..output.dense"

    #: Whether its modules never ask transformers for their attention: their own forward is
    #: exchanged for :meth:`run` while a model is routed.
    bypasses = False

    # --- where the weights are ----------------------------------------------------------------

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Return the four maps if ``module``, which lies in ``parent``, has this layout."""
        kind: Any = type(module)
        if asks_interface(kind) == self.bypasses:
            return None
        start = parent if self.out.startswith("..") else module
        found = [getattr(module, name, None) for name in (self.q, self.k, self.v)]
        found.append(follow(start, self.out.removeprefix("..")))
        maps = [LinearMap(item) for item in found if isinstance(item, nn.Linear)]
        return Projections(*maps) if len(maps) == len(found) else None

    def under(self, config: Any) -> Layout:
        """Return the layout as a model's configuration makes it; itself by default."""
        return self

    def d_head(self, module: nn.Module, projections: Projections) -> int:
        """Return the width of one head."""
        for name in ("attention_head_size", "head_dim", "key_value_proj_dim"):
            if isinstance(width := getattr(module, name, None), int):
                return width
        for name in ("num_attention_heads", "num_heads", "n_heads"):
            if isinstance(n_heads := getattr(module, name, None), int):
                return projections.q.out_features // max(1, n_heads)
        return projections.q.out_features

    def stored(self, module: nn.Module, projections: Projections, d_head: int) -> list[HeadRows]:
        """List every stored tensor in which a head owns rows."""
        p = projections
        inputs = [rows for m in (p.q, p.k, p.v) for rows in rows_of_linear(m.module, d_head)]
        return [*inputs, columns_of_linear(p.out.module, d_head)]

    def shared_by(self, module: nn.Module, head_ids: Sequence[int]) -> list[int] | None:
        """Say which of the stored keys and values each head reads; None where each has its own."""
        return None

    def fit(self, module: nn.Module, kept: Collection[int], total: int) -> None:
        """Make a module's own forward run with the heads ``kept`` of ``total``, where it would not.

        Nothing to do where transformers asks for as many heads as the maps have rows for.
        """

    # --- how scores are made ------------------------------------------------------------------

    def scale(self, module: nn.Module, d_head: int) -> float | None:
        """Return what the scores are multiplied by; None for 1 / sqrt(d_head)."""
        scaling = getattr(module, "scaling", None)
        return float(scaling) if isinstance(scaling, int | float) else None

    def causal(self, module: nn.Module) -> bool:
        """Whether a query sees no later key."""
        return getattr(module, "is_causal", False) is True

    def window(self, module: nn.Module) -> int | None:
        """Return how many positions away a key may be; None for any."""
        return None

    def read(
        self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AttentionInput:
        """Read the arguments of one call of ``module``."""
        given = arguments_of(module, args, kwargs)
        x = next(iter(given.values()))
        source = given.get("key_value_states")
        mask = given.get("attention_mask", given.get("mask"))
        return AttentionInput(x, x if source is None else source, mask, given)

    def place(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        """Put positions into projected q and k (rotary models); the same by default."""
        return heads

    def bias(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Tensor | None:
        """Return what is added to the scaled scores, (1 or batch, n_heads, query_pos, key_pos)."""
        return None

    def pattern_in(self, output: object) -> Tensor | None:
        """Find the pattern in what the module's own eager forward returns."""
        second = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        return second if isinstance(second, Tensor) else None

    # --- running a module whose forward is exchanged --------------------------------------------

    def run(
        self, site: AttentionSite, attend: Attend, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Do what the module's forward does, with our attention in it."""
        inputs = self.read(site.module, args, kwargs)
        return self.answer(site, site.mix(attend, inputs), inputs)

    def answer(self, site: AttentionSite, z: Tensor, inputs: AttentionInput) -> Any:
        """Turn z (batch, pos, n_heads * d_head) into what the module returns."""
        return (z, None) if self.out.startswith("..") else (site.projections.out(z), None)


@functools.cache
def asks_interface(kind: Any) -> bool:
    """Whether the forward of a class, or of one that it extends, asks for a custom attention."""
    forwards = (vars(base).get("forward") for base in kind.__mro__)
    codes = (inspect.unwrap(f).__code__ for f in forwards if inspect.isfunction(f))
    return any(_INTERFACE in code.co_names for code in codes)


def arguments_of(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call of a module by name, catch-all ones included."""
    kind: Any = type(module)
    signature = _signature(kind)
    given = signature.bind(module, *args, **kwargs).arguments
    given.pop(next(iter(signature.parameters)))  # the module
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= given.pop(parameter.name, {})
    return given


@functools.cache
def _signature(kind: Any) -> inspect.Signature:
    """Return the signature of the family's own forward, which others may extend with ``*args``."""
    theirs = (base for base in kind.__mro__ if not hasattr(base, "headscope_extends"))
    found = [inspect.signature(base.forward) for base in theirs if hasattr(base, "forward")]
    return next(filter(_names_all, found), found[0])


def _names_all(signature: inspect.Signature) -> bool:
    return all(part.kind is not part.VAR_POSITIONAL for part in signature.parameters.values())


def parameters_of(kind: Any) -> tuple[str, ...]:
    """Name the parameters of the family's own forward."""
    return tuple(_signature(kind).parameters)


def extend(module: nn.Module, extension: type) -> None:
    """Let a module's class be extended, once: methods of ``extension`` come before its own.

    Unlike a changed attribute, a class survives copying and leaves the module's state as it is.
    """
    if not isinstance(module, extension):
        kind: Any = type(module)
        module.__class__ = _extended(kind, extension)


@functools.cache
def _extended(kind: Any, extension: type) -> Any:
    return type(kind.__name__, (extension, kind), {"headscope_extends": True})


def follow(module: nn.Module, path: str) -> object:
    """Return what lies at a dotted path below ``module``, or None."""
    found: object = module
    for name in path.split("."):
        found = getattr(found, name, None)
    return found
