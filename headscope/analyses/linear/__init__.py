"""``headscope linear``: attention without its softmax.

The options are here; :mod:`.run` is what happens. :mod:`.forms` are the linear feature maps,
:mod:`.measure` what a head loses in them, :mod:`.stored_keys` how values are stored under its keys
and read back, :mod:`.resamples` and :mod:`.correlation` the estimates with their intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from headscope.analyses.linear.result import LinearResult
from headscope.core.options import Usual
from headscope.session.entry import entry
from headscope.session.options import EffectOptions, Held

__all__ = ["LinearOptions", "LinearResult", "linear"]


@dataclass(frozen=True, kw_only=True)
class LinearOptions(EffectOptions):
    """Replace the softmax by linear feature maps, and measure what heads and the model lose.

    Also whether similar keys explain it, and how well values stored under N keys are read back.

    Examples
    --------
    >>> import headscope
    >>> result = headscope.linear("demo", sentences=4, control=False)
    >>> result.form("linear").whole_scaled.cosine.value < 0.99
    True
    """

    held: ClassVar[Held] = Held(0.6, 450.0)
    usual_seconds: ClassVar[Mapping[str, float]] = {"all heads": 20.0}
    examples: ClassVar[tuple[str, ...]] = (
        "headscope linear demo",
        "headscope linear ./my-bert --text articles.txt --sentences 200 -o out/",
        "headscope linear demo --task similarity --data stsb-test.csv",
    )
    in_report: ClassVar[dict[str, Any]] = {"sentences": 32}

    control: Annotated[bool, Usual(help="Also measure a model with random weights.")] = True

    def step_names(self) -> tuple[str, ...]:
        """Name the step: all heads in every form."""
        return ("all heads",)


linear = entry(LinearOptions, LinearResult, "headscope.analyses.linear.run")
