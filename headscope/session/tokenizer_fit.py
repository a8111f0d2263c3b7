"""How well a tokenizer fits its model and the data that it reads: counts, and warnings about them.

Three warnings: the tokenizer may be another model's; it does not know much of the data; the data
spell special tokens such as ``[MASK]``. A *piece* is what a tokenizer cuts a text into, a word or a
part of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from headscope.data.corpus import Corpus
from headscope.data.examples import Examples
from headscope.data.pieces import count_unknown, special_ids, tokenise
from headscope.models.run.loaded import LoadedModel

TEXTS = 512  # Texts of the data whose pieces are counted, from its beginning
#: Share of unknown pieces from which results carry a warning. Of the texts and models that were
#: tried, those that fit have no unknown one among 55,000 pieces, those that do not 4 to 29%.
MOST_UNKNOWN = 0.03
#: A tokenizer with fewer pieces than this share of the embedding's rows is probably another
#: model's. Models leave a few per cent of the rows free, for later tokens or a round number.
FEWEST_PIECES = 0.75


def fit_of(loaded: LoadedModel, data: object = None) -> dict[str, Any] | None:
    """Count the pieces that a tokenizer has, and the share of the data's that it does not know.

    Returns the field ``tokenizer`` of a result's provenance; None without a tokenizer.
    """
    if loaded.tokenizer is None:
        return None
    n_unknown = 0
    n_pieces = 0
    n_texts = 0
    for texts in _texts(data):
        for encoding in tokenise(loaded, islice(texts, TEXTS)):
            unknown, pieces = count_unknown(loaded.tokenizer, encoding)
            n_unknown += unknown
            n_pieces += pieces
            n_texts += 1
    return {
        "pieces": len(loaded.tokenizer),
        "embeddings": loaded.vocab_size,
        "texts": n_texts,
        "unknown_share": n_unknown / n_pieces if n_pieces else None,
    }


def fit_warnings(fit: dict[str, Any] | None, name: str, data: str) -> Iterator[str]:
    """Yield the warnings about the counts of :func:`fit_of`.

    ``name`` and ``data`` are what the warnings call the model and its data.
    """
    if fit is None:
        return
    pieces = fit["pieces"]
    rows = fit["embeddings"]
    share = fit["unknown_share"]
    if not FEWEST_PIECES * rows <= pieces <= rows:
        yield (
            f"The tokenizer of {name} has {pieces:,} pieces and the model's embedding {rows:,} "
            "rows: they may not belong together."
        )
    if share is not None and share >= MOST_UNKNOWN:
        yield (
            f"{data}: the tokenizer does not know {100 * share:.1f}% of the pieces of the "
            f"{fit['texts']:,} texts that were tried; the model reads one and the same token for "
            "all of these pieces."
        )


def special_warnings(loaded: LoadedModel, data: Any) -> Iterator[str]:
    """Yield a warning if texts spell special tokens, such as ``[MASK]``, in letters."""
    tokens = loaded.tokenizer.convert_ids_to_tokens(sorted(special_ids(loaded.tokenizer)))
    names = [name for name in tokens if name]
    if not names:
        return
    any_name = "|".join(map(re.escape, names))
    # To look for first letters before whole names is faster: ``(?=[\[<])(?:\[MASK\]|<s>)``.
    first_letters = "".join({re.escape(name[0]) for name in names})
    spelled = re.compile(f"(?=[{first_letters}])(?:{any_name})")
    n_texts = 0
    n_special = 0
    example = ""
    for text in chain.from_iterable(_texts(data)):
        n_texts += 1
        match = spelled.search(text)
        if match is not None:
            (encoding,) = tokenise(loaded, [text], check=False)
            n_special += encoding.written_out
            example = example or match[0]
    if n_special:
        yield (
            f"{n_special:,} of {n_texts:,} texts of {data.name} hold special tokens that are "
            f"written out ({example}); the tokenizer reads them as its own, and they count as "
            "special tokens."
        )


def _texts(data: object) -> Iterator[Iterable[str]]:
    """Yield the streams of texts in any data that a run is measured on."""
    data = getattr(data, "test", data)  # transfer reads two files, and measures on this one
    if isinstance(data, Corpus) and data.pairs is not None:
        yield chain.from_iterable(data.pairs())
    elif isinstance(data, Corpus):
        yield data.lines()
    elif isinstance(data, Examples):
        yield data.texts
