"""Watch the inputs and outputs of every attention site, in the model's own run or in ours.

A *site* is one layer of attention. A module that serves several layers (ALBERT) is a site in each:
its first call in a pass is the first of them, its second call the second, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import cycle
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import AttentionInput
from headscope.models.run.hooks import grouped, hooked


def attention_module(site: AttentionSite) -> nn.Module:
    """Return the attention module of a site."""
    return site.module


def output_module(site: AttentionSite) -> nn.Module:
    """Return the output map of a site; the attention module where it is not known."""
    module: nn.Module = site.projections.out.module if site.has_weights else site.module
    return module


def watch_inputs(
    sites: Sequence[AttentionSite], see: Callable[[AttentionSite, AttentionInput], None]
) -> AbstractContextManager[None]:
    """Call ``see(site, inputs)`` before every site runs, in every pass in the block."""

    def hook(module: nn.Module, sites_of_module: Sequence[AttentionSite]) -> RemovableHandle:
        turns = cycle(sites_of_module)  # from pass to pass

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            site = next(turns)
            see(site, site.layout.read(module, args, kwargs))

        return module.register_forward_pre_hook(before, with_kwargs=True)

    by_module = grouped(sites, attention_module)
    return hooked(hook(module, shared) for module, shared in by_module.items())


def mended_forwards(sites: Sequence[AttentionSite]) -> AbstractContextManager[None]:
    """Run eager forwards in which transformers has a fault with other arguments (Falcon's)."""
    layouts = {site.module: site.layout for site in sites}
    return hooked(
        module.register_forward_pre_hook(layout.mended, with_kwargs=True)
        for module, layout in layouts.items()
    )


def watch_outputs(
    sites: Sequence[AttentionSite],
    see: Callable[[AttentionSite, Any, Any], None],
    module_of: Callable[[AttentionSite], nn.Module] = attention_module,
) -> AbstractContextManager[None]:
    """Call ``see(site, first_argument, output)`` after every site has run, in every pass.

    The module that is watched is the attention module, or the one that ``module_of`` picks, such as
    the output map. The first argument is None where the module is called with keywords alone.
    """

    def hook(module: nn.Module, sites_of_module: Sequence[AttentionSite]) -> RemovableHandle:
        turns = cycle(sites_of_module)

        def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            first_argument = args[0] if args else None
            see(next(turns), first_argument, output)

        return module.register_forward_hook(after)

    by_module = grouped(sites, module_of)
    return hooked(hook(module, shared) for module, shared in by_module.items())
