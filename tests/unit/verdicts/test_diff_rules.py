"""Each rule fires on what it names and on nothing else."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from result_files import changed

from headscope.errors import InputError
from headscope.verdicts.diff.allowed_drop import AllowedDrop
from headscope.verdicts.diff.compare import compare
from headscope.verdicts.diff.rules import RULES, Rule, parse_rules, undecided, with_fired
from headscope.verdicts.reading import results_of


def fired(old: Any, new: Any, *rules: str) -> list[str]:
    found = compare(results_of(old, "old"), results_of(new, "new"))
    return [rule.rule for rule in with_fired(found, parse_rules(rules)).fired]


def planted(documents: Any) -> dict[str, tuple[Any, Any]]:
    """For each rule a pair of results on which it has to fire."""
    d = documents
    role = changed(d["classify"], "heads", 0, "roles", to=["self"])
    worse = changed(d["prune"], "baseline", "value", to=0.1)
    worse = changed(worse, "baseline", "ci", to=[0.05, 0.15])
    tuned = d["transfer"]
    for name, to in (("accuracy", 900.0), ("low", 890.0), ("high", 910.0)):
        tuned = changed(tuned, "cells", 0, name, to=to)
    return {
        "role-changed": (d["classify"], role),
        "role-lost": (role, d["classify"]),
        "metric-drop": (d["prune"], worse),
        "validation": (d["rank"], changed(d["rank"], "validation", "passed", to=False)),
        "insight-changed": (
            d["insights"],
            changed(d["insights"], "insights", 1, "verdict", to="holds"),
        ),
        "insight-lost": (
            d["insights"],
            changed(d["insights"], "insights", 0, "verdict", to="mixed"),
        ),
        "score-moved": (
            d["spectrum"],
            changed(d["spectrum"], "heads", 0, "share_at_k", "mean", to=2.0),
        ),
        "rank-changed": (d["rank"], changed(d["rank"], "heads", 0, "qk", "dims", "90", to=1)),
        "spectrum-changed": (
            d["spectrum"],
            changed(d["spectrum"], "heads", 0, "share_at_k", "mean", to=2.0),
        ),
        "depth-changed": (d["depth"], changed(d["depth"], "variants", "full", 2, to=3.0)),
        "linear-changed": (
            d["linear"],
            changed(
                d["linear"], "heads", 0, "coherence", to={"value": 0.9, "low": 0.89, "high": 0.91}
            ),
        ),
        "symmetric-changed": (
            d["symmetric"],
            changed(
                d["symmetric"], "heads", 0, "asymmetry", to={"value": 9.0, "low": 8.9, "high": 9.1}
            ),
        ),
        "flow-changed": (
            d["flow"],
            changed(d["flow"], "heads", 0, "w_v", "effective_rank", to=1.0),
        ),
        "transfer-changed": (d["transfer"], tuned),
        "missing": ({"rank": d["rank"], "depth": d["depth"]}, {"rank": d["rank"]}),
        "model-changed": (
            d["rank"],
            changed(d["rank"], "provenance", "model", "weights_sha256", to="0"),
        ),
        "data-changed": (d["depth"], changed(d["depth"], "provenance", "data", "sha256", to="0")),
        "schema-changed": (d["rank"], changed(d["rank"], "schema", to=3)),
        "setting-changed": (d["rank"], changed(d["rank"], "provenance", "seed", to=3)),
        "any": (d["rank"], changed(d["rank"], "provenance", "seed", to=3)),
    }


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_fires_on_what_it_names(rule: str, documents: Any) -> None:
    old, new = planted(documents)[rule]
    assert fired(old, new, rule) == [rule]
    assert fired(old, old, rule) == []


def test_rules_do_not_fire_on_what_others_name(documents: Any) -> None:
    general = {"score-moved", "any"}
    for name, (old, new) in planted(documents).items():
        others = [rule for rule in RULES if rule not in {name, *general}]
        allowed = {
            "role-lost": {"role-changed"},
            "insight-lost": {"insight-changed"},
            "score-moved": {"spectrum-changed"},
            "missing": {"depth-changed"},
            "any": {"setting-changed"},
        }.get(name, set())
        assert set(fired(old, new, *others)) <= allowed, name


@pytest.mark.parametrize(
    ("drop", "limit", "fires"),
    [
        (0.2, "0.2", False),  # of 1, in each unit: what is allowed exactly is allowed
        (0.21, "0.2", True),
        (0.2, "20points", False),
        (0.21, "20points", True),
        (0.19, "20%", False),
        (0.21, "20 %", True),
        (0.2, "0", True),
        (-0.3, "0", False),
        (0.0, "0%", False),
    ],
)
def test_a_limit_of_a_drop(drop: float, limit: str, fires: bool, documents: Any) -> None:
    new = changed(documents["prune"], "baseline", "value", to=lambda v: v - drop)
    assert bool(fired(documents["prune"], new, f"metric-drop={limit}")) is fires


@pytest.mark.parametrize(
    ("metric", "old", "new", "fires", "passes", "refused"),
    [
        (
            "cosine",
            0.73,
            0.67,
            ("2%", "8.2%", "0.5points", "5.9points", "0.05"),
            ("8.3%", "6.1points", "0.061", "0.24", "50%"),
            ("0.5", "0.25", "1", "100%", "100points"),
        ),
        (
            "accuracy",
            73.0,
            67.0,
            ("2%", "0.5points", "5.9", "0.005"),
            ("9%", "6.1points", "24", "30points"),
            ("25", "100", "100points"),
        ),
        ("loss", 2.0, 2.5, ("2%", "24%", "0.4", "0"), ("26%", "0.6", "300%"), ("1", "1points")),
    ],
)
def test_a_fall_in_every_unit(
    metric: str,
    old: float,
    new: float,
    fires: tuple[str, ...],
    passes: tuple[str, ...],
    refused: tuple[str, ...],
    documents: Any,
) -> None:
    """The unpruned model falls from 0.73 to 0.67 (x 100; in nats), and nothing else changes."""
    before = changed(documents["prune"], "metric", to=metric)
    before = changed(before, "higher_is_better", to=metric != "loss")
    sides = [changed(before, "baseline", "value", to=value) for value in (old, new)]
    for limit in fires:
        assert fired(*sides, f"metric-drop={limit}") == [f"metric-drop={limit}"]
    for limit in passes:
        assert fired(*sides, f"metric-drop={limit}") == []
    for limit in refused:
        with pytest.raises(InputError, match=rf"metric-drop={limit} would guard nothing .*; give "):
            fired(*sides, f"metric-drop={limit}")


def test_what_the_fall_may_be_is_named(documents: Any) -> None:
    with pytest.raises(InputError) as refused:  # equal results: the rule is refused all the same
        fired(documents["prune"], documents["prune"], "metric-drop=0.5")
    assert str(refused.value) == (
        "metric-drop=0.5 would guard nothing here: cosine goes up to 1, and 0.5 is 50% of that; "
        "give 0.5% (of the old value), 0.5points (0.005 of 1) or a number below 0.25."
    )


def test_without_a_limit_only_a_drop_beyond_the_interval_fires(documents: Any) -> None:
    point = ("curves", 0, "points", 1)
    old = changed(documents["prune"], *point, "ci", to=[0.8, 1.0])
    new = changed(old, *point, "value", to=lambda v: v - 0.05)
    assert fired(old, new, "metric-drop") == []
    assert fired(old, new, "metric-drop=0.01") == ["metric-drop=0.01"]


def test_random_heads_are_no_regression(documents: Any) -> None:
    new = changed(documents["prune"], "curves", 1, "points", 1, "value", to=0.1)
    assert fired(documents["prune"], new, "metric-drop", "metric-drop=0.1") == []


def test_what_is_lost_fires_and_what_never_was_is_noticed(documents: Any) -> None:
    rank = documents["rank"]
    both = {"rank": rank, "classify": documents["classify"]}
    assert fired(both, {"rank": rank}, "role-changed") == ["role-changed"]
    alone = compare(results_of(rank, "old"), results_of(rank, "new"))
    rules = parse_rules(["role-changed", "rank-changed"])
    assert with_fired(alone, rules).fired == ()
    (note,) = undecided(alone, rules)
    assert "role-changed" in note
    assert "classify" in note


def test_metrics_that_cannot_be_compared_fire(documents: Any) -> None:
    new = changed(documents["prune"], "metric", to="accuracy")
    assert fired(documents["prune"], new, "metric-drop=0.5%") == ["metric-drop=0.5%"]


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("metric-drop=0.5", AllowedDrop(0.5)),
        (" metric-drop = 0.5", AllowedDrop(0.5)),
        ("Metric_Drop>0.50", AllowedDrop(0.5)),
        ("metric-drop>2%", AllowedDrop(2, "%")),
        ("metric-drop=2 %", AllowedDrop(2, "%")),
        ("metric-drop=0.5points", AllowedDrop(0.5, "points")),
        ("metric-drop=1 Point", AllowedDrop(1, "points")),
    ],
)
def test_rules_are_read_however_they_are_written(text: str, limit: AllowedDrop) -> None:
    (rule,) = parse_rules([text])
    assert rule == Rule("metric-drop", limit)
    assert parse_rules([str(rule)]) == (rule,)
    assert shlex.split(str(rule)) == [str(rule)]
    assert not set(str(rule)) & set("<>|&;()$`*?[]# ~!{}")  # a shell takes it as it stands


def test_several_rules_in_one_argument() -> None:
    assert parse_rules(["role-lost,any", "any"]) == (Rule("role-lost"), Rule("any"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("role-chnged", "did you mean 'role-changed'"),
        ("metric_dropp>1", "did you mean 'metric-drop'"),
        ("zzz", "rules are role-changed"),
        ("", "no rule ''"),
        ("metric-drop>", "no rule"),
        ("metric-drop>abc", "no number"),
        ("metric-drop>-1", "no number"),
        ("metric-drop>nan", "no number"),
        ("metric-drop=2%%", "no number"),
        ("metric-drop=2percent", "write metric-drop=2%"),
        ("metric-drop=points", "no number"),
        ("metric-drop<1", "no rule"),
        ("role-changed>3", "has no limit"),
        ("metric-drop>1>2", "no"),
    ],
)
def test_rules_that_are_none(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_rules([text])
