"""Noun phrases and other phrases below the clause."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from sample_treebank import lexicon as lx
from sample_treebank.frames import Frame, Scene
from sample_treebank.morphology import plural
from sample_treebank.scenes import SCENES
from sample_treebank.tree import Node


class Context:
    """The state of one sentence: its scene and tense, and how much may still be added.

    Parameters
    ----------
    rng
        Source of all choices.
    usage
        How often each word was chosen so far in the whole treebank; of two candidates the
        rarer one wins, which spreads the choices over the lexicon.
    """

    def __init__(self, rng: random.Random, usage: Counter[str]) -> None:
        self.rng = rng
        self.usage = usage
        self.used: set[str] = set()
        self.budget = rng.choice((0, 1, 2, 2, 3, 4, 5, 6, 8, 11))
        self.past = rng.random() < 0.75
        self.possessive: str | None = None
        self.timed = False
        self.scene: Scene = SCENES[0]
        self.scene = min(rng.sample(SCENES, 2), key=lambda s: usage[s.people[0] + " scene"])
        usage[self.scene.people[0] + " scene"] += 1

    def pick(self, words: Sequence[str]) -> str:
        """Choose a word that the sentence does not have yet, where there is one."""
        fresh = [w for w in words if w not in self.used] or list(words)
        pair = self.rng.sample(fresh, min(2, len(fresh)))
        word = min(pair, key=lambda w: self.usage[w])
        self.used.add(word)
        self.usage[word] += 1
        return word

    def chance(self, share: float) -> bool:
        """Decide a choice that costs nothing."""
        return self.rng.random() < share

    def spend(self, share: float) -> bool:
        """Decide whether to add something optional, while the budget lasts."""
        if self.budget > 0 and self.rng.random() < share:
            self.budget -= 1
            return True
        return False

    def frame(self, portable: bool = False) -> Frame:
        """Choose a frame of the scene that still has an object to offer."""
        frames = [f for f in self.scene.frames if f.portable or not portable]
        if not frames:
            frames = [f for s in SCENES for f in s.frames if f.portable]
        fresh = [f for f in frames if not self.used.intersection(f.objects)] or frames
        return self.rng.choice(fresh)


def word(form: str, upos: str, lemma: str | None = None) -> Node:
    """Return a word without dependents; the lemma is the form unless given."""
    return Node(form, lemma or form, upos)


def pronoun(form: str) -> Node:
    """Return a subject pronoun with its agreement."""
    node = word(form, "PRON")
    node.agreement = {"I": "1sg", "she": "3sg", "he": "3sg", "it": "3sg"}.get(form, "pl")
    return node


def with_case(preposition: str, node: Node) -> Node:
    """Put a preposition in front of a noun phrase."""
    return node.front(word(preposition, "ADP"), "case")


def simple_phrase(text: str) -> Node:
    """Parse a fixed phrase of the lexicon: ``preposition [the] [modifier] noun``."""
    parts = text.split()
    noun = parts.pop()
    proper = noun[0].isupper()
    lemma = {"earrings": "earring", "holidays": "holiday"}.get(noun, noun)
    node = word(noun, "PROPN" if proper else "NOUN", lemma)
    for part in parts:
        if part in {"the", "that", "this", "every", "each"}:
            node.before(word(part, "DET"), "det")
        elif part in {"in", "on", "at", "with", "before", "after", "during"}:
            node.before(word(part, "ADP"), "case")
        elif part == "felt":
            node.before(word(part, "NOUN"), "compound")
        else:
            node.before(word(part, "ADJ"), "amod")
    return node


def place(ctx: Context, preposition: str | None = None) -> Node:
    """Return a place of the scene with its own preposition, or with another one."""
    places = ctx.scene.places
    if preposition == "from":
        places = tuple(p for p in places if p.split()[1] not in lx.NO_ORIGINS)
    own, noun = ctx.pick(places).split()
    node = word(noun, "NOUN").before(word("the", "DET"), "det")
    return with_case(preposition or own, node)


def adjective(ctx: Context, form: str, share: float = 0.2) -> Node:
    """Return an adjective, sometimes with an adverb of degree."""
    node = word(form, "ADJ")
    if form not in lx.UNGRADABLE and ctx.spend(share):
        node.before(word(ctx.pick([d for d in lx.DEGREES if d != "too"]), "ADV"), "advmod")
    return node


def add_adjectives(ctx: Context, noun: Node, choices: Sequence[str], share: float) -> None:
    """Add up to two adjectives, which keep the order they have in the lexicon."""
    wanted = int(ctx.spend(share)) + int(ctx.spend(share * 0.4))
    chosen = ctx.rng.sample(choices, min(wanted, len(choices)))
    for form in sorted(chosen, key=choices.index):
        if form not in ctx.used:
            ctx.used.add(form)
            noun.before(adjective(ctx, form, 0.2 if len(chosen) == 1 else 0.0), "amod")


def name(ctx: Context, gender: str | None = None) -> Node:
    """Return a person's name, sometimes with a surname."""
    who = gender or ctx.rng.choice(("she", "he"))
    node = word(ctx.pick(lx.FIRST_NAMES[who]), "PROPN")
    if ctx.chance(0.3):
        node.after(word(ctx.pick(lx.SURNAMES), "PROPN"), "flat")
        if ctx.chance(0.3):
            node.after(word(ctx.pick(lx.SURNAMES), "PROPN"), "flat")
    return node


def owner(ctx: Context, noun: Node) -> None:
    """Add a possessor: a pronoun of the subject's, or another person with 's."""
    if ctx.possessive and ctx.chance(0.65):
        noun.before(word(ctx.possessive, "PRON"), "nmod:poss")
        return
    if ctx.chance(0.5):
        who = word(ctx.pick(lx.FIRST_NAMES[ctx.rng.choice(("she", "he"))]), "PROPN")
    else:
        who = word(ctx.pick(ctx.scene.people), "NOUN").before(word("the", "DET"), "det")
    mark = word("'s", "PART")
    mark.glue_left = True
    noun.before(who.after(mark, "case"), "nmod:poss")


def person(ctx: Context, *, rich: bool = True, subject: bool = False) -> Node:
    """Return a noun phrase for a person or several.

    A subject also sets the possessive pronoun that may refer back to it.
    """
    draw = ctx.rng.random()
    if subject and draw < 0.14:
        form = ctx.rng.choice(("she", "he", "they", "we", "I", "you"))
        ctx.possessive = lx.POSSESSIVE[form]
        return pronoun(form)
    if draw < 0.34:
        who = ctx.rng.choice(("she", "he"))
        if subject:
            ctx.possessive = lx.POSSESSIVE[who]
        node = name(ctx, who)
        return _describe_name(ctx, node) if rich else node
    return common_person(ctx, rich=rich, subject=subject)


def _describe_name(ctx: Context, node: Node) -> Node:
    """Add an apposition or a coordinated person to a name."""
    if ctx.spend(0.5):
        return node.after(_apposition(ctx), "appos")
    if ctx.spend(0.15):
        return join_person(ctx, node)
    return node


def _apposition(ctx: Context) -> Node:
    """Return a description between commas, such as ``, the retired baker,``."""
    role = word(ctx.pick(ctx.scene.people), "NOUN")
    role.before(word(ctx.rng.choice(("the", "a")), "DET"), "det")
    add_adjectives(ctx, role, lx.PERSON_ADJECTIVES, 0.4)
    if ctx.spend(0.3):
        role.after(with_case("from", word(ctx.pick(lx.TOWNS), "PROPN")), "nmod")
    return role.comma_before().comma_after()


def join_person(ctx: Context, node: Node) -> Node:
    """Coordinate a person with another one, which makes the phrase plural."""
    other = name(ctx) if ctx.chance(0.4) else common_person(ctx, rich=False, single=True)
    other.front(word("and", "CCONJ"), "cc")
    node.agreement = "pl"
    return node.after(other, "conj")


def common_person(
    ctx: Context, *, rich: bool = True, subject: bool = False, single: bool = False
) -> Node:
    """Return a phrase headed by a profession or a word for a relative or friend."""
    many = not single and ctx.chance(0.25)
    kin = ctx.chance(0.15)
    noun = ctx.pick(lx.KIN if kin else ctx.scene.people)
    node = word(plural(noun) if many else noun, "NOUN", noun)
    node.agreement = "pl" if many else "3sg"
    if kin:
        owner(ctx, node)
    else:
        _person_determiner(ctx, node, many, subject)
    if rich:
        add_adjectives(ctx, node, lx.PERSON_ADJECTIVES, 0.35)
        _person_postmodifier(ctx, node)
    if subject:
        singular = ctx.rng.choice(("his", "her"))
        ctx.possessive = "their" if node.agreement == "pl" else singular
    return node


def _person_determiner(ctx: Context, node: Node, many: bool, subject: bool) -> None:
    """Add a determiner or numeral to a person."""
    if many:
        form = ctx.rng.choice(("the", "the", "these", "two", "three", "several", "both", "all"))
    else:
        form = ctx.rng.choice(("the",) * 8 + ("a",) * 5 + ("this", "every" if subject else "this"))
    quantify(node, form)


def quantify(node: Node, form: str) -> None:
    """Add a determiner, an adjective of quantity or a numeral by its form."""
    lemma = {"these": "this", "those": "that"}.get(form, form)
    if form == "all":
        node.before(word("all", "DET"), "det:predet").before(word("the", "DET"), "det")
    elif form in {"several", "many"}:
        node.before(word(form, "ADJ"), "amod")
    elif form in lx.NUMERALS or form == "one":
        node.before(word(form, "NUM"), "nummod")
    else:
        node.before(word(form, "DET", lemma), "det")


def _person_postmodifier(ctx: Context, node: Node) -> None:
    """Add a phrase behind a person."""
    if ctx.spend(0.12):
        node.after(with_case("from", word(ctx.pick(lx.TOWNS), "PROPN")), "nmod")
    elif node.agreement == "3sg" and ctx.spend(0.12):
        node.after(simple_phrase(ctx.pick(lx.PERSON_FEATURES)), "nmod")
    elif node.agreement == "3sg" and ctx.spend(0.1):
        join_person(ctx, node)


def thing(
    ctx: Context, frame: Frame, *, rich: bool = True, definite: bool = False, one: bool = False
) -> Node:
    """Return a noun phrase for an object of a frame."""
    noun = ctx.pick(frame.objects)
    mass = noun.endswith("~")
    many = not mass and not one and ctx.chance(0.35)
    noun = noun.rstrip("~")
    ctx.used.add(noun)
    node = word(plural(noun) if many else noun, "NOUN", noun)
    node.agreement = "pl" if many else "3sg"
    _thing_determiner(ctx, node, many, mass, definite)
    if rich:
        add_adjectives(ctx, node, frame.adjectives, 0.5)
        _compound(ctx, node, frame)
        if ctx.spend(0.15):
            node.after(place(ctx, "from"), "nmod")
    return node


def _compound(ctx: Context, node: Node, frame: Frame) -> None:
    """Add a noun or two in front of the head, as in ``brass ship sextant``."""
    choices = [c for c in frame.compounds if c != node.lemma and c not in ctx.used]
    if not choices or not ctx.spend(0.4):
        return
    chosen = ctx.rng.sample(choices, 2 if len(choices) > 1 and ctx.spend(0.4) else 1)
    has_material = any(c.form in lx.MATERIAL_ADJECTIVES for c in node.left)
    materials = [] if has_material else [c for c in chosen if c in lx.MATERIALS]
    for form in materials[:1] + [c for c in chosen if c not in lx.MATERIALS][:1]:
        ctx.used.add(form)
        node.before(word(form, "NOUN"), "compound")


def _thing_determiner(ctx: Context, node: Node, many: bool, mass: bool, definite: bool) -> None:
    """Add a determiner, numeral or possessor to an object."""
    if not definite and ctx.chance(0.22):
        owner(ctx, node)
    elif many and not definite:
        if ctx.chance(0.4):
            quantify(node, ctx.pick(lx.NUMERALS))
        else:
            quantify(node, ctx.rng.choice(("the", "these", "those", "several", "many", "all")))
    elif mass and not definite:
        quantify(node, ctx.rng.choice(("the", "the", "some", "this")))
    elif definite:
        quantify(node, "these" if many and ctx.chance(0.2) else "the")
    else:
        quantify(node, ctx.rng.choice(("the",) * 9 + ("a",) * 6 + ("this", "this", "that")))


def time_phrase(ctx: Context) -> Node:
    """Return a phrase of time; its relation is kept in ``deprel``."""
    ctx.timed = True
    if not ctx.past:
        node = simple_phrase(ctx.pick(lx.HABIT_TIMES))
        node.deprel = "obl:tmod"
        return node
    draw = ctx.rng.random()
    if draw < 0.3:
        node = simple_phrase(ctx.pick(lx.BARE_TIMES))
        node.deprel = "obl:tmod"
    elif draw < 0.45:
        node = with_case("in", word(ctx.pick(lx.YEARS), "NUM"))
        node.deprel = "obl"
    else:
        node = simple_phrase(ctx.pick(lx.TIME_PHRASES))
        node.deprel = "obl"
    return node
