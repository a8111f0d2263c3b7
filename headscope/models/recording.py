"""What happens inside every attention site in one forward pass, the model's own or ours."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headscope.errors import HeadscopeError
from headscope.measures.activations import Activations
from headscope.models.hooks import hooked
from headscope.models.layouts import AttentionSite
from headscope.models.loading import LoadedModel
from headscope.models.probes import Probe
from headscope.models.routing import Router, routed, use_implementation

#: Pattern entries at a time: fewer than in use, so that the long probe is cut into chunks for every
#: model with more than two heads.
_CHUNK = 1 << 17


@dataclass(frozen=True)
class SiteRecord:
    """One site in one pass; None for what was not seen.

    Attributes
    ----------
    x : Tensor, (batch, pos, d_model)
        What enters the attention module.
    q, k : Tensor, (batch, n_heads, pos, d_head)
        What leaves W_Q and W_K.
    z : Tensor, (batch, pos, n_heads * d_head)
        What enters W_O.
    out : Tensor, (batch, pos, d_model)
        What leaves W_O.
    pattern : Tensor, (batch, n_heads, query_pos, key_pos)
        After softmax.
    """

    x: Tensor | None
    q: Tensor | None
    k: Tensor | None
    z: Tensor | None
    out: Tensor | None
    pattern: Tensor | None


@dataclass
class Recording:
    """One pass, in the order of execution."""

    x: list[Tensor] = field(default_factory=list)
    q: list[Tensor] = field(default_factory=list)
    k: list[Tensor] = field(default_factory=list)
    z: list[Tensor] = field(default_factory=list)
    out: list[Tensor] = field(default_factory=list)
    patterns: list[Tensor | None] = field(default_factory=list)
    hidden: Tensor | None = None

    def site(self, i: int, site: AttentionSite) -> SiteRecord:
        """Return what was seen at one site, the ``i``-th to run."""
        lists = (self.x, self.q, self.k, self.z, self.out, self.patterns)
        x, q, k, z, out, pattern = (items[i] if i < len(items) else None for items in lists)
        return SiteRecord(x, _by_head(q, site), _by_head(k, site), z, out, pattern)


@dataclass
class OurRun:
    """The pass through our attention, and what the router counted.

    Attributes
    ----------
    recording : Recording
        What was seen.
    calls : dict of (stack, layer) to int
        How often our attention ran.
    masks_seen : int
        Calls that came with a mask.
    failure : str or None
        Why the pass broke off, if it did.
    """

    recording: Recording
    calls: dict[tuple[str, int], int]
    masks_seen: int
    failure: str | None = None


def run_eager(loaded: LoadedModel, probe: Probe) -> Recording:
    """Run the model with its own attention that returns patterns."""
    seen = Recording()

    def keep_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.x.append(args[0] if args else kwargs["hidden_states"])

    def keep_pattern(_: nn.Module, args: object, output: object) -> None:
        second = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        seen.patterns.append(second if isinstance(second, Tensor) else None)

    modules = dict.fromkeys(site.module for site in loaded.sites)
    hooks = [module.register_forward_pre_hook(keep_input, with_kwargs=True) for module in modules]
    hooks += [module.register_forward_hook(keep_pattern) for module in modules]
    eager = use_implementation(loaded.model, "eager")
    with hooked(hooks), eager, torch.no_grad(), _projections_seen(loaded.sites, seen):
        seen.hidden = loaded.forward(probe.input_ids, probe.attention_mask)
    return seen


def run_ours(loaded: LoadedModel, probe: Probe) -> OurRun:
    """Run the model through the attention that measures everything else."""
    seen = Recording()
    chunks: dict[int, dict[tuple[int, int], Tensor]] = {}

    class Keep:
        def observe(self, site: Activations) -> None:
            place = (site.rows.start, site.heads.start)
            chunks.setdefault(site.layer, {})[place] = site.pattern

        def finish(self, stack: str, layer: int) -> None:
            pass

    failure = None
    router = Router(loaded.sites, [Keep()], chunk_entries=_CHUNK)
    router.begin()
    try:
        with routed(loaded.model, router), _projections_seen(loaded.sites, seen):
            seen.hidden = loaded.forward(probe.input_ids, probe.attention_mask)
    except HeadscopeError as error:
        failure = str(error)
    seen.patterns = [_pattern(site, chunks.get(site.layer), probe) for site in loaded.sites]
    return OurRun(seen, dict(router.calls), router.masks_seen, failure)


def run_sdpa(loaded: LoadedModel, probe: Probe) -> Tensor | None:
    """Return the last hidden state of the model's SDPA run; None for a family without one."""
    try:
        with use_implementation(loaded.model, "sdpa"), torch.no_grad():
            return loaded.forward(probe.input_ids, probe.attention_mask)
    except (ValueError, ImportError):
        return None


def _projections_seen(
    sites: Sequence[AttentionSite], seen: Recording
) -> AbstractContextManager[None]:
    """Collect what leaves W_Q and W_K, and what enters and leaves W_O, in every site's turn."""
    hooks = []
    for p in dict.fromkeys(site.projections for site in sites):
        for linear, outputs in ((p.q, seen.q), (p.k, seen.k), (p.out, seen.out)):
            hooks.append(linear.register_forward_hook(partial(_keep, outputs)))
        hooks.append(p.out.register_forward_pre_hook(lambda _, args: seen.z.append(args[0])))
    return hooked(hooks)


def _keep(outputs: list[Tensor], _: nn.Module, args: object, output: Tensor) -> None:
    outputs.append(output)


def _pattern(
    site: AttentionSite, chunks: dict[tuple[int, int], Tensor] | None, probe: Probe
) -> Tensor | None:
    """Put the chunks of one layer back together: (batch, n_heads, query_pos, key_pos)."""
    if not chunks:
        batch, n = probe.input_ids.shape
        # A layer that has lost all its heads has nothing to show, and nothing can be missing.
        return torch.empty(batch, 0, n, n) if site.n_heads == 0 else None
    rows = sorted({row for row, _ in chunks})
    heads = sorted({head for _, head in chunks})
    return torch.cat([torch.cat([chunks[row, head] for head in heads], dim=1) for row in rows])


def _by_head(projected: Tensor | None, site: AttentionSite) -> Tensor | None:
    """(batch, pos, n_heads * d_head) -> (batch, n_heads, pos, d_head)."""
    width = site.n_heads * site.d_head
    if projected is None or projected.dim() != 3 or projected.shape[-1] != width:
        return None
    return projected.view(*projected.shape[:2], site.n_heads, site.d_head).transpose(1, 2)
