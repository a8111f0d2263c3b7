"""How differently two heads look: Jensen-Shannon divergence of their rows, for all pairs of heads.

References
----------
Clark et al. 2019, arXiv:1906.04341, section 6; classical scaling: Torgerson 1952, Psychometrika 17.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from headscope.analyses.classify.distances_result import HeadDistances, Nearness
from headscope.analyses.classify.passes import Reading
from headscope.analyses.classify.result import ClassifyResult, HeadResult
from headscope.analyses.classify.rows import row_entropy
from headscope.core.accumulator import Accumulator, Array, numpy
from headscope.core.activations import Activations
from headscope.core.processes import merged
from headscope.core.progress import Progress
from headscope.core.roles import roles_of
from headscope.core.widest import widest
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Router, routed
from headscope.stats.statistics import adjust

#: Pattern entries of all heads that are kept at a time, unless one sentence has more.
_KEPT = 1 << 24
#: Entries of mixed rows that are made at a time: they fit into the processor's cache.
_MIXED = 1 << 18
DEALS = 2000  # Times that labels are dealt at random.


class PairSums(Accumulator):
    """Sums over queries of the divergence between every two heads of one stack, in nats.

    Needs all heads of all layers for the same sentences, so the rows of a few sentences are kept
    until the last layer has been seen; nothing of them stays.
    """

    def __init__(self, loaded: LoadedModel, stack: str) -> None:
        self._sites = [site for site in loaded.sites if site.stack == stack]
        counts = np.cumsum([0, *(site.n_heads for site in self._sites)]).tolist()
        self._first = {site.layer: first for site, first in zip(self._sites, counts, strict=False)}
        self._stack, self.n_heads = stack, int(counts[-1])
        self.sums: Array = np.zeros((self.n_heads, self.n_heads))  # Above the diagonal.
        self.queries, self.sentences = np.zeros((), np.int64), np.zeros((), np.int64)

    def start(self, queries: Tensor) -> None:
        """Say which rows count, (rows, query_pos), before a pass."""
        self._queries = queries
        self._rows: Tensor | None = None

    def observe(self, site: Activations) -> None:
        """Keep the rows of one chunk that count."""
        if site.stack != self._stack:
            return
        if self._rows is None:
            shape = self.n_heads, int(self._queries.sum()), site.pattern.shape[-1]
            self._rows = site.pattern.new_zeros(shape)
        here, before = (self._queries[rows] for rows in (site.rows, slice(0, site.rows.start)))
        start, first = int(before.sum()), self._first[site.layer]
        kept = site.pattern.transpose(0, 1)[:, here]  # (heads, queries, key_pos)
        heads = slice(first + site.heads.start, first + site.heads.stop)
        self._rows[heads, start : start + kept.shape[1]] = kept

    def finish(self, stack: str, layer: int) -> None:
        """Add the divergences once the last layer has been seen, and forget the rows."""
        if stack != self._stack or layer != self._sites[-1].layer or self._rows is None:
            return
        step = max(1, _MIXED // max(1, self.n_heads * self._rows.shape[-1]))
        for start in range(0, self._rows.shape[1], step):
            self.sums += numpy(pair_divergences(self._rows[:, start : start + step]))
        self.queries += self._rows.shape[1]
        self.sentences += int(self._queries.any(dim=1).sum())
        self._rows = None

    def means(self) -> Array:
        """Mean divergence of every two heads, (n_heads, n_heads): symmetric, 0 on the diagonal."""
        above = self.sums / max(1, int(self.queries))
        return np.asarray(above + above.T)


def pair_divergences(rows: Tensor) -> Tensor:
    """Sum over queries of JS(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2.

    ``rows`` is (n_heads, queries, key_pos); returns (n_heads, n_heads), filled above the diagonal.
    """
    rows = widest(rows)
    entropy = row_entropy(rows)  # (n_heads, queries)
    sums = entropy.new_zeros(len(rows), len(rows))
    for head in range(len(rows) - 1):
        mixed = row_entropy((rows[head] + rows[head + 1 :]) / 2)
        gap = mixed - (entropy[head] + entropy[head + 1 :]) / 2
        sums[head, head + 1 :] = gap.clamp(min=0).sum(dim=1)
    return sums


def measure(
    loaded: LoadedModel, readings: Sequence[Reading], progress: Progress, name: str
) -> dict[str, PairSums]:
    """Read the sentences of every stack; returns all processes' sums by stack."""
    found = {}
    for reading in readings:
        blank = {s: functools.partial(PairSums, loaded, s) for s in reading.stacks}
        sums = {stack: make() for stack, make in blank.items()}
        sites = [site for site in loaded.sites if site.stack in sums]
        others = [site for site in loaded.sites if site.stack not in sums]
        router = Router(sites, list(sums.values()), others=others)
        with routed(loaded.model, router):
            for seen, on_host in reading.batches.after(0):
                batch = on_host.to(loaded.device)
                asked = dict.fromkeys(sums, batch.content)
                if batch.source is not None and "cross" in asked:
                    asked["cross"] = batch.source.predicts_content
                keys = max(part.shape[1] for part in batch.inputs)
                most = max(part.n_heads for part in sums.values()) * keys**2
                step = max(1, _KEPT // max(1, most))
                for first in range(0, batch.size[0], step):
                    rows = slice(first, first + step)
                    for stack, part in sums.items():
                        part.start(asked[stack][rows])
                    inputs = (x[rows] for x in batch.inputs)
                    router.run(functools.partial(loaded.forward, *inputs))
                progress(name, seen, reading.batches.size)
        for stack, part in sums.items():
            found[stack] = merged(part, blank[stack], f"distances of heads, {stack}")
    return found


def places_of(distances: Array) -> tuple[Array, float | None]:
    """Put heads on a plane so that squared distances are near to mean divergences.

    The square root of JS is a distance between points of a Hilbert space (Fuglede & Topsoe 2004),
    and so is that of a mean: classical scaling loses nothing but the further dimensions. Returns
    (n_heads, 2), and the share of the heads' spread that the plane holds.
    """
    n = len(distances)
    centred = distances - distances.mean(0) - distances.mean(1)[:, None] + distances.mean()
    values, vectors = np.linalg.eigh(-centred / 2)
    values, vectors = values[::-1].clip(min=0), vectors[:, ::-1]
    places = np.zeros((n, 2))
    places[:, : min(n, 2)] = (vectors * np.sqrt(values))[:, :2]
    # An axis has no direction of its own: its farthest head is on the positive side.
    far = np.abs(places).argmax(axis=0)
    places *= np.where(places[far, [0, 1]] < 0, -1, 1)
    total = float(values.sum())
    return places, float(values[:2].sum()) / total if total > 0 else None


def nearness(
    distances: Array, layers: Array, groups: dict[str, Array], seed: int
) -> tuple[Nearness, ...]:
    """Hold the mean distance inside groups of heads against labels dealt at random.

    ``groups`` has for each name which heads belong together: (n_groups, n_heads), bool. Labels are
    dealt among all heads, and among the heads of each layer: layers alone could bring heads
    together. ``layer``, the group of a layer's heads, has no such second control.
    """
    n, rng = len(distances), np.random.default_rng(seed)
    anywhere = rng.random((DEALS, n)).argsort(axis=1)
    order = np.argsort(layers, kind="stable")
    inside = np.empty_like(anywhere)
    inside[:, order] = np.argsort(layers + rng.random((DEALS, n)), axis=1)
    rows = []
    for name, members in groups.items():
        pairs = float((members.sum(1) * (members.sum(1) - 1)).sum())  # each of them twice
        heads = int(members.any(0).sum())
        if pairs == 0 or (len(members) == 1 and heads == n):
            continue

        def means(dealt: Array, members: Array = members, pairs: float = pairs) -> Array:
            total = np.zeros(len(dealt))
            for own in members:
                chosen = own[dealt].astype(float)  # (deals, n_heads)
                total += ((chosen @ distances) * chosen).sum(1)
            return total / pairs

        own = float(means(np.arange(n)[None])[0])
        everywhere = means(anywhere)
        row = Nearness(
            name, heads, int(pairs) // 2, own, float(everywhere.mean()), _p(own, everywhere)
        )
        if name != "layer":
            within = means(inside)
            row = replace(row, in_layers=float(within.mean()), in_layers_p=_p(own, within))
        rows.append(row)
    adjusted = adjust(np.array([row.p for row in rows]))
    layered = np.array([row.in_layers_p is not None for row in rows], dtype=bool)
    second = adjust(
        np.array([1.0 if r.in_layers_p is None else r.in_layers_p for r in rows]), layered
    )
    return tuple(
        replace(
            row,
            p_adjusted=float(adjusted[i]),
            in_layers_p_adjusted=float(second[i]) if layered[i] else None,
        )
        for i, row in enumerate(rows)
    )


def _p(own: float, dealt: Array) -> float:
    """Return the share of deals that bring heads as near, the labels as they are counted as one."""
    return float((1 + (dealt <= own + 1e-12).sum()) / (1 + len(dealt)))


def groups_of(heads: Sequence[HeadResult]) -> dict[str, Array]:
    """Say which heads of one stack belong together: by primary role, by layer, by each role."""

    def same(names: Sequence[object]) -> Array:
        kinds = [kind for kind in dict.fromkeys(names) if kind != "none"]
        return np.array([[name == kind for name in names] for kind in kinds], dtype=bool)

    groups = {"primary": same([head.primary for head in heads])}
    groups["layer"] = same([head.layer for head in heads])
    for role in roles_of(heads[0].stack):
        groups[role.key] = np.array([[role.key in head.roles for head in heads]], dtype=bool)
    return {name: members for name, members in groups.items() if members.size}


def with_distances(
    result: ClassifyResult,
    loaded: LoadedModel,
    twin: LoadedModel | None,
    readings: Sequence[Reading],
    seed: int,
    progress: Progress,
) -> ClassifyResult:
    """Add the distances of the pattern; ``twin`` is the architecture with random weights."""
    found = measure(loaded, readings, progress, "distances")
    random = measure(twin, readings, progress, "distances, control") if twin is not None else {}
    parts = []
    for stack in result.stacks:
        heads = [head for head in result.heads if head.stack == stack]
        sums = found[stack]
        if len(heads) < 2 or not sums.queries:
            continue
        distances = sums.means()
        places, held = places_of(distances)
        layers = np.array([head.layer for head in heads])
        parts.append(
            HeadDistances(
                stack=stack,
                sentences=int(sums.sentences),
                queries=int(sums.queries),
                heads=tuple(head.name for head in heads),
                mean=_mean(distances),
                random_weights=_mean(random[stack].means()) if stack in random else None,
                nearness=nearness(distances, layers, groups_of(heads), seed),
                plane=held,
                places=tuple((float(x), float(y)) for x, y in places),
                distances=tuple(tuple(row) for row in distances.round(6).tolist()),
            )
        )
    return replace(result, distances=tuple(parts))


def _mean(distances: Array) -> float:
    n = len(distances)
    return float(distances.sum() / (n * (n - 1)))
