"""Token types: which of two texts a token belongs to, as BERT's models have an embedding for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headscope.core.errors import CorpusError
from headscope.data.pieces import Encoding, TextModel, encodings_of


@dataclass(frozen=True)
class TokenTypes:
    """Which token types a model is given.

    A model whose table has one row, as RoBERTa's, or no table is given none: every token has the
    same type for it, whatever its tokenizer says.

    A single text has the types 0 in most models; they are only given where they are others. XLNet
    has 2 at a special token behind the text: ``content`` 0 and ``after`` (0, 2).
    """

    rows: int = 0  # Rows of the model's table; 0 where its tokenizer gives no types
    before: tuple[int, ...] = ()  # Of a single text: types of the special tokens before it
    content: int = 0  # Of a single text: type of its own tokens
    after: tuple[int, ...] = ()  # Of a single text: types of the special tokens behind it

    @property
    def given(self) -> bool:
        """Whether the model tells two texts apart by their types."""
        return self.rows > 1

    @property
    def _usual(self) -> bool:
        """Whether a single text has the types 0, which the model takes where none are given."""
        return not any((*self.before, self.content, *self.after))

    def of_encoding(self, encoding: Encoding, *, pair: bool) -> tuple[int, ...] | None:
        """Return the types of a text or a pair as its tokenizer has them; None for the usual ones.

        Raises
        ------
        CorpusError
            If the model's table has no row for one of them.
        """
        if not self.given or (self._usual and not pair):
            return None
        return _checked(encoding, self.rows)

    def of_texts(self, attention_mask: Tensor) -> Tensor | None:
        """Return the types of right-padded single texts, (batch, pos); None for the usual ones."""
        if not self.given or self._usual:
            return None
        types = torch.full_like(attention_mask, self.content)
        position = torch.arange(attention_mask.shape[1], device=attention_mask.device)  # [pos]
        lengths = attention_mask.sum(dim=1, keepdim=True)  # [batch, 1]
        from_end = lengths - 1 - position  # [batch, pos], 0 at the last token of each text
        for i, token_type in enumerate(self.before):
            types = torch.where(position == i, token_type, types)
        for i, token_type in enumerate(reversed(self.after)):
            types = torch.where(from_end == i, token_type, types)
        return types


def _checked(encoding: Encoding, rows: int) -> tuple[int, ...]:
    """Return the types of an encoding; refuse one that the model's table has no row for."""
    highest = max(encoding.type_ids, default=0)
    if highest >= rows:
        raise CorpusError(
            f"The tokenizer gives token type {highest}, but the model's table of token types has "
            f"{rows} rows; tokenizer and weights do not belong together."
        )
    return tuple(encoding.type_ids)


def token_types(model: TextModel, network: nn.Module) -> TokenTypes:
    """Find out which token types a model is given, from its table and its tokenizer.

    Tokenizers whose models have no types do not name them among their outputs; which types a single
    text has shows in a text of one letter.
    """
    tables = (
        module.num_embeddings
        for name, module in network.named_modules()
        if name.endswith("token_type_embeddings") and isinstance(module, nn.Embedding)
    )
    rows = next(tables, 0)
    if rows < 2 or "token_type_ids" not in getattr(model.tokenizer, "model_input_names", ()):
        return TokenTypes()
    (encoding,) = encodings_of(model, ["a"])
    is_special = encoding.special_tokens_mask
    letter_positions = [i for i, special in enumerate(is_special) if not special]
    if not letter_positions:
        return TokenTypes(rows)
    types = _checked(encoding, rows)
    first = letter_positions[0]
    last = letter_positions[-1]
    return TokenTypes(
        rows=rows,
        before=types[:first],
        content=types[first],
        after=types[last + 1 :],
    )
