"""Inflection of the nouns and verbs of the sample grammar."""

from __future__ import annotations

from sample_treebank.lexicon import DOUBLING, IRREGULAR_PLURALS, IRREGULAR_VERBS

_PRESENT_BE = {"1sg": "am", "3sg": "is", "pl": "are"}


def plural(noun: str) -> str:
    """Return the plural of a noun."""
    if noun in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[noun]
    return _with_s(noun)


def _with_s(word: str) -> str:
    """Add the ending -s with its spelling changes."""
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def present(verb: str, agreement: str) -> str:
    """Return the present tense form that agrees with a subject."""
    if verb == "be":
        return _PRESENT_BE[agreement]
    if agreement != "3sg":
        return verb
    return {"have": "has", "do": "does"}.get(verb) or _with_s(verb)


def past(verb: str, agreement: str) -> str:
    """Return the past tense form that agrees with a subject."""
    if verb == "be":
        return "were" if agreement == "pl" else "was"
    return IRREGULAR_VERBS[verb][0] if verb in IRREGULAR_VERBS else _with_ed(verb)


def participle(verb: str) -> str:
    """Return the past participle."""
    return IRREGULAR_VERBS[verb][1] if verb in IRREGULAR_VERBS else _with_ed(verb)


def _with_ed(verb: str) -> str:
    """Add the ending -ed with its spelling changes."""
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    return _doubled(verb) + "ed"


def gerund(verb: str) -> str:
    """Return the form in -ing."""
    if verb.endswith("ie"):
        return verb[:-2] + "ying"
    if verb.endswith("e") and verb not in {"be", "dye", "see"}:
        return verb[:-1] + "ing"
    return _doubled(verb) + "ing"


def _doubled(verb: str) -> str:
    """Double the last consonant of the verbs that ask for it."""
    return verb + verb[-1] if verb in DOUBLING else verb
