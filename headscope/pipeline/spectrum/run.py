"""``headscope spectrum``: the singular values of every head's softmax matrix, in one pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headscope.core.errors import HeadscopeError, InputError
from headscope.data.examples import Examples, as_pairs, may_be_pairs
from headscope.data.packing import Windows, check_length, pack, pack_pairs
from headscope.data.plain import PlainText, as_plain
from headscope.measures.classify.rows import OFFSETS
from headscope.measures.spectrum.shares import ControlCurves, MatrixPool, Spectrum, control_curves
from headscope.measures.statistics import finite
from headscope.models.loaded import LoadedModel
from headscope.pipeline.spectrum.efficient import measure_efficient
from headscope.pipeline.spectrum.streaming import (
    MINIMUM,
    make_plan,
    measure,
    measure_random_weights,
    saved_run,
)
from headscope.pipeline.validate import require_valid
from headscope.results.classify import ClassifyResult
from headscope.results.rank import MeanSem
from headscope.results.serialise import SCHEMA
from headscope.results.spectrum import (
    Roles,
    Sampling,
    SpectrumControl,
    SpectrumHead,
    SpectrumResult,
    Verdict,
)
from headscope.session.known_roles import Classification, classification_of
from headscope.session.opening import Model, need_tokenizer, open_model, public_function
from headscope.session.progress import Progress, silent
from headscope.session.provenance import provenance
from headscope.session.resume import check_resume

#: Tokens of a sequence where nothing else is asked for (fewer if the model takes fewer).
LENGTH = 128
#: Share of the sum above which a head counts as low rank.
LOW_RANK = 0.9


def report_defaults() -> dict[str, Any]:
    """Return what a report sets unless it is told otherwise."""
    return {"control": True}


@public_function
def spectrum(
    model: Model,
    text: str | Path | PlainText | Sequence[str | tuple[str, str]] | None = None,
    *,
    stack: str | None = None,
    length: int | None = None,
    k: int | None = None,
    sequences: int | None = None,
    precision: float | None = None,
    low_rank: float = LOW_RANK,
    roles: Classification | None = None,
    folder: str | Path | None = None,
    efficient: bool = False,
    control: bool = False,
    validate: bool = True,
    seed: int = 0,
    state: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    command: str = "headscope.spectrum",
    **options: Any,
) -> SpectrumResult:
    """Measure how much of each head's softmax matrix its largest singular values hold.

    Parameters
    ----------
    model : str, path, LoadedModel
        ``demo``, a folder, a hub id, or what :func:`headscope.load` returned.
    text : optional
        A text file (one sentence or paragraph a line), lines in memory, or None for the sentences
        of the built-in sample. For an encoder-decoder model also a table (``.tsv``, ``.csv``,
        ``.jsonl``) of sources and targets, or such pairs in memory.
    stack : str, optional
        ``encoder``, ``decoder``, ``cross`` or ``all``; by default every stack that the text
        exercises: all of them with pairs, else the encoder.
    length : int, optional
        Tokens of every sequence, special ones included; 128, or the model's limit if lower.
    k : int, optional
        How many singular values are "the largest"; length // 4 by default.
    sequences : int, optional
        Measure this many sequences, spread evenly over the text (all, if it has fewer).
    precision : float, optional
        Measure sequences in random order until every head's 95% half-width is below this; 0.01
        if neither is given.
    low_rank : float
        Share above which a head counts as low rank.
    roles : path or ClassifyResult, optional
        Classification of the same model: the verdict then names positional heads.
    folder : path, optional
        Where to look for a ``classify.json`` if none is named; one of another model is ignored.
    efficient : bool
        Also measure what could replace full attention.
    control : bool
        Measure the same architecture with random weights on the same windows too: an untrained
        model's patterns are of low rank as well.
    seed : int
        Of the random order, the random logits, the random forms and the random weights.
    validate, state, resume, progress, command, **options
        As :func:`headscope.classify` takes them.

    Returns
    -------
    SpectrumResult
        Frozen raw values; ``.to_frame()`` gives pandas.

    Raises
    ------
    InputError
        For a model, text or option that cannot be used.
    ValidationFailedError
        If our attention does not equal the model's.

    Examples
    --------
    >>> import headscope
    >>> result = headscope.spectrum("demo", length=32, sequences=8)
    >>> result.sequences, result.k, len(result.heads[0].curve)
    (8, 8, 32)
    >>> result.controls["identity"].share_at_k
    0.25
    """
    _check_options(length, k, sequences, precision, low_rank)
    check_resume(state, resume)
    lines = None if may_be_pairs(text) else as_plain(text)  # type: ignore[arg-type]
    loaded = open_model(model, **options)
    need_tokenizer(loaded, "spectrum")
    source = choose_text(loaded, text, lines, stack)
    loaded = source.loaded
    if efficient and loaded.stacks != ("encoder",):
        raise InputError("efficient covers the self-attention of an encoder; choose that stack.")
    if efficient:
        loaded.pooling.check()
    length = min(LENGTH, loaded.max_length) if length is None else length
    check_length(length, loaded.max_length, loaded.name)
    k = length // 4 if k is None else k
    if k > length:
        raise InputError(f"k is {k}, but there are {length} singular values; give fewer.")
    classified = classification_of(loaded, roles, folder)
    validation = require_valid(loaded, validate)
    if loaded.n_heads == 0:
        raise HeadscopeError(f"{loaded.name} has no attention head that headscope recognises.")
    windows = source.windows(length)
    plan = make_plan(windows, k, sequences, precision, seed)
    saved = saved_run(loaded, plan, seed, state, resume)
    tell = progress or silent
    random, cheap = None, None
    with MatrixPool() as pool:
        sums = measure(loaded, plan, pool, saved, tell)
        if control:
            random = measure_random_weights(
                loaded, plan, sums.sequences, low_rank, seed, pool, saved, tell
            )
        if efficient:
            cheap = measure_efficient(loaded, windows, pool, seed, tell)
        curves = control_curves(length, seed)
    controls = {name: _control(found, k) for name, found in curves.items()}
    heads = tuple(_heads(loaded, sums, k, classified))
    return SpectrumResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=command, seed=seed, data=source.data),
        validation=validation,
        length=length,
        sequences=sums.sequences,
        k=k,
        sampling=Sampling(
            mode="fixed" if plan.precision is None else "adaptive",
            windows=len(plan.windows),
            requested=plan.sequences,
            precision=plan.precision,
            reached=None if plan.precision is None else plan.enough(sums),
            half_width=finite(sums.worst_half_width(plan.k)),
            minimum=MINIMUM,
        ),
        verdict=_verdict(heads, controls["random-logits"].share_at_k, low_rank),
        heads=heads,
        controls=controls,
        roles=_roles(classified),
        efficient=cheap,
        random_weights=random,
    )


def _check_options(
    length: int | None, k: int | None, sequences: int | None, precision: float | None, share: float
) -> None:
    if length is not None:
        check_length(length, length, "")
    if sequences is not None and precision is not None:
        raise InputError(
            "Give either sequences or precision: a fixed number is measured whatever its precision."
        )
    if sequences is not None and sequences < 1:
        raise InputError(f"sequences is {sequences}; give 1 or more.")
    if precision is not None and not 0 < precision < 1:
        raise InputError(f"The precision is {precision}; give a half-width between 0 and 1.")
    if not 0 < share < 1:
        raise InputError(f"low_rank is {share}; give a share between 0 and 1.")
    if k is not None and k < 1:
        raise InputError(f"k is {k}; give 1 or more.")


def _heads(
    loaded: LoadedModel, sums: Spectrum, k: int, classified: ClassifyResult | None
) -> Iterator[SpectrumHead]:
    known = {(h.stack, h.layer, h.head): h.primary for h in classified.heads} if classified else {}
    mean, sem = sums.means(), sums.standard_errors()
    mean_sq, sem_sq = sums.means("curve_sq"), sums.standard_errors("curve_sq")
    half, offsets = sums.half_widths(k), sums.means("offsets")
    for site in loaded.sites:
        for place, head in enumerate(site.head_ids):
            at = (site.row, place)
            favourite = int(offsets[at].argmax())
            yield SpectrumHead(
                layer=site.layer,
                head=head,
                stack=site.stack,
                share_at_k=MeanSem(float(mean[at][k - 1]), finite(sem[at][k - 1])),
                share_sq_at_k=MeanSem(float(mean_sq[at][k - 1]), finite(sem_sq[at][k - 1])),
                half_width=finite(half[at]),
                curve=tuple(mean[at].tolist()),
                curve_sq=tuple(mean_sq[at].tolist()),
                curve_sem=None if sums.sequences < 2 else tuple(sem[at].tolist()),
                offset=OFFSETS[favourite],
                offset_mass=float(offsets[at][favourite]),
                role=known.get((site.stack, site.layer, head)),
            )


def _control(found: ControlCurves, k: int) -> SpectrumControl:
    draws = len(found.share)
    curve, curve_sq = found.share.mean(axis=0), found.share_sq.mean(axis=0)
    return SpectrumControl(
        share_at_k=float(curve[k - 1]),
        share_sq_at_k=float(curve_sq[k - 1]),
        curve=tuple(curve.tolist()),
        curve_sq=tuple(curve_sq.tolist()),
        std=float(found.share[:, k - 1].std(ddof=1)) if draws > 1 else None,
        draws=draws,
    )


def _roles(classified: ClassifyResult | None) -> Roles | None:
    if classified is None:
        return None
    offsets = {
        h.name: h.positional.offset
        for h in classified.heads
        if h.positional is not None and "positional" in h.roles
    }
    return Roles(classified.corpus.name, classified.corpus.sha256, offsets)


def _verdict(heads: Sequence[SpectrumHead], random: float, threshold: float) -> Verdict:
    """Sort heads by where the 95% interval of their share lies."""
    low, high, between = list[str](), list[str](), list[str]()
    for head in heads:
        share, half = head.share_at_k.mean, math.inf if head.half_width is None else head.half_width
        side = low if share - half > threshold else high if share + half <= random else between
        side.append(head.name)
    return Verdict(threshold, random, tuple(low), tuple(high), tuple(between))


@dataclass(frozen=True)
class Source:
    """A model, seen in the stacks that are measured, and what it reads."""

    #: A view of one stack, or the whole model.
    loaded: LoadedModel
    #: Text, or pairs of source and target.
    data: PlainText | Examples

    def windows(self, length: int) -> Windows:
        """Cut it into windows of exactly ``length`` tokens."""
        if isinstance(self.data, PlainText):
            return pack(self.data, self.loaded, length)
        start = self.loaded.start_id
        assert start is not None  # only encoder-decoder models read pairs
        return pack_pairs(self.data, self.loaded, length, start)


def choose_text(
    loaded: LoadedModel, text: object, lines: PlainText | None, stack: str | None
) -> Source:
    """Decide which stacks of a model a text can show."""
    if not loaded.encoder_decoder:  # a table is text like any other for such a model
        plain = as_plain(text) if lines is None else lines  # type: ignore[arg-type]
        return Source(loaded.only(stack or "all"), plain)
    if lines is None:
        pairs = as_pairs(text)
        if stack != "encoder":
            return Source(loaded.only(stack or "all"), pairs)
        lines = as_plain(pairs.first)
    if stack not in (None, "encoder"):
        raise InputError(
            f"The {stack} stack of {loaded.name} reads pairs of source and target; give a table of "
            "them (.tsv, .csv, .jsonl) as text."
        )
    return Source(loaded.only("encoder"), lines)
