"""What a model hands to transformers' attention: q, k, v, mask and scale, and what it gets back.

:func:`watch_interface` shows every such call, of the model's own eager or SDPA run.
:func:`as_handed_over` lists the sites of a model that no layout describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from headscope.models.layouts.handed import NAME, HandedLayout, handed_module
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import AttentionInput, Heads
from headscope.models.layouts.sites import attending_layers, find_sites
from headscope.models.layouts.steps import Rotation
from headscope.models.run.implementation import use_implementation
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.site_hooks import output_module, watch_inputs, watch_outputs

#: How transformers' modelling files call the attention that is in no table.
_EAGER = "eager_attention_forward"
#: A layout whose q, k or v differ by more than this share of the largest entry from those that the
#: model hands over is that of another family. Smaller faults are the certificate's to find.
_OTHER_FAMILY = 0.05


@dataclass(frozen=True)
class HandedCall:
    """One call of transformers' attention."""

    module: nn.Module
    #: (batch, n_heads, pos, d_head), with keys and values of their own for all heads.
    heads: Heads
    mask: Tensor | None  # As handed over
    scale: float
    softcap: float | None
    z: Tensor  # (batch, n_heads, query_pos, d_v)
    pattern: Tensor | None  # (batch, n_heads, query_pos, key_pos); None from SDPA

    @property
    def layout(self) -> HandedLayout:
        """What it says of its module."""
        return HandedLayout(NAME, scaling=self.scale, cap=self.softcap, one_way=self.causal)

    @property
    def causal(self) -> bool:
        """Whether its mask hides the second token from the first."""
        if self.mask is None or self.mask.shape[-2] < 2:
            return False
        entry = self.mask[0, 0, 0, 1]
        return not bool(entry) if self.mask.dtype == torch.bool else bool(entry < -1e4)


@contextmanager
def watch_interface(model: nn.Module, see: Callable[[HandedCall], None]) -> Iterator[None]:
    """Call ``see`` after every attention that ``model`` asks transformers for."""

    def watched(attention: Callable[..., Any]) -> Callable[..., Any]:
        if hasattr(attention, "headscope_watched"):
            return attention

        @wraps(attention)
        def attend(
            module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kw: Any
        ) -> Any:
            returned = attention(module, q, k, v, *args, **kw)
            options = dict(zip(("attention_mask",), args, strict=False), **kw)
            see(_call(module, Heads(q, k, v), options, returned))
            return returned

        attend.headscope_watched = True  # type: ignore[attr-defined]
        return attend

    def get_interface(table: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return watched(original(table, name, default))

    original = AttentionInterface.get_interface
    # Older modelling code asks the table only for what is not eager.
    files = {id(names): names for names in map(_names, model.modules()) if _EAGER in names}
    before = [(names, names[_EAGER]) for names in files.values()]
    for names, attention in before:
        names[_EAGER] = watched(attention)
    AttentionInterface.get_interface = get_interface
    try:
        yield
    finally:
        AttentionInterface.get_interface = original
        for names, attention in before:
            names[_EAGER] = attention


def _names(module: nn.Module) -> dict[str, Any]:
    """Return the names that a module's forward knows: those of its modelling file."""
    names: dict[str, Any] = getattr(type(module).forward, "__globals__", {})
    return names


def _call(module: nn.Module, heads: Heads, options: Mapping[str, Any], returned: Any) -> HandedCall:
    """Describe a call, of which transformers returns z as (batch, query_pos, n_heads, d_v)."""
    q, k, v = heads
    shared = q.shape[1] // max(1, k.shape[1])
    z, pattern = returned
    scale = options.get("scaling")
    return HandedCall(
        module=module,
        heads=Heads(q, k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)),
        mask=options.get("attention_mask"),
        scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
        softcap=options.get("softcap"),
        z=z.transpose(1, 2),
        pattern=pattern,
    )


def as_handed_over(
    loaded: LoadedModel, sites: Sequence[AttentionSite], encoder: nn.Module | None
) -> tuple[AttentionSite, ...]:
    """Return ``sites`` if layouts describe what the model hands over, else its calls as sites.

    Sites of modules that never ask transformers for their attention stay as they are.
    """
    calls: list[HandedCall] = []
    inputs: dict[nn.Module, AttentionInput] = {}
    entering: dict[nn.Module, Any] = {}  # W_O

    def keep(site: AttentionSite, read: AttentionInput) -> None:
        inputs[site.module] = read

    def keep_entering(site: AttentionSite, z: Any, output: object) -> None:
        entering[site.module] = z

    with ExitStack() as watching:
        watching.enter_context(use_implementation(loaded.model, "eager"))
        watching.enter_context(watch_interface(loaded.model, calls.append))
        watching.enter_context(watch_inputs(sites, keep))
        watching.enter_context(watch_outputs(sites, keep_entering, output_module))
        watching.enter_context(suppress(Exception))  # the certificate says what is wrong
        loaded.run_tiny()
    last_calls = {call.module: call for call in calls}  # of a module that serves several layers
    described: list[AttentionSite] = []
    for site in sites:
        asked = last_calls.get(site.module)
        if asked is None:
            described.append(site)
        elif _near(asked.z.transpose(1, 2).flatten(2), entering.get(site.module)):
            choices = (site, _unturned(site))
            described += [s for s in choices if _describes(s, inputs[s.module], asked)][:1]
    known = {site.module for site in described}
    if len(described) == len(sites) and all(module in known for module in last_calls):
        return tuple(described)
    names = {module: name for name, module in loaded.model.named_modules()}
    modules = [
        handed_module(names[module], module, call.layout, call.z)
        for module, call in last_calls.items()
    ]
    return find_sites(loaded.model, loaded.run_tiny, encoder, modules)


def remarks(loaded: LoadedModel) -> Iterator[str]:
    """Say, for every output, what of a model is measured otherwise than usual, or not at all."""
    kinds = {type(site.module).__name__ for site in loaded.sites if not site.has_weights}
    if kinds:
        yield (
            f"headscope has no layout for {' and '.join(sorted(kinds))}, so heads are measured "
            "from the q, k and v that the model hands over; what needs W_Q, W_K, W_V or W_O is "
            "refused."
        )
    config = loaded.model.config
    attending = attending_layers(config)
    if attending is not None:
        yield (
            f"{len(attending)} of {config.num_hidden_layers} layers of {loaded.name} have heads, "
            "and are measured under their own numbers; the others, such as linear attention, "
            "have none."
        )


def _describes(site: AttentionSite, inputs: AttentionInput, call: HandedCall) -> bool:
    """Whether a layout gives about the q, k, v, scale, bound and direction that are handed over."""
    if site.causal != call.causal or site.softcap != call.softcap:
        return False
    try:
        with torch.no_grad():
            heads = site.as_scored(site.project(inputs), inputs)
    except (RuntimeError, ValueError, TypeError, LookupError):
        return False
    scale = site.d_head**-0.5 if site.scale is None else site.scale
    return _near(heads.q * scale, call.heads.q * call.scale) and all(
        _near(ours, theirs) for ours, theirs in zip(heads[1:], call.heads[1:], strict=True)
    )


def _unturned(site: AttentionSite) -> AttentionSite:
    """Return a site whose q and k do not turn, as in some layers of Cohere 2."""
    steps = tuple(step for step in site.layout.steps if not isinstance(step, Rotation))
    return replace(site, layout=replace(site.layout, steps=steps))


def _near(a: Tensor, b: Tensor | None) -> bool:
    """Whether two tensors are equal but for rounding and small faults."""
    if b is None or a.shape != b.shape:
        return False
    if a.numel() == 0:  # a layer that has lost all its heads
        return True
    gap = float((a - b).abs().max())
    return gap <= _OTHER_FAMILY * float(b.abs().max())
