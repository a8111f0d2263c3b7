"""``headscope.json``: which heads, neurons, layers and rows of its vocabulary a saved model has.

config.json of a compact folder says the same, for whoever saves it again without the manifest.

transformers before version 5 wrote physically pruned models with ``pruned_heads`` in config.json;
version 5 has dropped that, and refuses such checkpoints for their shapes. Both are read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from torch import nn

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
from headscope.models.anatomy.feed_forward import watched_networks
from headscope.models.layouts.layout import AttentionModule, AttentionSite
from headscope.models.load.checkpoint import Checkpoint, read_json
from headscope.models.run.loaded import LoadedModel
from headscope.models.surgery.neurons import KeptNeurons, whole_neurons
from headscope.models.surgery.vocabulary import ROW_IDS, ROWS_BEFORE

#: What ``form`` says: heads left out of the tensors, or zeros in tensors of the full shape.
COMPACT, DENSE = "compact", "dense"
SCHEMA = 1
#: Most neurons that a manifest may speak of in one feed-forward network, and most rows of a
#: vocabulary.
_WIDEST, _MOST_ROWS = 1 << 20, 1 << 24
#: Key of the record of a vocabulary that has lost rows.
VOCABULARY = "vocabulary"


@dataclass(frozen=True)
class KeptParts:
    """Which heads, neurons and layers a physically pruned checkpoint still has."""

    path: Path  # The file that says so.
    #: Heads of each layer before any was removed; of the layer with most, where they differ.
    n_heads: int
    #: The heads that each attention module kept, by the module's name or, in older files, counted
    #: in the order of execution.
    modules: dict[str | int, tuple[int, ...]]
    #: Which module each layer runs; empty where the file does not say.
    layers: dict[tuple[str, int], str | int]
    origin: dict[str, Any]  # The model that it was made from: id, revision, weights_sha256.
    #: Settings of config.json as they were before anything was removed, where it has others now.
    config: dict[str, Any] = field(default_factory=dict)
    #: Feed-forward networks that have lost neurons, by the name of their second map.
    neurons: dict[str, KeptNeurons] = field(default_factory=dict)
    #: Original numbers of the layers that are left, and how many there were; None if all are.
    kept_layers: tuple[int, ...] | None = None
    layers_before: int = 0

    def of(self, place: int, module: AttentionModule) -> tuple[int, ...]:
        """Return the heads that a module kept, the ``place``-th of the model."""
        every = tuple(range(module.heads_before))
        return self.modules.get(module.name, self.modules.get(place, every))

    def check(self, modules: Sequence[AttentionModule]) -> None:
        """Check the heads against the architecture that config.json describes."""
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

    def check_count(self, n_layers: int) -> None:
        """Check the number of layers against config.json, before any is removed."""
        if self.kept_layers is not None and n_layers != self.layers_before:
            raise CheckpointError(
                f"{self.path} speaks of {self.layers_before} layers before some were removed, "
                f"config.json of {n_layers}; they do not belong together."
            )

    def check_neurons(self, base: nn.Module) -> None:
        """Check the neurons against the maps of a base model that has all of them."""
        for name, own in self.neurons.items():
            if whole_neurons(base, name, own) is None:
                raise CheckpointError(
                    f"{self.path} names a feed-forward network {name} of {own.before} neurons, but "
                    "config.json describes none such; they do not belong together."
                )

    def check_layers(self, sites: Sequence[AttentionSite]) -> None:
        """Check the heads against those of each layer as it was seen running."""
        head_ids = {(site.stack, site.layer): site.head_ids for site in sites}
        if self.layers and self.layers.keys() != head_ids.keys():
            raise CheckpointError(
                f"{self.path} lists {len(self.layers)} layers, but attention runs in "
                f"{len(head_ids)}."
            )
        for layer, module in self.layers.items():
            if head_ids[layer] != self.modules[module]:
                raise CheckpointError(
                    f"{self.path} says that {layer[0]} layer {layer[1]} kept heads "
                    f"{list(self.modules[module])}, but it has {list(head_ids[layer])}."
                )

    def check_networks(self, loaded: LoadedModel) -> None:
        """Check the neurons against the feed-forward networks that were seen running."""
        if not self.neurons:
            return
        names = {module: name for name, module in loaded.model.named_modules()}
        found = {f.name: tuple(names[m] for m in f.first) for f in watched_networks(loaded)}
        for name, own in self.neurons.items():
            if found.get(name) != own.first:
                raise CheckpointError(
                    f"{self.path} names {name} with {' and '.join(own.first)} as a feed-forward "
                    "network, which the model does not have."
                )


def kept_parts(checkpoint: Checkpoint) -> KeptParts | None:
    """Return what a checkpoint still has; None for one that was not pruned physically."""
    manifest, path = checkpoint.folder / MANIFEST, checkpoint.folder / "config.json"
    if manifest.is_file():
        return _from_manifest(manifest)
    if is_ours(checkpoint.stated):
        return parts_in_config(checkpoint.stated, path)
    pruned = checkpoint.config.get("pruned_heads")
    return _from_pruned_heads(pruned, checkpoint.config, path) if pruned else None


def _from_manifest(path: Path) -> KeptParts | None:
    data = read_json(path)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{path} is not a manifest of schema {SCHEMA}; it is damaged, or written by a newer "
            "headscope."
        )
    form, entries = data.get("form"), data.get("attention")
    if form not in (COMPACT, DENSE) or not isinstance(entries, list) or not entries:
        raise CheckpointError(f"{path} does not say which heads were kept; save the model again.")
    n_heads = data.get("n_heads")
    if not _is_count(n_heads) or n_heads == 0:
        raise CheckpointError(f"{path}: n_heads is {n_heads!r}, not a number of heads.")
    objects = [data.get(name) for name in ("source", "config")]
    source, config = (value if isinstance(value, dict) else {} for value in objects)
    rest = _neurons_and_layers(data, path)
    if form == DENSE:  # zeros stand where heads and neurons were; layers are gone all the same
        gone = "kept_layers" in rest
        rest["neurons"] = {}
        return KeptParts(path, n_heads, {}, {}, source, config, **rest) if gone else None
    modules: dict[str | int, tuple[int, ...]] = {}
    layers: dict[tuple[str, int], str | int] = {}
    # The stacks of one model may have different numbers of heads.
    several = len({str(entry.get("stack")) for entry in entries if isinstance(entry, dict)}) > 1
    for i, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise CheckpointError(f"{path}: entry {i} of attention is not an object.")
        module = entry.get("module", i)
        if not isinstance(module, str | int) or module in modules:
            raise CheckpointError(f"{path}: entry {i} of attention names no module of its own.")
        modules[module] = _heads(path, entry.get("kept"), n_heads)
        removed = _heads(path, entry.get("removed"), n_heads)
        every = sorted((*modules[module], *removed))
        stack = str(entry.get("stack", "encoder"))
        if every != list(range(len(every) if several else n_heads)):
            raise CheckpointError(
                f"{path}: kept and removed of entry {i} are not the {n_heads} heads of a layer."
            )
        for layer in _heads(path, entry.get("layers"), None):
            layers[stack, layer] = module
    return KeptParts(path, n_heads, modules, layers, source, config, **rest)


def parts_in_config(config: Mapping[str, Any], path: Path) -> KeptParts:
    """Read what config.json of a compact folder says is left."""
    n_heads, kept = config.get(BEFORE), config.get(KEPT)
    if not _is_count(n_heads) or n_heads == 0:
        raise CheckpointError(f"{path}: {BEFORE} is {n_heads!r}, not a number of heads.")
    if not isinstance(kept, dict) or not kept:
        raise CheckpointError(f"{path}: {KEPT} does not list the heads of each attention module.")
    modules: dict[str | int, tuple[int, ...]] = {}
    modules |= {str(name): _heads(path, heads, n_heads) for name, heads in kept.items()}
    before = config.get(SETTINGS_BEFORE)
    before = before if isinstance(before, dict) else {}
    return KeptParts(path, n_heads, modules, {}, {}, before, **_neurons_and_layers(config, path))


def neurons_and_layers(
    neurons: Mapping[str, KeptNeurons], layers: Sequence[int] | None, before: int
) -> dict[str, Any]:
    """Write which neurons and layers are left, for config.json and for the manifest."""
    described = {
        name: {"first": list(own.first), "before": own.before, "kept": as_spans(own.kept)}
        for name, own in neurons.items()
    }
    left = {NEURONS: described} if described else {}
    return left if layers is None else {**left, LAYERS: list(layers), LAYERS_BEFORE: before}


def _neurons_and_layers(data: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Read which neurons and layers are left."""
    entries = data.get(NEURONS, {})
    if not isinstance(entries, dict):
        raise CheckpointError(f"{path}: {NEURONS} is not an object.")
    neurons: dict[str, KeptNeurons] = {}
    for name, entry in entries.items():
        own = entry if isinstance(entry, dict) else {}
        first, before = own.get("first"), own.get("before")
        if (
            not isinstance(first, list)
            or not all(isinstance(each, str) for each in first)
            or not _is_count(before)
            or before > _WIDEST
        ):
            raise CheckpointError(
                f"{path}: {NEURONS} does not say which first maps and how many neurons {name} had."
            )
        kept = from_spans(own.get("kept"), before)
        if not kept or list(kept) != sorted(kept):
            raise CheckpointError(
                f"{path}: kept of {name} is not a list of neurons below {before}, such as 0-5,8."
            )
        neurons[name] = KeptNeurons(tuple(first), before, kept)
    if data.get(LAYERS) is None:
        return {"neurons": neurons}
    n_layers = data.get(LAYERS_BEFORE)
    if not _is_count(n_layers):
        raise CheckpointError(f"{path}: {LAYERS_BEFORE} is {n_layers!r}, not a number of layers.")
    kept = _heads(path, data[LAYERS], n_layers)
    if not kept:
        raise CheckpointError(f"{path}: {LAYERS} names no layer.")
    return {"neurons": neurons, "kept_layers": kept, "layers_before": n_layers}


def _from_pruned_heads(pruned: object, config: Mapping[str, Any], path: Path) -> KeptParts:
    """Read ``pruned_heads`` of transformers before 5: {"0": [1, 2]}, by attention module."""
    n_heads = config.get("num_attention_heads", config.get("n_heads", 12))
    if not isinstance(pruned, dict) or not _is_count(n_heads):
        raise CheckpointError(f'{path}: pruned_heads is not an object such as {{"0": [1, 2]}}.')
    modules: dict[str | int, tuple[int, ...]] = {}
    for key, heads in pruned.items():
        if not str(key).isdecimal():
            raise CheckpointError(f"{path}: pruned_heads has a layer {key!r}, not a number.")
        gone = _heads(path, heads, n_heads)
        modules[int(key)] = tuple(head for head in range(n_heads) if head not in gone)
    return KeptParts(path, n_heads, modules, {}, {})


def _heads(path: Path, value: object, limit: int | None) -> tuple[int, ...]:
    """Check a list of different indices below ``limit``."""
    items = value if isinstance(value, list) else [None]
    fits = all(_is_count(item) and (limit is None or item < limit) for item in items)
    if not fits or len(set(items)) != len(items):
        below = "" if limit is None else f" below {limit}"
        raise CheckpointError(f"{path}: {value!r} is not a list of different numbers{below}.")
    return tuple(sorted(items))


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# --- rows of the vocabulary -----------------------------------------------------------------------


def vocabulary_record(model: Any) -> dict[str, Any] | None:
    """Return what ``headscope.json`` says of a base model's vocabulary; None if it is whole.

    ``kept`` lists runs of original ids, in the order of the rows.
    """
    state = vars(model.get_input_embeddings())
    if ROW_IDS not in state:
        return None
    return {"rows": state[ROWS_BEFORE], "kept": as_spans(state[ROW_IDS])}


def recall_rows(model: Any, folder: Path) -> None:
    """Let a base model that was read from a folder remember which rows its vocabulary lost."""
    path = folder / MANIFEST
    data = read_json(path) if path.is_file() else None
    record = data.get(VOCABULARY) if isinstance(data, dict) else None
    if record is None:
        return
    table, record = model.get_input_embeddings(), record if isinstance(record, dict) else {}
    before = record.get("rows")
    limit = min(before, _MOST_ROWS) if _is_count(before) else 0
    ids = from_spans(record.get("kept"), limit)
    if ids is None or len(ids) != table.num_embeddings:
        raise CheckpointError(
            f"{path} does not list the {table.num_embeddings:,} rows of the vocabulary that the "
            "weights have; the two do not belong together."
        )
    vars(table)[ROW_IDS], vars(table)[ROWS_BEFORE] = ids, before
