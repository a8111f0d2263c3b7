"""Keys of sections: a hash of everything that a result depends on."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headscope.core.files import sha256_of, sha256_of_file
from headscope.data.corpus import sample_corpus
from headscope.models.loaded import LoadedModel
from headscope.results.serialise import to_dict
from headscope.session.provenance import provenance, versions


def model_identity(loaded: LoadedModel) -> dict[str, Any] | None:
    """Say which model this is, in which type and under which versions; None if nobody can tell."""
    if loaded.weights_sha256 is None:
        return None
    tokenizer = getattr(loaded.tokenizer, "backend_tokenizer", None)
    return {
        **versions(),
        "model": provenance(loaded, command="", seed=0)["model"],
        "config": loaded.model.config.to_json_string(),
        "tokenizer": "" if tokenizer is None else tokenizer.to_str(),
        "limit": loaded.max_length,
        "embedding": loaded.pooling.identity,
        "dtype": loaded.dtype,
        "device": loaded.device,
        "sample": sample_corpus().sha256,
    }


def section_key(
    name: str, identity: Mapping[str, Any], settings: Mapping[str, Any], sources: Mapping[str, str]
) -> str:
    """Hash what a section's result depends on: the model, its arguments, and its sources' keys.

    Files among the arguments count by their content.
    """
    values = {key: _content(value) for key, value in settings.items()}
    return digest({"section": name, "on": identity, "settings": values, "sources": sources})


def digest(values: Any) -> str:
    """SHA-256 of plain values, whatever the order of their keys."""
    return sha256_of(json.dumps(to_dict(values), sort_keys=True))


def plain(value: Any) -> Any:
    """Turn an argument into what JSON can hold, files by their names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name = getattr(value, "name", None)
        return str(name) if hasattr(value, "sha256") else dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _content(value: Any) -> Any:
    """Turn an argument into what its effect depends on."""
    if isinstance(value, Path):
        return [str(value), _file(value)]
    if hasattr(value, "sha256"):
        return [str(value.name), value.sha256]
    return plain(value)


def _file(path: Path) -> str:
    return sha256_of_file(path) if path.is_file() else "none"
