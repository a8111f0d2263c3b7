"""Where the tokens of a repeated sequence look: at the earlier copy, before it, or after it.

With random tokens a b c d and, as a control, others in the first copy::

    repeated   [CLS] a b c d  a b c d [SEP]
    control    [CLS] e f g h  a b c d [SEP]

the second ``b`` may look at the first ``b`` (``same``), at ``c`` (``after``, as induction heads do)
or at ``a`` (``before``). A score is the mean weight there; its gain is the score less the weight at
the same position of the control.

:class:`Repeats` draws random tokens and scores a model on them; :func:`with_prefix_matching` adds
the scores to a result.

References
----------
Elhage et al. 2021 (induction heads); Olsson et al. 2022, arXiv:2209.11895 (prefix matching score).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from headscope.analyses.classify.optional.results import Match, PrefixMatching, PrefixScore
from headscope.analyses.classify.result import ClassifyResult
from headscope.core.accumulator import Array, numpy
from headscope.core.activations import Activations
from headscope.core.heads import head_name
from headscope.core.widest import widest
from headscope.data.corpus import sample_corpus
from headscope.data.pieces import frame, tokenise
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Router, SiteObserver, routed
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import standard_error, t_half_width

#: Where a token of the second copy may look: how many tokens further than its earlier occurrence.
PLACES = {"after": 1, "same": 0, "before": -1}
#: Sequences, and random tokens of each copy unless the model's limit allows fewer.
SEQUENCES = 32
COPY = 24
_SHORTEST = 4  # Fewest tokens of a copy: without the first and the last, two queries are left.


class PrefixWeights(SiteObserver):
    """Mean weight of each head on the three tokens of PLACES, sequence by sequence.

    All sequences have one length: special tokens, a first half, a second half as long, special
    tokens. Queries are the tokens of the second half except its first and last, so that all three
    places are in the first half.
    """

    def __init__(self, n_layers: int, n_heads: int, sequences: int, start: int, copy: int) -> None:
        """``start`` is the position of the first random token, ``copy`` the length of a half."""
        #: (places, n_layers, n_heads, sequences): NaN where a layer has fewer heads
        self.weights: Array = np.full((len(PLACES), n_layers, n_heads, sequences), np.nan)
        self._queries = torch.arange(start + copy + 1, start + 2 * copy - 1)
        self._copy = copy

    def observe(self, site: Activations) -> None:
        """Add one chunk of a layer's patterns: some sequences (``rows``), some heads."""
        for place, step in enumerate(PLACES.values()):
            keys = self._queries - self._copy + step
            weight = widest(site.pattern[:, :, self._queries, keys]).mean(-1)  # [sequences, heads]
            self.weights[place, site.row, site.heads, site.rows] = numpy(weight).T


@dataclass(frozen=True)
class Repeats:
    """Sequences whose second half repeats the first, and their controls."""

    repeated: tuple[tuple[int, ...], ...]  # Token ids
    control: tuple[tuple[int, ...], ...]  # The same second half after other tokens
    start: int  # Position of the first random token
    copy: int  # Tokens of a half

    @classmethod
    def draw(cls, loaded: LoadedModel, seed: int) -> Repeats | None:
        """Draw random tokens of the built-in sample; None where there is room for too few.

        Tokens that occur in text have trained embeddings, which not every number of a vocabulary
        has. No token occurs twice within a copy.
        """
        # Which tokens there are, and how many of them a copy can have.
        special_ids = set(loaded.tokenizer.all_special_ids)
        in_sample: set[int] = set()
        for encoding in tokenise(loaded, sample_corpus().lines(), special=False, check=False):
            in_sample.update(encoding.ids)
        tokens = sorted(in_sample - special_ids)
        special_tokens = frame(loaded, min(2 * COPY + 8, loaded.max_length))
        before = special_tokens.before
        after = special_tokens.after
        longest_copy = (loaded.max_length - len(before) - len(after)) // 2
        copy = min(COPY, longest_copy, len(tokens) // 2)
        if copy < _SHORTEST:
            return None

        # Draw both halves of the control; the repeated sequence has the second half twice.
        rng = np.random.default_rng(seed)
        drawn = [rng.choice(tokens, 2 * copy, replace=False).tolist() for _ in range(SEQUENCES)]
        repeated = []
        control = []
        for two_halves in drawn:
            second_half = two_halves[copy:]
            repeated.append((*before, *second_half, *second_half, *after))
            control.append((*before, *two_halves, *after))
        return cls(tuple(repeated), tuple(control), start=len(before), copy=copy)

    def weights(self, loaded: LoadedModel, sequences: Sequence[tuple[int, ...]]) -> Array:
        """Run sequences as one batch: (places, n_layers, n_heads, sequences)."""
        observer = PrefixWeights(
            n_layers=loaded.n_layers,
            n_heads=loaded.n_heads,
            sequences=len(sequences),
            start=self.start,
            copy=self.copy,
        )
        router = Router(loaded.sites, [observer], unmeasured_sites=loaded.unmeasured_sites)
        with routed(loaded.model, router):
            router.run(functools.partial(loaded.forward, *loaded.pad(sequences)))
        return observer.weights

    def scores(self, loaded: LoadedModel) -> dict[str, PrefixScore]:
        """Score every head of a model, or of one of its stacks, by its name."""
        score = self.weights(loaded, self.repeated)
        control = self.weights(loaded, self.control)
        gain = score - control
        n = np.array(len(self.repeated))
        half_width = t_half_width(standard_error(gain.sum(-1), (gain**2).sum(-1), n), n)
        scores = {}
        for site in loaded.sites:
            for index, head in enumerate(site.head_ids):  # original numbers of the heads left
                matches = {}
                for place, name in enumerate(PLACES):
                    entry = (place, site.row, index)
                    mean_gain = float(gain[entry].mean())
                    matches[name] = Match(
                        score=float(score[entry].mean()),
                        control=float(control[entry].mean()),
                        gain=Estimate.around(mean_gain, float(half_width[entry])),
                    )
                scores[head_name(site.layer, head, site.stack)] = PrefixScore(**matches)
        return scores


def with_prefix_matching(
    result: ClassifyResult,
    loaded: LoadedModel,
    twin: LoadedModel | None,
    stacks: Sequence[str],
    seed: int,
) -> ClassifyResult:
    """Add the scores on repeated random tokens, for the stack that reads sentences.

    ``twin`` is the same architecture with random weights; None without that control.
    """
    # Draw the sequences, if there are enough tokens.
    stack = "encoder" if loaded.encoder_decoder else loaded.stacks[0]
    if stack not in stacks:
        return _not_measured(result, f"only the {stack} reads random tokens")
    repeats = Repeats.draw(loaded, seed)
    if repeats is None:
        return _not_measured(result, "too few tokens")

    # Score the model, and the same architecture with random weights.
    view = loaded.only(stack)
    scores = repeats.scores(view)
    largest_gains = {}
    if twin is not None:
        random = repeats.scores(twin.only(stack)).values()
        for name in PLACES:
            largest_gains[name] = max(float(getattr(score, name).gain) for score in random)

    # How many tokens each query sees, and so what evenly spread attention gives to one. Queries are
    # the second half without its first and its last token.
    queries = np.arange(repeats.start + repeats.copy + 1, repeats.start + 2 * repeats.copy - 1)
    seen = queries + 1  # in a causal model
    if not view.sites[0].causal:
        seen = np.full(len(queries), len(repeats.repeated[0]))
    measured = PrefixMatching(
        sequences=len(repeats.repeated),
        copy=repeats.copy,
        uniform=float((1 / seen).mean()),
        seed=seed,
        stack=stack,
        random_weights=largest_gains,
    )
    heads = (replace(head, prefix=scores.get(head.name)) for head in result.heads)
    return replace(result, heads=tuple(heads), prefix=measured)


def _not_measured(result: ClassifyResult, reason: str) -> ClassifyResult:
    """Say in a result why there are no scores."""
    return replace(result, untestable={**result.untestable, "prefix matching": reason})
