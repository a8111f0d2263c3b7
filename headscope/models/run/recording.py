"""What happens inside every attention site in one forward pass, the model's own or ours.

A *site* is a layer of attention, and its *row* its place among the sites of the model. A
:class:`~headscope.models.run.probes.Probe` is the batch of token ids that the pass reads. The
certificate compares passes over one probe: :func:`run_eager` records the model's own attention,
:func:`run_ours` the one that measures, and :func:`run_sdpa` transformers' SDPA, which shows no
pattern.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, fields
from itertools import cycle
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from headscope.core.activations import Activations
from headscope.core.errors import HeadscopeError, reason
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import AttentionInput
from headscope.models.run.handed import HandedCall, watch_interface
from headscope.models.run.hooks import first_tensor, grouped
from headscope.models.run.implementation import use_implementation
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.probes import Probe
from headscope.models.run.routing import Router, SiteObserver, routed
from headscope.models.run.site_hooks import (
    attention_module,
    mended_forwards,
    output_module,
    watch_inputs,
    watch_outputs,
)

#: Pattern entries of a chunk: fewer than in normal use, so that the long probe is cut into chunks
#: for every model with more than two heads.
_CHUNK = 1 << 17
#: What torch and Python raise where headscope takes a family's attention for another one: tensors
#: do not fit, or arguments are not there.
MISREAD = (RuntimeError, ValueError, TypeError, KeyError)


@dataclass(frozen=True)
class SiteRecord:
    """One site in one pass; None for what was not seen."""

    inputs: AttentionInput | None  # The tensors and the mask that the module is called with
    #: (batch, n_heads, pos, d_head): the queries and keys whose products are the scores, with any
    #: rotation by position already in them.
    q: Tensor | None
    k: Tensor | None
    #: (batch, pos, n_heads * d_head): the input of W_O, every head's z side by side. ConvBERT has
    #: the outputs of its convolutions behind them.
    z: Tensor | None
    out: Tensor | None  # (batch, pos, d_model): the output of W_O
    pattern: Tensor | None  # (batch, n_heads, query_pos, key_pos): after softmax
    mask: Tensor | None = None  # As handed over, where that is all that is known of the site
    v: Tensor | None = None  # (batch, n_heads, key_pos, d_v): the values that the pattern mixes
    #: (batch, n_heads, query_pos, key_pos): the input of the model's own softmax, with the mask
    #: added; kept by ``run_eager(scores=True)`` only.
    scores: Tensor | None = None


@dataclass
class Recording:
    """One forward pass, with the tensors of some of its sites."""

    sites: Sequence[AttentionSite]  # Those whose tensors are kept
    #: Tensors by their name in SiteRecord and by the row of their site: ``seen["q"][0]`` is the q
    #: of the first site.
    seen: dict[str, dict[int, Any]] = field(default_factory=lambda: defaultdict(dict))
    #: (batch, pos, d_model): the last hidden state; None where the pass broke off.
    hidden: Tensor | None = None
    #: How often our attention ran at each (stack, layer); empty for the model's own attention.
    calls: Mapping[tuple[str, int], int] = field(default_factory=dict)
    masks_seen: int = 0  # Calls of our attention that came with a mask
    failure: str | None = None  # Why the pass broke off, if it did

    def keep(self, name: str, site: AttentionSite, value: Any) -> None:
        """Keep one tensor (or the inputs) of a site, if the site is recorded."""
        if site in self.sites:
            self.seen[name][site.row] = value

    def site(self, site: AttentionSite) -> SiteRecord:
        """Return everything that was kept of one site."""
        values = {f.name: self.seen[f.name].get(site.row) for f in fields(SiteRecord)}
        return SiteRecord(**values)


# --- the model's own attention --------------------------------------------------------------------


def run_eager(
    loaded: LoadedModel,
    probe: Probe,
    sites: Sequence[AttentionSite] | None = None,
    *,
    scores: bool = False,
    heads: bool = True,
) -> Recording:
    """Run the model with its own "eager" attention, and record ``sites`` (by default all).

    With ``scores`` the inputs of its softmaxes are kept besides; without ``heads`` q, k and v of
    the heads are not.
    """
    recording = Recording(loaded.sites if sites is None else sites)
    softmaxes = Softmaxes.of(loaded)

    def keep_inputs(site: AttentionSite, inputs: AttentionInput) -> None:
        recording.keep("inputs", site, inputs)

    def keep_pattern(site: AttentionSite, _: object, output: object) -> None:
        """Keep the softmax that ran last: the site's own, since its module returns just now."""
        if not site.has_weights:  # handed over
            return
        if scores:
            recording.keep("scores", site, softmaxes.scores(site))
        pattern = softmaxes.taken(site)
        if pattern is None and site.n_heads == 0:
            pattern = _empty(site, "pattern", probe)
        if pattern is not None:
            # XLM computes it in float32 whatever the dtype of the model
            pattern = pattern.to(loaded.model.dtype)
        recording.keep("pattern", site, pattern)

    with ExitStack() as watching:
        watching.enter_context(watch_inputs(loaded.sites, keep_inputs))
        watching.enter_context(watch_outputs(loaded.sites, keep_pattern))
        watching.enter_context(mended_forwards(loaded.sites))
        watching.enter_context(use_implementation(loaded.model, "eager"))
        watching.enter_context(torch.no_grad())
        watching.enter_context(_watch_output_maps(loaded.sites, recording))
        watching.enter_context(_watch_handed(loaded, recording))
        watching.enter_context(softmaxes)
        recording.hidden = loaded.forward(**probe.inputs)
        if heads:  # after the pass: a caller may count how often the model itself calls its maps
            _project_again(recording)
    return recording


def _project_again(recording: Recording) -> None:
    """Keep q, k and v, computed anew from the inputs that were recorded.

    A site whose family is misread stays without them, and the certificate says so.
    """
    for site in recording.sites:
        if not site.has_weights:
            continue
        with suppress(*MISREAD):
            inputs = recording.seen["inputs"][site.row]
            projected = site.project(inputs)  # by W_Q, W_K and W_V
            heads = site.as_scored(projected, inputs)  # normed and rotated as the family does it
            recording.keep("q", site, heads.q)
            recording.keep("k", site, heads.k)
            recording.keep("v", site, heads.v)


class Softmaxes(TorchFunctionMode):
    """Keeps the last attention pattern that any code in the block computes with torch's softmax.

    Not every module returns its pattern, so the call of softmax itself is intercepted.

    Some families round their scores to float32 before the softmax, or the pattern after it, or
    (with ``products``) q and k before their product, whatever the dtype. In a float64 model the
    rounding is undone here: scores and pattern stay in float64, as ours are.
    """

    def __init__(self, *, products: bool = False, joined: bool = False) -> None:
        super().__init__()
        self._products = products
        self._n_axes = 3 if joined else 4  # Other softmaxes, such as of a classifier, have fewer

    @classmethod
    def of(cls, loaded: LoadedModel) -> Softmaxes:
        """Return one that knows what the model's family rounds, and the axes of its softmax."""
        layouts = [site.layout for site in loaded.sites]
        products = any(layout.rounds_products for layout in layouts)
        return cls(products=products, joined=any(layout.joins_examples for layout in layouts))

    #: The last pattern, (batch, n_heads, query_pos, key_pos) or (batch * n_heads, ...).
    _last: Tensor | None = None
    _entered: Tensor | None = None  # The scores that it was made of
    #: The last float64 tensor that a model rounded by ``float()``, and the rounded one. A softmax
    #: that is given the latter takes the former instead.
    _before_rounding: Tensor | None = None
    _rounded: Tensor | None = None

    def taken(self, site: AttentionSite) -> Tensor | None:
        """Return the pattern of the site that ran last, (batch, n_heads, query_pos, key_pos).

        It is forgotten, as it must not count for the next module too.
        """
        pattern = self._last
        self._last = None
        return _by_head(pattern, site)

    def scores(self, site: AttentionSite) -> Tensor | None:
        """Return what that pattern was made of, of the same shape."""
        return _by_head(self._entered, site)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch: torch calls this for every function in the block."""
        name = getattr(func, "__name__", "")
        options = dict(kwargs or {})
        if self._products and name == "to" and args[1:] == (torch.float32,) and _is_float64(args):
            return args[0]
        if name == "softmax":
            return self._softmax(func, args, options)
        result = func(*args, **options)
        if name == "float" and _is_float64(args):
            self._before_rounding = args[0]
            self._rounded = result
        return result

    def _softmax(self, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
        """Run a softmax, of a float64 model in float64, and keep it."""
        if args and args[0] is self._rounded:
            args = (self._before_rounding, *args[1:])
        if _is_float64(args):
            options.pop("dtype", None)  # softmax(scores, dtype=torch.float32) would round them
        pattern: Tensor = func(*args, **options)
        if pattern.dim() in (self._n_axes, 4):
            self._last = pattern
            self._entered = args[0] if args else None
        return pattern


def _by_head(tensor: Tensor | None, site: AttentionSite) -> Tensor | None:
    """Give scores or a pattern of a site its axis of heads, where the family joins it."""
    if tensor is None or tensor.dim() == 4:
        return tensor
    return tensor.reshape(-1, site.n_heads, *tensor.shape[1:])


def unrounded(loaded: LoadedModel) -> AbstractContextManager[object]:
    """Keep what a float64 model's softmaxes round to float32 in float64, also a router's."""
    return Softmaxes.of(loaded) if loaded.dtype == "float64" else nullcontext()


def _is_float64(args: tuple[Any, ...]) -> bool:
    """Whether the first argument of a call is a float64 tensor."""
    return bool(args) and isinstance(args[0], Tensor) and args[0].dtype == torch.float64


# --- ours -----------------------------------------------------------------------------------------

#: The chunks of one site, by the first example and the first head that each holds.
_SiteChunks = dict[tuple[int, int], Activations]


def run_ours(
    loaded: LoadedModel, probe: Probe, sites: Sequence[AttentionSite] | None = None
) -> Recording:
    """Run the model through our attention, as every measurement does, and record ``sites``.

    By default all sites are recorded. An error of the pass becomes its ``failure``.
    """
    sites = loaded.sites if sites is None else sites
    chunks = _Chunks({site.row for site in sites})
    router = Router(loaded.sites, [chunks], chunk_entries=_CHUNK)
    recording = Recording(sites, calls=router.calls)
    try:
        with (
            routed(loaded.model, router),
            _watch_output_maps(loaded.sites, recording),
            unrounded(loaded),
        ):
            recording.hidden = loaded.forward(**probe.inputs)
    except HeadscopeError as error:
        recording.failure = str(error)
    except MISREAD as error:
        recording.failure = f"{loaded.family} does not run through our attention: {reason(error)}"
    recording.masks_seen = router.masks_seen
    for site in sites:
        site_chunks = chunks.by_site.pop(site.row, {})  # not held twice
        for name in ("pattern", "q", "k", "v"):
            if site.n_heads == 0:  # without heads our attention has no chunk to show
                tensor: Tensor | None = _empty(site, name, probe)
            else:
                tensor = _joined(site_chunks, name)
            recording.keep(name, site, tensor)
        z = _joined(site_chunks, "z")
        if not site.has_weights and z is not None:
            recording.keep("z", site, z.transpose(1, 2).flatten(2))
    return recording


class _Chunks(SiteObserver):
    """Keeps every chunk (some examples and heads) that our attention computes at some sites.

    Other observers keep none, for memory: this one sees nothing but a probe.
    """

    def __init__(self, site_rows: Container[int]) -> None:
        self._site_rows = site_rows
        self.by_site: dict[int, _SiteChunks] = {}  # By the row of the site

    def observe(self, chunk: Activations) -> None:
        if chunk.row in self._site_rows:  # ``row`` is that of the site
            first_example = chunk.examples.start
            first_head = chunk.heads.start
            self.by_site.setdefault(chunk.row, {})[first_example, first_head] = chunk


def _joined(chunks: _SiteChunks, name: str) -> Tensor | None:
    """Put the chunks of one site back together: (batch, n_heads, pos, ...); None without any."""
    if not chunks:
        return None
    first_examples = sorted({example for example, _ in chunks})
    first_heads = sorted({head for _, head in chunks})
    examples = []
    for example in first_examples:
        tensors = [getattr(chunks[example, head], name) for head in first_heads]
        examples.append(torch.cat(tensors, dim=1))
    return torch.cat(examples)


# --- transformers' SDPA ---------------------------------------------------------------------------


def run_sdpa(
    loaded: LoadedModel, probe: Probe, sites: Sequence[AttentionSite] | None = None
) -> Recording | None:
    """Run the model with transformers' SDPA, which shows no pattern; None where it has none.

    Only what ``sites`` show is kept, or what all do.
    """
    recording = Recording(loaded.sites if sites is None else sites)

    def keep_inputs(site: AttentionSite, inputs: AttentionInput) -> None:
        recording.keep("inputs", site, inputs)

    called = watch_inputs(loaded.sites, keep_inputs)
    outputs = _watch_output_maps(loaded.sites, recording)
    handed = _watch_handed(loaded, recording)
    try:
        sdpa = use_implementation(loaded.model, "sdpa")
        with sdpa, called, outputs, handed, torch.no_grad(), unrounded(loaded):
            if loaded.model.config._attn_implementation != "sdpa":  # transformers set nothing
                return None
            recording.hidden = loaded.forward(**probe.inputs)
    except (ValueError, ImportError):  # what transformers raises where a family has none
        return None
    return recording


# --- for both recordings --------------------------------------------------------------------------


def _watch_handed(loaded: LoadedModel, recording: Recording) -> AbstractContextManager[None]:
    """Record what the model hands over at every site of which nothing else is known."""
    sites = [site for site in loaded.sites if not site.has_weights]
    if not sites:
        return nullcontext()
    turns = {module: cycle(shared) for module, shared in grouped(sites, attention_module).items()}

    def keep(call: HandedCall) -> None:
        if call.module not in turns:
            return
        site = next(turns[call.module])
        recording.keep("q", site, call.heads.q)
        recording.keep("k", site, call.heads.k)
        recording.keep("v", site, call.heads.v)
        recording.keep("mask", site, call.mask)
        recording.keep("z", site, call.z.transpose(1, 2).flatten(2))
        recording.keep("pattern", site, call.pattern)

    return watch_interface(loaded.model, keep)


def _watch_output_maps(
    sites: Sequence[AttentionSite], recording: Recording
) -> AbstractContextManager[None]:
    """Record the input and the output of W_O at every site; of an unknown one, what it returns."""

    def keep(site: AttentionSite, z: Tensor, output: Any) -> None:
        if not site.has_weights:
            recording.keep("out", site, first_tensor(output))
            return
        output_map = site.projections.out
        recording.keep("z", site, output_map.entering(z))  # with axes as in SiteRecord, where the
        recording.keep("out", site, output_map.leaving(output))  # map is a convolution

    return watch_outputs(sites, keep, output_module)


def _empty(site: AttentionSite, name: str, probe: Probe) -> Tensor:
    """Return the empty pattern, q, k or v of a layer without heads, (batch, 0, pos, ...)."""
    batch, n_q = probe.real_queries(site.stack).shape
    n_k = probe.real_keys(site.stack).shape[1]
    sizes = {
        "pattern": (n_q, n_k),
        "q": (n_q, site.d_head),
        "k": (n_k, site.d_head),
        "v": (n_k, site.d_head),
    }
    return torch.empty(batch, 0, *sizes[name], device=probe.input_ids.device)
