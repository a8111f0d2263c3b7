"""Raw values of every command, frozen, with a JSON round trip; display lives in report/ and cli/.

A rate that has no trial behind it is None (JSON null), never NaN. Later versions add fields and
never rename one; ``SCHEMA`` counts up when the meaning of a field changes.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

__all__ = [
    "SCHEMA",
    "LayerCheck",
    "ValidationResult",
    "from_dict",
    "to_dict",
    "to_json",
]

SCHEMA = 1

R = TypeVar("R")


def to_dict(result: Any) -> Any:
    """Turn a result into plain dicts, lists, numbers and strings."""
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {f.name: to_dict(getattr(result, f.name)) for f in dataclasses.fields(result)}
    if isinstance(result, dict):
        return {key: to_dict(value) for key, value in result.items()}
    if isinstance(result, list | tuple):
        return [to_dict(value) for value in result]
    return result


def to_json(data: Any, *, indent: int | None = 1) -> str:
    """Write a result (or plain data) as JSON; refuses NaN and infinity."""
    return json.dumps(to_dict(data), indent=indent, allow_nan=False, ensure_ascii=False)


def from_dict(cls: type[R], data: Any) -> R:
    """Build a result of class ``cls`` from what :func:`to_dict` gave."""
    return typing.cast("R", _convert(cls, data))


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _convert(kind: Any, data: Any) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if data is None or kind is Any:
        return data
    if origin in (typing.Union, types.UnionType):
        return _convert(next(arg for arg in args if arg is not type(None)), data)
    if dataclasses.is_dataclass(kind):
        hints = _hints(typing.cast(type, kind))
        known = {f.name for f in dataclasses.fields(kind)}
        return kind(**{k: _convert(hints[k], v) for k, v in data.items() if k in known})
    if origin is tuple:
        return tuple(_convert(args[0], item) for item in data)
    if origin is dict:
        return {key: _convert(args[1], value) for key, value in data.items()}
    return float(data) if kind is float else data


# --- validation -------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerCheck:
    """One layer of the certificate.

    Attributes
    ----------
    stack : str
    layer : int
    calls : int
        How often our attention ran; must be 1.
    max_abs_pattern, max_abs_out : float or None
        Largest difference from the model's eager pattern and attention output (after W_O);
        None if there was nothing to compare.
    """

    stack: str
    layer: int
    calls: int
    max_abs_pattern: float | None
    max_abs_out: float | None


@dataclass(frozen=True)
class ValidationResult:
    """The certificate: does our attention equal the model's on a padded batch?

    Attributes
    ----------
    passed : bool
    layers : tuple of LayerCheck
    max_abs_hidden_eager, max_abs_hidden_sdpa : float or None
        Largest difference of the last hidden state, over real tokens.
    tolerance : dict
        For ``pattern``, ``out`` and ``hidden``.
    reasons : tuple of str
        Why it failed; empty if it passed.
    sequences, tokens, padded : int
        Size of the batch: sequences, real tokens, padded positions.
    mask_reached : bool
        Whether every layer received the padding mask.
    """

    passed: bool
    layers: tuple[LayerCheck, ...]
    max_abs_hidden_eager: float | None
    max_abs_hidden_sdpa: float | None
    tolerance: dict[str, float]
    reasons: tuple[str, ...] = ()
    sequences: int = 0
    tokens: int = 0
    padded: int = 0
    mask_reached: bool = False
    provenance: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    def concluded(self, reasons: list[str]) -> ValidationResult:
        """Return the same certificate with its verdict."""
        return dataclasses.replace(self, passed=not reasons, reasons=tuple(reasons))

    @property
    def max_abs_pattern(self) -> float | None:
        """Largest pattern difference over all layers."""
        return _max(check.max_abs_pattern for check in self.layers)

    @property
    def max_abs_hidden(self) -> float | None:
        """Largest difference of the last hidden state, from eager and SDPA."""
        return _max((self.max_abs_hidden_eager, self.max_abs_hidden_sdpa))


def _max(values: typing.Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known, default=None)
