"""Where a result comes from: versions, model, data, settings."""

from __future__ import annotations

import datetime
import importlib.metadata
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Protocol

from headscope.data.corpus import Corpus
from headscope.data.examples import Examples
from headscope.data.pieces import count_unknown, special_ids, tokenise
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.layers import removed_layers
from headscope.models.surgery.neurons import removed_neurons


class Source(Protocol):
    """Data that were read: a corpus, a text, or a task's examples."""

    @property
    def name(self) -> str:
        """Path as given, or what else it is called."""

    @property
    def sha256(self) -> str:
        """Of the content."""


def provenance(
    loaded: LoadedModel,
    *,
    command: str,
    seed: int,
    data: Source | None = None,
    warnings: Iterable[str] = (),
) -> dict[str, Any]:
    """Describe a run so that it can be repeated; only ``created`` differs between equal runs.

    The SHA-256 of a file is given only while the weights in memory are what was read from it.
    ``warnings`` are those of the results that this one was made of; it has its own besides.
    """
    fit = fit_of(loaded, data)
    own_warnings = [*fit_warnings(fit, loaded.name, "" if data is None else data.name)]
    if isinstance(data, Corpus):
        own_warnings += data.notes
    if data is not None and loaded.tokenizer is not None:
        own_warnings += special_warnings(loaded, data)
    sha256 = loaded.weights_sha256
    all_stacks = loaded.whole or loaded
    weights = "in memory" if loaded.file is None else "in memory, changed since loading"
    removed: list[list[str | int]] = []  # layer and head, after the stack if there are several
    for site in all_stacks.sites:
        stack = [] if all_stacks.stacks == ("encoder",) else [site.stack]
        gone = (head for head in range(site.heads_before) if head not in site.head_ids)
        removed += [[*stack, site.layer, head] for head in gone]
    parts: dict[str, Any] = {}
    if layers := removed_layers(all_stacks):
        parts["removed_layers"] = list(layers)
    if neurons := removed_neurons(all_stacks):
        parts["removed_neurons"] = {name: len(gone) for name, gone in neurons.items()}
    of_data = None
    if data is not None:
        drawn = getattr(data, "drawn", "")  # which examples were used, if not all
        of_data = {"name": data.name, "sha256": data.sha256, **({"drawn": drawn} if drawn else {})}
    return {
        **versions(),
        "model": {
            "id": loaded.name,
            "revision": loaded.revision,
            "weights_sha256": sha256,
            "weights": weights if sha256 is None else "file",
            "family": loaded.family,
            "n_layers": all_stacks.n_layers,
            "n_heads": all_stacks.n_heads,
            "pooling": str(loaded.pooling),
            "pooling_from": loaded.pooling.origin,
            "removed_heads": removed,
            **parts,
        },
        "data": of_data,
        "tokenizer": fit,
        "warnings": list(dict.fromkeys([*loaded.remarks, *own_warnings, *warnings])),
        "seed": seed,
        "dtype": loaded.dtype,
        "device": loaded.device,
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that numbers depend on."""
    return {
        name: importlib.metadata.version(name) for name in ("headscope", "torch", "transformers")
    }


TEXTS = 512  # Texts of the data that are looked at, from its beginning.
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
            unknown = unknown + few
            pieces = pieces + every
            texts = texts + 1
    return {**sizes, "texts": texts, "unknown_share": unknown / pieces if pieces else None}


def fit_warnings(fit: dict[str, Any] | None, name: str, data: str) -> Iterator[str]:
    """Yield a sentence for everything that does not fit."""
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
            f"The tokenizer does not know {100 * share:.1f}% of the pieces of {data} (its first "
            f"{fit['texts']:,} texts): the model reads one and the same token for all of them."
        )


def special_warnings(loaded: LoadedModel, data: Source) -> Iterator[str]:
    """Say where texts hold special tokens that somebody has written out."""
    known = loaded.tokenizer.convert_ids_to_tokens(sorted(special_ids(loaded.tokenizer)))
    names = [name for name in known if name]
    if not names:
        return
    begins = "".join({re.escape(name[0]) for name in names})  # looked for first, as it is faster
    spelled = re.compile(f"(?=[{begins}])(?:{'|'.join(map(re.escape, names))})")
    n_texts = n_special = 0
    example = ""
    for kind in _texts(data):
        for text in kind:
            n_texts += 1
            if found := spelled.search(text):
                (encoding,) = tokenise(loaded, [text], check=False)
                n_special += encoding.written_out
                example = example or found[0]
    if n_special:
        yield (
            f"{n_special:,} of {n_texts:,} texts of {data.name} hold special tokens that are "
            f"written out ({example}); the tokenizer reads them as its own, and they count as "
            "special tokens."
        )


def _texts(data: object) -> Iterator[Iterable[str]]:
    """Yield the texts of any data that a run is measured on, those of one kind together."""
    data = getattr(data, "test", data)  # transfer reads two files, and measures on this one
    if isinstance(data, Corpus) and data.pairs is not None:
        yield chain.from_iterable(data.pairs())
    elif isinstance(data, Corpus):
        yield data.lines()
    elif isinstance(data, Examples):
        yield data.texts
