"""What ``headscope linear`` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from headscope.core.options import Option
from headscope.session.options import EffectOptions


@dataclass(frozen=True, kw_only=True)
class LinearOptions(EffectOptions):
    """Take the softmax out of attention: what heads and model lose, and whether keys say why.

    Also with common feature maps, and values stored under N keys and read back.

    Examples
    --------
    >>> import headscope
    >>> found = headscope.linear("demo", sentences=4, alone=False, control=False)
    >>> found.form("linear").whole_scaled.cosine.value < 0.99
    True
    """

    examples: ClassVar[tuple[str, ...]] = (
        "headscope linear demo",
        "headscope linear ./my-bert --text articles.txt --sentences 200 -o out/",
        "headscope linear demo --no-alone --task similarity --data stsb-test.csv",
    )
    in_report: ClassVar[dict[str, Any]] = {"sentences": 12}  # Every head takes a pass over them.

    alone: Annotated[bool, Option(help="Also make each head alone linear: a pass a head.")] = True
    control: Annotated[bool, Option(help="Measure random weights beside the model.")] = True
