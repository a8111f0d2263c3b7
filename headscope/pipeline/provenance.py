"""Where a result comes from: versions, model, data, settings."""

from __future__ import annotations

import datetime
import importlib.metadata
from typing import Any

from headscope.errors import InputError
from headscope.models.compact import removed_heads
from headscope.models.loading import LoadedModel

__all__ = ["need_checksum", "provenance"]


def provenance(
    loaded: LoadedModel, *, command: str, seed: int, data: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Describe a run so that it can be repeated; only ``created`` differs between equal runs.

    The SHA-256 of a file is given only while the weights in memory are what was read from it.
    """
    sha256 = loaded.weights_sha256
    return {
        "headscope": importlib.metadata.version("headscope"),
        "torch": importlib.metadata.version("torch"),
        "transformers": importlib.metadata.version("transformers"),
        "model": {
            "id": loaded.name,
            "revision": loaded.revision,
            "weights_sha256": sha256,
            "weights": _weights(loaded, sha256),
            "family": loaded.family,
            "n_layers": loaded.n_layers,
            "n_heads": loaded.n_heads,
            "removed_heads": [list(place) for place in removed_heads(loaded)],
        },
        "data": data,
        "seed": seed,
        "dtype": loaded.dtype,
        "device": loaded.device,
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def need_checksum(loaded: LoadedModel) -> str:
    """Return the SHA-256 of the weights, for a saved state that is bound to them.

    Raises
    ------
    InputError
        If the model is in memory only, or was changed after it had been read.
    """
    if (sha256 := loaded.weights_sha256) is not None:
        return sha256
    if loaded.file is None:
        raise InputError("A model in memory has no checksum; save it to a folder to use a state.")
    raise InputError(
        f"The weights of {loaded.name} were changed after loading, so its file's checksum is not "
        "theirs; save the changed model to a folder to use a state."
    )


def _weights(loaded: LoadedModel, sha256: str | None) -> str:
    """Say where the weights are from."""
    if sha256 is not None:
        return "file"
    return "in memory" if loaded.file is None else "in memory, changed since loading"
