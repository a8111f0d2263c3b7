"""One side of a comparison: read off results, or kept in ``baseline.json``, one small file.

A report takes megabytes and dozens of files. What comparing needs of it fits into one file, which
can stand under version control: every fact with seven digits, and the conditions under which the
results were made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from headscope.core.errors import InputError
from headscope.core.safe_text import visible
from headscope.core.serialise import from_dict
from headscope.reports.facts import Fact, Facts, Labels, Number, facts_of, settings_of
from headscope.reports.reading import Results, load_json, read_results, results_of

#: The file's name in a report's folder.
BASELINE = "baseline.json"
_LONGEST = 120  # Characters of a setting
#: Keys of a result's provenance that are no settings: compared elsewhere, or irrelevant.
_NO_SETTINGS = ("model", "data", "created", "command", "tokenizer", "warnings")
#: Keys of a result's model that do not tell one model from another.
_NOT_OF_MODEL = ("id", "revision", "pooling", "pooling_from")


class Condition(NamedTuple):
    """A condition that should be equal, and how it is shown."""

    value: object = None
    text: str = "none"


#: What the results of a section were made under, by kind (``setting``) and name (``seed``).
Conditions = dict[tuple[str, str], Condition]


def size_of(model: Mapping[str, object]) -> str:
    """Say how many layers and heads the model of a provenance has, and how many it has lost."""
    removed = model.get("removed_heads")
    less = f", {len(removed)} heads removed" if isinstance(removed, list) and removed else ""
    return f"{model.get('n_layers', '?')} layers x {model.get('n_heads', '?')} heads{less}"


def conditions(results: Results, section: str) -> Conditions:
    """Return the conditions that have to be equal for a comparison, by kind and name."""

    def mapping(name: str, inside: Mapping[str, object]) -> Mapping[str, object]:
        value = inside.get(name)
        return value if isinstance(value, Mapping) else {}

    def without(values: Mapping[str, object], *names: str) -> dict[str, object]:
        """Leave out some names, and null or empty values, which count as absent."""
        return {k: v for k, v in values.items() if k not in names and v not in (None, [], {})}

    def text(value: object) -> str:
        words = "none" if value is None else str(value)
        return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 3]}..."

    result = results.sections[section]
    origin = mapping("provenance", results.raw[section])
    model = mapping("model", origin)
    data = mapping("data", origin)
    settings = {
        "model id": model.get("id"),
        "model revision": model.get("revision"),
        "data name": data.get("name"),
        # Normalising embeddings changes no cosine, and only cosines are computed from them.
        "pooling": str(model.get("pooling") or "mean").removesuffix(", normalize"),
        **{name: value for name, value in origin.items() if name not in _NO_SETTINGS},
        **settings_of(result),
    }
    model_text = (
        f"{model.get('id')} ({model.get('family')}, {size_of(model)}, "
        f"weights {str(model.get('weights_sha256'))[:8]})"
    )
    data_text = f"{data.get('name')} (sha256 {str(data.get('sha256'))[:8]})" if data else None
    return {
        ("schema", ""): Condition(result.schema, str(result.schema)),
        ("model", ""): Condition(without(model, *_NOT_OF_MODEL), text(model_text)),
        ("data", ""): Condition(without(data, "name"), text(data_text)),
        **{("setting", name): Condition(value, text(value)) for name, value in settings.items()},
    }


@dataclass(frozen=True)
class Side:
    """One side of a comparison."""

    name: str  # As the user gave it
    facts: Facts
    conditions: dict[str, Conditions]  # By section: of every one that there is
    not_valid: tuple[str, ...]  # Results without a passed certificate, with the reason
    metric: str = ""  # The metric that pruning is judged by; empty without pruning
    #: The results as they were written; nothing where only the facts are known.
    raw: dict[str, dict[str, Any]] = field(default_factory=dict)


def side_of(results: Results) -> Side:
    """Read the facts and conditions off some results."""
    not_valid = [] if results.certificates else ["it carries no certificate"]
    for name, certificate in results.certificates.items():
        if certificate.passed is not True:
            words = "not validated" if certificate.passed is None else "validation FAILED"
            reasons = "; ".join(getattr(certificate, "reasons", ())[:3])
            not_valid.append(f"{name}: {words}{f' ({reasons})' if reasons else ''}")
    return Side(
        name=results.name,
        facts=facts_of(results, results.sections),
        conditions={name: conditions(results, name) for name in results.sections},
        not_valid=tuple(not_valid),
        metric=results.prune.metric if results.prune else "",
        raw=results.raw,
    )


# --- the file ---


@dataclass(frozen=True)
class _File:
    baseline: int  # Version of this layout
    metric: str
    not_valid: tuple[str, ...]
    #: By section, as the rest: kind, name, value and how it is shown.
    conditions: dict[str, tuple[tuple[Any, ...], ...]]
    facts: dict[str, dict[str, dict[str, Any]]]  # By where they were measured, then by name


_VERSION = 3


def baseline_json(results: Results) -> str:
    """Write what ``headscope diff`` compares of some results as one small JSON document."""
    side = side_of(results)
    rows = {
        section: tuple((*key, *condition) for key, condition in conditions.items())
        for section, conditions in side.conditions.items()
    }
    facts: dict[str, dict[str, dict[str, Any]]] = {}
    for (section, where, name), fact in side.facts.items():
        facts.setdefault(section, {}).setdefault(where, {})[name] = _plain(fact)
    file = _File(_VERSION, side.metric, side.not_valid, rows, facts)
    text = json.dumps(vars(file), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace('},"', '},\n"') + "\n"  # lines, so that version control shows what moved


def read_side(path: Path) -> Side:
    """Read results or a baseline; of a folder without results its ``baseline.json``."""
    if path.is_dir():
        if (path / "report.json").exists() or not (path / BASELINE).exists():
            return side_of(read_results(path))
        path = path / BASELINE
    document = load_json(path)
    if not isinstance(document, dict) or "baseline" not in document:
        return side_of(results_of(document, str(path)))
    version = document["baseline"]
    try:
        if version != _VERSION:
            raise ValueError(f"this headscope reads version {_VERSION}, not {version}")
        file = from_dict(_File, document)
        facts = {
            (section, where, name): _fact(fact)
            for section, places in file.facts.items()
            for where, named in places.items()
            for name, fact in named.items()
        }
        conditions = {
            section: {(kind, name): Condition(value, text) for kind, name, value, text in rows}
            for section, rows in file.conditions.items()
        }
        return Side(str(path), facts, conditions, file.not_valid, file.metric)
    except (TypeError, ValueError) as error:
        other = "" if version == _VERSION else " Another version of headscope wrote it."
        raise InputError(f"{visible(path)} is damaged: {visible(error)}.{other}") from None


def _plain(fact: Fact) -> Any:
    """Write a fact without what its class has by default, numbers with seven digits."""
    if isinstance(fact, Labels):
        return {"labels": sorted(fact.names), "primary": fact.primary}
    if isinstance(fact, dict):
        return {"points": {point: _plain(number) for point, number in fact.items()}}
    if isinstance(fact, str):
        return fact
    known = {f.name: v for f in fields(fact) if (v := getattr(fact, f.name)) != f.default}
    return {k: float(f"{v:.7g}") if isinstance(v, float) else v for k, v in known.items()}


def _fact(data: Any) -> Fact:
    kinds = data if isinstance(data, dict) else {}
    if isinstance(data, str):
        return data
    if "points" in kinds:
        return from_dict(dict[str, Number], data["points"])
    if "labels" in kinds:
        labels = from_dict(tuple[str, ...], data["labels"])
        return Labels(frozenset(labels), from_dict(str, data.get("primary")))
    return from_dict(Number, data)
