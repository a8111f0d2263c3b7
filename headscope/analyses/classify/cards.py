"""What one head does: its mark on maps, and its card with a sentence, numbers and labels."""

from __future__ import annotations

from collections.abc import Iterator

from headscope.analyses.classify.result import ClassifyResult
from headscope.analyses.classify.roles import role_class, role_name, role_of
from headscope.analyses.classify.scores import HeadResult, Label
from headscope.show.cells import decimal, interval_text, p_text
from headscope.show.page.parts import Card
from headscope.stats.estimate import JointEstimate

#: The baselines of a syntactic label, in words
_BASELINES = {
    "offset": "always the same distance",
    "first": "always the first word",
    "last": "always the last word",
    "uniform": "evenly spread attention",
    "kernel": "the head's mean attention by distance",
}


def baseline_name(key: str) -> str:
    """Say in words what a baseline of a syntactic label does."""
    return _BASELINES.get(key, key)


#: The sentence of a role that comes without one
_ANY_ROLE = "{words}: {score:.2f}, and {baseline:.2f} would be expected without it."
#: Where the tokens of a repeated sequence can look.
PLACES = {
    "after": "after it (induction)",
    "same": "at the earlier copy",
    "before": "before it (mirrored)",
}


def primary_label(head: HeadResult) -> Label | None:
    """Return the first label of a head's primary role."""
    return next((label for label in head.labels if label.role == head.primary), None)


def head_sentence(head: HeadResult) -> str:
    """Say in plain words what a head does on the corpus, with its rate and what it must beat."""
    label = primary_label(head)
    if label is None:
        return _without_role(head)
    role = role_of(label.role)
    text = (role.sentence or _ANY_ROLE).format(
        words=role.words[:1].upper() + role.words[1:],
        score=float(label.score),
        baseline=label.baseline,
        detail=role.detail(label.detail),
        against=baseline_name(label.against),
    )
    further = [role_name(key) for key in head.roles if key != head.primary]
    return f"{text} Also: {', '.join(further)}." if further else text


def _without_role(head: HeadResult) -> str:
    """Say what comes nearest to a role, of a head that has none."""
    sentences = ["Earned no role on this corpus."]
    if head.best_relation is not None:
        best, confirmed = head.best_relation
        sentences.append(
            f"Its best relation is {best.relation} ({best.direction}), right "
            f"{float(confirmed.accuracy):.0%} of the time on held-out sentences; the best rule of "
            f"thumb is right in {confirmed.baselines[confirmed.strongest]:.0%}."
        )
    elif head.first_token is not None and head.first_token.weight.value is not None:
        sentences.append(
            f"It puts {head.first_token.weight.value:.0%} of its attention on the first token."
        )
    elif head.special_mass is not None:
        sentences.append(f"It puts {head.special_mass:.0%} of its attention on special tokens.")
    return " ".join(sentences)


def head_numbers(head: HeadResult) -> list[tuple[str, str, str]]:
    """Return up to three numbers as (what it is, its value, what to compare it with)."""
    numbers = []
    label = primary_label(head)
    if label is not None:
        numbers.append(
            (role_name(label.role), f"{float(label.score):.2f}", f"baseline {label.baseline:.2f}")
        )
    elif head.positional is not None and head.positional.score.value is not None:
        chance = f"chance {decimal(head.positional.chance, 2)}"
        numbers.append(("best fixed distance", decimal(head.positional.score.value, 2), chance))
    if head.relative_entropy is not None:
        entropy = decimal(head.relative_entropy, 2)
        numbers.append(("spread of attention", entropy, "1 is evenly spread"))
    if head.cause is not None:
        loss = float(head.cause.zero)
        noise = float(head.cause.noise)
        numbers.append(("loss when removed", f"{loss:.2g}", f"noise of its size {noise:.2g}"))
    elif head.special_mass is not None:
        share = decimal(head.special_mass, 2)
        numbers.append(("on special tokens", share, "share of its attention"))
    return numbers


def describe_offset(offset: int) -> str:
    """Say an offset in words: -1 is ``previous token``."""
    if offset == -1:
        return "previous token"
    if offset == 1:
        return "next token"
    direction = "back" if offset < 0 else "ahead"
    return f"{abs(offset)} tokens {direction}"


def mark_of(head: HeadResult) -> str:
    """Write a head's primary role in at most five characters: ``syn``, ``-1``, ``CLS``.

    Roles without a mark of their own are shown by their label's detail.
    """
    role = role_of(head.primary)
    if role.mark:
        return role.mark
    label = primary_label(head)
    detail = label.detail if label else ""
    special_tokens = {"first": "CLS", "last": "SEP"}
    return special_tokens.get(detail, detail)


def offset_text(head: HeadResult) -> str:
    """Say in words where a head looks most; empty where nothing was counted."""
    offset = head.positional.offset if head.positional else None
    return "" if offset is None else describe_offset(offset)


def head_cards(stack_result: ClassifyResult) -> Iterator[Card]:
    """Yield a card for each head of one stack: roles, labels with baselines, scores."""
    for head in stack_result.heads:
        yield Card(
            head.layer,
            head.head,
            stack=head.stack,
            primary=role_class(head.primary),
            mark=mark_of(head),
            sentence=head_sentence(head),
            mean=head.mean_pattern,
            numbers=head_numbers(head),
            keys=list(head.roles),
            roles=[role_name(role) for role in head.roles],
            labels=[_label_cells(head, label) for label in head.labels],
            facts=list(_facts(head)),
            values={
                "positional": head.positional.score.value if head.positional else None,
                "confidence": head.confidence,
                "entropy": head.entropy,
                "special": head.special_mass,
                "removal": head.cause.zero.value if head.cause else None,
                "induction": head.prefix.after.gain.value if head.prefix else None,
            },
        )


def _label_cells(head: HeadResult, label: Label) -> list[str]:
    """Write a label as a row of the card: role, detail, score, baseline, interval, p."""
    detail = offset_text(head) if label.role == "positional" else ""
    return [
        role_name(label.role),
        detail or label.detail,
        decimal(label.score.value),
        f"{decimal(label.baseline)} {label.against}".strip(),
        interval_text(label.score.interval),
        p_text(label.p_adjusted),
    ]


def _facts(head: HeadResult) -> Iterator[tuple[str, str]]:
    """Yield the lines of a head's card."""
    if head.positional is not None:
        best_offset = decimal(head.positional.score.value)
        if offset_text(head):
            best_offset += f" ({offset_text(head)})"
        yield "Best offset", best_offset
    if head.syntactic and head.best_relation is None:
        yield "Best relation", "none was selected"
    elif head.best_relation is not None:
        best, confirmed = head.best_relation  # numbers of the held-out half, as in the labels
        yield (
            "Best relation",
            f"{best.relation} {best.direction} {decimal(confirmed.accuracy.value)} on held-out "
            f"sentences, strongest baseline {decimal(confirmed.baselines[confirmed.strongest])} "
            f"({confirmed.strongest})",
        )
    if head.alignment is not None:
        swapped = f", swapped sources {decimal(head.alignment.swapped.value)}"
        yield "Alignment", f"{decimal(head.alignment.score.value)}{swapped}"
    if head.rare is not None:
        yield "Rarest word", f"{decimal(head.rare.rate.value)}, chance {decimal(head.rare.chance)}"
    yield "Confidence", decimal(head.confidence)
    yield "Entropy", f"{decimal(head.entropy)} nats"
    if head.first_token is not None:
        yield (
            "Mass on the first token",
            f"{decimal(head.first_token.weight.value)}, with another token there "
            f"{decimal(head.first_token.replaced.value)}",
        )
    yield "Mass on special tokens", decimal(head.special_mass)
    if head.punctuation_mass is not None:
        yield "Mass on punctuation", decimal(head.punctuation_mass)
    for key, weight in head.registered.items():
        yield f"Weight, {role_name(key)}", decimal(weight.value)
    if head.cause is not None:
        zero = head.cause.zero
        mean = float(head.cause.mean)
        noise = float(head.cause.noise)
        yield (
            "Loss when removed",
            f"{loss_text(float(zero))} ({loss_interval(zero)}); replaced by its mean "
            f"{loss_text(mean)}, noise of its size {loss_text(noise)}",
        )
    for patch in head.patched:
        gains = [f"{effect.reader} {decimal(effect.gain.value)}" for effect in patch.effects]
        yield f"Is {patch.detail} carried?", ", ".join([patch.verdict, *gains])
    if head.prefix is not None:
        gains = [f"{name} {float(getattr(head.prefix, name).gain):+.3f}" for name in PLACES]
        yield "Repeated tokens, gain", ", ".join(gains)


def loss_text(loss: float) -> str:
    """Write a loss: most are far below 0.1."""
    return f"{loss:.4f}" if abs(loss) < 10 else f"{loss:.2f}"


def loss_interval(effect: JointEstimate) -> str:
    """Write the interval of a loss."""
    return interval_text(effect.interval, loss_text)
