"""What the stacks of a model read of a corpus, as batches: sentences, or sources and targets.

:func:`stacks_for` chooses the stacks; :class:`Batches` are read anew in each pass, and the
functions below it make those of sentences, of pairs, and of the control with swapped sources.

The corpus is read in *windows* of 2,048 sentences (or pairs); within a window they are
sorted by length and cut into padded batches. Where several processes share a run, each encodes some
of the windows. A sentence comes as ``Placed`` (with its half of the corpus, and another sentence as
its control) and becomes an ``EncodedSentence`` (its tokens, and which of them are which word).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic

import numpy as np

from headscope.core.errors import HeadscopeError, InputError
from headscope.core.processes import current
from headscope.data.batches import Batch, Item, collate, collate_pairs
from headscope.data.corpus import Corpus, Pair
from headscope.data.cross_pairs import check_characters, collate_labelled, encode_labelled
from headscope.data.frequencies import Frequencies
from headscope.data.token_rows import Ends, PairRow, encode_pairs, with_swapped_sources
from headscope.data.word_pieces import EncodedSentence, IntArray, Placed, encode_words, placed
from headscope.models.run.loaded import LoadedModel, ends_of
from headscope.session.texts import Raw, process_batches

#: A corpus of at most so many sentences is kept in memory as padded batches, about 3 kB each.
KEPT_SENTENCES = 4096
#: Sentences that are read a second time with another first token, in stacks that look back only
REPLACED = 24


def stacks_for(loaded: LoadedModel, stack: str | None, *, pairs: bool) -> tuple[str, ...]:
    """Return the stacks that are measured: by default all that the corpus exercises.

    ``loaded`` is a model, or a view of one of its stacks (``loaded.only("decoder")``), which is
    then the default. ``stack`` is what was asked for: ``encoder``, ``decoder``, ``cross`` or
    ``all``. ``pairs`` says whether the corpus has sources and targets.
    """
    full_model = loaded.with_all_stacks
    is_view = loaded.view_of is not None
    if not full_model.sites:
        raise HeadscopeError(f"{loaded.name} has no attention that headscope recognises.")
    if stack is not None:
        chosen = full_model.only(stack).stacks
    elif not is_view and full_model.encoder_decoder and not pairs:
        chosen = ("encoder",)  # sentences are no targets for the other stacks to read
    else:
        chosen = loaded.stacks
    if full_model.encoder_decoder and not pairs and chosen != ("encoder",):
        raise InputError(
            f"The decoder and the cross-attention of {loaded.name} read pairs of source and "
            "target, and the corpus has sentences: give a table of pairs (.tsv, .csv or .jsonl), "
            "or choose the stack encoder."
        )
    return chosen


@dataclass
class Batches(Generic[Raw, Item]):
    """The batches of a corpus that this process has, the same ones in every pass.

    A small corpus is read, encoded and padded only once; a larger one is read again in each pass.
    ``Raw`` is a sentence or pair as it is read, ``Item`` the same in tokens.
    """

    n_items: int  # Sentences or pairs of the corpus, in all processes
    read: Callable[[], Iterable[Raw]]  # Starts a new pass.
    #: Encodes the items of a window; None for one that is too long. The second argument, whether to
    #: check that the tokenizer knows such texts, is True for the first window of a pass.
    encode: Callable[[Sequence[Raw], bool], Iterable[Item | None]]
    collate: Callable[[Sequence[Item]], Batch]  # Pads items to one batch
    _cached: list[tuple[int, Batch]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Return how many of the ``n_items`` this process has: about an equal share of all."""
        n_processes = current().size
        return max(1, round(self.n_items / n_processes))

    def after(self, done: int) -> Iterator[tuple[int, Batch]]:
        """Yield (items seen so far, batch) of one pass, without the first ``done`` batches.

        A run that goes on where an earlier one was interrupted has these batches in its saved sums.
        """
        if self._cached:
            yield from self._cached[done:]
            return
        keep = done == 0 and self.n_items <= KEPT_SENTENCES
        collated = []
        encoded_batches = process_batches(self.read(), self.n_items, self.encode)
        for index, (n_seen, items) in enumerate(encoded_batches):
            if index < done:
                continue
            # n_seen need not be whole: a batch with a tenth of the tokens of its window counts as a
            # tenth of the window's items.
            numbered_batch = (min(round(n_seen), self.size), self.collate(items))
            if keep:
                collated.append(numbered_batch)
            yield numbered_batch
        self._cached = collated


def sentence_batches(
    loaded: LoadedModel, stack: str, corpus: Corpus, frequencies: Frequencies, limit: int | None
) -> Batches[Placed, EncodedSentence]:
    """Return the first ``limit`` sentences (None: all) as a stack reads them, with their words."""
    n_sentences = min(corpus.n_sentences, limit or corpus.n_sentences)

    def encode(sentences: Iterable[Placed], check: bool) -> list[EncodedSentence | None]:
        encoded = list(encode_words(loaded, sentences, frequencies, check=check))
        if corpus.characters and check:
            check_characters(loaded, (sentence for sentence in encoded if sentence is not None))
        return encoded

    return Batches(
        n_sentences,
        read=lambda: placed(itertools.islice(iter(corpus), n_sentences)),
        encode=encode,
        # A query of a decoder sees no later key, and so not every word that it depends on.
        collate=partial(collate, pad_id=loaded.pad_id, causal=stack != "encoder"),
    )


def pair_batches(loaded: LoadedModel, corpus: Corpus, n_pairs: int) -> Batches[Any, Any]:
    """Return the first sources and targets, with a user's labelled pairs if there are some.

    ``n_pairs`` counts sources with their targets; a *labelled* pair is a word of the source and a
    word of the target that a user says belong together.
    """
    special = ends_of(loaded)  # the tokens with which targets start and end
    labelled = corpus.labelled
    if labelled is not None:
        return Batches(
            n_pairs,
            read=lambda: itertools.islice(labelled(), n_pairs),
            encode=lambda texts, check: encode_labelled(loaded, texts, special, check=check),
            collate=partial(collate_labelled, pad_id=loaded.pad_id),
        )
    return Batches(
        n_pairs,
        read=lambda: _first_pairs(corpus, n_pairs),
        encode=lambda pairs, check: _encoded_pairs(loaded, pairs, special, check=check),
        collate=partial(collate_pairs, pad_id=loaded.pad_id),
    )


def swapped_batches(loaded: LoadedModel, corpus: Corpus, n_pairs: int) -> Batches[Any, Any]:
    """Return the same targets with the sources of other pairs: the control of cross-attention."""
    special = ends_of(loaded)

    def read() -> Iterator[PairRow | None]:
        pairs = _first_pairs(corpus, n_pairs)
        return with_swapped_sources(_encoded_pairs(loaded, pairs, special, check=True))

    # The other source is one of as many tokens, so pairs are encoded as they are read, before they
    # are cut into windows, and every process reads all of them.
    return Batches(
        n_pairs,
        read=read,
        encode=lambda encoded_rows, _: encoded_rows,  # as they are
        collate=partial(collate_pairs, pad_id=loaded.pad_id),
    )


def first_replaced(batches: Batches[Any, Any], seed: int) -> Batches[Any, Any]:
    """Return the first REPLACED sentences or pairs with another token at position 0.

    The control of first-token sinks: what stays there is on the position, not on the token.
    """

    def encode(rows: Sequence[Any], check: bool) -> Iterator[Any]:
        return _other_first_tokens(list(batches.encode(rows, check)), seed)

    return Batches(
        min(REPLACED, batches.n_items),
        read=lambda: itertools.islice(batches.read(), REPLACED),
        encode=encode,
        collate=batches.collate,
    )


def _other_first_tokens(items: Sequence[Any], seed: int) -> Iterator[Any]:
    """Put another token first in every sentence or target, drawn at random from those of all.

    What is drawn depends on the sentence alone, not on the batch that it will be in.
    """
    content_ids: set[int] = set()
    for item in items:
        if item is not None:
            _, ids, content = _tokens_of(item)
            content_ids.update(int(ids[position]) for position in content)
    for item in items:
        if item is None:
            yield None
            continue
        name, ids, _ = _tokens_of(item)
        other_tokens = sorted(content_ids - {int(ids[0])})
        changed = ids.copy()
        if other_tokens:
            changed[0] = np.random.default_rng([seed, int(ids.sum())]).choice(other_tokens)
        yield replace(item, **{name: changed})


def _tokens_of(item: EncodedSentence | PairRow) -> tuple[str, IntArray, IntArray]:
    """Return the field with the tokens that a decoder reads, these, and the places of content."""
    if isinstance(item, PairRow):
        return "decoder_ids", np.array(item.decoder_ids), np.array(item.decoder_content)
    return "ids", item.ids, np.flatnonzero(item.word_of >= 0)


def _first_pairs(corpus: Corpus, n_pairs: int) -> Iterator[Pair]:
    assert corpus.pairs is not None  # pairs of source and target
    return itertools.islice(corpus.pairs(), n_pairs)


def _encoded_pairs(
    loaded: LoadedModel, pairs: Iterable[Pair], special: Ends, *, check: bool
) -> Iterator[PairRow | None]:
    """Tokenise sources and targets; a target without a token has no query and becomes None."""
    for_sources, for_targets = itertools.tee(pairs)
    sources = (source for source, _ in for_sources)
    targets = (target for _, target in for_targets)
    for row in encode_pairs(loaded, sources, targets, special, check=check):
        yield row if row is not None and row.decoder_content else None
