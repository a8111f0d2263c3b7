"""The results of ``list``, ``insights``, ``compare``, ``diff`` and ``report``, as values.

In this order; the comments beside fields are the descriptions in ``headscope schema``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from headscope.core.heads import Head
from headscope.core.serialise import SCHEMA
from headscope.reports.registry import Sections
from headscope.session.measured import Measured
from headscope.stats.compared import Compare
from headscope.stats.estimate import Estimate

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Entry:
    """One thing that can be named on the command line, in a config file or in Python."""

    name: str  # As it is written there
    words: str  # What it is, on one line
    source: str  # The literature that it comes from; empty where there is none
    page: str  # The page of the docs that defines it


@dataclass(frozen=True)
class ListResult:
    """Everything of one kind."""

    kind: str  # What was asked for, such as ``methods``; empty for the kinds themselves
    entries: tuple[Entry, ...]  # In the order of the list that the program itself reads
    schema: int = SCHEMA  # Version of the JSON's fields

    def to_frame(self) -> pandas.DataFrame:
        """One row per entry (pandas)."""
        import pandas as pd

        return pd.DataFrame([vars(entry) for entry in self.entries])


#: Every verdict that there is. "not measured": there are numbers, but an interval is unknown.
VERDICTS = ("holds", "does not hold", "mixed", "not applicable", "not measured", "not measured yet")


@dataclass(frozen=True)
class InsightPart:
    """One part of a claim, decided by itself."""

    name: str  # What the part says
    #: One of :data:`VERDICTS` that is not "not applicable", or "open": the interval holds the
    #: threshold.
    verdict: str
    measured: str  # The numbers, with their intervals


@dataclass(frozen=True)
class Insight:
    """One claim and its verdict for this model."""

    number: int  # 0 to 10, as the source articles count
    claim: str  # What they say
    verdict: Annotated[str, Compare()]  # One of :data:`VERDICTS`
    measured: str  # One sentence each; empty where nothing was measured.
    control: str
    rule: str  # What decides, with its thresholds
    values: dict[str, Any]  # The numbers behind the sentences
    #: What the verdict is made of; those that are "not measured yet" do not count so far.
    parts: tuple[InsightPart, ...] = ()


@dataclass(frozen=True)
class WithoutSinks:
    """A causal model with the labelled heads that have another role than first-token sink.

    Removing a sink moves every state, so that keeping it may matter whatever it does.
    """

    kept: int  # Heads
    value: float | None  # As in :class:`KeptRoles`, like the next two
    difference_ci: tuple[float, ...] | None
    random: tuple[float, ...]


@dataclass(frozen=True)
class KeptRoles:
    """The model with only the heads of some roles, against as many heads drawn at random."""

    roles: tuple[str, ...]  # The roles that were kept
    kept: tuple[tuple[int, ...], ...]  # (layer, head): The heads that have one of them
    n_heads: int  # Heads of the model
    classified_on: str  # Two texts that share no sentence.
    measured_on: str
    examples: int  # That the metric was taken on
    metric: str  # Name of what was measured
    higher_is_better: bool  # False for a loss
    baseline: float  # Of the full model
    value: float | None  # With the kept heads only; None where all heads, or none, have such a role
    #: 95% interval of value minus baseline, paired over examples; None where it is unknown (fewer
    #: than 8 units, or every resample shows the same).
    difference_ci: tuple[float, ...] | None
    random: tuple[float, ...]  # The metric of each random set of as many heads
    #: Examples that were not measured, as heads had been classified on a sentence of theirs.
    left_out: int = 0
    #: How many different sets have as many heads in every layer as the kept ones: random sets are
    #: drawn of these (2**53 stands for more). None where no random set was drawn.
    sets: int | None = None
    units: int = 0  # Independent units among the examples: examples, or clusters of them
    counts: dict[str, int] = field(default_factory=dict)  # Heads that have each of the roles
    without_sinks: WithoutSinks | None = None  # None where no kept head is a sink


@dataclass(frozen=True, repr=False)
class InsightsResult(Measured):
    """The claims of the source articles, each with its verdict for one model."""

    insights: Annotated[tuple[Insight, ...], Compare(where="insight {0.number}")]
    thresholds: dict[str, Any]  # The values of :class:`headscope.InsightThresholds` that were used.
    kept_roles: KeptRoles | None = None  # What claim 2 was decided on.

    def __getitem__(self, number: int) -> Insight:
        """Return the insight of that number."""
        return {insight.number: insight for insight in self.insights}[number]

    def to_frame(self) -> pandas.DataFrame:
        """One row per claim, the sentences only (pandas)."""
        import pandas as pd

        columns = ("number", "claim", "verdict", "measured", "control", "rule")
        return pd.DataFrame([vars(claim) for claim in self.insights], columns=columns)


@dataclass(frozen=True)
class ComparedHead(Head):
    """The role of one head of a report, for maps side by side."""

    primary: str  # Key of its primary role
    mark: str  # At most five characters for the map
    sentence: str  # What it does, in plain words
    mean_pattern: str  # As in the result of ``classify``


@dataclass(frozen=True)
class Compared:
    """One of the reports."""

    label: str  # What tables call it: ``A``, ``B`` and so on
    name: str  # The model, as the report has it
    place: str  # The file or folder, as the user gave it
    family: str  # The model's ``model_type``; empty where the report does not say it
    size: str  # Layers and heads, and how many of them were removed
    weights_sha256: str  # Hash of the weights; empty where the report does not say it
    certificate: str  # Whether our attention equals the model's, in words
    missing: tuple[str, ...] = ()  # Sections that others have and this one does not
    heads: tuple[ComparedHead, ...] = ()  # Of its first stack; empty without ``classify``


@dataclass(frozen=True)
class ComparedCell:
    """One report's value in one row."""

    text: str  # The value, with its interval
    control: str  # The controls' values; "-" where there is none
    number: Estimate  # The value as a number, with its 95% interval; without any for words


@dataclass(frozen=True)
class ComparedRow:
    """One row of the comparison: a fact and what each report says of it."""

    section: str  # Where it comes from, such as ``depth``
    what: str  # What it is
    #: In the order of the reports; None where one does not say it.
    cells: tuple[ComparedCell | None, ...]
    #: Of a count of heads with a role: p of the paired test over heads that the counts are equal,
    #: adjusted over roles; None of other rows, and where the reports are of different heads.
    p_adjusted: float | None = None


@dataclass(frozen=True)
class SharedLabels:
    """How many labels of one kind two reports share."""

    what: str  # A relation, a role, or ``all labels``
    first: int  # Labels of the first report, of those that both could give
    other: int  # Of the other report
    shared: int  # Of both
    #: Cohen's kappa over heads and labels; the interval is the jackknife's, over heads. Unknown
    #: where a report lists no relations but those with a label.
    kappa: Estimate


@dataclass(frozen=True)
class Agreement:
    """How far two reports of the same heads agree on labels, as of two treebanks or seeds."""

    first: str  # Letter of the first report
    other: str  # Letter of the other one
    heads: int  # That both have
    labels: SharedLabels  # Of all kinds
    groups: tuple[SharedLabels, ...]  # By relation and role, those that either report has


@dataclass(frozen=True)
class Unlike:
    """A condition that should be equal for numbers to be comparable, and is not."""

    what: str  # ``schema``, ``data`` or ``setting``
    name: str  # Which setting; empty for the others
    sections: tuple[str, ...]  # The results that it concerns
    #: What each report has, in their order; ``-`` where one lacks these sections.
    values: tuple[str, ...]


@dataclass(frozen=True)
class Fact:
    """What was compared."""

    section: str  # For example ``classify``, ``L3H5``, ``roles``.
    where: str
    name: str


@dataclass(frozen=True)
class Identity:
    """Something about the runs themselves that differs: what was measured, on what, and how."""

    what: str  # ``schema``, ``model``, ``data`` or ``setting``
    name: str  # Which setting; empty for the others
    sections: tuple[str, ...]  # The results that it concerns
    old: str  # What each side has.
    new: str


@dataclass(frozen=True)
class SetChange(Fact):
    """What a head, or a point of a curve, gained and lost."""

    gained: tuple[str, ...]  # Roles, relations or names of heads.
    lost: tuple[str, ...]
    old: str = ""  # For roles the primary one; else empty.
    new: str = ""

    @property
    def signed(self) -> list[str]:
        """What was lost and gained: ``-syntactic``, ``+positional -1``."""
        return [f"-{name}" for name in self.lost] + [f"+{name}" for name in self.gained]


@dataclass(frozen=True)
class Change(Fact):
    """One number that moved."""

    old: float | None  # None where a side has the fact without a number.
    new: float | None
    old_interval: tuple[float, ...] | None  # 95%; None where there is none.
    new_interval: tuple[float, ...] | None
    #: Whether the intervals lie apart; without intervals, whether the tolerance is exceeded.
    beyond: bool
    #: How much worse ``new`` is in the metric's own unit, negative where it is better; None where a
    #: number is neither.
    worsening: float | None = None


@dataclass(frozen=True)
class CurveChange(Fact):
    """One curve of which some points moved."""

    beyond: int  # Points that moved beyond their intervals or the tolerance, and points compared.
    points: int
    worst: Change  # The point that moved farthest


@dataclass(frozen=True)
class TextChange(Fact):
    """A verdict, a certificate or another word that changed."""

    old: str  # What each side says.
    new: str


@dataclass(frozen=True)
class Outcome:
    """A rule that was asked for, why it fails, and what was measured."""

    rule: str  # As it was written
    reason: str = ""  # Empty where the rule passes
    measured: str = ""  # The value compared with the bound; empty without one

    def __str__(self) -> str:
        """Name both, as the error does."""
        return f"{self.rule}: {self.reason}"


@dataclass(frozen=True)
class DiffResult:
    """Everything that differs between two sets of results."""

    old: str  # As the user named them.
    new: str
    #: Share of a number (of 1, where it is smaller) that it may differ without an interval.
    tolerance: float
    compared: tuple[str, ...] = ()  # Sections in both
    #: Sections in ``old`` only, in ``new`` only; then what single sections have on one side only.
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    identity: tuple[Identity, ...] = ()  # Schema, model, data, settings: to be read first
    roles: tuple[SetChange, ...] = ()  # Roles of heads gained and lost, and other primary roles
    relations: tuple[SetChange, ...] = ()  # Syntactic labels gained and lost
    choices: tuple[SetChange, ...] = ()  # Heads that pruning removes now and did not before
    verdicts: tuple[TextChange, ...] = ()  # Certificates, verdicts of insights and spectra
    #: Of pruning: every value that differs, beyond its interval or not.
    metrics: tuple[Change, ...] = ()
    #: Other numbers that moved beyond their intervals or the tolerance.
    scores: tuple[Change, ...] = ()
    curves: tuple[CurveChange, ...] = ()  # Those with points that moved beyond
    within: int = 0  # Numbers that moved, but not beyond
    other: tuple[str, ...] = ()  # Paths of values that differ and are none of the above; at most 20
    #: What of ``new`` is not known to equal the model, with the reason.
    not_valid: tuple[str, ...] = ()
    metrics_compared: int = 0  # Values of pruning that both have
    metric: str = ""  # What these are of, where both have the same; else empty
    fired: tuple[Outcome, ...] = ()  # Of the rules that were asked for
    schema: int = SCHEMA  # Version of the JSON's fields

    @property
    def equal(self) -> bool:
        """Whether nothing differs but when and how the runs were called."""
        runs = self.missing, self.added, self.identity, self.verdicts
        heads = self.roles, self.relations, self.choices
        numbers = self.metrics, self.scores, self.curves, self.within
        return not any((*runs, *heads, *numbers, self.other))


@dataclass(frozen=True, repr=False)
class CompareResult:
    """Several models' reports as one table."""

    reports: tuple[Compared, ...]  # In the order in which they were given
    rows: tuple[ComparedRow, ...]  # By section, in the order of a report
    #: To be read first: what else differs between the runs besides the model.
    unlike: tuple[Unlike, ...]
    #: Where rules were asked for: what changed from the first report to each other one.
    changes: tuple[DiffResult, ...] = ()
    #: The first report's labels beside those of each other one of the same heads.
    agreement: tuple[Agreement, ...] = ()
    schema: int = SCHEMA  # Version of the JSON's fields

    def __repr__(self) -> str:
        """One line: which reports, and how much they say."""
        names = " and ".join(f"{report.label} ({report.name})" for report in self.reports)
        return f"<CompareResult of {names}: {len(self.rows)} rows, .to_frame()>"

    def to_frame(self) -> pandas.DataFrame:
        """One row per report and number, with its 95% interval and its control (pandas)."""
        import pandas as pd

        names = ("report", "model", "section", "what", "value", "low", "high", "text", "control")
        records: list[dict[str, Any]] = []
        for row in self.rows:
            for report, cell in zip(self.reports, row.cells, strict=True):
                if cell is None:
                    continue
                record = {
                    "report": report.label,
                    "model": report.name,
                    "section": row.section,
                    "what": row.what,
                    "value": cell.number.value,
                    "low": cell.number.low,
                    "high": cell.number.high,
                    "text": cell.text,
                    "control": cell.control,
                }
                records.append(record)
        return pd.DataFrame(records, columns=names)


@dataclass(frozen=True)
class SamplePatterns:
    """One sentence and every head's attention pattern on it."""

    text: str  # The sentence as it stands in the data
    tokens: tuple[str, ...]  # Special tokens included
    patterns: dict[str, tuple[tuple[float, ...], ...]]  # By head (``L3H5``), rounded to two digits


@dataclass(frozen=True, repr=False)
class ReportResult(Sections):
    """Every command's result on one model; a section that was not run is None."""

    schema: int  # As in :class:`headscope.session.measured.Measured`.
    provenance: dict[str, Any]
    settings: dict[str, dict[str, Any]]  # By section, what differs from the defaults.
    left_out: dict[str, str]  # Sections that this model does not allow, and why.
    samples: tuple[SamplePatterns, ...] = ()  # Patterns that the page shows.
    #: Sections that are left out as their own check failed; not part of the file.
    failed: tuple[str, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        """One line: the model, and which sections there are."""
        return f"<ReportResult of {self.provenance['model']['id']}: .{', .'.join(self.sections)}>"

    def __str__(self) -> str:
        """Return the headline of each section, a line each."""
        return "\n".join(str(section) for section in self.sections.values())
