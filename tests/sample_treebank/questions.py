"""Questions and commands of the sample grammar."""

from __future__ import annotations

from itertools import pairwise

from sample_treebank import clauses as cl
from sample_treebank import phrases as ph
from sample_treebank.phrases import Context, word
from sample_treebank.tree import Node, punct
from sample_treebank.verbs import inverted, verb_group

OPENING_MARKERS = ("because", "although", "when", "while", "after", "before", "if")


def question(ctx: Context) -> Node:
    """Return a direct question."""
    draw = ctx.rng.random()
    if draw < 0.35:
        clause = _yes_no(ctx)
    elif draw < 0.6:
        clause = _adverb_question(ctx)
    elif draw < 0.8:
        clause = _which_question(ctx)
    else:
        clause = _who_question(ctx)
    return clause.after(punct("?"), "punct")


def _question_tense(ctx: Context) -> str:
    """Choose a tense for a question."""
    return "past" if ctx.past else ctx.rng.choice(("pres", "will", "perf", "can", "should"))


def _yes_no(ctx: Context) -> Node:
    """Return a question without a question word."""
    subject = cl.subject_person(ctx, rich=ctx.chance(0.4))
    frame = ctx.frame()
    verb = verb_group(
        ctx,
        ctx.pick(frame.verbs),
        _question_tense(ctx),
        subject.agreement,
        support=True,
        adverbs=False,
        negated=ctx.chance(0.2) and subject.form != "I",
    )
    _contract_not(verb)
    verb.after(ph.thing(ctx, frame), "obj")
    cl.add_circumstances(ctx, verb, "past" if ctx.past else "pres", frame)
    return inverted(verb, subject)


def _contract_not(verb: Node) -> None:
    """Make a full ``not`` behind the auxiliary a contracted one, as questions need it."""
    for auxiliary, child in pairwise(verb.left):
        if child.form == "not":
            auxiliary.form = {"can": "ca", "will": "wo"}.get(auxiliary.form, auxiliary.form)
            child.form, child.glue_left = "n't", True


def _adverb_question(ctx: Context) -> Node:
    """Return a question with where, why, how or when."""
    subject = cl.subject_person(ctx, rich=ctx.chance(0.4))
    frame = ctx.frame()
    verb = verb_group(
        ctx,
        ctx.pick(frame.verbs),
        _question_tense(ctx),
        subject.agreement,
        support=True,
        adverbs=False,
    )
    verb.after(ph.thing(ctx, frame), "obj")
    asked = word(ctx.rng.choice(("where", "why", "how", "when")), "ADV")
    return inverted(verb, subject).front(asked, "advmod")


def _which_question(ctx: Context) -> Node:
    """Return a question that asks for the object."""
    subject = cl.subject_person(ctx, rich=ctx.chance(0.4))
    frame = ctx.frame()
    verb = verb_group(
        ctx,
        ctx.pick(frame.verbs),
        _question_tense(ctx),
        subject.agreement,
        support=True,
        adverbs=False,
    )
    inverted(verb, subject)
    if ctx.chance(0.3):
        target = word("what", "PRON")
    else:
        target = ph.thing(ctx, frame)
        target.left = [c for c in target.left if c.deprel in {"amod", "compound"}]
        target.left = [c for c in target.left if c.form not in {"several", "many"}]
        target.right = []
        target.front(word("which", "DET"), "det")
    cl.add_circumstances(ctx, verb, "past" if ctx.past else "pres", frame)
    return verb.front(target, "obj")


def _who_question(ctx: Context) -> Node:
    """Return a question that asks for the subject."""
    return cl.transitive(ctx, _question_tense(ctx), "3sg").front(word("who", "PRON"), "nsubj")


def command(ctx: Context) -> Node:
    """Return an imperative, sometimes with please or a negation."""
    ctx.past = False
    ctx.possessive = "your"
    verb = cl.transitive(ctx, "inf", "pl") if ctx.chance(0.6) else cl.ditransitive(ctx, "inf", "pl")
    if ctx.chance(0.25):
        verb.left = [_word_as("do", "AUX", "aux"), _not_clitic()]
    elif ctx.chance(0.25):
        verb.front(word("please", "INTJ"), "discourse")
    if ctx.spend(0.4):
        side = cl.statement(ctx, "pres").front(
            word(ctx.rng.choice(OPENING_MARKERS[2:]), "SCONJ"), "mark"
        )
        if ctx.chance(0.5):
            return verb.after(side, "advcl")
        return verb.front(side.comma_after(), "advcl")
    return verb


def _word_as(form: str, upos: str, deprel: str) -> Node:
    """Return a word with its relation set."""
    node = word(form, upos)
    node.deprel = deprel
    return node


def _not_clitic() -> Node:
    """Return ``n't``."""
    node = word("n't", "PART", "not")
    node.deprel, node.glue_left = "advmod", True
    return node
