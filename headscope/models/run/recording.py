"""What happens inside every attention site in one forward pass, the model's own or ours.

:func:`run_eager` records the model's own attention, :func:`run_sdpa` transformers' SDPA, which
shows no pattern, and :func:`run_ours` the attention that measures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from headscope.core.activations import Activations
from headscope.core.errors import HeadscopeError, reason
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import AttentionInput
from headscope.models.run.implementation import use_implementation
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.probes import Probe
from headscope.models.run.routing import Router, SiteObserver, routed
from headscope.models.run.site_hooks import watch_inputs, watch_outputs

#: Pattern entries of a chunk: fewer than in normal use, so that the long probe is cut into chunks
#: for every model with more than two heads.
_CHUNK = 1 << 17
#: Errors of a layout that was misread: tensors that do not fit, arguments that are not there.
_MISREAD = (RuntimeError, ValueError, TypeError, KeyError)


@dataclass(frozen=True)
class SiteRecord:
    """One site in one pass; None for what was not seen."""

    inputs: AttentionInput | None  # What the attention module is called with
    #: (batch, n_heads, pos, d_head): what is scored: queries and keys with any position in them.
    q: Tensor | None
    k: Tensor | None
    #: (batch, pos, n_heads * d_head): what enters W_O: the heads' z, and behind them what a family
    #: puts beside attention.
    z: Tensor | None
    out: Tensor | None  # (batch, pos, d_model): what leaves W_O
    pattern: Tensor | None  # (batch, n_heads, query_pos, key_pos): after softmax
    v: Tensor | None = None  # (batch, n_heads, key_pos, d_v): what the pattern mixes
    #: (batch, n_heads, query_pos, key_pos): what the model's own softmax is given, the mask added;
    #: kept only where asked for.
    scores: Tensor | None = None


@dataclass
class Recording:
    """What one forward pass showed at some sites."""

    sites: Sequence[AttentionSite]
    #: By field of SiteRecord and the site's row, what each site showed.
    seen: dict[str, dict[int, Any]] = field(default_factory=lambda: defaultdict(dict))
    #: (batch, pos, d_model): the last hidden state; None where the pass broke off.
    hidden: Tensor | None = None
    #: How often our attention ran.
    calls: Mapping[tuple[str, int], int] = field(default_factory=dict)
    masks_seen: int = 0  # Calls of our attention that came with a mask
    failure: str | None = None  # Why the pass broke off, if it did

    def keep(self, name: str, site: AttentionSite, shown: Any) -> None:
        """Keep what a site showed, if it is one of those that are recorded."""
        if site in self.sites:
            self.seen[name][site.row] = shown

    def site(self, site: AttentionSite) -> SiteRecord:
        """Return what was seen at one site."""
        shown = {f.name: self.seen[f.name].get(site.row) for f in fields(SiteRecord)}
        return SiteRecord(**shown)


def run_eager(
    loaded: LoadedModel,
    probe: Probe,
    sites: Sequence[AttentionSite] | None = None,
    *,
    scores: bool = False,
) -> Recording:
    """Run the model with its own attention that returns patterns; keep its ``scores`` too.

    Only what ``sites`` show is kept, or what all do.
    """
    run = Recording(loaded.sites if sites is None else sites)
    softmaxes = Softmaxes()

    def keep_pattern(site: AttentionSite, _: object, output: object) -> None:
        if scores:
            run.keep("scores", site, softmaxes.entered)
        pattern = softmaxes.taken()
        if pattern is None and site.n_heads == 0:
            pattern = _empty(site, "pattern", probe)
        # XLM computes it in float32 whatever the dtype of the model
        run.keep("pattern", site, None if pattern is None else pattern.to(loaded.model.dtype))

    def keep_inputs(site: AttentionSite, inputs: AttentionInput) -> None:
        run.keep("inputs", site, inputs)

    called = watch_inputs(loaded.sites, keep_inputs)
    patterns = watch_outputs(loaded.sites, keep_pattern)
    eager = use_implementation(loaded.model, "eager")
    with called, patterns, eager, torch.no_grad(), _outputs_seen(loaded.sites, run), softmaxes:
        run.hidden = loaded.forward(**probe.inputs)
        _project_again(run)  # after the pass: a caller may count the model's own calls of the maps
    return run


def _project_again(run: Recording) -> None:
    """Keep q, k and v as the sites' maps and steps make them of the inputs that were seen."""
    for site in run.sites:
        with suppress(*_MISREAD):
            inputs = run.seen["inputs"][site.row]
            heads = site.as_scored(site.project(inputs), inputs)
            run.keep("q", site, heads.q)
            run.keep("k", site, heads.k)
            run.keep("v", site, heads.v)


class Softmaxes(TorchFunctionMode):
    """Keeps the last softmax over pairs of positions that anything in the block computes.

    Not every module returns its pattern. Some families round scores or patterns to float32, which a
    model in float64 is not compared with: here its softmax, and the scores that enter it, stay in
    float64.
    """

    last: Tensor | None = None
    entered: Tensor | None = None  # What went into it.
    #: Some models round their scores to float32 before the softmax, whatever their dtype. In a
    #: model of float64 that is undone: the last float64 tensor that ``float()`` rounded, and what
    #: it returned, by which the softmax is recognised that takes it.
    _before_rounding: Tensor | None = None
    _rounded: Tensor | None = None

    def taken(self) -> Tensor | None:
        """Return the last softmax and forget it: it must not count for the next module too."""
        last, self.last = self.last, None
        return last

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch; keep what a softmax returns, and what is rounded before it."""
        name = getattr(func, "__name__", "")
        options = dict(kwargs or {})
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
            options.pop("dtype", None)
        pattern: Tensor = func(*args, **options)
        if pattern.dim() == 4:
            self.last = pattern
            self.entered = args[0] if args else None
        return pattern


def _is_float64(args: tuple[Any, ...]) -> bool:
    """Whether the first argument of a call is a float64 tensor."""
    return bool(args) and isinstance(args[0], Tensor) and args[0].dtype == torch.float64


def run_ours(
    loaded: LoadedModel, probe: Probe, sites: Sequence[AttentionSite] | None = None
) -> Recording:
    """Run the model through the attention that measures everything else.

    Only what ``sites`` show is kept, or what all do.
    """
    sites = loaded.sites if sites is None else sites
    chunks = _Chunks({site.row for site in sites})
    router = Router(loaded.sites, [chunks], chunk_entries=_CHUNK)
    run = Recording(sites, calls=router.calls)
    try:
        with routed(loaded.model, router), _outputs_seen(loaded.sites, run):
            run.hidden = loaded.forward(**probe.inputs)
    except HeadscopeError as error:
        run.failure = str(error)
    except _MISREAD as error:
        run.failure = f"{loaded.family} does not run through our attention: {reason(error)}"
    run.masks_seen = router.masks_seen
    for site in sites:
        site_chunks = chunks.by_site.pop(site.row, {})  # not held twice
        for name in ("pattern", "q", "k", "v"):
            # A layer that has lost all its heads has nothing to show, and nothing can be missing.
            no_head = site.n_heads == 0
            tensor = _empty(site, name, probe) if no_head else _joined(site_chunks, name)
            run.keep(name, site, tensor)
    return run


class _Chunks(SiteObserver):
    """Keeps what our attention shows at some sites."""

    def __init__(self, rows: Container[int]) -> None:
        self._rows = rows
        #: By the site's row, and then by the first row and head of the chunk.
        self.by_site: dict[int, dict[tuple[int, int], Activations]] = {}

    def observe(self, site: Activations) -> None:
        if site.row in self._rows:
            self.by_site.setdefault(site.row, {})[site.rows.start, site.heads.start] = site


def run_sdpa(
    loaded: LoadedModel, probe: Probe, sites: Sequence[AttentionSite] | None = None
) -> Recording | None:
    """Run the model with transformers' SDPA, which shows no pattern; None where it has none.

    Only what ``sites`` show is kept, or what all do.
    """
    run = Recording(loaded.sites if sites is None else sites)

    def keep_inputs(site: AttentionSite, inputs: AttentionInput) -> None:
        run.keep("inputs", site, inputs)

    called = watch_inputs(loaded.sites, keep_inputs)
    outputs = _outputs_seen(loaded.sites, run)
    try:
        with use_implementation(loaded.model, "sdpa"), called, outputs, torch.no_grad():
            run.hidden = loaded.forward(**probe.inputs)
    except (ValueError, ImportError):
        return None
    return run


def _outputs_seen(sites: Sequence[AttentionSite], run: Recording) -> AbstractContextManager[None]:
    """Collect what enters and leaves W_O in every site's turn."""

    def keep(site: AttentionSite, z: Tensor, output: Tensor) -> None:
        run.keep("z", site, site.projections.out.entering(z))
        run.keep("out", site, site.projections.out.leaving(output))

    return watch_outputs(sites, keep, module_of=lambda site: site.projections.out.module)


def _joined(chunks: Mapping[tuple[int, int], Activations], name: str) -> Tensor | None:
    """Put the chunks of one site back together: (batch, n_heads, pos, ...); None without any.

    ``chunks`` are keyed by their first row and their first head.
    """
    if not chunks:
        return None
    heads = sorted({head for _, head in chunks})
    examples = []
    for row in sorted({row for row, _ in chunks}):
        tensors = [getattr(chunks[row, head], name) for head in heads]
        examples.append(torch.cat(tensors, dim=1))
    return torch.cat(examples)


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
