"""Where a result comes from: versions, model, data, settings."""

from __future__ import annotations

import datetime
import importlib.metadata
from collections.abc import Iterable
from typing import Any, Protocol

from headscope.models.compact import removed_heads
from headscope.models.loaded import LoadedModel
from headscope.pipeline.tokenizer_fit import fit_of, fit_warnings


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
    own_warnings = fit_warnings(fit, loaded.name, "" if data is None else data.name)
    sha256, whole = loaded.weights_sha256, loaded.whole or loaded
    weights = "in memory" if loaded.file is None else "in memory, changed since loading"
    removed: list[list[str | int]] = []  # layer and head, after the stack if there are several
    for row, head in removed_heads(whole):
        site = whole.sites[row]
        stack = [] if whole.stacks == ("encoder",) else [site.stack]
        removed.append([*stack, site.layer, head])
    return {
        **versions(),
        "model": {
            "id": loaded.name,
            "revision": loaded.revision,
            "weights_sha256": sha256,
            "weights": weights if sha256 is None else "file",
            "family": loaded.family,
            "n_layers": whole.n_layers,
            "n_heads": whole.n_heads,
            "pooling": str(loaded.pooling),
            "pooling_from": loaded.pooling.origin,
            "removed_heads": removed,
        },
        "data": None if data is None else {"name": data.name, "sha256": data.sha256},
        "tokenizer": fit,
        "warnings": list(dict.fromkeys([*own_warnings, *warnings])),
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
