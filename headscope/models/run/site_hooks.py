"""Watch what every attention site takes and returns, in the model's own run or in ours.

A module that serves several layers (ALBERT) is one site in each: its calls are told apart by whose
turn it is.
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
    """Return the module that runs as a site."""
    return site.module


def watch_inputs(
    sites: Sequence[AttentionSite], see: Callable[[AttentionSite, AttentionInput], None]
) -> AbstractContextManager[None]:
    """Call ``see`` with what every site is called with, in every pass in the block."""

    def hook(module: nn.Module, shared: Sequence[AttentionSite]) -> RemovableHandle:
        turns = cycle(shared)

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            site = next(turns)
            see(site, site.layout.read(module, args, kwargs))

        return module.register_forward_pre_hook(before, with_kwargs=True)

    sites_of_module = grouped(sites, attention_module)
    return hooked(hook(module, shared) for module, shared in sites_of_module.items())


def watch_outputs(
    sites: Sequence[AttentionSite],
    see: Callable[[AttentionSite, Any, Any], None],
    module_of: Callable[[AttentionSite], nn.Module] = attention_module,
) -> AbstractContextManager[None]:
    """Call ``see`` with what a module of every site takes first and what it returns.

    The module is the attention module, unless ``module_of`` says which other one of the site.
    """

    def hook(module: nn.Module, shared: Sequence[AttentionSite]) -> RemovableHandle:
        turns = cycle(shared)

        def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            see(next(turns), next(iter(args), None), output)

        return module.register_forward_hook(after)

    sites_of_module = grouped(sites, module_of)
    return hooked(hook(module, shared) for module, shared in sites_of_module.items())
