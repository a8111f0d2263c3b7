"""What ``headscope linear`` measured, as values.

An ``Estimate`` is a value with its 95% interval; an ``Effect`` is what a changed model does to the
output: the cosine to the unchanged model's embedding, and the task's metric. ``Compare`` names a
field for comparisons of two results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from headscope.core.heads import Head
from headscope.session.measured import Measured
from headscope.stats.compared import Compare, ComparedEstimate, Setting
from headscope.stats.effects import (
    Effect,
    EffectTask,
    columns,
    estimated_columns,
    head_frame,
)
from headscope.stats.estimate import Estimate

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class LinearError:
    """How far a linear form of a head, or of all on average, is from the head's own output."""

    form: str  # ``linear``, ``elu``, ``elu-normalised`` ...; ``even`` is the mean of the values
    error: Estimate  # ||y - z|| / ||z - mean z||: 1 is no better than one constant output
    scaled: Annotated[Estimate, Compare("scaled error")]  # The same with the best single scale
    scale: float | None = None  # The best scale; None for a mean of heads


@dataclass(frozen=True)
class StoredKeys:
    """Errors of reading back values that were stored under a head's own keys."""

    #: 0.5 ||v - v^||^2 of the sum of fast weights with the best scale, mean over sentences.
    linear: Estimate
    least_squares: Estimate  # Of the best linear readout
    softmax: Estimate  # Of a softmax with beta = sqrt(d_head)
    softmax_own: Estimate  # Of a softmax as sharp as the head's own scores
    #: ``linear`` minus ``softmax``, and minus ``softmax_own``, sentence by sentence.
    difference: Annotated[Estimate, Compare("linear minus softmax")]
    difference_own: Estimate


@dataclass(frozen=True)
class HeadLinear(Head):
    """One head without its softmax."""

    errors: Annotated[tuple[LinearError, ...], Compare("{0.form} ")]  # By form
    #: Mean |cosine| of two keys of a sentence.
    coherence: Annotated[Estimate, Compare("key coherence")]
    #: The same after the mean of the sentence's keys is taken away.
    coherence_centred: Annotated[Estimate, Compare("key coherence without mean")]
    entropy: Estimate  # Of the pattern's rows over the largest they can have
    stored: StoredKeys  # Values stored under its keys and read back

    def error(self, form: str) -> LinearError:
        """Return the errors of one form."""
        return next(error for error in self.errors if error.form == form)


@dataclass(frozen=True)
class LinearForm:
    """One form in all heads."""

    mean: Annotated[LinearError, Compare()]  # Mean over heads
    #: The model with every head in this form at its best scale.
    whole_scaled: Annotated[Effect, Compare("scaled ")]


@dataclass(frozen=True)
class HeadCorrelation:
    """Whether one number of heads goes with the error of a linear form, within layers."""

    number: str  # ``coherence``, ``coherence_centred`` or ``entropy``
    form: str  # The form whose error it is: ``linear``, say
    fit: str  # ``error`` of the form as it is, or ``scaled`` by the best scale
    given: str  # What is held constant: ``entropy``; "" for nothing
    heads: int  # Heads of the model
    #: Mean over layers (of Fisher's z); interval Student's t over layers, unknown for fewer than
    #: four.
    pearson: Estimate
    spearman: ComparedEstimate
    p: float | None  # Of Spearman's, two-sided, by the same t
    layers: int  # Layers whose correlation could be measured

    @property
    def name(self) -> str:
        """What is correlated: ``coherence and linear scaled given entropy``."""
        suffix = f" given {self.given}" if self.given else ""
        return f"{self.number} and {self.form} {self.fit}{suffix}"


@dataclass(frozen=True)
class KeyMemory:
    """Values stored under N keys of the model, as they follow in the text, and read back."""

    readout: str  # ``scaled-sum``, ``least-squares`` or ``softmax``
    keys: int  # N
    width: int  # d: the numbers of each key
    #: Mean of 0.5 ||v - v^||^2, over heads; interval Student's t over stretches of text.
    error: Annotated[Estimate, Compare("error of reading back")]
    random: float | None  # The closed form for N random unit keys; None where there is none
    stretches: int  # Stretches of N tokens that were measured


@dataclass(frozen=True)
class LinearControl:
    """The same architecture with random weights, on the same text."""

    seed: int  # Seed of the first draw of weights
    coherence: float | None  # Mean over heads
    coherence_centred: float | None  # Mean over heads
    correlations: tuple[HeadCorrelation, ...]  # As for the model
    stored: StoredKeys  # Mean over heads
    #: ``stored.difference`` of the model minus that of random weights, mean over ``draws``; the
    #: interval holds what another draw may give as well.
    over_random: Estimate
    draws: int  # How many random weights were drawn for ``over_random``


@dataclass(frozen=True, repr=False)
class LinearResult(Measured):
    """Attention without its softmax: its errors, and whether its keys explain them."""

    heads: Annotated[tuple[HeadLinear, ...], Compare(where="{0.name}")]  # By layer and head.
    #: Each form in all heads; the last, ``even``, is the baseline of evenly spread attention.
    forms: Annotated[tuple[LinearForm, ...], Compare(where="all heads {0.mean.form}")]
    #: Every head puts out its mean z, whatever it reads: the baseline of an error of 1.
    mean_output: Effect
    #: The first is what the claim is decided by.
    correlations: Annotated[tuple[HeadCorrelation, ...], Compare(where="{0.name}")]
    #: Values stored under N keys and read back.
    memory: Annotated[tuple[KeyMemory, ...], Compare(where="{0.keys} own keys, {0.readout}")]
    #: Mean over heads, on the sentences' own keys.
    stored: Annotated[StoredKeys, Compare(where="own keys")]
    #: About what random directions of d_head dimensions have: sqrt(2 / (pi d_head)).
    random_coherence: float
    #: Whether the model adds to its scores what no linear form can: positions, say.
    bias_left_out: bool
    left_out: tuple[str, ...]  # Stacks that no text alone shows.
    #: What was read: name, sha256, lines, skipped, tokens.
    text: Annotated[dict[str, Any], Setting(keys=("lines", "tokens"))]
    control: LinearControl | None = None  # Random weights; None unless asked for.
    #: What bounds the model's scores and no linear form's (a soft cap); None for nothing.
    softcap: float | None = None
    task: EffectTask | None = None  # What changed models were measured by, besides the cosine.

    def form(self, name: str) -> LinearForm:
        """Return a form in all heads."""
        return next(form for form in self.forms if form.mean.form == name)

    def to_frame(self) -> pandas.DataFrame:
        """One row per head (pandas)."""
        rows = []
        for head in self.heads:
            names = ("layer", "head", "stack", "coherence", "coherence_centred", "entropy")
            row = columns(head, *names)
            for linear_error in head.errors:
                form = linear_error.form
                row[f"{form}_error"] = linear_error.error.value
                row[f"{form}_scale"] = linear_error.scale
                row |= estimated_columns(f"{form}_scaled", linear_error.scaled)
            row["stored_linear"] = head.stored.linear.value
            row["stored_softmax"] = head.stored.softmax.value
            row |= estimated_columns("stored_difference", head.stored.difference)
            rows.append(row)
        return head_frame(rows)

    def forms_frame(self) -> pandas.DataFrame:
        """One row per form (pandas)."""
        import pandas as pd

        return pd.DataFrame(
            columns(form.mean, "form", "error", "scaled") | columns(form, "whole_scaled")
            for form in self.forms
        )

    def memory_frame(self) -> pandas.DataFrame:
        """One row per number of keys and readout (pandas)."""
        import pandas as pd

        return pd.DataFrame(
            {**vars(key_memory), **estimated_columns("error", key_memory.error)}
            for key_memory in self.memory
        )

    def correlations_frame(self) -> pandas.DataFrame:
        """One row per correlation, of the model and of random weights (pandas)."""
        import pandas as pd

        correlations = [("model", correlation) for correlation in self.correlations]
        if self.control is not None:
            correlations += [("random", correlation) for correlation in self.control.correlations]
        return pd.DataFrame(
            {
                "weights": weights,
                **vars(correlation),
                **estimated_columns("pearson", correlation.pearson),
                **estimated_columns("spearman", correlation.spearman),
            }
            for weights, correlation in correlations
        )
