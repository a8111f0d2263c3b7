"""Ranks of the weights of heads: the options of ``headscope rank``, and the function itself.

A field with ``Option`` or ``Usual`` is one option: ``--help`` shows the usual ones, and all of them
with ``--help-all``. The last line makes ``headscope.rank(model, ...)`` of the class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from headscope.analyses.rank.result import RankResult
from headscope.core.options import Option, OptionError, Usual, numbers
from headscope.session.entry import entry
from headscope.session.options import POOLING, STACK, WINDOWS, Held, RunOptions, Text

__all__ = ["RankOptions", "RankResult", "rank"]


@dataclass(frozen=True, kw_only=True)
class RankOptions(RunOptions):
    """Measure the ranks of W_Q W_K^T and W_V W_O, per head and per layer, from weights alone.

    Every number is compared with that of random matrices.

    Examples
    --------
    >>> import headscope
    >>> result = headscope.rank("demo")
    >>> result.heads[0].qk.dims["90"] <= 32, result.layers[0].qk.dims["90"] <= 384
    (True, True)
    """

    #: Memory beside the model, as measured: 0.65 times its weights, and 80 MiB.
    held: ClassVar[Held] = Held(0.65, 80.0)
    usual_seconds: ClassVar[Mapping[str, float]] = {"model": 3.0, "shared projections": 25.0}
    examples: ClassVar[tuple[str, ...]] = (
        "headscope rank demo",
        "headscope rank demo --text lines.txt -o out/",
        "headscope rank ./my-bert-mlm --copying",
        "headscope rank demo --share-projections 48,96,192,288 --no-fresh",
    )

    stack: Annotated[str | None, STACK] = None
    share: Annotated[
        str,
        Option(
            help="Count the dimensions that hold 90/95/99% of this.", choices=("sigma2", "sigma")
        ),
    ] = "sigma2"
    biases: Annotated[
        bool,
        Option(
            help="Include b_Q and b_V by augmenting the input with a 1.",
            choices=("exclude", "include"),
        ),
    ] = False
    fold_layernorm: Annotated[
        bool, Usual(help="Fold the gain of the preceding LayerNorm or RMSNorm into the weights.")
    ] = False
    rtol: Annotated[
        float | None,
        Option(
            help="Tolerance of numerical ranks. Default: max(shape) * eps of the stored dtype.",
            above=0,
            below=1,
        ),
    ] = None
    control_seeds: Annotated[
        int,
        Option(
            help="Draws that the Gaussian control averages.",
            at_least=2,
            why="fewer tell no spread",
        ),
    ] = 5
    fresh: Annotated[bool, Usual(help="Measure fresh initialisation too.")] = True
    copying: Annotated[
        bool,
        Usual(
            help="Score how far each head writes the tokens that it looks at, by the eigenvalues "
            "of W_E W_VW_O W_U.",
            flags=("--copying",),
        ),
    ] = False
    text: Annotated[
        Text | None,
        Usual(help="One sentence a line: how asymmetric the patterns are on it."),
    ] = None
    share_projections: Annotated[
        Sequence[int],
        Usual(
            help="Let the heads of each layer share projections of these widths.",
            metavar="R1,R2,...",
            read=numbers("widths", "48,96,192"),
        ),
    ] = ()
    limit: Annotated[int | None, Option(help="Only the first lines.", at_least=1, unit="line")] = (
        None
    )
    windows: Annotated[bool, WINDOWS] = False
    pooling: Annotated[str | None, POOLING] = None

    def check(self) -> None:
        """Refuse windows of a text where none is read."""
        super().check()
        if self.windows and self.text is None:
            raise OptionError("$windows says how $text is read; give a $text too.")

    @classmethod
    def report_defaults(cls) -> dict[str, Any]:
        """Return the defaults in a report, which also reads the built-in sample."""
        from headscope.data.corpus import sample_corpus

        return {"text": sample_corpus()}

    def step_names(self) -> tuple[str, ...]:
        """Name the steps: the weights, and what depends on a text."""
        steps = ["model"]
        if self.text is not None:
            steps.append("text")
        if self.share_projections:
            steps.append("shared projections")
        return tuple(steps)


rank = entry(RankOptions, RankResult, "headscope.analyses.rank.run")
