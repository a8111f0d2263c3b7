"""Entities that tags mark: which scheme tags are written in, and where each entity begins and ends.

A tag has a letter and a type, as in ``B-PER``; ``O`` stands for a word outside of all entities.
"Anna Karenina saw Rome", tagged B-PER I-PER O B-LOC, has the entities (PER, 0, 1) and (LOC, 3, 3).

* **IO**: ``I`` on every word. Neighbouring entities of one type cannot be told apart.
* **IOB1**, **IOB2**: ``I``, and ``B`` on the first word: of every entity (IOB2), or only of one
  that follows another of its type (IOB1).
* **IOE1**, **IOE2**: the same with ``E`` on the last word.
* **BIOES**, **BILOU**, **BMES**, **BMEWO**: letters for the first word (``B``), for those inside
  (``I``, ``M``), the last (``E``, ``L``), and a single one (``S``, ``U``, ``W``).

A letter means the same wherever it occurs, so one reader reads all of them. It is not strict: an
entity also begins at a letter that should continue one, where none of that type goes before it, and
ends where nothing continues it, as seqeval reads IOB and BIOES.

First :class:`Scheme`; then how the scheme of a file's tags and of a model's labels is found; at the
end :func:`in_labels_of`, which rewrites the tags of a file in the scheme of a model's labels.

References
----------
Ramshaw & Marcus 1995 (IOB1); Tjong Kim Sang & Veenstra 1999 (IOB2, IOE1, IOE2); Ratinov & Roth 2009
(BILOU).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from headscope.core.errors import CorpusError, HeadscopeError, InputError
from headscope.data.examples import Examples

_OUTSIDE = {"O", "o"}  # Tags of a word outside of all entities.
Entity = tuple[str, int, int]  # Its type, its first word and its last.
Mark = tuple[str, str]  # Letter and type: ("B", "PER") of B-PER.

_BEGINNING = "BSUW"  # Letters at which an entity begins.
_ENDING = "ELSUW"  # Letters at which an entity ends.
#: The letters of each scheme. Some tags fit several schemes, which read them alike: the first
#: counts.
_SCHEMES = {
    "IO": "I",
    "IOB": "IB",
    "IOE": "IE",
    "BIOES": "BIES",
    "BILOU": "BILU",
    "BMES": "BMES",
    "BMEWO": "BMEW",
}
_KNOWN = "IO, IOB1, IOB2, IOE1, IOE2, BIOES, BILOU, BMES and BMEWO, written B-PER, B_PER or PER-B"
#: Tags whose letter stands before the type, or alone where there is one type; and behind the type.
_BEFORE = (
    re.compile(r"(?P<mark>[^\W\d_])[-_](?P<type>.+)"),
    re.compile(r"(?P<mark>[BIELMSUW])"),
)
_BEHIND = (re.compile(r"(?P<type>.+)[-_](?P<mark>[^\W\d_])"),)
#: Words for a place in an entity, which no known scheme writes out.
_POSITION = re.compile("beg|begin|start|in|inside|mid|middle|cont|end")
#: Labels of models that are no tags: padding, special tokens, later pieces of a word, no name.
_NO_TAG = re.compile(r"\W*(x|pad|cls|sep|unk|mask|ignored?|none|null|label_\d+)?\W*", re.I)


@dataclass(frozen=True)
class Scheme:
    """How some tags mark entities."""

    name: str
    #: The mark of each tag; a tag without one is outside of all entities
    marks: Mapping[str, Mark]

    def entities(self, tags: Sequence[str]) -> set[Entity]:
        """Read the entities of a sentence."""
        entities: set[Entity] = set()
        open_kind = ""  # The type of the entity that the last word is in
        first_word: int | None = None  # The first word of this entity; None outside of entities
        for i, tag in enumerate(tags):
            letter, kind = self.marks.get(tag, ("", ""))
            continues = bool(letter) and letter not in _BEGINNING and kind == open_kind
            if first_word is not None and not continues:
                entities.add((open_kind, first_word, i - 1))
                first_word = None
            if letter and first_word is None:
                open_kind = kind
                first_word = i
            if first_word is not None and letter in _ENDING:
                entities.add((open_kind, first_word, i))
                first_word = None
        if first_word is not None:
            entities.add((open_kind, first_word, len(tags) - 1))
        return entities

    @property
    def family(self) -> str:
        """The name without the number of a rule."""
        return self.name.split()[0].rstrip("12")

    @property
    def letters(self) -> set[str]:
        """The letters that occur."""
        return {letter for letter, _ in self.marks.values()}

    def written(
        self, entities: Iterable[Entity], n_words: int, outside: str | None
    ) -> list[str | None]:
        """Write the tags of a sentence; None for a word whose tag this scheme does not have."""
        tag_of = {mark: tag for tag, mark in self.marks.items()}
        first_letter, inner_letter, last_letter, single_letter = self._letters_by_position()
        tags: list[str | None] = [outside] * n_words
        for kind, first, last in entities:
            for word in range(first, last + 1):
                tags[word] = tag_of.get((inner_letter, kind))
            tags[first] = tag_of.get((first_letter, kind))
            tags[last] = tag_of.get((last_letter, kind))
            if first == last:
                tags[first] = tag_of.get((single_letter, kind))
        return tags

    def _letters_by_position(self) -> tuple[str, str, str, str]:
        """Return the letters for an entity's first word, inner words, last word and only word.

        Of IOB2 these are B, I, I and B; of BIOES they are B, I, E and S.
        """

        def first_used(letters: str, otherwise: str) -> str:
            return next((letter for letter in letters if letter in self.letters), otherwise)

        inner_letter = first_used("IM", "I")
        first_letter = first_used("B", inner_letter)
        last_letter = first_used("EL", inner_letter)
        # Where no letter stands for a first word, as in IOE, a single word is tagged as a last one.
        like_single = last_letter if first_letter == inner_letter else first_letter
        single_letter = first_used("SUW", like_single)
        return first_letter, inner_letter, last_letter, single_letter


def scheme_of_file(name: str, tags: Iterable[Sequence[str]]) -> Scheme | None:
    """Find the scheme of a file's tags; None where they mark no entities, as parts of speech do.

    Types alone (PER, O, LOC) are read as IO where most words are outside.
    """
    sentences = list(tags)
    counts = Counter(chain(*sentences))
    outside = _OUTSIDE & {*counts}
    entity_tags = [tag for tag in counts if tag not in outside]
    if not entity_tags:
        return None

    # Every tag has a letter. Without O, B or I these may be tags of another kind (N-SG).
    for patterns in (_BEFORE, _BEHIND):
        marks = _marks(entity_tags, patterns)
        letters = {letter for letter, _ in marks.values()}
        are_marked = len(marks) == len(entity_tags)
        mark_entities = bool(outside) or not letters.isdisjoint("BI")
        if not are_marked or not mark_entities:
            continue
        family = _family(letters)
        if not family:
            raise _unknown(CorpusError, name, entity_tags)
        scheme = Scheme(family, marks)
        return replace(scheme, name=_numbered(scheme, sentences))

    # Refuse tags of which only some have a letter, and words in place of letters (START-PER).
    marked = list(_marks(entity_tags, _BEFORE).values())
    if outside:
        marked += _marks(entity_tags, _BEHIND).values()
    in_words = outside and any(_names_a_position(tag) for tag in entity_tags)
    if in_words or any(letter in "BI" for letter, _ in marked):
        raise _unknown(CorpusError, name, entity_tags)

    # Tags are types alone.
    commonest = max(counts, key=lambda tag: counts[tag], default="")
    if commonest in outside:
        return Scheme("IO", {tag: ("I", tag) for tag in entity_tags})
    return None


def scheme_of_model(name: str, labels: Iterable[str]) -> Scheme | None:
    """Find the scheme of a model's labels; None where they mark no entities.

    Labels that are no tags, such as that of padding, are outside of all entities.
    """
    labels = list(labels)
    has_outside = bool(_OUTSIDE & {*labels})
    entity_labels = [
        label for label in labels if label not in _OUTSIDE and not _NO_TAG.fullmatch(label)
    ]
    for patterns in (_BEFORE, _BEHIND):
        marks = _marks(entity_labels, patterns)
        if marks and len(marks) == len(entity_labels):
            family = _family({letter for letter, _ in marks.values()})
            if not family:
                raise _unknown(InputError, f"the labels of {name}", entity_labels)
            return Scheme(family, marks)
    if any(letter in "BI" for letter, _ in _marks(entity_labels, _BEFORE).values()):
        raise _unknown(InputError, f"the labels of {name}", entity_labels)
    if has_outside and entity_labels:
        return Scheme("IO", {label: ("I", label) for label in entity_labels})
    return None


def _marks(tags: Iterable[str], patterns: Sequence[re.Pattern[str]]) -> dict[str, Mark]:
    """Return the marks of the tags that fit one of the patterns: of B-PER ("B", "PER")."""
    marks: dict[str, Mark] = {}
    for tag in tags:
        match = next(filter(None, (pattern.fullmatch(tag) for pattern in patterns)), None)
        if match is not None:
            marks[tag] = match["mark"].upper(), match.groupdict().get("type") or ""
    return marks


def _family(letters: set[str]) -> str:
    """Return the first scheme that has all these marks; empty where none does."""
    if not letters:
        return ""
    return next((name for name, marks in _SCHEMES.items() if letters <= {*marks}), "")


def _numbered(scheme: Scheme, sentences: Iterable[Sequence[str]]) -> str:
    """Return the name of a scheme; IOB and IOE with the number whose rule the tags follow.

    By rule 1 only an entity that follows another one of its type begins with B, by rule 2 every
    entity. IOE is IOB read backwards, with E in place of B.
    """
    if scheme.name not in ("IOB", "IOE"):
        return scheme.name
    # Which letters stand at the first word of entities that follow no other one of their type?
    first_letters: set[str] = set()
    for sentence in sentences:
        in_order = list(sentence)
        if scheme.name == "IOE":
            in_order.reverse()
        kind_before = None
        for tag in in_order:
            letter, kind = scheme.marks.get(tag, ("", None))
            if letter and kind != kind_before:
                first_letters.add(letter)
            kind_before = kind
    if "I" not in first_letters:
        return f"{scheme.name}2"
    if first_letters == {"I"}:
        return f"{scheme.name}1"
    return f"{scheme.name} (rules 1 and 2 mixed)"


def _names_a_position(tag: str) -> bool:
    """Whether a tag begins or ends with a word for a place in an entity, as in START-PER."""
    first, *later = re.split("[-_]", tag.lower())
    if not later:
        return False
    return bool(_POSITION.fullmatch(first) or _POSITION.fullmatch(later[-1]))


def _unknown(kind: type[HeadscopeError], name: str, tags: Sequence[str]) -> HeadscopeError:
    """Return the error for tags that mark entities in a way that nobody knows."""
    few = ", ".join(tags[:8])
    if len(tags) > 8:
        few += ", ..."
    return kind(
        f"{name}: the tags {few} follow no scheme of entities that is known; write them in one of "
        f"{_KNOWN}, with O for words outside."
    )


# --- the tags of a file, and the labels of a model ---


def in_labels_of(
    examples: Examples, labels: Mapping[int, str], model: str
) -> tuple[Examples, Scheme | None]:
    """Rewrite a file's tags in the scheme of a model's labels, and return that scheme.

    The entities stay those that the scheme of the file marks; a note names it. Tags that are
    numbers are labels already. Tags of a type that the model does not have are left as they are.
    The scheme is None, and no tag is changed, where the tags or the labels mark no entities.
    ``labels`` are the names of the model's classes by number, ``model`` is its name in messages.
    """
    tags = examples.tags or ()
    are_numbers = all(tag.isdecimal() for tag in chain(*tags))
    if are_numbers:
        name_of = {str(number): name for number, name in labels.items()}
        tags = tuple(tuple(name_of.get(tag, tag) for tag in sentence) for sentence in tags)
    file_scheme = scheme_of_file(examples.name, tags)
    if file_scheme is None:
        return examples, None
    model_scheme = scheme_of_model(model, labels.values())
    if model_scheme is None:
        return examples, None
    if are_numbers or _is_written_in(file_scheme, model_scheme, labels.values()):
        notes = [_reading(file_scheme)]
        if model_scheme.family == "IOB" and file_scheme.name not in ("IO", "IOB2"):
            notes.append(
                "The accuracy over words compares tags as they are written: a model of IOB2 "
                "loses where an entity begins, though not in F1."
            )
        return replace(examples, notes=(*examples.notes, *notes)), model_scheme
    outside = next((label for label in labels.values() if label in _OUTSIDE), None)
    rewritten = _rewritten(
        examples,
        file_scheme=file_scheme,
        model_scheme=model_scheme,
        outside=outside,
        model=model,
    )
    return rewritten, model_scheme


def _reading(scheme: Scheme) -> str:
    """Say by which scheme the entities of a file are read."""
    if scheme.name != "IO":
        return f"Entities are read by the scheme {scheme.name}."
    return (
        "Entities are read by the scheme IO: neighbouring words of one type are one entity, since "
        "no tag says where one begins or ends."
    )


def _is_written_in(file_scheme: Scheme, model_scheme: Scheme, labels: Iterable[str]) -> bool:
    """Whether a file's tags are a model's labels, in the same scheme.

    A file that has I- alone may be written in IOB1 as well as in IO.
    """
    known_labels = {label.lower() for label in labels}
    is_spelled = all(tag.lower() in known_labels for tag in file_scheme.marks)
    is_same_family = file_scheme.family == model_scheme.family
    may_be_iob = file_scheme.family == "IO" and model_scheme.family == "IOB"
    return is_spelled and (is_same_family or may_be_iob)


def _rewritten(
    examples: Examples,
    *,
    file_scheme: Scheme,
    model_scheme: Scheme,
    outside: str | None,
    model: str,
) -> Examples:
    """Write a file's entities in the scheme of a model's labels, and say so."""
    types = _model_types(file_scheme, model_scheme)
    if types is None:  # the error comes where tags become class numbers, and names the tag
        return examples
    rewritten: list[tuple[str, ...]] = []
    n_joined = 0
    for i, tags in enumerate(examples.tags or ()):
        in_file = file_scheme.entities(tags)
        entities = {(types[kind], first, last) for kind, first, last in in_file}
        model_tags = model_scheme.written(entities, len(tags), outside)
        if None in model_tags:
            word = model_tags.index(None)
            raise InputError(
                f"{examples.where(i)}: {model} has no label in its scheme, {model_scheme.name}, "
                f"for word {word + 1} of the sentence, tagged {tags[word]!r}; give a model whose "
                "labels cover the tags."
            )
        new_tags = tuple(tag for tag in model_tags if tag is not None)
        n_joined += len(entities) - len(model_scheme.entities(new_tags))
        rewritten.append(new_tags)
    notes = [_reading(file_scheme)]
    if tuple(rewritten) != examples.tags:
        notes.append(f"The file's tags were rewritten in the model's scheme, {model_scheme.name}.")
    if n_joined:
        notes.append(
            f"{n_joined:,} entities follow another of their type without a gap and count as one "
            f"with it, since {model_scheme.name} cannot tell them apart."
        )
    return replace(
        examples,
        tags=tuple(rewritten),
        all_labels=(),  # those of the file are spelled in its scheme
        notes=(*examples.notes, " ".join(notes)),
    )


def _model_types(file_scheme: Scheme, model_scheme: Scheme) -> dict[str, str] | None:
    """Return the model's spelling of each type of a file (PER for per); None if it lacks one."""
    names = {kind for _, kind in model_scheme.marks.values()}
    n_spellings = Counter(kind.lower() for kind in names)
    in_any_case = {kind.lower(): kind for kind in names if n_spellings[kind.lower()] == 1}
    types: dict[str, str] = {}
    for _, kind in file_scheme.marks.values():
        name = kind if kind in names else in_any_case.get(kind.lower())
        if name is None:
            return None
        types[kind] = name
    return types
