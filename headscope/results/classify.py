"""What ``headscope classify`` measured, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headscope.results.heads import Head
from headscope.results.measured import Measured
from headscope.results.serialise import to_dict

if TYPE_CHECKING:
    import pandas

__all__ = [
    "ClassifyResult",
    "Confirmation",
    "ControlResult",
    "CorpusInfo",
    "HeadResult",
    "Label",
    "PositionalScore",
    "RareScore",
    "SwappedControl",
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
        95% interval of the score: Wilson for positional and syntactic rates, for all others normal
        with the sentence as the sampled unit.
    p_adjusted : float
        Benjamini-Hochberg adjusted p-value against the baseline.
    against : str
        Which baseline that is.
    """

    role: str
    detail: str
    score: float
    baseline: float
    interval: tuple[float, ...]
    p_adjusted: float
    against: str = ""


@dataclass(frozen=True)
class PositionalScore:
    """How often a head looks at one fixed relative position.

    Attributes
    ----------
    score : float or None
        The largest of ``rates``; None without a trial.
    offset : int or None
        Where it is reached; -1 is the token before.
    rates, mass : dict of str to float
        By offset: share of the queries whose largest weight is there, and mean weight there.
    interval : tuple of two floats
        95% Wilson interval of ``score``.
    chance : float or None
        The rate of a head that picks at random.
    p_adjusted : float
        Of the score against chance, Benjamini-Hochberg adjusted over heads and offsets.
    """

    score: float | None
    offset: int | None
    rates: dict[str, float | None]
    mass: dict[str, float | None]
    interval: tuple[float, ...]
    chance: float | None
    p_adjusted: float


@dataclass(frozen=True)
class Confirmation:
    """A selected relation on the half of the corpus that it was not selected on.

    Attributes
    ----------
    accuracy, accuracy_mean : float
        As in :class:`SyntacticScore`.
    baselines : dict of str to float
        Offset and kernel as chosen on the other half.
    strongest : str
        The baseline with the highest accuracy.
    interval : tuple of two floats
        95% Wilson interval of ``accuracy``.
    p_adjusted : float
        Of the worst of the paired tests against offset, first, last and uniform;
        Benjamini-Hochberg over what was selected.
    trials : int
        Pairs of the relation on the other half.
    """

    accuracy: float
    accuracy_mean: float
    baselines: dict[str, float]
    strongest: str
    interval: tuple[float, ...]
    p_adjusted: float
    trials: int


@dataclass(frozen=True)
class SyntacticScore:
    """One relation and direction of one head.

    Attributes
    ----------
    relation, direction : str
        A label of Universal Dependencies, and ``dep->head`` or ``head->dep``.
    accuracy : float
        Hits / trials over all sentences.
    accuracy_mean : float
        The same with attention to a word as the mean, not the sum, over its pieces.
    baseline, baseline_offset : float, int
        Accuracy of the best fixed offset on the same trials, and that offset.
    baselines : dict of str to float
        Accuracies of ``offset`` (as before), ``first`` and ``last`` (always the sentence's first or
        last word), ``uniform`` (evenly spread attention) and ``kernel`` (the head's own habit of
        looking at a distance).
    trials : int
        Pairs of the relation in the corpus.
    uniform : float
        As in ``baselines``.
    interval : tuple of two floats
        95% Wilson interval of ``accuracy``.
    selected : bool
        Whether it exceeds every baseline on the first half of the corpus.
    confirmed : Confirmation or None
        What the other half says; None unless selected.
    labelled : bool
        Whether the other half confirms it.
    """

    relation: str
    direction: str
    accuracy: float
    accuracy_mean: float
    baseline: float
    baseline_offset: int
    baselines: dict[str, float]
    trials: int
    uniform: float
    interval: tuple[float, ...]
    selected: bool
    confirmed: Confirmation | None
    labelled: bool


@dataclass(frozen=True)
class RareScore:
    """How often a head looks at the rarest word of the sentence.

    Attributes
    ----------
    rate, two_rarest : float or None
        Share of the queries (words) whose largest weight is on the rarest word, on one of the two
        rarest.
    chance, null, uniform : float or None
        The same rate of a head that picks at random, of this head with a random word as target,
        and of evenly spread attention.
    queries, sentences : int
        What was counted, and what is taken as sampled.
    interval : tuple of two floats
        95% interval of ``rate``, over sentences.
    p_adjusted : float
        Over sentences too, Benjamini-Hochberg adjusted.
    """

    rate: float | None
    two_rarest: float | None
    chance: float | None
    queries: int
    null: float | None
    uniform: float | None
    interval: tuple[float, ...]
    p_adjusted: float
    sentences: int = 0


@dataclass(frozen=True)
class HeadResult(Head):
    """Everything measured about one head; a rate is None where nothing could be counted.

    Attributes
    ----------
    primary : str
        The first of its roles in the order positional, syntactic, rare, special, punctuation,
        broad; ``none`` if it has none of these.
    roles : tuple of str
        All of its roles, as in :data:`headscope.results.roles.ROLES`.
    labels : tuple of Label
        One for each role, and one for each relation of a syntactic head.
    positional : PositionalScore
        Its fixed offsets, labelled or not.
    syntactic : tuple of SyntacticScore
        Every relation and direction, labelled or not; empty without trees.
    rare : RareScore
        Its attention to rare words, labelled or not.
    confidence : float
        Mean largest weight on a content key.
    entropy : float
        Mean row entropy, nats.
    relative_entropy, long_entropy : float
        Mean of row entropy / ln n, over all sequences and over those of 20 tokens or more.
    special_mass, first_special_mass, last_special_mass, punctuation_mass : float
        Mean mass on special tokens, on the first and the last of them, on punctuation.
    self_rate, duplicate_rate : float
        Share of rows that look at themselves; of repeated tokens that look at another copy.
    """

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
    long_entropy: float | None = None


@dataclass(frozen=True)
class CorpusInfo:
    """What was read.

    Attributes
    ----------
    name, sha256 : str
        Of the text or treebank.
    sentences, skipped : int
        Measured, and left out because they are longer than the model allows or have an empty word.
    queries : int
        Tokens that were measured.
    trees : bool
        Whether it has dependency trees.
    language : str or None
        Two-letter code, where it is known.
    frequencies : str
        Where the words' frequencies come from.
    note : str
        What a reader of any count on this corpus should know; mostly empty.
    """

    name: str
    sha256: str
    sentences: int
    skipped: int
    queries: int
    trees: bool
    language: str | None
    frequencies: str
    note: str = ""


@dataclass(frozen=True)
class SwappedControl:
    """Syntactic labels with trained attention and the tree of another sentence as long.

    Every one of them is a false positive.

    Attributes
    ----------
    labels : int
        Relations and directions, summed over heads.
    heads : int
        Heads that have one.
    """

    labels: int
    heads: int


@dataclass(frozen=True)
class ControlResult:
    """What the same rules find where there is nothing to find.

    Attributes
    ----------
    swapped : SwappedControl or None
        None for text without trees.
    seed, heads : int or None
        Of the same architecture with random weights; None unless it was asked for, like all that
        follows.
    positional, syntactic, rare, special, punctuation, broad, self, duplicate : int or None
        Heads with random weights that earned such a label. For syntactic and rare these are false
        positives; for others they say what the role is worth: random heads are broad, too.
    false_positives : tuple of str
        Each syntactic and rare label, as ``L0H3 syntactic obj dep->head``.
    """

    swapped: SwappedControl | None = None
    seed: int | None = None
    heads: int | None = None
    positional: int | None = None
    syntactic: int | None = None
    rare: int | None = None
    special: int | None = None
    punctuation: int | None = None
    broad: int | None = None
    self: int | None = None
    duplicate: int | None = None
    false_positives: tuple[str, ...] = ()

    @property
    def random_weights(this) -> bool:  # noqa: N805  (a field is called self)
        """Whether the control with random weights was run."""
        return this.heads is not None


@dataclass(frozen=True)
class ClassifyResult(Measured):
    """What every attention head does, measured on one corpus.

    Attributes
    ----------
    corpus : CorpusInfo
        What it was measured on.
    thresholds : dict
        The values of :class:`headscope.Thresholds` that were used.
    heads : tuple of HeadResult
        In the order of layer, head.
    control : ControlResult or None
        None for text without trees, unless random weights were asked for.
    untestable : dict of str to str
        Roles that this corpus cannot show, each with the reason.
    """

    corpus: CorpusInfo
    thresholds: dict[str, Any]
    heads: tuple[HeadResult, ...]
    control: ControlResult | None = None
    untestable: dict[str, str] = field(default_factory=dict)

    def to_frame(self) -> pandas.DataFrame:
        """One row per head, the flat numbers only (pandas)."""
        import pandas as pd

        return pd.DataFrame([_flat(head) for head in self.heads])

    def relations_frame(self) -> pandas.DataFrame:
        """One row per head, relation and direction (pandas)."""
        import pandas as pd

        return pd.DataFrame(
            {"layer": head.layer, "head": head.head, **_flat_score(score)}
            for head in self.heads
            for score in head.syntactic
        )


def _flat_score(score: SyntacticScore) -> dict[str, Any]:
    """One relation and direction in flat columns; ``confirmed_...`` are of the second half."""
    row: dict[str, Any] = to_dict(score)
    confirmed = row.pop("confirmed") or {}
    low, high = row.pop("interval")
    del row["baselines"], row["uniform"]
    row |= {"low": low, "high": high, **score.baselines}
    confirmed_low, confirmed_high = confirmed.get("interval") or (None, None)
    strongest = confirmed.get("strongest")
    return row | {
        "confirmed_accuracy": confirmed.get("accuracy"),
        "confirmed_low": confirmed_low,
        "confirmed_high": confirmed_high,
        "confirmed_strongest": strongest,
        "confirmed_baseline": confirmed["baselines"][strongest] if strongest else None,
        "confirmed_p_adjusted": confirmed.get("p_adjusted"),
        "confirmed_trials": confirmed.get("trials"),
    }


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
        "best_labelled": best.labelled if best else None,
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
