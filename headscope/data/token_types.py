"""Token types: which text a token belongs to, as far as a model has an embedding for it."""

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
    """

    rows: int = 0  # Of the model's table, if its tokenizer gives types at all
    #: The types of a single text: of the special tokens before it, of its own tokens, and of those
    #: behind it. Models take 0 for all of them where they are given none.
    before: tuple[int, ...] = ()
    content: int = 0
    after: tuple[int, ...] = ()

    @property
    def given(self) -> bool:
        """Whether the model tells two texts apart by their types."""
        return self.rows > 1

    @property
    def _usual(self) -> bool:
        """Whether a single text has the types that the model takes where none are given."""
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
        position = torch.arange(attention_mask.shape[1], device=attention_mask.device)
        from_end = attention_mask.sum(dim=1, keepdim=True) - 1 - position
        for i, kind in enumerate(self.before):
            types = torch.where(position == i, kind, types)
        for i, kind in enumerate(reversed(self.after)):
            types = torch.where(from_end == i, kind, types)
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
    """Read which token types a model is given from its table and its tokenizer.

    Tokenizers whose models have no types do not name them among their outputs.
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
    inner = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
    if not inner:
        return TokenTypes(rows)
    kinds = _checked(encoding, rows)
    return TokenTypes(
        rows=rows,
        before=kinds[: inner[0]],
        content=kinds[inner[0]],
        after=kinds[inner[-1] + 1 :],
    )
