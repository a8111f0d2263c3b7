"""The thresholds of the claims: where their estimates have to lie.

They stand apart from the claims, as options and config files need them without a measurement.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from importlib import resources

from headscope.core.errors import InputError
from headscope.core.options import ThresholdSet

_BOUNDS_FILE = resources.files("headscope.reports.claims") / "bounds.toml"
#: The default bounds of every claim, by the claim's name, in the order of the claims.
BOUNDS: dict[str, dict[str, float]] = tomllib.loads(_BOUNDS_FILE.read_text("utf-8"))


@dataclass(frozen=True)
class InsightThresholds(ThresholdSet):
    """When a claim holds; every field is an option and a TOML key. Our own choice, all of them.

    The defaults stand in ``bounds.toml``.

    Attributes
    ----------
    asymmetry : float
        Claim 0: least asymmetry of every head (0 is symmetric, sqrt(2) independent random).
    value_width : float
        Claim 1: effective rank of W_V over d_head above which a head is wide.
    recovered : float
        Claim 1: R^2 of the attended word's state from which z holds most of it.
    random_p, metric_loss : float
        Claim 2: the share of deals, (1 + draws that do as well) / (1 + draws), above which labelled
        heads are not told from random ones, and the share of the metric that they may lose (Voita
        et al. 2019, arXiv:1905.09418, section 6: 10 of 48 encoder heads cost 0.15 BLEU).
    layer_below, head_within : float
        Claim 3: how far the layers' dims90 must lie below the control's, and how near the heads'
        must lie to theirs, as shares of the control's.
    low_rank, most : float
        Claim 5: the share of the sum of singular values above which a head is low rank, and the
        share of heads that count as most (of claim 1 too).
    interference : float
        Claim 6: what the correlation of key coherence with the linear form's error, and the
        difference of the errors of reading values back (linear minus softmax), must exceed.
    collapsed, step_slack, layernorm_change : float
        Claim 7: the share of its start below which a curve has collapsed, how far the factor of a
        layer may lie above that of the layer before, and how much (as a share of the start) the
        LayerNorm ablation may change the curve anywhere.
    above_rounding : float
        Claim 7: the share of windows that must still be above rounding for a layer to count.
    tuning_gap : float
        Claim 9: points of accuracy that everything trained may lie above LayerNorm alone.
    """

    asymmetry: float = BOUNDS["asymmetry"]["asymmetry"]
    value_width: float = BOUNDS["routing"]["value_width"]
    recovered: float = BOUNDS["routing"]["recovered"]
    random_p: float = BOUNDS["labelled_heads"]["random_p"]
    metric_loss: float = BOUNDS["labelled_heads"]["metric_loss"]
    layer_below: float = BOUNDS["shared_projections"]["layer_below"]
    head_within: float = BOUNDS["shared_projections"]["head_within"]
    low_rank: float = BOUNDS["low_rank"]["low_rank"]
    most: float = BOUNDS["low_rank"]["most"]
    interference: float = BOUNDS["interference"]["interference"]
    collapsed: float = BOUNDS["collapse"]["collapsed"]
    step_slack: float = BOUNDS["collapse"]["step_slack"]
    layernorm_change: float = BOUNDS["collapse"]["layernorm_change"]
    above_rounding: float = BOUNDS["collapse"]["above_rounding"]
    tuning_gap: float = BOUNDS["frozen"]["tuning_gap"]

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            # An asymmetry goes up to 2, and points of accuracy up to 100; all others are shares.
            limit = {"asymmetry": 2.0, "tuning_gap": 100.0}.get(name, 1.0)
            if not (math.isfinite(value) and 0 <= value < limit):
                raise InputError(
                    f"The threshold {name} is {value}; give a number from 0 to below {limit:g}."
                )
