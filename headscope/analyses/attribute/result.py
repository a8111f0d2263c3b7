"""What ``headscope attribute`` measured, as values.

``Compare`` marks the numbers that ``headscope diff`` compares, with their names there; ``Setting``
marks what has to be equal for two results to be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from headscope.core.heads import Head, layer_name
from headscope.session.measured import Measured
from headscope.stats.compared import Compare, Setting
from headscope.stats.effects import estimated_columns, head_frame
from headscope.stats.estimate import JOINTLY_UNKNOWN, Estimate, JointEstimate

if TYPE_CHECKING:
    import pandas

#: What a task head may put out in place of a choice of one class (``AttributeResult.outputs``).
INDEPENDENT = "independent labels"
NUMBERS = "numbers"
#: The fields of :class:`AttributedHead` that are numbers.
EFFECTS = ("direct", "first_order", "removed", "removed_mean", "removed_size")


@dataclass(frozen=True)
class SumCheck:
    """Proof that the parts are all of the output."""

    error: float  # Largest |sum - output| over the sum of absolute parts, of all examples
    tolerance: float  # What it may be


@dataclass(frozen=True)
class PartSum:
    """What all parts of one kind contribute, mean over examples (Student's t)."""

    #: ``heads``, ``feed-forward``, ``embeddings`` or ``biases``; for a target ``self-attention``
    #: and ``cross-attention`` instead of ``heads``
    kind: str
    direct: Annotated[Estimate, Compare("contributed")]


@dataclass(frozen=True)
class AttributedHead(Head):
    """What one head contributes to the output, mean over examples.

    Every number has two intervals, of this head and of all heads at once (Student's t, Bonferroni).
    """

    #: Its part of the exact sum; unknown for a head of an encoder whose decoder is taken apart,
    #: since what it wrote reaches the output only through what heads of the decoder read.
    direct: Annotated[JointEstimate, Compare("direct part")]
    #: The output minus the output without it: z at zero, and at its mean over calibration text.
    removed: Annotated[JointEstimate, Compare("effect of removal")]
    removed_mean: Annotated[JointEstimate, Compare("effect of removal, mean left")]
    role: str = ""  # Its primary role, where a classification was given
    #: How a cosine changes at first order as its write fades: both embeddings become shorter or
    #: longer too, which the exact sum leaves out. Unknown for logits.
    first_order: Annotated[JointEstimate, Compare("direct part, lengths counted")] = JOINTLY_UNKNOWN
    #: Mean of \|effect\| of ``removed``: a head may matter in either direction.
    removed_size: Annotated[JointEstimate, Compare("size of the effect of removal")] = (
        JOINTLY_UNKNOWN
    )


@dataclass(frozen=True)
class AttributedLayer:
    """What one layer contributes directly, mean over examples."""

    layer: int
    heads: Annotated[Estimate, Compare("heads, direct")]
    #: Unknown for cross-attention: the layer's stands with its self-attention.
    feed_forward: Annotated[Estimate, Compare("feed-forward, direct")]
    stack: str = "encoder"
    #: Spearman's correlation over the layer's heads with the effect of removal: of direct parts,
    #: and of those with lengths counted.
    spearman: float | None = None
    spearman_first_order: float | None = None

    @property
    def name(self) -> str:
        """``L3``."""
        return layer_name(self.layer, self.stack)


@dataclass(frozen=True)
class HeadGroup:
    """Heads of one role, or of one layer, together; mean over examples."""

    name: str  # Of the role, or of the layer
    heads: int
    direct: Annotated[Estimate, Compare("direct part")]  # Their sum
    removed: Annotated[Estimate, Compare("mean effect of removal")]  # Of one of them, alone


@dataclass(frozen=True)
class AttributedToken:
    """What one token contributes: what heads read from it, and what is added at its position."""

    #: 0 for the first text, 1 for the second; for a target 0 the source, 1 what the decoder reads.
    #: 2 for the third text of a difference of two cosines.
    text: int
    position: int
    token: str
    special: bool
    heads: float  # All heads that read it
    feed_forward: float
    embeddings: float

    @property
    def total(self) -> float:
        """All that comes from it."""
        return self.heads + self.feed_forward + self.embeddings


@dataclass(frozen=True)
class NextToken:
    """A token that may follow a text."""

    token: str  # As a reader may see it, its space as ``␣``
    probability: float  # By the whole model


@dataclass(frozen=True)
class TokenPairs:
    """What each pair of tokens contributes to a cosine, or to a difference of two.

    For a target: what cross-attention read from a source token for the logit of a target's token,
    as a part of the mean.
    """

    rows: tuple[str, ...]  # Tokens of the first text; of the target
    #: Tokens of the second text, and then of a third, whose values count negatively in the output;
    #: of the source
    columns: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    #: The rest of the output: terms in which b_O, shifts or constants take part, and for a
    #: target all parts but cross-attention.
    biases: float


@dataclass(frozen=True)
class AttributeControl:
    """The same sum on texts, or with weights, for which it should show nothing."""

    output: Estimate  # Mean over examples, with intervals as for the model.
    parts: tuple[PartSum, ...]
    examples: int
    #: Spearman's correlation over heads of direct parts with those that the result has.
    agreement: float | None
    #: Spearman's correlation of direct part and effect of removal; None where none was removed.
    spearman: float | None = None


@dataclass(frozen=True)
class RankingCurve:
    """What the first heads of a ranking do alone, all others at their mean.

    Faithfulness is the share of the output's change from all heads at their mean to the whole model
    that comes back (Mueller et al. 2025, arXiv:2504.13151), each example's in its own direction.
    """

    ranking: str  # ``direct``, ``first_order``, ``removed``, ``removed_mean``; or ``random``
    #: Faithfulness with so many heads as ``Faithfulness.kept`` says: the largest effects first,
    #: and the largest |effects| first; the same for a random ranking.
    signed: tuple[float, ...]
    absolute: tuple[float, ...]
    #: Area under ``signed``, and between ``absolute`` and 1, over the share of heads from 0 to 1;
    #: bootstrap over the examples that are judged, none below 8.
    cpr: Annotated[Estimate, Compare("CPR", better=1)]
    cmd: Annotated[Estimate, Compare("CMD", better=-1)]
    #: (1 + random rankings at least as good) / (1 + random rankings); None for a random one
    cpr_p: float | None = None
    cmd_p: float | None = None
    roc: float | None = None  # Area under the ROC curve of |effect|, where a circuit was named


@dataclass(frozen=True)
class Faithfulness:
    """Whether rankings name the heads that matter, compared with random rankings."""

    kept: tuple[int, ...]  # Heads, from none to all
    #: Examples whose mean effects rank the heads, and others that judge the rankings. One example
    #: does both (``same``).
    ranked: Annotated[int, Setting()]
    judged: Annotated[int, Setting()]
    same: bool
    output: float  # Of the whole model, mean over the judged examples
    ablated: float  # With all heads at their mean
    rankings: Annotated[tuple[RankingCurve, ...], Compare(where="{0.ranking}")]
    random: tuple[RankingCurve, ...]


@dataclass(frozen=True, repr=False)
class AttributeResult(Measured):
    """Which parts of the model made an output, and what removing each head changes."""

    kind: Annotated[str, Setting("output")]  # ``cosine``, ``class``, ``token`` or ``target``
    #: Of the one example, or source and target; empty with data. With a third text the output is
    #: the cosine of the first with the second, minus that of the first with the third.
    texts: tuple[str, ...]
    label: str  # The class, or the token; empty for a cosine, and where examples have their own
    examples: Annotated[int, Setting()]
    skipped: int  # Longer than the model's limit, or without a mask
    removals: Annotated[int, Setting()]  # Examples on which heads were removed and rankings judged
    output: Annotated[Estimate, Compare("output")]  # Mean over examples (Student's t)
    check: SumCheck
    parts: Annotated[tuple[PartSum, ...], Compare(where="{0.kind}")]
    heads: Annotated[tuple[AttributedHead, ...], Compare(where="{0.name}")]  # By layer and head
    layers: Annotated[tuple[AttributedLayer, ...], Compare(where="{0.name}")]
    #: By role, or by layer where no classification was given.
    groups: Annotated[tuple[HeadGroup, ...], Compare(where="{0.name}")]
    #: Spearman's correlation over heads of direct part and effect of removal, on the examples on
    #: which heads were removed; and with the mean left.
    spearman: Annotated[float | None, Compare("direct and removed, Spearman")]
    spearman_mean: float | None
    #: The texts paired with others: the first with the next examples' second, or with calibration
    #: sentences; for a logit the same logit of other texts; for a target its logits with sources
    #: that it does not belong to.
    shuffled: AttributeControl
    #: What heads' means were taken over: name, sha256, lines, tokens;
    #: ``dropped``, how many were left out as they share a sentence with the examples; ``same``,
    #: whether fewer than two would have been left, so that none was.
    calibration: dict[str, Any]
    tokens: tuple[AttributedToken, ...] = ()  # Of one example, where asked for
    pairs: TokenPairs | None = None  # Of one pair, where asked for
    control: AttributeControl | None = None  # Random weights, where asked for
    #: Where it was asked for; None also where all heads together change nothing.
    faithfulness: Annotated[Faithfulness | None, Compare()] = None
    #: What the head of a class puts out, as :class:`~headscope.models.run.head_outputs.HeadOutputs`
    #: has it: ``choice of one``, ``independent labels`` or ``numbers``; empty for other outputs.
    outputs: str = ""
    against: str = ""  # The token whose logit is taken off that of ``label``, after one text
    #: The likeliest tokens after one text, and then ``label`` and ``against`` if they are others.
    next_tokens: tuple[NextToken, ...] = ()
    #: What a table names for each prompt: ``target``, or ``target and against``; empty for nothing.
    own_tokens: str = ""

    def part(self, kind: str) -> Estimate:
        """Return what all parts of one kind contribute."""
        return next(term.direct for term in self.parts if term.kind == kind)

    @property
    def is_difference(self) -> bool:
        """Whether the output is the cosine with the second text minus that with a third."""
        return self.kind == "cosine" and len(self.texts) == 3

    def to_frame(self) -> pandas.DataFrame:
        """One row per head (pandas)."""
        rows = []
        for head in self.heads:
            row = {"layer": head.layer, "head": head.head, "stack": head.stack, "role": head.role}
            for name in EFFECTS:
                number: JointEstimate = getattr(head, name)
                row |= estimated_columns(name, number)
                row |= {f"{name}_all_low": number.all_low, f"{name}_all_high": number.all_high}
            rows.append(row)
        return head_frame(rows)

    def curves_frame(self) -> pandas.DataFrame:
        """One row per ranking, order and number of heads kept; random rankings too (pandas)."""
        import pandas as pd

        rows: list[tuple[str, str, int, float]] = []
        if self.faithfulness is not None:
            for curve in (*self.faithfulness.rankings, *self.faithfulness.random):
                for order, shares in (("signed", curve.signed), ("absolute", curve.absolute)):
                    for kept_heads, share in zip(self.faithfulness.kept, shares, strict=True):
                        rows.append((curve.ranking, order, kept_heads, share))
        return pd.DataFrame(rows, columns=["ranking", "order", "kept", "faithfulness"])

    def parts_frame(self) -> pandas.DataFrame:
        """One row per kind of part and layer, of the model and of the controls (pandas)."""
        import pandas as pd

        rows: list[tuple[str, str, str, Estimate]] = []

        def add_sum(name: str, attributed: AttributeResult | AttributeControl) -> None:
            rows.append((name, "output", "", attributed.output))
            rows.extend((name, term.kind, "", term.direct) for term in attributed.parts)

        add_sum("model", self)
        add_sum("other texts", self.shuffled)
        if self.control is not None:
            add_sum("random weights", self.control)
        for layer in self.layers:
            rows.append(("model", "heads", layer.name, layer.heads))
            rows.append(("model", "feed-forward", layer.name, layer.feed_forward))
        return pd.DataFrame(
            {"of": name, "part": kind, "layer": layer, **estimated_columns("direct", value)}
            for name, kind, layer, value in rows
        )

    def tokens_frame(self) -> pandas.DataFrame:
        """One row per token (pandas); none unless tokens were asked for."""
        import pandas as pd

        columns = ["text", "position", "token", "special", "heads", "feed_forward", "embeddings"]
        return pd.DataFrame([vars(token) for token in self.tokens], columns=columns)

    def pairs_frame(self) -> pandas.DataFrame:
        """One row per token of the first and token of the second text (pandas)."""
        import pandas as pd

        rows: list[tuple[int, str, int, str, float]] = []
        if self.pairs is not None:
            for i, first in enumerate(self.pairs.rows):
                for j, second in enumerate(self.pairs.columns):
                    rows.append((i, first, j, second, self.pairs.values[i][j]))
        columns = ["first_pos", "first", "second_pos", "second", "contribution"]
        return pd.DataFrame(rows, columns=columns)
