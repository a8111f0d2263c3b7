"""What an attention layout is: where its four maps are, and what happens to q and k besides.

A family is covered by a layout, not by its name: families that share one (bert, roberta, electra,
xlm-roberta, camembert, ...) need nothing of their own. Recognising a layout proves nothing: the
certificate does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headscope.attention import AttentionWeights, project
from headscope.models.layouts.maps import (
    Attend,
    AttentionInput,
    HeadRows,
    Heads,
    LinearMap,
    Projections,
    bias_of,
    columns_of_linear,
    rows_of_linear,
    split,
)

#: A forward function that uses this name asks transformers for its attention.
_INTERFACE = "ALL_ATTENTION_FUNCTIONS"


@dataclass(frozen=True)
class Layout:
    """Four linear maps under fixed names, and plain scores ``q k^T * scale``.

    Subclasses add what their families add. A subclass overrides only what differs; every method
    here is what the layout of BERT and its kin needs.
    """

    name: str  # The family that it is named after
    q: str = "query"  # Attributes of the attention module.
    k: str = "key"
    v: str = "value"
    #: Dotted path from the attention module, or from its parent when it starts with ``..``.
    out: str = "..output.dense"
    #: An attribute of its modules, or an argument of their forward, that other families lack.
    needs: str = ""

    #: Whether its modules never ask transformers for their attention: their own forward is
    #: exchanged for :meth:`run` while a model is routed.
    bypasses = False

    # --- where the weights are ----------------------------------------------------------------

    def match(self, module: nn.Module, parent: nn.Module) -> Projections | None:
        """Return the four maps if ``module``, which lies in ``parent``, has this layout."""
        kind: Any = type(module)
        known = not self.needs or hasattr(module, self.needs) or self.needs in parameters_of(kind)
        if not known or asks_interface(kind) == self.bypasses:
            return None
        start = parent if self.out.startswith("..") else module
        modules = [getattr(module, name, None) for name in (self.q, self.k, self.v)]
        modules.append(follow(start, self.out.removeprefix("..")))
        maps = [LinearMap(item) for item in modules if isinstance(item, nn.Linear)]
        return Projections(*maps) if len(maps) == len(modules) else None

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
        """Return which stored keys and values each head reads; None where each has its own."""
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
        arguments = arguments_of(module, args, kwargs)
        x = next(iter(arguments.values()))
        source = arguments.get("key_value_states")
        mask = arguments.get("attention_mask", arguments.get("mask"))
        return AttentionInput(x, x if source is None else source, mask, arguments)

    def place(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Heads:
        """Rotate projected q and k by their positions (rotary models); unchanged by default."""
        return heads

    def bias(self, site: AttentionSite, heads: Heads, inputs: AttentionInput) -> Tensor | None:
        """Return what is added to the scaled scores, (1 or batch, n_heads, query_pos, key_pos)."""
        return None

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


@dataclass(frozen=True)
class AttentionModule:
    """A module of a known layout."""

    name: str  # Dotted path from the base model
    module: nn.Module  # The attention module of transformers; several layers may share one (ALBERT)
    layout: Layout  # How its family keeps weights and makes scores
    projections: Projections  # Its four linear maps
    d_head: int  # Width of each head
    #: The original index of each head: what it is called even after others were removed.
    head_ids: tuple[int, ...]
    heads_before: int  # Heads that it had before any was removed

    @property
    def n_heads(self) -> int:
        """Heads that it has now."""
        return len(self.head_ids)

    def stored(self) -> list[HeadRows]:
        """List every stored tensor in which a head owns rows."""
        return self.layout.stored(self.module, self.projections, self.d_head)


@dataclass(frozen=True)
class AttentionSite(AttentionModule):
    """One place where attention runs: a module in its role as one layer of one stack."""

    stack: str  # ``encoder``, ``decoder`` or ``cross``
    #: Zero-based, in the order of execution within the stack; its original number where layers have
    #: been removed.
    layer: int
    #: Its row in the arrays (rows, n_heads) of measurements and gates: its place among the sites
    #: that are measured.
    row: int

    @property
    def scale(self) -> float | None:
        """What the module multiplies the scores by, or None for 1 / sqrt(d_head)."""
        return self.layout.scale(self.module, self.d_head)

    @property
    def causal(self) -> bool:
        """Whether a query sees no later key."""
        return self.stack != "cross" and self.layout.causal(self.module)

    @property
    def window(self) -> int | None:
        """How many positions away a key may be; None for any."""
        return self.layout.window(self.module)

    def weights(self) -> AttentionWeights:
        """Return the canonical weights (views where possible), biases as zeros where absent."""
        p = self.projections
        maps = (p.q, p.k, p.v)
        # nn.Linear keeps (out, in): (n_heads * d_head, d_model) -> (n_heads, d_model, d_head)
        stored = (split(each.weight, 0, self.d_head).transpose(1, 2) for each in maps)
        W_Q, W_K, W_V = map(self._shared, stored)
        b_Q, b_K, b_V = (self._shared(split(bias_of(each), 0, self.d_head)) for each in maps)
        # (d_model, n_heads * d_head) -> (n_heads, d_head, d_model)
        W_O = self.output_weight.t().reshape(self.n_heads, self.d_head, p.out.out_features)
        return AttentionWeights(W_Q, W_K, W_V, b_Q, b_K, b_V, W_O, bias_of(p.out))

    @property
    def output_weight(self) -> Tensor:
        """The heads' part of the stored output map, (d_model, n_heads * d_head): a view."""
        return self.projections.out.weight[:, : self.n_heads * self.d_head]

    def project(self, inputs: AttentionInput) -> Heads:
        """Return q, k and v as W_Q, W_K and W_V make them, without positions.

        Each is (batch, n_heads, pos, d_head); where heads share keys and values, k and v have as
        many as the model stores.
        """
        p = self.projections
        return Heads(
            self.by_head(p.q(inputs.x_q)),
            self.by_head(p.k(inputs.x_k)),
            self.by_head(p.v(inputs.x_v)),
        )

    def mix(self, attend: Attend, inputs: AttentionInput) -> Tensor:
        """Return every head's z, side by side: (batch, pos, n_heads * d_head)."""
        heads = self.layout.place(self, self.project(inputs), inputs)
        bias = self.layout.bias(self, heads, inputs)
        return attend(*heads, inputs.mask, self.scale, bias).transpose(1, 2).flatten(2)

    def canonical(self, inputs: AttentionInput, weights: AttentionWeights) -> Heads:
        """Return what :meth:`project` does, from the canonical weights."""
        w = weights
        return Heads(
            project(inputs.x_q, w.W_Q, w.b_Q),
            project(inputs.x_k, w.W_K, w.b_K),
            project(inputs.x_v, w.W_V, w.b_V),
        )

    def by_head(self, projected: Tensor) -> Tensor:
        """Split by head: (batch, pos, heads * d_head) -> (batch, heads, pos, d_head)."""
        return split(projected, -1, self.d_head).transpose(1, 2)

    def _shared(self, by_head: Tensor) -> Tensor:
        """Give every head its keys or values where several heads share them."""
        indices = self.layout.shared_by(self.module, self.head_ids)
        return by_head if indices is None or len(by_head) == self.n_heads else by_head[indices]


# --- the forward functions of families ------------------------------------------------------------


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
    arguments = signature.bind(module, *args, **kwargs).arguments
    arguments.pop(next(iter(signature.parameters)))  # the module
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments |= arguments.pop(parameter.name, {})
    return arguments


@functools.cache
def _signature(kind: Any) -> inspect.Signature:
    """Return the signature of the family's own forward, which others may extend with ``*args``."""
    theirs = (base for base in kind.__mro__ if not hasattr(base, "headscope_extends"))
    signatures = [inspect.signature(base.forward) for base in theirs if hasattr(base, "forward")]
    kinds = ({part.kind for part in each.parameters.values()} for each in signatures)
    pairs = zip(signatures, kinds, strict=True)
    return next((s for s, k in pairs if inspect.Parameter.VAR_POSITIONAL not in k), signatures[0])


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


class WithoutHeads:
    """An attention module without any head, which still counts what its cache holds.

    transformers counts the tokens of earlier steps by the keys of a decoder's first layer, and
    counts empty keys as no token: every step of generating would begin at position 0.
    """

    headscope_extends = True
    layer_idx: int = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward; let the cache of its layer count tokens without keys."""
        output = super().forward(*args, **kwargs)  # type: ignore[misc]
        cache = kwargs.get("past_key_values")
        layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())
        for layer in layers[self.layer_idx :][:1]:
            vars(layer)["get_seq_length"] = functools.partial(_tokens, layer)
        return output


def _tokens(layer: Any) -> int:
    """Return how many tokens one layer of a cache holds, whatever its number of heads."""
    return int(layer.keys.shape[-2]) if layer.is_initialized and layer.keys.dim() > 1 else 0


def follow(module: nn.Module, path: str) -> object:
    """Return what lies at a dotted path below ``module``, or None."""
    target: object = module
    for name in path.split("."):
        target = getattr(target, name, None)
    return target
