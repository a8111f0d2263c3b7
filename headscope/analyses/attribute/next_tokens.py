"""Which token after a text is meant: words become tokens, and tokens are named for a reader.

A token is named as it continues the text: `` Paris`` with a space is another token than ``Paris``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headscope.analyses.attribute import AttributeOptions
from headscope.analyses.attribute.outputs import Example, output_logits, predicted
from headscope.analyses.attribute.result import NextToken
from headscope.core.errors import CorpusError, InputError
from headscope.core.safe_text import visible
from headscope.core.widest import wide
from headscope.data.examples import Examples
from headscope.data.pieces import tokenise
from headscope.data.readable_pieces import readable_pieces
from headscope.models.run.loaded import LoadedModel

_LIKELIEST = 3  # Tokens that are listed beside the ones that were asked for.


@dataclass(frozen=True)
class NextTokenNames:
    """What is said of the token after one text whose logit is taken apart."""

    label: str
    against: str  # The token whose logit is taken off; empty where there is none
    likeliest: tuple[NextToken, ...]  # And the two above
    notes: tuple[str, ...]  # Of words that are other tokens with a space before them


def with_tokens(
    loaded: LoadedModel, example: Example, text: str, options: AttributeOptions
) -> Example:
    """Give an example of one text the token of ``target``, else the likeliest, and ``against``."""
    if options.target is None:
        (example,) = predicted(loaded, [example])
    else:
        example = replace(example, label=_token_after(loaded, text, options.target))
    if options.against is None:
        return example
    against = _token_after(loaded, text, options.against)
    if against == example.label:
        raise InputError(
            f"Both tokens are {_name(loaded, against)}, so the difference of their logits is zero; "
            "give another token to compare with."
        )
    return replace(example, against=against)


def with_own_tokens(
    loaded: LoadedModel, examples: Sequence[Example], data: Examples
) -> list[Example]:
    """Give each prompt of a table its own target, and its own token to compare with.

    Raises
    ------
    CorpusError
        If one of them is no token behind its prompt, with the line of the table.
    """
    targets = data.labels or ()
    named = []
    for example in examples:
        i = example.rows[0].index
        options = AttributeOptions(
            first=data.first[i],
            target=targets[i],
            against=None if data.against is None else data.against[i],
        )
        try:
            named.append(with_tokens(loaded, example, data.first[i], options))
        except InputError as error:
            raise CorpusError(f"{data.where(i)}: {error}") from None
    return named


def names_of(
    loaded: LoadedModel, example: Example, text: str, options: AttributeOptions
) -> NextTokenNames:
    """Name the tokens of an example, with their probabilities and those of the likeliest."""
    ((_, logits),) = output_logits(loaded, [example])
    probabilities = wide(logits).flatten().softmax(-1)
    ranked = probabilities.topk(min(_LIKELIEST, len(probabilities))).indices.tolist()
    named = [example.label] if example.against is None else [example.label, example.against]
    likeliest = [
        NextToken(_name(loaded, token), float(probabilities[token]))
        for token in dict.fromkeys([*ranked, *named])
    ]
    notes = []
    for word in (options.target, options.against):
        spaced = None if word is None else _with_space(loaded, text, word)
        if spaced is not None and spaced not in named:
            notes.append(
                f"{visible(word)} is taken without a space before it; with one, it is another "
                f"token: {_name(loaded, spaced)}."
            )
    return NextTokenNames(
        label=_name(loaded, example.label),
        against="" if example.against is None else _name(loaded, example.against),
        likeliest=tuple(likeliest),
        notes=tuple(notes),
    )


def _name(loaded: LoadedModel, token: int) -> str:
    """Return a token as a reader may see it, its space as ``␣``."""
    return readable_pieces(loaded.tokenizer, [token])[0]


def _token_after(loaded: LoadedModel, text: str, word: str) -> int:
    """Return the token that ``word`` is where it continues a text.

    Where the two grow together (``is`` and ``land``), it is the token that the word is behind a
    full stop, or else the piece of this name in the vocabulary, such as ``Ġland``.

    Raises
    ------
    InputError
        If it is no token or several.
    """
    word = word.replace("␣", " ")  # as headscope prints a space
    readings = [_continuation(loaded, before, word) for before in (text, ".")]
    for pieces in readings:
        if len(pieces) == 1 and pieces[0] != loaded.tokenizer.unk_token_id:
            return pieces[0]
    named = loaded.tokenizer.convert_tokens_to_ids(word)
    if named not in (None, loaded.tokenizer.unk_token_id):
        return int(named)
    pieces = min(filter(None, readings), key=len, default=())
    if len(pieces) < 2:
        raise InputError(
            f"The tokenizer of {loaded.name} has no token for {word!r}, so it cannot come next; "
            "give another."
        )
    shown = ", ".join(map(visible, readable_pieces(loaded.tokenizer, pieces)))
    raise InputError(
        f"{word!r} is {len(pieces)} tokens of {loaded.name} ({shown}), and one token comes next; "
        "give one of them (␣ is a space)."
    )


def _continuation(loaded: LoadedModel, before: str, word: str) -> tuple[int, ...]:
    """Return the tokens of a word behind a text; none where the text has other tokens with it."""
    encodings = list(tokenise(loaded, [before, before + word], special=False, check=False))
    alone = encodings[0].ids
    together = encodings[1].ids
    return tuple(together[len(alone) :]) if together[: len(alone)] == alone else ()


def _with_space(loaded: LoadedModel, text: str, word: str) -> int | None:
    """Return the token that a word is with a space before it; None if it is none, or several."""
    if word[:1].isspace():
        return None
    continuation = _continuation(loaded, text, f" {word}")
    return continuation[0] if len(continuation) == 1 else None
