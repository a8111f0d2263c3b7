"""``headscope.json``: which heads a saved model still has; and the same in old configs.

transformers before version 5 wrote physically pruned models with ``pruned_heads`` in config.json;
version 5 has dropped that, and refuses such checkpoints for their shapes. Both are read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from headscope.core.errors import CheckpointError
from headscope.core.saved_config import BEFORE, KEPT, is_ours
from headscope.models.checkpoint import Checkpoint, read_json
from headscope.models.layouts import AttentionModule, AttentionSite

MANIFEST = "headscope.json"
#: What ``form`` says: heads left out of the tensors, or zeros in tensors of the full shape.
COMPACT, DENSE = "compact", "dense"
SCHEMA = 1


@dataclass(frozen=True)
class KeptHeads:
    """Which heads a physically pruned checkpoint still has."""

    path: Path  # The file that says so.
    #: Heads of each layer before any was removed; of the layer with most, where they differ.
    n_heads: int
    #: The heads that each attention module kept, by the module's name or, in older files, counted
    #: in the order of execution.
    modules: dict[str | int, tuple[int, ...]]
    #: Which module each layer runs; empty where the file does not say.
    layers: dict[tuple[str, int], str | int]
    origin: dict[str, Any]  # The model that it was made from: id, revision, weights_sha256.
    #: Settings of config.json as they were before heads were removed, where it has others now.
    config: dict[str, Any] = field(default_factory=dict)

    def of(self, place: int, module: AttentionModule) -> tuple[int, ...]:
        """Return the heads that a module kept, the ``place``-th of the model."""
        every = tuple(range(module.heads_before))
        return self.modules.get(module.name, self.modules.get(place, every))

    def check(self, modules: Sequence[AttentionModule]) -> None:
        """Compare with the architecture that config.json describes."""
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

    def check_layers(self, sites: Sequence[AttentionSite]) -> None:
        """Compare with the heads of each layer as it was seen running."""
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


def kept_heads(checkpoint: Checkpoint) -> KeptHeads | None:
    """Say which heads a checkpoint still has; None for one that nobody has pruned physically."""
    manifest, path = checkpoint.folder / MANIFEST, checkpoint.folder / "config.json"
    if manifest.is_file():
        return _from_manifest(manifest)
    if is_ours(checkpoint.stated):
        return heads_in_config(checkpoint.stated, path)
    pruned = checkpoint.config.get("pruned_heads")
    return _from_pruned_heads(pruned, checkpoint.config, path) if pruned else None


def _from_manifest(path: Path) -> KeptHeads | None:
    data = read_json(path)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{path} is not a manifest of schema {SCHEMA}; it is damaged, or written by a newer "
            "headscope."
        )
    form, entries = data.get("form"), data.get("attention")
    if form not in (COMPACT, DENSE) or not isinstance(entries, list) or not entries:
        raise CheckpointError(f"{path} does not say which heads were kept; save the model again.")
    if form == DENSE:
        return None
    n_heads = data.get("n_heads")
    if not _is_count(n_heads) or n_heads == 0:
        raise CheckpointError(f"{path}: n_heads is {n_heads!r}, not a number of heads.")
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
    objects = [data.get(name) for name in ("source", "config")]
    source, config = (value if isinstance(value, dict) else {} for value in objects)
    return KeptHeads(path, n_heads, modules, layers, source, config)


def heads_in_config(config: Mapping[str, Any], path: Path) -> KeptHeads:
    """Read the heads that config.json of a compact folder names."""
    n_heads, kept = config.get(BEFORE), config.get(KEPT)
    if not _is_count(n_heads) or n_heads == 0:
        raise CheckpointError(f"{path}: {BEFORE} is {n_heads!r}, not a number of heads.")
    if not isinstance(kept, dict) or not kept:
        raise CheckpointError(f"{path}: {KEPT} does not list the heads of each attention module.")
    modules: dict[str | int, tuple[int, ...]] = {}
    modules |= {str(name): _heads(path, heads, n_heads) for name, heads in kept.items()}
    return KeptHeads(path, n_heads, modules, {}, {})


def _from_pruned_heads(pruned: object, config: Mapping[str, Any], path: Path) -> KeptHeads:
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
    return KeptHeads(path, n_heads, modules, {}, {})


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
