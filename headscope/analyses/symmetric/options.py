"""What ``headscope symmetric`` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from headscope.core.options import Option
from headscope.session.options import EffectOptions


@dataclass(frozen=True, kw_only=True)
class SymmetricOptions(EffectOptions):
    """Make attention scores symmetric before the softmax, and say how far the output moves.

    Beside the same heads removed, random heads removed, and random changes of the same size.

    Examples
    --------
    >>> import headscope
    >>> found = headscope.symmetric("demo", sentences=2)
    >>> found.whole["symmetric"].cosine.value < found.heads[0].symmetric.cosine.value
    True
    """

    examples: ClassVar[tuple[str, ...]] = (
        "headscope symmetric demo",
        "headscope symmetric ./my-bert --text articles.txt --sentences 200 -o out/",
        "headscope symmetric demo --no-alone --task similarity --data stsb-test.csv",
    )
    #: With 8 lines the random changes were not told apart in the demo.
    in_report: ClassVar[dict[str, Any]] = {"sentences": 16}

    alone: Annotated[bool, Option(help="Also change each head alone: three passes a head.")] = True
