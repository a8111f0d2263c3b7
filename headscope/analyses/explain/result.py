"""What ``headscope explain`` showed, as values.

:class:`ExplainResult`, at the end, holds all of it: twelve steps, each with numbers, matrices and
checks. ``Compare()`` and ``Setting()`` in a field's type say how two results are compared: by this
number and its name, or only where this setting is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from headscope.core.heads import Head, head_name
from headscope.session.measured import Measured
from headscope.stats.compared import Compare, Setting

if TYPE_CHECKING:
    import pandas

#: A row of a matrix; None where there is no number (a score that a mask hides).
Values = tuple[float | None, ...]

#: Matrices that a step must have, by the step's key: tables, figures and comparisons read them.
_NEEDED = {
    "scores": ("q k^T", "scores", "sequence scale"),
    "mask": ("other direction",),
    "softmax": ("pattern",),
    "mix": ("heads",),
}


@dataclass(frozen=True)
class Matrix:
    """A matrix that belongs to a step."""

    name: str  # Such as ``q`` or ``pattern``
    shape: tuple[int, ...]  # Of the whole matrix: rows and columns
    rows: tuple[str, ...]  # The name of each row, such as a token; empty where they have none.
    columns: tuple[str, ...]  # The name of each column; empty where they have none.
    #: Rounded to four significant digits. Of a learned matrix only the first rows and columns, of
    #: any other all of it.
    values: tuple[Values, ...]

    def __post_init__(self) -> None:
        # A result may come from a file, which can hold anything.
        widths = {len(row) for row in self.values}
        if self.rows and len(self.rows) != len(self.values):
            raise TypeError(f"the matrix {self.name!r} has other rows than names of rows")
        if len(widths) > 1 or (self.columns and widths - {len(self.columns)}):
            raise TypeError(f"the matrix {self.name!r} has rows of different lengths")

    def named_rows(self) -> list[tuple[str, Values]]:
        """Return each row with its name."""
        return list(zip(self.rows, self.values, strict=True))


@dataclass(frozen=True)
class StepCheck:
    """One number of ours compared with the model's."""

    what: str  # What was compared
    #: Largest difference; where the model's own has entries beyond 10, in units of a tenth of the
    #: largest.
    max_abs: float
    tolerance: float  # Largest difference that is accepted


@dataclass(frozen=True)
class ExplainStep:
    """One step of the way from the sentence to the layer's output."""

    number: int  # From 1
    #: ``input``, ``weights``, ``qkv``, ``heads``, ``scores``, ``mask``, ``softmax``, ``z``,
    #: ``mix``, ``skip``, ``layernorm`` or ``ffn``.
    key: str
    numbers: dict[str, float | None]  # By name
    matrices: tuple[Matrix, ...]  # What the step starts from or makes
    checks: tuple[StepCheck, ...]  # Empty where nothing is computed yet

    def __post_init__(self) -> None:
        absent = set(_NEEDED.get(self.key, ())) - {matrix.name for matrix in self.matrices}
        if absent:
            raise TypeError(f"the step {self.key!r} lacks its matrix {min(absent)!r}")

    def matrix(self, name: str) -> Matrix:
        """Return the matrix of a name."""
        return {matrix.name: matrix for matrix in self.matrices}[name]


@dataclass(frozen=True)
class ExplainedHead(Head):
    """What one head does with the sentence."""

    #: Entropy of the pattern's rows, mean over tokens, in bits.
    entropy: Annotated[float, Compare("entropy on the sentence")]
    even: float  # The entropy if each token attended evenly to every token it may see
    #: How clearly it links words, by which a head is chosen where none is named: the largest weight
    #: that a word's token gives another one, two or more positions away, less what all words give
    #: that one on average; mean over the words' tokens.
    link: Annotated[float, Compare("link on the sentence")]


@dataclass(frozen=True, repr=False)
class ExplainResult(Measured):
    """The path of one sentence through one head, step by step."""

    sentence: Annotated[str, Setting()]  # As it was given.
    tokens: tuple[str, ...]  # Special tokens included.
    special: tuple[bool, ...]  # Which of them the tokenizer added.
    stack: str  # ``encoder`` or ``decoder``.
    layer: int  # The layer that is explained, by the number it had before any pruning.
    head: int  # The head that is explained, numbered in the same way.
    chosen: bool  # Whether headscope chose the head.
    n_heads: int  # Heads of the layer.
    d_model: int  # Width of the residual stream.
    d_head: int  # Width of a head.
    causal: bool  # Whether the model hides later tokens itself.
    #: ``rotated`` where positions turn q and k, ``bias`` where they are added to the scores, else
    #: empty: they are in x, or nowhere.
    positions: str
    #: ``post`` (after each sum) or ``pre`` (before each sublayer); empty where that is not known.
    layer_norm: str
    #: Nine of attention, then skip, LayerNorm and feed-forward network where the layer could be
    #: taken apart.
    steps: tuple[ExplainStep, ...]
    #: All heads of the model.
    heads: Annotated[tuple[ExplainedHead, ...], Compare(where="{0.name}")]
    patterns: dict[str, tuple[tuple[float, ...], ...]]  # By head (``L3H5``), rounded to two digits.
    left_out: tuple[str, ...] = ()  # What this model does not allow, a sentence each.

    @property
    def name(self) -> str:
        """Name of the explained head: ``L3H5``."""
        return head_name(self.layer, self.head, self.stack)

    def step(self, key: str) -> ExplainStep | None:
        """Return a step by its key; None where it is left out."""
        return next((step for step in self.steps if step.key == key), None)

    def to_frame(self) -> pandas.DataFrame:
        """One row per query and key of the explained head (pandas)."""
        import pandas as pd

        steps = {step.key: step for step in self.steps}
        scores = steps["scores"]
        columns = {
            "product": scores.matrix("q k^T"),
            "score": scores.matrix("scores"),
            "weight": steps["softmax"].matrix("pattern"),
            "other_direction": steps["mask"].matrix("other direction"),
            "sequence_scale": scores.matrix("sequence scale"),
        }
        rows = []
        for i, query in enumerate(self.tokens):
            for j, key in enumerate(self.tokens):
                row = {"query_pos": i, "query": query, "key_pos": j, "key": key}
                row |= {name: matrix.values[i][j] for name, matrix in columns.items()}
                rows.append(row)
        return pd.DataFrame(rows)

    def heads_frame(self) -> pandas.DataFrame:
        """One row per head (pandas)."""
        import pandas as pd

        return pd.DataFrame([vars(head) for head in self.heads])
