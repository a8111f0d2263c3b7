"""The rows of the CSV files of ``classify``: a head, a relation of a head, a reader of a patch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from headscope.analyses.classify.optional.results import HeadCause, PatchEffect, PrefixScore
from headscope.analyses.classify.scores import HeadResult, SyntacticScore
from headscope.stats.effects import columns, estimated_columns

Row = dict[str, Any]


def head_row(head: HeadResult, *, with_stack: bool) -> Row:
    """Return the flat numbers of one head, and what optional parts have measured of it.

    ``with_stack``: with columns for its stack and for cross-attention.
    """
    row = _roles_and_scores(head, with_stack=with_stack)
    if head.cause is not None:
        row |= _losses(head.cause)
    if head.prefix is not None:
        row |= _matches(head.prefix)
    for role, weight in head.registered.items():
        row |= estimated_columns(role, weight)
    return row


def _roles_and_scores(head: HeadResult, *, with_stack: bool) -> Row:
    """Return a head's roles and the scores behind them; None where nothing was measured."""
    best, confirmed = head.best_relation or (None, None)
    row: Row = {"stack": head.stack} if with_stack else {}
    row |= {
        "layer": head.layer,
        "head": head.head,
        "primary": head.primary,
        "roles": " ".join(head.roles),
        "positional_score": head.positional.score.value if head.positional else None,
        "positional_offset": head.positional.offset if head.positional else None,
        "best_relation": f"{best.relation} {best.direction}" if best else None,
        "best_accuracy": confirmed.accuracy.value if confirmed else None,
        "best_baseline": confirmed.baselines[confirmed.strongest] if confirmed else None,
        "best_labelled": best.labelled if best else None,
        "rare_rate": head.rare.rate.value if head.rare else None,
        "rare_chance": head.rare.chance if head.rare else None,
        "rare_uniform": head.rare.uniform if head.rare else None,
        "confidence": head.confidence,
        "entropy": head.entropy,
        "special_mass": head.special_mass,
        "punctuation_mass": head.punctuation_mass,
        "self_rate": head.self_rate,
        "duplicate_rate": head.duplicate_rate,
    }
    if with_stack:
        order = head.alignment
        row |= estimated_columns("alignment", order.score if order else None)
        row |= estimated_columns("alignment_swapped", order.swapped if order else None)
        row["diagonal"] = order.diagonal if order else None
        row["diagonal_uniform"] = order.diagonal_uniform if order else None
        row["confidence_uniform"] = head.sharpness.uniform if head.sharpness else None
        sink = head.first_token
        row |= estimated_columns("first_token", sink.weight if sink else None)
        row |= estimated_columns("first_token_replaced", sink.replaced if sink else None)
    return row


def _losses(cause: HeadCause) -> Row:
    """Return the losses without a head, each with its two intervals."""
    row: Row = {}
    losses = {
        "zero": cause.zero,
        "mean": cause.mean,
        "noise": cause.noise,
        "beyond_noise": cause.beyond_noise,
    }
    for removal, loss in losses.items():
        for field in fields(loss):
            column = "loss" if field.name == "value" else field.name
            row[f"{removal}_{column}"] = getattr(loss, field.name)
    row["zero_estimate"] = cause.zero_estimate
    row["mean_estimate"] = cause.mean_estimate
    return row


def _matches(prefix: PrefixScore) -> Row:
    """Return the weights on the three places of repeated tokens."""
    row: Row = {}
    for target, match in (
        ("after", prefix.after),
        ("same", prefix.same),
        ("before", prefix.before),
    ):
        row[f"{target}_score"] = match.score
        row[f"{target}_control"] = match.control
        row[f"{target}_gain"] = match.gain.value
        row[f"{target}_low"] = match.gain.low
        row[f"{target}_high"] = match.gain.high
    return row


def relation_rows(heads: Sequence[HeadResult]) -> list[Row]:
    """Return a row for each head, relation and direction.

    ``confirmed_...`` are the numbers on the second half of the corpus.
    """
    rows = []
    for head in heads:
        for score in head.syntactic:
            row: Row = {"layer": head.layer, "head": head.head}
            rows.append(row | _whole_corpus(score) | _held_out(score))
    return rows


def _whole_corpus(score: SyntacticScore) -> Row:
    """Return the numbers of a relation on all sentences, each baseline in its own column."""
    row: Row = {
        "relation": score.relation,
        "direction": score.direction,
        "accuracy": score.accuracy.value,
        "accuracy_mean": score.accuracy_mean,
        "baseline": score.baseline,
        "baseline_offset": score.baseline_offset,
        "trials": score.trials,
        "selected": score.selected,
        "labelled": score.labelled,
        "low": score.accuracy.low,
        "high": score.accuracy.high,
    }
    return row | score.baselines


def _held_out(score: SyntacticScore) -> Row:
    """Return what the other half says of a relation; None where it was not selected."""
    confirmed = score.confirmed
    return {
        "confirmed_accuracy": confirmed.accuracy.value if confirmed else None,
        "confirmed_low": confirmed.accuracy.low if confirmed else None,
        "confirmed_high": confirmed.accuracy.high if confirmed else None,
        "confirmed_strongest": confirmed.strongest if confirmed else None,
        "confirmed_baseline": confirmed.baselines[confirmed.strongest] if confirmed else None,
        "confirmed_p_adjusted": confirmed.p_adjusted if confirmed else None,
        "confirmed_trials": confirmed.trials if confirmed else None,
    }


def patched_rows(heads: Sequence[HeadResult]) -> list[Row]:
    """Return a row for every patched head, role and reader."""
    effect_names = [field.name for field in fields(PatchEffect)]
    rows = []
    for head in heads:
        for patch in head.patched:
            role = {"head": head.name, **columns(patch, "role", "detail", "pairs", "follows")}
            rows += [role | columns(effect, *effect_names) for effect in patch.effects]
    return rows
