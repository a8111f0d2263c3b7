"""``headscope symmetric``: scores made symmetric before the softmax.

The options are here; :mod:`.run` is what happens, :mod:`.measure` the changes of the scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from headscope.analyses.symmetric.result import SymmetricResult
from headscope.session.entry import entry
from headscope.session.options import EffectOptions, Held

__all__ = ["SymmetricOptions", "SymmetricResult", "symmetric"]


@dataclass(frozen=True, kw_only=True)
class SymmetricOptions(EffectOptions):
    """Make attention scores symmetric before the softmax, and measure how the output changes.

    Compared with removing the same heads or random ones, and with random changes of that size.

    Examples
    --------
    >>> import headscope
    >>> result = headscope.symmetric("demo", sentences=2)
    >>> result.whole["symmetric"].cosine.value < result.whole["pairs"].cosine.value
    True
    """

    held: ClassVar[Held] = Held(0.6, 300.0)
    usual_seconds: ClassVar[Mapping[str, float]] = {"changed heads": 60.0}
    examples: ClassVar[tuple[str, ...]] = (
        "headscope symmetric demo",
        "headscope symmetric ./my-bert --text articles.txt --sentences 200 -o out/",
        "headscope symmetric demo --task similarity --data stsb-test.csv",
    )
    #: With 8 lines the intervals of the random changes overlap in the demo.
    in_report: ClassVar[dict[str, Any]] = {"sentences": 16}

    def step_names(self) -> tuple[str, ...]:
        """Name the steps: all heads and random sets of them, together."""
        return ("changed heads",)


symmetric = entry(SymmetricOptions, SymmetricResult, "headscope.analyses.symmetric.run")
