"""What ``headscope rank`` measured, as values; :class:`RankResult`, below, holds all of it.

``Compare()`` and ``Setting()`` in a field's type say how two results are compared: by this number
and its name, or only where this setting is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any

from headscope.core.heads import Head, layer_name
from headscope.core.serialise import SCHEMA
from headscope.models.certificate.validation import ValidationSummary
from headscope.show.shown import Shown
from headscope.stats.compared import Compare, Setting
from headscope.stats.effects import columns
from headscope.stats.estimate import Estimate
from headscope.stats.ranks import (
    ControlStatistics,
    DistanceRange,
    LayerControl,
    MatrixRank,
    statistics,
)

if TYPE_CHECKING:
    import pandas


def symmetry_of(asymmetry: float | None) -> float | None:
    """Return the symmetry score of B: 1 - asymmetry^2 / 2, which is tr(B B) / ||B||_F^2.

    1 for a symmetric matrix, -1 for an antisymmetric one, 0 on average for a random one. The
    asymmetry is ||B - B^T||_F / ||B||_F; the score is that of Saponati et al. 2025
    (arXiv:2502.10927).
    """
    return None if asymmetry is None else 1.0 - asymmetry**2 / 2.0


#: The matrices that are measured, in the order in which they are shown.
MATRICES = ("qk", "ov", "w_q", "w_k")


@dataclass(frozen=True, kw_only=True)
class Matrices:
    """Ranks of W_Q W_K^T, W_V W_O, W_Q and W_K: of one head, or of a layer's heads as one.

    A :class:`MatrixRank` holds a matrix's singular values and the kinds of rank that they give.
    """

    qk: Annotated[MatrixRank, Compare("qk ")]
    ov: Annotated[MatrixRank, Compare("ov ")]
    w_q: Annotated[MatrixRank, Compare("w_q ")]
    w_k: Annotated[MatrixRank, Compare("w_k ")]
    #: ||B - B^T||_F / ||B||_F of B = W_Q W_K^T; None for cross-attention, where B joins two
    #: different spaces.
    asymmetry: Annotated[float | None, Compare()]
    #: Of W_Q R(D) W_K^T, where positions rotate queries and keys; the fields above are at distance
    #: 0, where R is 1. None where they do not.
    over_distances: Annotated[DistanceRange | None, Compare("over distances ")] = None

    @property
    def symmetry(self) -> float | None:
        """1 - asymmetry^2 / 2 of W_Q W_K^T; None for cross-attention."""
        return symmetry_of(self.asymmetry)


@dataclass(frozen=True, kw_only=True)
class HeadRank(Matrices, Head):
    """One head's matrices."""

    #: ||P - P^T||_F / ||P||_F of the attention pattern; Student's t over the lines of a text.
    pattern_asymmetry: Annotated[Estimate | None, Compare("asymmetry of patterns")] = None
    #: sum(lambda) / sum(|lambda|) of the eigenvalues of W_E W_V W_O W_U; None unless asked for, and
    #: of heads that do not write to the stack that predicts tokens.
    copying: Annotated[float | None, Compare("copying score")] = None


@dataclass(frozen=True)
class Overlap:
    """Mean squared cosine of the principal angles between heads' subspaces, (n_heads, n_heads)."""

    query: tuple[tuple[float, ...], ...]  # 1: the same subspace; 0: orthogonal. The diagonal is 1.
    key: tuple[tuple[float, ...], ...]
    #: Row: the head whose query subspace, column: the head whose key subspace.
    query_key: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Layer:
    """The fields that a result row about one layer begins with."""

    layer: int  # Zero-based
    heads: tuple[int, ...]  # Their original numbers: (0, 2, 3) where head 1 was removed
    stack: str = field(default="encoder", kw_only=True)  # ``encoder``, ``decoder`` or ``cross``


@dataclass(frozen=True, kw_only=True)
class LayerRank(Matrices, Layer):
    """One layer with its heads concatenated: B = sum over heads of W_Q W_K^T."""

    overlap: Overlap  # Between the heads' subspaces
    #: Whether the gain of the norm before the layer was folded in; None if that was not asked for.
    folded: bool | None = None
    #: Sets of keys and values that its heads share; None where each head has its own.
    shared_keys: int | None = None
    #: Whether norms of queries and keys have gains, which are folded into W_Q and W_K.
    qk_gains: bool = False

    @property
    def name(self) -> str:
        """``L3``; ``cross:L3`` outside the encoder."""
        return layer_name(self.layer, self.stack)


@dataclass(frozen=True)
class ControlRank:
    """One control: ``gaussian`` (i.i.d. entries) or ``fresh`` (a new initialisation)."""

    seeds: tuple[int, ...]  # One for each draw
    #: Ranks of random layers: one for each number of heads that a layer of the model has.
    geometries: tuple[LayerControl, ...]

    def of(self, n_heads: int) -> LayerControl | None:
        """Return the control of layers with ``n_heads`` heads."""
        for geometry in self.geometries:
            if geometry.n_heads == n_heads:
                return geometry
        return None


@dataclass(frozen=True)
class SharedWidth:
    """All layers' projections shared by their heads, at one width."""

    width: int  # Columns of the shared W_Q and W_K of each layer
    #: sqrt(sum_h ||B_h - B'_h||_F^2 / sum_h ||B_h||_F^2) for B = W_Q W_K^T, mean over layers.
    score_error: Annotated[float, Compare()]
    layer_score_errors: tuple[float, ...]  # The same layer by layer
    truncated_rank: int  # To which every head alone is cut to cost as much as the shared ones
    truncated_score_error: float  # The error of heads that are cut to this rank
    control_score_error: float | None  # The error of shared projections of Gaussian factors
    #: Mean cosine between the embeddings of lines with replaced and with original scores; interval
    #: over lines.
    fidelity: Annotated[Estimate, Compare(better=1)]
    truncated_fidelity: Estimate
    parameters: int  # That the scores of all layers take with shared projections
    #: W_Q, b_Q and W_K of all layers, less ``parameters``; negative where sharing costs more. b_K
    #: cannot change a pattern and does not count.
    parameters_saved: int
    share_saved: float  # ``parameters_saved`` as a share of W_Q, b_Q and W_K


@dataclass(frozen=True)
class SharedProjections:
    """The sweep of widths."""

    widths: Annotated[tuple[SharedWidth, ...], Compare(where="shared width {0.width}")]  # Ascending
    #: The width at the knee of the score error (largest distance below the chord); None for fewer
    #: than three widths or a curve without one.
    knee: Annotated[int | None, Compare("knee", where="shared projections", words="{0.knee}")]
    #: Name, sha256, lines used and skipped, of the text that fidelity was measured on.
    text: dict[str, Any]


@dataclass(frozen=True)
class Copying:
    """Copying scores (Elhage et al. 2021) of random heads, and how many heads lie outside them."""

    stack: Annotated[str, Setting("stack of copying scores")]  # Whose heads are scored
    #: Whether the model has an unembedding; else its embedding stands for it, as they are tied.
    own_unembedding: Annotated[bool, Setting("own unembedding")]
    draws: int  # Random heads: with Gaussian W_V and W_O between the model's own W_E and W_U
    random_mean: float  # Mean score of the random heads
    random_low: float  # 95% of the random heads score between this
    random_high: float  # and this
    heads: int  # Heads of the model that have a score
    above: int  # Heads of the model that score above ``random_high``: one in forty by chance
    below: int  # Heads of the model that score below ``random_low``: one in forty by chance


@dataclass(frozen=True, repr=False)
class RankResult(Shown):
    """Ranks of every head and layer, each with its controls."""

    #: In the order of layer, head.
    heads: Annotated[tuple[HeadRank, ...], Compare(where="{0.name}")]
    layers: Annotated[tuple[LayerRank, ...], Compare(where="layer {0.layer}")]  # In their order.
    #: ``gaussian`` and ``fresh``; None where the control was not asked for.
    controls: dict[str, ControlRank | None]
    settings: Annotated[dict[str, Any], Setting()]  # share, biases, fold_layernorm, stored_dtype.
    validation: ValidationSummary  # Whether our attention equals the model's.
    provenance: dict[str, Any]  # Model, versions, command, seed and text.
    not_covered: tuple[str, ...] = ()  # Terms of this model's scores that W_Q W_K^T leaves out.
    turns_values: bool = False  # Whether positions rotate values too: W_V W_O is of position 0.
    #: What the asymmetry of patterns was measured on.
    text: dict[str, Any] | None = None
    shared: Annotated[SharedProjections | None, Compare()] = None  # None unless it was asked for.
    copying: Annotated[Copying | None, Setting()] = None  # None unless it was asked for.
    schema: int = SCHEMA

    @property
    def rotates(self) -> bool:
        """Whether positions rotate queries and keys, in one layer at least."""
        return any(layer.over_distances is not None for layer in self.layers)

    def to_frame(self) -> pandas.DataFrame:
        """One row per head and matrix, and per layer and matrix (``head`` empty), with controls.

        The index is the name of the head, or of the layer.
        """
        import pandas

        rows = []
        names = []
        for head in self.heads:
            rows += [self._row(head, head.head, matrix) for matrix in MATRICES]
            names += [head.name] * len(MATRICES)
        for layer in self.layers:
            rows += [self._row(layer, None, matrix) for matrix in MATRICES]
            names += [layer.name] * len(MATRICES)
        index = pandas.Index(names, name="name", dtype=object)
        frame = pandas.DataFrame(rows, index=index)
        frame["head"] = frame["head"].astype("Int64")
        return frame

    def _row(self, ranks: HeadRank | LayerRank, head: int | None, matrix: str) -> dict[str, Any]:
        """Return one matrix of a head, or of a layer's heads together, beside its controls."""
        row: dict[str, Any] = {"layer": ranks.layer, "head": head, "matrix": matrix}
        if any(layer.stack != "encoder" for layer in self.layers):
            row["stack"] = ranks.stack
        row |= statistics(getattr(ranks, matrix))
        row["asymmetry"] = ranks.asymmetry if matrix == "qk" else None
        row["symmetry"] = ranks.symmetry if matrix == "qk" else None
        if self.rotates:
            row |= _distance_columns(ranks.over_distances if matrix == "qk" else None)
        if self.copying is not None:
            score = ranks.copying if isinstance(ranks, HeadRank) else None  # layers have none
            row["copying"] = score if matrix == "ov" else None
        for kind in self.controls:
            control = self.control_of(ranks, kind, matrix)
            if control is not None:
                for name, value in statistics(control).items():
                    row[f"{kind}_{name}"] = value
            if self.rotates:
                random_range = self.control_range(ranks, kind) if matrix == "qk" else None
                row |= _distance_columns(random_range, f"{kind}_")
        return row

    def shared_frame(self) -> pandas.DataFrame:
        """One row per width of shared projections, where they were asked for (pandas)."""
        import pandas

        widths = self.shared.widths if self.shared else ()
        rows = [columns(width, *vars(width)) for width in widths]
        return pandas.DataFrame(rows).drop(columns="layer_score_errors", errors="ignore")

    def control_of(
        self, ranks: HeadRank | LayerRank, kind: str, matrix: str
    ) -> ControlStatistics | None:
        """Return the control of one matrix of a head, or of a layer's heads together.

        ``kind`` is ``gaussian`` or ``fresh``; the random layers have as many heads as this one.
        """
        geometry = self._geometry(ranks, kind)
        if geometry is None:
            return None
        by_matrix = geometry.heads if isinstance(ranks, HeadRank) else geometry.layers
        return by_matrix[matrix]

    def control_range(self, ranks: HeadRank | LayerRank, kind: str) -> DistanceRange | None:
        """Return the control of the range over distances of a head, or of a layer."""
        geometry = self._geometry(ranks, kind)
        if geometry is None:
            return None
        if isinstance(ranks, HeadRank):
            return geometry.heads_over_distances
        return geometry.layers_over_distances

    def _geometry(self, ranks: HeadRank | LayerRank, kind: str) -> LayerControl | None:
        """Return the random layers that have as many heads as the layer of ``ranks``."""
        control = self.controls[kind]
        if control is None:
            return None
        n_heads_of = {(layer.stack, layer.layer): len(layer.heads) for layer in self.layers}
        return control.of(n_heads_of[ranks.stack, ranks.layer])


def _distance_columns(spread: DistanceRange | None, prefix: str = "") -> dict[str, float | None]:
    """Return both ends of each number over distances as cells of a row, by their columns."""
    names = [field.name for field in fields(DistanceRange)]
    return {
        f"{prefix}distances_{name}": None if spread is None else getattr(spread, name)
        for name in names
    }
