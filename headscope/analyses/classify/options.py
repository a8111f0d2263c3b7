"""What ``headscope classify`` can be asked.

Each field of :class:`ClassifyOptions` is a keyword in Python, a flag and a key of a config file.
``--help`` shows those marked ``Usual``, ``--help-all`` every ``Option``. In messages ``$task``
stands for the option ``task``, spelled as the user's interface does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from headscope.analyses.classify.roles import Thresholds
from headscope.core.options import Option, OptionError, Usual
from headscope.session.options import (
    POOLING,
    STACK,
    TASKS,
    WINDOWS,
    AnyCorpus,
    CorpusFlags,
    ResumableOptions,
)

PATCH_PAIRS = 60  # Minimal pairs that a head is patched in unless another number is given


@dataclass(frozen=True)
class ClassifyOptions(ResumableOptions):
    """Say what each head does: positional, syntactic, rare-word and other roles.

    A label comes with what it had to beat, a 95% interval and an adjusted p-value. Swapped trees
    (of cross-attention: swapped sources) and, with control, random weights show how many come by
    chance.

    Examples
    --------
    >>> import headscope
    >>> result = headscope.classify("demo", limit=50)
    >>> result.heads[2].name, result.heads[2].primary, result.heads[2].positional.offset
    ('L0H2', 'positional', -1)
    """

    usual_seconds: ClassVar[Mapping[str, float]] = {
        "model": 4.0,
        "control": 4.0,
        "patching heads": 40.0,
        "removing heads": 100.0,
    }
    examples: ClassVar[tuple[str, ...]] = (
        "headscope classify demo",
        "headscope classify ./my-bert --treebank en_ewt-ud-test.conllu --control -o out",
        "headscope classify demo --text lines.txt --language en --format json",
        "headscope classify ./my-marian --text pairs.tsv --control -o out/",
        "headscope classify demo --pairs coreference.tsv",
        "headscope classify demo --ablate --prefix-matching",
        "headscope classify demo --treebank en_ewt-ud-test.conllu --patch",
    )
    in_report: ClassVar[dict[str, Any]] = {
        "control": True,
        "ablate": True,
        "ablate_limit": 12,
        "prefix_matching": True,
    }
    too_long_in_report: ClassVar[dict[str, str]] = {"ablate": "removing each head alone"}

    corpus: Annotated[
        AnyCorpus,
        Option(
            help="A .conllu treebank or a text file (one sentence a line), sentences in memory, or "
            "None for the built-in sample treebank. For an encoder-decoder model also pairs of "
            "source and target: a table (.tsv, .csv, .jsonl) or a list of tuples.",
            flag_class=CorpusFlags,
        ),
    ] = None
    _: KW_ONLY
    pairs: Annotated[
        str | Path | None,
        Option(
            help="Which heads follow these pairs of words? Rows of text, from, to, label; for "
            "cross-attention of source, target, from, to, label."
        ),
    ] = None
    stack: Annotated[str | None, STACK] = None
    frequencies: Annotated[
        str | Path | None,
        Option(help="Word and count per line, tab between. Default: wordfreq, else the corpus."),
    ] = None
    language: Annotated[
        str | None, Option(help="ISO code for wordfreq, where the file's name does not tell.")
    ] = None
    thresholds: Annotated[
        Thresholds | None,
        Option(
            help="Change a threshold, e.g. 'positional=0.8'; repeatable. See docs/classify.md.",
            python_help="What a score must reach to become a label.",
            flags=("--threshold",),
            metavar="NAME=VALUE",
            kind=list[str],
            thresholds="Thresholds",
            example="positional=0.8",
        ),
    ] = None
    control: Annotated[bool, Usual(help="Measure random weights too and count their labels.")] = (
        False
    )
    prefix_matching: Annotated[
        bool,
        Usual(
            help="Score heads on repeated random tokens: the induction score, with its control.",
            flags=("--prefix-matching",),
        ),
    ] = False
    ablate: Annotated[
        bool,
        Usual(
            help="Remove every head alone and measure what that does to the output, beside the "
            "roles.",
            flags=("--ablate",),
        ),
    ] = False
    task: Annotated[
        str,
        Option(
            help="With ablate: the task that shows what removing a head costs; fidelity needs no "
            "labels.",
            choices=TASKS,
        ),
    ] = "fidelity"
    data: Annotated[
        str | Path | None,
        Option(
            help="With ablate: its examples, half of them for losses and half for means: text, "
            "CSV, TSV, JSONL with labels or targets, or what the task reads. Default: the "
            "built-in sample."
        ),
    ] = None
    ablate_limit: Annotated[
        int, Option(help="Most examples of each half, drawn at random (mlm, lm: windows).")
    ] = 64
    patch: Annotated[
        bool,
        Option(
            help="Let each positional or syntactic head look where it would in another sentence: "
            "does what follows depend on it?",
            flags=("--patch",),
        ),
    ] = False
    patch_pairs: Annotated[
        int,
        Option(help="Most minimal pairs that a head is patched in.", at_least=8, python_only=True),
    ] = PATCH_PAIRS
    limit: Annotated[
        int | None, Usual(help="Only the first sentences.", at_least=1, unit="sentence")
    ] = None
    windows: Annotated[bool, WINDOWS] = False
    pooling: Annotated[str | None, POOLING] = None

    def check(self) -> None:
        """Refuse options that say how ablate or patch measures, where these are off."""
        super().check()
        if not self.ablate and (self.data is not None or self.task != "fidelity"):
            raise OptionError(
                "$task and $data say what $ablate measures; ask for $ablate too, or leave them out."
            )
        if self.pairs is not None and self.corpus is not None:
            raise OptionError(
                "$pairs come with their own text; leave out the treebank or text, or $pairs."
            )
        if not self.patch and self.patch_pairs != PATCH_PAIRS:
            raise OptionError(
                "$patch_pairs limits the pairs that $patch takes; ask for $patch too, or leave it "
                "out."
            )

    def step_names(self) -> tuple[str, ...]:
        """Name the steps of this run, for its progress."""
        names = ["model"]
        if self.control:
            names.append("control")
        if self.patch:
            names.append("patching heads")
        if self.ablate:
            names.append("removing heads")
        return tuple(names)
