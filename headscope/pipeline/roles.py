"""Reading what an earlier ``headscope classify`` said about the same model."""

from __future__ import annotations

import json
from pathlib import Path

from headscope.errors import InputError
from headscope.models.loading import LoadedModel
from headscope.results import SCHEMA, ClassifyResult, from_dict

__all__ = ["CLASSIFICATION", "find_roles", "read_roles"]

#: The file that ``headscope classify -o DIR`` writes.
CLASSIFICATION = "classify.json"


def read_roles(path: str | Path, loaded: LoadedModel) -> ClassifyResult:
    """Read a ``classify.json`` and check that it is about this model.

    Raises
    ------
    InputError
        If it cannot be read, is something else, or is of another model.
    """
    path = Path(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        result = from_dict(ClassifyResult, data)
        model = result.provenance["model"]["weights_sha256"]
        if result.schema != SCHEMA or not result.heads:
            raise KeyError("schema")
    except OSError as error:
        raise InputError(
            f"The classification {path} cannot be read ({error.strerror}); give the classify.json "
            "that 'headscope classify MODEL -o DIR' wrote."
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise InputError(
            f"{path} is not a classification; give the classify.json that "
            "'headscope classify MODEL -o DIR' wrote."
        ) from None
    if model != loaded.weights_sha256:
        raise InputError(
            f"The classification {path} is of another model "
            f"({result.provenance['model']['id']}): its weights differ from those of "
            f"{loaded.name}. Run 'headscope classify {loaded.name} -o DIR' first."
        )
    return result


def find_roles(
    path: str | Path | None, folder: str | Path | None, loaded: LoadedModel
) -> ClassifyResult | None:
    """Read the classification that was named, or else the one of this model in ``folder``.

    Raises
    ------
    InputError
        If the named one cannot be used; one that merely lies in the folder is then ignored.
    """
    if path is not None:
        return read_roles(path, loaded)
    if folder is None or not (Path(folder) / CLASSIFICATION).is_file():
        return None
    try:
        return read_roles(Path(folder) / CLASSIFICATION, loaded)
    except InputError:
        return None
