"""The roles of a model's heads, from an earlier classification or the same run.

``prune`` and other commands read a classification (:func:`classification_of`) and look up what the
heads of their model do (:func:`find_roles`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from headscope.analyses.classify.result import ClassifyResult
from headscope.analyses.classify.scores import HeadResult, HeadRoles
from headscope.core.errors import InputError
from headscope.core.files import no_text_in
from headscope.core.serialise import SCHEMA, from_dict
from headscope.models.run.loaded import LoadedModel

#: A result of ``headscope.classify``, or the file that ``headscope classify -o DIR`` wrote.
Classification = str | Path | ClassifyResult
FILE = "classify.json"  # The name of that file.
_ADVICE = "give the classify.json that 'headscope classify MODEL -o DIR' wrote"


@dataclass(frozen=True)
class KnownRoles:
    """What a classification says of the heads of a loaded model."""

    #: By layer and head as the loaded model counts them, which may have lost some
    by_place: dict[tuple[int, int], HeadResult]
    heads: tuple[HeadRoles, ...] = ()  # With the heads' original numbers.
    corpus: str | None = None  # What the heads were classified on; None without classification.
    warnings: tuple[str, ...] = ()  # What makes the roles doubtful.


def read_classification(source: Classification) -> ClassifyResult:
    """Read a classification; pass a result through."""
    if isinstance(source, ClassifyResult):
        return source
    try:
        result = from_dict(ClassifyResult, json.loads(Path(source).read_text(encoding="utf-8")))
        _weights_sha256(result)  # raises KeyError where there is no such field
        if result.schema != SCHEMA or not result.heads:
            raise ValueError("another version of the schema, or no heads")
    except OSError as error:
        raise InputError(
            f"The classification {source} cannot be read ({error.strerror}); {_ADVICE}."
        ) from None
    # What reading JSON of any other form into a result can raise.
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        if what := no_text_in(Path(source)):
            raise InputError(f"The classification {source} is {what}.") from None
        raise InputError(f"{source} is not a classification; {_ADVICE}.") from None
    return result


def classification_of(
    loaded: LoadedModel, source: Classification | None, folder: str | Path | None
) -> ClassifyResult | None:
    """Return the classification of this model: ``source``, or else ``classify.json`` in a folder.

    A user who names a source is told why it cannot be used; a file that just lies in the folder is
    then passed over.
    """
    if source is not None:
        return _checked_classification(loaded, source)
    if folder is None or not (Path(folder) / FILE).is_file():
        return None
    try:
        return _checked_classification(loaded, Path(folder) / FILE)
    except InputError:
        return None


def _checked_classification(loaded: LoadedModel, source: Classification) -> ClassifyResult:
    """Read a classification; that of another model is an error."""
    result = read_classification(source)
    if _weights_sha256(result) != loaded.weights_sha256:
        named = "" if isinstance(source, ClassifyResult) else f"{source} "
        raise InputError(
            f"The classification {named}is of another model ("
            f"{result.provenance['model']['id']}): its weights differ from those of "
            f"{loaded.name}. Run 'headscope classify MODEL -o DIR' on it first."
        )
    return result


def find_roles(loaded: LoadedModel, result: ClassifyResult) -> KnownRoles:
    """Look up what each head of a model does; a classification of other weights gives a warning."""
    place_of = places(loaded)
    heads = [head for head in result.heads if (head.stack, head.layer, head.head) in place_of]
    by_place = {place_of[head.stack, head.layer, head.head]: head for head in heads}
    if len(by_place) < len(place_of):
        raise InputError(
            f"The classification covers {len(by_place)} of the {len(place_of)} heads of "
            f"{loaded.name}; make it anew with 'headscope classify MODEL -o DIR'."
        )
    classified = _weights_sha256(result)
    warnings: tuple[str, ...] = ()
    both_known = classified is not None and loaded.weights_sha256 is not None
    if both_known and classified != loaded.weights_sha256:
        warnings = ("The classification (roles) was made with other weights than this model's.",)
    return KnownRoles(
        by_place=by_place,
        heads=tuple(
            HeadRoles(head.layer, head.head, head.primary, head.roles, stack=head.stack)
            for head in heads
        ),
        corpus=result.corpus.name,
        warnings=warnings,
    )


def places(loaded: LoadedModel) -> dict[tuple[str, int, int], tuple[int, int]]:
    """Map heads by their original names (stack, layer, head) to where they are in the model.

    Where: the layer among all that are measured (``AttentionSite.row``), and the index among the
    heads that the layer has left. If layer 0 has lost head 0, ("encoder", 0, 1) -> (0, 0).
    """
    by_name = {}
    for site in loaded.sites:
        for index, original in enumerate(site.head_ids):
            by_name[site.stack, site.layer, original] = (site.row, index)
    return by_name


def _weights_sha256(result: ClassifyResult) -> str | None:
    """Return the SHA-256 of the weights that were classified; None if they were no file's."""
    sha256: str | None = result.provenance["model"]["weights_sha256"]
    return sha256
