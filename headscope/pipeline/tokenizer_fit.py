"""Whether a tokenizer belongs to the model it lies beside, and knows the script of a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from headscope.data.corpus import Corpus
from headscope.data.examples import Examples
from headscope.data.pair_corpus import PairCorpus
from headscope.data.pieces import count_unknown, tokenise
from headscope.data.plain import PlainText
from headscope.models.loaded import LoadedModel

#: Texts of the data that are looked at, from its beginning.
TEXTS = 512
#: Share of unknown pieces from which on results carry a warning. Of the texts and models that were
#: tried, those that fit have none among 55,000 pieces, and those that do not 4 to 29%.
MOST_UNKNOWN = 0.03
#: A tokenizer with fewer pieces than this share of the embedding's rows is another model's: rows
#: that are left free, for later tokens or to make their number round, are a few per cent.
FEWEST_PIECES = 0.75


def fit_of(loaded: LoadedModel, data: object = None) -> dict[str, Any] | None:
    """Count what a tokenizer knows, and which share of the data's pieces it does not."""
    if loaded.tokenizer is None:
        return None
    sizes = {"pieces": len(loaded.tokenizer), "embeddings": loaded.vocab_size}
    unknown = pieces = texts = 0
    for kind in _texts(data):
        for encoding in tokenise(loaded, islice(kind, TEXTS)):
            few, every = count_unknown(loaded.tokenizer, encoding)
            unknown, pieces, texts = unknown + few, pieces + every, texts + 1
    return {**sizes, "texts": texts, "unknown_share": unknown / pieces if pieces else None}


def fit_warnings(fit: dict[str, Any] | None, name: str, data: str) -> Iterator[str]:
    """Yield a sentence for everything that does not fit."""
    if fit is None:
        return
    pieces, rows, share = fit["pieces"], fit["embeddings"], fit["unknown_share"]
    if not FEWEST_PIECES * rows <= pieces <= rows:
        yield (
            f"The tokenizer of {name} has {pieces:,} pieces and the model's embedding {rows:,} "
            "rows: they may not belong together."
        )
    if share is not None and share >= MOST_UNKNOWN:
        yield (
            f"The tokenizer does not know {100 * share:.1f}% of the pieces of {data} (its first "
            f"{fit['texts']:,} texts): the model reads one and the same token for all of them."
        )


def _texts(data: object) -> Iterator[Iterable[str | Sequence[str]]]:
    """Yield the texts of any data that a run is measured on, those of one kind together."""
    data = getattr(data, "test", data)  # transfer reads two files, and measures on this one
    if isinstance(data, Corpus):
        yield (sentence.words for sentence in data)
    elif isinstance(data, PlainText):
        yield data
    elif isinstance(data, PairCorpus):
        yield chain.from_iterable(data)
    elif isinstance(data, Examples):
        yield data.texts
