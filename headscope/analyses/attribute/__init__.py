"""Which heads made this output: what ``headscope attribute`` can be asked.

Each field of the options is a keyword in Python and a flag on the command line. ``--help`` shows
those that are marked ``Usual``, ``--help-all`` every one; ``$name`` in a message is replaced by
the keyword or the flag. ``entry``, at the end, makes the function that users call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from headscope.analyses.attribute.result import AttributeResult
from headscope.core.options import Option, OptionError, Usual
from headscope.session.entry import entry
from headscope.session.options import POOLING, RunOptions, Text

__all__ = ["AttributeOptions", "AttributeResult", "attribute"]

if TYPE_CHECKING:
    from headscope.analyses.classify.result import ClassifyResult

    Classification = str | Path | ClassifyResult
else:
    Classification = Path

#: What can be taken apart: the cosine of two texts' embeddings, a logit of a classifier, the logit
#: of a token at the mask, the logit of the token after a text, or the mean logit of the tokens of
#: what an encoder-decoder should write.
KINDS = ("cosine", "class", "token", "next", "target")


@dataclass(frozen=True)
class AttributeOptions(RunOptions):
    """Find the heads that made one output: each head's part of it, and what removing it changes.

    The output is the cosine of two texts (or the difference of two cosines), the logit of a class,
    of the token at a mask, of the token that a causal language model predicts after a text (or the
    difference of two), or, for an encoder-decoder, the mean logit of its target's tokens. The parts
    of heads, feed-forward networks, embeddings and biases add up to it exactly; a sum that is not
    the output ends with exit code 3.

    Examples
    --------
    >>> import headscope
    >>> result = headscope.attribute("demo", "A man plays a guitar.", "Someone plays music.")
    >>> result.kind, len(result.heads), result.check.error < 1e-9
    ('cosine', 72, True)
    """

    usual_seconds: ClassVar[Mapping[str, float]] = {"parts": 3.0, "heads removed": 4.0}
    examples: ClassVar[tuple[str, ...]] = (
        'headscope attribute demo "A man plays a guitar." "Someone plays music."',
        'headscope attribute demo "A man plays." "Music is made." --tokens',
        'headscope attribute demo "A man plays." "Music." --against Rain',
        "headscope attribute demo --data stsb-test.csv --limit 200 -o out/",
        'headscope attribute ./my-classifier "A dull film."',
        'headscope attribute ./my-decoder "The capital of France is" --target " Paris"',
        'headscope attribute ./my-translator "Guten Tag." --target "Good day."',
    )

    first: Annotated[
        str | None,
        Option(
            help="The text. Default: of the built-in sample.",
            metavar="TEXT",
            argument=True,
            required=False,
        ),
    ] = None
    second: Annotated[
        str | None,
        Option(
            help="The text that it is compared with, or, for a classifier, that it is paired with.",
            metavar="TEXT",
            argument=True,
            required=False,
        ),
    ] = None
    _: KW_ONLY
    of: Annotated[
        str | None,
        Option(
            help="The output that is taken apart. Default: a classifier's class, a masked token "
            "where the text has a mask, the token that a causal language model predicts after one "
            "text, what an encoder-decoder writes for one text, else the cosine of two texts.",
            choices=KINDS,
        ),
    ] = None
    label: Annotated[
        str | None,
        Usual(help="The class, or the token at the mask. Default: what the model predicts."),
    ] = None
    target: Annotated[
        str | None,
        Usual(
            help="The token after the text, with its space (' Paris'); for an encoder-decoder what "
            "it should write: the mean logit of its tokens, end token included. Default: what the "
            "model predicts, or writes.",
            metavar="TEXT",
        ),
    ] = None
    at: Annotated[
        int | None,
        Option(help="Only this token of the target, counted from 1. Default: all.", at_least=1),
    ] = None
    against: Annotated[
        str | None,
        Usual(
            help="A third text: the output is the cosine with the second minus that with this one; "
            "after one text another token, whose logit is taken off the target's.",
            metavar="TEXT",
        ),
    ] = None
    tokens: Annotated[
        bool, Usual(help="Also split every part by the token that it was read from.")
    ] = False
    data: Annotated[
        Path | None,
        Usual(
            help="Many examples in place of one: pairs, labelled sentences, lines with a mask, "
            "sources with targets, or prompts with columns target and against."
        ),
    ] = None
    limit: Annotated[
        int | None, Usual(help="So many examples of the data, chosen at random.", at_least=1)
    ] = None
    removals: Annotated[
        int,
        Option(
            help="Examples of the data on which every head is removed and rankings are judged, "
            "spread evenly.",
            at_least=1,
        ),
    ] = 32
    roles: Annotated[
        Classification | None,
        Option(
            help="classify.json of the same model: sums by role. Default: sums by layer.",
            python_help="Classification of the same model: sums by role, else by layer.",
        ),
    ] = None
    calibration: Annotated[
        Text | None,
        Option(
            help="Text for the heads' mean outputs and the controls, one sentence a line; for a "
            "target a table of pairs. Default: the built-in sample, or the data's own pairs."
        ),
    ] = None
    curves: Annotated[
        bool,
        Option(
            help="Also judge rankings of the heads by what their first heads do alone. Always with "
            "--data."
        ),
    ] = False
    circuit: Annotated[
        str | None,
        Option(
            help="Heads that are known to make the output (L0H1,L1H2): the area under the ROC "
            "curve of each ranking. Implies --curves.",
            metavar="HEADS",
        ),
    ] = None
    control: Annotated[bool, Option(help="Also measure a model with random weights.")] = False
    pooling: Annotated[str | None, POOLING] = None

    def check(self) -> None:
        """Refuse options that do not fit together."""
        if self.data is not None:
            for name in ("first", "target", "at", "against", "tokens"):
                if getattr(self, name):
                    raise OptionError(
                        f"$data holds many examples and ${name} is for one; give one of them."
                    )
        if self.data is None and self.limit is not None:
            raise OptionError("$limit counts examples of $data; give $data, or leave $limit out.")
        if self.against is not None and self.first is None:
            raise OptionError("$against compares one output of a text with another; give a text.")
        if self.first is None and (self.target is not None or self.at is not None):
            raise OptionError("$target is what is written for a text; give that text too.")
        for name in ("first", "second", "target", "against"):
            text = getattr(self, name)
            may_be_spaces = self.second is None and name in ("target", "against")
            if text is not None and not (text if may_be_spaces else text.strip()):
                raise OptionError("A text is empty; give at least one word.")

    @property
    def judges_rankings(self) -> bool:
        """Whether rankings of the heads are judged."""
        return self.curves or self.circuit is not None or self.data is not None

    def step_names(self) -> tuple[str, ...]:
        """Name the steps: the sum, the removals, the rankings and random weights."""
        names = ["parts", "heads removed"]
        if self.judges_rankings:
            names.append("rankings judged")
        if self.control:
            names.append("control")
        return tuple(names)


attribute = entry(AttributeOptions, AttributeResult, "headscope.analyses.attribute.run")
