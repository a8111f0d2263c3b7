"""What ``headscope depth`` measured, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from headscope.session.measured import Measured
from headscope.stats.compared import Setting

if TYPE_CHECKING:
    import pandas

#: Values at the embeddings and after each layer: n_layers + 1; None where there is none.
Curve = tuple[float | None, ...]


@dataclass(frozen=True)
class Protection:
    """The share of the full model's residual that one part of the layers protects."""

    part: str  # skip, ffn or layernorm
    #: ``removed``: lost when the part is taken out of the full model; ``added``: gained when it is
    #: added to attention alone. Both as shares of the full model's ratio.
    way: str
    having: str  # The two variants whose difference it is.
    lacking: str
    mean: Curve  # Over windows; negative where the part costs residual.
    std: Curve
    low: Curve  # 95% interval of the mean (Student's t); None from few windows.
    high: Curve


@dataclass(frozen=True)
class Trend:
    """A number by depth, over windows."""

    mean: Curve  # Over the windows that count at a point
    low: Curve  # 95% interval of the mean (Student's t); None from fewer than two windows.
    high: Curve
    windows: tuple[int, ...]  # That count at each point


@dataclass(frozen=True)
class DepthCurves:
    """The ratio ||res(H)|| / ||H|| of one model by depth and variant, over windows."""

    #: Mean and standard deviation for ``attention``, ``attention+ffn``, ``attention+skip``,
    #: ``full`` and ``full-without-layernorm``; point 0 is the embeddings.
    variants: dict[str, Curve]
    std: dict[str, Curve]
    attention_without_layernorm: Curve  # Attention alone, its LayerNorm off too.
    attention_without_layernorm_std: Curve
    protected: tuple[Protection, ...]  # What each part of the layers prevents
    #: By variant: layers after which its ratio stays below 1% of its start; None if it never does.
    collapsed_after: dict[str, int | None]
    #: ``attention_of_start`` and ``skip_of_start``: the ratio of attention alone, and with its
    #: skip, as shares of the embeddings'. ``layernorm_change``: attention alone minus the same
    #: without LayerNorm, as a share of the start. ``ffn_gain``: ln of attention with feed-forward
    #: over attention alone. ``step_change``: the factor by which a layer multiplies attention
    #: alone, minus that of the layer before. The last two leave out windows that are rounding.
    trends: dict[str, Trend] = field(default_factory=dict, kw_only=True)

    def ratios(self) -> dict[str, tuple[Curve, Curve]]:
        """Return mean and standard deviation of every variant, that without LayerNorm last."""
        ratios = {name: (mean, self.std[name]) for name, mean in self.variants.items()}
        ratios["attention-without-layernorm"] = (
            self.attention_without_layernorm,
            self.attention_without_layernorm_std,
        )
        return ratios

    def protection(self, part: str, way: str) -> Protection:
        """Return what a part protects, removed or added."""
        return next(p for p in self.protected if (p.part, p.way) == (part, way))


@dataclass(frozen=True)
class DepthControl(DepthCurves):
    """The same curves for the same architecture with random weights, on the same windows."""

    seed: int  # Of the weights


@dataclass(frozen=True)
class Decomposition:
    """Proof that the layers were taken apart rightly: the full variant is the model."""

    max_abs: float  # Largest difference of any state from the model's own run, over all windows
    #: What it may be, absolute where states are up to 1 and relative to the largest above that.
    tolerance: float


@dataclass(frozen=True, repr=False)
class DepthResult(Measured, DepthCurves):
    """How fast tokens become the same with depth, and which part of the layers prevents it."""

    decomposition: Decomposition  # How far the full variant may lie from the model, and does.
    #: ``post`` (after each sum), ``pre`` (before each sublayer) or ``mixed``; watched, not named.
    layer_norm: Annotated[str, Setting("LayerNorm")]
    #: Tokens of a window, windows measured, windows that the text has.
    length: Annotated[int, Setting()]
    sequences: Annotated[int, Setting()]
    available: int
    floor: float  # Ten times the dtype's precision: smaller ratios are rounding, not residual.
    stack: str = "encoder"  # Whose layers: an encoder-decoder's encoder alone
    layers: tuple[int, ...] = ()  # Their original numbers
    control: DepthControl | None = None  # Random weights; None unless it was asked for.

    def to_frame(self) -> pandas.DataFrame:
        """One row per model, variant and point (pandas)."""
        import pandas as pd

        rows: list[tuple[str, str, int, float | None, float | None]] = []
        for weights, curves in self._models().items():
            for name, (means, stds) in curves.ratios().items():
                for point, (mean, std) in enumerate(zip(means, stds, strict=True)):
                    rows.append((weights, name, point, mean, std))
        return pd.DataFrame(rows, columns=["weights", "variant", "layers", "ratio", "std"])

    def protected_frame(self) -> pandas.DataFrame:
        """One row per model, part, way and point (pandas)."""
        import pandas as pd

        rows: list[tuple[str | int | float | None, ...]] = []
        for weights, curves in self._models().items():
            for p in curves.protected:
                for point, numbers in enumerate(zip(p.mean, p.std, p.low, p.high, strict=True)):
                    rows.append((weights, p.part, p.way, point, *numbers))
        columns = ["weights", "part", "way", "layers", "share", "std", "low", "high"]
        return pd.DataFrame(rows, columns=columns)

    def _models(self) -> dict[str, DepthCurves]:
        """Return the curves of the model, and of random weights where they were measured."""
        models: dict[str, DepthCurves] = {"model": self}
        if self.control is not None:
            models["control"] = self.control
        return models
