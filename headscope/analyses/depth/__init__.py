"""What becomes of tokens with depth: what ``headscope depth`` can be asked.

Each field of the options is a keyword in Python and a flag on the command line. ``--help`` shows
those that are marked ``Usual``, ``--help-all`` every one; ``$name`` in a message is replaced by
the keyword or the flag. ``entry``, at the end, makes the function that users call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

from headscope.analyses.depth.result import DepthResult
from headscope.core.options import Option, Usual
from headscope.session.entry import entry
from headscope.session.options import DTYPES, MODEL, Held, RunOptions, Text

__all__ = ["DepthOptions", "DepthResult", "depth"]

#: Windows (stretches of text) by default: the standard error of a ratio is below 0.01 with so many.
#: Large models have half of them, so that depth ends within a minute.
WINDOWS = 16


@dataclass(frozen=True)
class DepthOptions(RunOptions):
    """Measure whether attention alone makes all tokens the same, and what prevents it.

    Every layer is re-run without its skip connection, feed-forward network or LayerNorm.

    Examples
    --------
    >>> import headscope
    >>> result = headscope.depth("demo", length=64, sequences=2, control=False)
    >>> result.layer_norm, len(result.variants["full"])
    ('post', 7)
    """

    #: Memory beside the model: 0.6 times its weights, and 180 MiB
    held: ClassVar[Held] = Held(0.6, 180.0)
    usual_seconds: ClassVar[Mapping[str, float]] = {"model": 8.0, "control": 8.0}
    examples: ClassVar[tuple[str, ...]] = (
        "headscope depth demo",
        "headscope depth ./my-bert --text articles.txt -o out/",
        "headscope depth demo --sequences 500 --no-control --format json",
    )
    widest_dtype: ClassVar[bool] = True  # Attention alone falls below what float32 can show.

    text: Annotated[
        Text | None,
        Usual(help="UTF-8 text to cut windows from. Default: the built-in sample."),
    ] = None
    _: KW_ONLY
    length: Annotated[
        int | None,
        Usual(help="Tokens of a window, all counted. Default: 128, or the model's limit if lower."),
    ] = None
    sequences: Annotated[
        int | None,
        Usual(
            help="Windows to measure, spread evenly over the text. Default: 16, or 8 of a model "
            "with more than 50 million parameters.",
            at_least=1,
        ),
    ] = None
    limit: Annotated[int | None, Option(help="Only the first lines of the text.", at_least=1)] = (
        None
    )
    control: Annotated[bool, Usual(help="Also measure a model with random weights.")] = True
    dtype: Annotated[
        str | None,
        Option(
            help="Compute in this type. Default: float64, on devices that have it.",
            python_help="Compute in this type. Default: float64 on devices that have it, and the "
            "type of a model that is in memory already.",
            choices=DTYPES,
            panel=MODEL,
        ),
    ] = None

    def step_names(self) -> tuple[str, ...]:
        """Name the steps: the model, and random weights."""
        return ("model", "control") if self.control else ("model",)


depth = entry(DepthOptions, DepthResult, "headscope.analyses.depth.run")
