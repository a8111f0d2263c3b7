"""``headscope spectrum``: the singular values of every head's softmax matrix, in one pass."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch

from headscope.analyses.classify.known_roles import classification_of
from headscope.analyses.classify.rows import OFFSETS
from headscope.analyses.spectrum import SpectrumOptions
from headscope.analyses.spectrum.efficient import measure_efficient
from headscope.analyses.spectrum.measure import (
    MatrixPool,
    PatternSpectra,
    Spectrum,
    known_patterns,
)
from headscope.analyses.spectrum.result import (
    RandomDraw,
    RandomWeights,
    Roles,
    Sampling,
    SpectrumHead,
    SpectrumResult,
    Verdict,
)
from headscope.core.accumulator import Array
from headscope.core.errors import HeadscopeError, InputError
from headscope.core.processes import current, of_each, share
from headscope.core.progress import Progress
from headscope.core.serialise import SCHEMA
from headscope.data.corpus import Corpus, as_plain
from headscope.data.packing import LENGTH, Windows, check_length, pack, pack_pairs
from headscope.models.run.loaded import LoadedModel, ends_of
from headscope.models.run.routing import Router, routed
from headscope.models.surgery.copies import random_twin
from headscope.session.opening import Model, need_tokenizer, open_model
from headscope.session.provenance import provenance
from headscope.session.resume import RunState, check_resume, open_state
from headscope.session.texts import corpus_for
from headscope.session.validate import require_valid
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import FEWEST_DRAWS, crossed_mean, finite

PRECISION = 0.01  # Half-width of the adaptive mode where nothing else is asked for.
MINIMUM = 16  # Fewest sequences of the adaptive mode: with fewer, the spread itself is a guess.
_BATCH_TOKENS = 1024  # Tokens of one batch; whether to stop is decided after each.
#: Initialisations that the windows are dealt out to: one alone would have no spread.
INITIALISATIONS = 5


def run(model: Model, options: SpectrumOptions) -> SpectrumResult:
    """Measure how much of each head's softmax matrix its largest singular values hold."""
    text = options.text
    length = options.length
    seed = options.seed
    tell = options.tell
    threshold = options.low_rank
    if length is not None:
        check_length(length, length, "")
    check_resume(options.state, options.resume)
    corpus = as_plain(text)
    loaded = open_model(model, **options.loading)
    need_tokenizer(loaded, "spectrum")
    loaded, data = _choose_stack(loaded, corpus, options.stack)
    data = data.first(options.limit)
    if options.efficient:
        if loaded.stacks != ("encoder",):
            raise InputError(
                "efficient covers the self-attention of an encoder; choose that stack."
            )
        loaded.pooling.check()
    length = min(LENGTH, loaded.max_length) if length is None else length
    check_length(length, loaded.max_length, loaded.name)
    k = length // 4 if options.k is None else options.k
    if k > length:
        raise InputError(f"k is {k}, but there are {length} singular values; give fewer.")
    classified = classification_of(loaded, options.roles, options.folder)
    validation = require_valid(loaded, options.validate)
    if loaded.n_heads == 0:
        raise HeadscopeError(f"{loaded.name} has no attention head that headscope recognises.")
    if data.pairs is None:
        windows = pack(data, loaded, length)
    else:
        ends = ends_of(loaded)
        begin = (ends.start,) if ends.first is None else (ends.start, ends.first)
        windows = pack_pairs(data, loaded, length, begin)
    precision = None
    if options.sequences is None:
        precision = options.precision or PRECISION
    order = windows.shuffled(seed) if precision else windows.spread(options.sequences)
    saved = open_state(
        options.state,
        options.resume,
        {
            "text": windows.sha256,
            **({} if options.limit is None else {"limit": options.limit}),
            "length": length,
            "k": k,
            "sequences": options.sequences,
            "precision": precision,
            "minimum": MINIMUM,
            "batches": _BATCH_TOKENS,
        },
        functools.partial(Spectrum, loaded.n_layers, loaded.n_heads, length),
        loaded,
        seed,
    )
    random = None
    cheap = None
    with MatrixPool() as pool:
        passes = Passes(windows, k, pool, saved, tell)
        sums = passes.measure(loaded, order, precision, "model")
        if options.control:
            random = passes.random_weights(loaded, order[: sums.sequences], seed, threshold)
        if options.efficient:
            cheap = measure_efficient(loaded, windows, pool, seed, tell)
        controls = known_patterns(length, seed, k)

    roles = {(h.stack, h.layer, h.head): h.primary for h in classified.heads} if classified else {}
    mean = sums.means()
    sem = sums.standard_errors()
    offsets = sums.means("offsets")
    mean_sq = sums.means("curve_sq")
    half = sums.half_widths(k)
    half_sq = sums.half_widths(k, "curve_sq")
    heads = []
    for site in loaded.sites:
        for index, head in enumerate(site.head_ids):
            at = (site.row, index)
            favourite = int(offsets[at].argmax())
            heads.append(
                SpectrumHead(
                    layer=site.layer,
                    head=head,
                    stack=site.stack,
                    share_at_k=Estimate.around(float(mean[at][k - 1]), finite(half[at])),
                    share_sq_at_k=Estimate.around(float(mean_sq[at][k - 1]), finite(half_sq[at])),
                    curve=tuple(mean[at].tolist()),
                    curve_sq=tuple(mean_sq[at].tolist()),
                    curve_sem=None if sums.sequences < 2 else tuple(sem[at].tolist()),
                    offset=OFFSETS[favourite],
                    offset_mass=float(offsets[at][favourite]),
                    role=roles.get((site.stack, site.layer, head)),
                )
            )
    # The verdict: where the 95% interval of a head's share lies.
    limit = controls["random-logits"].share_at_k
    low: list[str] = []
    high: list[str] = []
    between: list[str] = []
    for row in heads:
        least, most = row.share_at_k.interval or (-math.inf, math.inf)
        (low if least > threshold else high if most <= limit else between).append(row.name)
    positional = {
        h.name: h.positional.offset
        for h in (classified.heads if classified else ())
        if h.positional is not None and "positional" in h.roles
    }
    return SpectrumResult(
        schema=SCHEMA,
        provenance=provenance(loaded, command=options.command, seed=seed, data=data),
        validation=validation,
        length=length,
        sequences=sums.sequences,
        k=k,
        sampling=Sampling(
            mode="adaptive" if precision else "fixed",
            windows=len(windows),
            requested=options.sequences,
            precision=precision,
            reached=passes.enough(sums, precision) if precision else None,
            half_width=finite(sums.worst_half_width(k)),
        ),
        verdict=Verdict(threshold, limit, tuple(low), tuple(high), tuple(between)),
        heads=tuple(heads),
        controls=controls,
        roles=Roles(classified.corpus.name, positional) if classified else None,
        efficient=cheap,
        random_weights=random,
    )


def _choose_stack(
    loaded: LoadedModel, corpus: Corpus, stack: str | None
) -> tuple[LoadedModel, Corpus]:
    """Return the model seen in the stacks that a text can show, and what it reads."""
    corpus = corpus_for(loaded, corpus)
    if not loaded.encoder_decoder or (corpus.pairs is not None and stack != "encoder"):
        return loaded.only(stack or "all"), corpus
    if stack not in (None, "encoder"):
        raise InputError(
            f"{loaded.name} needs pairs of source and target for the stack {stack}; give a table "
            "of them (.tsv, .csv, .jsonl) as text."
        )
    return loaded.only("encoder"), corpus.sources


@dataclass(frozen=True)
class Passes:
    """Passes over windows of a text: of the model, and of random weights."""

    windows: Windows
    k: int
    pool: MatrixPool
    saved: RunState[Spectrum]
    tell: Progress

    def enough(self, sums: Spectrum, precision: float | None) -> bool:
        """Whether every head's mean is precise enough; never where a number was asked for."""
        if precision is None or sums.sequences < MINIMUM:
            return False
        return sums.worst_half_width(self.k) < precision

    def measure(
        self, loaded: LoadedModel, order: Array, precision: float | None, name: str
    ) -> Spectrum:
        """Stream windows through a model until it is enough; no pattern outlives its layer.

        ``order`` are their numbers; ``name`` is what the pass is saved and shown under.
        """
        windows = self.windows
        total = len(order)
        blank = functools.partial(Spectrum, loaded.n_layers, loaded.n_heads, windows.length)
        # All processes go on from what the first one has saved.
        done, sums = self.saved.load(blank(), name)
        state = {**sums.state(), "done": np.array(done)}
        first, *_ = current().gather(state, f"the state of {name}")
        done = int(first.pop("done"))
        sums.load_state(first)
        observer = PatternSpectra(sums, self.pool, windows.content)
        # The same batches every time; of an interrupted run the first are already in the sums.
        size = max(1, _BATCH_TOKENS // windows.length)
        every = (order[start : start + size] for start in range(0, total, size))
        left = itertools.islice(every, done, None)
        with routed(loaded.model, Router(loaded.sites, [observer], others=loaded.others)) as router:
            # Each process measures one batch at a time, so that all stop where one alone would.
            while not self.enough(sums, precision):
                if not (batches := list(itertools.islice(left, current().size))):
                    break
                observer.sums = mine = blank()
                for batch in share(batches):
                    sides = [
                        torch.from_numpy(ids).to(loaded.device) for ids in windows.inputs(batch)
                    ]
                    inputs = [tensor for ids in sides for tensor in (ids, torch.ones_like(ids))]
                    router.run(functools.partial(loaded.forward, *inputs))
                parts = of_each(mine, blank, f"spectra of {name}")
                for part, _ in zip(parts, batches, strict=False):
                    if not self.enough(sums, precision):
                        sums.merge(part)
                        done += 1
                self.saved.note(name, done, sums)
                expected = total
                if precision is not None and sums.sequences >= MINIMUM:
                    needed = sums.sequences * (sums.worst_half_width(self.k) / precision) ** 2
                    expected = min(total, max(sums.sequences, int(np.ceil(needed))))
                self.tell(name, sums.sequences, expected)
        self.saved.note(name, done, sums, final=True)
        return sums

    def random_weights(
        self, loaded: LoadedModel, order: Array, first_seed: int, threshold: float
    ) -> RandomWeights:
        """Measure fresh initialisations on the windows that the model was measured on.

        Each window goes to one of them, in turn: together they cost one pass.
        """
        seeds = [(first_seed + i) % 2**63 for i in range(min(INITIALISATIONS, len(order)))]
        draws: list[RandomDraw] = []
        curves: list[Array] = []
        squares: list[Array] = []
        for i, seed in enumerate(seeds):
            name = f"random weights {i + 1} of {len(seeds)}"
            sums = self.measure(random_twin(loaded, seed), order[i :: len(seeds)], None, name)
            # (heads, length), of the heads there are.
            curve, square = (sums.means(kind)[sums.count > 0] for kind in ("curve", "curve_sq"))
            share_at_k = curve[:, self.k - 1]
            above = int((share_at_k > threshold).sum())
            draws.append(RandomDraw(seed, sums.sequences, float(share_at_k.mean()), above))
            curves.append(curve.mean(axis=0))
            squares.append(square.mean(axis=0))
        of_share, of_squares = (
            crossed_mean(np.array(rows)[:, None], FEWEST_DRAWS) for rows in (curves, squares)
        )
        return RandomWeights(
            draws=tuple(draws),
            heads=len(curve),
            share_at_k=of_share.estimate(self.k - 1),
            share_sq_at_k=of_squares.estimate(self.k - 1),
            curve=tuple(of_share.mean.tolist()),
            curve_sq=tuple(of_squares.mean.tolist()),
        )
