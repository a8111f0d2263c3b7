"""What is done to what is left: nothing, scaling, means of removed heads, refitting W_O."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headscope.data.token_rows import Padded
from headscope.errors import InputError
from headscope.models.intervene import capture_layers, shared_layers
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.output_maps import OutputMap, output_map, replaced_outputs
from headscope.pipeline.prune.calibrating import TaskCalibration
from headscope.pipeline.prune.means import with_means
from headscope.pipeline.tasks import Task
from headscope.processes.sharing import share
from headscope.pruning.fisher import outputs_matrix
from headscope.pruning.joint import DIRECTIONS
from headscope.pruning.method import Given
from headscope.pruning.refit import RidgeSums
from headscope.pruning.scale import distance, full_outputs, scale_gates
from headscope.pruning.units import Units

#: Strengths of the ridge that compete; infinity refits b_O alone. 10 wins most often.
RIDGES = (1.0, 10.0, float("inf"))
#: Every fourth calibration example is held out to judge refits by.
_HELD_OUT = 4


class Repair(enum.StrEnum):
    """Names of the repairs."""

    none = "none"
    scale = "scale"
    mean = "mean"
    refit = "refit"


@dataclass(frozen=True)
class Repaired:
    """A pruned model as gates and output maps of the full one.

    Attributes
    ----------
    removed : tuple of int
        Units.
    gates : Tensor, (n_layers, n_heads), float32
        What each head's z is multiplied by, 0 for a removed head.
    maps : mapping of layer to OutputMap
        Empty unless W_O was refitted, or means went into b_O.
    """

    removed: tuple[int, ...]
    gates: Tensor
    maps: Mapping[int, OutputMap] = field(default_factory=dict)

    @classmethod
    def bare(cls, units: Units, removed: Sequence[int]) -> Repaired:
        """Remove units and leave the others as they are."""
        return cls(tuple(removed), units.expand(units.gates(removed)))


def repair(
    kind: Repair, loaded: LoadedModel, task: Task | None, given: Given, removed: Sequence[int]
) -> Repaired:
    """Adjust the heads that are left after the units ``removed`` are gone.

    Parameters
    ----------
    kind : Repair
        ``mean`` scales deviations from the mean; ``refit`` starts from scaled gates.
    loaded : LoadedModel
        The full model.
    task : Task or None
        Calibration data; not needed for ``none``.
    given : Given
        What methods look at; full outputs are kept in its memo.
    removed : sequence of int
        Units.
    """
    units = given.units
    if kind is Repair.none or task is None or not removed:
        return Repaired.bare(units, removed)
    targets = given.remember("full outputs", lambda: full_outputs(given))
    if kind is Repair.mean:
        return _with_means(loaded, given, targets, removed)
    gates = _scaled(given, targets, removed)
    scaled = Repaired(tuple(removed), units.expand(gates).float())
    if kind is Repair.scale:
        return scaled
    return _refit(loaded, task, given, targets, gates, scaled)


def _scaled(given: Given, targets: Sequence[Tensor | None], removed: Sequence[int]) -> Tensor:
    """Gates of units by least squares."""
    matrix = outputs_matrix(given, DIRECTIONS).matrix
    return scale_gates(given, removed, matrix=matrix, targets=targets)


def _with_means(
    loaded: LoadedModel, given: Given, targets: Sequence[Tensor | None], removed: Sequence[int]
) -> Repaired:
    """Gates of the deviations from the means, which are left behind."""
    leaving = given.leaving_means()
    assert isinstance(leaving.calibration, TaskCalibration)
    gates = given.units.expand(_scaled(leaving, targets, removed)).float()
    maps = with_means(loaded, leaving.calibration.means or {}, gates)
    return Repaired(tuple(removed), gates, maps)


def _refit(
    loaded: LoadedModel,
    task: Task,
    given: Given,
    targets: Sequence[Tensor | None],
    unit_gates: Tensor,
    start: Repaired,
) -> Repaired:
    """Refit layer by layer, each on what the repaired layers below it now put out.

    A layer's refit is kept only where it brings the outputs on held-out text nearer.
    """
    if task.n_examples < _HELD_OUT:
        raise InputError(f"refit holds every fourth example out; give {_HELD_OUT} or more.")
    judges = [~_fitted(batch) for batch in task.batches(loaded)]

    def held_out(maps: Mapping[int, OutputMap]) -> float:
        with replaced_outputs(loaded, maps):
            return distance(given, unit_gates, targets, wanted=judges)

    maps: dict[int, OutputMap] = {}
    best = held_out(maps)
    for layers in _in_order(loaded):
        sums = _sums(loaded, task, start.gates, maps, layers)
        site, gates = loaded.sites[layers[0]], start.gates[layers[0]]
        trials = [{**maps, layers[0]: _solve(site, sums, gates, ridge)} for ridge in RIDGES]
        distances = [held_out(trial) for trial in trials]
        if min(distances) < best:
            best = min(distances)
            maps = trials[distances.index(best)]
    return Repaired(start.removed, start.gates, maps)


def _in_order(loaded: LoadedModel) -> list[tuple[int, ...]]:
    """Group rows that share a module, in the order in which they run.

    A layer of the decoder runs its own attention and then cross-attention.
    """

    def place(rows: tuple[int, ...]) -> tuple[bool, int, int]:
        site = loaded.sites[rows[0]]
        return site.stack != "encoder", site.layer, site.row

    return sorted(shared_layers(loaded.sites), key=place)


def _sums(
    loaded: LoadedModel,
    task: Task,
    gates: Tensor,
    maps: Mapping[int, OutputMap],
    layers: Sequence[int],
) -> RidgeSums:
    """Sum up what the regression of some layers with one output map needs.

    The target is what brings the residual stream after the layer back to the full model's: the
    full model's input and attention output, less the pruned model's input. Every sentence weighs
    the same, however long it is.
    """
    rows = _rows(loaded.sites[layers[0]], gates[layers[0]])
    sums = RidgeSums(len(rows), loaded.sites[layers[0]].projections.out.out_features)
    for batch in share(task.batches(loaded)):
        queries = batch.queries_of(loaded.sites[layers[0]].stack).bool()
        real = queries & _fitted(batch)[:, None].to(loaded.device)
        weight = (1.0 / real.sum(dim=1, keepdim=True).clamp(min=1)).expand(real.shape)[real]
        wanted = _streams(loaded, batch, real, layers)
        with replaced_outputs(loaded, maps):
            seen = _layers(loaded, batch, real, gates, layers)
        for layer, (x, z) in seen.items():
            gate = gates[layer, : loaded.sites[layer].n_heads]
            gated = z * gate.repeat_interleave(loaded.sites[layer].d_head).to(z)
            sums.update(gated[:, rows], wanted[layer] - x, weight)
    sums.add_up()
    return sums


def _streams(
    loaded: LoadedModel, batch: Padded, real: Tensor, layers: Sequence[int]
) -> dict[int, Tensor]:
    """Full model's residual stream after the attention of some layers: (tokens, d_model)."""
    ones = torch.ones(loaded.n_layers, loaded.n_heads)
    found = {}
    for layer, (x, z) in _layers(loaded, batch, real, ones, layers).items():
        own = output_map(loaded.sites[layer])
        found[layer] = x + z @ own.W + own.b
    return found


def _layers(
    loaded: LoadedModel, batch: Padded, real: Tensor, gates: Tensor, layers: Sequence[int]
) -> dict[int, tuple[Tensor, Tensor]]:
    """Input x and ungated z (tokens, n_heads * d_head) of some layers at the ``real`` tokens."""
    found = {}

    def see(site: AttentionSite, x: Tensor, z: Tensor) -> None:
        found[site.row] = (x[real], z.transpose(1, 2).flatten(2)[real])

    capture_layers(loaded, batch, gates, layers, see)
    return found


def _fitted(batch: Padded) -> Tensor:
    """Say which rows a refit may see: (batch,), bool."""
    return torch.as_tensor(batch.index) % _HELD_OUT != _HELD_OUT - 1


def _rows(site: AttentionSite, gates: Tensor) -> Tensor:
    """Rows of W_O that belong to kept heads."""
    return (gates[: site.n_heads].repeat_interleave(site.d_head) != 0).nonzero().flatten().cpu()


def _solve(site: AttentionSite, sums: RidgeSums, gates: Tensor, ridge: float) -> OutputMap:
    now, rows = output_map(site), _rows(site, gates)
    W, b = sums.solve(now.W[rows.to(now.W.device)], ridge)
    new = now.W.clone()
    new[rows.to(new.device)] = W.to(new)
    return OutputMap(new, b.to(now.b))
