r"""How much of the tokens' differences survives with depth: the residual, layer by layer.

A sequence's hidden states ``H`` (pos, d_model) are compared with the nearest matrix all of whose
rows are equal, ``1 mean(H)^T``::

    res(H) = H - 1 mean(H)^T                mean over positions
    ratio  = ||res(H)|| / ||H||             ||M|| = sqrt(max column abs-sum * max row abs-sum)

The ratio is 0 when every token has the same state (rank one), whatever that state is.

A layer is re-run without some of its parts. A *variant* names the parts that stay; attention is
always one of them. With ``a`` the attention of a layer up to W_O and b_O, ``f`` its feed-forward
network and ``N1``, ``N2`` its LayerNorms, a layer maps x to

============================  ======================================  =========================
variant                       LayerNorm after each sum (post)         before each sublayer (pre)
============================  ======================================  =========================
full                          y = N1(x + a(x));  N2(y + f(y))         y = x + a(N1(x)); y + f(N2(y))
attention+skip                N1(x + a(x))                            x + a(N1(x))
attention+ffn                 y = N1(a(x));      N2(y + f(y))         y = a(N1(x));     y + f(N2(y))
attention                     N1(a(x))                                a(N1(x))
full-without-layernorm        y = x + a(x);      y + f(y)             the same
attention-without-layernorm   a(x)                                    the same
============================  ======================================  =========================

Without the skip, attention keeps its own LayerNorm: it acts on each token alone and so cannot make
equal tokens differ. Leaving out the feed-forward sublayer leaves out its skip and its LayerNorm. A
norm that is missing, or an RMSNorm instead of LayerNorm, changes nothing in this table. Every run
compares the full variant with the model's own states. Other inputs of attention, such as a bias by
position, are those of the model's own run.

What a part protects after a number of layers is its effect on the residual as a share of the full
model's, window by window::

    removed  = (ratio(full) - ratio(full without the part)) / ratio(full)
    added    = (ratio(attention and the part) - ratio(attention)) / ratio(full)

The claim about the collapse is decided by trends, again window by window::

    of start   = ratio(l) / ratio(0)                        attention alone, attention with skip
    layernorm  = (ratio - ratio without LayerNorm) / ratio(0)               of attention alone
    gain       = ln(ratio(attention and feed-forward) / ratio(attention))
    step       = f(l) - f(l - 1),  f(l) = ratio(l) / ratio(l - 1)           of attention alone

A fall is at least exponential where no factor f exceeds the one before. Gains and steps of windows
that are no more than rounding are passed over.

References
----------
Dong, Cordonnier & Loukas 2021, arXiv:2103.03404.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.depth.result import Curve, DepthCurves, Protection, Trend
from headscope.core.accumulator import Array, numpy
from headscope.core.widest import widest
from headscope.models.anatomy.layers import Layer
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import AttentionInput
from headscope.models.run.implementation import use_implementation
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.products import fast_products
from headscope.models.run.recording import Softmaxes
from headscope.models.run.routing import Router
from headscope.models.run.site_hooks import watch_inputs
from headscope.models.run.watched import ModuleTurn, capture
from headscope.stats.statistics import finite, t_half_width

COLLAPSED = 0.01  # A variant has collapsed once its ratio is below this share of where it started.


@dataclass(frozen=True)
class Variant:
    """Which parts of a layer stay besides attention."""

    name: str  # What results call it.
    skip: bool  # The skip connection around attention.
    ffn: bool  # The feed-forward sublayer, with its own skip connection and LayerNorm.
    layernorm: bool = True  # The LayerNorms of the sublayers that stay.


#: The last one is for the share of LayerNorm alone, and has a field of its own in the result.
VARIANTS = (
    Variant("attention", skip=False, ffn=False),
    Variant("attention+ffn", skip=False, ffn=True),
    Variant("attention+skip", skip=True, ffn=False),
    Variant("full", skip=True, ffn=True),
    Variant("full-without-layernorm", skip=True, ffn=True, layernorm=False),
    Variant("attention-without-layernorm", skip=False, ffn=False, layernorm=False),
)
#: Names of the variants that are shown
_SHOWN = [variant.name for variant in VARIANTS[:-1]]


class Comparison(NamedTuple):
    """Two variants that differ in one part: what the part protects is the difference."""

    part: str
    way: str  # ``removed`` from the full model, or ``added`` to attention
    having: str  # The variant that has the part
    lacking: str  # The one that lacks it


COMPARISONS = (
    Comparison("skip", "removed", "full", "attention+ffn"),
    Comparison("ffn", "removed", "full", "attention+skip"),
    Comparison("layernorm", "removed", "full", "full-without-layernorm"),
    Comparison("skip", "added", "attention+skip", "attention"),
    Comparison("ffn", "added", "attention+ffn", "attention"),
    Comparison("layernorm", "added", "attention", "attention-without-layernorm"),
)


# --- layers without some of their parts -----------------------------------------------------------


class OwnRun(NamedTuple):
    """What the layers read and returned when the model itself ran."""

    #: (batch, pos, d_model): what enters the first layer, and what leaves each; a norm after the
    #: last one (pre-LN) is not part of a layer.
    states: list[Tensor]
    #: What each attention module was called with, by the row of its site; the state left out.
    inputs: dict[int, AttentionInput]


def own_run(loaded: LoadedModel, layers: Sequence[Layer], input_ids: Tensor) -> OwnRun:
    """Run the model as it is, with its own attention, on windows (batch, pos) without padding."""
    inputs: dict[int, AttentionInput] = {}

    def see(site: AttentionSite, read: AttentionInput) -> None:
        """Keep what a module was called with, but for the state: variants bring their own."""
        state = next(iter(read.arguments))
        nothing = read.x_q[:0]
        arguments = {**read.arguments, state: nothing}
        inputs[site.row] = replace(read, x_q=nothing, x_k=nothing, arguments=arguments)

    between_layers = [layers[0].enters, *(layer.leaves for layer in layers)]
    # Eager attention is given every mask; other implementations may get none.
    eager = use_implementation(loaded.model, "eager")
    seeing = watch_inputs(loaded.sites, see)
    with capture(between_layers) as seen, seeing, eager, torch.no_grad(), Softmaxes():
        loaded.forward(input_ids, torch.ones_like(input_ids))
    first_state, _ = seen[layers[0].enters]
    states = [first_state]
    for layer in layers:
        _, last_state = seen[layer.leaves]
        states.append(last_state)
    return OwnRun(states, inputs)


def run_variant(
    layers: Sequence[Layer],
    router: Router,
    run: OwnRun,
    variant: Variant,
    shared: dict[bool, Tensor] | None = None,
) -> Iterator[Tensor]:
    """Yield the embeddings of a run, and then the state after each layer: n_layers + 1 tensors.

    Each is (batch, pos, d_model). ``shared`` caches the output of the first attention, by whether
    it has a norm before it: it is the same for all variants that do, and for all that do not.
    """

    def normed(norm: ModuleTurn | None, x: Tensor) -> Tensor:
        """Apply a norm that the layer has and the variant keeps."""
        out: Tensor = x if norm is None or not variant.layernorm else norm.module(x)
        return out

    shared = {} if shared is None else shared
    router.begin()
    x = run.states[0]
    yield x
    for i, layer in enumerate(layers):
        (site,) = layer.sites
        (attention,) = layer.attention
        network = layer.network
        is_normed = variant.layernorm and attention.before is not None
        if i == 0 and is_normed in shared:
            attended = shared[is_normed]
            router.skip([(site.stack, site.layer)])
        else:
            attended = attend(site, normed(attention.before, x), run.inputs[site.row], router)
        if i == 0:
            shared[is_normed] = attended
        x = normed(attention.after, x + attended if variant.skip else attended)
        if variant.ffn:
            hidden = normed(network.before, x)
            for call in network.modules:
                hidden = call.module(hidden)
            x = normed(network.after, x + hidden)
        yield x
    router.check_calls()


def attend(site: AttentionSite, x: Tensor, read: AttentionInput, router: Router) -> Tensor:
    """Run attention on x (batch, pos, d_model), W_O and b_O included, as the model called it.

    ``read`` is what the model called it with; its first argument is the state.
    """
    state = next(iter(read.arguments))
    inputs = replace(read, x_q=x, x_k=x, arguments={**read.arguments, state: x})
    z = site.mix(partial(router.attend, site.module), inputs)
    out: Tensor = site.layout.answer(site, z, inputs)[0]
    # Where W_O lies outside of the attention module, its answer is z.
    return site.projections.out(out) if site.layout.out.startswith("..") else out


def measure_ratios(
    loaded: LoadedModel, layers: Sequence[Layer], run: OwnRun
) -> tuple[Array, float]:
    """Return ratios (variants, n_layers + 1, windows), and how far "full" is from the model.

    That is the largest difference of any state, relative to the largest entry where it is above 1.
    """
    router = Router(loaded.sites, unmeasured_sites=loaded.unmeasured_sites)
    gap = 0.0
    ratios: list[list[Array]] = []  # By variant and point
    shared: dict[bool, Tensor] = {}
    with torch.no_grad(), fast_products(loaded.model):
        for variant in VARIANTS:
            by_point: list[Array] = []
            for point, hidden in enumerate(run_variant(layers, router, run, variant, shared)):
                by_point.append(numpy(residual_ratio(hidden)))
                if variant.name == "full":
                    gap = max(gap, _relative_gap(hidden, run.states[point]))
            ratios.append(by_point)
    return np.array(ratios), gap


def _relative_gap(hidden: Tensor, expected: Tensor) -> float:
    """Return the largest difference of two states, relative to the largest entry above 1."""
    exact = widest(expected)
    difference = (widest(hidden) - exact).abs().max() / exact.abs().max().clamp(min=1)
    return float(difference) if difference.isfinite() else math.inf


# --- the residual ---------------------------------------------------------------------------------


def composite_norm(matrix: Tensor) -> Tensor:
    """Return sqrt(max column abs-sum * max row abs-sum) of (..., rows, columns): (...)."""
    entries = matrix.abs()
    return (entries.sum(dim=-2).amax(dim=-1) * entries.sum(dim=-1).amax(dim=-1)).sqrt()


def residual_ratio(hidden: Tensor) -> Tensor:
    """Return how far the tokens of each sequence are from one common state, (batch,).

    Shapes: ``hidden`` (batch, pos, d_model).
    """
    hidden = widest(hidden)
    residual = hidden - hidden.mean(dim=-2, keepdim=True)
    return composite_norm(residual) / composite_norm(hidden)


def curves_of(ratios: Array, floor: float) -> DepthCurves:
    """Average ratios (len(VARIANTS), n_layers + 1, windows), shares and trends over windows.

    With standard deviations and 95% intervals (Student's t). ``floor`` is the ratio up to which
    tokens differ only by the rounding of the dtype.
    """
    by_name = {variant.name: ratios[i] for i, variant in enumerate(VARIANTS)}
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratio_means = {name: _over_windows(values) for name, values in by_name.items()}
        protected = []
        for pair in COMPARISONS:
            shares = (by_name[pair.having] - by_name[pair.lacking]) / by_name["full"]
            means = _over_windows(shares)
            protected.append(
                Protection(
                    part=pair.part,
                    way=pair.way,
                    having=pair.having,
                    lacking=pair.lacking,
                    mean=means.mean,
                    std=means.std,
                    low=means.low,
                    high=means.high,
                )
            )
        trends = {}
        for name, (values, counted) in _trends(by_name, floor).items():
            means = _over_windows(values, counted)
            trends[name] = Trend(means.mean, means.low, means.high, means.windows)
        collapsed = {name: collapsed_after(by_name[name].mean(axis=-1)) for name in _SHOWN}
    bare = ratio_means["attention-without-layernorm"]
    return DepthCurves(
        variants={name: ratio_means[name].mean for name in _SHOWN},
        std={name: ratio_means[name].std for name in _SHOWN},
        attention_without_layernorm=bare.mean,
        attention_without_layernorm_std=bare.std,
        protected=tuple(protected),
        collapsed_after=collapsed,
        trends=trends,
    )


class _Means(NamedTuple):
    """A mean over windows with its spread, by point; None where there is none."""

    mean: Curve
    std: Curve
    low: Curve
    high: Curve
    windows: tuple[int, ...]  # That count at each point


def _over_windows(values: Array, counted: Array | None = None) -> _Means:
    """Average (n_layers + 1, windows) over the windows, or over those that count."""
    if counted is None:
        counted = np.ones(values.shape, dtype=bool)
    n = counted.sum(axis=-1)
    mean = np.where(counted, values, 0.0).sum(axis=-1) / n
    squares = np.where(counted, values - mean[..., None], 0.0) ** 2
    std = np.where(n > 1, np.sqrt(squares.sum(axis=-1) / (n - 1)), np.nan)
    half_width = t_half_width(std / np.sqrt(n), n)
    return _Means(
        mean=tuple(map(finite, mean)),
        std=tuple(map(finite, std)),
        low=tuple(map(finite, mean - half_width)),
        high=tuple(map(finite, mean + half_width)),
        windows=tuple(n.tolist()),
    )


def _trends(ratios: dict[str, Array], floor: float) -> dict[str, tuple[Array, Array]]:
    """Return every trend (n_layers + 1, windows), and where it counts: True or False.

    ``ratios`` are those of every variant, by its name.
    """
    alone = ratios["attention"]
    with_ffn = ratios["attention+ffn"]
    without_layernorm = ratios["attention-without-layernorm"]
    always = np.ones(alone.shape, dtype=bool)

    least = max(floor, np.finfo(float).tiny)  # what is less is rounding, not a smaller ratio
    gain = np.log(np.maximum(with_ffn, least) / np.maximum(alone, least))
    gain_counts = np.maximum(alone, with_ffn) > floor

    step = np.full_like(alone, np.nan)
    step[2:] = np.diff(alone[1:] / alone[:-1], axis=0)
    step_counts = np.zeros(alone.shape, dtype=bool)
    step_counts[2:] = (alone[2:] > floor) & (alone[1:-1] > floor)
    return {
        "attention_of_start": (alone / alone[:1], always),
        "skip_of_start": (ratios["attention+skip"] / alone[:1], always),
        "layernorm_change": ((alone - without_layernorm) / alone[:1], always),
        "ffn_gain": (gain, gain_counts),
        "step_change": (step, step_counts),
    }


def collapsed_after(ratios: Array) -> int | None:
    """Return after how many layers the ratio stays below 1% of its start; None if it never does.

    ``ratios`` (n_layers + 1,) are one variant's; the first is the embeddings'.
    """
    above = np.flatnonzero(~(ratios < COLLAPSED * ratios[0]))
    after = int(above[-1]) + 1
    return after if after < len(ratios) else None
