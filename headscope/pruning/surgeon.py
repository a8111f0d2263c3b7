r"""Optimal Brain Surgeon on whole heads: an order of removal, and the refit that belongs to it.

Attention writes ``z W_O + b_O`` into the residual stream; a head owns rows of that map::

    out_t = x_t W        x_t = (z at token t, 1)    W = (rows of the heads; b)

For a choice without labels two second moments are enough. With ``g_t`` the gradient of a random
direction of the model's output by ``out_t``, a change ``D`` of W moves the output by about
``sum over t of (x_t D) . g_t``; its mean square, tokens taken as independent, is ``tr(D^T A D C)``:

    A = sum of |g_t|^2 x_t x_t^T / sum of |g_t|^2        C = sum of g_t g_t^T / number of examples

This is the Gauss-Newton matrix of the distance to the model's own output, in Kronecker-factored
form (Martens & Grosse 2015, arXiv:1503.05671). Tokens that the output does not depend on, padding
among them, have weight zero.

Unlike gates, which can only turn a head up, W_O as a whole may change: the other heads write what a
removed head wrote, as far as their outputs allow. If heads with rows R go and the rows K that stay
may change, the best new map and what it costs are, with ``H = A^-1``::

    W_K + A_KK^-1 A_KR W_R            cost = tr( W_R^T (H_RR)^-1 W_R C )

the same map whatever C is. At each step the head goes whose own cost, with all that went before, is
least. The row of ones stays: it keeps the mean of what goes in the bias.

The method removes an eighth of the heads at a time; after each step the refitted model, which keeps
its whole shape with zeros for heads that went, is run again, and *all* heads are ranked anew. It
goes only as far as the sets that are asked for: a search that ends early pays for no more. The
repair refits W_O and b_O of every layer to what attention puts out with all heads on the same
input. A set chosen on the way needs no pass: its second moments are interpolated linearly, in the
number of heads gone, between the two measured sizes around it. Any other set is refitted to what
passes through the whole model, and once more to what passes through the model that this gives. No
labels are used, and no weight outside W_O and b_O changes.

Hassibi & Stork 1993; of blocks of rows, Kurtic et al. 2023, arXiv:2302.04089.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.core.errors import UnsupportedModelError
from headscope.core.memory import give_back
from headscope.core.widest import exact
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.hooks import hooked
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.output_maps import OutputMap, output_map, replaced_outputs
from headscope.pruning.ranking import Context, Ranking, Repaired

PARTS = 8  # Steps from all heads to none
DIRECTIONS = 2  # Random directions of the output for each batch
RIDGE = 1e-2  # Added to the diagonal of A, relative to its mean


# --- one layer ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """One output map, and the heads that own its rows; where layers share a map, the first one."""

    site: AttentionSite
    units: tuple[int, ...]  # Of its heads
    W: Tensor  # (n_heads * d_head + 1, d_model), float64: the whole model's; last row: b


@dataclass(frozen=True)
class Moments:
    """What passed through one layer's map, float64."""

    A: Tensor  # (n_heads * d_head + 1, same), of its inputs, tokens weighted by |g_t|^2
    C: Tensor  # (d_model, d_model), of the gradients by its outputs, a mean over examples


@dataclass(frozen=True)
class Elimination:
    """The path of one layer from all of its heads to none."""

    order: tuple[int, ...]  # Indices of its heads in the order in which they go
    costs: tuple[float, ...]  # Squared change of the model's output with 0, 1, ... heads gone


def eliminate(layer: Layer, at: Moments) -> Elimination:
    """Remove the heads of a layer one at a time, the cheapest first."""
    values, vectors = torch.linalg.eigh(at.C)
    # With C = L L^T, tr(X^T Q X C) is the square of Q^(1/2) X L.
    V = (layer.W @ (vectors * values.clamp(min=0).sqrt())).float()
    H = torch.linalg.inv(_ridged(at.A)).float()  # this only ranks; maps are solved in float64
    size = layer.site.d_head
    left = list(range(layer.site.n_heads))
    order: list[int] = []
    costs = [0.0]
    rows_of = {head: slice(head * size, (head + 1) * size) for head in left}
    while left:
        solved = {i: torch.linalg.solve(H[rows_of[i], rows_of[i]], V[rows_of[i]]) for i in left}
        prices = {i: float((V[rows_of[i]] * solved[i]).sum()) for i in left}
        best = min(left, key=prices.__getitem__)
        rows = rows_of[best]
        columns = H[:, rows].clone()
        V = V - columns @ solved[best]
        H = H - columns @ torch.linalg.solve(H[rows, rows], columns.t())
        left.remove(best)
        order.append(best)
        costs.append(costs[-1] + max(prices[best], 0.0))
    return Elimination(tuple(order), tuple(costs))


def cheapest_counts(paths: Sequence[Elimination], count: int) -> list[int]:
    """Return how many heads go from each layer if ``count`` go at the least total cost.

    By dynamic programming over the layers; exact for the sum of the layers' curves.
    """
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for path in paths:
        now: dict[int, tuple[float, tuple[int, ...]]] = {}
        for before, (cost, chosen) in best.items():
            for gone, more in enumerate(path.costs):
                total = before + gone
                if total <= count and (total not in now or cost + more < now[total][0]):
                    now[total] = cost + more, (*chosen, gone)
        best = now
    return list(best[count][1])


def refitted(layer: Layer, A: Tensor, left: Collection[int]) -> OutputMap:
    """Return the best map whose rows are zero but for those of the heads ``left``, and the bias."""
    heads = torch.tensor([head in left for head in range(layer.site.n_heads)])
    ones = torch.ones(1, dtype=torch.bool)
    rows = torch.cat([heads.repeat_interleave(layer.site.d_head), ones])
    W = layer.W
    A = _ridged(A)
    new = torch.zeros_like(W)
    new[rows] = W[rows] + torch.linalg.solve(A[rows][:, rows], A[rows][:, ~rows] @ W[~rows])
    weight = layer.site.output_weight
    return OutputMap(new[:-1].to(weight), new[-1].to(weight))


def _ridged(A: Tensor) -> Tensor:
    """Add to the diagonal; the row of ones, which belongs to no head, stays as it is."""
    extra = torch.full((len(A),), float(A.diagonal()[:-1].mean() * RIDGE + 1e-12), dtype=A.dtype)
    extra[-1] = 1e-9
    return A + torch.diag(extra)


# --- the whole model ------------------------------------------------------------------------------


def can_refit(loaded: LoadedModel) -> bool:
    """Whether every layer's output map reads its heads and nothing else."""
    maps = ((site, site.projections.out) for site in loaded.sites if site.n_heads)
    return all(
        linear.module.weight.dim() == 2 and linear.in_features == site.n_heads * site.d_head
        for site, linear in maps
    )


class Surgeon(Ranking):
    """Which units are removed for each count, and the maps refitted to the remaining ones.

    The sets of its path come from the moments measured nearest below their size; sets of different
    sizes need not be nested. A unit's score is the share of units in the smallest set that removes
    it, as known so far.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._model = context.calibration.loaded
        if not can_refit(self._model):
            raise UnsupportedModelError(
                f"surgeon cannot refit the output map of {self._model.name} "
                f"({self._model.family}), into which attention writes more than heads; choose "
                "another method and repair."
            )
        first = {site.module: site for site in reversed(self._model.sites) if site.n_heads}
        self._layers = []
        for site in sorted(first.values(), key=lambda site: site.row):
            units = tuple(context.units.unit((site.row, head)) for head in range(site.n_heads))
            out = output_map(site)
            self._layers.append(Layer(site, units, exact(torch.cat([out.W, out.b[None]])).cpu()))
        n = len(context.units)
        sizes = sorted({n * i // PARTS for i in range(PARTS)})
        #: Sizes at which moments may be measured: no set is larger than the context's largest.
        self._sizes = sizes[: bisect_left(sizes, context.largest or n) + 1]
        self._paths: list[list[Elimination]] = []
        self._full: list[Tensor] = []  # A of the whole model in float64
        #: A of every layer at each size, (n_heads * d_head + 1, same); float32 is enough to keep.
        self._inputs: list[list[Tensor]] = []
        self._last: list[Tensor] = []  # A in float64 at the last of these sizes

    @property
    def values(self) -> Tensor:  # type: ignore[override]
        """Scores (n_units,)."""
        values = torch.zeros(len(self._context.units)).double()
        seen: set[int] = set()
        for count in range(1, len(values) + 1):
            new = set(self._removed(count)) - seen
            seen |= new
            values[sorted(new)] = count / len(values)
        return values

    def remove(self, count: int) -> tuple[int, ...]:
        """Return the ``count`` units that go."""
        self._measure_sizes(bisect_left(self._sizes, count))
        return self._removed(count)

    def refit(self, removed: Sequence[int]) -> Repaired:
        """Refit W_O and b_O of every layer to what all heads put out, on calibration text."""
        gone = set(removed)
        left = [[i for i, u in enumerate(layer.units) if u not in gone] for layer in self._layers]
        if self._paths and self.remove(len(removed)) == tuple(removed):
            inputs = self._inputs_of(len(removed))
        else:  # by what passes through the whole model, then through the model that this gives
            self._full = self._full or [layer.A for layer in self._moments(0, {})]
            of_first = self._moments(1, self._refitted(left, self._full))
            inputs = [layer.A for layer in of_first]
        gates = self._context.units.expand(self._context.units.gates(removed))
        return Repaired(tuple(removed), gates, self._refitted(left, inputs))

    def _measure_sizes(self, times: int) -> None:
        """Measure the model at each of the first sizes, where that was not done before."""
        for i in range(len(self._paths), min(max(times, 1), len(self._sizes))):
            maps: dict[int, OutputMap] = {}
            if i:
                paths = self._paths[-1]
                counts = cheapest_counts(paths, self._sizes[i])
                left = [path.order[gone:] for path, gone in zip(paths, counts, strict=True)]
                maps = self._refitted(left, self._last)
                self._last = []  # as large as what is measured next
            now = self._moments(i, maps)
            self._last = [layer.A for layer in now]
            self._full = self._full or self._last
            layers = zip(self._layers, now, strict=True)
            self._paths.append([eliminate(layer, at) for layer, at in layers])
            self._inputs.append([A.float() for A in self._last])

    def _removed(self, count: int) -> tuple[int, ...]:
        self._measure_sizes(1)
        before = [i for i in range(len(self._paths)) if self._sizes[i] < count]
        paths = self._paths[max(before, default=0)]
        layers = zip(self._layers, paths, cheapest_counts(paths, count), strict=True)
        return tuple(sorted(layer.units[i] for layer, path, n in layers for i in path.order[:n]))

    def _inputs_of(self, count: int) -> list[Tensor]:
        """Return A of every layer with ``count`` units gone, interpolated between two sizes."""
        self._measure_sizes(bisect_left(self._sizes, count) + 1)
        sizes = self._sizes[: len(self._inputs)]
        after = min(bisect_left(sizes, count), len(sizes) - 1)
        before = max(after - 1, 0)
        share = min((count - sizes[before]) / max(sizes[after] - sizes[before], 1), 1.0)
        both = zip(self._inputs[before], self._inputs[after], strict=True)
        return [torch.lerp(old.double(), new.double(), share) for old, new in both]

    def _refitted(
        self, left: Sequence[Collection[int]], inputs: Sequence[Tensor]
    ) -> dict[int, OutputMap]:
        """Refit, by row, every map that loses heads to the second moments of its inputs."""
        return {
            layer.site.row: refitted(layer, A, heads)
            for layer, A, heads in zip(self._layers, inputs, left, strict=True)
            if len(heads) < layer.site.n_heads
        }

    def _moments(self, step: int, maps: Mapping[int, OutputMap]) -> list[Moments]:
        """Run the model with other maps over all calibration examples; sum up what passes."""
        shapes = [layer.W.shape for layer in self._layers]
        A = [torch.zeros(n_in, n_in, dtype=torch.float64) for n_in, _ in shapes]
        C = [torch.zeros(d_model, d_model, dtype=torch.float64) for _, d_model in shapes]
        weights = [0.0] * len(shapes)
        uses: list[tuple[int, Tensor, Tensor]] = []  # Layer; what enters and leaves its map
        modules = [layer.site.projections.out.module for layer in self._layers]

        def note(i: int) -> Any:
            return lambda _, args, output: uses.append((i, args[0], output))

        count = width = 0
        seed = self._context.seed + 1 + step
        give_back()  # what threads that ran the last model have left behind
        with (
            replaced_outputs(self._model, maps),
            hooked(module.register_forward_hook(note(i)) for i, module in enumerate(modules)),
        ):
            for index, batch in enumerate(self._context.calibration.batches(labels=False)):
                generator = torch.Generator().manual_seed((seed * 1_000_003 + index) % 2**64)
                uses.clear()
                out = batch.embed(batch.gates("example"))
                outputs = [output for _, _, output in uses]
                grads: list[list[Tensor | None]] = []
                for _ in range(DIRECTIONS):
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
                    biased = modules[i].bias is not None
                    x = F.pad(x.detach().flatten(0, -2)[real], (0, 1), value=float(biased))
                    x = x * weight[real].sqrt().to(x)[:, None]
                    A[i] += exact(x.t() @ x).cpu()
                    C[i] += sum(exact(g.t() @ g).cpu() for g in rows)
                    weights[i] += float(weight.sum())
                count = count + batch.size
                width = out.shape[-1]
                del out, outputs, grads  # the graph is gone before the next one is made
        give_back()
        scale = width / (DIRECTIONS * max(count, 1))  # A unit direction has E[r r^T] = I / d.
        sums = zip(A, C, weights, strict=True)
        return [Moments(a / max(weight, 1e-300), c * scale) for a, c, weight in sums]


def surgeon_of(context: Context) -> Surgeon:
    """Return the surgeon that a context's methods and repairs share."""
    return context.remember("surgeon", lambda: Surgeon(context))


def surgeon(context: Context) -> Ranking:
    """Rank heads by removing them step by step."""
    ranking = surgeon_of(context)
    ranking.remove(0)  # the repair asks of any set whether it is one of this path
    return ranking
