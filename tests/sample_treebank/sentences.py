"""Kinds of sentence: statements, quotations and compounds of clauses."""

from __future__ import annotations

from collections.abc import Callable

from sample_treebank import clauses as cl
from sample_treebank import lexicon as lx
from sample_treebank import phrases as ph
from sample_treebank.morphology import past
from sample_treebank.phrases import Context, word
from sample_treebank.questions import OPENING_MARKERS, command, question
from sample_treebank.tree import Node, punct, quoted
from sample_treebank.verbs import (
    copular,
    main_tense,
    side_tense,
    verb_group,
    with_subject,
)

_REASONS = ("because", "because", "although", "when", "while", "after", "before", "since")
_ANY_TENSE = frozenset({"because", "although", "after", "since"})


def _opened(ctx: Context, clause: Node, share: float = 0.12) -> Node:
    """Perhaps put an adverb, a place or a time with its comma in front of a clause."""
    if ctx.spend(share):
        adverb = word(ctx.pick(lx.OPENERS), "ADV")
        adverb.lemma = adverb.form.lower()
        clause.front(punct(","), "punct").front(adverb, "advmod")
    return clause


def simple(ctx: Context) -> Node:
    """Return one clause of any kind."""
    return _opened(ctx, cl.statement(ctx))


def giving(ctx: Context) -> Node:
    """Return a clause with two objects."""
    subject = cl.subject_person(ctx)
    verb = cl.ditransitive(ctx, main_tense(ctx), subject.agreement)
    return _opened(ctx, with_subject(ctx, verb, subject))


def fronted_phrase(ctx: Context) -> Node:
    """Return a clause that begins with a phrase of time or place."""
    if ctx.chance(0.5):
        phrase = ph.time_phrase(ctx)
        tense = "past" if ctx.past else "pres"
    else:
        phrase = ph.place(ctx)
        phrase.deprel = "obl"
        tense = main_tense(ctx)
    clause = cl.active(ctx, tense) if ctx.chance(0.7) else cl.passive(ctx, tense)
    return clause.front(punct(","), "punct").front(phrase, phrase.deprel)


def reporting(ctx: Context) -> Node:
    """Return a verb of saying or thinking with its clause."""
    subject = cl.subject_person(ctx)
    saying = ctx.chance(0.5)
    lemma = ctx.pick(lx.SAYING if saying else lx.THINKING)
    tense = "past" if ctx.past else "pres"
    verb = verb_group(ctx, lemma, tense, subject.agreement, adverbs=saying)
    with_subject(ctx, verb, subject)
    content = cl.statement(ctx)
    if lemma not in {"say", "think", "hope", "know"} or ctx.chance(0.5):
        content.front(word("that", "SCONJ"), "mark")
    return verb.after(content, "ccomp")


def wondering(ctx: Context) -> Node:
    """Return a verb of asking or knowing with an indirect question."""
    subject = cl.subject_person(ctx, rich=False)
    lemma = ctx.pick(("wonder", "ask", "know", "discover", "explain", "remember"))
    tense = "past" if ctx.past else "pres"
    verb = verb_group(ctx, lemma, tense, subject.agreement, adverbs=False)
    with_subject(ctx, verb, subject)
    if lemma in {"wonder", "ask"} and ctx.chance(0.5):
        content = cl.statement(ctx, side_tense(ctx)).front(word("whether", "SCONJ"), "mark")
    else:
        content = cl.active(ctx, side_tense(ctx), rich=False)
        asked = ctx.rng.choice(("why", "when", "how"))
        content.front(word(asked, "ADV"), "advmod")
    return verb.after(content, "ccomp")


def wanting(ctx: Context) -> Node:
    """Return a clause whose verb takes an infinitive."""
    subject = cl.subject_person(ctx)
    tense = "past" if ctx.past else "pres"
    return with_subject(ctx, cl.controlled(ctx, tense, subject.agreement), subject)


def with_reason(ctx: Context) -> Node:
    """Return a clause followed by an adverbial clause."""
    clause = cl.active(ctx, "past" if ctx.past else "pres")
    marker = ctx.rng.choice(_REASONS)
    plain = "past" if ctx.past else "pres"
    side = cl.statement(ctx, side_tense(ctx) if marker in _ANY_TENSE else plain)
    side.front(word(marker, "SCONJ"), "mark")
    return clause.after(side, "advcl")


def after_condition(ctx: Context) -> Node:
    """Return a clause that an adverbial clause precedes."""
    side = cl.statement(ctx, "past" if ctx.past else "pres")
    side.front(
        word(ctx.rng.choice(OPENING_MARKERS if not ctx.past else OPENING_MARKERS[:-1]), "SCONJ"),
        "mark",
    )
    clause = cl.statement(ctx, "past" if ctx.past else ctx.rng.choice(("pres", "will", "must")))
    return clause.front(side.comma_after(), "advcl")


def participial(ctx: Context) -> Node:
    """Return a clause with a participle in front, or an infinitive of purpose."""
    subject = cl.subject_person(ctx, rich=ctx.chance(0.5))
    tense = "past" if ctx.past else "pres"
    draw = ctx.rng.random()
    if draw < 0.3:
        side = cl.transitive(ctx, "having", "3sg")
    elif draw < 0.7:
        side = cl.transitive(ctx, "ing", "3sg")
        side.left = []
        side.front(word(ctx.rng.choice(("before", "after", "while", "without")), "SCONJ"), "mark")
    else:
        side = cl.infinitive(ctx, simple=True)
    maker = cl.motion if draw >= 0.7 else cl.action
    clause = with_subject(ctx, maker(ctx, tense, subject.agreement), subject)
    return clause.front(side.comma_after(), "advcl")


def purpose(ctx: Context) -> Node:
    """Return a motion or a stay with an infinitive of purpose behind it."""
    subject = cl.subject_person(ctx)
    verb = cl.motion(ctx, main_tense(ctx), subject.agreement)
    return with_subject(ctx, verb, subject).after(cl.infinitive(ctx, simple=True), "advcl")


def two_clauses(ctx: Context) -> Node:
    """Return two clauses joined by a conjunction."""
    tense = "past" if ctx.past else "pres"
    first, second = cl.statement(ctx, tense), cl.statement(ctx, tense)
    second.front(word(ctx.rng.choice(("and", "but")), "CCONJ"), "cc").comma_before()
    return _opened(ctx, first.after(second, "conj"))


def two_actions(ctx: Context) -> Node:
    """Return one subject with two or three verbs."""
    tense = "past" if ctx.past else "pres"
    subject = cl.subject_person(ctx)
    first = with_subject(ctx, cl.action(ctx, tense, subject.agreement), subject)
    if ctx.spend(0.3):
        first.after(cl.motion(ctx, tense, subject.agreement).comma_before(), "conj")
    second = cl.action(ctx, tense, subject.agreement)
    return first.after(second.front(word("and", "CCONJ"), "cc"), "conj")


def list_of_things(ctx: Context) -> Node:
    """Return a clause whose object is a list of three."""
    subject = cl.subject_person(ctx)
    frame = ctx.frame()
    verb = verb_group(ctx, ctx.pick(frame.verbs), main_tense(ctx), subject.agreement)
    head = ph.thing(ctx, frame)
    head.after(ph.thing(ctx, frame, rich=False).comma_before(), "conj")
    last = ph.thing(ctx, frame).front(word("and", "CCONJ"), "cc")
    head.after(last.comma_before() if ctx.chance(0.5) else last, "conj")
    return with_subject(ctx, verb.after(head, "obj"), subject)


def side_by_side(ctx: Context) -> Node:
    """Return two clauses with a semicolon between them."""
    tense = "past" if ctx.past else "pres"
    first = cl.statement(ctx, tense)
    second = cl.negative(ctx, tense) if ctx.chance(0.3) else cl.statement(ctx, tense)
    return first.after(second.front(punct(";"), "punct"), "parataxis")


def _speech(ctx: Context, asked: bool) -> Node:
    """Return the verb of saying and its subject, in either order."""
    subject = ph.person(ctx, rich=ctx.chance(0.4))
    lemma = ctx.rng.choice(("say", "say", "whisper", "mutter", "reply", "shout"))
    lemma = "ask" if asked else lemma
    verb = word(past(lemma, "3sg"), "VERB", lemma)
    if ctx.chance(0.6):
        verb.after(subject, "nsubj")
    else:
        verb.front(subject, "nsubj")
    add = ctx.spend(0.2)
    return verb.after(word(ctx.pick(lx.CALM), "ADV"), "advmod") if add else verb


def quotation(ctx: Context) -> Node:
    """Return direct speech with the speaker behind it."""
    if ctx.chance(0.35):
        content, mark = question(ctx), "?"
        content.right.pop()
    else:
        content, mark = cl.statement(ctx), ","
    quoted(content.after(punct(mark), "punct"))
    speech = _speech(ctx, mark == "?")
    return content.after(speech, "parataxis").after(punct("."), "punct")


def introduced_speech(ctx: Context) -> Node:
    """Return a verb of saying with direct speech behind it."""
    subject = ph.person(ctx)
    lemma = ctx.rng.choice(("say", "reply", "shout", "whisper"))
    verb = word(past(lemma, "3sg"), "VERB", lemma).front(subject, "nsubj")
    content = quoted(cl.statement(ctx).after(punct("."), "punct")).comma_before()
    comma = content.left.pop(0)
    verb.after(comma, "punct").after(content, "ccomp")
    return verb


def existence(ctx: Context) -> Node:
    """Return a clause with an expletive ``there``."""
    frame = ctx.frame(portable=ctx.chance(0.6))
    node = ph.thing(ctx, frame)
    node.left = [c for c in node.left if c.deprel in {"amod", "compound", "nummod"}]
    node.right = []
    counted = any(c.deprel == "nummod" or c.form in {"several", "many"} for c in node.left)
    if not counted:
        indefinite = "a" if node.agreement == "3sg" and node.lemma + "~" not in ctx.used else "some"
        node.front(word(ctx.rng.choice((indefinite, indefinite, "no")), "DET"), "det")
    tense = "past" if ctx.past else ctx.rng.choice(("pres", "pres", "must", "may"))
    verb = verb_group(ctx, "be", tense, node.agreement, adverbs=False)
    verb.front(word("there", "PRON"), "expl").after(node, "nsubj")
    if not cl.modify_thing(ctx, node, frame, 0.25) or ctx.chance(0.4):
        verb.after(ph.place(ctx), "obl")
    return verb


def anticipated(ctx: Context) -> Node:
    """Return a clause with an expletive ``it`` and its real subject behind."""
    tense = "past" if ctx.past else "pres"
    draw = ctx.rng.random()
    it = ph.pronoun("it")
    if draw < 0.4:
        head = ph.adjective(ctx, ctx.pick(lx.REPORTED_FACTS), 0.3)
        copular(ctx, head, tense, "3sg", negated=ctx.chance(0.1))
        content = cl.statement(ctx, side_tense(ctx)).front(word("that", "SCONJ"), "mark")
    elif draw < 0.75:
        head = ph.adjective(ctx, ctx.pick(lx.TASK_QUALITIES), 0.3)
        copular(ctx, head, tense, "3sg")
        content = cl.infinitive(ctx, simple=True)
    else:
        head = verb_group(ctx, ctx.pick(lx.REACTIONS), tense, "3sg", adverbs=False)
        head.after(ph.person(ctx, rich=ctx.chance(0.4)), "obj")
        content = cl.statement(ctx, side_tense(ctx)).front(word("that", "SCONJ"), "mark")
    return with_subject(ctx, head, it, "expl").after(content, "csubj")


def planned(ctx: Context) -> Node:
    """Return a clause about a plan or a promise with an infinitive behind the noun."""
    subject = cl.subject_person(ctx, rich=ctx.chance(0.5))
    lemma = ctx.pick(("describe", "regret", "announce", "mention", "discuss"))
    verb = verb_group(ctx, lemma, main_tense(ctx), subject.agreement)
    noun = word(ctx.pick(lx.PLANS), "NOUN")
    if ctx.possessive:
        noun.before(word(ctx.possessive, "PRON"), "nmod:poss")
    else:
        noun.before(word("the", "DET"), "det")
    if ctx.spend(0.4):
        noun.before(word(ctx.pick(("bold", "sudden", "latest", "foolish")), "ADJ"), "amod")
    noun.after(cl.infinitive(ctx, simple=True), "acl")
    return with_subject(ctx, verb.after(noun, "obj"), subject)


def resulting(ctx: Context) -> Node:
    """Return a clause whose object or subject gets a secondary predicate."""
    subject = cl.subject_person(ctx)
    tense = "past" if ctx.past else "pres"
    if ctx.chance(0.5):
        lemma = ctx.pick(("seem", "look", "sound", "remain", "become"))
        verb = verb_group(ctx, lemma, tense, subject.agreement, adverbs=False)
        verb.after(ph.adjective(ctx, ctx.pick(lx.PERSON_PREDICATES), 0.5), "xcomp")
    else:
        lemma = ctx.pick(("consider", "find"))
        verb = verb_group(ctx, lemma, tense, subject.agreement, adverbs=False)
        frame = ctx.frame()
        verb.after(ph.thing(ctx, frame), "obj")
        verb.after(cl.thing_predicate(ctx, frame, 0.5), "xcomp")
    return with_subject(ctx, verb, subject)


def plain_passive(ctx: Context) -> Node:
    """Return a passive clause, sometimes with an adverb in front."""
    return _opened(ctx, cl.passive(ctx), 0.2)


def thing_first(ctx: Context) -> Node:
    """Return a clause about a thing that is somewhere or somehow."""
    return cl.happening(ctx) if ctx.chance(0.6) else cl.described(ctx)


_SHARES: tuple[tuple[Callable[[Context], Node], int], ...] = (
    (simple, 5),
    (giving, 4),
    (fronted_phrase, 4),
    (reporting, 5),
    (wondering, 2),
    (wanting, 3),
    (with_reason, 4),
    (after_condition, 4),
    (participial, 3),
    (purpose, 1),
    (two_clauses, 2),
    (two_actions, 3),
    (list_of_things, 2),
    (side_by_side, 4),
    (quotation, 5),
    (introduced_speech, 1),
    (question, 4),
    (command, 3),
    (existence, 5),
    (anticipated, 5),
    (planned, 3),
    (resulting, 2),
    (plain_passive, 5),
    (thing_first, 2),
    (cl.negative, 2),
)
DECK: tuple[Callable[[Context], Node], ...] = tuple(k for k, n in _SHARES for _ in range(n))
