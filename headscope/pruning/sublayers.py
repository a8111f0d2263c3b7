r"""The output maps of attention, and what passes through them on calibration text.

Attention writes ``z W_O + b_O`` into the residual stream; a head owns rows of that map::

    out_t = x_t W        x_t = (z at token t, 1)    W = (rows of the heads; b)

For a choice without labels two second moments are enough. With ``g_t`` the gradient of a random
direction of the model's output by ``out_t``, a change ``D`` of W moves the output by about
``sum over t of (x_t D) . g_t``; its mean square, tokens taken as independent, is ``tr(D^T A D C)``:

    A = sum of |g_t|^2 x_t x_t^T / sum of |g_t|^2        C = sum of g_t g_t^T / number of examples

This is the Gauss-Newton matrix of the distance to the model's own output, in Kronecker-factored
form (Martens & Grosse 2015, arXiv:1503.05671). Tokens that the output does not depend on, padding
among them, have weight zero.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscope.core.errors import UnsupportedModelError
from headscope.core.widest import exact
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.hooks import hooked
from headscope.models.run.loaded import LoadedModel, as_before, wrap
from headscope.tasks.base import Task


@dataclass(frozen=True)
class Sublayer:
    """One output map, and the heads that own its rows."""

    name: str  # Dotted path of the attention module
    module: Any  # The map: ``nn.Linear``, or the ``Conv1D`` of GPT-2, which keeps it transposed
    n_units: int  # Heads
    size: int  # Rows of the map that one head owns: d_head

    @property
    def transposed(self) -> bool:
        """Whether the map is kept as (rows of the heads, d_model)."""
        return not isinstance(self.module, nn.Linear)

    def weights(self) -> Tensor:
        """Copy W, (n_units * size + 1, d_model), float64 in the process's memory; last row: b."""
        W = self.module.weight.detach()
        W = exact(W if self.transposed else W.t()).cpu()
        b = self.module.bias
        last = W.new_zeros(1, W.shape[1]) if b is None else exact(b.detach()).cpu()[None]
        return torch.cat([W, last])

    def write(self, W: Tensor) -> None:
        """Put another W, as :meth:`weights` gives it, in the place of the map and its bias."""
        module = self.module
        with torch.no_grad():
            rows = W[:-1] if self.transposed else W[:-1].t()
            module.weight.copy_(rows.to(module.weight))
            if module.bias is not None:
                module.bias.copy_(W[-1].to(module.bias))


@dataclass(frozen=True)
class Moments:
    """What passed through one sublayer, float64."""

    A: Tensor  # (n_units * size + 1, same), of its inputs, tokens weighted by |g_t|^2
    C: Tensor  # (d_model, d_model), of the gradients by its outputs, a mean over examples


def copied(loaded: LoadedModel) -> LoadedModel:
    """Copy a model, so that its maps can be overwritten."""
    network = copy.deepcopy(loaded.network)
    return as_before(wrap(network, loaded.tokenizer, name=loaded.name), loaded)


def sublayers(loaded: LoadedModel) -> tuple[Sublayer, ...]:
    """List the output maps whose heads can be removed, layer by layer; a shared one once.

    Raises
    ------
    UnsupportedModelError
        If there is a map that headscope cannot overwrite.
    """
    maps: list[Sublayer] = []
    for site in (site for site in loaded.sites if site.n_heads):
        own = site.projections.out
        if not _holds_heads_alone(site):
            raise UnsupportedModelError(
                f"surgeon cannot refit the output map of {loaded.name} ({loaded.family}), into "
                "which attention writes more than heads; choose another method and repair."
            )
        if all(item.module is not own.module for item in maps):
            maps.append(Sublayer(site.name, own.module, site.n_heads, site.d_head))
    return tuple(maps)


def can_refit(loaded: LoadedModel) -> bool:
    """Whether every layer's output map reads its heads and nothing else."""
    return all(_holds_heads_alone(site) for site in loaded.sites if site.n_heads)


def _holds_heads_alone(site: AttentionSite) -> bool:
    own = site.projections.out
    rows = site.n_heads * site.d_head
    return own.module.weight.dim() == 2 and own.in_features == rows and own.parts == 1


def moments(
    task: Task, working: LoadedModel, layers: Sequence[Sublayer], *, directions: int, seed: int
) -> list[Moments]:
    """Run a model over all calibration examples, and sum up what passes through each sublayer."""
    shapes = [item.weights().shape for item in layers]
    A = [torch.zeros(n_in, n_in, dtype=torch.float64) for n_in, _ in shapes]
    C = [torch.zeros(d_model, d_model, dtype=torch.float64) for _, d_model in shapes]
    weights = [0.0] * len(layers)
    uses: list[tuple[int, Tensor, Tensor]] = []  # Layer; what enters and leaves its map

    def note(i: int) -> Any:
        return lambda _, args, output: uses.append((i, args[0], output))

    count = width = 0
    for index, batch in enumerate(task.loss_batches(working, labels=False)):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
        uses.clear()
        with hooked(item.module.register_forward_hook(note(i)) for i, item in enumerate(layers)):
            out = batch.embed(batch.gates("example"))
        outputs = [output for _, _, output in uses]
        grads: list[list[Tensor | None]] = []
        for _ in range(directions):
            drawn = F.normalize(torch.randn(out.shape, generator=generator), dim=-1).to(out)
            options = {"retain_graph": True, "allow_unused": True}
            grads.append(list(torch.autograd.grad(out, outputs, drawn, **options)))
        for (i, x, _), of_use in zip(uses, zip(*grads, strict=True), strict=True):
            rows = [g.flatten(0, -2) for g in of_use if g is not None]
            if not rows:
                continue
            weight = torch.stack([(g.float() ** 2).sum(-1) for g in rows]).sum(0)
            real = weight > 0
            # Without a bias nothing could be written by the row of ones.
            biased = layers[i].module.bias is not None
            x = F.pad(x.detach().flatten(0, -2)[real], (0, 1), value=float(biased))
            x = x * weight[real].sqrt().to(x)[:, None]
            A[i] += exact(x.t() @ x).cpu()
            C[i] += sum(exact(g.t() @ g).cpu() for g in rows)
            weights[i] += float(weight.sum())
        count, width = count + batch.size, out.shape[-1]
    scale = width / (directions * max(count, 1))  # A unit direction has E[r r^T] = I / d.
    sums = zip(A, C, weights, strict=True)
    return [Moments(a / max(weight, 1e-300), c * scale) for a, c, weight in sums]
