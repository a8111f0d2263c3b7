"""Two passes over a corpus: maps are fitted on the first half and judged on the second.

:func:`measure` at the end makes them. A :class:`Reader` deals sentences to the halves, and
:func:`_read` runs the model over a half and shows every layer, chunk by chunk, to a function: one
that adds to the sums that maps are fitted from (``LayerSums``), then one that writes down the
errors of the maps (``LayerMaps``).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.flow.clustered import Clustered
from headscope.analyses.flow.read_words import (
    LayerChunk,
    LayerSpaces,
    WordPositions,
    word_positions,
)
from headscope.analyses.flow.recovery import ERRORS, FOLDS, LayerMaps, LayerSums, explained
from headscope.attention import CHUNK_ENTRIES
from headscope.core.accumulator import Array
from headscope.core.activations import Activations
from headscope.core.errors import CorpusError
from headscope.core.memory import release_memory
from headscope.core.progress import Progress
from headscope.data.corpus import Corpus
from headscope.data.sentences import Sentence
from headscope.data.word_pieces import EncodedSentence, encode_words, placed
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.maps import AttentionInput
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Router, SiteObserver, routed
from headscope.models.run.site_hooks import watch_inputs
from headscope.session.texts import counted_batches


@dataclass
class Reader:
    """Reads a corpus for one model, half by half, and counts what it had to leave out.

    An ``EncodedSentence`` is a sentence as the model reads it, its words found again among its
    tokens; ``half`` says which half of the corpus it is of.
    """

    loaded: LoadedModel  # Its tokenizer and its limit say which sentences can be read
    corpus: Corpus
    n_sentences: int  # How many are read of both halves, those that cannot be read included
    spread: bool  # Whether they are spread evenly over the corpus; else the first ones
    progress: Progress
    repeated: int = 0  # Sentences of the second half that stand in the first
    skipped: int = 0  # Sentences that cannot be read
    left_out: int = 0  # Words without a piece
    #: The sentences of the first half as :func:`_lower_words`, numbered in the order of the corpus
    _first_half: dict[tuple[str, ...], int] = field(default_factory=dict)

    @property
    def causal(self) -> bool:
        """Whether a word sees only earlier words."""
        return any(site.causal for site in self.loaded.sites)

    def batches(self, half: int) -> Iterator[tuple[int, list[EncodedSentence]]]:
        """Yield (sentences seen so far, next batch) of one half: 0 first, then 1."""
        self.repeated = 0
        self.skipped = 0
        self.left_out = 0
        encoded = encode_words(self.loaded, placed(self._chosen()))
        return counted_batches(self._of_half(half, sentence) for sentence in encoded)

    def _chosen(self) -> Iterator[Sentence]:
        """Yield the sentences that are read, in the order of the corpus."""
        n = self.n_sentences
        total = self.corpus.n_sentences if self.spread else n
        chosen = {i * total // n for i in range(n)}
        for i, sentence in enumerate(itertools.islice(self.corpus, total)):
            if i in chosen:
                yield sentence

    def _of_half(self, half: int, sentence: EncodedSentence | None) -> EncodedSentence | None:
        """Return the sentence if it is of this half and can be used, else None; count why not.

        A sentence of the second half that repeats one of the first is not used.
        """
        if sentence is None:
            self.skipped += 1
            return None
        self.left_out += sentence.left_out
        if sentence.half != half:
            return None
        words = _lower_words(sentence)
        if half == 0:
            self._first_half.setdefault(words, len(self._first_half))
        elif words in self._first_half:
            self.repeated += 1
            return None
        return sentence

    def folds(self, batch: Sequence[EncodedSentence]) -> Tensor:
        """Return the cross-validation fold of each sentence of a batch of the first half, (batch,).

        They are dealt in the order of the corpus; a sentence that is repeated stays in one fold.
        """
        numbers = [self._first_half[_lower_words(sentence)] for sentence in batch]
        return torch.tensor([number % FOLDS for number in numbers])


def _lower_words(sentence: EncodedSentence) -> tuple[str, ...]:
    """Return a sentence's words in lower case: repeated sentences are those with the same."""
    return tuple(word.lower() for word in sentence.sentence.words)


@dataclass(frozen=True)
class Batch:
    """Sentences of one half, and in the second half what the pass of the model writes down."""

    sentences: list[EncodedSentence]
    words: WordPositions
    #: (batch, 3, targets, 2, heads of all layers): those of :meth:`LayerMaps.errors`, where maps
    #: are judged.
    errors: Tensor


#: Called with the batch, the activations of a chunk (some heads of one layer on some sentences),
#: the numbers of its heads among the heads of all layers, and the states (batch, pos, d_in) that
#: the layer's values are made from.
Visit = Callable[[Batch, Activations, slice, Tensor], None]


class _Observer(SiteObserver):
    """Shows each chunk of a pass to a function, with the states that its layer read.

    A layer's states are seen first (:meth:`see`), then the chunks of its heads (:meth:`observe`).
    """

    batch: Batch  # The one that is run; set before every pass
    _x: Tensor  # (batch, pos, d_in): the states that the present layer read

    def __init__(self, visit: Visit, first_heads: Array) -> None:
        """Make one; ``first_heads`` numbers the first head of each layer among those of all."""
        self._visit = visit
        self._first_heads = first_heads

    def see(self, site: AttentionSite, inputs: AttentionInput) -> None:
        """Keep the states that a layer's values are computed from."""
        self._x = inputs.x_v

    def observe(self, site: Activations) -> None:
        """Show one chunk of a layer; ``site.row`` is the number of the layer."""
        first = int(self._first_heads[site.row])
        heads = slice(first + site.heads.start, first + site.heads.stop)
        self._visit(self.batch, site, heads, self._x)


def _read(
    reader: Reader, loaded: LoadedModel, *, half: int, seed: int, name: str, visit: Visit
) -> Iterator[Batch]:
    """Run a model over one half; yield every batch when all layers have been visited.

    ``seed`` draws a random word for each word; ``name`` is what progress calls the model.
    """
    step = f"{name}, choosing" if half == 0 else f"{name}, measuring"
    random = np.random.default_rng([seed % 2**63, half])  # numpy takes no negative seeds
    head_counts = [site.n_heads for site in loaded.sites]
    n_heads = sum(head_counts)
    observer = _Observer(visit, first_heads=np.cumsum([0, *head_counts]))
    router = Router(
        loaded.sites,
        [observer],
        unmeasured_sites=loaded.unmeasured_sites,
        # A LayerChunk, in float64, is several times as large as the patterns that it is made of.
        chunk_entries=CHUNK_ENTRIES // 4,
    )
    with routed(loaded.model, router), watch_inputs(loaded.sites, observer.see):
        for n_seen, sentences in reader.batches(half):
            words = word_positions(sentences, random, causal=reader.causal, device=loaded.device)
            errors = torch.zeros(len(sentences), *ERRORS, n_heads, dtype=torch.float64)
            observer.batch = Batch(sentences, words, errors)
            ids, mask = loaded.pad([sentence.ids.tolist() for sentence in sentences])
            router.run(functools.partial(loaded.forward, ids, mask))
            yield observer.batch
            release_memory()  # what lies between blocks in use grows with every batch
            reader.progress(step, n_seen, reader.n_sentences)


@dataclass(frozen=True)
class TwoHalves:
    """What the two halves of the corpus gave: the R^2 of every head, and of how many sentences."""

    tokens: int  # Tokens of words that the maps were fitted on
    fitted_on: int  # Sentences of the first half
    judged_on: int  # Sentences of the second half
    r2: dict[str, Clustered]  # On the second half, by name of the R^2: a number for each head


def measure(reader: Reader, loaded: LoadedModel, seed: int, name: str) -> TwoHalves:
    """Run a model over both halves: fit the maps on the first, judge them on the second."""
    # The first half: sums of products
    layer_sums: list[LayerSums] = []
    for site in loaded.sites:  # each layer has different random directions
        layer_seed = int(np.random.default_rng([seed % 2**63, site.row]).integers(2**63))
        layer_sums.append(LayerSums(LayerSpaces.of(site.weights().W_V.detach().cpu(), layer_seed)))

    def add(batch: Batch, activations: Activations, heads: slice, x: Tensor) -> None:
        """Add a chunk to the sums of its layer."""
        sums = layer_sums[activations.row]
        folds = reader.folds(batch.sentences[activations.examples])
        sums.update(LayerChunk(activations, x, batch.words, sums.spaces), folds)

    tokens = 0
    fitted_on = 0
    for batch in _read(reader, loaded, half=0, seed=seed, name=name, visit=add):
        tokens += int(batch.words.content.sum())
        fitted_on += len(batch.sentences)
    if not fitted_on:
        raise CorpusError(
            f"None of the sentences of {reader.corpus.name} that maps are fitted on (every other "
            "one, from the first on) could be read: each is longer than the model's limit, or the "
            "tokenizer makes no piece of its words."
        )

    # The maps of each layer, whose sums are dropped at once
    maps: list[LayerMaps] = []
    while layer_sums:
        maps.append(layer_sums.pop(0).solve())
        release_memory()

    # The second half: errors of the maps
    def judge(batch: Batch, activations: Activations, heads: slice, x: Tensor) -> None:
        """Write the errors of a layer's maps on a chunk into the batch."""
        layer_maps = maps[activations.row]
        chunk = LayerChunk(activations, x, batch.words, layer_maps.spaces)
        batch.errors[activations.examples, ..., heads] = layer_maps.errors(chunk).cpu()

    n_heads = sum(site.n_heads for site in loaded.sites)
    nothing = torch.zeros(0, *ERRORS, n_heads)  # there may be no second half
    judged_batches = _read(reader, loaded, half=1, seed=seed, name=name, visit=judge)
    errors = [nothing, *(batch.errors for batch in judged_batches)]
    maps.clear()
    release_memory()
    judged = torch.cat(errors).numpy()
    return TwoHalves(
        tokens=tokens,
        fitted_on=fitted_on,
        judged_on=len(judged),
        r2=explained(judged),
    )
