"""What ``headscope rank`` measured with projections that the heads of a layer share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from headscope.results.compared import Compare

__all__ = ["SharedProjections", "SharedWidth"]


@dataclass(frozen=True)
class SharedWidth:
    """All layers' projections shared by their heads, at one width."""

    width: int  # Columns of the shared W_Q and W_K of each layer
    #: ``score_error``, ``truncated_score_error``, ``control_score_error``: sqrt(sum_h ||B_h -
    #: B'_h||_F^2 / sum_h ||B_h||_F^2), mean over layers: shared projections; each head cut to
    #: ``truncated_rank``, which costs as many parameters; shared projections of Gaussian factors.
    score_error: Annotated[float, Compare()]
    layer_score_errors: tuple[float, ...]  # The first of these, layer by layer
    truncated_rank: int  # Rank of each head's W_Q W_K^T in the comparison
    truncated_score_error: float
    control_score_error: float | None
    #: ``fidelity``, ``truncated_fidelity``: Mean cosine between the embeddings of lines with
    #: replaced and with original scores.
    fidelity: Annotated[float | None, Compare(interval="fidelity_interval", better=1)]
    #: ``fidelity_interval``, ``truncated_fidelity_interval``: 95%, over the lines of the text.
    fidelity_interval: tuple[float, ...] | None
    truncated_fidelity: float | None
    truncated_fidelity_interval: tuple[float, ...] | None
    #: Of all layers' score parameters; saved against W_Q, b_Q and W_K (negative: it costs; b_K
    #: cannot change a pattern).
    parameters: int
    parameters_saved: int
    share_saved: float  # ``parameters_saved`` as a share of those parameters


@dataclass(frozen=True)
class SharedProjections:
    """The sweep of widths."""

    widths: Annotated[tuple[SharedWidth, ...], Compare(where="shared width {0.width}")]  # Ascending
    #: The width at the knee of the score error (largest distance below the chord); None for fewer
    #: than three widths or a curve without one.
    knee: Annotated[int | None, Compare("knee", where="shared projections", words="{0.knee}")]
    #: Name, sha256, lines used and skipped, of the text that fidelity was measured on.
    text: dict[str, Any]
