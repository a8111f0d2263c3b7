"""Where the tokens of a repeated sequence look: at the earlier copy, before it, or after it.

With random tokens a b c d and, as a control, others in the first copy::

    repeated   [CLS] a b c d  a b c d [SEP]
    control    [CLS] e f g h  a b c d [SEP]

the second ``b`` may look at the first ``b`` (``same``), at ``c`` (``after``, as induction heads do)
or at ``a`` (``before``). A score is the mean weight there; its gain is the score less the weight at
the same position of the control.

:class:`Repeats` draws random tokens and runs a model on them, :class:`RepeatScores` has the scores
of one stack's heads.

References
----------
Elhage et al. 2021 (induction heads); Olsson et al. 2022, arXiv:2209.11895 (prefix matching score).
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from headscope.analyses.classify.optional.results import Match, PrefixMatching, PrefixScore
from headscope.core.accumulator import Array, numpy
from headscope.core.activations import Activations
from headscope.core.errors import CorpusError
from headscope.core.widest import widest
from headscope.data.corpus import sample_corpus
from headscope.data.pieces import frame, tokenise
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.products import MOST_PACKED_IN_A_PASS
from headscope.models.run.routing import Router, SiteObserver, routed
from headscope.models.run.side_by_side import side_by_side
from headscope.stats.estimate import Estimate
from headscope.stats.statistics import standard_error, t_half_width, t_p

#: Where a token of the second copy may look: how many tokens further than its earlier occurrence.
PLACES = {"after": 1, "same": 0, "before": -1}
#: Sequences, and random tokens of each copy unless the model's limit allows fewer.
SEQUENCES = 32
COPY = 24
#: The same for stacks that look back only, whose heads are judged by it (Olsson et al. 2022).
CAUSAL_SEQUENCES = 8
CAUSAL_COPY = 50
_BATCH_TOKENS = 512  # Tokens that are run together, about
_SHORTEST = 4  # Fewest tokens of a copy: without the first and the last, two queries are left.


TokenRows = Sequence[tuple[int, ...]]  # Token ids of each sequence


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
        """Add one chunk of a layer's patterns: some sequences, some heads."""
        for index, step in enumerate(PLACES.values()):
            keys = self._queries - self._copy + step
            weight = widest(site.pattern[:, :, self._queries, keys]).mean(-1)  # [sequences, heads]
            self.weights[index, site.row, site.heads, site.examples] = numpy(weight).T


@dataclass(frozen=True)
class Repeats:
    """Sequences whose second half repeats the first, and their controls."""

    repeated: tuple[tuple[int, ...], ...]  # Token ids
    control: tuple[tuple[int, ...], ...]  # The same second half after other tokens
    start: int  # Position of the first random token
    copy: int  # Tokens of a half
    stack: str  # Whose heads read them
    causal: bool  # Whether these look back only
    seed: int

    @classmethod
    def draw(cls, loaded: LoadedModel, seed: int) -> Repeats | None:
        """Draw random tokens; None where there is room for too few.

        No token occurs twice within a copy, nor in a control.
        """
        stack = "encoder" if loaded.encoder_decoder else loaded.stacks[0]
        causal = loaded.only(stack).sites[0].causal
        n_sequences = CAUSAL_SEQUENCES if causal else SEQUENCES
        most = CAUSAL_COPY if causal else COPY
        # Which tokens there are, and how many of them a copy can have.
        tokens = _causal_tokens(loaded, 2 * most) if causal else _sample_tokens(loaded)
        special_tokens = frame(loaded, min(2 * most + 8, loaded.max_length))
        before = special_tokens.before
        after = special_tokens.after
        longest_copy = (loaded.max_length - len(before) - len(after)) // 2
        copy = min(most, longest_copy, len(tokens) // 2)
        if copy < _SHORTEST:
            return None

        # Draw both halves of the control; the repeated sequence has the second half twice.
        rng = np.random.default_rng(seed)
        drawn = [rng.choice(tokens, 2 * copy, replace=False).tolist() for _ in range(n_sequences)]
        repeated = []
        control = []
        for two_halves in drawn:
            second_half = two_halves[copy:]
            repeated.append((*before, *second_half, *second_half, *after))
            control.append((*before, *two_halves, *after))
        return cls(
            tuple(repeated),
            tuple(control),
            start=len(before),
            copy=copy,
            stack=stack,
            causal=causal,
            seed=seed,
        )

    def scores(self, loaded: LoadedModel) -> RepeatScores:
        """Score every head of the stack that reads them, ``loaded`` or a model like it."""
        view = loaded.only(self.stack)
        batches = [*_batches(self.repeated), *_batches(self.control)]
        weights = np.concatenate(list(side_by_side(view, batches, self._reader)), axis=-1)
        n_repeated = len(self.repeated)
        return RepeatScores(weight=weights[..., :n_repeated], control=weights[..., n_repeated:])

    @contextmanager
    def _reader(self, replica: LoadedModel) -> Iterator[Callable[[TokenRows], Array]]:
        """Yield what runs some sequences through a copy of the model.

        It returns their weights, (places, n_layers, n_heads, sequences).
        """
        router = Router(replica.sites, unmeasured_sites=replica.unmeasured_sites)
        with routed(replica.model, router, most_packed=MOST_PACKED_IN_A_PASS):

            def read(sequences: TokenRows) -> Array:
                observer = PrefixWeights(
                    n_layers=replica.n_layers,
                    n_heads=replica.n_heads,
                    sequences=len(sequences),
                    start=self.start,
                    copy=self.copy,
                )
                router.observers = [observer]
                router.run(functools.partial(replica.forward, *replica.pad(sequences)))
                return observer.weights

            yield read

    def described(self, random_weights: dict[str, float]) -> PrefixMatching:
        """Say what the scores were measured on; ``random_weights`` are their largest gains."""
        # How many tokens each query sees, and so what evenly spread attention gives to one. Queries
        # are the second half without its first and its last token.
        queries = np.arange(self.start + self.copy + 1, self.start + 2 * self.copy - 1)
        seen = queries + 1 if self.causal else np.full(len(queries), len(self.repeated[0]))
        return PrefixMatching(
            sequences=len(self.repeated),
            copy=self.copy,
            uniform=float((1 / seen).mean()),
            seed=self.seed,
            stack=self.stack,
            random_weights=random_weights,
        )


def _batches(sequences: TokenRows) -> Iterator[TokenRows]:
    """Cut sequences into batches of about equal size, to run side by side."""
    n_tokens = sum(map(len, sequences))
    n_batches = math.ceil(n_tokens / _BATCH_TOKENS)
    at_once = math.ceil(len(sequences) / n_batches)
    for first in range(0, len(sequences), at_once):
        yield sequences[first : first + at_once]


def _sample_tokens(loaded: LoadedModel) -> list[int]:
    """List the tokens of the built-in sample.

    Tokens that occur in text have trained embeddings, which not every number of a vocabulary has.
    """
    in_sample: set[int] = set()
    for encoding in tokenise(loaded, sample_corpus().lines(), special=False, check=False):
        in_sample.update(encoding.ids)
    return sorted(in_sample - set(loaded.tokenizer.all_special_ids))


def _causal_tokens(loaded: LoadedModel, least: int) -> list[int]:
    """List the tokens of the built-in sample; all of the vocabulary where these are too few.

    That is so for a vocabulary of another language, or one that a test has made up.
    """
    with contextlib.suppress(CorpusError):  # the model has no embedding for some of them
        in_sample = _sample_tokens(loaded)
        if len(in_sample) >= least:
            return in_sample
    n_tokens = min(loaded.vocab_size, len(loaded.tokenizer))
    return sorted(set(range(n_tokens)) - set(loaded.tokenizer.all_special_ids))


@dataclass(frozen=True)
class RepeatScores:
    """Where the heads of one stack look; arrays are (places, n_layers, n_heads, sequences)."""

    weight: Array  # Where the tokens come twice
    control: Array  # At the same places of the controls

    def score(self, head: tuple[int, int]) -> PrefixScore:
        """Return the scores of one head, given as (layer, index among the layer's heads)."""
        matches = {}
        for index, name in enumerate(PLACES):
            weight = self.weight[(index, *head)]
            control = self.control[(index, *head)]
            half_width = t_half_width(self._error(weight - control), np.array(len(weight)))
            matches[name] = Match(
                score=float(weight.mean()),
                control=float(control.mean()),
                gain=Estimate.around(float((weight - control).mean()), float(half_width)),
            )
        return PrefixScore(**matches)

    def p_values(self, name: str) -> Array:
        """Return the p of a gain above 0 at a place, one of PLACES: (n_layers, n_heads)."""
        index = list(PLACES).index(name)
        gain = self.weight[index] - self.control[index]
        return t_p(gain.mean(-1), self._error(gain), 0.0, gain.shape[-1])

    def _error(self, gain: Array) -> Array:
        """Return the standard error of the mean over sequences, the last axis."""
        n = np.array(gain.shape[-1])
        return standard_error(gain.sum(-1), (gain**2).sum(-1), n)
