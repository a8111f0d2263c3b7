"""Real results of every command on a tiny model, as JSON files, and ways to change them."""

import copy
import json
from pathlib import Path
from typing import Any

import headscope
from headscope.core.roles import Thresholds
from headscope.core.serialise import to_dict, to_json

Json = Any
#: What the certificate of a good run says; results of a tiny model are made without one.
PASSED = {"passed": True, "max_abs_hidden": 1e-6, "max_abs_pattern": 1e-7, "calls": 2, "layers": 2}


def make_results(model: Path, folder: Path) -> Path:
    """Run every command on a model and write each result under its own name."""
    loaded = headscope.load(str(model), task_head="auto")
    plain = {"validate": False}
    transfer = {"sizes": [16], "variants": ["head"], "random": [], "seeds": 2, "steps": 2}
    transfer |= {"search": False, "train_limit": 60, "test_limit": 20}
    prune = {"methods": ["magnitude", "random"], "repairs": ["none"], "step": 0.25, "limit": 20}
    prune |= {"calibration_limit": 12}
    results = {
        "validate": headscope.validate(loaded),
        # Untrained heads are broad; without that role the tests give roles as they like.
        "classify": headscope.classify(
            loaded, limit=40, control=True, thresholds=Thresholds(broad_relative=1.0), **plain
        ),
        "rank": headscope.rank(loaded, fresh=False, control_seeds=2, **plain),
        "spectrum": headscope.spectrum(loaded, length=16, sequences=4, **plain),
        "attribute": headscope.attribute(
            loaded, "the cat sat", "a dog ran", tokens=True, curves=True, **plain
        ),
        "explain": headscope.explain(loaded, "the cat sat on the mat", **plain),
        "depth": headscope.depth(loaded, length=16, sequences=4, **plain),
        "flow": headscope.flow(loaded, limit=40, **plain),
        "linear": headscope.linear(loaded, sentences=16, control=False, **plain),
        "symmetric": headscope.symmetric(loaded, sentences=16, **plain),
        "transfer": headscope.transfer(loaded, **transfer, **plain),
        "prune": headscope.prune(loaded, **prune, **plain),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, result in results.items():
        only_plain(to_dict(result), name)
        data = json.loads(to_json(result))
        if "validation" in data:
            data["validation"] = PASSED
        write(folder / f"{name}.json", data)
    write(folder / "insights.json", INSIGHTS)
    return folder


def only_plain(data: Any, where: str) -> None:
    """Check that a result holds Python's own values: a report is judged before it is read back."""
    if isinstance(data, dict):
        for key, value in data.items():
            only_plain(value, f"{where}.{key}")
    elif isinstance(data, list | tuple):
        for value in data:
            only_plain(value, f"{where}[]")
    else:
        assert data is None or type(data) in (int, float, str, bool), (where, type(data))


def insight(number: int, claim: str, verdict: str) -> Json:
    empty = {"measured": "", "control": "", "rule": "", "values": {}, "parts": []}
    return {"number": number, "claim": claim, "verdict": verdict, **empty}


INSIGHTS = {
    "schema": 2,
    "provenance": {},
    "validation": PASSED,
    "thresholds": {},
    "kept_roles": None,
    "insights": [insight(0, "asymmetric", "holds"), insight(7, "collapse", "mixed")],
}


def write(path: Path, data: Json) -> Path:
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def read(path: Path) -> Json:
    return json.loads(path.read_text(encoding="utf-8"))


def changed(data: Json, *path: str | int, to: Any) -> Json:
    """Return a copy in which the value at a path is another (or a function of the old one)."""
    copied = copy.deepcopy(data)
    inner = copied
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = to(inner[path[-1]]) if callable(to) else to
    return copied


def plant(folder: Path, name: str, *path: Any, to: Any) -> None:
    """Change one value in a result of a folder."""
    file = folder / f"{name}.json"
    write(file, changed(read(file), *path, to=to))
