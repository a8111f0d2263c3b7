"""What happens inside every attention site in one forward pass, the model's own or ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headscope.errors import HeadscopeError
from headscope.measures.activations import Activations
from headscope.models.hooks import grouped, hooked, watch_inputs, watch_outputs
from headscope.models.layouts import AttentionInput, AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.probes import Probe
from headscope.models.routing import Router, routed, use_implementation

#: Pattern entries at a time: fewer than in use, so that the long probe is cut into chunks for every
#: model with more than two heads.
_CHUNK = 1 << 17
#: What a layout that was misread raises: tensors that do not fit, arguments that are not there.
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
    """One pass."""

    #: By field of SiteRecord and the site's row, what each site showed.
    seen: dict[str, dict[int, Any]] = field(default_factory=lambda: defaultdict(dict))
    #: (batch, pos, d_model): the last hidden state; None where the pass broke off.
    hidden: Tensor | None = None
    #: How often our attention ran.
    calls: Mapping[tuple[str, int], int] = field(default_factory=dict)
    masks_seen: int = 0  # Calls of our attention that came with a mask
    failure: str | None = None  # Why the pass broke off, if it did

    def site(self, site: AttentionSite) -> SiteRecord:
        """Return what was seen at one site."""
        return SiteRecord(*(self.seen[part.name].get(site.row) for part in fields(SiteRecord)))


def run_eager(loaded: LoadedModel, probe: Probe, *, scores: bool = False) -> Recording:
    """Run the model with its own attention that returns patterns; keep its ``scores`` too."""
    run = Recording()

    def keep_input(site: AttentionSite, inputs: AttentionInput) -> None:
        run.seen["inputs"][site.row] = inputs
        with suppress(*_MISREAD):
            heads = site.layout.place(site, site.project(inputs), inputs)
            for name in ("q", "k", "v"):
                run.seen[name][site.row] = getattr(heads, name)

    softmaxes = _Softmaxes()

    def keep_pattern(site: AttentionSite, output: object) -> None:
        if scores:
            run.seen["scores"][site.row] = softmaxes.entered
        if not site.layout.bypasses:
            run.seen["pattern"][site.row] = site.layout.pattern_in(output)
        elif (own := softmaxes.taken()) is not None:  # XLM's is float32 in a model of any type
            run.seen["pattern"][site.row] = own.to(loaded.model.dtype)
        else:
            run.seen["pattern"][site.row] = _joined(site, None, "pattern", probe)

    inputs = watch_inputs(loaded.sites, keep_input)
    patterns = watch_outputs(loaded.sites, keep_pattern)
    eager = use_implementation(loaded.model, "eager")
    with inputs, patterns, eager, torch.no_grad(), _outputs_seen(loaded.sites, run), softmaxes:
        run.hidden = loaded.forward(**probe.inputs)
    return run


class _Softmaxes(TorchFunctionMode):
    """Keeps the last softmax over pairs of positions that anything in the block computes.

    A module that never asks for a custom attention does not hand its pattern out either. Some
    families round every pattern to float32, which a model in float64 is not compared with: its
    softmax, and the scores that enter it, stay in float64.
    """

    last: Tensor | None = None
    #: What went into it.
    entered: Tensor | None = None
    #: The last tensor that was rounded to float32, and what it was before.
    _narrowed: tuple[Tensor | None, Tensor | None] = (None, None)

    def taken(self) -> Tensor | None:
        """Return the last one, once: it must not count for the next module too."""
        last, self.last = self.last, None
        return last

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the function; keep what a softmax returns."""
        name, options = getattr(func, "__name__", ""), dict(kwargs or {})
        if name == "softmax" and args and args[0] is self._narrowed[0]:
            args = (self._narrowed[1], *args[1:])
        wide = bool(args) and isinstance(args[0], Tensor) and args[0].dtype == torch.float64
        if wide and name == "softmax":
            options.pop("dtype", None)
        result = func(*args, **options)
        if wide and name == "float":
            self._narrowed = result, args[0]
        if name == "softmax" and result.dim() == 4:
            self.last, self.entered = result, args[0] if args else None
        return result


def run_ours(loaded: LoadedModel, probe: Probe) -> Recording:
    """Run the model through the attention that measures everything else."""
    chunks: dict[int, dict[tuple[int, int], Activations]] = {}

    class Keep:
        def observe(self, site: Activations) -> None:
            chunks.setdefault(site.row, {})[site.rows.start, site.heads.start] = site

        def finish(self, stack: str, layer: int) -> None:
            pass

    router = Router(loaded.sites, [Keep()], chunk_entries=_CHUNK)
    run = Recording(calls=router.calls)
    try:
        with routed(loaded.model, router), _outputs_seen(loaded.sites, run):
            run.hidden = loaded.forward(**probe.inputs)
    except HeadscopeError as error:
        run.failure = str(error)
    except _MISREAD as error:
        said = " ".join(str(error).split())[:200]
        run.failure = f"{loaded.family} does not run through our attention: {said}"
    run.masks_seen = router.masks_seen
    for site in loaded.sites:
        for name in ("pattern", "q", "k", "v"):
            run.seen[name][site.row] = _joined(site, chunks.get(site.row), name, probe)
    return run


def run_sdpa(loaded: LoadedModel, probe: Probe) -> Tensor | None:
    """Return the last hidden state of the model's SDPA run; None where there is none."""
    try:
        with use_implementation(loaded.model, "sdpa"), torch.no_grad():
            return loaded.forward(**probe.inputs)
    except (ValueError, ImportError):
        return None


def _outputs_seen(sites: Sequence[AttentionSite], run: Recording) -> AbstractContextManager[None]:
    """Collect what enters and leaves W_O in every site's turn."""

    def keep(turns: Iterator[AttentionSite], _: nn.Module, args: Any, output: Tensor) -> None:
        site = next(turns)
        run.seen["z"][site.row] = site.projections.out.entering(args[0])
        run.seen["out"][site.row] = site.projections.out.leaving(output)

    return hooked(
        out.module.register_forward_hook(partial(keep, cycle(shared)))
        for out, shared in grouped(sites, lambda site: site.projections.out).items()
    )


def _joined(
    site: AttentionSite,
    chunks: dict[tuple[int, int], Activations] | None,
    name: str,
    probe: Probe,
) -> Tensor | None:
    """Put the chunks of one site back together: (batch, n_heads, pos, ...)."""
    if not chunks:
        if site.n_heads > 0:
            return None
        # A layer that has lost all its heads has nothing to show, and nothing can be missing.
        batch, n_q = probe.real_queries(site.stack).shape
        n_k = probe.real_keys(site.stack).shape[1]
        of_keys = (n_k, site.d_head)
        sizes = {"pattern": (n_q, n_k), "q": (n_q, site.d_head), "k": of_keys, "v": of_keys}
        return torch.empty(batch, 0, *sizes[name], device=probe.input_ids.device)
    rows = sorted({row for row, _ in chunks})
    heads = sorted({head for _, head in chunks})
    parts = [[getattr(chunks[row, head], name) for head in heads] for row in rows]
    return torch.cat([torch.cat(of_row, dim=1) for of_row in parts])
