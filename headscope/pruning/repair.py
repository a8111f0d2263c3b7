r"""What is done to what is left: nothing, scaled gates, means of removed heads, a refitted W_O.

``scale`` finds the gates of the surviving heads by least squares (Kwon et al., section 4.3; there
layer by layer, here on the outputs)::

    minimise over xi_kept   mean over examples ||e(xi) - e(1)||^2      xi_removed = 0

The first guess comes from the Gauss-Newton matrix at the unpruned model; each round then
linearises e anew where the gates stand (Gauss-Newton with damping). A step that does not lower the
distance on the calibration data is halved twice, then given up. No weight is trained; a gate other
than 1 is folded into W_O when the model is saved.

``mean`` does the same for deviations from the mean (:mod:`headscope.tasks.calibration`).

``refit`` starts from scaled gates and refits W_O and b_O layer by layer, by weighted ridge
regression from streamed sums::

    minimise  sum over tokens w ||z_kept W + b - t||^2 + ridge * s * ||W - W_now||^2

``t`` is what all heads of the layer would have put out on the same input, and ``s`` the mean
diagonal of the weighted covariance of z, so that ``ridge`` has no unit. The ridge pulls towards the
map that is there, not towards zero; b is free.

References
----------
Kwon et al. 2022, arXiv:2204.09656.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from headscope.core.errors import InputError
from headscope.core.processes import share, summed
from headscope.data.token_rows import Padded
from headscope.models.intervene import capture_layers, shared_layers
from headscope.models.layouts import AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.output_maps import OutputMap, output_map, replaced_outputs
from headscope.pruning.elimination import DIRECTIONS, RIDGE, line_search
from headscope.pruning.options import Repair
from headscope.pruning.ranking import Context
from headscope.tasks.base import Task
from headscope.tasks.calibration import with_means
from headscope.tasks.gauss_newton import sample
from headscope.tasks.units import Units

#: Scaling: linearisations after the first guess, the share of the distance below which a round's
#: gain makes it the last, and what is added to the diagonal, in units of its mean.
ROUNDS, ENOUGH, DAMPING = 3, 0.03, 0.03
#: Strengths of the ridge that compete; infinity refits b_O alone. 10 wins most often.
RIDGES = (1.0, 10.0, float("inf"))
_HELD_OUT = 4  # Every fourth calibration example is held out to judge refits by.


@dataclass(frozen=True)
class Repaired:
    """A pruned model as gates and output maps of the full one."""

    removed: tuple[int, ...]  # units
    gates: Tensor  # (n_layers, n_heads), float32: what each head's z is multiplied by
    #: By layer; empty unless W_O was refitted, or means went into b_O.
    maps: Mapping[int, OutputMap] = field(default_factory=dict)

    @classmethod
    def bare(cls, units: Units, removed: Sequence[int]) -> Repaired:
        """Remove units and leave the others as they are."""
        return cls(tuple(removed), units.expand(units.gates(removed)))


def repair(
    kind: Repair, loaded: LoadedModel, task: Task | None, context: Context, removed: Sequence[int]
) -> Repaired:
    """Adjust the heads of the full model that are left after units are ``removed``.

    ``task`` is on the calibration data, as ``context`` is; none is needed for ``none``.
    """
    units = context.units
    if kind in (Repair.none, Repair.surgeon) or task is None or not removed:
        return Repaired.bare(units, removed)
    context.targets()  # the same for heads that leave their mean behind
    if kind is Repair.mean:
        leaving = context.leaving_means()
        gates = units.expand(scale_gates(leaving, removed)).float()
        maps = with_means(loaded, leaving.calibration.means or {}, gates)
        return Repaired(tuple(removed), gates, maps)
    unit_gates = scale_gates(context, removed)
    scaled = Repaired(tuple(removed), units.expand(unit_gates).float())
    return scaled if kind is Repair.scale else _refit(loaded, task, context, unit_gates, scaled)


# --- scaling --------------------------------------------------------------------------------------


def scale_gates(
    context: Context, removed: Sequence[int], *, directions: int = DIRECTIONS, rounds: int = ROUNDS
) -> Tensor:
    """Return gates (n_units,), float64: zero where removed, rescaled elsewhere.

    They never bring the outputs farther from the unpruned model's than gates of 1.
    """
    kept = [unit for unit in range(len(context.units)) if unit not in set(removed)]
    best = context.units.gates(removed).double()
    if not kept or not removed:
        return best
    matrix = context.gauss_newton(directions).matrix
    best_distance = context.distance(best)
    step = _solve_damped(matrix, kept, matrix[kept][:, list(removed)].sum(dim=1), RIDGE)
    for number in range(rounds + 1):
        before = best_distance
        best, best_distance = line_search(context, best, best_distance, kept, step)
        if number == rounds or (number and best_distance > (1 - ENOUGH) * before):
            break
        sums = sample(
            context.calibration.batches(labels=False),
            context.units,
            at=best,
            targets=context.targets(),
            seed=context.seed + 1 + number,
        )
        step = _solve_damped(sums.matrix, kept, -sums.gradient[kept], DAMPING)
    return best


def _solve_damped(matrix: Tensor, kept: list[int], right: Tensor, damping: float) -> Tensor:
    inner = matrix[kept][:, kept].double()
    damping = max(damping * float(inner.diagonal().mean()), 1e-30)
    solved: Tensor = torch.linalg.solve(inner + damping * torch.eye(len(kept)).double(), right)
    return solved


# --- refitting ------------------------------------------------------------------------------------


class RidgeSums:
    """Sums over tokens of all that the regression needs.

    ``d_in`` is the width of z (all kept heads together), ``d_out`` that of the layer's output.
    """

    def __init__(self, d_in: int, d_out: int) -> None:
        self._zz = torch.zeros(d_in, d_in, dtype=torch.float64)
        self._zt = torch.zeros(d_in, d_out, dtype=torch.float64)
        self._z = torch.zeros(d_in, dtype=torch.float64)
        self._t = torch.zeros(d_out, dtype=torch.float64)
        self._weight = 0.0

    def update(self, z: Tensor, target: Tensor, weight: Tensor) -> None:
        """Add tokens: z (tokens, d_in), target (tokens, d_out) and weight (tokens,), 0 or more."""
        z, target, weight = (part.cpu().double() for part in (z, target, weight))
        weighted = z * weight[:, None]
        self._zz += weighted.t() @ z
        self._zt += weighted.t() @ target
        self._z += weighted.sum(dim=0)
        self._t += weight @ target
        self._weight += float(weight.sum())

    def add_up(self) -> None:
        """Add the sums of all processes that share the run."""
        parts = (self._zz, self._zt, self._z, self._t)
        weight = torch.tensor([self._weight], dtype=torch.float64)
        self._zz, self._zt, self._z, self._t, weight = summed("sums of a refit", *parts, weight)
        self._weight = weight.item()

    def solve(self, now: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
        """Return W (d_in, d_out) and b (d_out,), float64; the ridge pulls W towards ``now``.

        A ridge of 0 is plain least squares; infinity keeps ``now`` and fits b alone.
        """
        W = now.cpu().double()
        mean_z, mean_t = self._z / self._weight, self._t / self._weight
        if ridge != float("inf") and len(now):
            squared = self._weight**2
            covariance = self._zz / self._weight - torch.outer(self._z, self._z) / squared
            cross = self._zt / self._weight - torch.outer(self._z, self._t) / squared
            # Where z does not vary at all there is nothing to fit, and the present map stays.
            strength = max(max(ridge, 1e-12) * float(covariance.diagonal().mean()), 1e-30)
            identity = torch.eye(len(now), dtype=torch.float64)
            W = torch.linalg.solve(covariance + strength * identity, cross + strength * W)
        return W, mean_t - mean_z @ W


def _refit(
    loaded: LoadedModel, task: Task, context: Context, unit_gates: Tensor, start: Repaired
) -> Repaired:
    """Refit layer by layer, each on what the repaired layers below it now put out.

    A layer's refit is kept only where it brings the outputs on held-out text nearer.
    """
    if task.n_examples < _HELD_OUT:
        raise InputError(f"refit holds every fourth example out; give {_HELD_OUT} or more.")
    calibration = replace(context.calibration, only=lambda row: not _fitted(row))
    held_out = replace(context, calibration=calibration, memo={})

    def distance(maps: Mapping[int, OutputMap]) -> float:
        with replaced_outputs(loaded, maps):
            return held_out.distance(unit_gates)

    def running_order(rows: tuple[int, ...]) -> tuple[bool, int, int]:
        site = loaded.sites[rows[0]]  # a layer of the decoder runs its own, then cross-attention
        return site.stack != "encoder", site.layer, site.row

    maps: dict[int, OutputMap] = {}
    best = distance(maps)
    for layers in sorted(shared_layers(loaded.sites), key=running_order):
        sums = refit_sums(loaded, task, start.gates, maps, layers)
        site, gates, before = loaded.sites[layers[0]], start.gates[layers[0]], maps
        for ridge in RIDGES:
            trial = {**before, layers[0]: refitted(site, sums, gates, ridge)}
            if (at_trial := distance(trial)) < best:
                best, maps = at_trial, trial
    return Repaired(start.removed, start.gates, maps)


def refit_sums(
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
    first = loaded.sites[layers[0]]
    rows = _kept_rows(first, gates[layers[0]])
    sums = RidgeSums(len(rows), first.projections.out.out_features)
    ones = torch.ones(loaded.n_layers, loaded.n_heads)
    for batch in share(task.batches(loaded, only=_fitted)):
        real = batch.queries_of(first.stack).bool()
        weight = (1.0 / real.sum(dim=1, keepdim=True).clamp(min=1)).expand(real.shape)[real]
        full = _x_and_z(loaded, batch, real, ones, layers)
        with replaced_outputs(loaded, maps):
            pruned = _x_and_z(loaded, batch, real, gates, layers)
        for layer, (x, z) in pruned.items():
            site, (full_x, full_z) = loaded.sites[layer], full[layer]
            own = output_map(site)
            wanted = full_x + full_z @ own.W + own.b  # (tokens, d_model)
            gate = gates[layer, : site.n_heads].repeat_interleave(site.d_head)
            sums.update((z * gate.to(z))[:, rows], wanted - x, weight)
    sums.add_up()
    return sums


def _x_and_z(
    loaded: LoadedModel, batch: Padded, real: Tensor, gates: Tensor, layers: Sequence[int]
) -> dict[int, tuple[Tensor, Tensor]]:
    """Input x and ungated z (tokens, n_heads * d_head) of some layers at the ``real`` tokens."""
    seen = {}

    def see(site: AttentionSite, x: Tensor, z: Tensor) -> None:
        seen[site.row] = (x[real], z.transpose(1, 2).flatten(2)[real])

    capture_layers(loaded, batch, gates, layers, see)
    return seen


def _fitted(row: int) -> bool:
    """Say whether a refit may see a row; the others judge it."""
    return row % _HELD_OUT != _HELD_OUT - 1


def _kept_rows(site: AttentionSite, gates: Tensor) -> Tensor:
    """Rows of W_O that belong to kept heads."""
    return (gates[: site.n_heads].repeat_interleave(site.d_head) != 0).nonzero().flatten().cpu()


def refitted(site: AttentionSite, sums: RidgeSums, gates: Tensor, ridge: float) -> OutputMap:
    """Return a site's output map with the regression's rows for kept heads."""
    now = output_map(site)
    rows = _kept_rows(site, gates).to(now.W.device)
    W, b = sums.solve(now.W[rows], ridge)
    new = now.W.clone()
    new[rows] = W.to(new)
    return OutputMap(new, b.to(now.b))
