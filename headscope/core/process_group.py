"""Processes that ``torchrun`` or Slurm started together, joined by ``torch.distributed`` (gloo).

Arrays go from process to process as safetensors, so nothing is ever unpickled. Where a process has
ended, gloo's connections to it are closed, and whoever waits for it ends with an error; the
launcher's store holds what it said before.
"""

from __future__ import annotations

import os
import socket
import time
import zlib
from collections.abc import Mapping
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from safetensors.numpy import load, save
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from headscope.core.errors import InputError, LostProcessError
from headscope.core.processes import Array, Processes

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # What a launcher sets.
#: Seconds that a process waits for the slowest of the others; the variable changes it.
PATIENCE, PATIENCE_VARIABLE = 1800.0, "HEADSCOPE_PROCESS_TIMEOUT"
_ASSEMBLY = 300.0  # Seconds that processes have to come together at the start.
_FAREWELL = 3.0  # Seconds that the process with the store waits for the others to end before it.


def launched() -> int:
    """Return how many processes a launcher says there are; 1 without a launcher."""
    try:
        size = int(os.environ.get("WORLD_SIZE", "1"))
    except ValueError:
        size = 1
    missing = [name for name in _VARIABLES if not os.environ.get(name)]
    if size > 1 and missing:
        raise InputError(
            f"WORLD_SIZE says that {size} processes share this run, but {' and '.join(missing)} "
            "cannot be found; start it with torchrun, or unset WORLD_SIZE."
        )
    return size


class Group(Processes):
    """The processes of one launch."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._store = store

    @classmethod
    def join(cls) -> Group:
        """Join the other processes of this launch."""
        text = os.environ.get(PATIENCE_VARIABLE)
        try:
            patience = PATIENCE if text is None else float(text)
        except ValueError:
            patience = 0.0
        if not 1 <= patience < 1e6:
            raise InputError(f"{PATIENCE_VARIABLE} is {text!r}; give seconds, 1 or more.")
        if not (dist.is_available() and dist.is_gloo_available()):
            raise InputError("This torch was built without gloo, so processes cannot share a run.")
        try:
            wait = timedelta(seconds=_ASSEMBLY)
            store, rank, size = next(iter(rendezvous("env://", timeout=wait)))
            limit = timedelta(seconds=patience)
            store = PrefixStore("headscope", store)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
        except (RuntimeError, ValueError) as error:
            raise LostProcessError(
                f"The processes of this run could not come together ({_first_line(error)}); see "
                "that all are started with the same MASTER_ADDR and MASTER_PORT, and that the "
                "machines reach each other."
            ) from None
        # ``cuda`` means a GPU for each process of a machine, as long as there are enough.
        if torch.cuda.is_available():
            local = int(os.environ.get("LOCAL_RANK", "0"))
            torch.cuda.set_device(local % torch.cuda.device_count())
        return cls(store, rank, size)

    def gather(self, arrays: Mapping[str, Array], what: str) -> list[dict[str, Array]]:
        """Return the arrays of every process, by rank."""
        data = save({name: np.array(array, order="C") for name, array in arrays.items()})
        sizes = self._meet(what, len(data))
        own = torch.zeros(max(sizes), dtype=torch.uint8)
        own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        parts = self._of_all(own, what)
        pairs = zip(parts, sizes, strict=True)
        return [load(part[:size].numpy().tobytes()) for part, size in pairs]

    def meet(self, what: str) -> None:
        """Wait until every process is at this point."""
        self._meet(what, 0)

    def _meet(self, what: str, number: int) -> list[int]:
        """Wait for every process, and return a number of each, by rank."""
        at = zlib.crc32(what.encode())
        said = torch.stack(self._of_all(torch.tensor([at, number]), what))
        if bool((said[:, 0] != at).any()):
            raise LostProcessError(
                f"The processes have come apart: not all are at {what!r}. Their files, versions or "
                "kinds of processor differ; use the same."
            )
        return [int(each) for each in said[:, 1]]

    def _of_all(self, own: Tensor, what: str) -> list[Tensor]:
        """Return the tensors of every process, of one shape."""
        parts = [torch.empty_like(own) for _ in range(self.size)]
        try:
            dist.all_gather(parts, own)
        except RuntimeError as error:
            why = f"The connection to another process broke while all waited for {what}"
            raise LostProcessError(f"{why} ({_first_line(error)}).") from None
        return parts

    def fail(self, why: str) -> None:
        """Tell the others that this process ends, and why."""
        where = f"Process {self.rank + 1} of {self.size}, on {socket.gethostname()}"
        self._store.set(f"failed {self.rank}", f"{where}: {why}")

    def failures(self) -> list[str]:
        """Return why processes have failed, as far as they have said so, by rank."""
        keys = (f"failed {rank}" for rank in range(self.size))
        return [self._store.get(key).decode() for key in keys if self._store.check([key])]

    def speak(self) -> bool:
        """Ask to be the one process that says why the run ends; only the first to ask may."""
        return int(self._store.add("spoken", 1)) == 1

    def spoken(self) -> bool:
        """Whether a process has said why the run ends."""
        return bool(self._store.check(["spoken"]))

    def leave(self) -> None:
        """Close the connections; the process with the store waits for the others."""
        # The store ends with this process, unless torchrun keeps it in one of its own.
        own_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        try:
            if dist.is_initialized():
                dist.destroy_process_group()  # ends the waiting of the others
            self._store.set(f"left {self.rank}", "")
            deadline = time.monotonic() + _FAREWELL
            others = [f"left {rank}" for rank in range(self.size)]
            if self.rank == 0 and own_store:
                while time.monotonic() < deadline and not self._store.check(others):
                    time.sleep(0.01)
        except RuntimeError:  # the store is gone already
            return


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")
