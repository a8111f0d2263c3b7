r"""What passes through the output maps of attention on calibration text: second moments.

Attention writes ``z W_O + b_O`` into the residual stream; a head owns rows of that map::

    out_t = x_t W        x_t = (z at token t, 1)    W = (rows of the heads; b)

To choose heads without labels, two second moments of each layer are enough. With ``g_t`` the
gradient of a random direction of the model's output by ``out_t``, a change ``D`` of W moves the
output by about ``sum over t of (x_t D) . g_t``; its mean square, tokens taken as independent, is
``tr(D^T A D C)``:

    A = sum of |g_t|^2 x_t x_t^T / sum of |g_t|^2        C = sum of g_t g_t^T / number of examples

This is the Gauss-Newton matrix of the distance to the model's own output, in Kronecker-factored
form (Martens & Grosse 2015, arXiv:1503.05671). Tokens that the output does not depend on, padding
among them, have weight zero.
"""

from __future__ import annotations

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
from headscope.tasks.loss_batches import LossBatch

DIRECTIONS = 2  # Random directions of the output for each batch


@dataclass(frozen=True)
class Layer:
    """One output map, and the heads that own its rows; where layers share a map, the first one."""

    site: AttentionSite
    units: tuple[int, ...]  # The unit that each of its heads belongs to
    W: Tensor  # (n_heads * d_head + 1, d_model), float64: the whole model's; last row: b


@dataclass(frozen=True)
class Moments:
    """A and C of one layer, float64."""

    A: Tensor  # (n_heads * d_head + 1, same), of the map's inputs, tokens weighted by |g_t|^2
    C: Tensor  # (d_model, d_model), of the gradients by its outputs, a mean over examples


class MomentSums:
    """Sums over tokens that become the :class:`Moments` of one layer."""

    def __init__(self, layer: Layer, module: nn.Module) -> None:
        n_in, d_model = layer.W.shape
        self._has_bias = module.bias is not None
        self._A = torch.zeros(n_in, n_in, dtype=torch.float64)
        self._C = torch.zeros(d_model, d_model, dtype=torch.float64)
        self._weight = 0.0

    def add(self, inputs: Tensor, gradients: Sequence[Tensor]) -> None:
        """Add what entered the map in one batch, and the gradients by what left it.

        ``inputs`` (rows, pos, n_heads * d_head); of each random direction one gradient (rows, pos,
        d_model).
        """
        if not gradients:
            return
        gradients = [gradient.flatten(0, -2) for gradient in gradients]  # (tokens, d_model)
        squares = [(gradient.float() ** 2).sum(-1) for gradient in gradients]
        weight = torch.stack(squares).sum(0)  # |g_t|^2 of every token
        real = weight > 0
        # x_t ends with 1; without a bias nothing could be written by that row.
        last_entry = 1.0 if self._has_bias else 0.0
        x = F.pad(inputs.detach().flatten(0, -2)[real], (0, 1), value=last_entry)
        x = x * weight[real].sqrt().to(x)[:, None]
        self._A += exact(x.t() @ x).cpu()
        self._C += sum(exact(gradient.t() @ gradient).cpu() for gradient in gradients)
        self._weight += float(weight.sum())

    def moments(self, scale: float) -> Moments:
        """Divide A by the tokens' weights, and multiply C by ``scale``."""
        return Moments(self._A / max(self._weight, 1e-300), self._C * scale)


def measure_moments(
    layers: Sequence[Layer], batches: Iterable[LossBatch], *, seed: int
) -> list[Moments]:
    """Run a model over examples, and sum up what passes through the maps of its layers.

    A batch takes one forward pass, and a backward pass for each random direction.
    """
    modules = [layer.site.projections.out.module for layer in layers]
    sums = [MomentSums(layer, module) for layer, module in zip(layers, modules, strict=True)]
    uses: list[Use] = []

    def noting(layer: int) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def note(_: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
            uses.append(Use(layer, inputs[0], outputs))

        return note

    n_examples = 0
    width = 0
    release_memory()  # what threads that ran the last model have left behind
    with hooked(module.register_forward_hook(noting(i)) for i, module in enumerate(modules)):
        for number, batch in enumerate(batches):
            generator = torch.Generator().manual_seed((seed * 1_000_003 + number) % 2**64)
            uses.clear()
            out = batch.embed(batch.gates("example"))
            gradients = _random_gradients(out, uses, generator)
            for use, gradients_of_use in zip(uses, gradients, strict=True):
                sums[use.layer].add(use.inputs, gradients_of_use)
            n_examples += batch.size
            width = out.shape[-1]
            del out, gradients  # the graph is gone before the next one is made
            uses.clear()
    release_memory()
    scale = width / (DIRECTIONS * max(n_examples, 1))  # A unit direction has E[r r^T] = I / d.
    return [layer_sums.moments(scale) for layer_sums in sums]


class Use(NamedTuple):
    """One run of a layer's output map."""

    layer: int
    inputs: Tensor  # (rows, pos, n_heads * d_head)
    outputs: Tensor  # (rows, pos, d_model)


def _random_gradients(
    out: Tensor, uses: Sequence[Use], generator: torch.Generator
) -> list[list[Tensor]]:
    """Return the gradients of random directions of the model's output, by what each use put out.

    A use that the output does not depend on has none.
    """
    outputs = [use.outputs for use in uses]
    gradients: list[list[Tensor]] = [[] for _ in uses]
    for _ in range(DIRECTIONS):
        drawn = torch.randn(out.shape, generator=generator)
        direction = F.normalize(drawn, dim=-1).to(out)
        by_use = torch.autograd.grad(out, outputs, direction, retain_graph=True, allow_unused=True)
        for gradients_of_use, gradient in zip(gradients, by_use, strict=True):
            if gradient is not None:
                gradients_of_use.append(gradient)
    return gradients
