r"""What passes through the output maps of attention on calibration text: second moments.

Attention writes ``z W_O + b_O`` into the residual stream, z being the outputs of all heads side by
side. As one matrix W, whose first ``d_head`` rows belong to the first head, and so on::

    out_t = x_t W        x_t = (z at token t, 1)        W = (W_O; b_O)

To choose heads without labels, two second moments of each layer are enough. Let ``g_t`` be the
gradient of the model's output, in a random direction, by ``out_t``. A change D of W then moves the
output in that direction by about ``sum over t of (x_t D) . g_t``. The mean square of this, tokens
taken as independent, is ``tr(D^T A D C)`` with::

    A = sum of |g_t|^2 x_t x_t^T / sum of |g_t|^2        C = sum of g_t g_t^T / number of examples

This is the Gauss-Newton matrix of the distance to the model's own output, in Kronecker-factored
form (Martens & Grosse 2015, arXiv:1503.05671). Tokens that the output does not depend on, padding
among them, have weight zero.

:func:`measure_moments` runs the model; :class:`MomentSums` adds up what it sees of one layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscope.core.memory import release_memory
from headscope.core.widest import exact
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.hooks import hooked
from headscope.tasks.loss_batches import Directions, LossBatch

DIRECTIONS = 2  # Random directions of the output for each batch


@dataclass(frozen=True)
class Layer:
    """One output map of the unpruned model, and its heads; where layers share a map, the first."""

    site: AttentionSite  # The attention module: its number of heads, its W_O
    #: Of each head the unit that it belongs to: the heads that can only go together are one unit.
    units: tuple[int, ...]
    W: Tensor  # (n_heads * d_head + 1, d_model), float64; last row: b_O


@dataclass(frozen=True)
class Moments:
    """A and C of one layer, float64."""

    A: Tensor  # Of the map's inputs x_t: (n_heads * d_head + 1, n_heads * d_head + 1)
    C: Tensor  # Of the gradients g_t by its outputs: (d_model, d_model)


class MapRun(NamedTuple):
    """One run of a layer's output map."""

    layer: int  # Its index among the layers
    inputs: Tensor  # (texts, pos, n_heads * d_head)
    outputs: Tensor  # (texts, pos, d_model)


def measure_moments(
    layers: Sequence[Layer], batches: Iterable[LossBatch], *, seed: int
) -> list[Moments]:
    """Run a model over examples, and sum up what passes through the maps of its layers.

    A ``LossBatch`` is some examples on which the model's output can be differentiated. Each takes
    one forward pass, and a backward pass for every random direction.
    """
    sums = [MomentSums(layer) for layer in layers]
    modules = [layer.site.projections.out.module for layer in layers]
    map_runs: list[MapRun] = []  # Of the batch that is being run

    def hook_of(layer: int) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        """Return a hook that notes what a layer's map got and put out."""

        def note_run(_: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
            map_runs.append(MapRun(layer, inputs[0], outputs))

        return note_run

    n_examples = 0
    release_memory()  # what threads that ran the last model have left behind
    with hooked(module.register_forward_hook(hook_of(i)) for i, module in enumerate(modules)):
        for batch in batches:
            map_runs.clear()
            all_heads_on = batch.gates("example")
            output = batch.embed(all_heads_on)  # [examples, d_output]
            gradients = _random_gradients(output, map_runs, Directions(batch, seed))
            for map_run, gradients_of_run in zip(map_runs, gradients, strict=True):
                sums[map_run.layer].add(map_run.inputs, gradients_of_run)
            n_examples += batch.size
            del output, gradients  # the graph is gone before the next one is made
            map_runs.clear()
    release_memory()
    scale = 1 / (DIRECTIONS * max(n_examples, 1))
    return [layer_sums.moments(scale) for layer_sums in sums]


def _random_gradients(
    output: Tensor, map_runs: Sequence[MapRun], directions: Directions
) -> list[list[Tensor]]:
    """Return for each run of a map the gradients of the model's output by what the map put out.

    One for each of DIRECTIONS random directions r of the output, so long that E[r r^T] = I; none
    for a run that the output does not depend on.
    """
    outputs_of_maps = [map_run.outputs for map_run in map_runs]
    gradients: list[list[Tensor]] = [[] for _ in map_runs]
    for _ in range(DIRECTIONS):
        direction = directions.draw(output) * math.sqrt(output.shape[-1])
        gradient_by_run = torch.autograd.grad(
            output, outputs_of_maps, direction, retain_graph=True, allow_unused=True
        )
        for gradients_of_run, gradient in zip(gradients, gradient_by_run, strict=True):
            if gradient is not None:
                gradients_of_run.append(gradient)
    return gradients


class MomentSums:
    """Sums over tokens that become the :class:`Moments` of one layer."""

    def __init__(self, layer: Layer) -> None:
        n_rows, d_model = layer.W.shape
        # x_t ends with 1, for b_O; with 0 where the module has no bias to be changed.
        has_bias = layer.site.projections.out.module.bias is not None
        self._last_entry = 1.0 if has_bias else 0.0
        self._A = torch.zeros(n_rows, n_rows, dtype=torch.float64)
        self._C = torch.zeros(d_model, d_model, dtype=torch.float64)
        self._weight = 0.0

    def add(self, inputs: Tensor, gradients: Sequence[Tensor]) -> None:
        """Add what entered the map in one batch, and the gradients by what left it.

        ``inputs`` (texts, pos, n_heads * d_head); ``gradients`` has one (texts, pos, d_model) for
        each random direction, and is empty if the model's output did not depend on the map.
        """
        if not gradients:
            return
        gradients = [gradient.flatten(0, -2) for gradient in gradients]  # [tokens, d_model] each
        squares = [(gradient.float() ** 2).sum(-1) for gradient in gradients]
        weight = torch.stack(squares).sum(0)  # |g_t|^2 of every token
        has_weight = weight > 0
        z = inputs.detach().flatten(0, -2)[has_weight]
        x = F.pad(z, (0, 1), value=self._last_entry)  # [tokens, n_heads * d_head + 1]
        weighted_x = x * weight[has_weight].sqrt().to(x)[:, None]
        self._A += exact(weighted_x.t() @ weighted_x).cpu()
        self._C += sum(exact(gradient.t() @ gradient).cpu() for gradient in gradients)
        self._weight += float(weight.sum())

    def moments(self, scale: float) -> Moments:
        """Divide A by the tokens' weights, and multiply C by ``scale``."""
        return Moments(self._A / max(self._weight, 1e-300), self._C * scale)
