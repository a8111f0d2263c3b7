"""The forms that a saved folder can have, by who opens it: config.json says which it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headscope.models.compact import original_heads, removed_heads
from headscope.models.deploy.config_file import BEFORE, FAMILY, KEPT, family_config
from headscope.models.deploy.even import plain_settings
from headscope.models.deploy.standalone import FILE, standalone_files
from headscope.models.loaded import LoadedModel
from headscope.models.routing import quiet_transformers
from headscope.registration import COMPACT_TYPE

__all__ = ["HEADSCOPE", "REMOTE", "TRANSFORMERS", "write_config"]

#: transformers by itself, with the folder's own code, or after ``import headscope``.
TRANSFORMERS, REMOTE, HEADSCOPE = "transformers", "trust_remote_code", "import headscope"


def write_config(
    loaded: LoadedModel, folder: Path, *, compact: bool, standalone: bool
) -> dict[str, Any]:
    """Let config.json say what the weights are."""
    path = folder / "config.json"
    family = family_config(json.loads(path.read_text(encoding="utf-8")))
    family.pop("pruned_heads", None)
    opens, more, original = TRANSFORMERS, {}, {}
    if compact and removed_heads(loaded.whole or loaded):
        with quiet_transformers():
            plain = plain_settings(loaded, family)
        if plain is not None:
            more, original = plain, {key: family.get(key) for key in plain}
        elif standalone:
            opens = REMOTE
            code, more = standalone_files(loaded, family)
            (folder / FILE).write_text(code, encoding="utf-8")
            more |= _heads_of(loaded)
        else:
            opens = HEADSCOPE
            more = {"model_type": COMPACT_TYPE, FAMILY: family["model_type"], **_heads_of(loaded)}
    text = json.dumps({**family, **more}, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
    return {"opens": opens, "config": original}


def _heads_of(loaded: LoadedModel) -> dict[str, Any]:
    whole = loaded.whole or loaded
    return {
        BEFORE: original_heads(whole),
        KEPT: {site.name: list(site.head_ids) for site in whole.sites},
    }
