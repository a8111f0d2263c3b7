"""The parts of a model's layers, seen in one tiny run and proven by putting them together.

A layer is a residual stream to which sublayers add what they make of it::

    x = after(x + factor * within(attention(before(x))))     cross-attention likewise
    x = after(x + factor * network(before(x)))

Post-LN layers have the norms ``after``, pre-LN layers those ``before``; either may be missing. Some
families norm what a sublayer writes before it is added, ``within`` (Gemma 2, OLMo 2; a network's is
the last of its calls), some multiply it by a factor (Granite), and in some the network reads the
stream that attention reads (``parallel``: Phi, GPT-NeoX).

None of this is read from names. Every call of a module in the run is kept with what it took and
returned. A norm stands before a sublayer if it takes the stream and returns what the sublayer
reads, after it if it takes the sum, and within if it takes what the sublayer wrote. The
feed-forward network is one call, or several in a row, from the stream (or its norm) to what is
missing from the layer's output. These calls made again, one after the other, must give the layer's
output; a layer for which they do not is refused.

LayerNorm or RMSNorm, gated or not, with shared modules (ALBERT) or without a module for the layer
(XLM): to the calls it is all the same.

A :class:`Call` is one call of a module in the run: the first tensor x that it took, the first
tensor y that it returned, and its ``start`` and ``stop``, counted in events (the beginnings and
ends of calls). Its :class:`ModuleTurn` is the module and which of its calls this was, by which it
is found again in other runs. ``near`` says that two tensors are equal up to rounding. A *site* is
the attention of one layer, its *write* the call of its output map W_O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from headscope.core.errors import UnsupportedModelError
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.sites import attending_layers
from headscope.models.run.hooks import grouped
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.watched import Call, ModuleTurn, Seen, near, watch

#: A factor that rounding alone explains.
_CLOSE_TO_1 = 1e-4


@dataclass(frozen=True)
class Sublayer:
    """What reads the residual stream and adds to it: attention or a feed-forward network."""

    before: ModuleTurn | None  # The norm that takes the stream, and whose output it reads
    after: ModuleTurn | None  # The norm that takes the sum of the stream and what it adds
    #: The modules of a feed-forward network that make its output, one after the other.
    modules: tuple[ModuleTurn, ...] = ()
    within: ModuleTurn | None = None  # The norm that takes what attention writes, before the sum
    factor: float = 1.0  # By which what it writes is multiplied before the sum


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
    parallel: bool = False  # Whether the network reads the stream that enters, as attention does

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
    """The layers of one stack; the decoder's, of an encoder-decoder with both stacks."""

    layers: tuple[Layer, ...]
    last: ModuleTurn | None  # The norm after the last layer

    @property
    def end(self) -> ModuleTurn:
        """The call that puts out the last hidden state."""
        return self.layers[-1].leaves if self.last is None else self.last

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
    if attending_layers(loaded.model.config) is not None:
        raise _refused(loaded, "the layers", "some of them have no heads")
    seen = watch(loaded)
    sites_by_layer = _sites_by_layer(loaded)
    # What is read after each layer: by the next layer's attention, and at last as the output.
    read_by_layer = [seen.inputs[sites[0].row].x_q for sites in sites_by_layer]
    next_reads = [*read_by_layer[1:], seen.last]
    layers: list[Layer] = []
    state: Tensor | None = None  # What the layer before returned; None for the first
    for sites, next_read in zip(sites_by_layer, next_reads, strict=True):
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
    for call in reversed(seen.calls):
        if call.is_norm and near(state, call.x) and near(seen.last, call.y):
            return call.module_turn
    why = "what follows the last layer is neither nothing nor one norm"
    raise _refused(loaded, "the end", why)


def _refused(loaded: LoadedModel, where: str, why: str) -> UnsupportedModelError:
    """Return the error that says which part of a model is of another kind, and why."""
    return UnsupportedModelError(
        f"headscope cannot take {where} of {loaded.name} ({loaded.family}) apart into attention, "
        f"feed-forward network, skip connections and norms: {why}."
    )


# --- one layer ------------------------------------------------------------------------------------


class _UnknownLayerError(Exception):
    """Says why a layer has no sublayers of the known kinds."""


class _Span(NamedTuple):
    """Calls that may be one layer: a call of the layer's module, and those made inside it.

    Or, for a layer that is no module, the calls from its attention to its last norm.
    """

    first: Call  # The call that takes the stream
    y: Tensor  # The stream that leaves
    inner: list[Call]  # The calls in between

    def last_turn(self) -> ModuleTurn:
        """Return the call that puts out the stream."""
        if near(self.first.y, self.y):
            return self.first.module_turn
        return next(call.module_turn for call in self.inner if near(call.y, self.y))


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
    spans = []
    for call in around:
        inner = [other for other in seen.calls if call.encloses(other)]
        spans.append(_Span(first=call, y=call.y, inner=inner))
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
                *attention, network = sublayers.in_order
                return Layer(
                    sites=tuple(sites),
                    enters=span.first.module_turn,
                    leaves=span.last_turn(),
                    attention=tuple(attention),
                    network=network,
                    parallel=sublayers.parallel,
                )

    raise _UnknownLayerError(_why_none(spans, reads[0]))


def _why_none(spans: Sequence[_Span], read: Tensor) -> str:
    """Say why no span is a layer, judged by the last one; its attention reads ``read``."""
    if spans:
        x = spans[-1].first.x
        norms = [call for call in spans[-1].inner if call.is_norm]
        if x is not None and (near(x, read) or _norm(norms, x, read) is not None):
            return "what it adds besides attention is not what one feed-forward network puts out"
    return "its attention reads another state than the one that the layer adds to"


def _without_module(
    seen: Seen,
    sites: Sequence[AttentionSite],
    around: Sequence[Call],
    state: Tensor | None,
    next_read: Tensor,
) -> _Span | None:
    """Return the calls of a layer that is no module itself; None if this is no such layer.

    They begin with the attention module, which must read ``state``, and end with the first norm
    behind it that returns ``next_read``.
    """
    modules = {site.module for site in sites}
    first = next((call for call in around if call.module_turn.module in modules), None)
    if first is None or (state is not None and not near(state, first.x)):
        return None
    following = [call for call in seen.calls if call.start >= first.start]
    for last in following:
        if last.is_norm and near(last.y, next_read):
            inner = [call for call in following if call.stop <= last.stop]
            return _Span(first=first, y=last.y, inner=inner)
    return None


class _Found(NamedTuple):
    """Sublayers of a span: each attention, then the network, and what the network reads."""

    in_order: list[Sublayer]
    parallel: bool = False


def _sublayers(
    span: _Span,
    writes: Sequence[Call],
    reads: Sequence[Tensor],
    *,
    norms_after_sums: bool,
) -> _Found | None:
    """Find the sublayers that lead from the stream that enters a span to the one that leaves.

    First one attention for each of ``reads`` and ``writes``, last the feed-forward network.
    ``norms_after_sums``: whether every sum is taken by a norm (post-LN), or none is. Returns None
    if the calls are no such sublayers.
    """
    norms = [call for call in span.inner if call.is_norm]

    # Follow the stream through the attentions.
    assert span.first.x is not None
    state = span.first.x
    start = 0  # The event from which on the network may begin
    sublayers: list[Sublayer] = []
    for write, read in zip(writes, reads, strict=True):
        before = _norm(norms, state, read, ends_by=write.start)
        if before is None and not near(state, read):
            return None
        within = _norm(norms, write.y, starts_from=write.stop)
        if within is not None and _is_nearer(within.x, state + write.y, than=write.y):
            within = None  # a norm of the sum, in which the stream is small beside what is written
        written = write.y if within is None else within.y
        start = write.stop if within is None else within.stop
        factor = 1.0 if norms_after_sums else _factor(norms, state, written, start)
        state = state + factor * written
        after = None
        if norms_after_sums:
            after = _norm(norms, state, starts_from=start)
            if after is None:
                return None
            state = after.y
            start = after.stop
        sublayers.append(Sublayer(_turn(before), _turn(after), within=_turn(within), factor=factor))

    # Find the network in what follows. A call in which the stream is normed is more than that.
    stream_norms = [norm for norm in norms if near(state, norm.x)]
    later = [call for call in span.inner if call.start > start]
    calls = [call for call in later if not any(map(call.encloses, stream_norms))]
    if not norms_after_sums:
        factor = sublayers[-1].factor
        for reads_from in (state, span.first.x):
            network = _network(calls, norms, span.y, state, reads_from, factor)
            if network is not None:
                return _Found([*sublayers, network], parallel=reads_from is not state)
        return None
    for last_norm in norms:
        if last_norm.start > start and near(span.y, last_norm.y):
            assert last_norm.x is not None
            network = _network(calls, norms, last_norm.x, state, state, 1.0)
            if network is not None:
                return _Found([*sublayers, replace(network, after=last_norm.module_turn)])
    return None


def _is_nearer(x: Tensor | None, y: Tensor, *, than: Tensor) -> bool:
    """Whether x is nearer to y than to another tensor."""
    assert x is not None
    return float((x - y).abs().max()) < float((x - than).abs().max())


def _factor(norms: Sequence[Call], state: Tensor, written: Tensor, start: int) -> float:
    """Return by what attention's write is multiplied before a later norm takes the sum; 1 if none.

    The sum that the norm takes, less the state, is a multiple of what was written.
    """
    for norm in norms:
        if norm.start <= start or norm.x is None or norm.x.shape != state.shape:
            continue
        if not near(state, norm.x):  # that of a network beside attention
            added = norm.x - state
            factor = float((added * written).sum() / written.square().sum())
            if abs(factor - 1) > _CLOSE_TO_1 and near(factor * written, added, norm.x):
                return factor
    return 1.0


def _network(
    calls: Sequence[Call],
    norms: Sequence[Call],
    out: Tensor,
    state: Tensor,
    reads_from: Tensor,
    factor: float,
) -> Sublayer | None:
    """Find the calls that turn the stream ``reads_from`` into what is missing: the network.

    What is missing is ``(out - state) / factor``. From the last call back: each one reads what an
    earlier one returned, the first one the stream or its norm. Made again, they must return the
    same.
    """
    missing = (out - state) / factor
    for last in calls:
        if not near(missing, last.y, out / factor):
            continue
        chain: list[Call] = []
        call: Call | None = last
        while call is not None and call.x is not None:
            chain.insert(0, call)
            read = call.x
            before = _norm(norms, reads_from, read, ends_by=call.start)
            reads_stream = before is not None or near(reads_from, read)
            if reads_stream and near(missing, _again(chain, read), out / factor):
                turns = tuple(link.module_turn for link in chain)
                return Sublayer(_turn(before), after=None, modules=turns, factor=factor)
            earlier = [c for c in calls if c.stop < call.start and near(c.y, read)]
            call = earlier[0] if earlier else None
    return None


def _again(chain: Sequence[Call], x: Tensor) -> Tensor | None:
    """Make some calls again, one after the other; None where one takes more than one tensor."""
    hidden: Tensor = x
    with torch.no_grad():
        for call in chain:
            try:
                hidden = call.module_turn.module(hidden)
            except TypeError:  # an argument is missing
                return None
    return hidden if isinstance(hidden, Tensor) else None


def _norm(
    norms: Sequence[Call],
    x: Tensor,
    y: Tensor | None = None,
    *,
    starts_from: int | None = None,
    ends_by: int | None = None,
) -> Call | None:
    """Find the first norm that took x, and returned y, between two events; None is no condition."""
    for norm in norms:
        if starts_from is not None and norm.start <= starts_from:
            continue
        if ends_by is not None and norm.stop >= ends_by:
            continue
        if near(x, norm.x) and (y is None or near(y, norm.y)):
            return norm
    return None


def _turn(call: Call | None) -> ModuleTurn | None:
    """Return the module of a call, and which of its calls that was; None for no call."""
    return None if call is None else call.module_turn
