"""What ``headscope classify`` measured, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headscope.results.serialise import to_dict
from headscope.results.validation import ValidationSummary

if TYPE_CHECKING:
    import pandas

__all__ = [
    "ClassifyResult",
    "ControlResult",
    "CorpusInfo",
    "HeadResult",
    "Label",
    "PositionalScore",
    "RareScore",
    "SyntacticScore",
]


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
