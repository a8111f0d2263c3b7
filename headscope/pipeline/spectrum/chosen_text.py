"""What a spectrum is measured on: a text for an encoder, pairs for all stacks of a translator."""

from __future__ import annotations

from dataclasses import dataclass

from headscope.core.errors import InputError
from headscope.data.examples import Examples, as_pairs
from headscope.data.packing import Windows, pack, pack_pairs
from headscope.data.plain import PlainText, as_plain
from headscope.models.loaded import LoadedModel


@dataclass(frozen=True)
class Source:
    """A model, seen in the stacks that are measured, and what it reads.

    Attributes
    ----------
    loaded : LoadedModel
        A view of one stack, or the whole model.
    data : PlainText or Examples
        Text, or pairs of source and target.
    """

    loaded: LoadedModel
    data: PlainText | Examples

    def windows(self, length: int) -> Windows:
        """Cut it into windows of exactly ``length`` tokens."""
        if isinstance(self.data, PlainText):
            return pack(self.data, self.loaded, length)
        start = self.loaded.start_id
        assert start is not None  # only encoder-decoder models read pairs
        return pack_pairs(self.data, self.loaded, length, start)


def choose_text(
    loaded: LoadedModel, text: object, lines: PlainText | None, stack: str | None
) -> Source:
    """Decide which stacks of a model a text can show.

    Parameters
    ----------
    loaded : LoadedModel
        The whole model.
    text : object
        As the user gave it.
    lines : PlainText or None
        The same as plain text, where it cannot be pairs.
    stack : str or None
        What the user asks for.

    Raises
    ------
    InputError
        If the model has no such stack, or the stack needs pairs.
    """
    if not loaded.encoder_decoder:  # a table is text like any other for such a model
        plain = as_plain(text) if lines is None else lines  # type: ignore[arg-type]
        return Source(loaded.only(stack or "all"), plain)
    if lines is None:
        pairs = as_pairs(text)
        if stack != "encoder":
            return Source(loaded.only(stack or "all"), pairs)
        lines = as_plain(pairs.first)
    if stack not in (None, "encoder"):
        raise InputError(
            f"The {stack} stack of {loaded.name} reads pairs of source and target; give a table of "
            "them (.tsv, .csv, .jsonl) as text."
        )
    return Source(loaded.only("encoder"), lines)
