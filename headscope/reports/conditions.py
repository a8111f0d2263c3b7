"""The conditions under which results were measured: schema, model, data and settings.

``conditions_of`` reads them off a result, ``unequal_conditions`` compares those of several. Numbers
can be compared only where these are equal, so every difference between them is said first. Another
path to the same weights or to the same text is no other model or text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import chain
from typing import Any, NamedTuple

from headscope.analyses.classify.result import ClassifyResult
from headscope.core.serialise import to_dict
from headscope.pruning.result import PruneResult
from headscope.reports.reading import Results
from headscope.reports.result import Unlike
from headscope.show.cells import model_size
from headscope.stats.compared import Setting, is_plain, marked

_LONGEST = 120  # Characters of a setting
#: Keys of a result's provenance that are no settings: compared elsewhere, or irrelevant.
_NO_SETTINGS = ("model", "data", "created", "command", "tokenizer", "warnings")
#: Keys of a result's model that do not tell one model from another.
_NOT_OF_MODEL = ("id", "revision", "pooling", "pooling_from", "stacks")
#: The kinds of conditions, what matters most first.
KINDS = ("schema", "model", "data", "setting")
#: What differs between two models by nature, or does not matter where the data are the same.
_OF_THE_MODEL = {"model id", "model revision", "data name", "LayerNorm"}


class Condition(NamedTuple):
    """A condition that should be equal, and how it is shown."""

    value: object = None
    text: str = "none"


#: The conditions of a section, by kind (``setting``) and name (``seed``; empty but for settings).
Conditions = dict[tuple[str, str], Condition]
#: Of a section that does not state one.
NOT_STATED = Condition()


def conditions_of(results: Results, section: str) -> Conditions:
    """Return what has to be equal for the results of a section to be compared."""
    result = results.sections[section]
    provenance = _mapping(results.raw[section].get("provenance"))
    model = _mapping(provenance.get("model"))
    data = _mapping(provenance.get("data"))
    settings = {
        "model id": model.get("id"),
        "model revision": model.get("revision"),
        "data name": data.get("name"),
        # Normalising embeddings changes no cosine, and only cosines are computed from them.
        "pooling": str(model.get("pooling") or "mean").removesuffix(", normalize"),
    }
    settings |= {key: value for key, value in provenance.items() if key not in _NO_SETTINGS}
    settings |= settings_of(result)

    weights = str(model.get("weights_sha256"))[:8]
    model_text = f"{model.get('id')} ({model.get('family')}, {size_of(model)}, weights {weights})"
    data_text = f"{data.get('name')} (sha256 {str(data.get('sha256'))[:8]})" if data else None
    return {
        ("schema", ""): Condition(result.schema, str(result.schema)),
        ("model", ""): Condition(_stated(model, _NOT_OF_MODEL), _shortened(model_text)),
        ("data", ""): Condition(_stated(data, ("name",)), _shortened(data_text)),
        **{
            ("setting", name): Condition(value, _shortened(value))
            for name, value in settings.items()
        },
    }


def _mapping(value: object) -> Mapping[str, Any]:
    """Return a value of a file if it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _stated(values: Mapping[str, object], without: Sequence[str]) -> dict[str, object]:
    """Leave out some names, and null or empty values, which count as absent."""
    return {
        name: value
        for name, value in values.items()
        if name not in without and value not in (None, [], {})
    }


def _shortened(value: object) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def size_of(model: Mapping[str, object]) -> str:
    """Say how many layers and heads the model of a provenance has, and how many it has lost."""
    size = model_size(model)
    removed = model.get("removed_heads")
    if isinstance(removed, list) and removed:
        return f"{size}, {len(removed)} heads removed"
    return size


def settings_of(result: Any) -> dict[str, object]:
    """Return by name what a result was measured with, beyond its provenance."""
    settings = _marked_settings(result)
    if isinstance(result, ClassifyResult):
        corpus = result.corpus
        unit = "pairs" if corpus.pairs else "sentences"
        settings[unit] = corpus.sentences
        settings["stacks"] = ", ".join(result.stacks)
        settings |= {f"threshold {name}": value for name, value in result.thresholds.items()}
    if isinstance(result, PruneResult):
        settings["examples"] = result.data.examples
        settings["evaluation data"] = result.data.name
        if result.calibration is not None:
            chosen_on = to_dict(result.calibration)
            del chosen_on["sha256"]
            settings["calibration"] = ", ".join(f"{k} {v}" for k, v in chosen_on.items())
    return settings


def _marked_settings(holder: Any) -> dict[str, object]:
    """Return the marked fields of a result, and those of the parts that it holds."""
    settings: dict[str, object] = {}
    for field, mark in marked(type(holder), Setting):
        value = getattr(holder, field)
        if isinstance(value, dict):
            settings |= {key: value.get(key) for key in mark.keys or value}
        elif is_dataclass(value):
            settings |= _marked_settings(value)
        elif value is not None or is_plain(holder, field):
            name = mark.name or field.replace("_", " ")
            settings[name] = list(value) if isinstance(value, tuple) else value
    return settings


def unequal_conditions(
    runs: Sequence[Mapping[str, Conditions]], sections: Iterable[str], *, same_model: bool
) -> list[Unlike]:
    """List the conditions that differ between the runs that have a section, each once.

    ``runs`` are the conditions of each by section. ``same_model`` says whether the model should be
    the same; what differs between models by nature is left out where it should not.
    """
    # By difference (kind, name, text of each run): the sections that it concerns
    concerned: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for section in sections:
        by_run = [run.get(section) for run in runs]  # None where a run lacks the section
        different = _different_keys([stated for stated in by_run if stated is not None])
        for kind, name in different:
            is_of_model = kind == "model" or name in _OF_THE_MODEL
            # "model id" says nothing more where "model" itself differs.
            is_said_already = (name.partition(" ")[0], "") in different
            if is_said_already or (is_of_model and not same_model):
                continue
            texts = [
                "-" if stated is None else stated.get((kind, name), NOT_STATED).text
                for stated in by_run
            ]
            concerned.setdefault((kind, name, tuple(texts)), []).append(section)
    unlike = [
        Unlike(kind, name, tuple(names), texts) for (kind, name, texts), names in concerned.items()
    ]
    return sorted(unlike, key=lambda row: KINDS.index(row.what))


def _different_keys(by_run: Sequence[Conditions]) -> list[tuple[str, str]]:
    """List the conditions that are not the same in all runs, in the order in which they come."""
    different = []
    for key in dict.fromkeys(chain.from_iterable(by_run)):
        values = [stated.get(key, NOT_STATED).value for stated in by_run]
        if any(value != values[0] for value in values):
            different.append(key)
    return different
