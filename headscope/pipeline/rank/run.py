"""``headscope rank``: how many dimensions W_Q W_K^T and W_V W_O use, from weights alone."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headscope.core.errors import HeadscopeError, InputError, UnsupportedModelError
from headscope.data.plain import PlainText, open_plain, sample_plain
from headscope.measures.rank.dimensions import Reading, product_ranks
from headscope.measures.rank.factors import Factors, fold_gain, layer_factors, random_factors, weigh
from headscope.measures.rank.gaussian import average, layer_control
from headscope.measures.rank.layer import (
    InputCovariance,
    PatternAsymmetry,
    measure_layer,
    square_root,
)
from headscope.models.blocks import gain_and_shift, preceding_norms
from headscope.models.copies import random_twin
from headscope.models.families import relative_terms, rotary, unread_positions
from headscope.models.intervene import watch_inputs
from headscope.models.layouts import AttentionInput, AttentionSite
from headscope.models.loaded import LoadedModel
from headscope.models.loading import DTYPES
from headscope.models.routing import Router, routed
from headscope.pipeline.rank.shared_projections import check_widths, sweep_widths
from headscope.pipeline.validate import require_valid
from headscope.results.rank import (
    ControlRank,
    DataControl,
    HeadRank,
    LayerRank,
    MatrixRank,
    MeanSem,
    RankResult,
)
from headscope.session.opening import Model, open_model, public_function
from headscope.session.parameters import check_limit
from headscope.session.progress import Progress, silent
from headscope.session.provenance import provenance
from headscope.session.texts import check_measured, line_batches


def report_defaults() -> dict[str, Any]:
    """Return what a report sets unless it is told otherwise."""
    return {"text": sample_plain()}


@public_function
def rank(
    model: Model,
    *,
    stack: str | None = None,
    share: str = "sigma2",
    biases: bool = False,
    fold_layernorm: bool = False,
    rtol: float | None = None,
    control_seeds: int = 5,
    fresh: bool = True,
    text: str | Path | PlainText | None = None,
    share_projections: Sequence[int] = (),
    limit: int | None = None,
    validate: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    command: str = "headscope.rank",
    **options: Any,
) -> RankResult:
    """Measure the ranks of W_Q W_K^T and W_V W_O, of every head and of all heads of a layer.

    Parameters
    ----------
    model : str, path, LoadedModel
        ``demo``, a folder, a hub id, or what :func:`headscope.load` returned.
    stack : str, optional
        ``encoder``, ``decoder``, ``cross`` or ``all``; by default every stack that the model has,
        or the encoder where a text is given.
    share : str
        ``sigma2`` or ``sigma``: of which the dimensions hold 90, 95, 99%.
    biases : bool
        Include b_Q and b_V by augmenting the input with a 1.
    fold_layernorm : bool
        Fold the gain (and shift) of the LayerNorm before each layer into its weights.
    rtol : float, optional
        For the numerical rank; by default max(shape) * eps of the stored dtype.
    control_seeds : int
        Draws of Gaussian factors that the control averages.
    fresh : bool
        Measure the same architecture freshly initialised too.
    text : path, optional
        One sentence a line: adds the data-aware form and the asymmetry of the patterns.
    share_projections : sequence of int
        Widths at which the heads of each layer are made to share projections.
    limit : int, optional
        Use only the first lines of the text.
    seed : int
        Of the controls.
    validate, progress, command, **options
        As :func:`headscope.classify` takes them.

    Returns
    -------
    RankResult
        Frozen raw values; ``.to_frame()`` gives pandas.

    Raises
    ------
    UnsupportedModelError
        If queries and keys are rotated by position: their scores are not x W_Q W_K^T x^T.
    InputError
        For a model, text or option that cannot be used.
    ValidationFailedError
        If our attention does not equal the model's.

    Examples
    --------
    >>> import headscope
    >>> result = headscope.rank("demo")
    >>> result.heads[0].qk.dims["90"] <= 32, result.layers[0].qk.dims["90"] <= 384
    (True, True)
    """
    if share not in ("sigma2", "sigma"):
        raise InputError(f"The share {share!r} is unknown; give sigma2 or sigma.")
    if rtol is not None and not 0 < rtol < 1:
        raise InputError(f"The rtol {rtol} is not between 0 and 1.")
    if control_seeds < 2:
        raise InputError(f"{control_seeds} control seeds tell no spread; give 2 or more.")
    check_limit(limit, "line")
    lines = open_plain(text) if isinstance(text, str | Path) else text
    needs_text = lines is not None or bool(share_projections)
    loaded = open_model(model, need_tokenizer=needs_text, **options)
    if needs_text and loaded.tokenizer is None:
        raise InputError(
            "A text and the fidelity of shared projections need the model's tokenizer; load it "
            "with headscope.load."
        )
    if share_projections:
        loaded.pooling.check()
    loaded = _chosen(loaded, stack, needs_text)
    not_covered = _check_coverage(loaded, validate)
    validation = require_valid(loaded, validate)
    if not loaded.sites:
        raise HeadscopeError(f"{loaded.name} has no attention that headscope recognises.")
    widths = check_widths(loaded, share_projections)

    tell = progress or silent
    names = {loaded.stored_dtype or loaded.dtype, loaded.dtype}
    reading = Reading(share, max(torch.finfo(DTYPES[name]).eps for name in names), rtol)
    factors, folded = _factors(loaded, biases, fold_layernorm)
    heads, layers = _measure(loaded.sites, factors, folded, reading, tell)
    seeds = tuple(range(seed, seed + control_seeds))
    on_text = None
    if lines is not None:
        on_text = OnText.measure(loaded, lines, limit, tell)
        plain = _factors(loaded, biases, False)[0]
        heads, layers = on_text.extend(heads, layers, plain, reading, seeds)
    return RankResult(
        heads=heads,
        layers=layers,
        controls={
            "gaussian": _gaussian(factors.values(), reading, seeds),
            "fresh": _fresh(loaded, factors.values(), biases, reading, seed) if fresh else None,
        },
        settings={
            "share": share,
            "biases": "include" if biases else "exclude",
            "fold_layernorm": fold_layernorm,
            "stored_dtype": loaded.stored_dtype or loaded.dtype,
        },
        validation=validation,
        provenance=provenance(loaded, command=command, seed=seed, data=lines),
        not_covered=not_covered,
        text=on_text.describe() if on_text else None,
        shared=sweep_widths(loaded, widths, lines, limit, seed, tell) if widths else None,
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
