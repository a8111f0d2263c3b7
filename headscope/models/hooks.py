"""Watching modules while a block runs: hooks that are sure to be removed again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import cycle
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

if TYPE_CHECKING:
    from headscope.models.layouts import AttentionSite

#: Told (site, x) with x (batch, pos, d_model), before the site's attention runs.
See = Callable[["AttentionSite", Tensor], None]


@contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks when the block ends, however it ends."""
    with ExitStack() as stack:
        for handle in handles:
            stack.enter_context(handle)
        yield


def watch_inputs(sites: Sequence[AttentionSite], see: See) -> AbstractContextManager[None]:
    """Call ``see`` with the x of ``q = x W_Q + b_Q`` at every site of every pass in the block.

    A module that serves several layers (ALBERT) is told apart by whose turn it is.
    """

    def hook(linear: nn.Module, shared: Sequence[AttentionSite]) -> RemovableHandle:
        turns = cycle(shared)
        return linear.register_forward_pre_hook(lambda _, args: see(next(turns), args[0]))

    by_query = grouped(sites, lambda site: site.projections.q)
    return hooked(hook(*item) for item in by_query.items())


def run_order(modules: Iterable[nn.Module], run: Callable[[], object]) -> list[nn.Module]:
    """List the modules in the order in which ``run()`` enters them, each as often as it does."""
    order: list[nn.Module] = []
    notes = (m.register_forward_pre_hook(lambda ran, _: order.append(ran)) for m in modules)
    with hooked(notes), torch.no_grad():
        run()
    return order


def grouped(
    sites: Iterable[AttentionSite], module_of: Callable[[AttentionSite], nn.Module]
) -> dict[nn.Module, list[AttentionSite]]:
    """Group sites that share a module, in order."""
    groups: dict[nn.Module, list[AttentionSite]] = {}
    for site in sites:
        groups.setdefault(module_of(site), []).append(site)
    return groups
