"""The sums that one pass over a corpus takes of every stack's heads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.classify.cross import CrossHeads
from headscope.analyses.classify.rows import (
    LONG,
    OFFSETS,
    QueryMeans,
    RowMeasure,
    RowReducer,
    RowSummary,
)
from headscope.analyses.classify.syntactic import Kernel, Syntactic
from headscope.core.accumulator import Array, Keys, numpy, zeros
from headscope.core.widest import widest
from headscope.data.batches import Batch
from headscope.stats.statistics import ratio, ratio_error

_FAR = max(OFFSETS) + 1  # One step beyond the farthest offset that is scored.


class Positional(RowMeasure):
    """Positional heads: how often does a head look at the token a fixed step away?

    For an offset r: ``rate[r]`` = hits / queries over content queries i whose target i + r is a
    content token of the same sentence; a hit when the largest content weight of row i lies at
    i + r. ``mass[r]`` = mean of P[i, i + r] over content queries whose target lies inside the
    sequence, special tokens included as targets. Under a causal mask no query has a target to its
    right (Voita et al. 2019, arXiv:1905.09418, section 5.1; label at 0.90).
    """

    def __init__(self, n_layers: int, n_heads: int) -> None:
        #: (n_layers, n_heads, offsets): Queries whose largest content weight lies at the offset
        self.hits = np.zeros((n_layers, n_heads, len(OFFSETS)), dtype=np.int64)
        #: (n_layers, n_heads, offsets): Sum of the weights at the offset
        self.mass = np.zeros((n_layers, n_heads, len(OFFSETS)))
        #: (offsets,): Queries that can hit, and that have a key there; the same for every head
        self.queries, self.mass_queries = zeros(2, len(OFFSETS), dtype=np.int64)
        #: Sum over content queries of 1 / (content tokens that the query sees)
        self.chance = np.zeros(())
        #: Content queries
        self.content = np.zeros((), dtype=np.int64)

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        self._count_queries(batch)
        position = torch.arange(batch.size[1], device=rows.argmax.device)
        step = rows.argmax - position  # (batch, heads, pos)
        by_head = step.transpose(0, 1)[:, batch.content]  # (heads, content tokens)
        # One bin for each step from -FAR to FAR, what lies beyond in the last ones.
        n_bins = 2 * _FAR + 1
        head = torch.arange(len(by_head), device=step.device)[:, None]
        bins = by_head.clamp(-_FAR, _FAR) + _FAR + head * n_bins
        counts = torch.bincount(bins.flatten(), minlength=len(by_head) * n_bins)
        hits = counts.view(len(by_head), n_bins)[:, [_FAR + r for r in OFFSETS]]
        self.hits += numpy(hits).reshape(self.hits.shape)
        self.mass += numpy(rows.band.sum(dim=0)).reshape(self.mass.shape)

    def _count_queries(self, batch: Batch) -> None:
        content, real = numpy(batch.content), numpy(batch.attention_mask).astype(bool)
        for i, r in enumerate(OFFSETS):
            if batch.causal and r > 0:
                continue
            self.queries[i] += _pairs(content, content, r)
            self.mass_queries[i] += _pairs(content, real, r)
        per_sentence = content.sum(axis=1)
        self.content += per_sentence.sum()
        if batch.causal:
            place = np.arange(1, int(per_sentence.max(initial=0)) + 1)
            self.chance += float(sum((1 / place[:n]).sum() for n in per_sentence))
        else:
            self.chance += float((per_sentence > 0).sum())

    def rates(self) -> Array:
        """Hit rates, (n_layers, n_heads, offsets); NaN where there is no query."""
        return ratio(self.hits, self.queries)

    def masses(self) -> Array:
        """Mean mass, (n_layers, n_heads, offsets); NaN where there is no query."""
        return ratio(self.mass, self.mass_queries)


def _pairs(query: Array, target: Array, r: int) -> int:
    """Count positions i with ``query[i]`` and ``target[i + r]``."""
    n = query.shape[1]
    if abs(r) >= n:
        return 0
    if r > 0:
        return int((query[:, : n - r] & target[:, r:]).sum())
    return int((query[:, -r:] & target[:, : n + r]).sum())


class Profile(QueryMeans, RowMeasure):
    """How sharp a head is, how broad, and how much goes to special tokens and punctuation.

    Under a causal mask every row is held against the keys that it may see: uniform attention, the
    ln n of relative entropies, and earlier copies of a token (Voita et al. 2019, arXiv:1905.09418,
    confidence; Clark et al. 2019, arXiv:1906.04341, section 3).
    """

    #: Fields of a HeadResult; ``duplicate_rate`` is a mean over queries whose token occurs again,
    #: ``relative_entropy`` over those that see two tokens or more.
    quantities = (
        "confidence",
        "entropy",
        "relative_entropy",
        "special_mass",
        "first_special_mass",
        "last_special_mass",
        "punctuation_mass",
        "self_rate",
        "duplicate_rate",
        "long_entropy",
    )
    baselines = ("special_mass", "punctuation_mass", "self_rate", "duplicate_rate")

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        repeated = _same_token(batch)
        queries = self._count_queries(batch, repeated)
        position = torch.arange(batch.size[1], device=rows.argmax.device)
        itself = rows.argmax == position
        ids = batch.input_ids[:, None].expand_as(rows.argmax)
        copy = (ids.gather(2, rows.argmax) == ids) & ~itself & repeated.any(dim=2)[:, None]
        relative, long = rows.relative.unbind(dim=-1)
        # (batch, heads, quantities): each sentence's sum over its content queries
        rates = [(mark & batch.content[:, None]).sum(dim=2) for mark in (itself, copy)]
        parts = (rows.top, rows.entropy, relative, *rows.mass.unbind(dim=-1), *rates)
        sums = torch.stack([*parts, long], dim=-1)
        self.add(..., sums, queries)

    def _count_queries(self, batch: Batch, same: Tensor) -> Tensor:
        """Count queries, (batch, quantities), and what uniform attention would give them."""
        content, visible = batch.content, batch.visible
        own = {
            "relative_entropy": content & (visible >= 2),
            "duplicate_rate": same.any(dim=2),
            "long_entropy": content & (visible >= LONG),
        }
        queries = torch.stack(
            [own.get(name, content).sum(dim=1) for name in self.quantities], dim=1
        )
        self.count(queries, (_expected_causal if batch.causal else _expected)(batch, same))
        self.units += batch.size[0]
        self.long_units += int((queries[:, self.quantities.index("long_entropy")] > 0).sum())
        return queries


def _expected(batch: Batch, same: Tensor) -> tuple[Tensor, ...]:
    """Per sentence: what uniform attention over the whole of it gives, in the order of UNIFORM."""
    content = batch.content.sum(dim=1)
    length = widest(batch.attention_mask.sum(dim=1))
    return (
        content * batch.special.sum(dim=1) / length,
        content * batch.punctuation.sum(dim=1) / length,
        content > 0,
        same.sum(dim=(1, 2)) / content.clamp(min=1),
    )


def _expected_causal(batch: Batch, same: Tensor) -> tuple[Tensor, ...]:
    """By query: what uniform attention over what it sees gives, in the order of UNIFORM."""
    visible = widest(batch.visible.clamp(min=1))
    before = widest(batch.content.cumsum(dim=1).clamp(min=1))
    return (
        batch.content * batch.special.cumsum(dim=1) / visible,
        batch.content * batch.punctuation.cumsum(dim=1) / visible,
        batch.content / before,
        same.sum(dim=2) / before,
    )


def _same_token(batch: Batch) -> Tensor:
    """Whether two different content positions hold the same token: (batch, pos, pos).

    Under a causal mask: whether the token of the second stands before the first.
    """
    ids = batch.input_ids
    same = ids[:, :, None] == ids[:, None, :]
    same &= batch.content[:, :, None] & batch.content[:, None, :]
    same.diagonal(dim1=1, dim2=2).fill_(False)
    return same.tril() if batch.causal else same


class Rare(RowMeasure):
    """Rare-word heads: does a head look at the sentence's least frequent word?

    Word level, over sentences whose rarest word is not among the 500 most frequent. Every word
    except the rarest is a query; a hit when its argmax is a rarest word. Three baselines:
    ``chance``, the rate of a head that picks any other word at random; ``null``, the head's own
    rate had the target been drawn at random from the sentence's words with a letter or digit (its
    exact expectation); and ``uniform``, the rate of evenly spread attention: rare words are long,
    and summing over pieces favours them, so that a head which has learnt nothing scores far above
    chance. All queries of a sentence share its target, so sums are kept by sentence, the unit that
    was sampled (Voita et al. 2019, arXiv:1905.09418, section 5.3).
    """

    def __init__(self, n_layers: int, n_heads: int) -> None:
        places = (n_layers, n_heads)
        #: (n_layers, n_heads): Queries that attend to a rarest word, to one of the two rarest
        self.hits, self.two_hits = zeros(2, *places, dtype=np.int64)
        #: (n_layers, n_heads): Expected hits, had the targets been drawn at random
        self.null_hits = np.zeros(places)
        #: (n_layers, n_heads): Over sentences: of hits^2 and of hits x queries
        self.hits_squared, self.hits_queries = zeros(2, *places, dtype=np.int64)
        #: (2, n_layers, n_heads): Over sentences: of hits x what chance and uniform attention
        #: expect
        self.hits_expected = np.zeros((2, *places))
        #: Sentences that count, their queries, and over sentences: of queries^2
        self.sentences, self.queries, self.queries_squared = zeros(3, dtype=np.int64)
        #: (2,): Over sentences: expected hits of chance and of uniform attention, their squares,
        #: and expected hits x queries
        self.expected, self.expected_squared, self.expected_queries = zeros(3, 2)
        #: Expected queries under that draw
        self.null_queries = np.zeros(())

    def update(self, rows: RowSummary, batch: Batch) -> None:
        """Add one batch."""
        rare = batch.rare
        queries, expected = self._prepare(batch)
        places, n_heads = self.hits.shape, rows.word_argmax.shape[1]
        flat = rows.word_argmax.transpose(1, 2).flatten(1)  # (batch, pos * heads)

        def attended(mark: torch.Tensor) -> torch.Tensor:
            """Whether the attended word is marked: (batch, pos, heads)."""
            return mark.gather(1, flat).view(*mark.shape, n_heads)

        query = rare.query[..., None]
        hits = numpy((attended(rare.rarest) & query).sum(dim=1))  # (batch, heads)
        self.hits += hits.sum(axis=0).reshape(places)
        self.hits_squared += (hits**2).sum(axis=0).reshape(places)
        self.hits_queries += (queries @ hits).reshape(places)
        self.hits_expected += (expected @ hits).reshape(2, *places)
        two_hits = (attended(rare.two_rarest) & query).sum(dim=(0, 1))
        self.two_hits += numpy(two_hits).reshape(places)
        null = attended(rare.candidate) * rare.null_weight[..., None]
        self.null_hits += numpy(null.sum(dim=(0, 1))).reshape(places)

    def _prepare(self, batch: Batch) -> tuple[Array, Array]:
        """Count a batch's queries and what the baselines would hit of them: by sentence."""
        rare = batch.rare
        queries = numpy(rare.query.sum(dim=1))  # (batch,)
        expected = np.stack([numpy(rare.chance), numpy(rare.uniform.sum(dim=1))])
        self.sentences += (queries > 0).sum()
        self.queries += queries.sum()
        self.queries_squared += (queries**2).sum()
        self.expected += expected.sum(axis=1)
        self.expected_squared += (expected**2).sum(axis=1)
        self.expected_queries += expected @ queries
        self.null_queries += rare.null_queries
        return queries, expected

    def rate_errors(self) -> Array:
        """Standard errors of hits / queries by sentence, (n_layers, n_heads)."""
        return self._errors(self.hits, self.hits_squared, self.hits_queries)

    def gain_errors(self) -> Array:
        """Standard errors of (hits - expected) / queries by sentence, (2, n_layers, n_heads).

        Against chance, and against uniform attention.
        """
        expected, squared, with_queries = (
            sums[:, None, None]
            for sums in (self.expected, self.expected_squared, self.expected_queries)
        )
        return self._errors(
            self.hits - expected,
            self.hits_squared - 2 * self.hits_expected + squared,
            self.hits_queries - with_queries,
        )

    def _errors(self, sums: Array, squares: Array, products: Array) -> Array:
        queries = (int(self.queries), int(self.queries_squared))
        return ratio_error(sums, squares, products, *queries, int(self.sentences))


#: Tables of names that belong to sums.
_NAMED = [(part, table) for part in ("syntactic", "swapped") for table in ("relations", "offsets")]


class HeadMeasures:
    """Positional, syntactic, kernel, rare-word and profile sums of every head."""

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.positional = Positional(n_layers, n_heads)
        self.syntactic = Syntactic(n_layers, n_heads)
        #: As ``syntactic``, against other sentences' trees
        self.swapped = Syntactic(n_layers, n_heads, swapped=True)
        self.kernel = Kernel(n_layers, n_heads)
        self.rare = Rare(n_layers, n_heads)
        self.profile = Profile(n_layers, n_heads)

    def reducer(self, stack: str | None = None) -> RowReducer:
        """Return the observer that feeds these sums, from the sites of one stack if it is given."""
        places = self.positional.hits.shape[:2]
        return RowReducer(*places, *self._parts.values(), stack=stack)

    @property
    def _parts(self) -> dict[str, RowMeasure]:
        return {name: part for name, part in vars(self).items() if isinstance(part, RowMeasure)}

    def merge(self, other: HeadMeasures) -> None:
        """Add the sums of another pass over other sentences with the same model."""
        for name, part in self._parts.items():
            part.merge(other._parts[name])

    def state(self) -> dict[str, Array]:
        """Return all sums as named arrays; names of relations and offsets as the bytes of JSON."""
        arrays = {
            f"{name}.{key}": np.array(array, order="C")
            for name, part in self._parts.items()
            for key, array in part.state().items()
        }
        names = {f"{p}.{table}": getattr(self._parts[p], table).names for p, table in _NAMED}
        text = json.dumps(names)
        return arrays | {"names": np.frombuffer(text.encode(), dtype=np.uint8)}

    def load_state(self, arrays: dict[str, Array]) -> None:
        """Go on from what :meth:`state` gave."""
        for name, part in self._parts.items():
            part.load_state({key: arrays[f"{name}.{key}"] for key in part.state()})
        known = json.loads(arrays["names"].tobytes())
        for p, table in _NAMED:
            setattr(self._parts[p], table, Keys(map(tuple, known[f"{p}.{table}"])))


class StackSums:
    """Sums of every stack that a run measures; those of stacks that a pass does not run stay 0."""

    def __init__(self, shapes: Mapping[str, tuple[int, int]]) -> None:
        #: Of self-attention, and of cross-attention
        self.by_stack: dict[str, HeadMeasures | CrossHeads] = {
            stack: CrossHeads(*shape) if stack == "cross" else HeadMeasures(*shape)
            for stack, shape in shapes.items()
        }

    def observers(self, stacks: Sequence[str]) -> list[RowReducer | CrossHeads]:
        """Return what adds the attention of some stacks to these sums."""
        parts = ((stack, self.by_stack[stack]) for stack in stacks)
        return [p if isinstance(p, CrossHeads) else p.reducer(stack) for stack, p in parts]

    def state(self) -> dict[str, Array]:
        """Return all sums as named arrays."""
        return {
            f"{stack}.{name}": array
            for stack, part in self.by_stack.items()
            for name, array in part.state().items()
        }

    def load_state(self, arrays: dict[str, Array]) -> None:
        """Go on from what :meth:`state` gave."""
        for stack, part in self.by_stack.items():
            prefix = f"{stack}."
            mine = ((name, array) for name, array in arrays.items() if name.startswith(prefix))
            part.load_state({name.removeprefix(prefix): array for name, array in mine})

    def merge(self, other: StackSums) -> None:
        """Add the sums of another pass over other sentences with the same model."""
        for stack, part in self.by_stack.items():
            part.merge(other.by_stack[stack])  # type: ignore[arg-type]  # of one stack
