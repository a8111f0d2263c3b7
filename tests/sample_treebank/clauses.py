"""Predicates, finite clauses and the clauses that modify nouns."""

from __future__ import annotations

from sample_treebank import lexicon as lx
from sample_treebank import phrases as ph
from sample_treebank.frames import Frame
from sample_treebank.morphology import participle
from sample_treebank.phrases import Context, word
from sample_treebank.tree import Node
from sample_treebank.verbs import (
    copular,
    main_tense,
    manner_adverbs,
    side_tense,
    verb_group,
    with_subject,
)

_TIMED = frozenset({"past", "pastprog", "pres", "will", "must"})

_WILLED = frozenset({"inf", "must", "should", "can"})


def add_time(ctx: Context, verb: Node, tense: str, share: float) -> None:
    """Add a phrase of time where it suits the tense."""
    if ctx.timed or any(child.form in lx.FREQUENCY for child in verb.left):
        return
    if tense in _TIMED and (tense not in {"will", "must"} or ctx.chance(0.5)) and ctx.spend(share):
        if ctx.chance(0.3):
            adverbs = lx.PAST_TIMES if ctx.past else lx.PRESENT_TIMES
            verb.after(word(ctx.pick(adverbs), "ADV"), "advmod")
            return
        phrase = ph.time_phrase(ctx)
        verb.after(phrase, phrase.deprel)


def add_manner(ctx: Context, verb: Node, share: float) -> None:
    """Add an adverb of manner behind what the verb has so far."""
    has_adverb = any(child.deprel == "advmod" for child in verb.left)
    if not has_adverb and ctx.spend(share):
        verb.after(word(ctx.pick(manner_adverbs(verb.lemma)), "ADV"), "advmod")


def add_circumstances(ctx: Context, verb: Node, tense: str, frame: Frame | None = None) -> None:
    """Add manner, tool, place and time behind the object."""
    add_manner(ctx, verb, 0.25)
    if frame and frame.tools and ctx.spend(0.3):
        noun = ctx.pick(frame.tools)
        tool = word(noun, "NOUN").before(word("a", "DET"), "det")
        verb.after(ph.with_case("with", tool), "obl")
    elif ctx.spend(0.4):
        verb.after(ph.place(ctx), "obl")
    add_time(ctx, verb, tense, 0.3)


def transitive(ctx: Context, tense: str, agreement: str, *, negated: bool = False) -> Node:
    """Return a verb of the scene with its object and circumstances."""
    frame = ctx.frame()
    verbs = [v for v in frame.verbs if tense not in _WILLED or v not in lx.UNWILLED]
    verb = verb_group(ctx, ctx.pick(verbs), tense, agreement, negated=negated)
    target = ph.thing(ctx, frame)
    verb.after(target, "obj")
    modified = modify_thing(ctx, target, frame, 0.2)
    if not modified and target.agreement == "3sg" and ctx.spend(0.12):
        other = ph.thing(ctx, frame, rich=False).front(word("and", "CCONJ"), "cc")
        target.after(other, "conj")
    if not modified:
        add_circumstances(ctx, verb, tense, frame)
    return verb


def ditransitive(ctx: Context, tense: str, agreement: str) -> Node:
    """Return a verb of giving with both objects."""
    verb = verb_group(ctx, ctx.pick(lx.GIVING), tense, agreement)
    frame = ctx.frame(portable=True)
    receiver = ph.person(ctx, rich=ctx.chance(0.4))
    verb.after(receiver, "iobj")
    verb.after(ph.thing(ctx, frame), "obj")
    add_time(ctx, verb, tense, 0.3)
    return verb


def motion(ctx: Context, tense: str, agreement: str) -> Node:
    """Return a verb of motion with its direction."""
    verb = verb_group(ctx, ctx.pick(lx.MOTION), tense, agreement)
    add_manner(ctx, verb, 0.3)
    verb.after(ph.place(ctx, ctx.pick(lx.MOTION_PREPOSITIONS)), "obl")
    add_time(ctx, verb, tense, 0.35)
    return verb


def solitary(ctx: Context, tense: str, agreement: str) -> Node:
    """Return an intransitive verb with what goes along."""
    verb = verb_group(ctx, ctx.pick(lx.SOLITARY), tense, agreement)
    add_manner(ctx, verb, 0.3)
    if ctx.spend(0.5):
        verb.after(ph.place(ctx), "obl")
    add_time(ctx, verb, tense, 0.3)
    return verb


def social(ctx: Context, tense: str, agreement: str) -> Node:
    """Return a verb done to a person."""
    verb = verb_group(ctx, ctx.pick(lx.SOCIAL), tense, agreement)
    other = ph.person(ctx)
    verb.after(other, "obj")
    if not modify_person(ctx, other, 0.25):
        add_circumstances(ctx, verb, tense)
    return verb


def infinitive(ctx: Context, *, simple: bool = False) -> Node:
    """Return an infinitive clause with ``to``."""
    verb = transitive(ctx, "inf", "pl") if simple else action(ctx, "inf", "pl", nested=True)
    return verb.front(word("to", "PART"), "mark")


def controlled(ctx: Context, tense: str, agreement: str) -> Node:
    """Return a verb that takes an infinitive, with or without a person in between."""
    if ctx.chance(0.4):
        verb = verb_group(ctx, ctx.pick(lx.OBJECT_CONTROL), tense, agreement)
        verb.after(ph.person(ctx, rich=ctx.chance(0.4)), "obj")
    else:
        verb = verb_group(ctx, ctx.pick(lx.CONTROL), tense, agreement)
    return verb.after(infinitive(ctx), "xcomp")


def action(ctx: Context, tense: str, agreement: str, *, nested: bool = False) -> Node:
    """Return a verb phrase for something that a person does."""
    draw = ctx.rng.random()
    if draw < 0.42:
        return transitive(ctx, tense, agreement)
    if draw < 0.57:
        return ditransitive(ctx, tense, agreement)
    if draw < 0.69:
        return motion(ctx, tense, agreement)
    if draw < 0.76 and not nested:
        return solitary(ctx, tense, agreement)
    if draw < 0.86 or nested or tense in {"prog", "pastprog", "must", "can", "could"}:
        return social(ctx, tense, agreement)
    return controlled(ctx, tense, agreement)


def modify_thing(ctx: Context, node: Node, frame: Frame, share: float) -> bool:
    """Perhaps add a relative or participle clause to an object of a frame."""
    if any(c.deprel == "nmod:poss" for c in node.left) or not ctx.spend(share):
        return False
    verb = ctx.pick(frame.verbs)
    draw = ctx.rng.random()
    if draw < 0.25:
        node.after(_participle_clause(ctx, verb), "acl")
    elif draw < 0.45:
        node.after(_passive_relative(ctx, verb, node.agreement), "acl:relcl")
    else:
        bare = any(c.form == "the" for c in node.left)
        node.after(_object_relative(ctx, verb, bare), "acl:relcl")
    return True


def _participle_clause(ctx: Context, verb: str) -> Node:
    """Return a clause such as ``carved by the joiner``."""
    node = word(participle(verb), "VERB", verb)
    return node.after(ph.with_case("by", ph.person(ctx, rich=False)), "obl:agent")


def _passive_relative(ctx: Context, verb: str, agreement: str) -> Node:
    """Return a clause such as ``that was carved by the joiner``."""
    tense = side_tense(ctx)
    node = verb_group(ctx, verb, tense, agreement, passive=True, adverbs=False)
    node.front(word(ctx.rng.choice(("that", "which")), "PRON"), "nsubj:pass")
    if ctx.chance(0.6):
        node.after(ph.with_case("by", ph.person(ctx, rich=False)), "obl:agent")
    else:
        node.after(ph.place(ctx), "obl")
    return node


def _object_relative(ctx: Context, verb: str, bare: bool) -> Node:
    """Return a clause such as ``that the joiner had carved``; it may be bare of ``that``."""
    subject = ph.person(ctx, rich=False)
    node = verb_group(ctx, verb, side_tense(ctx), subject.agreement, adverbs=ctx.chance(0.4))
    with_subject(ctx, node, subject)
    if not bare or ctx.chance(0.5):
        node.front(word(ctx.rng.choice(("that", "which")), "PRON"), "obj")
    if ctx.chance(0.3):
        node.after(ph.place(ctx), "obl")
    return node


def modify_person(ctx: Context, node: Node, share: float) -> bool:
    """Perhaps add a relative or participle clause to a person."""
    simple = all(c.deprel not in {"conj", "appos", "nmod"} for c in node.right)
    determiners = {c.form for c in node.left}
    if node.upos == "PRON" or not simple or "every" in determiners or not ctx.spend(share):
        return False
    if node.upos == "NOUN" and ctx.chance(0.3):
        clause = transitive(ctx, "ing", node.agreement)
        clause.left = [c for c in clause.left if c.deprel != "advmod"]
        node.after(clause, "acl")
        return True
    clause = _subject_relative(ctx, node.agreement)
    if node.upos == "PROPN":
        clause.comma_before().comma_after()
    node.after(clause, "acl:relcl")
    return True


def _subject_relative(ctx: Context, agreement: str) -> Node:
    """Return a clause such as ``who had carved the lintel``."""
    tense = side_tense(ctx)
    maker = ctx.rng.choice((transitive, transitive, motion, solitary, ditransitive))
    return maker(ctx, tense, agreement).front(word("who", "PRON"), "nsubj")


def subject_person(ctx: Context, *, rich: bool = True) -> Node:
    """Return a person as a subject, with everything that may modify it."""
    node = ph.person(ctx, rich=rich, subject=True)
    if rich:
        modify_person(ctx, node, 0.22)
    return node


def active(ctx: Context, tense: str | None = None, *, rich: bool = True) -> Node:
    """Return a clause about what a person does."""
    chosen = tense or main_tense(ctx)
    subject = subject_person(ctx, rich=rich)
    return with_subject(ctx, action(ctx, chosen, subject.agreement), subject)


def negative(ctx: Context, tense: str | None = None) -> Node:
    """Return a negated clause about what a person does not do."""
    chosen = tense or main_tense(ctx)
    subject = subject_person(ctx)
    if {"every", "both"} & {c.form for c in subject.left}:
        subject.left = [c for c in subject.left if c.deprel != "det"]
        ph.quantify(subject, "the")
        subject.left.insert(0, subject.left.pop())
    verb = transitive(ctx, chosen, subject.agreement, negated=True)
    return with_subject(ctx, verb, subject)


def passive(ctx: Context, tense: str | None = None, *, rich: bool = True) -> Node:
    """Return a passive clause, mostly with its agent."""
    chosen = tense or main_tense(ctx)
    chosen = "pres" if chosen == "may" else chosen
    frame = ctx.frame()
    verb_lemma = ctx.pick(frame.verbs)
    subject = ph.thing(ctx, frame, rich=rich)
    ctx.possessive = None
    if rich:
        modify_thing(ctx, subject, frame, 0.2)
    verb = verb_group(ctx, verb_lemma, chosen, subject.agreement, passive=True)
    if ctx.chance(0.72):
        agent = ph.person(ctx, rich=ctx.chance(0.5))
        verb.after(ph.with_case("by", agent), "obl:agent")
    else:
        verb.after(ph.place(ctx), "obl")
    add_time(ctx, verb, chosen, 0.4)
    return verb.front(subject, "nsubj:pass")


def described(ctx: Context, tense: str | None = None) -> Node:
    """Return a clause that says how a person or a thing is."""
    chosen = tense or ("past" if ctx.past else ctx.rng.choice(("pres", "pres", "must")))
    negated = ctx.chance(0.12)
    if ctx.chance(0.45):
        subject = subject_person(ctx)
        if ctx.chance(0.25) and subject.upos == "PROPN" and subject.agreement == "3sg":
            role = word(ctx.pick(ctx.scene.people), "NOUN").before(word("a", "DET"), "det")
            ph.add_adjectives(ctx, role, lx.PERSON_ADJECTIVES, 0.6)
            return copular(ctx, role, chosen, "3sg", negated=negated).front(subject, "nsubj")
        share = 0.0 if negated else 0.4
        predicate = ph.adjective(ctx, ctx.pick(lx.PERSON_PREDICATES), share)
        clause = copular(ctx, predicate, chosen, subject.agreement, negated=negated)
        return with_subject(ctx, clause, subject)
    frame = ctx.frame()
    subject = ph.thing(ctx, frame)
    modify_thing(ctx, subject, frame, 0.35)
    predicate = thing_predicate(ctx, frame, 0.0 if negated else 0.4)
    copular(ctx, predicate, chosen, subject.agreement, negated=negated)
    return predicate.front(subject, "nsubj")


def thing_predicate(ctx: Context, frame: Frame, share: float) -> Node:
    """Return an adjective that can be said of the objects of a frame."""
    general = frame.portable and ctx.chance(0.6)
    choices = lx.THING_PREDICATES if general else frame.adjectives
    return ph.adjective(ctx, ctx.pick(choices), share)


def happening(ctx: Context, tense: str | None = None) -> Node:
    """Return a clause in which a thing disappears, arrives, falls or lies somewhere."""
    chosen = tense or ("past" if ctx.past else "perf")
    frame = ctx.frame(portable=True)
    subject = ph.thing(ctx, frame)
    ctx.possessive = None
    modify_thing(ctx, subject, frame, 0.3)
    lemma = ctx.pick(lx.THING_VERBS)
    verb = verb_group(ctx, lemma, chosen, subject.agreement, adverbs=False)
    if lemma in {"disappear", "vanish", "fall"} and ctx.spend(0.4):
        verb.after(ph.place(ctx, "from" if lemma != "fall" else "near"), "obl")
    elif lemma in {"remain", "lie"}:
        verb.after(ph.place(ctx), "obl")
    add_time(ctx, verb, chosen, 0.5)
    return verb.front(subject, "nsubj")


def statement(ctx: Context, tense: str | None = None) -> Node:
    """Return a finite clause of any of the common kinds."""
    draw = ctx.rng.random()
    if draw < 0.6:
        return active(ctx, tense)
    if draw < 0.78:
        return passive(ctx, tense)
    return described(ctx, tense) if draw < 0.91 else happening(ctx, tense)
