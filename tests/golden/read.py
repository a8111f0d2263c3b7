"""What a run left behind, as plain data: texts, fields, rows, figures, tensors; nothing of here.

What differs between two runs or two machines (folders, dates, versions, durations) is replaced by a
word in angle brackets.
"""

import csv
import hashlib
import importlib.metadata
import io
import json
import re
from collections import Counter
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from golden.figures import END, MARK, digest, round_all

_PACKAGES = ("headscope", "torch", "transformers", "onnxruntime", "onnx", "wordfreq", "safetensors")
_VERSIONS = {importlib.metadata.version(name): f"<{name}>" for name in _PACKAGES}
#: What is replaced in every text, in this order.
_MASKS = [
    (re.compile(r"\b20\d\d-\d\d-\d\d(T[\d:.]+(\+00:00|Z)?)?"), "<date>"),
    *(
        (re.compile(rf"(?<![\d.]){re.escape(v)}(?![\d.]*\d)"), word)
        for v, word in _VERSIONS.items()
    ),
    (re.compile(r"\babout \d[\d.]* (s|seconds|min|minutes|h)\b"), "about <time>"),
    # How many times as fast a saved model is, with or without its interval.
    (
        re.compile(r"\d+\.\d\d(\s+\(\d+\.\d\d\s+to\s+\d+\.\d\d\))?\s+times\s+as\s+fast"),
        "<ratio> times as fast",
    ),
    # Rounding errors of the certificate, by layer, and of the steps of an explanation.
    (
        re.compile(r"^((?:\w+ )?\d+ +)(?=.*e[-+]\d\d)[-+]?\d\S*( +[-+]?\d\S*){3}$", re.M),
        r"\1<error>",
    ),
    (re.compile(r"nearest to its tolerance: .{,60}?\s+a difference of\s+\S+", re.S), "<error>"),
    (re.compile(r"line \d+ column \d+ \(char \d+\)"), "<place>"),
    # What hangs on rounding, such as weights that were repaired; inputs have names by now.
    (re.compile(r"\b[0-9a-f]{64}\b"), "<hash>"),
    (re.compile(r"\b(?=[0-9]*[a-f])(?=[a-f]*\d)[0-9a-f]{12}\b"), "<hash>"),
]
#: Fields of JSON and columns of CSV that hold times and rounding errors, or are made of them.
_MASKED = re.compile(r"rounding_.*|created|.*seconds|threads")
#: What is masked of the estimates below ``speed``.
_ESTIMATE = ("value", "low", "high")
_LARGE = 300_000


def masked(text: str, places: dict[str, str]) -> str:
    """Replace what is of this run or machine; ``places`` names folders."""
    for path, word in places.items():
        text = text.replace(path, word)
    for pattern, word in _MASKS:
        text = pattern.sub(word, text)
    return text


def read(name: str, data: bytes, places: dict[str, str]) -> Any:
    """Read what was printed, or a file, by how its name ends; other bytes are a digest."""
    if data.startswith(MARK):
        return _plain(json.loads(data[len(MARK) : -len(END)]), places)
    kind = Path(name).suffix
    if kind in _READERS:
        with suppress(ValueError):  # it is damaged
            return _plain(_READERS[kind](data), places)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text or len(text) > _LARGE:
        return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return masked(text, places)


def _plain(value: Any, places: dict[str, str], timed: bool = False) -> Any:
    """Mask and round what is in lists and mappings."""
    if isinstance(value, dict):
        return {
            key: "<masked>"
            if _MASKED.fullmatch(key) or (timed and key in _ESTIMATE)
            else _plain(item, places, timed or key == "speed")
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(item, places, timed) for item in value]
    return masked(value, places) if isinstance(value, str) else round_all(value)


def _json(data: bytes) -> Any:
    if len(data) > 20 * _LARGE:
        return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return json.loads(data)


def _csv(data: bytes) -> Any:
    """Return a mapping a row."""
    header, *rows = [*csv.reader(io.StringIO(data.decode()))] or [[]]
    return [dict(zip(header, map(_cell, row), strict=True)) for row in rows] or header


def _cell(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


class _Page(HTMLParser):
    """What a reader sees of a page, and the data that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.data: list[Any] = []
        self._within: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style"):
            self._within = dict(attrs).get("type") or tag

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._within = None

    def handle_data(self, data: str) -> None:
        if self._within == "application/json":
            self.data.append(json.loads(data))
        elif self._within is None and data.strip():
            self.texts.append(" ".join(data.split()))


def _html(data: bytes) -> Any:
    page = _Page()
    page.feed(data.decode())
    return {"text": "\n".join(page.texts), "data": page.data}


def _safetensors(data: bytes) -> Any:
    import torch
    from safetensors.torch import load

    tensors = sorted(load(data).items())
    return {
        name: [str(t.dtype), list(t.shape), digest(_size(t.to(torch.float64).numpy()))]
        for name, t in tensors
    }


def _onnx(data: bytes) -> Any:
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_from_string(data).graph
    weights = [numpy_helper.to_array(tensor) for tensor in graph.initializer]
    return {
        "inputs": [value.name for value in graph.input],
        "outputs": [value.name for value in graph.output],
        "nodes": dict(sorted(Counter(node.op_type for node in graph.node).items())),
        "weights": sorted([list(w.shape), str(w.dtype), digest(_size(w))] for w in weights),
    }


def _size(array: np.ndarray) -> list[float]:
    """Return the norm and a weighted mean of an array."""
    flat = np.asarray(array, dtype=np.float64).ravel()
    weights = 2 + np.cos(np.arange(flat.size))
    return [float(np.linalg.norm(flat)), float(flat @ weights / max(flat.size, 1))]


_READERS = {
    ".json": _json,
    ".csv": _csv,
    ".html": _html,
    ".safetensors": _safetensors,
    ".onnx": _onnx,
}
