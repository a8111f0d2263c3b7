"""Watch what enters each attention site: the x of ``q = x W_Q + b_Q``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from headscope.models.layouts import AttentionSite

__all__ = ["watch_inputs"]

#: Told (site, x) with x (batch, pos, d_model), before the site's attention runs.
See = Callable[[AttentionSite, Tensor], None]


@contextmanager
def watch_inputs(sites: Sequence[AttentionSite], see: See) -> Iterator[None]:
    """Call ``see`` at every site of every forward pass while the block runs.

    A module that serves several layers (ALBERT) is told apart by whose turn it is.
    """
    by_module: dict[nn.Module, list[AttentionSite]] = {}
    for site in sites:
        by_module.setdefault(site.projections.q, []).append(site)
    hooks = [
        linear.register_forward_pre_hook(functools.partial(_tell, _in_turn(shared), see))
        for linear, shared in by_module.items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _in_turn(sites: Sequence[AttentionSite]) -> Iterator[AttentionSite]:
    while True:
        yield from sites


def _tell(turns: Iterator[AttentionSite], see: See, module: nn.Module, args: tuple[Tensor]) -> None:
    see(next(turns), args[0])
