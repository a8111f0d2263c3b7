"""A corpus as Python takes it, and as the command line spells it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from headscope.core.options import Option

if TYPE_CHECKING:
    from headscope.data.corpus import Corpus, Pair
    from headscope.data.examples import Examples
    from headscope.data.sentence import Sentence

    #: A corpus in any form that a user may have it in.
    AnyCorpus = Corpus | Examples | str | Path | Sequence[Sentence | str] | Sequence[Pair] | None
else:
    AnyCorpus = Path | None


@dataclass(frozen=True)
class CorpusFlags:
    """A treebank or a text."""

    treebank: Annotated[
        Path | None, Option(help="CoNLL-U file with gold trees. Default: the built-in sample.")
    ] = None
    text: Annotated[
        Path | None,
        Option(
            help="Plain text, one sentence a line: nothing that needs trees then. For an "
            "encoder-decoder model also a table of source and target (.tsv, .csv, .jsonl)."
        ),
    ] = None

    def value(self) -> Any:
        """Open the file that was named."""
        from headscope.data.corpus import open_text, open_treebank

        if self.treebank is not None:
            return open_treebank(self.treebank)
        return None if self.text is None else open_text(self.text)
