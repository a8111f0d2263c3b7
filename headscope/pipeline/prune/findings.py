"""What a run of ``prune`` has found out so far, so that an interrupted one need not do it again.

A run is made of many small measurements: a repair, a pass of one pruned model over the evaluation
data, the quality of one set of gates. Each is remembered by everything that it depends on within
the run; the rest (model, data, choices) is the same for all of a run, and stands in the identity
of its saved state.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headscope.core.errors import InputError
from headscope.core.files import sha256_of, sha256_of_file
from headscope.core.processes import current
from headscope.measures.accumulator import Array, numpy
from headscope.models.loaded import LoadedModel
from headscope.models.output_maps import OutputMap
from headscope.pipeline.prune.options import PruneOptions
from headscope.pipeline.prune.repairing import Repaired
from headscope.pruning.method import Ranking
from headscope.results import to_dict
from headscope.results.classify import ClassifyResult
from headscope.session.resume import RunState, open_state

__all__ = ["Findings", "name_of", "open_findings"]

#: The one pass that the state of a run of prune holds.
_PASS = "findings"
#: Choices that say where files go, or what is done with the model that is kept.
_ELSEWHERE = {
    *("state", "resume", "save", "save_dense", "benchmark", "standalone", "export", "quantize"),
    "validate",
}


class Findings:
    """Arrays by what they are of; kept only where the run saves itself.

    Parameters
    ----------
    saved : RunState, optional
        Where the run saves itself.
    """

    def __init__(self, saved: RunState[Findings] | None = None) -> None:
        self._saved = saved
        self._found: dict[str, dict[str, Array]] = {}

    def state(self) -> dict[str, Array]:
        """Return everything that was found, as named arrays."""
        return {f"{key}.{n}": a for key, arrays in self._found.items() for n, a in arrays.items()}

    def load_state(self, state: dict[str, Array]) -> None:
        """Go on from a state that :meth:`state` gave."""
        for name, array in state.items():
            key, _, part = name.partition(".")
            self._found.setdefault(key, {})[part] = array.copy()

    def go_on_from(self, earlier: Findings) -> None:
        """Take over what the saved state of a run held."""
        self._found = dict(earlier._found)

    def arrays(
        self, what: Sequence[object], make: Callable[[], Mapping[str, Array]]
    ) -> Mapping[str, Array]:
        """Return what ``make`` gives; made once for each ``what``, which is plain values."""
        if self._saved is None:
            return make()
        key = sha256_of(json.dumps(what))
        if key not in self._found:
            self._found[key] = {name: np.asarray(array) for name, array in make().items()}
            self._saved.note(_PASS, len(self._found), self)
        return self._found[key]

    def number(self, what: Sequence[object], make: Callable[[], float]) -> float:
        """Return the number that ``make`` gives; made once for each ``what``."""
        return float(self.arrays(what, lambda: {"number": np.array(make())})["number"])

    def repaired(
        self, what: Sequence[object], loaded: LoadedModel, make: Callable[[], Repaired]
    ) -> Repaired:
        """Return the repaired model that ``make`` gives; made once for each ``what``."""
        made: list[Repaired] = []

        def parts() -> dict[str, Array]:
            made.append(make())
            return _arrays_of(made[0])

        arrays = self.arrays(("repaired", *what), parts)
        return made[0] if made else _repaired_of(arrays, loaded)

    def ranking(self, what: Sequence[object], make: Callable[[], Ranking]) -> Ranking:
        """Return the ranking that ``make`` gives; made once if it is no more than an order.

        One that chooses anew for every number of heads is made again.
        """
        made: list[Ranking] = []

        def parts() -> dict[str, Array]:
            made.append(make())
            return _arrays_of_ranking(made[0])

        arrays = self.arrays(("ranking", *what), parts)
        if made:
            return made[0]
        return _ranking_of(arrays) if "order" in arrays else make()


def name_of(loaded: LoadedModel, made: Repaired) -> list[object]:
    """Say which pruned model of which stacks this is, in plain values."""
    maps = {layer: [_digest(map.W), _digest(map.b)] for layer, map in made.maps.items()}
    return [list(loaded.stacks), list(made.removed), _digest(made.gates), maps]


def open_findings(
    choices: PruneOptions, loaded: LoadedModel, data: Sequence[str | None]
) -> Findings:
    """Return what the run goes on from, and where it saves itself.

    Parameters
    ----------
    choices : PruneOptions
        Of the run.
    loaded : LoadedModel
        The unpruned model.
    data : sequence of str or None
        SHA-256 of what is measured on and of what is chosen on.

    Raises
    ------
    InputError, ResumeError
        As :func:`headscope.session.resume.open_state` says; or if several processes share the run
        and are to resume.
    """
    several = current().size > 1
    if several and choices.resume:
        raise InputError("prune goes on from a saved state in one process only; run it as one.")
    if choices.state is None or several:  # processes that have not saved the same would not meet
        return Findings()
    identity = {"data": list(data), "choices": _plain(choices)}
    whole = loaded.whole or loaded
    saved = open_state(choices.state, choices.resume, identity, Findings, whole, choices.seed)
    findings = Findings(saved)
    findings.go_on_from(saved.load(findings, _PASS)[1])
    return findings


def _plain(choices: PruneOptions) -> dict[str, Any]:
    """Return what the findings depend on; files by their content, data apart."""
    values = {
        field.name: getattr(choices, field.name)
        for field in dataclasses.fields(choices)
        if field.name not in {*_ELSEWHERE, "data", "calibration"}
    }
    if isinstance(choices.roles, ClassifyResult):
        values["roles"] = sha256_of(json.dumps(to_dict(choices.roles), sort_keys=True))
    elif not isinstance(choices.roles, bool):
        values["roles"] = sha256_of_file(Path(choices.roles))
    return values


def _digest(tensor: torch.Tensor) -> str:
    return sha256_of(np.ascontiguousarray(numpy(tensor)).tobytes())


def _arrays_of(made: Repaired) -> dict[str, Array]:
    maps = {
        f"{name}{layer}": numpy(getattr(m, name)) for layer, m in made.maps.items() for name in "Wb"
    }
    return {"removed": np.array(made.removed), "gates": numpy(made.gates), **maps}


def _repaired_of(arrays: Mapping[str, Array], loaded: LoadedModel) -> Repaired:
    def tensor(name: str) -> torch.Tensor:
        return torch.from_numpy(arrays[name].copy())

    layers = sorted(int(name[1:]) for name in arrays if name.startswith("W"))
    device = loaded.device
    maps = {n: OutputMap(tensor(f"W{n}").to(device), tensor(f"b{n}").to(device)) for n in layers}
    return Repaired(tuple(arrays["removed"].tolist()), tensor("gates"), maps)


def _arrays_of_ranking(ranking: Ranking) -> dict[str, Array]:
    if type(ranking) is not Ranking:
        return {"anew": np.array(True)}
    passes = json.dumps(ranking.passes).encode()
    return {
        "values": numpy(ranking.values),
        "order": np.array(ranking.order),
        "passes": np.frombuffer(passes, dtype=np.uint8),
    }


def _ranking_of(arrays: Mapping[str, Array]) -> Ranking:
    values = torch.from_numpy(arrays["values"].copy())
    return Ranking(values, arrays["order"].tolist(), json.loads(arrays["passes"].tobytes()))
