"""What differs between two runs themselves: schema, model, data, settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headscope.results import ClassifyResult, DepthResult, PruneResult, SpectrumResult, to_dict
from headscope.results.diff import Identity
from headscope.verdicts.reading import Results

__all__ = ["identity"]

#: In a result's provenance, and no setting: described apart, or of no importance.
_NO_SETTINGS = ("model", "data", "created", "command")
_LONGEST = 120
_ORDER = ("schema", "model", "data", "setting")


@dataclass(frozen=True)
class _Described:
    """Something that should be equal, and how it is shown."""

    value: Any
    text: str


def identity(old: Results, new: Results, sections: Iterable[str]) -> tuple[Identity, ...]:
    """List what differs, what matters most first; the same in several sections is said once."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for section in sections:
        for row in _differing(_described(old, section), _described(new, section)):
            found.setdefault(row, []).append(section)
    rows = [
        Identity(what, name, tuple(where), before, after)
        for (what, name, before, after), where in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: _ORDER.index(row.what)))


def _differing(
    old: dict[tuple[str, str], _Described], new: dict[tuple[str, str], _Described]
) -> Iterator[tuple[str, str, str, str]]:
    keys = dict.fromkeys([*old, *new])
    differ = [key for key in keys if old.get(key, _NONE).value != new.get(key, _NONE).value]
    for what, name in differ:
        # Another path to the same weights or text is no other model or text; where these differ,
        # their names are part of the description.
        if name.partition(" ")[0] in ("model", "data") and (name.partition(" ")[0], "") in differ:
            continue
        yield what, name, old.get((what, name), _NONE).text, new.get((what, name), _NONE).text


def _described(results: Results, section: str) -> dict[tuple[str, str], _Described]:
    """Everything that has to be equal for two runs to measure the same, by kind and name."""
    result = results.sections[section]
    origin = _mapping(results.raw[section].get("provenance"))
    model, data = _mapping(origin.get("model")), _mapping(origin.get("data"))
    names = {
        "model id": model.get("id"),
        "model revision": model.get("revision"),
        "data name": data.get("name"),
    }
    settings = {name: value for name, value in origin.items() if name not in _NO_SETTINGS}
    described = {
        ("schema", ""): _Described(result.schema, str(result.schema)),
        ("model", ""): _Described(_without(model, "id", "revision"), _model(model)),
        ("data", ""): _Described(_without(data, "name"), _data(data)),
    }
    for name, value in {**names, **settings, **dict(_settings(result))}.items():
        described["setting", name] = _Described(value, _text(value))
    return described


def _without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Leave some out, and what is null or empty: that is the same as not there."""
    return {k: v for k, v in values.items() if k not in names and v not in (None, [], {})}


def _model(model: Mapping[str, Any]) -> str:
    gone = model.get("removed_heads") or []
    less = f", {len(gone)} heads removed" if isinstance(gone, list) and gone else ""
    return _text(
        f"{model.get('id')} ({model.get('family')}, {model.get('n_layers')} layers x "
        f"{model.get('n_heads')} heads{less}, weights {str(model.get('weights_sha256'))[:8]})"
    )


def _data(data: Mapping[str, Any]) -> str:
    return _text(f"{data.get('name')} (sha256 {str(data.get('sha256'))[:8]})" if data else None)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# --- settings of single results -----------------------------------------------------------------


def _settings(result: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(result, ClassifyResult):
        corpus = result.corpus
        yield "sentences", corpus.sentences
        yield "language", corpus.language
        yield "frequencies", corpus.frequencies
        yield from ((f"threshold {name}", value) for name, value in result.thresholds.items())
    elif isinstance(result, SpectrumResult):
        yield from (("length", result.length), ("k", result.k), ("sequences", result.sequences))
        yield "low rank above", result.verdict.threshold
    elif isinstance(result, DepthResult):
        yield from (("length", result.length), ("sequences", result.sequences))
        yield "LayerNorm", result.layer_norm
    elif isinstance(result, PruneResult):
        yield from (("task", result.task), ("metric", result.metric))
        yield from (("examples", result.data.examples), ("evaluation data", result.data.name))
        if result.calibration is not None:
            calibration = dataclasses.replace(result.calibration, sha256="")
            yield "calibration", ", ".join(map(str, to_dict(calibration).values()))
    else:
        yield from _mapping(getattr(result, "settings", None)).items()


def _text(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


_NONE = _Described(None, "none")
