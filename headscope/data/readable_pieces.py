"""Tokens as people can read them: bytes spelled as characters, spaces made visible."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import accumulate
from typing import Any

_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_CONTINUED = "…"
_SPACE = "␣"


def readable_pieces(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """Return tokens as a reader may see them: the characters that begin in each.

    Byte-level vocabularies and bytes that stand in for unknown characters are spelled as text, a
    space as ``␣``: ``Ġcat`` becomes ``␣cat``. A character of several tokens stands at the first,
    ``…`` at the others; a byte that is no character is ``<0xE4>``. Other pieces are as the
    vocabulary has them (``##s``, ``▁the``).
    """
    pieces = list(map(str, tokenizer.convert_ids_to_tokens(list(ids))))
    backend = tokenizer.backend_tokenizer
    byte_level = "ByteLevel" in repr(backend.pre_tokenizer) + repr(backend.decoder)
    added_tokens = tokenizer.added_tokens_decoder
    # The bytes that each piece spells; None of a piece that is shown as it is.
    spellings = [
        None if token_id in added_tokens else _bytes_of(piece, byte_level=byte_level)
        for token_id, piece in zip(ids, pieces, strict=True)
    ]
    # Pieces of bytes in a row are read as one text: a character may reach over several.
    shown: list[str] = []
    run_of_bytes: list[bytes] = []
    for piece, spelling in zip(pieces, spellings, strict=True):
        if spelling is not None:
            run_of_bytes.append(spelling)
            continue
        shown += _characters(run_of_bytes)
        run_of_bytes = []
        shown.append(piece)
    shown += _characters(run_of_bytes)
    return tuple(shown)


@cache
def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for (GPT-2's table).

    Bytes that are printable characters stand for themselves, the others for letters from U+0100.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    return letters | {chr(256 + i): byte for i, byte in enumerate(shifted)}


def _bytes_of(piece: str, *, byte_level: bool) -> bytes | None:
    """Return the bytes that a piece of a vocabulary spells; None of one that is written as text."""
    if byte_level:
        alphabet = _byte_alphabet()
        known = set(piece) <= set(alphabet)
        return bytes(alphabet[char] for char in piece) if known else None
    byte = _BYTE.fullmatch(piece)
    return bytes.fromhex(byte[1]) if byte else None


def _characters(pieces: Sequence[bytes]) -> list[str]:
    r"""Spell the pieces of one run of bytes: ``[b"a\xc3", b"\xa4"]`` -> ``["aä", "…"]``."""
    joined = b"".join(pieces)
    stops = list(accumulate(map(len, pieces)))  # where each piece ends in ``joined``
    shown = [""] * len(pieces)
    begin = 0
    while begin < len(joined):
        char, size = _first_character(joined[begin : begin + 4])
        first_piece = bisect_right(stops, begin)
        last_piece = bisect_right(stops, begin + size - 1)
        shown[first_piece] += char
        for piece in range(first_piece + 1, last_piece + 1):
            shown[piece] = _CONTINUED
        begin += size
    return shown


def _first_character(spelling: bytes) -> tuple[str, int]:
    """Return how the first character of some bytes is shown, and how many bytes it takes."""
    for size in range(1, len(spelling) + 1):
        with suppress(UnicodeDecodeError):
            char = spelling[:size].decode()
            return _SPACE if char == " " else char, size
    return f"<0x{spelling[0]:02X}>", 1
