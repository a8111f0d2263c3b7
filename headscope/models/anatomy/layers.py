"""The parts of a model's layers, seen in one tiny run and proven by putting them together.

A layer is a residual stream to which sublayers add what they make of it::

    x = after(x + attention(before(x)))        a decoder's cross-attention likewise
    x = after(x + network(before(x)))

Post-LN layers have the norms ``after``, pre-LN layers those ``before``; either may be missing. None
of this is read from names. Every call of a module in the run is kept with what it took and
returned. A norm stands before a sublayer if it takes the stream and returns what the sublayer
reads, and after it if it takes the sum. The feed-forward network is one call, or several in a row,
from the stream (or its norm) to what is missing from the layer's output. These calls made again,
one after the other, must give the layer's output; a layer for which they do not is refused.

LayerNorm or RMSNorm, gated or not, with shared modules (ALBERT) or without a module for the layer
(XLM): to the calls it is all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from headscope.core.errors import UnsupportedModelError
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.hooks import grouped
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.watched import Call, ModuleTurn, Seen, near, watch


@dataclass(frozen=True)
class Sublayer:
    """What reads the residual stream and adds to it: attention or a feed-forward network."""

    #: The norms that take the stream before it is read, and the sum after it was added to.
    before: ModuleTurn | None
    after: ModuleTurn | None
    #: The modules of a feed-forward network that make its output, one after the other.
    modules: tuple[ModuleTurn, ...] = ()


@dataclass(frozen=True)
class Layer:
    """One layer of a stack."""

    #: Its attention; in a decoder that reads an encoder, self-attention and cross-attention.
    sites: tuple[AttentionSite, ...]
    #: The call whose first input is the stream that enters, and the one whose output leaves: of
    #: one and the same module in nearly every family.
    enters: ModuleTurn
    leaves: ModuleTurn
    attention: tuple[Sublayer, ...]  # One for each site
    network: Sublayer

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        """All sublayers, in order."""
        return (*self.attention, self.network)

    @property
    def norm_first(self) -> bool:
        """Pre-LN: the stream itself passes no norm."""
        return all(sublayer.after is None for sublayer in self.sublayers)


@dataclass(frozen=True)
class Anatomy:
    """The layers of one stack: of an encoder-decoder's whole model the decoder's."""

    layers: tuple[Layer, ...]
    last: ModuleTurn | None  # The norm after the last layer

    @property
    def end(self) -> ModuleTurn:
        """The module that puts out the last hidden state."""
        return self.last or self.layers[-1].leaves

    @property
    def norm_placement(self) -> str:
        """Where the norms stand: ``pre``, ``post``, or ``mixed`` if layers differ."""
        norm_first = {layer.norm_first for layer in self.layers}
        if len(norm_first) > 1:
            return "mixed"
        return "pre" if norm_first.pop() else "post"


# --- taking apart ---------------------------------------------------------------------------------


def take_apart(loaded: LoadedModel) -> Anatomy:
    """Find the parts of every layer.

    Raises
    ------
    UnsupportedModelError
        If a layer has parts of another kind: which one, and why.
    """
    seen = watch(loaded)
    sites_by_layer = _sites_by_layer(loaded)
    # What each layer's attention reads, and behind the last layer the model's output.
    reads = [seen.inputs[sites[0].row].x_q for sites in sites_by_layer]
    reads.append(seen.last)
    layers: list[Layer] = []
    state: Tensor | None = None
    for sites, next_read in zip(sites_by_layer, reads[1:], strict=True):
        where = f"layer {sites[0].layer}"
        if len(sites) > 1:
            where = f"decoder {where}"
        try:
            layer = _layer(seen, sites, state, next_read)
        except _UnknownLayerError as error:
            raise _refused(loaded, where, str(error)) from None
        if state is not None and not near(state, seen.call_in(layer.enters).x):
            why = "something between it and the layer before changes the state"
            raise _refused(loaded, where, why)
        state = seen.call_in(layer.leaves).y
        layers.append(layer)
    if state is None:
        raise _refused(loaded, "the layers", "no attention was seen running")
    return Anatomy(tuple(layers), _last_norm(loaded, seen, state))


def _sites_by_layer(loaded: LoadedModel) -> list[list[AttentionSite]]:
    """List the sites whose writes one layer adds up: of an encoder-decoder, its decoder's two."""
    if {"decoder", "cross"} <= set(loaded.stacks):
        decoder_sites = [site for site in loaded.sites if site.stack != "encoder"]
        return list(grouped(decoder_sites, lambda site: site.layer).values())
    return [[site] for site in loaded.sites]


def _last_norm(loaded: LoadedModel, seen: Seen, state: Tensor) -> ModuleTurn | None:
    """Find the norm between the last layer's state and the model's output; None without one."""
    if near(state, seen.last):
        return None
    norms = [c for c in seen.calls if c.is_norm and near(state, c.x) and near(seen.last, c.y)]
    if not norms:
        why = "what follows the last layer is neither nothing nor one norm"
        raise _refused(loaded, "the end", why)
    return norms[-1].module_turn


def _refused(loaded: LoadedModel, where: str, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"headscope cannot take {where} of {loaded.name} ({loaded.family}) apart into attention, "
        f"feed-forward network, skip connections and norms: {why}."
    )


class _UnknownLayerError(Exception):
    """Says why a layer has no sublayers of the known kinds."""


def _layer(
    seen: Seen, sites: Sequence[AttentionSite], state: Tensor | None, next_read: Tensor
) -> Layer:
    """Find the sublayers of one layer, or raise what is unknown about it.

    ``state`` is what the layer before it returned, ``next_read`` what is read after this layer.
    """
    # What its attention reads and writes.
    reads = [seen.inputs[site.row].x_q for site in sites]
    writes = [seen.writes[site.row] for site in sites if site.row in seen.writes]
    if len(writes) < len(sites):
        raise _UnknownLayerError("its attention calls no output map")
    for site, write in zip(sites, writes, strict=True):
        if site.projections.out.leaving(write.y).shape != write.y.shape:
            raise _UnknownLayerError("its states have their channels before their positions")

    # Calls that may be the layer: each that encloses its attention, the innermost first.
    around = seen.around(sites)
    spans = [_Span(call, call.y, [c for c in seen.calls if call.encloses(c)]) for call in around]
    span_without_module = _without_module(seen, sites, around, state, next_read)
    if span_without_module is not None:
        spans.append(span_without_module)

    # The first of them whose sublayers, put together, give its output.
    for span in spans:
        x = span.first.x
        if x is None or not x.shape == span.y.shape == writes[0].y.shape:
            continue
        for norms_after_sums in (True, False):
            sublayers = _sublayers(span, writes, reads, norms_after_sums=norms_after_sums)
            if sublayers is not None:
                *attention, network = sublayers
                return Layer(
                    sites=tuple(sites),
                    enters=span.first.module_turn,
                    leaves=span.last_turn(),
                    attention=tuple(attention),
                    network=network,
                )

    # Why none of them is.
    last_tried = spans[-1] if spans else None
    if last_tried is not None and last_tried.first.x is not None:
        x = last_tried.first.x
        norms = [call for call in last_tried.inner if call.is_norm]
        if near(x, reads[0]) or _norm(norms, x, reads[0]) is not None:
            raise _UnknownLayerError(
                "what it adds besides attention is not what one feed-forward network puts out"
            )
    raise _UnknownLayerError(
        "its attention reads another state than the one that the layer adds to"
    )


class _Span(NamedTuple):
    """Calls that may be one layer."""

    first: Call  # The call that takes the stream
    y: Tensor  # The stream that leaves
    inner: list[Call]  # The calls in between

    def last_turn(self) -> ModuleTurn:
        """Return the call that puts out the stream."""
        if near(self.first.y, self.y):
            return self.first.module_turn
        return next(call.module_turn for call in self.inner if near(call.y, self.y))


def _without_module(
    seen: Seen,
    sites: Sequence[AttentionSite],
    around: Sequence[Call],
    state: Tensor | None,
    next_read: Tensor,
) -> _Span | None:
    """Return the calls of a layer that is no module itself, up to where its output is read."""
    modules = {site.module for site in sites}
    first = next((call for call in around if call.module_turn.module in modules), None)
    if first is None or (state is not None and not near(state, first.x)):
        return None
    calls = [call for call in seen.calls if call.start >= first.start]
    last = next((call for call in calls if call.is_norm and near(call.y, next_read)), None)
    if last is None:
        return None
    return _Span(first, last.y, [call for call in calls if call.stop <= last.stop])


def _sublayers(
    span: _Span,
    writes: Sequence[Call],
    reads: Sequence[Tensor],
    *,
    norms_after_sums: bool,
) -> list[Sublayer] | None:
    """Find the sublayers that lead from the stream that enters to the one that leaves.

    Each attention reads ``reads`` and writes ``writes``; the feed-forward network stands last. None
    if there are none, with or without a norm of the stream after every sum.
    """
    norms = [call for call in span.inner if call.is_norm]
    assert span.first.x is not None
    state = span.first.x
    start = 0  # The event from which on the network may begin
    sublayers: list[Sublayer] = []
    for write, read in zip(writes, reads, strict=True):
        before = _norm(norms, state, read, before=write.start)
        if before is None and not near(state, read):
            return None
        state = state + write.y
        start = write.stop
        after = None
        if norms_after_sums:
            after = _norm(norms, state, None, start=write.stop)
            if after is None:
                return None
            state = after.y
            start = after.stop
        sublayers.append(Sublayer(_turn(before), _turn(after)))
    # A call that holds a norm of the stream is more than the network.
    stream_norms = [norm for norm in norms if near(state, norm.x)]
    later = [call for call in span.inner if call.start > start]
    calls = [call for call in later if not any(map(call.encloses, stream_norms))]
    if not norms_after_sums:
        network = _network(calls, norms, span.y, state)
        return None if network is None else [*sublayers, network]
    for last_norm in norms:
        if last_norm.start > start and near(span.y, last_norm.y):
            assert last_norm.x is not None
            network = _network(calls, norms, last_norm.x, state)
            if network is not None:
                return [*sublayers, replace(network, after=last_norm.module_turn)]
    return None


def _network(
    calls: Sequence[Call], norms: Sequence[Call], out: Tensor, state: Tensor
) -> Sublayer | None:
    """Find the calls that turn the stream into what is missing from ``out``, and repeat them.

    From the last call back: each one reads what an earlier one returned, the first one the stream
    or its norm.
    """
    missing = out - state
    for last in calls:
        if not near(missing, last.y, out):
            continue
        chain: list[Call] = []
        call: Call | None = last
        while call is not None and call.x is not None:
            chain.insert(0, call)
            read = call.x
            before = _norm(norms, state, read, before=call.start)
            reads_stream = before is not None or near(state, read)
            if reads_stream and near(missing, _again(chain, read), out):
                return Sublayer(_turn(before), None, tuple(c.module_turn for c in chain))
            earlier = [c for c in calls if c.stop < call.start and near(c.y, read)]
            call = earlier[0] if earlier else None
    return None


def _again(chain: Sequence[Call], x: Tensor) -> Tensor | None:
    """Repeat some calls, one after the other; None where they need more than one tensor."""
    hidden: Tensor = x
    with torch.no_grad():
        for call in chain:
            try:
                hidden = call.module_turn.module(hidden)
            except TypeError:
                return None
    return hidden if isinstance(hidden, Tensor) else None


def _norm(
    norms: Sequence[Call], x: Tensor, y: Tensor | None, start: int = -1, before: int | None = None
) -> Call | None:
    """Find a norm that took x, and returned y where that is given, between two events."""
    for norm in norms:
        in_time = norm.start > start and (before is None or norm.stop < before)
        if in_time and near(x, norm.x) and (y is None or near(y, norm.y)):
            return norm
    return None


def _turn(call: Call | None) -> ModuleTurn | None:
    """Return which call of its module a call was."""
    return None if call is None else call.module_turn
