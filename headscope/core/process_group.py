"""Processes that ``torchrun`` or Slurm started together, joined by ``torch.distributed`` (gloo).

All processes run the same program, and exchange arrays as safetensors, so nothing is ever
unpickled. Before every exchange they meet at the launcher's store, a table of keys and values that
all of them read and write. Its keys, for the process of rank 2 (of 0, 1, 2, ...)::

    pulse 2        a count that grows every few seconds while the process lives
    meeting 7 2    the process has reached its meeting number 7, and what that one is about
    failed 2       why the process ends with an error
    left 2         the process has ended
    report         how many processes have asked to report an error

So a process that waits notices when another has failed or no longer responds, and ends with an
error instead of waiting for ever. One of the processes, the first to claim it, then reports why.
Messages count processes from 1.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from safetensors.numpy import load, save
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from headscope.core.accumulator import Array
from headscope.core.errors import InputError, LostProcessError
from headscope.core.processes import Processes

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # What a launcher sets
#: Seconds without a pulse after which a process counts as lost; the environment may change it.
PATIENCE = 120.0
PATIENCE_VARIABLE = "HEADSCOPE_PROCESS_TIMEOUT"
_JOIN_SECONDS = 300.0  # For all processes to come together at the start
_LEAVE_SECONDS = 3.0  # For which the process with the store waits for the others to end before it
_PULSE_CHECK = 0.5  # Seconds between two checks of the others' pulses while waiting at a meeting
#: Seconds between two checks whether the others have come to a meeting: few at first, then more.
_SHORTEST_NAP = 0.0005
_LONGEST_NAP = 0.02


@dataclass
class _Pulse:
    """The latest pulse of another process."""

    beat: bytes | None  # The count of its beats; None before it was first read
    changed_at: float  # When the count was last seen to grow, by this process's monotonic clock


class Group(Processes):
    """The processes of one launch, as one of them sees them."""

    def __init__(self, store: Store, rank: int, size: int, patience: float) -> None:
        """Begin to leave pulses at the store; use :meth:`join` to make a group.

        ``rank`` is this process's number of ``size``; ``patience`` are the seconds without a pulse
        after which another one counts as lost.
        """
        self.rank = rank
        self.size = size
        self._store = store
        self._patience = patience
        self._meetings = 0  # How many there have been
        self._store.set(f"pulse {rank}", "0")
        self._leaving = threading.Event()
        self._pulse_thread = threading.Thread(target=self._beat, daemon=True)
        self._pulse_thread.start()

    @classmethod
    def join(cls) -> Group:
        """Join the other processes of this launch."""
        missing = [name for name in _VARIABLES if not os.environ.get(name)]
        if missing:
            raise InputError(
                f"WORLD_SIZE says that {os.environ['WORLD_SIZE']} processes share this run, but "
                f"{' and '.join(missing)} cannot be found; start it with torchrun, or unset "
                "WORLD_SIZE."
            )
        patience = _patience()
        if not (dist.is_available() and dist.is_gloo_available()):
            raise InputError("This torch was built without gloo, so processes cannot share a run.")
        try:
            deadline = timedelta(seconds=_JOIN_SECONDS)
            # rendezvous yields once: the store that the variables of the launcher lead to
            store, rank, size = next(rendezvous("env://", timeout=deadline))
            store = PrefixStore("headscope", store)  # our keys apart from those of torch
            dist.init_process_group(
                "gloo",
                store=store,
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=patience),
            )
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
        return cls(store, rank, size, patience)

    def _beat(self) -> None:
        """Count up this process's pulse every few seconds."""
        beats = 0
        while not self._leaving.wait(self._patience / 10):
            beats += 1
            try:
                self._store.set(f"pulse {self.rank}", str(beats))
            except RuntimeError:  # the store is gone, and with it every process that would read it
                return

    def gather(self, arrays: Mapping[str, Array], subject: str) -> list[dict[str, Array]]:
        """Return the arrays of every process, by rank; ``subject`` is what errors call them."""
        message = save({name: np.array(array, order="C") for name, array in arrays.items()})
        n_bytes = len(message)
        self.meet(subject)
        try:
            # all_gather needs messages of one length: all are padded to the longest.
            lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
            dist.all_gather(lengths, torch.tensor([n_bytes]))
            padded = torch.zeros(int(max(lengths)), dtype=torch.uint8)
            padded[:n_bytes] = torch.frombuffer(bytearray(message), dtype=torch.uint8)
            all_padded = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(all_padded, padded)
        except RuntimeError as error:
            raise LostProcessError(
                f"The connection to another process broke while it sent {subject} "
                f"({_first_line(error)})."
            ) from None
        arrays_by_rank = []
        for padded, length in zip(all_padded, lengths, strict=True):
            message = padded[: int(length)].numpy().tobytes()
            arrays_by_rank.append(load(message))
        return arrays_by_rank

    def meet(self, subject: str) -> None:
        """Wait until every process is at this point; all have to give the same ``subject``.

        The subject is what is exchanged, in words, such as "the sums of the model".
        """
        self._meetings += 1
        keys = [f"meeting {self._meetings} {rank}" for rank in range(self.size)]  # by rank
        try:
            self._store.set(keys[self.rank], subject)
            self._wait(keys, subject)
            subjects = [value.decode() for value in self._store.multi_get(keys)]
            # All came to this meeting, so all have read the keys of the last but one.
            self._store.delete_key(f"meeting {self._meetings - 2} {self.rank}")
        except RuntimeError as error:
            raise LostProcessError(
                f"The other processes cannot be reached any more ({_first_line(error)}): the first "
                "one, or its machine, may be gone."
            ) from None
        for rank, other_subject in enumerate(subjects):
            if other_subject != subject:
                raise LostProcessError(
                    f"The processes have come apart: process {self.rank + 1} is at {subject!r} and "
                    f"process {rank + 1} at {other_subject!r}. Their files, versions or kinds of "
                    "processor differ; use the same."
                )

    def _wait(self, keys: list[str], subject: str) -> None:
        """Wait until the store has all ``keys``, one of each process, by rank.

        Raises LostProcessError if a process whose key is missing has failed or gives no pulse.
        """
        start = time.monotonic()
        last_check = start
        pulses = [_Pulse(beat=None, changed_at=start) for _ in range(self.size)]
        # The store's own way to wait prints a warning whenever it gives up.
        while not self._store.check(keys):
            now = time.monotonic()
            if now - last_check > _PULSE_CHECK:
                last_check = now
                for rank, key in enumerate(keys):
                    if not self._store.check([key]):
                        self._check_alive(rank, pulses[rank], subject)
            time.sleep(min(_LONGEST_NAP, _SHORTEST_NAP + (now - start) / 10))

    def _check_alive(self, rank: int, pulse: _Pulse, subject: str) -> None:
        """Raise if a process has failed, or its pulse has stopped; else note its latest beat."""
        failure = self.failure_of(rank)
        if failure is not None:
            raise LostProcessError(failure)
        beat = self._store.get(f"pulse {rank}")
        now = time.monotonic()
        if beat != pulse.beat:
            pulse.beat = beat
            pulse.changed_at = now
        elif now - pulse.changed_at > self._patience:
            raise LostProcessError(
                f"Process {rank + 1} of {self.size} has given no sign of life for "
                f"{self._patience:g} seconds while the others waited for {subject}."
            )

    def fail(self, why: str) -> None:
        """Tell the others that this process ends, and why."""
        where = f"Process {self.rank + 1} of {self.size}, on {socket.gethostname()}"
        self._store.set(f"failed {self.rank}", f"{where}: {why}")

    def failure_of(self, rank: int) -> str | None:
        """Return why a process has failed, if it has said so."""
        key = f"failed {rank}"
        return self._store.get(key).decode() if self._store.check([key]) else None

    def failures(self) -> list[str]:
        """Return why processes have failed, by rank."""
        by_rank = [self.failure_of(rank) for rank in range(self.size)]
        return [failure for failure in by_rank if failure is not None]

    def claim_report(self) -> bool:
        """Ask to be the process that reports why the run ends: True for the first one to ask."""
        return int(self._store.add("report", 1)) == 1

    def is_reported(self) -> bool:
        """Whether a process has asked to report why the run ends."""
        return bool(self._store.check(["report"]))

    def leave(self) -> None:
        """Announce that this process ends; the process with the store waits for the others."""
        self._leaving.set()
        self._pulse_thread.join()
        # The store ends with the first process, unless torchrun keeps it in a process of its own.
        holds_store = self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        try:
            self._store.set(f"left {self.rank}", "")
            if holds_store:
                keys = [f"left {rank}" for rank in range(self.size)]
                deadline = time.monotonic() + _LEAVE_SECONDS
                while time.monotonic() < deadline and not self._store.check(keys):
                    time.sleep(0.01)
            if dist.is_initialized():
                dist.destroy_process_group()
        except RuntimeError:  # the store is gone already
            return


def _patience() -> float:
    """Return the seconds of silence after which a process counts as lost."""
    text = os.environ.get(PATIENCE_VARIABLE)
    try:
        patience = PATIENCE if text is None else float(text)
    except ValueError:
        patience = 0.0
    if not 1 <= patience < 1e6:
        raise InputError(f"{PATIENCE_VARIABLE} is {text!r}; give seconds, 1 or more.")
    return patience


def _first_line(error: BaseException) -> str:
    """Return the first line of what an error says, without its full stop."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")
