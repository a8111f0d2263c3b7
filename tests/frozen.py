"""Answers of slow oracles, kept in tests/frozen/ until something that they are made from changes.

``pytest --recompute-oracles`` computes every one anew and compares (CI does once a week);
``pytest --freeze-oracles`` computes and keeps those whose key has changed.
"""

import functools
import hashlib
import importlib.metadata
import inspect
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "frozen"
LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "scipy")
#: How far an oracle's floats may move on another CPU, of the larger of the two.
RELATIVE = 1e-4
ABSOLUTE = 1e-6

#: Set by conftest from the options above.
recompute = False
freeze = False


def frozen(
    name: str,
    compute: Callable[[], Any],
    *,
    code: Iterable[Any],
    inputs: Iterable[Path | str] = (),
) -> Any:
    """Return what an oracle says, as JSON gives it back (lists, dicts by string, numbers, text).

    Parameters
    ----------
    name : str
        Of the file in tests/frozen.
    compute : callable
        Runs the oracle; returns plain values.
    code : iterable of modules, classes or functions
        Everything of ours that the answer depends on: its source is part of the key.
    inputs : iterable of path or str
        Files and folders (by their content) and settings (as they are) that it reads.
    """
    key = _key(code, inputs)
    path = FOLDER / f"{name}.json"
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"key": None}
    if record["key"] == key and not recompute:
        return record["answer"]
    answer = json.loads(json.dumps(compute()))
    if record["key"] == key:
        difference = first_difference(record["answer"], answer)
        assert difference is None, (
            f"tests/frozen/{name}.json is not what its oracle says: {difference}"
        )
    elif freeze:
        FOLDER.mkdir(exist_ok=True)
        document = json.dumps({"key": key, "answer": answer}, separators=(",", ":"))
        path.write_text(document + "\n", encoding="utf-8")
    return answer


def first_difference(a: Any, b: Any, where: str = "") -> str | None:
    """Say where two plain documents differ by more than rounding; None where they do not."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        pairs = [(f"{where}.{key}", a[key], b[key]) for key in a]
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        pairs = [(f"{where}[{i}]", *values) for i, values in enumerate(zip(a, b, strict=True))]
    elif isinstance(a, float) and isinstance(b, float | int):
        same = math.isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE) or (a != a and b != b)
        return None if same else f"{where}: {a} and {b}"
    else:
        return None if a == b else f"{where}: {str(a)[:80]} and {str(b)[:80]}"
    return next((said for pair in pairs if (said := first_difference(*pair[1:], pair[0]))), None)


def _key(code: Iterable[Any], inputs: Iterable[Path | str]) -> str:
    digest = hashlib.sha256()
    for library in LIBRARIES:
        digest.update(f"{library} {importlib.metadata.version(library)}\n".encode())
    for item in code:
        digest.update(inspect.getsource(item).encode())
    for item in inputs:
        digest.update(_content(item) if isinstance(item, Path) else item.encode())
    return digest.hexdigest()


@functools.cache
def _content(path: Path) -> bytes:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    digests = []
    for file in filter(Path.is_file, files):
        with file.open("rb") as stream:
            digests.append(f"{file.name} {hashlib.file_digest(stream, 'sha256').hexdigest()}")
    return "\n".join(digests).encode()
