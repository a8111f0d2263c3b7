"""What happens inside every attention site in one forward pass, the model's own or ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
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
    """One pass.

    Attributes
    ----------
    seen : dict of str to list of Tensor or None
        By field of SiteRecord what each site showed, in the order of execution.
    hidden : Tensor or None, (batch, pos, d_model)
        The last hidden state; None where the pass broke off.
    calls : dict of (stack, layer) to int
        How often our attention ran.
    masks_seen : int
        Calls of our attention that came with a mask.
    failure : str or None
        Why the pass broke off, if it did.
    """

    seen: dict[str, list[Tensor | None]] = field(default_factory=lambda: defaultdict(list))
    hidden: Tensor | None = None
    calls: Mapping[tuple[str, int], int] = field(default_factory=dict)
    masks_seen: int = 0
    failure: str | None = None

    def site(self, i: int, site: AttentionSite) -> SiteRecord:
        """Return what was seen at one site, the ``i``-th to run."""
        lists = {part.name: self.seen[part.name] for part in fields(SiteRecord)}
        found = {name: items[i] if i < len(items) else None for name, items in lists.items()}
        split = {name: _by_head(found[name], site) for name in ("q", "k")}
        return SiteRecord(**found | split)


def run_eager(loaded: LoadedModel, probe: Probe) -> Recording:
    """Run the model with its own attention that returns patterns."""
    run = Recording()

    def keep_input(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        run.seen["x"].append(args[0] if args else kwargs["hidden_states"])

    def keep_pattern(_: nn.Module, args: object, output: object) -> None:
        second = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        run.seen["pattern"].append(second if isinstance(second, Tensor) else None)

    modules = dict.fromkeys(site.module for site in loaded.sites)
    hooks = [module.register_forward_pre_hook(keep_input, with_kwargs=True) for module in modules]
    hooks += [module.register_forward_hook(keep_pattern) for module in modules]
    eager = use_implementation(loaded.model, "eager")
    with hooked(hooks), eager, torch.no_grad(), _projections_seen(loaded.sites, run):
        run.hidden = loaded.forward(probe.input_ids, probe.attention_mask)
    return run


def run_ours(loaded: LoadedModel, probe: Probe) -> Recording:
    """Run the model through the attention that measures everything else."""
    chunks: dict[int, dict[tuple[int, int], Tensor]] = {}

    class Keep:
        def observe(self, site: Activations) -> None:
            place = (site.rows.start, site.heads.start)
            chunks.setdefault(site.layer, {})[place] = site.pattern

        def finish(self, stack: str, layer: int) -> None:
            pass

    router = Router(loaded.sites, [Keep()], chunk_entries=_CHUNK)
    run = Recording(calls=router.calls)
    try:
        with routed(loaded.model, router), _projections_seen(loaded.sites, run):
            run.hidden = loaded.forward(probe.input_ids, probe.attention_mask)
    except HeadscopeError as error:
        run.failure = str(error)
    run.masks_seen = router.masks_seen
    run.seen["pattern"] = [_pattern(site, chunks.get(site.layer), probe) for site in loaded.sites]
    return run


def run_sdpa(loaded: LoadedModel, probe: Probe) -> Tensor | None:
    """Return the last hidden state of the model's SDPA run; None for a family without one."""
    try:
        with use_implementation(loaded.model, "sdpa"), torch.no_grad():
            return loaded.forward(probe.input_ids, probe.attention_mask)
    except (ValueError, ImportError):
        return None


def _projections_seen(
    sites: Sequence[AttentionSite], run: Recording
) -> AbstractContextManager[None]:
    """Collect what leaves W_Q and W_K, and what enters and leaves W_O, in every site's turn."""

    def keep(name: str, _: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        run.seen[name].append(output)
        if name == "out":
            run.seen["z"].append(args[0])

    return hooked(
        getattr(p, name).register_forward_hook(partial(keep, name))
        for p in dict.fromkeys(site.projections for site in sites)
        for name in ("q", "k", "out")
    )


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
