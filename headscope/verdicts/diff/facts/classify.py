"""The facts of ``headscope classify``."""

from __future__ import annotations

from collections.abc import Iterator

from headscope.results.causes import Causes
from headscope.results.classify import ClassifyResult, ControlResult, HeadResult
from headscope.results.roles import ROLES, role_in
from headscope.verdicts.diff.facts.fact import Facts, Number

#: Numbers of a head, and the role whose label gives each an interval.
_MEANS = {
    "confidence": "sharp",
    "entropy": "",
    "relative_entropy": "",
    "special_mass": "special",
    "first_special_mass": "",
    "last_special_mass": "",
    "punctuation_mass": "punctuation",
    "self_rate": "self",
    "duplicate_rate": "duplicate",
}


def collect(result: ClassifyResult, facts: Facts) -> None:
    """Add every head's roles, relations and numbers, and what the controls found."""
    for head in result.heads:
        relations = (f"{s.relation} {s.direction}" for s in head.syntactic if s.labelled)
        facts.label(head.name, "roles", _roles(head), head.primary)
        facts.label(head.name, "relations", relations)
        for name, number in (*_numbers(head), *_removed(head)):
            facts.number(head.name, name, number)
    if result.control is not None:
        _control(result.control, facts)
    if result.causes is not None:
        _causes(result.causes, facts)
    for role in result.norms.roles if result.norms is not None else ():
        where = f"norm-weighted {role_in(role.role, role.stack)}"
        facts.label(where, "heads that keep the role", role.kept)


def settings(result: ClassifyResult) -> dict[str, object]:
    """Return the corpus and the thresholds."""
    corpus = result.corpus
    return {
        "pairs" if corpus.pairs else "sentences": corpus.sentences,
        "stacks": ", ".join(result.stacks),
        "language": corpus.language,
        "frequencies": corpus.frequencies,
        **_asked(result),
        **{f"threshold {name}": value for name, value in result.thresholds.items()},
    }


def _asked(result: ClassifyResult) -> dict[str, object]:
    """Return what heads were removed on; nothing where they were not."""
    found: dict[str, object] = {"norm-weighted": True} if result.norms is not None else {}
    if result.causes is not None:
        causes = result.causes
        found |= {"removal task": causes.task, "removal examples": causes.examples}
    return found


def _roles(head: HeadResult) -> Iterator[str]:
    """A head's roles; which position and which special token belong to the role itself."""
    details = {label.role: label.detail for label in head.labels if label.detail}
    for role in head.roles:
        detail = details.get(role) if role in ("positional", "special") else ""
        yield f"{role} {detail}" if detail else role


def _numbers(head: HeadResult) -> Iterator[tuple[str, Number]]:
    if head.positional is not None:
        yield "positional score", Number.within(head.positional.score, head.positional.interval)
    if head.rare is not None:
        yield "rare-word rate", Number.within(head.rare.rate, head.rare.interval)
    if head.alignment is not None:
        order = head.alignment
        yield "alignment", Number.within(order.score, order.interval)
        swapped = Number.within(order.swapped, order.swapped_interval or None)
        yield "alignment, swapped sources", swapped
        yield "diagonal", Number.within(order.diagonal, None)
    for score in head.syntactic:
        number = Number.within(score.accuracy, score.interval)
        yield f"{score.relation} {score.direction}, all sentences", number
    intervals = {label.role: label.interval for label in head.labels}
    if head.sharpness is not None:  # labelled or not
        intervals["sharp"] = head.sharpness.interval
    for name, role in _MEANS.items():
        yield name.replace("_", " "), Number.within(getattr(head, name), intervals.get(role))
    if head.long_entropy is not None:  # files of earlier versions lack it
        yield "long entropy", Number.within(head.long_entropy, intervals.get("broad"))


def _removed(head: HeadResult) -> Iterator[tuple[str, Number]]:
    """Losses without the head, and gains on repeated tokens, where they were measured."""
    for name in ("zero", "mean", "noise", "beyond_noise") if head.cause is not None else ():
        effect = getattr(head.cause, name)
        said = f"loss when removed, {name.replace('_', ' ')}"
        yield said, Number.within(effect.loss, effect.interval)
    for name in ("after", "same", "before") if head.prefix is not None else ():
        match = getattr(head.prefix, name)
        yield f"repeated tokens, {name}", Number.within(match.gain, match.interval)


def _causes(causes: Causes, facts: Facts) -> None:
    for test in causes.tests:
        number = Number.within(test.superiority, test.interval)
        facts.number(f"removed, {test.removal}", f"{test.role} against others", number)
    for fit in causes.fits:
        number = Number.within(fit.spearman, fit.interval)
        facts.number(f"removed, {fit.removal}", "gradients' rank correlation", number)


def _control(control: ControlResult, facts: Facts) -> None:
    if control.swapped is not None:
        facts.number("swapped trees", "syntactic labels", Number(control.swapped.labels))
    if not control.random_weights:
        return
    stacks = control.by_stack or {"": {r.key: getattr(control, r.key) for r in ROLES}}
    for stack, counts in stacks.items():
        where = f"random weights, {stack}" if stack else "random weights"
        for role in ROLES:
            if (count := counts.get(role.key)) is not None:
                facts.number(where, f"{role.key} heads", Number(count))
