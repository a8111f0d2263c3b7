"""What the heads of a model do, from a classification made now or saved before."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from headscope.errors import InputError
from headscope.models.loading import LoadedModel
from headscope.pipeline.classify import classify
from headscope.results import ClassifyResult, HeadResult, from_dict
from headscope.results.prune import HeadRoles

__all__ = ["KnownRoles", "find_roles", "read_classification"]


@dataclass(frozen=True)
class KnownRoles:
    """Roles by the heads' places in the loaded model, and how they are printed.

    Attributes
    ----------
    by_place : dict
    heads : tuple of HeadRoles
        By the heads' original numbers.
    corpus : str or None
    warnings : tuple of str
    """

    by_place: dict[tuple[int, int], HeadResult]
    heads: tuple[HeadRoles, ...] = ()
    corpus: str | None = None
    warnings: tuple[str, ...] = ()


def find_roles(
    loaded: LoadedModel, result: ClassifyResult | None, *, seed: int, wanted: bool = True
) -> KnownRoles:
    """Take a classification, or make one on the built-in sample.

    Parameters
    ----------
    loaded : LoadedModel
    result : ClassifyResult or None
        What ``--roles`` gave.
    seed : int
    wanted : bool
        If False and no result is given, no roles are known.

    Raises
    ------
    InputError
        If the classification is of a model with other heads.
    """
    if result is None:
        if not wanted or loaded.tokenizer is None:
            return KnownRoles({})
        result = classify(loaded, validate=False, seed=seed)
    place_of = {
        (site.layer, name): (site.layer, place)
        for site in loaded.sites
        for place, name in enumerate(site.head_ids)
    }
    by_place = {
        place_of[head.layer, head.head]: head
        for head in result.heads
        if (head.layer, head.head) in place_of
    }
    if len(by_place) < len(place_of):
        raise InputError(
            f"The classification covers {len(by_place)} of the {len(place_of)} heads of "
            f"{loaded.name}; make it anew with 'headscope classify {loaded.name} -o DIR'."
        )
    heads = tuple(
        HeadRoles(head.layer, head.head, head.primary, head.roles)
        for head in result.heads
        if (head.layer, head.head) in place_of
    )
    return KnownRoles(by_place, heads, result.corpus.name, _other_model(loaded, result))


def read_classification(path: str | Path) -> ClassifyResult:
    """Read what ``headscope classify -o DIR`` or ``--format json`` wrote.

    Raises
    ------
    InputError
        If it is not that.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        if not data["heads"]:
            raise KeyError("heads")
        return from_dict(ClassifyResult, data)
    except OSError as error:
        raise InputError(f"--roles {path} cannot be read ({error.strerror}).") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"--roles {path} is not a result of headscope classify; make one with "
            "'headscope classify MODEL -o DIR' and give DIR/classify.json."
        ) from None


def _other_model(loaded: LoadedModel, result: ClassifyResult) -> tuple[str, ...]:
    theirs = result.provenance.get("model", {}).get("weights_sha256")
    if None in (theirs, loaded.weights_sha256) or theirs == loaded.weights_sha256:
        return ()
    return ("--roles: the classification was made with other weights than this model's.",)
