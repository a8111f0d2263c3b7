"""Where a result comes from: versions, model, data, settings."""

from __future__ import annotations

import datetime
import importlib.metadata
from typing import Any

from headscope.models.compact import removed_heads
from headscope.models.loading import LoadedModel

__all__ = ["provenance"]


def provenance(
    loaded: LoadedModel, *, command: str, seed: int, data: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Describe a run so that it can be repeated; only ``created`` differs between equal runs."""
    return {
        "headscope": importlib.metadata.version("headscope"),
        "torch": importlib.metadata.version("torch"),
        "transformers": importlib.metadata.version("transformers"),
        "model": {
            "id": loaded.name,
            "revision": loaded.revision,
            "weights_sha256": loaded.weights_sha256,
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
