"""tokenizer.json without some of its pieces: which must stay with others, and new ids for the rest.

What is left must cut a text as before wherever all its pieces stay, and must not lose a character:

* WordPiece takes the longest piece it finds, and gives up on a whole word where there is none. So
  every single character stays, at the start of a word and inside it, and every piece with a
  character that has no such row of its own.
* BPE joins pairs of pieces, one merge after the other: what each step makes on the way to a piece
  stays too, and the merges among all that stays, in their order.
* Unigram takes the pieces with the highest sum of scores. Scores stay as they are. An unknown
  character costs the lowest score of all and 10 more, so the piece of this score stays, and single
  characters do.
* WordLevel looks whole words up. What goes is unknown from then on; single characters stay, so that
  little goes where every piece is a character.

References
----------
The models of the tokenizers library: https://github.com/huggingface/tokenizers
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
KINDS = ("WordPiece", "BPE", "Unigram", "WordLevel")


class TokenizerFile:
    """The contents of a tokenizer.json, as ``backend_tokenizer.to_str()`` gives them."""

    def __init__(self, text: str) -> None:
        self._data: dict[str, Any] = json.loads(text)
        self._model: dict[str, Any] = self._data["model"]
        self.kind = str(self._model.get("type"))  # One of KINDS
        vocabulary = self._model["vocab"]
        if isinstance(vocabulary, dict):
            self._pieces = {int(row): str(piece) for piece, row in vocabulary.items()}
        else:
            self._pieces = {row: str(piece) for row, (piece, _) in enumerate(vocabulary)}
        added = {int(token["id"]): str(token["content"]) for token in self._data["added_tokens"]}
        #: Every piece by its id, those included that were added to the vocabulary.
        self.pieces = self._pieces | added
        self._prefix = str(self._model.get("continuing_subword_prefix") or "")
        self._suffix = str(self._model.get("end_of_word_suffix") or "")

    @property
    def unknown(self) -> str | None:
        """What an unknown word or character becomes; None where the tokenizer has no such piece."""
        if self.kind == "Unigram":
            row = self._model.get("unk_id")
            return None if row is None else self._pieces[int(row)]
        token = self._model.get("unk_token")
        return None if token is None else str(token)

    def named(self) -> dict[int, str]:
        """Ids that the file names: added tokens, the special tokens around a text, padding."""
        names = {int(token["id"]): str(token["content"]) for token in self._data["added_tokens"]}
        renumber_frame(
            self._data.get("post_processor"), lambda row, name: names.update({row: name})
        )
        if padding := self._data.get("padding"):
            names[int(padding["pad_id"])] = str(padding["pad_token"])
        return names

    def spelling(self) -> set[int]:
        """Ids needed to read every character, with the same score."""
        pieces = self._pieces.items()
        rows = {row for row, piece in pieces if len(self._parts(piece)[1]) == 1}
        rows |= {row for row, piece in pieces if _BYTE.fullmatch(piece)}
        if self.kind == "WordPiece":
            single = {self._pieces[row] for row in rows}
            rows |= {row for row, piece in pieces if not single.issuperset(self._symbols(piece))}
        if self.kind == "Unigram":
            scores = [float(score) for _, score in self._model["vocab"]]
            rows.add(scores.index(min(scores)))
            # Some classes of transformers write the number of the unknown piece into their code.
            rows.update(range(int(self._model.get("unk_id") or 0) + 1))
        return rows

    def with_steps(self, rows: Iterable[int]) -> set[int]:
        """Add to some ids those of the intermediate pieces that BPE merges into them."""
        needed = set(rows)
        if self.kind != "BPE":
            return needed
        row_of = {piece: row for row, piece in self._pieces.items()}
        order = {pair: rank for rank, pair in enumerate(self._merges())}
        for row in sorted(needed.intersection(self._pieces)):
            parts = self._symbols(self._pieces[row])
            made = [*parts]
            while pairs := [(order[p], i) for i, p in enumerate(pairwise(parts)) if p in order]:
                _, index = min(pairs)
                parts[index : index + 2] = [self._joined(*parts[index : index + 2])]
                made.append(parts[index])
            needed.update(row_of[piece] for piece in made if piece in row_of)
        return needed

    def renumbered(self, new_id: Mapping[int, int]) -> str:
        """Return the file with the pieces of ``new_id`` alone: old id to new id."""
        data: dict[str, Any] = json.loads(json.dumps(self._data))
        model = data["model"]
        before = self._model["vocab"]
        if isinstance(before, dict):
            left = {piece: new_id[row] for piece, row in before.items() if row in new_id}
            model["vocab"] = dict(sorted(left.items(), key=lambda item: item[1]))
        else:
            rows = [row for row in range(len(before)) if row in new_id]
            model["vocab"] = [before[row] for row in sorted(rows, key=new_id.__getitem__)]
            if model.get("unk_id") is not None:
                model["unk_id"] = new_id[int(model["unk_id"])]
        if self.kind == "BPE":
            known = {self._pieces[row] for row in new_id if row in self._pieces}
            merges = self._merges()
            model["merges"] = [
                list(pair) for pair in merges if known.issuperset((*pair, self._joined(*pair)))
            ]
        for token in data["added_tokens"]:
            token["id"] = new_id[int(token["id"])]
        renumber_frame(data.get("post_processor"), lambda row, _: new_id[row])
        if padding := data.get("padding"):
            padding["pad_id"] = new_id[int(padding["pad_id"])]
        return json.dumps(data, ensure_ascii=False)

    def _parts(self, piece: str) -> tuple[str, str, str]:
        """Split a piece: the mark of the middle of a word, what it spells, the mark of its end."""
        before = self._prefix if piece.startswith(self._prefix) and piece != self._prefix else ""
        core = piece[len(before) :]
        after = self._suffix if core.endswith(self._suffix) and core != self._suffix else ""
        return before, core.removesuffix(after), after

    def _symbols(self, piece: str) -> list[str]:
        """Spell a piece by single characters, with the marks that each has in its place."""
        before, core, after = self._parts(piece)
        symbols = [(self._prefix if i else before) + char for i, char in enumerate(core)]
        return [*symbols[:-1], *(symbol + after for symbol in symbols[-1:])]

    def _joined(self, first: str, second: str) -> str:
        return first + second[len(self._prefix) :]

    def _merges(self) -> list[tuple[str, str]]:
        pairs = (m.split(" ") if isinstance(m, str) else m for m in self._model["merges"])
        return [(str(first), str(second)) for first, second in pairs]


def renumber_frame(node: Any, number: Callable[[int, str], int | None]) -> None:
    """Renumber the special tokens of a post-processor in place, as ``number`` says.

    ``number`` is given the id and the token; None leaves the id as it is.
    """
    if not isinstance(node, dict):
        return

    def changed(row: int, name: str) -> int:
        new = number(row, name)
        return row if new is None else new

    for part in node.get("processors", ()):
        renumber_frame(part, number)
    for end in ("sep", "cls"):  # BertProcessing and RobertaProcessing
        if isinstance(node.get(end), list):
            node[end][1] = changed(int(node[end][1]), str(node[end][0]))
    for token in (node.get("special_tokens") or {}).values():  # TemplateProcessing
        pairs = zip(token["ids"], token["tokens"], strict=True)
        token["ids"] = [changed(int(row), str(name)) for row, name in pairs]
