"""``headscope spectrum``: the singular values of every head's softmax matrix, in one pass."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headscope.analyses.classify.known_roles import classification_of
from headscope.analyses.classify.result import ClassifyResult
from headscope.analyses.classify.rows import OFFSETS
from headscope.analyses.spectrum.efficient import measure_efficient
from headscope.analyses.spectrum.measure import ControlCurves, MatrixPool, Spectrum, control_curves
from headscope.analyses.spectrum.options import SpectrumOptions
from headscope.analyses.spectrum.result import (
    Roles,
    Sampling,
    SpectrumControl,
    SpectrumHead,
    SpectrumResult,
    Verdict,
)
from headscope.analyses.spectrum.streaming import (
    MINIMUM,
    make_plan,
    measure,
    measure_random_weights,
    saved_run,
)
from headscope.core.errors import HeadscopeError, InputError
from headscope.core.serialise import SCHEMA
from headscope.data.corpus import PlainText, as_plain
from headscope.data.examples import Examples, as_pairs, may_be_pairs
from headscope.data.packing import Windows, check_length, pack, pack_pairs
from headscope.models.loaded import LoadedModel
from headscope.session.opening import Model, need_tokenizer, open_model
from headscope.session.provenance import provenance
from headscope.session.resume import check_resume
from headscope.session.validate import require_valid
from headscope.stats.ranks import MeanSem
from headscope.stats.statistics import finite

#: Tokens of a sequence where nothing else is asked for (fewer if the model takes fewer).
LENGTH = 128


def run(model: Model, options: SpectrumOptions) -> SpectrumResult:
    """Measure how much of each head's softmax matrix its largest singular values hold."""
    text, length, seed, low_rank = options.text, options.length, options.seed, options.low_rank
    if length is not None:
        check_length(length, length, "")
    check_resume(options.state, options.resume)
    lines = None if may_be_pairs(text) else as_plain(text)  # type: ignore[arg-type]
    loaded = open_model(model, **options.loading)
    need_tokenizer(loaded, "spectrum")
    source = choose_text(loaded, text, lines, options.stack)
    loaded = source.loaded
    if options.efficient and loaded.stacks != ("encoder",):
        raise InputError("efficient covers the self-attention of an encoder; choose that stack.")
    if options.efficient:
        loaded.pooling.check()
    length = min(LENGTH, loaded.max_length) if length is None else length
    check_length(length, loaded.max_length, loaded.name)
    k = _check_k(options.k, length)
    classified = classification_of(loaded, options.roles, options.folder)
    validation = require_valid(loaded, options.validate)
    if loaded.n_heads == 0:
        raise HeadscopeError(f"{loaded.name} has no attention head that headscope recognises.")
    windows = source.windows(length)
    plan = make_plan(windows, k, options.sequences, options.precision, seed)
    saved = saved_run(loaded, plan, seed, options.state, options.resume)
    random, cheap = None, None
    with MatrixPool() as pool:
        sums = measure(loaded, plan, pool, saved, options.tell)
        if options.control:
            random = measure_random_weights(
                loaded, plan, sums.sequences, low_rank, seed, pool, saved, options.tell
            )
        if options.efficient:
            cheap = measure_efficient(loaded, windows, pool, seed, options.tell)
        curves = control_curves(length, seed)
    controls = {name: _control(found, k) for name, found in curves.items()}
    heads = tuple(_heads(loaded, sums, k, classified))
    return SpectrumResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=options.command, seed=seed, data=source.data),
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


def _check_k(k: int | None, length: int) -> int:
    k = length // 4 if k is None else k
    if k > length:
        raise InputError(f"k is {k}, but there are {length} singular values; give fewer.")
    return k


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

    loaded: LoadedModel  # A view of one stack, or the whole model.
    data: PlainText | Examples  # Text, or pairs of source and target.

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
