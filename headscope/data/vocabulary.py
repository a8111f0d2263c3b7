"""Whether what the tokenizer gives are rows of the model's embedding."""

from __future__ import annotations

from headscope.errors import CorpusError

__all__ = ["check_vocabulary"]


def check_vocabulary(highest: int, vocab_size: int) -> None:
    """Raise unless the highest token id of a text has a row in the embedding.

    Raises
    ------
    CorpusError
        If it has none.
    """
    if highest >= vocab_size:
        raise CorpusError(
            f"The tokenizer gives token id {highest}, but the model's embedding has "
            f"{vocab_size} rows; tokenizer and weights do not belong together."
        )
