"""What heads read and pass on: what ``headscope flow`` can be asked.

Each field of the options is a keyword in Python and a flag on the command line. ``--help`` shows
those that are marked ``Usual``, ``--help-all`` every one; ``$name`` in a message is replaced by
the keyword or the flag. ``entry``, at the end, makes the function that users call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

from headscope.analyses.flow.result import FlowResult
from headscope.core.options import Option, OptionError, Usual
from headscope.session.entry import entry
from headscope.session.options import WINDOWS, AnyCorpus, CorpusFlags, Held, RunOptions

__all__ = ["FlowOptions", "FlowResult", "flow"]

#: Sentences by default: the intervals of so many tell a model from its control.
SENTENCES = 192
#: Numbers of a head that so many are enough for; wider heads are fitted on more sentences.
WIDTH_OF_SENTENCES = 64


@dataclass(frozen=True)
class FlowOptions(RunOptions):
    """Say how much of what heads read they pass on.

    Spectra of W_V and W_V W_O, and what a head's output holds of what the head read.

    Examples
    --------
    >>> import headscope
    >>> result = headscope.flow("demo", limit=24, control=False)
    >>> len(result.heads), result.heads[0].d_head
    (72, 32)
    """

    #: Memory beside the model: 1.8 times its weights, and 150 MiB
    held: ClassVar[Held] = Held(1.8, 150.0)
    usual_seconds: ClassVar[Mapping[str, float]] = {
        "model, choosing": 4.0,
        "model, measuring": 6.0,
        "control, choosing": 4.0,
        "control, measuring": 6.0,
    }
    examples: ClassVar[tuple[str, ...]] = (
        "headscope flow demo",
        "headscope flow ./my-bert --treebank en_ewt-ud-test.conllu -o out/",
        "headscope flow demo --text lines.txt --no-control --format json",
    )
    corpus: Annotated[
        AnyCorpus,
        Option(
            help="A .conllu treebank or a text file, sentences in memory, or None for the built-in "
            "sample; of pairs the sources are read.",
            flag_class=CorpusFlags,
        ),
    ] = None
    _: KW_ONLY
    control: Annotated[bool, Usual(help="Measure random weights beside the model.")] = True
    control_seeds: Annotated[
        int,
        Option(
            help="Draws of Gaussian factors beside the spectra.",
            at_least=2,
            why="fewer tell no spread",
        ),
    ] = 5
    limit: Annotated[
        int | None,
        Usual(
            help=f"Only the first sentences. Default: {SENTENCES} (more where heads are wider than "
            f"{WIDTH_OF_SENTENCES}), spread evenly over the corpus.",
            at_least=1,
            unit="sentence",
        ),
    ] = None
    full: Annotated[bool, Usual(help="Read the whole corpus.")] = False
    windows: Annotated[bool, WINDOWS] = False

    def check(self) -> None:
        """Refuse a limit where the whole corpus is asked for."""
        super().check()
        if self.full and self.limit is not None:
            raise OptionError("$full reads the whole corpus; leave $limit out, or $full.")

    def step_names(self) -> tuple[str, ...]:
        """Name the steps: two passes of the model, and two of its random twin."""
        steps = ["model, choosing", "model, measuring"]
        if self.control:
            steps += ["control, choosing", "control, measuring"]
        return tuple(steps)


flow = entry(FlowOptions, FlowResult, "headscope.analyses.flow.run")
