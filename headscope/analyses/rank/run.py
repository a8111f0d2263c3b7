"""``headscope rank``: how many dimensions W_Q W_K^T and W_V W_O use, from weights alone."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headscope.analyses.rank.measure import (
    InputCovariance,
    PatternAsymmetry,
    measure_layer,
    square_root,
)
from headscope.analyses.rank.options import RankOptions
from headscope.analyses.rank.result import ControlRank, DataControl, HeadRank, LayerRank, RankResult
from headscope.analyses.rank.shared_projections import check_widths, sweep_widths
from headscope.core.errors import HeadscopeError, InputError, UnsupportedModelError
from headscope.data.corpus import PlainText, as_plain
from headscope.models.blocks import gain_and_shift, preceding_norms
from headscope.models.copies import random_twin
from headscope.models.families import relative_terms, rotary, unread_positions
from headscope.models.intervene import watch_inputs
from headscope.models.layouts import AttentionSite
from headscope.models.layouts.layout import AttentionInput
from headscope.models.loaded import LoadedModel
from headscope.models.loading import DTYPES
from headscope.models.routing import Router, routed
from headscope.session.opening import Model, open_model
from headscope.session.progress import Progress
from headscope.session.provenance import provenance
from headscope.session.texts import check_measured, line_batches
from headscope.session.validate import require_valid
from headscope.stats.ranks import MatrixRank, MeanSem
from headscope.stats.spectra import (
    Factors,
    Reading,
    average,
    fold_gain,
    layer_control,
    layer_factors,
    product_ranks,
    random_factors,
    weigh,
)


def run(model: Model, options: RankOptions) -> RankResult:
    """Measure the ranks of W_Q W_K^T and W_V W_O, of every head and of all heads of a layer."""
    biases, share, limit, seed = options.biases, options.share, options.limit, options.seed
    text, share_projections = options.text, options.share_projections
    lines = None if text is None else as_plain(text)
    needs_text = lines is not None or bool(share_projections)
    loaded = open_model(model, need_tokenizer=needs_text, **options.loading)
    if needs_text and loaded.tokenizer is None:
        raise InputError(
            "A text and the fidelity of shared projections need the model's tokenizer; load it "
            "with headscope.load."
        )
    if share_projections:
        loaded.pooling.check()
    loaded = _chosen(loaded, options.stack, needs_text)
    not_covered = _check_coverage(loaded, options.validate)
    validation = require_valid(loaded, options.validate)
    if not loaded.sites:
        raise HeadscopeError(f"{loaded.name} has no attention that headscope recognises.")
    widths = check_widths(loaded, share_projections)

    names = {loaded.stored_dtype or loaded.dtype, loaded.dtype}
    eps = max(torch.finfo(DTYPES[name]).eps for name in names)
    reading = Reading(share, eps, options.rtol)
    factors, folded = _factors(loaded, biases, options.fold_layernorm)
    heads, layers = _measure(loaded.sites, factors, folded, reading, options.tell)
    seeds = tuple(range(seed, seed + options.control_seeds))
    on_text = None
    if lines is not None:
        on_text = OnText.measure(loaded, lines, limit, options.tell)
        plain = _factors(loaded, biases, False)[0]
        heads, layers = on_text.extend(heads, layers, plain, reading, seeds)
    fresh = _fresh(loaded, factors.values(), biases, reading, seed) if options.fresh else None
    return RankResult(
        heads=heads,
        layers=layers,
        controls={
            "gaussian": _gaussian(factors.values(), reading, seeds),
            "fresh": fresh,
        },
        settings={
            "share": share,
            "biases": "include" if biases else "exclude",
            "fold_layernorm": options.fold_layernorm,
            "stored_dtype": loaded.stored_dtype or loaded.dtype,
        },
        validation=validation,
        provenance=provenance(loaded, command=options.command, seed=seed, data=lines),
        not_covered=not_covered,
        text=on_text.describe() if on_text else None,
        shared=sweep_widths(loaded, widths, lines, limit, seed, options.tell) if widths else None,
    )


def _chosen(loaded: LoadedModel, stack: str | None, needs_text: bool) -> LoadedModel:
    """Return the view of the stack that is measured."""
    if not loaded.encoder_decoder:
        return loaded.only(stack or "all")
    if needs_text and stack not in (None, "encoder"):
        raise InputError(
            f"A text runs the encoder of {loaded.name} only: leave text and share_projections out, "
            "or choose the stack encoder."
        )
    return loaded.only("encoder" if needs_text else stack or "all")


def _check_coverage(loaded: LoadedModel, validate: bool) -> tuple[str, ...]:
    """Say what W_Q W_K^T leaves out of the scores; refuse where it is not the score at all."""
    config = loaded.model.config
    if rotary(loaded.model):
        raise UnsupportedModelError(
            f"{loaded.name} ({loaded.family}) rotates queries and keys by their positions, so "
            "x W_Q W_K^T x^T is not its score and its rank says nothing about the attention; "
            "choose a model with absolute positions."
        )
    term = relative_terms(config)
    if term is None:
        return ()
    if validate and unread_positions(config):
        raise UnsupportedModelError(
            f"{loaded.name} ({loaded.family}) was trained with {term}, which transformers 5 no "
            "longer computes, so this is not the model that was trained; validate=False measures "
            "W_Q W_K^T all the same."
        )
    return (term,)


def _factors(
    loaded: LoadedModel, biases: bool, fold: bool
) -> tuple[dict[int, Factors], dict[int, bool]]:
    """Factors of every layer; layers that share all weights (ALBERT) share one object."""
    norms = preceding_norms(loaded) if fold else {}
    made: dict[Any, Factors] = {}
    factors, folded = {}, {}
    for site in loaded.sites:
        norm = norms.get(site.row)
        key = (site.projections, norm)
        if key not in made:
            weights = site.weights()
            if norm is not None:
                weights = fold_gain(weights, *gain_and_shift(norm))
            made[key] = layer_factors(weights, biases=biases)
        factors[site.row] = made[key]
        folded[site.row] = norm is not None
    return factors, (folded if fold else {})


def _measure(
    sites: Sequence[AttentionSite],
    factors: dict[int, Factors],
    folded: dict[int, bool],
    reading: Reading,
    progress: Progress,
) -> tuple[tuple[HeadRank, ...], tuple[LayerRank, ...]]:
    heads: list[HeadRank] = []
    layers: list[LayerRank] = []
    known: dict[int, tuple[list[HeadRank], LayerRank]] = {}
    for site in sites:
        mine = factors[site.row]
        if id(mine) not in known:
            known[id(mine)] = measure_layer(site.layer, mine, reading, folded=folded.get(site.row))
        its_heads, whole = known[id(mine)]
        changes: dict[str, Any] = {"layer": site.layer, "stack": site.stack}
        if site.stack == "cross":  # queries and keys lie in different spaces
            changes["asymmetry"] = None
        heads += [
            dataclasses.replace(found, head=name, **changes)
            for found, name in zip(its_heads, site.head_ids, strict=True)
        ]
        layers.append(dataclasses.replace(whole, heads=site.head_ids, **changes))
        progress("model", len(layers), len(sites))
    return tuple(heads), tuple(layers)


def _gaussian(factors: Iterable[Factors], reading: Reading, seeds: tuple[int, ...]) -> ControlRank:
    """Control of i.i.d. Gaussian factors, for each number of heads that layers have."""
    by_size = {item.n_heads: item for item in factors if item.n_heads}
    return ControlRank(
        seeds=seeds,
        geometries=tuple(
            layer_control([random_factors(like, seed) for seed in seeds], reading)
            for _, like in sorted(by_size.items(), reverse=True)
        ),
    )


def _fresh(
    loaded: LoadedModel, factors: Iterable[Factors], biases: bool, reading: Reading, seed: int
) -> ControlRank | None:
    """Control of the architecture as its training starts; None where it cannot be built."""
    try:
        twin = random_twin(loaded, seed)
    except HeadscopeError:
        return None
    drawn = list({id(item): item for item in _factors(twin, biases, False)[0].values()}.values())
    geometries = []
    for n_heads in sorted({item.n_heads for item in factors if item.n_heads}, reverse=True):
        draws = [item.first(n_heads) for item in drawn if item.n_heads >= n_heads]
        if draws:
            geometries.append(layer_control(draws, reading))
    return ControlRank(seeds=(seed,), geometries=tuple(geometries)) if geometries else None


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
