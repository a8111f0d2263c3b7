"""Verb groups: auxiliaries, negation, adverbs and inversion around a main verb."""

from __future__ import annotations

from sample_treebank import lexicon as lx
from sample_treebank.morphology import gerund, participle, past, present
from sample_treebank.phrases import Context, word
from sample_treebank.tree import Node

_MODALS = frozenset(lx.words("will would can could must should may might"))
_PAST_TENSES = ("past",) * 7 + ("pastperf", "pastprog", "pastprog", "could")
_PRESENT_TENSES = (
    "pres",
    "pres",
    "pres",
    "pres",
    "perf",
    "perf",
    "prog",
    "will",
    "will",
    "must",
    "can",
    "should",
    "may",
    "might",
)
_CALM_VERBS = frozenset(
    (*lx.SOLITARY, *lx.MOTION, *lx.SOCIAL, *lx.GIVING, *lx.CONTROL, *lx.OBJECT_CONTROL, *lx.SAYING)
)
_CLITICS = {"is": "'s", "has": "'s", "will": "'ll", "had": "'d", "are": "'re", "am": "'m"}
_SHORT_STEMS = {"can": "ca", "will": "wo"}
_NO_CLITIC_NOT = frozenset({"am", "may", "might"})


def main_tense(ctx: Context) -> str:
    """Choose the tense of a main clause in line with the time of the sentence."""
    return ctx.rng.choice(_PAST_TENSES if ctx.past else _PRESENT_TENSES)


def side_tense(ctx: Context) -> str:
    """Choose the tense of a dependent clause in line with the time of the sentence."""
    return ctx.rng.choice(("past", "past", "pastperf") if ctx.past else ("pres", "pres", "perf"))


def _plan(tense: str, passive: bool, support: bool, main: str) -> list[tuple[str, str]]:
    """Return lemma and role of each verb of a group, from the first to the main verb."""
    steps: list[tuple[str, str]] = []
    if tense in _MODALS:
        steps.append((tense, "modal"))
    if tense in {"perf", "pastperf", "having"}:
        steps.append(("have", "perfect"))
    if tense in {"prog", "pastprog"}:
        steps.append(("be", "progressive"))
    if passive:
        steps.append(("be", "passive"))
    steps.append((main, "main"))
    if support and len(steps) == 1 and main != "be":
        steps.insert(0, ("do", "support"))
    return steps


def _first_form(lemma: str, tense: str, agreement: str) -> str:
    """Inflect the first verb of a group."""
    if tense in _MODALS or tense == "inf":
        return lemma
    if tense in {"ing", "having"}:
        return gerund(lemma)
    if tense.startswith("past"):
        return past(lemma, agreement)
    return present(lemma, agreement)


def _next_form(lemma: str, previous: str) -> str:
    """Inflect a verb by the role of the verb before it."""
    if previous in {"perfect", "passive"}:
        return participle(lemma)
    return gerund(lemma) if previous == "progressive" else lemma


def _auxiliaries(
    main: str, tense: str, agreement: str, passive: bool, support: bool
) -> tuple[list[Node], str]:
    """Return the auxiliaries of a group and the form of its main verb."""
    nodes: list[Node] = []
    previous = ""
    form = main
    for lemma, role in _plan(tense, passive, support, main):
        form = _next_form(lemma, previous) if previous else _first_form(lemma, tense, agreement)
        if role != "main":
            node = word(form, "AUX", lemma)
            node.deprel = "aux:pass" if role == "passive" else "aux"
            nodes.append(node)
        previous = role
    return nodes, form


def _negation(ctx: Context, auxiliary: Node) -> Node:
    """Return ``not`` or ``n't`` for an auxiliary, whose form it may change."""
    node = word("not", "PART")
    node.deprel = "advmod"
    if auxiliary.form not in _NO_CLITIC_NOT and ctx.chance(0.6):
        auxiliary.form = _SHORT_STEMS.get(auxiliary.form, auxiliary.form)
        node.form = "n't"
        node.glue_left = True
    return node


def _adverb(form: str) -> Node:
    """Return an adverb that modifies a predicate."""
    node = word(form, "ADV")
    node.deprel = "advmod"
    return node


def verb_group(
    ctx: Context,
    verb: str,
    tense: str,
    agreement: str = "3sg",
    *,
    passive: bool = False,
    negated: bool = False,
    support: bool = False,
    adverbs: bool = True,
) -> Node:
    """Return a verb with its auxiliaries, and perhaps a negation and an adverb."""
    helpers, form = _auxiliaries(verb, tense, agreement, passive, support or negated)
    node = word(form, "VERB", verb)
    extra = [_negation(ctx, helpers[0])] if negated and helpers else []
    adverb = None if negated or not adverbs else middle_adverb(ctx, verb, tense)
    if adverb:
        extra.append(_adverb(adverb))
    node.left = [*helpers[:1], *extra, *helpers[1:]]
    return node


def manner_adverbs(verb: str) -> tuple[str, ...]:
    """Return the adverbs of manner that suit a verb."""
    return lx.CALM if verb in _CALM_VERBS else lx.MANNER


def middle_adverb(ctx: Context, verb: str, tense: str) -> str | None:
    """Choose an adverb that stands before the main verb, or none."""
    if tense in {"past", "pres"} and ctx.spend(0.16):
        return ctx.pick(manner_adverbs(verb) if ctx.chance(0.5) else lx.FREQUENCY)
    if tense in {"perf", "pastperf"} and ctx.spend(0.35):
        return ctx.pick(lx.ASPECTUAL)
    if tense in {"prog", "pastprog"} and ctx.spend(0.25):
        return ctx.pick(manner_adverbs(verb))
    return None


def copular(
    ctx: Context, predicate: Node, tense: str, agreement: str, *, negated: bool = False
) -> Node:
    """Put a form of ``be`` in front of a predicate that is no verb."""
    helpers, form = _auxiliaries("be", tense, agreement, passive=False, support=False)
    cop = word(form, "AUX", "be")
    cop.deprel = "cop"
    nodes = [*helpers, cop]
    if negated:
        nodes.insert(1, _negation(ctx, nodes[0]))
    predicate.left = nodes + predicate.left
    return predicate


def with_subject(ctx: Context, predicate: Node, subject: Node, deprel: str = "nsubj") -> Node:
    """Put a subject first; a pronoun may be contracted with the verb after it."""
    first = predicate.left[0] if predicate.left else predicate
    contractible = subject.upos == "PRON" and first.upos == "AUX" and first.form in _CLITICS
    if contractible and not (first.form == "has" and first.deprel == "cop") and ctx.chance(0.3):
        first.form = _CLITICS[first.form]
        first.glue_left = True
    return predicate.front(subject, deprel)


def inverted(predicate: Node, subject: Node, deprel: str = "nsubj") -> Node:
    """Put a subject behind the first auxiliary, as questions do."""
    subject.deprel = deprel
    at = 2 if len(predicate.left) > 1 and predicate.left[1].form == "n't" else 1
    predicate.left.insert(at, subject)
    return predicate
