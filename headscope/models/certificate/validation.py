"""The certificate as values: of each layer, of a model, and the summary that results carry."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from headscope.core.serialise import SCHEMA
from headscope.show.shown import Shown

#: Our run may be so many times as far from the model's own runs as these are from each other.
NOISE_FACTOR = 8.0


@dataclass(frozen=True)
class LayerCheck:
    """One layer of the certificate: the model's own run and ours, compared in that layer."""

    stack: str  # encoder, decoder or cross
    layer: int  # Zero-based within the stack
    calls: int  # How often our attention ran in a pass; must be 1
    #: Of whole runs: the largest difference from the patterns and attention outputs (after W_O) of
    #: the model's own eager and SDPA runs; None if there was nothing to compare.
    max_abs_pattern: float | None
    max_abs_out: float | None
    #: How far the model's own runs are from each other in these two.
    noise_pattern: float = 0.0
    noise_out: float = 0.0
    #: On the very inputs of the model's eager run: mean differences of its pattern (of the head
    #: that differs most) and of its output from what the canonical weights give, in units of
    #: rounding; None if there was nothing to compare.
    local_pattern: float | None = None
    local_out: float | None = None
    #: Mean absolute difference from the pattern recomputed in float32 or better from recorded q and
    #: k, in units of the row's 1/n; the head that differs most.
    mean_abs_pattern: float | None = None
    #: Mean absolute difference of the pattern, and of the output from W_O's own recorded input, in
    #: units of the dtype's rounding.
    rounding_pattern: float | None = None
    rounding_out: float | None = None
    #: The factor on the expected scores that fits the patterns best, all heads together, and its
    #: standard error; None where the scores are too flat for any factor to show.
    scale: float | None = None
    scale_error: float | None = None
    #: Mean absolute difference of z from the recorded pattern times the recorded values, in units
    #: of rounding; the head that differs most.
    rounding_z: float | None = None
    #: The factor on ``pattern v`` that fits the recorded z best, all heads together, and its
    #: standard error; None where z is zero.
    z_scale: float | None = None
    z_scale_error: float | None = None


@dataclass(frozen=True)
class ProbeSize:
    """One batch of the certificate."""

    name: str  # ``right-padded``, ``left-padded`` or ``unpadded``
    sequences: int
    length: int  # Positions of each sequence
    tokens: int  # Positions that are no padding, of all sequences
    padded: int  # Positions that are padding


@dataclass(frozen=True)
class EmbeddingCheck:
    """A model's embeddings of texts compared with those of sentence-transformers' own encode."""

    settings: tuple[str, ...]  # Sentences about the settings in the folder, used or not
    tolerance: float
    #: Whether these are no embeddings, but a reranker's scores of pairs, before the activation,
    #: compared with ``CrossEncoder.predict``; relative to the largest score if that exceeds 1.
    scores: bool = False
    texts: int = 0  # How many were embedded by both
    #: Largest difference of a number, in units of its embedding's length; None if not compared,
    #: infinite where embeddings have another width.
    max_abs: float | None = None
    #: Where encode gives a text another embedding once it is padded (absolute positions that count
    #: padding on the left): ``max_abs`` of padded texts. ``max_abs`` itself is then that of texts
    #: alone; headscope's embedding is the same in both.
    padding_shifts: float | None = None
    #: Whether a text that is too long is cut to the same tokens; None if not compared.
    cut_alike: bool | None = None
    not_compared: str | None = None  # Why not

    @property
    def compared(self) -> str:
        """What differs from what, for a sentence that goes on with a number."""
        if self.scores:
            return "scores differ from those of CrossEncoder.predict"
        return "embeddings differ from those of SentenceTransformer.encode"

    def reasons(self) -> list[str]:
        """Say what differs; empty where nothing does, or nothing was compared."""
        differences = []
        if self.max_abs is not None and not self.max_abs <= self.tolerance:
            differences.append(
                f"{self.compared} by {self.max_abs:.1e}, tolerance {self.tolerance:.0e}"
            )
        if self.cut_alike is False:
            differences.append("SentenceTransformer cuts a long text to other tokens")
        return differences


@dataclass(frozen=True, repr=False)
class ValidationResult(Shown):
    """The certificate: our attention equals the model's, padded and not, or why it does not."""

    command_name: ClassVar[str] = "validate"
    passed: bool  # Whether every difference is within its tolerance.
    layers: tuple[LayerCheck, ...]  # In the order of the model.
    #: Largest difference of the last hidden state, over real tokens.
    max_abs_hidden_eager: float | None
    max_abs_hidden_sdpa: float | None
    #: For ``local``, ``pattern``, ``out``, ``hidden``, ``rounding``, ``scale`` (distance from 1).
    #: Of whole runs, NOISE_FACTOR times the model's own noise is allowed if that is more.
    tolerance: dict[str, float]
    #: How far the last hidden states of the model's own runs are from each other.
    noise_hidden: float = 0.0
    #: Where transformers' SDPA computes something else than the model's eager attention: by how
    #: many roundings. Such a run is compared with nothing.
    sdpa_differs: float | None = None
    #: Of a mixture of experts: what its blocks chose in the eager run, which all other runs repeat,
    #: and the most that rounding would have changed in one of them.
    expert_choices: int = 0
    expert_choices_otherwise: int = 0
    reasons: tuple[str, ...] = ()  # Why it failed; empty if it passed.
    sequences: int = 0  # Of all probes
    tokens: int = 0  # Positions that are no padding
    padded: int = 0  # Positions that are padding
    mask_reached: bool = False  # Whether every layer received every padding mask.
    probes: tuple[ProbeSize, ...] = ()
    #: Of a sentence-transformers folder; None for others, and where the certificate was made on the
    #: way to a measurement.
    embedding: EmbeddingCheck | None = None
    #: As in :class:`headscope.session.measured.Measured`.
    provenance: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    def concluded(self, reasons: list[str]) -> ValidationResult:
        """Return the same certificate with its verdict."""
        return dataclasses.replace(self, passed=not reasons, reasons=tuple(reasons))

    @property
    def complaint(self) -> str | None:
        """Why the command fails; None where it does not."""
        return None if self.passed else f"validation failed: {self.refusal}"

    @property
    def refusal(self) -> str:
        """Say in words what the model does otherwise than headscope; empty if it passed.

        The numbers behind it are in ``reasons``. A layer is judged on the model's own inputs to it,
        so that a layer which differs does not make those after it differ too.
        """
        weighs_otherwise = [
            check
            for check in self.layers
            if self._beyond("local", check.local_pattern)
            or self._beyond("rounding", check.rounding_pattern)
        ]
        if weighs_otherwise:
            return (
                f"{self._named(weighs_otherwise)} weighs tokens otherwise than softmax(q k^T * "
                "scale) with the maps that headscope reads: by a norm, scale, rotation, bias, "
                "window or mask that headscope does not know"
            )
        puts_out_otherwise = [
            check
            for check in self.layers
            if self._beyond("local", check.local_out)
            or self._beyond("rounding", check.rounding_z)
            or self._beyond("rounding", check.rounding_out)
        ]
        if puts_out_otherwise:
            return (
                f"{self._named(puts_out_otherwise)} weighs tokens as headscope does and makes "
                "something else of their values: by a value, gate, norm or output map that "
                "headscope does not know"
            )
        reached = self.max_abs_hidden_eager is not None
        if reached and self._beyond("hidden", self.max_abs_hidden_eager, self.noise_hidden):
            return (
                "every layer agrees on the model's own inputs, and yet its last states differ by "
                "more than its own rounding once headscope's attention runs in all layers"
            )
        return "; ".join(self.reasons)

    def _beyond(self, name: str, gap: float | None, noise: float = 0.0) -> bool:
        """Whether a difference was measured and is more than allowed, or is not a number."""
        return gap is not None and not gap <= self.allowed(name, noise)

    def _named(self, layers: Sequence[LayerCheck]) -> str:
        """Name some layers as the subject of a sentence, in the singular."""
        first = f"{layers[0].stack} layer {layers[0].layer}"
        if len(layers) == 1:
            return first
        if len(layers) == len(self.layers):
            return f"each of its {len(layers)} layers"
        return f"each of {len(layers)} of its {len(self.layers)} layers, {first} the first,"

    def allowed(self, quantity: str, noise: float) -> float:
        """Return how far ``pattern``, ``out`` or ``hidden`` may be from the model's own runs.

        ``noise`` is how far these are from each other.
        """
        return max(self.tolerance[quantity], NOISE_FACTOR * noise)

    @property
    def max_abs_pattern(self) -> float | None:
        """Largest pattern difference over all layers."""
        return _max(check.max_abs_pattern for check in self.layers)

    @property
    def max_abs_hidden(self) -> float | None:
        """Largest difference of the last hidden state, from eager and SDPA."""
        return _max((self.max_abs_hidden_eager, self.max_abs_hidden_sdpa))


def _max(values: Iterable[float | None]) -> float | None:
    """Return the largest of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return max(known, default=None)


@dataclass(frozen=True)
class ValidationSummary:
    """The certificate as other commands carry it."""

    passed: bool | None  # None if it was not asked for
    #: Largest differences over real tokens, and over all layers; None if not compared.
    max_abs_hidden: float | None = None
    max_abs_pattern: float | None = None
    calls: int = 0  # How often our attention ran in a pass, all layers together
    layers: int = 0  # How many there are

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


def certificate_of(result: object) -> ValidationResult | ValidationSummary | None:
    """Return the certificate that any command's result is or carries; None without one."""
    validation = getattr(result, "validation", result)
    return validation if isinstance(validation, ValidationResult | ValidationSummary) else None
