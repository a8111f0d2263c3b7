"""Several batches at a time, each on a thread of its own.

Torch's threads share the work of one operator. In a batch of a thousand tokens many operators are
too small for that, and at the end of each the faster thread waits for the slower. Batches that run
side by side wait for nobody, and on one to four cores each operator runs on one thread.

Every thread has a copy of the model's modules, since hooks and exchanged forwards belong to a
module. The copies share the model's weights: no number is held twice.

The caller's thread puts items into a queue, each with a Future for its result; every thread takes
the next item when it is free; the caller waits for the Futures in the order of the items.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, suppress
from contextvars import copy_context
from itertools import chain, islice
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

import torch

from headscope.models.run.loaded import LoadedModel

Item = TypeVar("Item")
Result = TypeVar("Result")
#: Prepares one thread: a context manager that readies the copy of the model and yields a function
#: that runs an item.
Start = Callable[[LoadedModel], AbstractContextManager[Callable[[Item], Result]]]
#: Work for the threads: an item, after the Future that gets its result. A thread that takes None
#: ends.
_Queue = SimpleQueue[tuple[Future[Result], Item] | None]

#: Batches at a time, at most: more of them wait for Python. On more cores, several share one batch.
AT_ONCE = 4
#: How many more items than threads are under way at most: they wait for a thread, or their results
#: to be fetched.
_AHEAD = 1


def side_by_side(
    loaded: LoadedModel, items: Iterable[Item], start: Start[Item, Result], *, alone: bool = False
) -> Generator[Result, None, None]:
    """Yield the result of every item, in the order of the items.

    ``start`` gets a copy of ``loaded`` on each thread. On a GPU, where torch has one thread, or
    ``alone``, items run one after the other on ``loaded`` itself. An item's exception is re-raised
    in order and cancels the rest. Items are read in the caller's thread. The blocks of ``start``
    end with the last result, or when the generator is closed.
    """
    stream = iter(items)
    first_two = list(islice(stream, 2))
    items = chain(first_two, stream)
    n_cores = torch.get_num_threads()
    count = min(n_cores, AT_ONCE)
    if alone or len(first_two) < 2 or loaded.device != "cpu":  # one item has all cores to itself
        count = 1
    copies = _copies(loaded, count) if count > 1 else None
    if copies is None:  # one after the other
        with start(loaded) as run:
            yield from map(run, items)
        return
    queue: _Queue[Result, Item] = SimpleQueue()
    workers = [
        Thread(target=copy_context().run, args=(_run_items, model, start, queue), daemon=True)
        for model in copies
    ]
    torch.set_num_threads(n_cores // count)
    try:
        for worker in workers:
            worker.start()
        yield from _results_in_order(items, queue, count + _AHEAD)
    finally:
        _end(workers, queue)
        torch.set_num_threads(n_cores)


def _results_in_order(
    items: Iterable[Item], queue: _Queue[Result, Item], most: int
) -> Iterator[Result]:
    """Put items into the queue and yield their results in order; ``most`` are under way at once."""
    waiting = deque[Future[Result]]()  # of the results that were not yet yielded
    for item in items:
        future = Future[Result]()
        waiting.append(future)
        queue.put((future, item))
        if len(waiting) >= most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _end(workers: Sequence[Thread], queue: _Queue[Result, Item]) -> None:
    """Drop items that were not begun, after an error or an interrupt, and end the threads."""
    with suppress(Empty):
        while True:
            queue.get_nowait()
    for _ in workers:  # each takes one None, and ends
        queue.put(None)
    for worker in workers:
        worker.join()


def _copies(loaded: LoadedModel, count: int) -> list[LoadedModel] | None:
    """Copy the modules, not their weights; None where a module cannot be copied.

    A module whose forward was replaced by the user cannot: the new one may hold on to the original
    modules.
    """
    has_own_forward = ["forward" in vars(module) for module in loaded.network.modules()]
    if any(has_own_forward):  # a forward of the module itself, not of its class
        return None
    weights = (*loaded.network.parameters(), *loaded.network.buffers())
    shared = [*weights, loaded.tokenizer, loaded.certificate, loaded.file]
    copies = []
    try:
        for _ in range(count):
            # deepcopy notes by their id which objects it has copied; these it is told not to copy.
            memo = {id(value): value for value in shared}
            copies.append(copy.deepcopy(loaded, memo))
    except (TypeError, RuntimeError, AttributeError):  # the user attached something
        return None
    return copies


def _run_items(
    loaded: LoadedModel, start: Start[Item, Result], queue: _Queue[Result, Item]
) -> None:
    """Run items from the queue on one thread, until None comes out of it."""
    torch.get_num_threads()  # torch sets a thread's share of the cores when it first asks

    with ExitStack() as stack:
        try:
            run = stack.enter_context(start(loaded))
        except BaseException as error:  # the preparation failed, and so does every item
            failure = error

            def run(item: Item) -> Result:
                raise failure

        for future, item in iter(queue.get, None):  # until it gets None
            try:
                future.set_result(run(item))
            except BaseException as error:  # raised where the result is fetched
                future.set_exception(error)
