"""One sentence through one head: the options of ``headscope explain``, and the function itself.

A field with ``Option`` or ``Usual`` is one option: ``--help`` shows the usual ones, and all of them
with ``--help-all``. In an error ``$layer`` stands for the option, as a flag or as a keyword. The
last line makes ``headscope.explain(model, ...)`` of the class.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar

from headscope.analyses.explain.result import ExplainResult
from headscope.core.errors import WrongOptionError
from headscope.core.heads import parse_head
from headscope.core.options import Option, OptionError, Usual
from headscope.session.entry import entry
from headscope.session.options import CertifiedOptions

__all__ = ["ExplainOptions", "ExplainResult", "explain"]


def number_or_name(text: str) -> int | str:
    """Read a head as it is written on the command line: "4" -> 4, "L1H4" -> "L1H4"."""
    if text.removeprefix("-").isdecimal():
        return int(text)  # -4, too, which is refused for what it is: below 0
    parse_head(text)  # raises ValueError where this is no name of a head
    return text


@dataclass(frozen=True)
class ExplainOptions(CertifiedOptions):
    """Teach attention with a sentence and this model's own numbers, step by step.

    Every step is held against what the model computes itself; a difference ends with exit code 3.

    Examples
    --------
    >>> import headscope
    >>> result = headscope.explain("demo", "The cat sat on the mat.", layer=0, head=0)
    >>> result.tokens[:3], len(result.steps), round(result.steps[4].numbers["scale"], 4)
    (('[CLS]', 'the', 'cat'), 12, 0.1768)
    """

    examples: ClassVar[tuple[str, ...]] = (
        'headscope explain demo "The cat sat on the mat."',
        'headscope explain demo "She did not see it." --layer 2 --head 5 -o out/',
        'headscope explain ./my-bert "The cat sat on the mat." --format json',
    )

    sentence: Annotated[
        str | None,
        Option(
            help="A sentence of at most 64 tokens.",
            python_help="At most 64 tokens; None takes a short one of the built-in sample.",
            metavar="SENTENCE",
            argument=True,
        ),
    ] = None
    _: KW_ONLY
    layer: Annotated[
        int | None,
        Usual(help="Layer, from 0. Default: that of the head that is chosen.", at_least=0),
    ] = None
    head: Annotated[
        int | str | None,
        Usual(
            help="Head: its name, such as L1H4, or its number in the layer. Default: the one that "
            "links this sentence's words most clearly.",
            metavar="NAME|NUMBER",
            at_least=0,
            read=number_or_name,
        ),
    ] = None

    @property
    def layer_and_head(self) -> tuple[int | None, int | None]:
        """Return layer and head, L1H4 as (1, 4); None for what headscope chooses."""
        if isinstance(self.head, str):
            return parse_head(self.head)
        return self.layer, self.head

    def check(self) -> None:
        """Refuse a head without its layer, a malformed name, and one of another layer."""
        if isinstance(self.head, str):
            try:
                layer, _ = parse_head(self.head)
            except ValueError as error:
                raise WrongOptionError(f"{error}.") from None
            if self.layer not in (None, layer):
                raise OptionError(
                    f"{self.head} is no head of layer {self.layer}; leave $layer out."
                )
        elif self.layer is None and self.head is not None:
            raise OptionError(
                f"$head is {self.head}, but no layer is given; give both, or neither."
            )


explain = entry(ExplainOptions, ExplainResult, "headscope.analyses.explain.run")
