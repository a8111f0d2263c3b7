"""Languages that an encoder-decoder model is told by codes, such as ``eng_Latn`` or ``en_XX``.

NLLB, mBART, mBART-50 and M2M-100 read a code beside a source, and a target begins with one. The
codes are tokens of their tokenizers, which take some language where nobody names one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: How codes are spelled: by NLLB and mBART, and by M2M-100.
_CODE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}|__[a-z]{2,3}__")
#: What tokenizer_config.json calls the two languages.
SOURCE = "src_lang"
TARGET = "tgt_lang"


@dataclass(frozen=True)
class Languages:
    """The languages of a multilingual encoder-decoder, as far as anybody has named them."""

    codes: Mapping[str, int]  # Token id of every code that the tokenizer knows
    source: str | None  # Code of the source's language; None where nobody named it
    target: str | None  # Code of the target's language; None where nobody named it


def languages_of(tokenizer: Any) -> Languages | None:
    """Return the languages of an encoder-decoder's tokenizer; None where it knows no two codes."""
    codes = language_codes(tokenizer)
    if len(codes) < 2:
        return None
    settings = tokenizer.init_kwargs
    return Languages(codes, source=settings.get(SOURCE), target=settings.get(TARGET))


def language_codes(tokenizer: Any) -> dict[str, int]:
    """Return the token id of every language code among a tokenizer's special and added tokens."""
    if tokenizer is None:
        return {}
    roles = {str(token) for token in tokenizer.special_tokens_map.values()}  # CLS, SEP, ...
    added = {*map(str, tokenizer.all_special_tokens), *tokenizer.get_added_vocab()}
    codes = sorted(token for token in added - roles if _CODE.fullmatch(token))
    return {code: int(tokenizer.convert_tokens_to_ids(code)) for code in codes}
