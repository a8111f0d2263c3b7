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
        return all(part.after is None for part in self.sublayers)


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
        first = {layer.norm_first for layer in self.layers}
        return "mixed" if len(first) > 1 else "pre" if first.pop() else "post"


# --- taking apart ---------------------------------------------------------------------------------


def take_apart(loaded: LoadedModel) -> Anatomy:
    """Find the parts of every layer.

    Raises
    ------
    UnsupportedModelError
        If a layer has parts of another kind: which one, and why.
    """
    seen = watch(loaded)
    layers: list[Layer] = []
    state: Tensor | None = None
    every = [[site] for site in loaded.sites]  # The sites whose writes one layer adds up
    if {"decoder", "cross"} <= set(loaded.stacks):  # of an encoder-decoder, the decoder's
        of_decoder = [site for site in loaded.sites if site.stack != "encoder"]
        every = list(grouped(of_decoder, lambda site: site.layer).values())
    for i, sites in enumerate(every):
        where = f"{'decoder ' if len(sites) > 1 else ''}layer {sites[0].layer}"
        behind = seen.inputs[every[i + 1][0].row].x_q if i + 1 < len(every) else seen.last
        layer = _layer(loaded, seen, sites, state, behind)
        if isinstance(layer, str):
            raise _refused(loaded, where, layer)
        if state is not None and not near(state, seen.at(layer.enters).x):
            why = "something between it and the layer before changes the state"
            raise _refused(loaded, where, why)
        state = seen.at(layer.leaves).y
        layers.append(layer)
    if state is None:
        raise _refused(loaded, "the layers", "no attention was seen running")
    if near(state, seen.last):
        return Anatomy(tuple(layers), None)
    norms = [c for c in seen.calls if c.is_norm and near(state, c.x) and near(seen.last, c.y)]
    if not norms:
        why = "what follows the last layer is neither nothing nor one norm"
        raise _refused(loaded, "the end", why)
    return Anatomy(tuple(layers), norms[-1].turn)


def _refused(loaded: LoadedModel, where: str, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"headscope cannot take {where} of {loaded.name} ({loaded.family}) apart into attention, "
        f"feed-forward network, skip connections and norms: {why}."
    )


def _layer(
    loaded: LoadedModel,
    seen: Seen,
    sites: Sequence[AttentionSite],
    state: Tensor | None,
    behind: Tensor,
) -> Layer | str:
    """Find the parts of one layer, or say why it has others.

    ``state`` is what the layer before it returned, ``behind`` what is read after this layer.
    """
    writes = [seen.writes[site.row] for site in sites if site.row in seen.writes]
    if len(writes) < len(sites):
        return "its attention calls no output map"
    maps = [site.projections.out for site in sites]
    if any(m.leaving(w.y).shape != w.y.shape for m, w in zip(maps, writes, strict=True)):
        return "its states have their channels before their positions"
    reads = [seen.inputs[site.row].x_q for site in sites]
    around = seen.around(sites)
    # Calls that may be the layer: the first, what leaves it, and the calls inside.
    spans = [(call, call.y, [c for c in seen.calls if call.encloses(c)]) for call in around]
    if (span := _without_module(seen, sites, around, state, behind)) is not None:
        spans.append(span)
    for call, y, inside in spans:
        x = call.x
        if x is None or not x.shape == y.shape == writes[0].y.shape:
            continue
        if (parts := _parts(x, y, inside, writes, reads)) is not None:
            leaves = call if near(call.y, y) else next(c for c in inside if near(c.y, y))
            return Layer(tuple(sites), call.turn, leaves.turn, *parts)
    if spans and (x := spans[-1][0].x) is not None:
        norms = [call for call in spans[-1][2] if call.is_norm]
        if near(x, reads[0]) or _norm(norms, x, reads[0]) is not None:
            return "what it adds besides attention is not what one feed-forward network puts out"
    return "its attention reads another state than the one that the layer adds to"


def _without_module(
    seen: Seen,
    sites: Sequence[AttentionSite],
    around: Sequence[Call],
    state: Tensor | None,
    behind: Tensor,
) -> tuple[Call, Tensor, list[Call]] | None:
    """Return the calls of a layer that is no module itself, up to where its output is read."""
    modules = {site.module for site in sites}
    first = next((call for call in around if call.turn.module in modules), None)
    if first is None or (state is not None and not near(state, first.x)):
        return None
    calls = [call for call in seen.calls if call.start >= first.start]
    last = next((call for call in calls if call.is_norm and near(call.y, behind)), None)
    return None if last is None else (first, last.y, [c for c in calls if c.end <= last.end])


def _parts(
    x: Tensor, y: Tensor, inside: Sequence[Call], writes: Sequence[Call], reads: Sequence[Tensor]
) -> tuple[tuple[Sublayer, ...], Sublayer] | None:
    """Find the sublayers that lead from the stream ``x`` to ``y``; None if there are none."""
    norms = [call for call in inside if call.is_norm]
    for passes in (True, False):  # the stream passes norms after its sums, or it does not
        state = x
        start = 0
        attention: list[Sublayer] = []
        for write, read in zip(writes, reads, strict=True):
            before = _norm(norms, state, read, end=write.start)
            summed = state + write.y
            after = _norm(norms, summed, None, start=write.end) if passes else None
            if (before is None and not near(state, read)) or (passes and after is None):
                break
            attention.append(Sublayer(_turn(before), _turn(after)))
            state, start = (summed, write.end) if after is None else (after.y, after.end)
        if len(attention) < len(writes):
            continue
        ends = [n for n in norms if n.start > start and near(y, n.y)] if passes else [None]
        for end in ends:
            out = y if end is None else end.x
            assert out is not None
            # A call that holds a norm of the stream is more than the network.
            of_stream = [norm for norm in norms if near(state, norm.x)]
            plain = [c for c in inside if c.start > start and not any(map(c.encloses, of_stream))]
            network = _network(plain, norms, out, state)
            if network is not None:
                return tuple(attention), replace(network, after=_turn(end))
    return None


def _network(
    calls: Sequence[Call], norms: Sequence[Call], out: Tensor, state: Tensor
) -> Sublayer | None:
    """Find the calls that turn the stream into what is missing from ``out``, and repeat them."""
    goal = out - state
    for last in (call for call in calls if near(goal, call.y, out)):
        chain = [last]
        while (read := chain[0].x) is not None:
            before = _norm(norms, state, read, end=chain[0].start)
            reads = before is not None or near(state, read)
            if reads and near(goal, _again(chain, read), out):
                return Sublayer(_turn(before), None, tuple(call.turn for call in chain))
            source = next((c for c in calls if c.end < chain[0].start and near(c.y, read)), None)
            if source is None:
                break
            chain.insert(0, source)
    return None


def _again(chain: Sequence[Call], x: Tensor) -> Tensor | None:
    """Repeat some calls, one after the other; None where they need more than one tensor."""
    hidden: Tensor = x
    with torch.no_grad():
        for call in chain:
            try:
                hidden = call.turn.module(hidden)
            except TypeError:
                return None
    return hidden if isinstance(hidden, Tensor) else None


def _norm(
    norms: Sequence[Call], x: Tensor, y: Tensor | None, start: int = -1, end: int | None = None
) -> Call | None:
    """Find a norm that took x, and returned y where that is given, within some events."""
    for norm in norms:
        inside = norm.start > start and (end is None or norm.end < end)
        if inside and near(x, norm.x) and (y is None or near(y, norm.y)):
            return norm
    return None


def _turn(call: Call | None) -> ModuleTurn | None:
    return None if call is None else call.turn
