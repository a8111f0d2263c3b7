"""A smaller model and what it was weighed against, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headscope.pruning.latency_result import Confirmed, LatencyTable
from headscope.stats.estimate import Estimate


@dataclass(frozen=True)
class LayerLeft:
    """What one layer of a stack keeps."""

    stack: str
    layer: int  # By its original number
    heads: tuple[int, ...]  # Original numbers of the heads that stay
    n_heads: int  # Heads that it had
    neurons: int  # Feed-forward neurons that stay, of so many.
    n_neurons: int


@dataclass(frozen=True)
class VocabularyLeft:
    """The rows of the embedding that stay."""

    before: int
    after: int
    words: int  # Common words of the language that were kept besides
    #: Share of the evaluation texts, and of their tokens, that would have used a removed piece.
    texts_affected: float
    tokens_affected: float


@dataclass(frozen=True)
class MixModel:
    """One model of the picture: the whole one, the mix, or one that it is compared with."""

    #: ``whole``, ``mix``, ``mix before tuning``, ``heads``, ``neurons``, ``layers``,
    #: ``vocabulary``, ``int8`` or ``random``.
    name: str
    curve: str  # Which line of the picture it belongs to
    arithmetic: float  # Multiplications of the layers that are left, a share of the whole's
    megabytes: float  # The numbers of its parameters, as they are stored
    milliseconds: float | None  # By the table of times; None where none was measured
    value: float  # The task's metric with its 95% interval; None where it is unknown.
    ci: tuple[float, ...] | None
    difference: float  # Value minus the whole model's on the same examples, paired.
    difference_ci: tuple[float, ...] | None
    detail: str = ""  # Which layers, how many rows ...


@dataclass(frozen=True)
class Tuned:
    """What distillation from the whole model's own outputs did."""

    text: str  # Whose sentences were read, without labels.
    sentences: int
    minutes: float  # That it took, of those allowed.
    allowed: float
    steps: int
    #: Mean squared distance to the whole model's outputs on sentences that were held out.
    before: float
    after: float
    #: Mean cosine to the whole model's embeddings on text of another kind, before and after.
    other_text: str
    other_before: Estimate
    other_after: Estimate


@dataclass(frozen=True)
class MixLook:
    """One mix that was tested for the most that may be lost, in an order settled beforehand."""

    arithmetic: float  # Multiplications of the layers that are left, a share of the whole's
    lost: float  # What it loses of the metric, and the upper end of the interval.
    most_lost: float
    allowed: bool


@dataclass(frozen=True)
class MixResult:
    """Heads, neurons, layers and vocabulary removed together for one budget."""

    units: tuple[str, ...]  # What might go
    budget: str  # ``speed``, ``ms``, ``mb``, ``max_drop`` or ``fraction``
    wanted: float  # In the unit of the budget
    reached: bool  # Whether it was met
    missed: str  # If not: one sentence with the nearest that was found and what it costs
    layers: tuple[LayerLeft, ...]
    #: Original numbers; of an encoder-decoder (stack, number), the decoder's with cross-attention.
    layers_removed: tuple[Any, ...]
    vocabulary: VocabularyLeft | None  # None where no row was removed
    precision: str  # ``float32`` or ``int8``
    #: The first is the whole model, the second the mix; then what it is compared with.
    models: tuple[MixModel, ...]
    megabytes: tuple[float, float]  # Whole, mix: what their parameters take, 1e6 bytes
    speed: Confirmed | None  # None where nothing was timed
    runtime: str  # What was timed: ``torch`` or ``onnxruntime``
    batch_size: int  # Texts that were run together while it was timed
    tuned: Tuned | None
    #: Largest difference between the cut model's states and those with zeros in place of units.
    zeroed_difference: float
    seconds: dict[str, float]  # What choosing, tuning and comparing took
    #: The table of times that proposed the mix; None where the budget is no time.
    latency: LatencyTable | None = None
    looks: tuple[MixLook, ...] = ()  # Every mix that ``max_drop`` tested, in order

    @property
    def whole(self) -> MixModel:
        """The model that nothing was removed from."""
        return self.models[0]

    @property
    def mix(self) -> MixModel:
        """The model that was chosen."""
        return self.models[1]

    @property
    def neurons_left(self) -> tuple[int, int]:
        """Feed-forward neurons that stay, of how many."""
        return sum(x.neurons for x in self.layers), sum(x.n_neurons for x in self.layers)

    @property
    def heads_left(self) -> tuple[int, int]:
        """Heads that stay, of how many."""
        return sum(len(x.heads) for x in self.layers), sum(x.n_heads for x in self.layers)


def budget_words(name: str, wanted: float) -> str:
    """Say what was asked for: ``2 times as fast``, ``at most 45 MB``."""
    return {
        "speed": f"{wanted:g} times as fast",
        "ms": f"at most {wanted:g} ms",
        "mb": f"at most {wanted:g} MB",
        "fraction": f"{wanted:.0%} of the layers' arithmetic gone",
        "max_drop": f"at most {wanted:g} lost",
    }[name]
