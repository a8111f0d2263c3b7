"""What differs between two runs themselves: schema, model, data, settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from headscope.results.diff import Identity
from headscope.verdicts.diff.facts import settings_of
from headscope.verdicts.reading import Results

__all__ = ["Described", "conditions", "identity"]

#: In a result's provenance, and no setting: described apart, or of no importance.
_NO_SETTINGS = ("model", "data", "created", "command", "tokenizer", "warnings")
#: In a result's model, and not what tells one model from another.
_NOT_OF_MODEL = ("id", "revision", "pooling", "pooling_from")
_LONGEST = 120
_ORDER = ("schema", "model", "data", "setting")


@dataclass(frozen=True)
class Described:
    """Something that should be equal, and how it is shown."""

    value: object
    text: str


def identity(old: Results, new: Results, sections: Iterable[str]) -> tuple[Identity, ...]:
    """List what differs, what matters most first; the same in several sections is said once."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for section in sections:
        for row in _differing(conditions(old, section), conditions(new, section)):
            found.setdefault(row, []).append(section)
    rows = [
        Identity(what, name, tuple(where), before, after)
        for (what, name, before, after), where in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: _ORDER.index(row.what)))


def _differing(
    old: dict[tuple[str, str], Described], new: dict[tuple[str, str], Described]
) -> Iterator[tuple[str, str, str, str]]:
    keys = dict.fromkeys([*old, *new])
    differ = [key for key in keys if old.get(key, _NONE).value != new.get(key, _NONE).value]
    for what, name in differ:
        # Another path to the same weights or text is no other model or text; where these differ,
        # their names are part of the description.
        if name.partition(" ")[0] in ("model", "data") and (name.partition(" ")[0], "") in differ:
            continue
        yield what, name, old.get((what, name), _NONE).text, new.get((what, name), _NONE).text


def conditions(results: Results, section: str) -> dict[tuple[str, str], Described]:
    """Return everything that has to be equal for runs to measure the same, by kind and name."""
    result = results.sections[section]
    origin = _mapping(results.raw[section].get("provenance"))
    model, data = _mapping(origin.get("model")), _mapping(origin.get("data"))
    settings = {
        "model id": model.get("id"),
        "model revision": model.get("revision"),
        "data name": data.get("name"),
        "pooling": _pooling(model),
        **{name: value for name, value in origin.items() if name not in _NO_SETTINGS},
        **settings_of(result),
    }
    described = {
        ("schema", ""): Described(result.schema, str(result.schema)),
        ("model", ""): Described(_without(model, *_NOT_OF_MODEL), _model(model)),
        ("data", ""): Described(_without(data, "name"), _data(data)),
    }
    for name, value in settings.items():
        described["setting", name] = Described(value, _text(value))
    return described


def _without(values: Mapping[str, object], *names: str) -> dict[str, object]:
    """Leave some out, and what is null or empty: that is the same as not there."""
    return {k: v for k, v in values.items() if k not in names and v not in (None, [], {})}


def _model(model: Mapping[str, object]) -> str:
    gone = model.get("removed_heads") or []
    less = f", {len(gone)} heads removed" if isinstance(gone, list) and gone else ""
    return _text(
        f"{model.get('id')} ({model.get('family')}, {model.get('n_layers')} layers x "
        f"{model.get('n_heads')} heads{less}, weights {str(model.get('weights_sha256'))[:8]})"
    )


def _pooling(model: Mapping[str, object]) -> str:
    """Return how embeddings were made; older results are all of means.

    Unit length at the end changes no cosine, and nothing else is made of embeddings.
    """
    return str(model.get("pooling") or "mean").removesuffix(", normalize")


def _data(data: Mapping[str, object]) -> str:
    return _text(f"{data.get('name')} (sha256 {str(data.get('sha256'))[:8]})" if data else None)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


_NONE = Described(None, "none")
