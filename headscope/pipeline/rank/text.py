"""What ``headscope rank`` learns from a text: the layers' input covariances and the patterns."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headscope.data.plain import PlainText
from headscope.measures.rank.covariance import InputCovariance, square_root
from headscope.measures.rank.dimensions import Reading, product_ranks
from headscope.measures.rank.factors import Factors, random_factors, weigh
from headscope.measures.rank.gaussian import average
from headscope.measures.rank.pattern_asymmetry import PatternAsymmetry
from headscope.models.intervene import watch_inputs
from headscope.models.layouts import AttentionInput, AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Router, routed
from headscope.results.rank import DataControl, HeadRank, LayerRank, MatrixRank, MeanSem
from headscope.session.progress import Progress
from headscope.session.texts import check_measured, line_batches


@dataclass(frozen=True)
class OnText:
    """The sums of one pass over a text."""

    text: PlainText
    covariance: InputCovariance
    patterns: PatternAsymmetry
    lines: int
    skipped: int

    @classmethod
    def measure(
        cls, loaded: LoadedModel, text: PlainText, limit: int | None, progress: Progress
    ) -> OnText:
        """Stream the text through the model once."""
        patterns = PatternAsymmetry(loaded.n_layers, loaded.n_heads)
        covariance = InputCovariance(loaded.n_layers, loaded.sites[0].projections.q.in_features)
        n_lines = min(text.n_lines, limit or text.n_lines)
        lines = 0

        def see(site: AttentionSite, inputs: AttentionInput) -> None:
            covariance.update(site.row, inputs.x_q, mask.bool())

        router = Router(loaded.sites, [patterns], others=loaded.others)
        with routed(loaded.model, router), watch_inputs(loaded.sites, see):
            for seen, batch in line_batches(loaded, text, limit):
                ids, mask = loaded.pad(batch)
                patterns.start(mask.bool())
                router.run(functools.partial(loaded.forward, ids, mask))
                lines += len(batch)
                progress("text", seen, n_lines)
        check_measured(text, lines)
        return cls(text, covariance, patterns, lines, n_lines - lines)

    def describe(self) -> dict[str, Any]:
        """Say what was read."""
        return {
            "name": self.text.name,
            "sha256": self.text.sha256,
            "lines": self.lines,
            "skipped": self.skipped,
            "tokens": int(self.covariance.count[0]),
        }

    def extend(
        self,
        heads: tuple[HeadRank, ...],
        layers: tuple[LayerRank, ...],
        factors: Mapping[int, Factors],
        reading: Reading,
        seeds: tuple[int, ...],
    ) -> tuple[tuple[HeadRank, ...], tuple[LayerRank, ...]]:
        """Add the data-aware ranks, their Gaussian controls and the patterns' asymmetries."""
        extra: dict[tuple[int, int], dict[str, Any]] = {}
        new_layers = []
        mean, sem = self.patterns.mean(), self.patterns.sem()
        for item in layers:
            weighed = _Weighed(self.covariance, item.layer, reading)
            alone, together = weighed.ranks(factors[item.layer])
            for index, (head, found) in enumerate(zip(item.heads, alone, strict=True)):
                pattern = _mean_sem(mean[item.layer, index], sem[item.layer, index])
                extra[item.layer, head] = {"qk_data": found, "pattern_asymmetry": pattern}
            draws = [weighed.ranks(random_factors(factors[item.layer], seed)) for seed in seeds]
            control = None
            if alone:
                control = DataControl(
                    heads=average([found for draw, _ in draws for found in draw]),
                    layer=average([whole for _, whole in draws]),
                )
            new_layers.append(dataclasses.replace(item, qk_data=together, qk_data_control=control))
        new_heads = [dataclasses.replace(item, **extra[item.layer, item.head]) for item in heads]
        return tuple(new_heads), tuple(new_layers)


class _Weighed:
    """The data-aware form of one layer."""

    def __init__(self, covariance: InputCovariance, layer: int, reading: Reading) -> None:
        self._root = square_root(covariance.covariance(layer))
        self._mean = covariance.mean(layer)
        self._reading = reading

    def ranks(self, factors: Factors) -> tuple[list[MatrixRank], MatrixRank]:
        """Measure every head, and all of them concatenated."""
        weighed = weigh(factors, self._root, self._mean)
        together = weighed.concatenated()
        alone = product_ranks(weighed.W_Q, weighed.W_K, self._reading)
        return alone, product_ranks(together.W_Q, together.W_K, self._reading)[0]


def _mean_sem(mean: float, sem: float) -> MeanSem | None:
    if not math.isfinite(mean):
        return None
    return MeanSem(float(mean), float(sem) if math.isfinite(sem) else None)
