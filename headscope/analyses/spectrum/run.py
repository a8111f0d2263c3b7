"""``headscope spectrum``: the singular values of every head's softmax matrix, in one pass.

Here the windows of a text (sequences of exactly n tokens) are chosen, and heads are sorted by what
was measured; ``passes.py`` runs the model over the windows, ``measure.py`` decomposes its patterns,
``efficient.py`` measures what could replace them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from headscope.analyses.classify.known_roles import classification_of
from headscope.analyses.classify.result import ClassifyResult
from headscope.analyses.classify.rows import OFFSETS
from headscope.analyses.spectrum import SpectrumOptions
from headscope.analyses.spectrum.efficient import measure_efficient
from headscope.analyses.spectrum.matrix_pool import MatrixPool
from headscope.analyses.spectrum.measure import Spectrum, known_patterns
from headscope.analyses.spectrum.passes import BATCH_TOKENS, MINIMUM, Passes
from headscope.analyses.spectrum.result import (
    Roles,
    Sampling,
    SpectrumHead,
    SpectrumResult,
    Verdict,
)
from headscope.core.errors import HeadscopeError, InputError
from headscope.core.serialise import SCHEMA
from headscope.data.corpus import Corpus, as_plain
from headscope.data.packing import LENGTH, Windows, check_length, pack, pack_pairs
from headscope.models.run.loaded import LoadedModel, ends_of
from headscope.session.opening import Model, need_tokenizer, open_model
from headscope.session.provenance import provenance
from headscope.session.resume import RunState, check_resume, open_state
from headscope.session.texts import corpus_for
from headscope.session.validate import require_valid
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import finite

#: Half-width of the 95% intervals at which sampling stops, where no other and no number of
#: sequences is asked for.
PRECISION = 0.01


def run(model: Model, options: SpectrumOptions) -> SpectrumResult:
    """Measure how much of each head's softmax matrix its largest singular values hold."""
    seed = options.seed
    if options.length is not None:
        check_length(options.length, options.length, "")
    check_resume(options.state, options.resume)
    text = as_plain(options.text)

    # Open the model, and choose what is measured.
    loaded = open_model(model, **options.loading)
    need_tokenizer(loaded, "spectrum")
    loaded, data = _choose_stack(loaded, text, options.stack)
    data = data.first(options.limit)
    if options.efficient:
        _check_efficient(loaded)
    length, k = _length_and_k(loaded, options)
    classified = classification_of(loaded, options.roles, options.folder)

    # Prove that our attention equals the model's.
    validation = require_valid(loaded, options.validate)
    if loaded.n_heads == 0:
        raise HeadscopeError(f"{loaded.name} has no attention head that headscope recognises.")

    # Choose the windows: a fixed number, spread evenly over the text, or in random order until the
    # shares are precise enough.
    windows = _windows(loaded, data, length)
    if options.sequences is None:
        precision = options.precision or PRECISION
        order = windows.shuffled(seed)
    else:
        precision = None
        order = windows.spread(options.sequences)

    # Measure the model, then random weights and the cheap forms where they are asked for.
    saved = _open_state(loaded, options, windows, k, precision)
    random = None
    efficient = None
    with MatrixPool() as pool:
        passes = Passes(windows, k, pool, saved, options.tell)
        sums = passes.measure(loaded, order, precision, "model")
        if options.control:
            random = passes.random_weights(loaded, order[: sums.sequences], seed, options.low_rank)
        if options.efficient:
            efficient = measure_efficient(loaded, windows, pool, seed, options.tell)
        causal = all(site.causal for site in loaded.sites)
        controls = known_patterns(length, seed, k, causal=causal)

    # The result.
    heads = _heads(loaded, sums, k, classified)
    return SpectrumResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=options.command, seed=seed, data=data),
        validation=validation,
        length=length,
        sequences=sums.sequences,
        k=k,
        sampling=Sampling(
            mode="fixed" if precision is None else "adaptive",
            windows=len(windows),
            requested=options.sequences,
            precision=precision,
            reached=None if precision is None else passes.enough(sums, precision),
            half_width=finite(sums.worst_half_width(k)),
        ),
        verdict=_verdict(heads, options.low_rank, controls["random-logits"].share_at_k),
        heads=heads,
        controls=controls,
        roles=None if classified is None else _roles(classified),
        efficient=efficient,
        random_weights=random,
    )


# --- what is read ---------------------------------------------------------------------------------


def _choose_stack(
    loaded: LoadedModel, corpus: Corpus, stack: str | None
) -> tuple[LoadedModel, Corpus]:
    """Return the model with the stacks to be measured alone, and what these read.

    A stack is ``encoder``, ``decoder`` or ``cross``. Without pairs of source and target only the
    encoder of an encoder-decoder has something to read.
    """
    corpus = corpus_for(loaded, corpus)
    reads_everything = not loaded.encoder_decoder
    decoder_has_targets = corpus.pairs is not None and stack != "encoder"
    if reads_everything or decoder_has_targets:
        return loaded.only(stack or "all"), corpus
    if stack not in (None, "encoder"):
        raise InputError(
            f"{loaded.name} needs pairs of source and target for the stack {stack}; give a table "
            "of them (.tsv, .csv, .jsonl) as text."
        )
    return loaded.only("encoder"), corpus.sources


def _check_efficient(loaded: LoadedModel) -> None:
    """Refuse a stack, or a pooling, that cheap forms of attention cannot be measured in."""
    if loaded.stacks != ("encoder",):
        raise InputError("efficient covers the self-attention of an encoder; choose that stack.")
    loaded.pooling.check()


def _length_and_k(loaded: LoadedModel, options: SpectrumOptions) -> tuple[int, int]:
    """Return the tokens of a sequence, and how many singular values are summed."""
    length = min(LENGTH, loaded.max_length) if options.length is None else options.length
    check_length(length, loaded.max_length, loaded.name)
    k = length // 4 if options.k is None else options.k
    if k > length:
        raise InputError(f"k is {k}, but there are {length} singular values; give fewer.")
    return length, k


def _windows(loaded: LoadedModel, data: Corpus, length: int) -> Windows:
    """Cut the text, or its pairs of source and target, into sequences of one length."""
    if data.pairs is None:
        return pack(data, loaded, length)
    # A decoder reads a start token before the target, and in some models a language code.
    ends = ends_of(loaded)
    before_target: tuple[int, ...] = (ends.start,)
    if ends.first is not None:
        before_target = (ends.start, ends.first)
    return pack_pairs(data, loaded, length, before_target)


def _open_state(
    loaded: LoadedModel,
    options: SpectrumOptions,
    windows: Windows,
    k: int,
    precision: float | None,
) -> RunState[Spectrum]:
    """Open the sums of an interrupted run with the same settings, or begin new ones."""
    settings: dict[str, object] = {"text": windows.sha256}
    if options.limit is not None:
        settings["limit"] = options.limit
    settings |= {
        "length": windows.length,
        "k": k,
        "sequences": options.sequences,
        "precision": precision,
        "minimum": MINIMUM,
        "batches": BATCH_TOKENS,
    }
    new_sums = functools.partial(Spectrum, loaded.n_layers, loaded.n_heads, windows.length)
    return open_state(options.state, options.resume, settings, new_sums, loaded, options.seed)


# --- what is said of heads ------------------------------------------------------------------------


def _heads(
    loaded: LoadedModel, sums: Spectrum, k: int, classified: ClassifyResult | None
) -> tuple[SpectrumHead, ...]:
    """Return the shares and curves of every head, and the offset that it looks at most.

    Arrays in ``sums`` are by the layer's ``row`` (its place among all measured layers) and the
    index of the head. That is not the head's number where heads have been removed: ``head_ids``
    [0, 2, 3] are at 0, 1, 2.
    """
    roles: dict[tuple[str, int, int], str] = {}
    if classified is not None:
        roles = {(head.stack, head.layer, head.head): head.primary for head in classified.heads}
    means = sums.means()
    means_sq = sums.means("curve_sq")
    standard_errors = sums.standard_errors()
    half_widths = sums.half_widths(k)
    half_widths_sq = sums.half_widths(k, "curve_sq")
    offsets = sums.means("offsets")
    heads = []
    for site in loaded.sites:
        for index, head in enumerate(site.head_ids):
            position = (site.row, index)
            curve = means[position]
            curve_sq = means_sq[position]
            favourite = int(offsets[position].argmax())
            curve_sem = None  # of a single sequence there is none
            if sums.sequences >= 2:
                curve_sem = tuple(standard_errors[position].tolist())
            heads.append(
                SpectrumHead(
                    layer=site.layer,
                    head=head,
                    stack=site.stack,
                    share_at_k=Estimate.around(float(curve[k - 1]), finite(half_widths[position])),
                    share_sq_at_k=Estimate.around(
                        float(curve_sq[k - 1]), finite(half_widths_sq[position])
                    ),
                    curve=tuple(curve.tolist()),
                    curve_sq=tuple(curve_sq.tolist()),
                    curve_sem=curve_sem,
                    offset=OFFSETS[favourite],
                    offset_mass=float(offsets[position][favourite]),
                    role=roles.get((site.stack, site.layer, head)),
                )
            )
    return tuple(heads)


def _verdict(heads: Sequence[SpectrumHead], threshold: float, random: float) -> Verdict:
    """Sort heads by where the 95% interval of their share lies.

    Low rank: all of it above ``threshold``. Not low rank: none of it above ``random``, the share of
    random scores. In between: all others, and heads without an interval.
    """
    low_rank: list[str] = []
    not_low_rank: list[str] = []
    between: list[str] = []
    for head in heads:
        interval = head.share_at_k.interval
        low, high = (-math.inf, math.inf) if interval is None else interval
        if low > threshold:
            low_rank.append(head.name)
        elif high <= random:
            not_low_rank.append(head.name)
        else:
            between.append(head.name)
    return Verdict(threshold, random, tuple(low_rank), tuple(not_low_rank), tuple(between))


def _roles(classified: ClassifyResult) -> Roles:
    """Return the offset of every positional head, and what heads were classified on."""
    positional = {
        head.name: head.positional.offset
        for head in classified.heads
        if head.positional is not None and "positional" in head.roles
    }
    return Roles(classified.corpus.name, positional)
