"""The state of an interrupted run: sums and position, as a safetensors file written atomically.

A state is bound to its run by an identity (model, corpus, settings, versions): one that belongs to
another run is refused rather than mixed in.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from headscope.atomic import write_atomically
from headscope.errors import ResumeError
from headscope.measures.heads import HeadMeasures

__all__ = ["RunState"]


class RunState:
    """Where a run saves itself, and how often.

    Parameters
    ----------
    path : Path
    identity : dict
        Everything that the sums depend on.
    every : float
        Seconds between two saves.
    """

    def __init__(self, path: Path, identity: dict[str, Any], *, every: float = 5.0) -> None:
        self.path = path
        self._identity = json.dumps(identity, sort_keys=True)
        self._every = every
        self._saved_at = time.monotonic()
        self._passes: dict[str, tuple[int, HeadMeasures]] = {}

    def load(self, blank: HeadMeasures, name: str) -> tuple[int, HeadMeasures]:
        """Return (batches done, sums) of one pass; (0, blank) if it has not begun."""
        return self._passes.get(name, (0, blank))

    def resume(self, shape: tuple[int, int]) -> bool:
        """Read the saved state; False if there is none.

        Raises
        ------
        ResumeError
            If it belongs to another run or cannot be read.
        """
        if not self.path.is_file():
            return False
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, framework="numpy") as file:
                meta = file.metadata() or {}
                arrays = {key: np.asarray(file.get_tensor(key)) for key in list(file.keys())}
        except (SafetensorError, OSError) as error:
            raise ResumeError(
                f"The saved state {self.path} cannot be read ({error}); delete it and start again."
            ) from None
        self._check_identity(meta.get("identity", "{}"))
        for name, done in json.loads(meta["passes"]).items():
            measures = HeadMeasures(*shape)
            prefix = f"{name}/"
            mine = {k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)}
            measures.load_state(mine, meta[f"names/{name}"])
            self._passes[name] = (done, measures)
        return True

    def _check_identity(self, saved: str) -> None:
        if saved == self._identity:
            return
        old, new = json.loads(saved), json.loads(self._identity)
        other = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
        raise ResumeError(
            f"The saved state {self.path} belongs to another run: {', '.join(other)} differ. "
            "Repeat the original command, or delete the file and start again without --resume."
        )

    def note(self, name: str, done: int, sums: HeadMeasures, *, final: bool = False) -> None:
        """Remember that ``done`` batches of a pass are in ``sums``; save when it is time."""
        self._passes[name] = (done, sums)
        if final or time.monotonic() - self._saved_at >= self._every:
            self.save()

    def save(self) -> None:
        """Write the state now."""
        from safetensors.numpy import save

        arrays: dict[str, Any] = {}
        meta = {"identity": self._identity}
        for name, (_, sums) in self._passes.items():
            state, names = sums.state()
            arrays |= {f"{name}/{key}": array for key, array in state.items()}
            meta[f"names/{name}"] = names
        meta["passes"] = json.dumps({name: done for name, (done, _) in self._passes.items()})
        write_atomically(self.path, save(arrays, metadata=meta))
        self._saved_at = time.monotonic()
