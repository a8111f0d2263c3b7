"""Raw values of every command, frozen, with a JSON round trip; display lives in report/ and cli/.

A rate that has no trial behind it is None (JSON null), never NaN. Later versions add fields and
never rename one; ``SCHEMA`` counts up when the meaning of a field changes.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pandas

__all__ = [
    "SCHEMA",
    "ClassifyResult",
    "ControlResult",
    "CorpusInfo",
    "HeadResult",
    "Label",
    "LayerCheck",
    "PositionalScore",
    "RareScore",
    "SyntacticScore",
    "ValidationResult",
    "ValidationSummary",
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
        build = typing.cast("Callable[..., Any]", kind)
        return build(**{k: _convert(hints[k], v) for k, v in data.items() if k in known})
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
    """The certificate: our attention equals the model's on a padded batch, or why it does not.

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


# --- classification ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Label:
    """One role that a head has earned, with what a reader needs to doubt it.

    Attributes
    ----------
    role : str
        positional, syntactic, rare, special, punctuation, broad, self or duplicate.
    detail : str
        The offset (``-1``), the relation and direction (``obj dep->head``), the token, or empty.
    score, baseline : float
        The measured rate or mean, and what it must beat.
    interval : tuple of two floats
        95% interval of the score: Wilson for rates, sentence-clustered normal for means.
    p_adjusted : float
        Benjamini-Hochberg adjusted p-value against the baseline.
    """

    role: str
    detail: str
    score: float
    baseline: float
    interval: tuple[float, ...]
    p_adjusted: float


@dataclass(frozen=True)
class PositionalScore:
    """Hit rates by offset; ``score`` is the largest, at ``offset``."""

    score: float | None
    offset: int | None
    rates: dict[str, float | None]
    mass: dict[str, float | None]
    interval: tuple[float, ...]
    chance: float | None
    p_adjusted: float


@dataclass(frozen=True)
class SyntacticScore:
    """One relation and direction: accuracy against the best fixed offset on the same trials.

    ``uniform`` is the accuracy of evenly spread attention, the second control; ``p_adjusted`` is
    of the worse of the two paired tests.
    """

    relation: str
    direction: str
    accuracy: float
    baseline: float
    baseline_offset: int
    trials: int
    uniform: float
    interval: tuple[float, ...]
    p_adjusted: float
    labelled: bool


@dataclass(frozen=True)
class RareScore:
    """Rate on the rarest word, with the rates of chance, a random word and uniform attention."""

    rate: float | None
    two_rarest: float | None
    chance: float | None
    queries: int
    null: float | None
    uniform: float | None
    interval: tuple[float, ...]
    p_adjusted: float


@dataclass(frozen=True)
class HeadResult:
    """Everything measured about one head.

    Attributes
    ----------
    primary : str
        The first of its roles in the order positional, syntactic, rare, special, punctuation,
        broad; ``none`` if it has none of these.
    roles : tuple of str
    labels : tuple of Label
        One for each role, and one for each relation of a syntactic head.
    syntactic : tuple of SyntacticScore
        Every relation and direction, labelled or not; empty without trees.
    confidence : float
        Mean largest weight on a content key.
    entropy : float
        Mean row entropy, nats.
    special_mass, punctuation_mass : float
        Mean mass on special tokens, on punctuation.
    self_rate, duplicate_rate : float
        Share of rows that look at themselves; of repeated tokens that look at another copy.
    """

    layer: int
    head: int
    primary: str
    roles: tuple[str, ...]
    labels: tuple[Label, ...]
    positional: PositionalScore
    syntactic: tuple[SyntacticScore, ...]
    rare: RareScore
    confidence: float | None
    entropy: float | None
    relative_entropy: float | None
    special_mass: float | None
    first_special_mass: float | None
    last_special_mass: float | None
    punctuation_mass: float | None
    self_rate: float | None
    duplicate_rate: float | None

    @property
    def name(self) -> str:
        """``L3H5``."""
        return f"L{self.layer}H{self.head}"


@dataclass(frozen=True)
class CorpusInfo:
    """What was read: ``sentences`` were measured, ``skipped`` left out, ``queries`` are tokens."""

    name: str
    sha256: str
    sentences: int
    skipped: int
    queries: int
    trees: bool
    language: str | None
    frequencies: str


@dataclass(frozen=True)
class ControlResult:
    """The same measurement on the same architecture with random weights.

    Attributes
    ----------
    seed : int
    heads : int
    syntactic, rare, positional : int
        Heads that earned such a label: false positives, for the first two.
    false_positives : tuple of str
        Each as ``L0H3 syntactic obj dep->head``.
    """

    seed: int
    heads: int
    syntactic: int
    rare: int
    positional: int
    false_positives: tuple[str, ...]


@dataclass(frozen=True)
class ValidationSummary:
    """The certificate as other commands carry it; ``passed`` is None if it was not asked for."""

    passed: bool | None
    max_abs_hidden: float | None = None
    max_abs_pattern: float | None = None
    calls: int = 0
    layers: int = 0

    @classmethod
    def of(cls, result: ValidationResult) -> ValidationSummary:
        """Summarise a certificate."""
        return cls(
            passed=result.passed,
            max_abs_hidden=result.max_abs_hidden,
            max_abs_pattern=result.max_abs_pattern,
            calls=sum(check.calls for check in result.layers),
            layers=len(result.layers),
        )


@dataclass(frozen=True)
class ClassifyResult:
    """What every attention head does, measured on one corpus.

    Attributes
    ----------
    schema : int
    provenance : dict
        Versions, model, weights' SHA-256, data, seed, dtype, device, command.
    validation : ValidationSummary
    corpus : CorpusInfo
    thresholds : dict
    heads : tuple of HeadResult
        In the order of layer, head.
    control : ControlResult or None
        None unless it was asked for.
    """

    schema: int
    provenance: dict[str, Any]
    validation: ValidationSummary
    corpus: CorpusInfo
    thresholds: dict[str, Any]
    heads: tuple[HeadResult, ...]
    control: ControlResult | None = None

    def to_frame(self) -> pandas.DataFrame:
        """One row per head, the flat numbers only (pandas)."""
        import pandas as pd

        return pd.DataFrame([_flat(head) for head in self.heads])

    def relations_frame(self) -> pandas.DataFrame:
        """One row per head, relation and direction (pandas)."""
        import pandas as pd

        rows = []
        for head in self.heads:
            for score in head.syntactic:
                row = {"layer": head.layer, "head": head.head, **to_dict(score)}
                low, high = row.pop("interval")
                rows.append({**row, "low": low, "high": high})
        return pd.DataFrame(rows)


def _flat(head: HeadResult) -> dict[str, Any]:
    best = max(head.syntactic, key=lambda s: (s.labelled, s.accuracy - s.baseline), default=None)
    return {
        "layer": head.layer,
        "head": head.head,
        "primary": head.primary,
        "roles": " ".join(head.roles),
        "positional_score": head.positional.score,
        "positional_offset": head.positional.offset,
        "best_relation": f"{best.relation} {best.direction}" if best else None,
        "best_accuracy": best.accuracy if best else None,
        "best_baseline": best.baseline if best else None,
        "best_p_adjusted": best.p_adjusted if best else None,
        "rare_rate": head.rare.rate,
        "rare_chance": head.rare.chance,
        "rare_uniform": head.rare.uniform,
        "confidence": head.confidence,
        "entropy": head.entropy,
        "special_mass": head.special_mass,
        "punctuation_mass": head.punctuation_mass,
        "self_rate": head.self_rate,
        "duplicate_rate": head.duplicate_rate,
    }
