"""What ``headscope classify`` can be asked."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from headscope.core.errors import InputError, UnusedOptionError
from headscope.core.options import Option
from headscope.core.thresholds import ThresholdSet
from headscope.session.options import (
    POOLING,
    STACK,
    TASKS,
    AnyCorpus,
    CorpusFlags,
    ResumableOptions,
)


@dataclass(frozen=True)
class Thresholds(ThresholdSet):
    """When a head earns a label; every field is an option and a TOML key.

    Attributes
    ----------
    positional : float
        Least hit rate at one offset (Voita et al. 2019, arXiv:1905.09418, section 5.1: at least 90%
        of the time).
    syntactic : float
        Least gain in accuracy over every baseline, on both halves (Voita et al., section 5.2, ask
        for 0.10 over the best offset).
    syntactic_relative : bool
        Whether that gain is relative to the baseline's accuracy instead of absolute.
    min_trials : int
        Fewest trials a relation needs on each half.
    q : float
        False discovery rate of the Benjamini-Hochberg adjustment (Benjamini & Hochberg 1995).
    rare : float
        Least rate on the rarest word (Voita et al., section 5.3, report 0.66 for their one such
        head).
    rare_gain : float
        Least gain of that rate over uniform attention (as for syntactic heads: 0.10).
    special, punctuation : float
        Least mean mass on special tokens, on punctuation (Clark et al. 2019, arXiv:1906.04341,
        section 3.2, show more than half).
    broad_relative : float
        Least mean row entropy as a share of ln n, over sequences of 20 tokens or more (the 3.8 nats
        of Clark et al., section 3.3, are 0.78 of ln 128, and no sentence of 40 tokens reaches
        them).
    self : float
        Least share of rows whose largest content weight is the diagonal (as for an offset).
    duplicate : float
        Least share of repeated tokens that look at another copy of themselves.
    monotonic : float
        Least rank correlation, in either direction, between target and source positions of a
        cross-attention head.
    monotonic_gain : float
        Least gain of its confidence over uniform attention (as for syntactic heads: 0.10): the
        largest of nearly even weights says nothing.
    sharp : float
        Least confidence of a cross-attention head.
    """

    positional: float = 0.90
    syntactic: float = 0.10
    syntactic_relative: bool = False
    min_trials: int = 50
    q: float = 0.05
    rare: float = 0.50
    rare_gain: float = 0.10
    special: float = 0.60
    punctuation: float = 0.60
    broad_relative: float = 0.80
    self: float = 0.90
    duplicate: float = 0.50
    monotonic: float = 0.60
    monotonic_gain: float = 0.10
    sharp: float = 0.80

    def __post_init__(this) -> None:  # noqa: N805  (a field is called self)
        for field in dataclasses.fields(this):
            value = getattr(this, field.name)
            unbounded = field.name in ("min_trials", "syntactic")
            if not (0 <= value < math.inf and (unbounded or value <= 1)):
                raise InputError(
                    f"The threshold {field.name} is {value}; give a number of 0 or more"
                    f"{'' if unbounded else ', at most 1'}."
                )


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

    examples: ClassVar[tuple[str, ...]] = (
        "headscope classify demo",
        "headscope classify ./my-bert --treebank en_ewt-ud-test.conllu --control -o out",
        "headscope classify demo --text lines.txt --language en --format json",
        "headscope classify ./my-marian --text pairs.tsv --control -o out/",
        "headscope classify demo --ablate --prefix-matching",
        "headscope classify demo --norm-weighted --control",
    )
    in_report: ClassVar[dict[str, Any]] = {
        "control": True,
        "ablate": True,
        "ablate_limit": 12,
        "prefix_matching": True,
    }

    corpus: Annotated[
        AnyCorpus,
        Option(
            help="A .conllu treebank or a text file (one sentence a line), sentences in memory, or "
            "None for the built-in sample treebank. For an encoder-decoder model also pairs of "
            "source and target: a table (.tsv, .csv, .jsonl) or a list of tuples.",
            spelled=CorpusFlags,
        ),
    ] = None
    _: KW_ONLY
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
    control: Annotated[bool, Option(help="Measure random weights too and count their labels.")] = (
        False
    )
    norm_weighted: Annotated[
        bool,
        Option(
            help="Weigh each key by the norm of what it contributes, in place of the pattern; says "
            "which labels of the pattern stay.",
            flags=("--norm-weighted",),
        ),
    ] = False
    prefix_matching: Annotated[
        bool,
        Option(
            help="Score heads on repeated random tokens: the induction score, with its control.",
            flags=("--prefix-matching",),
        ),
    ] = False
    ablate: Annotated[
        bool,
        Option(
            help="Remove every head alone and measure what that does to the output, beside the "
            "roles.",
            flags=("--ablate",),
        ),
    ] = False
    task: Annotated[
        str,
        Option(
            help="What models without a head are measured by; fidelity needs no labels.",
            choices=TASKS,
        ),
    ] = "fidelity"
    data: Annotated[
        str | Path | None,
        Option(
            help="What models without a head are measured on, one half, with means of the other: "
            "text, CSV, TSV, JSONL with labels or targets, or what the task reads. Default: the "
            "built-in sample."
        ),
    ] = None
    ablate_limit: Annotated[
        int, Option(help="Most examples of each half, drawn at random (mlm: windows).")
    ] = 64
    limit: Annotated[
        int | None, Option(help="Only the first sentences.", at_least=1, unit="sentence")
    ] = None
    pooling: Annotated[str | None, POOLING] = None

    def check(self) -> None:
        """Refuse task and data where ablate, which measures by them, is off."""
        super().check()
        if not self.ablate and (self.data is not None or self.task != "fidelity"):
            raise UnusedOptionError(
                "task and data are what ablate measures models without a head by; ask for ablate "
                "too, or leave them out."
            )

    def step_names(self) -> tuple[str, ...]:
        """Name the passes: one, a second with controls, and with causes one for each head."""
        wanted = {"control": self.control, "removing heads": self.ablate}
        return ("model", *(name for name, asked in wanted.items() if asked))
