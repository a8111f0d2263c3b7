"""Singular values of softmax matrices: the options of ``headscope spectrum``, and the function.

A field with ``Option`` or ``Usual`` is one option: ``--help`` shows the usual ones, and all of them
with ``--help-all``. The last line makes ``headscope.spectrum(model, ...)`` of the class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from headscope.analyses.spectrum.result import SpectrumResult
from headscope.core.options import Option, OptionError, Usual
from headscope.session.entry import entry
from headscope.session.options import POOLING, STACK, ResumableOptions

__all__ = ["SpectrumOptions", "SpectrumResult", "spectrum"]

if TYPE_CHECKING:
    from headscope.analyses.classify.result import ClassifyResult
    from headscope.data.corpus import Corpus

    #: A text: a file, or lines (or pairs of source and target) in memory.
    Lines = str | Path | Corpus | Sequence[str | tuple[str, str]]
    Classification = str | Path | ClassifyResult
else:
    # At run time the types tell the command line alone that it reads the name of a file; the
    # modules of the others would load torch.
    Lines = Classification = Path


@dataclass(frozen=True)
class SpectrumOptions(ResumableOptions):
    """Measure how low the rank of each head's softmax matrix is, and what could replace it.

    Shares of singular values, compared with closed-form controls and, with control, random
    weights; the sequences have no padding.

    Examples
    --------
    >>> import headscope
    >>> result = headscope.spectrum("demo", length=32, sequences=8)
    >>> result.sequences, result.k, len(result.heads[0].curve)
    (8, 8, 32)
    >>> result.controls["identity"].share_at_k
    0.25
    """

    usual_seconds: ClassVar[Mapping[str, float]] = {
        "model": 3.0,
        "random weights": 12.0,
        "cheap forms, head by head": 15.0,
        "cheap forms, all heads": 150.0,
    }
    examples: ClassVar[tuple[str, ...]] = (
        "headscope spectrum demo",
        "headscope spectrum demo --control --efficient",
        "headscope spectrum ./my-bert --text wiki.txt --length 512 --control -o out/",
        "headscope spectrum demo --text wiki.txt --sequences 10000 -o out/ --resume",
    )
    in_report: ClassVar[dict[str, Any]] = {"control": True}  # the default in ``headscope report``

    text: Annotated[
        Lines | None,
        Usual(
            help="Plain text, one sentence or paragraph a line; for an encoder-decoder also a "
            "table of sources and targets. Default: the built-in sample."
        ),
    ] = None
    _: KW_ONLY
    stack: Annotated[str | None, STACK] = None
    length: Annotated[
        int | None,
        Usual(
            help="Tokens of every sequence, special ones included. Default: 128, or the model's "
            "limit if lower.",
            flags=("--length", "-n"),
        ),
    ] = None
    k: Annotated[
        int | None,
        Usual(help="Largest singular values that are summed. Default: length / 4.", at_least=1),
    ] = None
    sequences: Annotated[
        int | None,
        Usual(help="Measure so many sequences, spread evenly over the text.", at_least=1),
    ] = None
    limit: Annotated[
        int | None, Option(help="Only the first lines, or pairs, of the text.", at_least=1)
    ] = None
    precision: Annotated[
        float | None,
        Option(
            help="Measure sequences in random order until every head's 95% half-width is below "
            "this. Default: 0.01, unless a number of sequences is given.",
            above=0,
            below=1,
        ),
    ] = None
    low_rank: Annotated[
        float, Option(help="Share above which a head counts as low rank.", above=0, below=1)
    ] = 0.9
    roles: Annotated[
        Classification | None,
        Option(
            help="classify.json of the same model, to name positional heads. Default: the one in "
            "the folder of -o, if there.",
            python_help="Classification of the same model: the verdict names its positional heads.",
        ),
    ] = None
    folder: Annotated[
        str | Path | None,
        Option(
            help="Where to look for a classify.json if none is named; one of another model is "
            "ignored.",
            python_only=True,
        ),
    ] = None
    efficient: Annotated[
        bool,
        Usual(
            help="Measure what could replace full attention: projections, windows, random blocks."
        ),
    ] = False
    control: Annotated[
        bool,
        Usual(help="Measure the same architecture with random weights too, on the same sequences."),
    ] = False
    pooling: Annotated[str | None, POOLING] = None

    def check(self) -> None:
        """Refuse two options that both say how much is measured.

        In an error ``$sequences`` stands for the option, as a flag or as a keyword of Python.
        """
        super().check()
        if self.sequences is not None and self.precision is not None:
            raise OptionError(
                "Give either $sequences or $precision: a fixed number is measured whatever its "
                "precision."
            )

    def step_names(self) -> tuple[str, ...]:
        """Name the steps: the model, random weights, and the cheap forms of attention."""
        steps = ["model"]
        if self.control:
            steps.append("random weights")
        if self.efficient:
            steps += ["cheap forms, head by head", "cheap forms, all heads"]
        return tuple(steps)


spectrum = entry(SpectrumOptions, SpectrumResult, "headscope.analyses.spectrum.run")
