"""One pass over a corpus: batches go through a model, and all sums are taken on the way."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from headscope.core.processes import merged, share
from headscope.data.batches import Item
from headscope.measures.classify.stack_sums import StackSums
from headscope.measures.classify.thresholds import Thresholds
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Router, SiteObserver, routed
from headscope.pipeline.classify.norm_weighted import NormWeighted
from headscope.results import HeadResult, SwappedControl
from headscope.results.classify import StackCorpus
from headscope.session.progress import Progress
from headscope.session.resume import RunState

#: A corpus of at most so many sentences is kept in memory as padded batches, about 3 kB each.
KEPT_SENTENCES = 4096


class ModelBatch(Protocol):
    """What a model is called with, padded."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Arguments of :meth:`LoadedModel.forward`."""

    def to(self, device: torch.device | str) -> Self:
        """Copy every tensor to ``device``."""


B = TypeVar("B", bound=ModelBatch)


class Batches(Generic[Item, B]):
    """The batches of a corpus, the same ones every time: this process's share of them.

    A small corpus is read, encoded and padded only once; of a larger one nothing is held.

    Parameters
    ----------
    n_items : int
        Sentences or pairs that are read.
    groups : callable
        Starts a new pass: yields (items seen so far, encoded items of the next batch).
    collate : callable
        Pads such items into one batch.
    """

    def __init__(
        self,
        n_items: int,
        groups: Callable[[], Iterator[tuple[int, list[Item]]]],
        collate: Callable[[Sequence[Item]], B],
    ) -> None:
        self.n_items = n_items
        self._groups = groups
        self._collate = collate
        self._kept: list[tuple[int, B]] = []

    def after(self, done: int) -> Iterator[tuple[int, B]]:
        """Yield (items seen so far, batch), leaving out the first ``done`` batches."""
        if self._kept:
            yield from self._kept[done:]
            return
        made = []
        for index, (seen, items) in enumerate(share(self._groups())):
            if index >= done:
                made.append((seen, self._collate(items)))
                yield made[-1]
            if self.n_items > KEPT_SENTENCES:
                made.clear()
        if done == 0:
            self._kept = made


class Watch(NamedTuple, Generic[B]):
    """Who looks at a pass, and what tells them of each batch before it."""

    start: Callable[[B], None]
    observers: Sequence[SiteObserver]


@dataclass(frozen=True)
class Run:
    """What all passes of one run share.

    Attributes
    ----------
    stacks : tuple of str
        What is measured.
    thresholds : Thresholds
        When a head earns a label.
    progress : callable
        Told (pass, items done, items).
    state : RunState
        Where the sums are saved.
    norm_weighted : bool
        Whether keys count by what they contribute, in place of the pattern.
    """

    stacks: tuple[str, ...]
    thresholds: Thresholds
    progress: Progress
    state: RunState[StackSums]
    norm_weighted: bool = False

    def measure(
        self,
        loaded: LoadedModel,
        stacks: Sequence[str],
        batches: Batches[Item, B],
        watch: Callable[[StackSums], Watch[B]],
        check: Callable[[StackSums], object],
        name: str,
    ) -> StackSums:
        """Stream a corpus through some stacks of a whole model once; returns all processes' sums.

        ``check`` raises if nothing could be measured; no state is left of such a pass.
        """
        done, sums = self.state.load(blank_sums(loaded, self.stacks), name)
        start, observers = watch(sums)
        sites, others = _split(loaded, stacks)
        if self.norm_weighted:
            observers = [NormWeighted(observer, sites) for observer in observers]
        index = done
        with routed(loaded.model, Router(sites, observers, others=others)) as router:
            # Of an interrupted run the first batches are already in the sums.
            for index, (seen, on_host) in enumerate(batches.after(done), start=done + 1):
                batch = on_host.to(loaded.device)
                start(batch)
                router.run(functools.partial(loaded.forward, *batch.inputs))
                self.state.note(name, index, sums)
                self.progress(name, seen, batches.n_items)
        blank = functools.partial(blank_sums, loaded, self.stacks)
        total = merged(sums, blank, f"the sums of {name}")
        check(total)
        self.state.note(name, index, sums, final=True)
        return total


class Found(NamedTuple):
    """What was found about the heads of one stack."""

    heads: tuple[HeadResult, ...]
    untestable: dict[str, str]
    corpus: StackCorpus
    swapped: SwappedControl | None = None


def blank_sums(loaded: LoadedModel, stacks: Sequence[str]) -> StackSums:
    """Make the empty sums of one pass."""
    views = {stack: loaded.only(stack) for stack in stacks}
    return StackSums({stack: (view.n_layers, view.n_heads) for stack, view in views.items()})


def head_ids(loaded: LoadedModel, stack: str) -> list[tuple[int, ...]]:
    """Return what the heads of each layer of a stack are called."""
    return [tuple(site.head_ids) for site in loaded.only(stack).sites]


def _split(loaded: LoadedModel, stacks: Sequence[str]) -> tuple[list[AttentionSite], ...]:
    """Return the sites of some stacks, and all others."""
    wanted, others = list[AttentionSite](), list[AttentionSite]()
    for site in loaded.sites:
        (wanted if site.stack in stacks else others).append(site)
    return wanted, others
