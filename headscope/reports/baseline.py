"""One side of a comparison: read off results, or kept in ``baseline.json``, one small file.

A report takes megabytes and dozens of files. What ``headscope diff`` compares of it fits into one
file, which can stand under version control: every fact with seven digits, and the conditions under
which the results were made.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from headscope.core.errors import InputError
from headscope.core.safe_text import visible
from headscope.core.serialise import from_dict, to_dict
from headscope.models.validation import certificate_of
from headscope.reports.diff_facts import Facts, Key, Labels, Number, facts_of, settings_of
from headscope.reports.reading import Results, load_json, read_results, results_of

#: The file's name in a report's folder.
BASELINE = "baseline.json"
_LONGEST = 120  # Characters of a setting
#: In a result's provenance, and no setting: described apart, or of no importance.
_NO_SETTINGS = ("model", "data", "created", "command", "tokenizer", "warnings")
#: In a result's model, and not what tells one model from another.
_NOT_OF_MODEL = ("id", "revision", "pooling", "pooling_from")

V = TypeVar("V")


class Condition(NamedTuple):
    """Something that should be equal, and how it is shown."""

    value: object = None
    text: str = "none"


NO_CONDITION = Condition()


def conditions(results: Results, section: str) -> dict[tuple[str, str], Condition]:
    """Return everything that has to be equal for runs to measure the same, by kind and name."""

    def mapping(value: object) -> Mapping[str, object]:
        return value if isinstance(value, Mapping) else {}

    def without(values: Mapping[str, object], *names: str) -> dict[str, object]:
        """Leave some out, and what is null or empty: that is the same as not there."""
        return {k: v for k, v in values.items() if k not in names and v not in (None, [], {})}

    def text(value: object) -> str:
        words = "none" if value is None else str(value)
        return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 3]}..."

    result = results.sections[section]
    origin = mapping(results.raw[section].get("provenance"))
    model, data = mapping(origin.get("model")), mapping(origin.get("data"))
    removed = model.get("removed_heads")
    less = f", {len(removed)} heads removed" if isinstance(removed, list) and removed else ""
    settings = {
        "model id": model.get("id"),
        "model revision": model.get("revision"),
        "data name": data.get("name"),
        # Older results are all of means; unit length at the end changes no cosine, and nothing
        # else is made of embeddings.
        "pooling": str(model.get("pooling") or "mean").removesuffix(", normalize"),
        **{name: value for name, value in origin.items() if name not in _NO_SETTINGS},
        **settings_of(result),
    }
    model_text = (
        f"{model.get('id')} ({model.get('family')}, {model.get('n_layers')} layers x "
        f"{model.get('n_heads')} heads{less}, weights {str(model.get('weights_sha256'))[:8]})"
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
    """What one side of a comparison says."""

    name: str  # As the user gave it
    schemas: dict[str, int]  # By section
    facts: Facts
    conditions: dict[str, dict[tuple[str, str], Condition]]  # By section
    not_valid: tuple[str, ...]  # What is not known to equal the model, with the reason
    metric: str = ""  # What pruning is judged by; empty without it
    #: The results as they were written; nothing where only the facts are known.
    raw: dict[str, dict[str, Any]] = field(default_factory=dict)


def side_of(results: Results) -> Side:
    """Read the facts and conditions off some results."""
    return Side(
        name=results.name,
        schemas={name: result.schema for name, result in results.sections.items()},
        facts=facts_of(results, results.sections),
        conditions={name: conditions(results, name) for name in results.sections},
        not_valid=tuple(_not_valid(results)),
        metric=results.prune.metric if results.prune else "",
        raw=results.raw,
    )


def _not_valid(results: Results) -> Iterator[str]:
    """Say which results are not known to be of the model's own attention."""
    certificates = {name: certificate_of(result) for name, result in results.sections.items()}
    if all(certificate is None for certificate in certificates.values()):
        yield "it carries no certificate"
    for name, certificate in certificates.items():
        if certificate is not None and certificate.passed is not True:
            words = "not validated" if certificate.passed is None else "validation FAILED"
            reasons = "; ".join(getattr(certificate, "reasons", ())[:3])
            yield f"{name}: {words}{f' ({reasons})' if reasons else ''}"


# --- the file ---

_ByName = dict[str, dict[str, V]]  # By what a fact is called, then by where it was measured
#: A value; with its interval; and 1 or -1 where more or less is better.
_Numbers = tuple[float | None, ...]


@dataclass(frozen=True)
class _Curves:
    """Curves over the same points."""

    points: tuple[str, ...]
    values: dict[str, tuple[_Numbers, ...]]  # By where they were measured


@dataclass(frozen=True)
class _Section:
    """The facts of one section, as the file has them."""

    schema: int
    conditions: tuple[tuple[Any, ...], ...]  # Kind, name, value and how it is shown
    numbers: _ByName[_Numbers]
    metrics: _ByName[_Numbers]
    curves: dict[str, tuple[_Curves, ...]]
    labels: _ByName[tuple[str, ...]]  # The first is the primary one, or empty
    texts: _ByName[str]


@dataclass(frozen=True)
class _File:
    baseline: int  # Version of this layout
    metric: str
    not_valid: tuple[str, ...]
    sections: dict[str, _Section]


def baseline_json(results: Results) -> str:
    """Write what ``headscope diff`` compares of some results as one small JSON document."""
    side = side_of(results)
    sections = {}
    for name, schema in side.schemas.items():
        facts = side.facts
        rows = [(*k, *condition) for k, condition in side.conditions[name].items()]
        sections[name] = _Section(
            schema,
            tuple(rows),
            _grouped(name, facts.numbers, _packed),
            _grouped(name, facts.metrics, _packed),
            _packed_curves(name, facts.curves),
            _grouped(name, facts.labels, lambda item: (item.primary, *sorted(item.names))),
            _grouped(name, facts.texts, str),
        )
    document = to_dict(_File(1, side.metric, side.not_valid, sections))
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace('},"', '},\n"') + "\n"  # lines, so that version control shows what moved


def read_side(path: Path) -> Side:
    """Read results or a baseline; of a folder without results its ``baseline.json``."""
    if path.is_dir():
        if not (path / "report.json").exists() and (path / BASELINE).exists():
            path = path / BASELINE
        else:
            return side_of(read_results(path))
    document = load_json(path)
    if not isinstance(document, dict) or "baseline" not in document:
        return side_of(results_of(document, str(path)))
    try:
        return _side(from_dict(_File, document), str(path))
    except (TypeError, ValueError) as error:
        version = document["baseline"]
        later = " A later headscope wrote it." if version != 1 else ""
        raise InputError(f"{visible(path)} is damaged: {visible(error)}.{later}") from None


def _side(file: _File, name: str) -> Side:
    if file.baseline != 1:
        raise ValueError(f"this headscope reads version 1, not {file.baseline}")
    facts = Facts()
    for section, saved in file.sections.items():
        _spread(section, saved.numbers, facts.numbers, _unpacked)
        _spread(section, saved.metrics, facts.metrics, _unpacked)
        _spread(section, saved.labels, facts.labels, lambda x: Labels(frozenset(x[1:]), x[0]))
        _spread(section, saved.texts, facts.texts, str)
        for called, groups in saved.curves.items():
            for curves in groups:
                for where, values in curves.values.items():
                    points = zip(curves.points, map(_unpacked, values), strict=True)
                    facts.curves[section, where, called] = dict(points)
    return Side(
        name=name,
        schemas={section: saved.schema for section, saved in file.sections.items()},
        facts=facts,
        conditions={
            section: {(kind, called): Condition(value, text) for kind, called, value, text in rows}
            for section, rows in ((s, saved.conditions) for s, saved in file.sections.items())
        },
        not_valid=file.not_valid,
        metric=file.metric,
    )


def _grouped(
    section: str, facts: Mapping[Key, Any], pack: Callable[[Any], V]
) -> dict[str, dict[str, V]]:
    groups: dict[str, dict[str, V]] = defaultdict(dict)
    for (of, where, name), fact in facts.items():
        if of == section:
            groups[name][where] = pack(fact)
    return dict(groups)


def _spread(
    section: str, saved: _ByName[Any], facts: dict[Key, Any], unpack: Callable[[Any], Any]
) -> None:
    for name, by_place in saved.items():
        facts |= {(section, where, name): unpack(fact) for where, fact in by_place.items()}


def _packed_curves(
    section: str, facts: Mapping[Key, Mapping[str, Number]]
) -> dict[str, tuple[_Curves, ...]]:
    groups: dict[str, dict[tuple[str, ...], dict[str, Any]]] = defaultdict(dict)
    for (of, where, name), curve in facts.items():
        if of == section:
            values = tuple(map(_packed, curve.values()))
            groups[name].setdefault(tuple(curve), {})[where] = values
    return {
        name: tuple(_Curves(points, values) for points, values in by_points.items())
        for name, by_points in groups.items()
    }


def _packed(number: Number) -> _Numbers:
    interval = number.interval or ((None, None) if number.better else ())
    packed = (number.value, *interval, *([number.better] if number.better else []))
    return tuple(None if value is None else float(f"{value:.7g}") for value in packed)


def _unpacked(packed: _Numbers) -> Number:
    value, low, high, better = (*packed, *(None,) * 4)[:4]
    interval = None if low is None or high is None else (low, high)
    return Number(value, interval, int(better or 0))
