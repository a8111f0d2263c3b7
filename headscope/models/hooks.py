"""Watching modules while a block runs: hooks that are sure to be removed again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import cycle
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    from headscope.models.layouts import AttentionInput, AttentionSite

#: Told (site, inputs) before the site's attention runs.
See = Callable[["AttentionSite", "AttentionInput"], None]


Shared = TypeVar("Shared")


@contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks when the block ends, however it ends."""
    with ExitStack() as stack:
        for handle in handles:
            stack.enter_context(handle)
        yield


def watch_inputs(sites: Sequence[AttentionSite], see: See) -> AbstractContextManager[None]:
    """Call ``see`` with what every site is called with, in every pass in the block.

    A module that serves several layers (ALBERT) is told apart by whose turn it is.
    """

    def hook(module: nn.Module, shared: Sequence[AttentionSite]) -> RemovableHandle:
        turns = cycle(shared)

        def told(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            site = next(turns)
            see(site, site.layout.read(module, args, kwargs))

        return module.register_forward_pre_hook(told, with_kwargs=True)

    return hooked(hook(*item) for item in grouped(sites, lambda site: site.module).items())


def watch_outputs(
    sites: Sequence[AttentionSite], see: Callable[[AttentionSite, object], None]
) -> AbstractContextManager[None]:
    """Call ``see`` with what every site's module returns, in every pass in the block."""

    def hook(module: nn.Module, shared: Sequence[AttentionSite]) -> RemovableHandle:
        turns = cycle(shared)
        return module.register_forward_hook(lambda _m, _args, output: see(next(turns), output))

    return hooked(hook(*item) for item in grouped(sites, lambda site: site.module).items())


def run_order(modules: Iterable[nn.Module], run: Callable[[], object]) -> list[nn.Module]:
    """List the modules in the order in which ``run()`` enters them, each as often as it does."""
    order: list[nn.Module] = []
    notes = (m.register_forward_pre_hook(lambda ran, _: order.append(ran)) for m in modules)
    with hooked(notes), torch.no_grad():
        run()
    return order


def grouped(
    sites: Iterable[AttentionSite], module_of: Callable[[AttentionSite], Shared]
) -> dict[Shared, list[AttentionSite]]:
    """Group sites that share a module, or anything else, in order."""
    groups: dict[Shared, list[AttentionSite]] = {}
    for site in sites:
        groups.setdefault(module_of(site), []).append(site)
    return groups
