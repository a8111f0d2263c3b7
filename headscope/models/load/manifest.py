"""Which heads, neurons and layers a physically pruned checkpoint still has, by its files.

:func:`kept_parts` reads whichever of three files says so:

* ``headscope.json``, the manifest of every folder that headscope saved, such as ``{"schema": 1,
  "form": "compact", "n_heads": 12, "attention": [{"module": "encoder.layer.0.attention.self",
  "kept": [0, 3, 7]}, ...], ...}``;
* config.json of such a folder, which says the same under other keys
  (:mod:`headscope.core.saved_config`), for whoever saves it again without the manifest;
* config.json with ``pruned_heads``, as transformers before version 5 wrote it. Version 5 refuses
  such checkpoints for their shapes.

:meth:`KeptParts.cut` then leaves only these parts of a network that was built whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

import torch

from headscope.core.errors import CheckpointError
from headscope.core.saved_config import (
    BEFORE,
    KEPT,
    LAYERS,
    LAYERS_BEFORE,
    MANIFEST,
    NEURONS,
    SETTINGS_BEFORE,
    as_spans,
    from_spans,
    is_ours,
)
from headscope.models.layouts.layout import AttentionModule
from headscope.models.layouts.sites import attention_modules
from headscope.models.load.checkpoint import Checkpoint
from headscope.models.load.safe_files import read_json
from headscope.models.surgery.cutting import cut_modules
from headscope.models.surgery.layers import count_layers, drop_layers
from headscope.models.surgery.neurons import KeptNeurons, cut_neurons, whole_neurons

#: What ``form`` says: heads left out of the tensors, or (in folders of headscope 0.1) zeros in
#: tensors of the full shape.
COMPACT = "compact"
DENSE = "dense"
SCHEMA = 1
_WIDEST = 1 << 20  # Most neurons that a manifest may speak of in one feed-forward network


@dataclass(frozen=True)
class KeptParts:
    """Which heads, neurons and layers a physically pruned checkpoint still has."""

    path: Path  # The file that says so
    #: Heads of each layer before any was removed; of the layer with most, where they differ.
    n_heads: int
    #: The heads that each attention module kept, by the module's name or, in files of transformers
    #: before version 5, by its number in the order of registration. Others kept all.
    modules: dict[str | int, tuple[int, ...]]
    origin: dict[str, Any]  # The model that it was made from: id, revision, weights_sha256
    #: Settings of config.json as they were before anything was removed, where it has others now.
    config: dict[str, Any] = field(default_factory=dict)
    #: The neurons that are left of each feed-forward network that has lost some, by the name of its
    #: second linear map, which reads the neurons.
    neurons: dict[str, KeptNeurons] = field(default_factory=dict)
    #: Original numbers of the layers that are left; None if all are.
    kept_layers: tuple[int, ...] | None = None
    layers_before: int = 0  # How many layers there were; used with ``kept_layers`` only

    def cut(self, network: Any) -> None:
        """Leave only these parts of a whole network, in place.

        Raises
        ------
        CheckpointError
            If they are not parts of the architecture that config.json describes.
        """
        base = getattr(network, "base_model", network)
        # Layers first: attention modules are named and numbered without those that are gone.
        if self.kept_layers is not None:
            n_layers = count_layers(base)
            if n_layers != self.layers_before:
                raise CheckpointError(
                    f"{self.path} speaks of {self.layers_before} layers before some were removed, "
                    f"config.json of {n_layers}; they do not belong together."
                )
            drop_layers(network, self.kept_layers)
        self._check_heads_and_neurons(base)
        # transformers builds models on the meta device, but the rows to cut need real tensors.
        with torch.device("cpu"):
            cut_modules(network, self._kept_of)
            cut_neurons(base, self.neurons)

    def _check_heads_and_neurons(self, base: Any) -> None:
        """Refuse heads and neurons that the whole network does not have."""
        modules = attention_modules(base)
        n_heads = max((module.heads_before for module in modules), default=0)
        if n_heads != self.n_heads:
            raise CheckpointError(
                f"{self.path} speaks of {self.n_heads} heads a layer, config.json of {n_heads}; "
                "they do not belong together."
            )
        existing = {*range(len(modules)), *(module.name for module in modules)}
        if unknown := [module for module in self.modules if module not in existing]:
            raise CheckpointError(
                f"{self.path} names attention module {unknown[0]}, but the model has "
                f"{len(modules)}, none of this name."
            )
        for name, record in self.neurons.items():
            if whole_neurons(base, name, record) is None:
                raise CheckpointError(
                    f"{self.path} names a feed-forward network {name} of {record.before} neurons, "
                    "but config.json describes none such; they do not belong together."
                )

    def _kept_of(self, index: int, module: AttentionModule) -> tuple[int, ...] | None:
        """Return the heads that a module kept, found by its name or by its index; None for all."""
        return self.modules.get(module.name, self.modules.get(index))


def kept_parts(checkpoint: Checkpoint) -> KeptParts | None:
    """Return which parts a checkpoint still has; None for one that was not pruned physically."""
    manifest = checkpoint.folder / MANIFEST
    path = checkpoint.folder / "config.json"
    if manifest.is_file():
        return _from_manifest(manifest)
    if is_ours(checkpoint.stated):
        return parts_in_config(checkpoint.stated, path)
    pruned = checkpoint.config.get("pruned_heads")
    return _from_pruned_heads(pruned, checkpoint.config, path) if pruned else None


def _from_manifest(path: Path) -> KeptParts | None:
    """Read headscope.json; None where nothing was taken out of the tensors."""
    data = read_json(path)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{path} is not a manifest of schema {SCHEMA}; it is damaged, or written by a newer "
            "headscope."
        )
    form = data.get("form")
    entries = data.get("attention")
    if form not in (COMPACT, DENSE) or not isinstance(entries, list) or not entries:
        raise CheckpointError(f"{path} does not say which heads were kept; save the model again.")
    heads: dict[str, object] = {}
    if form == COMPACT:
        named = [entry for entry in entries if isinstance(entry, dict)]
        heads = {str(entry.get("module")): entry.get("kept") for entry in named}
        if len(heads) != len(entries):
            raise CheckpointError(f"{path}: an entry of attention names no module of its own.")
    remaining = _read_parts(
        data,
        path,
        n_heads=data.get("n_heads"),
        heads_of_modules=heads,
        origin=_object(data.get("source")),
        config=_object(data.get("config")),
    )
    if form == COMPACT:
        return remaining
    # Dense: zeros stand where heads and neurons were, but layers are gone.
    return None if remaining.kept_layers is None else replace(remaining, neurons={})


def _object(value: object) -> dict[str, Any]:
    """Return a JSON object; an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def parts_in_config(config: Mapping[str, Any], path: Path) -> KeptParts:
    """Read which parts are left by config.json of a folder that headscope saved."""
    heads = config.get(KEPT)
    if not isinstance(heads, dict) or not heads:
        raise CheckpointError(f"{path}: {KEPT} does not list the heads of each attention module.")
    return _read_parts(
        config,
        path,
        n_heads=config.get(BEFORE),
        heads_of_modules=heads,
        origin={},
        config=_object(config.get(SETTINGS_BEFORE)),
    )


def _read_parts(
    data: Mapping[str, Any],
    path: Path,
    *,
    n_heads: object,
    heads_of_modules: Mapping[str, object],
    origin: dict[str, Any],
    config: dict[str, Any],
) -> KeptParts:
    """Check what a file says of heads, neurons and layers.

    Both kinds of file have neurons and layers under the same keys of ``data``. What they keep in
    different places is given by keyword: ``config`` are the settings before anything was removed.
    """
    if not _is_count(n_heads) or n_heads == 0:
        raise CheckpointError(f"{path}: {n_heads!r} is not a number of heads.")
    modules: dict[str | int, tuple[int, ...]] = {}
    for name, heads in heads_of_modules.items():
        modules[str(name)] = _indices(path, heads, n_heads)
    return KeptParts(
        path=path,
        n_heads=n_heads,
        modules=modules,
        origin=origin,
        config=config,
        **_read_neurons_and_layers(data, path),
    )


def neurons_and_layers(
    neurons: Mapping[str, KeptNeurons], layers: Sequence[int] | None, before: int
) -> dict[str, Any]:
    """Describe which neurons and layers are left, as config.json and the manifest have it.

    Used where folders are saved; :func:`_read_neurons_and_layers` reads it.
    """
    entries: dict[str, Any] = {}
    for name, record in neurons.items():
        entries[name] = {
            "first": list(record.first),
            "before": record.before,
            "kept": as_spans(record.ids),
        }
    described: dict[str, Any] = {NEURONS: entries} if entries else {}
    if layers is not None:
        described |= {LAYERS: list(layers), LAYERS_BEFORE: before}
    return described


def _read_neurons_and_layers(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Read which neurons and layers are left: arguments of :class:`KeptParts` by their names."""
    entries = data.get(NEURONS, {})
    if not isinstance(entries, dict):
        raise CheckpointError(f"{path}: {NEURONS} is not an object.")
    neurons: dict[str, KeptNeurons] = {}
    for name, entry in entries.items():
        neurons[name] = _read_neurons(path, name, _object(entry))
    if data.get(LAYERS) is None:
        return {"neurons": neurons}
    n_layers = data.get(LAYERS_BEFORE)
    if not _is_count(n_layers):
        raise CheckpointError(f"{path}: {LAYERS_BEFORE} is {n_layers!r}, not a number of layers.")
    layers = _indices(path, data[LAYERS], n_layers)
    if not layers:
        raise CheckpointError(f"{path}: {LAYERS} names no layer.")
    return {"neurons": neurons, "kept_layers": layers, "layers_before": n_layers}


def _read_neurons(path: Path, name: str, record: Mapping[str, Any]) -> KeptNeurons:
    """Read which neurons of one feed-forward network are left."""
    first_maps = record.get("first")
    before = record.get("before")
    names_maps = isinstance(first_maps, list) and all(isinstance(m, str) for m in first_maps)
    if not names_maps or not _is_count(before) or before > _WIDEST:
        raise CheckpointError(
            f"{path}: {NEURONS} does not say which first maps and how many neurons {name} had."
        )
    ids = from_spans(record.get("kept"), before)
    if not ids or list(ids) != sorted(ids):
        raise CheckpointError(
            f"{path}: kept of {name} is not a list of neurons below {before}, such as 0-5,8."
        )
    return KeptNeurons(tuple(first_maps or ()), before, ids)


def _from_pruned_heads(pruned: object, config: Mapping[str, Any], path: Path) -> KeptParts:
    """Read ``pruned_heads`` of transformers before 5: {"0": [1, 2]}, by attention module."""
    n_heads = config.get("num_attention_heads", config.get("n_heads", config.get("n_head", 12)))
    if not isinstance(pruned, dict) or not _is_count(n_heads):
        raise CheckpointError(f'{path}: pruned_heads is not an object such as {{"0": [1, 2]}}.')
    modules: dict[str | int, tuple[int, ...]] = {}
    for key, heads in pruned.items():
        if not str(key).isdecimal():
            raise CheckpointError(f"{path}: pruned_heads has a layer {key!r}, not a number.")
        gone = _indices(path, heads, n_heads)
        modules[int(key)] = tuple(head for head in range(n_heads) if head not in gone)
    return KeptParts(path=path, n_heads=n_heads, modules=modules, origin={})


def _indices(path: Path, value: object, limit: int) -> tuple[int, ...]:
    """Check a list of different indices below ``limit``."""
    items = value if isinstance(value, list) else [None]
    fits = all(_is_count(item) and item < limit for item in items)
    if not fits or len(set(items)) != len(items):
        raise CheckpointError(
            f"{path}: {value!r} is not a list of different numbers below {limit}."
        )
    return tuple(sorted(items))


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
