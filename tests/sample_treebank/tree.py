"""Dependency trees as the grammar builds them, and their CoNLL-U form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

_VOWEL_LETTERS = "aeiou"
_CONSONANT_SOUNDS = ("uni", "use", "eu", "one")
_VOWEL_SOUNDS = ("hour", "honest", "heir", "11", "8")


@dataclass(eq=False)
class Node:
    """A word with its dependents, in order, on either side.

    ``glue_left`` and ``glue_right`` say that no blank stands before or after the word;
    ``agreement`` is the person and number a finite verb agrees with ("1sg", "3sg", "pl").
    """

    form: str
    lemma: str
    upos: str
    deprel: str = "root"
    left: list[Node] = field(default_factory=list)
    right: list[Node] = field(default_factory=list)
    glue_left: bool = False
    glue_right: bool = False
    agreement: str = "3sg"

    def before(self, child: Node, deprel: str) -> Node:
        """Add a dependent as the last one left of this word, and return this word."""
        child.deprel = deprel
        self.left.append(child)
        return self

    def front(self, child: Node, deprel: str) -> Node:
        """Add a dependent as the very first one, and return this word."""
        child.deprel = deprel
        self.left.insert(0, child)
        return self

    def after(self, child: Node, deprel: str) -> Node:
        """Add a dependent as the last one right of this word, and return this word."""
        child.deprel = deprel
        self.right.append(child)
        return self

    def comma_after(self) -> Node:
        """Close this phrase with a comma, and return this word."""
        return self.after(punct(","), "punct")

    def comma_before(self) -> Node:
        """Open this phrase with a comma, and return this word."""
        return self.front(punct(","), "punct")

    def words(self) -> Iterator[Node]:
        """Yield the words of this subtree in sentence order."""
        for child in self.left:
            yield from child.words()
        yield self
        for child in self.right:
            yield from child.words()


def punct(mark: str, *, glue_left: bool = True, glue_right: bool = False) -> Node:
    """Return a punctuation mark; by default it sticks to the word before it."""
    return Node(mark, mark, "PUNCT", "punct", glue_left=glue_left, glue_right=glue_right)


def quoted(node: Node) -> Node:
    """Put quotation marks around a subtree, and return its head."""
    node.front(punct('"', glue_left=False, glue_right=True), "punct")
    return node.after(punct('"'), "punct")


def _drop_clashing_commas(words: list[Node], heads: dict[int, Node]) -> list[Node]:
    """Leave out a comma that would stand directly before another mark."""
    kept: list[Node] = []
    for word, following in zip(words, [*words[1:], None], strict=True):
        clash = following is not None and following.form in {",", ".", ";", "?", "!"}
        if word.form == "," and clash:
            heads.pop(id(word), None)
        else:
            kept.append(word)
    return kept


def _heads(root: Node) -> dict[int, Node]:
    """Map the identity of each word to its head."""
    return {id(c): w for w in root.words() for c in (*w.left, *w.right)}


def _starts_with_vowel_sound(form: str) -> bool:
    """Say whether ``an`` rather than ``a`` goes before a form."""
    low = form.lower()
    if low.startswith(_VOWEL_SOUNDS):
        return True
    return low[0] in _VOWEL_LETTERS and not low.startswith(_CONSONANT_SOUNDS)


def _spell(words: list[Node]) -> list[str]:
    """Return the forms with ``a``/``an`` chosen and the sentence start capitalised."""
    forms = [w.form for w in words]
    for i, word in enumerate(words[:-1]):
        if word.lemma == "a":
            forms[i] = "an" if _starts_with_vowel_sound(forms[i + 1]) else "a"
    for i, form in enumerate(forms):
        starts = i == 0 or (forms[i - 1] == '"' and words[i - 1].glue_right)
        if starts:
            forms[i] = form[0].upper() + form[1:]
    return forms


def to_conllu(root: Node, sent_id: str) -> str:
    """Return the CoNLL-U block of a tree, its closing blank line included."""
    heads = _heads(root)
    words = _drop_clashing_commas(list(root.words()), heads)
    ids = {id(word): i for i, word in enumerate(words, 1)}
    forms = _spell(words)
    glued = [a.glue_right or b.glue_left for a, b in pairwise(words)]
    glued.append(True)
    text = "".join(f if g else f + " " for f, g in zip(forms, glued, strict=True))
    rows = []
    for word, form, joined in zip(words, forms, glued, strict=True):
        last = word is words[-1]
        head = heads.get(id(word))
        misc = "SpaceAfter=No" if joined and not last else "_"
        cells: Iterable[str] = (
            str(ids[id(word)]),
            form,
            word.lemma,
            word.upos,
            "_",
            "_",
            str(ids[id(head)] if head else 0),
            word.deprel,
            "_",
            misc,
        )
        rows.append("\t".join(cells))
    return f"# sent_id = {sent_id}\n# text = {text}\n" + "\n".join(rows) + "\n\n"
