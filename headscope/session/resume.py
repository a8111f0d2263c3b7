"""The state of an interrupted run: its sums and how far it was, in a file of safetensors.

A run goes over its data in *passes*, each with a name, such as "model" and "control", and adds up
sums (an :class:`~headscope.core.accumulator.Accumulator`). :func:`open_state` is what commands
call. :meth:`RunState.load` returns where a pass continues; :meth:`RunState.note` is called after
every batch and saves now and then. A state is bound to its run by an identity (model, corpus,
settings, versions), so that the state of another run is refused and never mixed in.

The file has the arrays of the sums by pass and name, ``model/n_tokens``, and as metadata the
identity, the batches done by pass, and a digest of it all.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from headscope.core.accumulator import Accumulator, Array
from headscope.core.errors import InputError, ResumeError, UnsavedStateWarning, UnwrittenError
from headscope.core.files import sha256_of, write_atomically
from headscope.core.processes import current, process_file
from headscope.core.safe_text import listed, visible
from headscope.models.run.loaded import LoadedModel
from headscope.session.provenance import versions

#: A run measures for at least so many times as long as it takes to save its state.
_MEASURING_PER_SAVING = 20

S = TypeVar("S", bound=Accumulator)


class RunState(Generic[S]):
    """The state of a run: of each pass, the batches done and the sums."""

    def __init__(self, path: Path | None, identity: dict[str, Any], *, every: float = 5.0) -> None:
        """Begin a state that is saved at ``path``, at most once in ``every`` seconds; or nowhere.

        ``identity`` is what the sums depend on.
        """
        self.path = path
        self._identity = json.dumps(identity, sort_keys=True)
        self._every = every
        self._saved_at = time.monotonic()
        self._seconds_to_save = 0.0
        self._passes: dict[str, tuple[int, S]] = {}  # Batches done and sums, by name

    def load(self, blank: S, name: str) -> tuple[int, S]:
        """Return (batches done, sums) of one pass; (0, blank) if it has not begun."""
        return self._passes.get(name, (0, blank))

    def resume(self, blank: Callable[[], S]) -> None:
        """Read the saved state, if there is one; ``blank`` makes the empty sums of one pass."""
        if self.path is None or not self.path.is_file():
            return
        meta, arrays = self._read(self.path)
        self._check_identity(meta)
        if meta.get("sha256") != _digest(meta, arrays):
            raise self._damaged("it is not as it was written")
        try:
            for name, done in json.loads(meta["passes"]).items():
                arrays_of_pass = {}
                for key, array in arrays.items():
                    if key.startswith(f"{name}/"):
                        arrays_of_pass[key.removeprefix(f"{name}/")] = array
                sums = blank()
                sums.load_state(arrays_of_pass)
                self._passes[name] = (int(done), sums)
        except (KeyError, ValueError, TypeError, AttributeError, IndexError, RecursionError):
            raise self._damaged("it does not hold the sums of this run") from None

    def _check_identity(self, meta: Mapping[str, str]) -> None:
        """Refuse a state that belongs to another run, or does not say to which."""
        try:
            saved = json.loads(meta.get("identity", "{}"))
        except (ValueError, RecursionError):
            saved = None
        if not isinstance(saved, dict):
            raise self._damaged("it does not say which run it belongs to")
        present = json.loads(self._identity)
        differing = sorted(key for key in {*saved, *present} if saved.get(key) != present.get(key))
        if differing:
            raise ResumeError(
                f"The saved state {self.path} belongs to another run: "
                f"{visible(listed(differing, 12))} differ. Repeat the original command, or delete "
                "the file and start again."
            )

    def _read(self, path: Path) -> tuple[dict[str, str], dict[str, Array]]:
        """Return the file's metadata (identity, passes, digest) and its arrays."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="numpy") as file:
                arrays = {key: np.asarray(file.get_tensor(key)) for key in list(file.keys())}
                return file.metadata() or {}, arrays
        except (SafetensorError, OSError, TypeError, ValueError, AttributeError) as error:
            raise self._damaged(str(error)) from None

    def _damaged(self, why: str) -> ResumeError:
        """Return the error that says that the state cannot be read, and why."""
        return ResumeError(
            f"The saved state {self.path} cannot be read ({visible(why)}); delete it and start "
            "again."
        )

    def note(self, name: str, done: int, sums: S, *, final: bool = False) -> None:
        """Remember that ``done`` batches of a pass are in ``sums``; save if it is time or final."""
        self._passes[name] = (done, sums)
        wait = max(self._every, _MEASURING_PER_SAVING * self._seconds_to_save)
        if final or time.monotonic() - self._saved_at >= wait:
            self.save()

    def save(self) -> None:
        """Write the state now, as one file that is there whole or not at all; without path, not.

        Where the disk has no room for it the run goes on without a state, and a warning says so.
        """
        from safetensors.numpy import save

        if self.path is None:
            return
        start = time.monotonic()
        arrays: dict[str, Any] = {}
        meta = {"identity": self._identity}
        for name, (_, sums) in self._passes.items():
            for key, array in sums.state().items():
                arrays[f"{name}/{key}"] = np.array(array, order="C")
        meta["passes"] = json.dumps({name: done for name, (done, _) in self._passes.items()})
        meta["sha256"] = _digest(meta, arrays)
        try:
            write_atomically(self.path, save(arrays, metadata=meta))
        except UnwrittenError as error:
            warnings.warn(
                f"{error} The run goes on, and cannot be resumed later than from what was saved "
                "before.",
                UnsavedStateWarning,
                stacklevel=2,
            )
            self.path = None
        now = time.monotonic()
        self._saved_at = now
        self._seconds_to_save = now - start


def _digest(meta: Mapping[str, str], arrays: Mapping[str, Array]) -> str:
    """Hash the content of a state, so that a damaged one is never resumed."""
    described = []
    for name, array in sorted(arrays.items()):
        described.append([name, str(array.dtype), array.shape, sha256_of(array.tobytes())])
    return sha256_of(json.dumps([meta.get("identity"), meta.get("passes"), described]))


def check_resume(state: str | Path | None, resume: bool) -> None:
    """Refuse to resume a run that was saved nowhere, and to overwrite the state of another run."""
    if resume and state is None:
        raise InputError("There is nothing to resume from: give the state file of the run.")
    if resume or state is None:
        return
    saved = process_file(Path(state))
    if saved.is_file():
        raise ResumeError(
            f"{visible(saved)} holds what an interrupted run has measured, and a new run would "
            "throw it away: give resume to go on from it, or delete that file to start anew."
        )


def open_state(
    path: str | Path | None,
    resume: bool,
    identity: dict[str, Any],
    blank: Callable[[], S],
    loaded: LoadedModel,
    seed: int,
    *,
    by_process: bool = False,
) -> RunState[S]:
    """Return the state of a run, filled from its file if the run is to be resumed.

    ``identity`` is what the sums depend on besides model, seed and versions; ``blank`` makes the
    empty sums of one pass. Without ``path`` nothing is saved. Of several processes, each saves its
    own sums if ``by_process``; else the first saves those of all.
    """
    processes = current()
    another_saves = processes.rank > 0 and not by_process
    if path is None or another_saves:
        return RunState(None, {})

    # A state belongs to a file of weights, by its SHA-256.
    if loaded.weights_sha256 is None and loaded.file is None:
        raise InputError("A model in memory has no checksum; save it to a folder to use a state.")
    if loaded.weights_sha256 is None:
        raise InputError(
            f"The weights of {loaded.name} were changed after loading, so its file's checksum is "
            "not theirs; save the changed model to a folder to use a state."
        )
    common = {
        "model": loaded.weights_sha256,
        "seed": seed,
        "dtype": loaded.dtype,
        "device": loaded.device.partition(":")[0],
        "versions": versions(),
    }
    if by_process and processes.size > 1:
        common["processes"] = f"{processes.rank + 1} of {processes.size}"
    state: RunState[S] = RunState(process_file(Path(path)), {**common, **identity})
    if resume:
        state.resume(blank)
    return state
