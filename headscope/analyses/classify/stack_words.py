"""What is said of the heads of one stack: the roles found, those not testable, the controls.

Each function takes the result of one stack (:func:`results_by_stack`), which is ``encoder``,
``decoder`` or ``cross``, and returns text for terminal and page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from headscope.analyses.classify.cards import baseline_name, offset_text
from headscope.analyses.classify.result import ClassifyResult, ControlResult
from headscope.analyses.classify.roles import (
    NO_ROLE,
    PAIR,
    Role,
    role_class,
    role_in,
    role_name,
)
from headscope.analyses.classify.scores import HeadResult, SyntacticScore
from headscope.data.long_texts import MOST_LEFT_OUT
from headscope.show.cells import joined, plural

#: The relations that Voita et al. 2019 (arXiv:1905.09418) name heads for.
VOITA_RELATIONS = ("nsubj", "obj", "amod", "advmod")
STACK_NAMES = {"encoder": "Encoder", "decoder": "Decoder", "cross": "Cross-attention"}
_MOST_NAMES = 6  # Heads that are named of a role; the map has all of them.


def results_by_stack(result: ClassifyResult) -> list[ClassifyResult]:
    """Return the result of each stack, in their order."""
    return [result.only(stack) for stack in result.stacks]


def has_trees(stack_result: ClassifyResult) -> bool:
    """Whether the heads of this stack were scored on gold trees."""
    return stack_result.corpus.trees and stack_result.stacks != ("cross",)


def corpus_text(result: ClassifyResult) -> str:
    """Say what was read."""
    corpus = result.corpus
    unit = "sentences"
    if corpus.pairs:
        unit = "sources" if result.stacks == ("encoder",) else "pairs"
    counts = f"{corpus.sentences:,} {unit}, {corpus.skipped:,} skipped, {corpus.queries:,} tokens"
    if corpus.words_left_out:
        words = plural(corpus.words_left_out, "word")
        counts += f", {corpus.words_left_out:,} {words} without a piece left out"
    return f"{corpus.name}: {counts}"


# --- which roles were found ---


def found_sentence(stack_result: ClassifyResult) -> str:
    """Say how many heads of one stack have a role."""
    kind = "heads of the encoder" if stack_result.corpus.pairs else "heads"
    if stack_result.stacks == ("decoder",):
        kind = "heads of the decoder"
    elif stack_result.stacks == ("cross",):
        kind = "cross-attention heads"
    n_heads = len(stack_result.heads)
    n_with_role = len([head for head in stack_result.heads if head.roles])
    n_without = n_heads - n_with_role
    corpus = stack_result.corpus
    n_texts = corpus.sentences + corpus.skipped
    read = ""
    if corpus.skipped > MOST_LEFT_OUT * n_texts:
        read = f", of which {corpus.sentences:,} of {n_texts:,} texts could be read"
    sentence = (
        f"{n_with_role} of {n_heads} {kind} {_has(n_with_role)} a role on this corpus{read} "
        f"(a head can have several); {n_without} {_has(n_without)} none."
    )
    n_roles = len(stack_result.possible_roles)
    n_untestable = len(stack_result.untestable)
    if 2 * n_untestable >= n_roles:
        sentence += f" {n_untestable} of the {n_roles} roles could not be tested on it."
    return sentence


def _has(n: int) -> str:
    return "has" if n == 1 else "have"


def found_heads(stack_result: ClassifyResult) -> str:
    """List the heads of each role by name, a line for each role."""
    lines = []
    for role in stack_result.possible_roles:
        heads = [head for head in stack_result.heads if role.key in head.roles]
        if not heads:
            continue
        names = [f"{head.name}{_detail(head, role.key)}" for head in heads]
        shown = ", ".join(names[:_MOST_NAMES])
        n_more = len(names) - _MOST_NAMES
        if n_more > 0:
            shown += f" and {n_more} more"
        counted = f"{len(heads)} {role.name}"
        if role.key == "syntactic" and has_trees(stack_result):
            counted = count_syntactic(stack_result)
        elif role.key == "first_token":
            counted = count_sinks(stack_result)
        lines.append(f"{counted}: {shown}")
    return "\n".join(lines)


def _detail(head: HeadResult, role: str) -> str:
    """Return what a role of a head is about, in brackets; empty where there is nothing to add.

    A positional head's offset, a syntactic head's relation, or the directions in which a head
    follows a user's pairs.
    """
    text = ""
    details = [label.detail for label in head.labels if label.role == role]
    if role == "positional":
        text = offset_text(head)
    elif role == "syntactic" and details:
        relation, _, _ = details[0].partition(" ")  # of ``obj dep->head``
        text = relation
    elif role_class(role) == "syntactic" and head.stack == "encoder":
        directions = [detail.rpartition(" ")[2] for detail in details]
        text = ", ".join(directions)
    return f" ({text})" if text else ""


def count_syntactic(stack_result: ClassifyResult) -> str:
    """Count syntactic heads: for the four relations of Voita et al. first, then for all."""
    n_syntactic = 0
    n_of_voita = 0
    for head in stack_result.heads:
        relations = {score.relation for score in head.syntactic if score.labelled}
        if relations:
            n_syntactic += 1
        if relations & set(VOITA_RELATIONS):
            n_of_voita += 1
    return f"{n_syntactic} syntactic ({n_of_voita} for subject, object, adjective or adverb)"


def count_sinks(stack_result: ClassifyResult) -> str:
    """Count first-token sinks: all of them, and those that stay when the token is another one."""
    details: list[str] = []
    for head in stack_result.heads:
        details += [label.detail for label in head.labels if label.role == "first_token"]
    counted = f"{len(details)} first-token {plural(len(details), 'sink')}"
    if not any(details):
        return counted
    n_position = details.count("position")
    n_token = details.count("token")
    return f"{counted} (with another token in front, {n_position} stay and {n_token} go)"


def asked_sentence(stack_result: ClassifyResult) -> str:
    """Say which share of the trees' edges a causal stack was asked for; empty elsewhere."""
    shares = stack_result.corpus.asked_edges
    if not shares:
        return ""
    from_dependent = shares.get("dep->head", 0.0)
    from_head = shares.get("head->dep", 0.0)
    return (
        "A token sees only what stands before it: syntactic roles were asked for "
        f"{from_dependent:.0%} of the trees' edges from the dependent, for {from_head:.0%} from "
        "the head."
    )


def pairs_sentence(stack_result: ClassifyResult) -> str:
    """Say which heads follow the user's pairs, that none does, or why that is not testable.

    Where there is none, the nearest to one is named, with the strongest baseline beside it.
    """
    keys = [PAIR + label for label in stack_result.labels]
    following = [head for head in stack_result.heads if set(keys) & set(head.roles)]
    if following:
        names = [head.name for head in following[:_MOST_NAMES]]
        n_more = len(following) - len(names)
        more = f" and {n_more} more" if n_more else ""
        follow = "follows" if len(following) == 1 else "follow"
        return (
            f"{len(following)} of {len(stack_result.heads)} heads {follow} the pairs better than "
            f"every baseline on both halves of the corpus: {', '.join(names)}{more}."
        )
    reasons = [stack_result.untestable[key] for key in keys if key in stack_result.untestable]
    answer = "No head follows the pairs better than every baseline on both halves of the corpus."
    if len(reasons) == len(keys):
        answer = f"Not testable whether a head follows the pairs: {reasons[0]}."
    return f"{answer}{_nearest_to_pairs(stack_result)}"


def _nearest_to_pairs(stack_result: ClassifyResult) -> str:
    """Name the head that follows the pairs most closely, beside its strongest baseline."""
    scored: list[tuple[HeadResult, SyntacticScore]] = []
    for head in stack_result.heads:
        scored += [
            (head, score)
            for score in head.syntactic
            if score.relation in stack_result.labels and score.trials
        ]
    if not scored:
        return ""

    def gain(row: tuple[HeadResult, SyntacticScore]) -> float:
        _, score = row
        return float(score.accuracy) - max(score.baselines.values())

    head, score = max(scored, key=gain)
    strongest = max(score.baselines, key=lambda name: score.baselines[name])
    return (
        f" Nearest to it: {head.name} looks {score.relation} {score.direction} in "
        f"{score.accuracy.value:.0%} of {score.trials:,} trials; its strongest baseline, "
        f"{baseline_name(strongest)}, is right in {score.baselines[strongest]:.0%}."
    )


def no_relation_sentence(stack_result: ClassifyResult) -> str:
    """Say that no head follows a relation of the trees, or that none could be tested."""
    reason = stack_result.untestable.get("syntactic")
    if reason is not None:
        return f"Whether a head follows a relation could not be tested: {reason}."
    return (
        "No head is syntactic: none follows a relation better than every baseline on both halves "
        "of the corpus."
    )


def role_counts(stack_result: ClassifyResult) -> list[tuple[str, str, int, str]]:
    """Return (role, its name, heads, heads with random weights) for every role of one stack.

    The last is a text, ``-`` where random weights were not measured; "no role" comes last.
    """
    counts: Counter[str] = Counter()
    for head in stack_result.heads:
        counts.update(head.roles)
    control = stack_result.control or ControlResult()
    rows = []
    for role in stack_result.possible_roles:
        random = str(control.roles.get(role.key, 0)) if control.random_weights else "-"
        rows.append((role.key, role.name, counts[role.key], random))
    n_without = sum(not head.roles for head in stack_result.heads)
    return [*rows, (NO_ROLE.key, "no role on this corpus", n_without, "-")]


def legend(*stack_results: ClassifyResult) -> str:
    """Explain the marks on the map of some stacks: of the roles that are shown there."""
    shown: set[str] = set()
    possible: dict[str, Role] = {}
    for stack_result in stack_results:
        shown.update(head.primary for head in stack_result.heads)
        possible.update((role.key, role) for role in stack_result.possible_roles)
    possible[NO_ROLE.key] = NO_ROLE
    marks = [role.legend or _mark_in_words(role) for role in possible.values() if role.key in shown]
    return "; ".join(marks)


def _mark_in_words(role: Role) -> str:
    name = role.name.replace("-", " ")
    return role.mark if name == role.mark else f"{role.mark} = {name}"


# --- what could not be found, and what is found where there is nothing ---


def untested_sentence(stack_result: ClassifyResult) -> str:
    """Name the roles that this corpus cannot show; empty where there is none."""
    prefix = role_in("", stack_result.stacks[0])  # "" or "cross:"
    names_by_reason: dict[str, list[str]] = {}
    for role, reason in stack_result.untestable.items():
        names_by_reason.setdefault(reason, []).append(role_name(role.removeprefix(prefix)))
    named = [f"{joined(names)} ({reason})" for reason, names in names_by_reason.items()]
    return f"Not testable on this corpus: {', '.join(named)}." if named else ""


def short_control(stack_result: ClassifyResult) -> str:
    """Say behind the answer how many heads keep a role in the controls; empty without a control."""
    control = stack_result.control or ControlResult()
    clauses = []
    if control.swapped is not None and (stack_result.labels or _has_syntax(stack_result)):
        n_heads = control.swapped.heads
        clause = f"with other sentences' trees {n_heads} would be syntactic"
        if stack_result.labels:
            clause = f"with pairs of other texts {n_heads} would follow them"
        clauses.append(clause)
    kept = kept_with_other_sources(stack_result)
    if kept is not None:
        n_kept, n_ordered = kept
        clauses.append(
            f"with other pairs' sources {n_kept} of the {n_ordered} monotonic heads stay so"
        )
    if control.random_weights:
        with_role = joined(
            [
                f"{control.roles[role.key]} {role.name}"
                for role in stack_result.possible_roles
                if control.roles.get(role.key)
            ]
        )
        clauses.append(f"with random weights {with_role or 'none has a role'}")
    if not clauses:
        return ""
    text = "; ".join(clauses)
    return f" {text[0].upper()}{text[1:]}."


def _has_syntax(stack_result: ClassifyResult) -> bool:
    """Whether syntactic roles could be tested, so that a control of them says something."""
    return role_in("syntactic", stack_result.stacks[0]) not in stack_result.untestable


def control_sentence(stack_result: ClassifyResult) -> str:
    """Say what the same rules label in one stack where there is nothing to find."""
    control = stack_result.control or ControlResult()
    clauses = list(_swapped_clauses(stack_result, control))
    if control.random_weights:
        clauses.append(_random_clause(stack_result, control))
    else:
        clauses.append("random weights were not measured (--control measures them)")
    return f"Control: {'; '.join(clauses)}.{_worth_of_control(stack_result, control)}"


def _random_clause(stack_result: ClassifyResult, control: ControlResult) -> str:
    """Count the roles that heads with random weights have; all that none has in few words."""
    counts = []
    for role in stack_result.possible_roles:
        n_heads = control.roles.get(role.key, 0)
        if n_heads:
            verb = "is" if n_heads == 1 else "are"
            counts.append(f"{n_heads} {verb} labelled {role.name}")
    random_heads = f"with random weights (seed {control.seed}), of {control.heads} heads"
    if not counts:
        return f"{random_heads} none has a role"
    return f"{random_heads} {', '.join(counts)}, and none has another role"


def _swapped_clauses(stack_result: ClassifyResult, control: ControlResult) -> Iterator[str]:
    """Say what is labelled with other sentences' trees or pairs, and with other pairs' sources."""
    if control.swapped is not None:
        n_heads = control.swapped.heads
        n_labels = control.swapped.labels
        other_edges = "pairs of other texts" if stack_result.labels else "trees of other sentences"
        verb = "follow pairs" if stack_result.labels else "be called syntactic"
        yield (
            f"with the {other_edges} of the same length, {n_heads} {plural(n_heads, 'head')} would "
            f"{verb} ({n_labels} {plural(n_labels, 'label')})"
        )
    kept = kept_with_other_sources(stack_result)
    if kept is not None:
        n_kept, n_ordered = kept
        yield (
            f"with other pairs' sources of the same length, {n_kept} of the {n_ordered} "
            "monotonic or anti-monotonic heads would have the role all the same: position explains "
            "them"
        )


def kept_with_other_sources(stack_result: ClassifyResult) -> tuple[int, int] | None:
    """Count monotonic and anti-monotonic heads that stay so with other pairs' sources, and all.

    None where that was not measured.
    """
    ordered = [
        head for head in stack_result.heads if {"monotonic", "anti_monotonic"} & set(head.roles)
    ]
    intervals = [head.alignment.swapped.interval for head in ordered if head.alignment]
    known = [interval for interval in intervals if interval is not None]
    if stack_result.stacks != ("cross",) or not known:
        return None
    # The interval lies beyond the threshold on either side, as the role asks.
    least = float(stack_result.thresholds["monotonic"])
    explained = [(low, high) for low, high in known if max(low, -high) >= least]
    return len(explained), len(ordered)


def _worth_of_control(stack_result: ClassifyResult, control: ControlResult) -> str:
    """Say which labels of the controls are false positives: those that need words or trees."""
    if not (control.swapped or control.random_weights):
        return ""
    if stack_result.stacks != ("encoder",) and not stack_result.corpus.asked_edges:
        return ""
    n_false = control.swapped.heads if control.swapped else 0
    for key, n_heads in control.roles.items():
        if role_class(key) in ("syntactic", "rare"):
            n_false += n_heads
    none = "" if n_false else "; there is none"
    kind = "syntactic or rare-word label"
    if stack_result.labels:
        kind = "label of pairs or rare-word label"
    elif stack_result.stacks != ("encoder",):
        kind = "syntactic label"
    return f" A {kind} there is a false positive{none}."
