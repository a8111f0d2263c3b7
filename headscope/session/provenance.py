"""Where a result comes from: the versions, the model, the data and the settings of its run."""

from __future__ import annotations

import datetime
import importlib.metadata
from collections import Counter
from collections.abc import Iterable
from typing import Any, Protocol

from headscope.data.corpus import Corpus
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.layers import removed_layers
from headscope.models.surgery.neurons import removed_neurons
from headscope.session.tokenizer_fit import fit_of, fit_warnings, special_warnings


class Source(Protocol):
    """Any data that a run is measured on: a corpus, a text, or a task's examples."""

    @property
    def name(self) -> str:
        """The path as the user wrote it, or what the data are called."""

    @property
    def sha256(self) -> str:
        """The SHA-256 of its content."""


def provenance(
    loaded: LoadedModel,
    *,
    command: str,
    seed: int,
    data: Source | None = None,
    warnings: Iterable[str] = (),
) -> dict[str, Any]:
    """Describe a run so that it can be repeated; only ``created`` differs between equal runs.

    ``warnings`` are the command's own; those about model, tokenizer and data are added here.
    """
    fit = fit_of(loaded, data)
    data_name = "" if data is None else data.name
    all_warnings = [*loaded.remarks, *fit_warnings(fit, loaded.name, data_name)]
    if isinstance(data, Corpus):
        all_warnings += data.notes
    if data is not None and loaded.tokenizer is not None:
        all_warnings += special_warnings(loaded, data)
    all_warnings += warnings
    return {
        **versions(),
        "model": _model(loaded),
        "data": None if data is None else _data(data),
        "tokenizer": fit,
        "warnings": list(dict.fromkeys(all_warnings)),
        "seed": seed,
        "dtype": loaded.dtype,
        "device": loaded.device,
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _model(loaded: LoadedModel) -> dict[str, Any]:
    """Describe the model: its weights, its shape, and what was removed from it.

    The SHA-256 of the weights' file is given only if the weights in memory are still those of the
    file.
    """
    all_stacks = loaded.with_all_stacks
    sha256 = loaded.weights_sha256  # computed anew whenever it is asked for
    if sha256 is not None:
        weights = "file"
    elif loaded.file is None:
        weights = "in memory"
    else:
        weights = "in memory, changed since loading"
    described: dict[str, Any] = {
        "id": loaded.name,
        "revision": loaded.revision,
        "weights_sha256": sha256,
        "weights": weights,
        "family": loaded.family,
        "n_layers": all_stacks.n_layers,
        "n_heads": all_stacks.n_heads,
        "pooling": str(loaded.pooling),
        "pooling_from": loaded.pooling.origin,
        "removed_heads": _removed_heads(all_stacks),
    }
    if len(all_stacks.stacks) > 1:
        layers_of_stacks = Counter(site.stack for site in all_stacks.sites)
        described["stacks"] = {stack: layers_of_stacks[stack] for stack in all_stacks.stacks}
    layers = removed_layers(all_stacks)
    if layers:
        described["removed_layers"] = list(layers)
    neurons = removed_neurons(all_stacks)
    if neurons:
        described["removed_neurons"] = {name: len(numbers) for name, numbers in neurons.items()}
    return described


def _removed_heads(loaded: LoadedModel) -> list[list[str | int]]:
    """Return [layer, head] of each removed head; [stack, layer, head] beyond a lone encoder."""
    names_stack = loaded.stacks != ("encoder",)
    removed: list[list[str | int]] = []
    for site in loaded.sites:
        stack = [site.stack] if names_stack else []
        removed_heads = [head for head in range(site.heads_before) if head not in site.head_ids]
        removed += [[*stack, site.layer, head] for head in removed_heads]
    return removed


def _data(data: Source) -> dict[str, str]:
    """Describe the data: its file, and which examples were used, if not all."""
    described = {"name": data.name, "sha256": data.sha256}
    drawn = getattr(
        data, "drawn", ""
    )  # of a task's examples, "60 of 1,379 examples, chosen at random"
    if drawn:
        described["drawn"] = drawn
    return described


def versions() -> dict[str, str]:
    """Return the versions of the packages that numbers depend on."""
    packages = ("headscope", "torch", "transformers")
    return {name: importlib.metadata.version(name) for name in packages}
