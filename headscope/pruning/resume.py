"""What a run of ``prune`` has measured so far, so that an interrupted one need not do it again.

A run is made of many small measurements: a repair, a pass of one pruned model over the evaluation
data, the quality of one set of gates. Each is remembered by everything that it depends on within
the run; the rest (model, data, options) is the same for all of a run, and stands in the identity
of its saved state.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from headscope.analyses.classify.result import ClassifyResult
from headscope.core.accumulator import Array, numpy
from headscope.core.errors import InputError
from headscope.core.files import sha256_of, sha256_of_file
from headscope.core.processes import current
from headscope.core.serialise import to_dict
from headscope.models.loaded import LoadedModel
from headscope.models.output_maps import OutputMap
from headscope.pruning.options import PruneOptions
from headscope.pruning.ranking import Ranking
from headscope.pruning.repair import Repaired
from headscope.session.resume import RunState, open_state

Arrays = Mapping[str, Array]
_PASS = "findings"  # The one pass that the state of a run of prune holds.
#: Options that no measurement depends on (where files go, what is done with the model that is
#: kept), and what is identified by its content: data and the model.
_NOT_IN_IDENTITY = {
    *("state", "resume", "save", "save_dense", "benchmark", "standalone", "export", "quantize"),
    *("validate", "data", "calibration", "fidelity_text", "progress", "command"),
    *("dtype", "device", "revision", "task_head"),
}


class SavedWork:
    """Arrays by what they are of; kept only where the run saves itself."""

    def __init__(self, saved: RunState[SavedWork] | None = None) -> None:
        self._saved = saved
        self._arrays: dict[str, dict[str, Array]] = {}

    def state(self) -> dict[str, Array]:
        """Return everything that was measured, as named arrays."""
        return {f"{key}.{n}": a for key, arrays in self._arrays.items() for n, a in arrays.items()}

    def load_state(self, state: dict[str, Array]) -> None:
        """Go on from a state that :meth:`state` gave."""
        for name, array in state.items():
            key, _, part = name.partition(".")
            self._arrays.setdefault(key, {})[part] = array.copy()

    @classmethod
    def open(
        cls, options: PruneOptions, loaded: LoadedModel, data: Sequence[str | None]
    ) -> SavedWork:
        """Open what a run goes on from and saves itself in; ``data`` are SHA-256 of the files."""
        several = current().size > 1
        if several and options.resume:
            raise InputError("prune goes on from a saved state in one process only; run it as one.")
        if options.state is None or several:  # processes that have not saved the same never meet
            return cls()
        choices = {
            field.name: getattr(options, field.name)
            for field in dataclasses.fields(options)
            if field.name not in _NOT_IN_IDENTITY
        }
        if isinstance(options.roles, ClassifyResult):
            choices["roles"] = sha256_of(json.dumps(to_dict(options.roles), sort_keys=True))
        elif not isinstance(options.roles, bool):
            choices["roles"] = sha256_of_file(Path(options.roles))
        identity = {"data": list(data), "choices": choices}
        whole = loaded.whole or loaded
        saved = open_state(options.state, options.resume, identity, cls, whole, options.seed)
        work = cls(saved)
        work._arrays = dict(saved.load(work, _PASS)[1]._arrays)
        return work

    def arrays(self, what: Sequence[object], make: Callable[[], Arrays]) -> Arrays:
        """Return what ``make`` gives; made once for each ``what``, which is plain values."""
        if self._saved is None:
            return make()
        key = sha256_of(json.dumps(what))
        if key not in self._arrays:
            self._arrays[key] = {name: np.asarray(array) for name, array in make().items()}
            self._saved.note(_PASS, len(self._arrays), self)
        return self._arrays[key]

    def number(self, what: Sequence[object], make: Callable[[], float]) -> float:
        """Return the number that ``make`` gives; made once for each ``what``."""
        return float(self.arrays(what, lambda: {"number": np.array(make())})["number"])

    def repaired(
        self, what: Sequence[object], loaded: LoadedModel, make: Callable[[], Repaired]
    ) -> Repaired:
        """Return the repaired model that ``make`` gives; made once for each ``what``."""
        made: list[Repaired] = []

        def pack() -> Arrays:
            made.append(make())
            maps = made[0].maps.items()
            parts = {f"{n}{layer}": numpy(getattr(m, n)) for layer, m in maps for n in "Wb"}
            gates = numpy(made[0].gates)
            return {"removed": np.array(made[0].removed), "gates": gates, **parts}

        arrays = self.arrays(("repaired", *what), pack)
        if made:
            return made[0]
        tensors = {
            name: torch.from_numpy(array.copy()).to("cpu" if name == "gates" else loaded.device)
            for name, array in arrays.items()
        }
        layers = sorted(int(name[1:]) for name in arrays if name.startswith("W"))
        maps = {layer: OutputMap(tensors[f"W{layer}"], tensors[f"b{layer}"]) for layer in layers}
        return Repaired(tuple(arrays["removed"].tolist()), tensors["gates"], maps)

    def ranking(self, what: Sequence[object], make: Callable[[], Ranking]) -> Ranking:
        """Return the ranking that ``make`` gives; made once if it is no more than an order.

        One that chooses anew for every number of heads is made again.
        """
        made: list[Ranking] = []

        def pack() -> Arrays:
            made.append(make())
            if type(made[0]) is not Ranking:
                return {"anew": np.array(True)}
            passes = np.frombuffer(json.dumps(made[0].passes).encode(), dtype=np.uint8)
            order = np.array(made[0].order)
            return {"values": numpy(made[0].values), "order": order, "passes": passes}

        arrays = self.arrays(("ranking", *what), pack)
        if made or "order" not in arrays:
            return made[0] if made else make()
        values = torch.from_numpy(arrays["values"].copy())
        return Ranking(values, arrays["order"].tolist(), json.loads(arrays["passes"].tobytes()))


def name_of(loaded: LoadedModel, made: Repaired) -> list[object]:
    """Say which pruned model of which stacks this is, in plain values."""

    def digest(tensor: torch.Tensor) -> str:
        return sha256_of(np.ascontiguousarray(numpy(tensor)).tobytes())

    maps = {layer: [digest(map.W), digest(map.b)] for layer, map in made.maps.items()}
    return [list(loaded.stacks), list(made.removed), digest(made.gates), maps]
