"""Each rule fires on what it names and nothing else; each limit passes and fails."""

import shlex
from typing import Any

import pytest
from result_files import changed

from headscope.core.errors import InputError
from headscope.reports.baseline import Measurements, measurements_of
from headscope.reports.bounds import AllowedDrop
from headscope.reports.changes import changes_between
from headscope.reports.limits import Limits, judged
from headscope.reports.reading import Results, results_of
from headscope.reports.result import DiffResult
from headscope.reports.rules import (
    RULES,
    Rule,
    check_rules,
    parse_rules,
    undecided,
    with_fired,
)


def measured(document: Any, name: str) -> Measurements:
    return measurements_of(results_of(document, name))


def diff_of(old: Any, new: Any) -> DiffResult:
    return changes_between(measured(old, "old"), measured(new, "new"))


def fired(old: Any, new: Any, *rules: str) -> list[str]:
    diff = with_fired(diff_of(old, new), parse_rules(rules))
    return [outcome.rule for outcome in diff.fired]


def estimated(value: float) -> dict[str, float]:
    return {"value": value, "low": 0.99 * value, "high": 1.01 * value}


#: For each rule a result, a place in it and a value there on which the rule has to fire.
PLANTED: dict[str, tuple[str, tuple[str | int, ...], Any]] = {
    "role-changed": ("classify", ("heads", 0, "roles"), ["self"]),
    "role-lost": ("classify", ("heads", 0, "roles"), ["self"]),  # the other way round
    "metric-drop": (
        "prune",
        ("baseline",),
        {"value": {"value": 0.1, "low": 0.05, "high": 0.15}, "metrics": {}},
    ),
    "validation": ("rank", ("validation", "passed"), False),
    "insight-changed": ("insights", ("insights", 1, "verdict"), "holds"),
    "insight-lost": ("insights", ("insights", 0, "verdict"), "mixed"),
    "score-moved": ("spectrum", ("heads", 0, "share_at_k"), estimated(2.0)),
    "rank-changed": ("rank", ("heads", 0, "qk", "dims", "90"), 1),
    "spectrum-changed": ("spectrum", ("heads", 0, "share_at_k"), estimated(2.0)),
    "depth-changed": ("depth", ("variants", "full", 2), 3.0),
    "linear-changed": ("linear", ("heads", 0, "coherence"), estimated(0.9)),
    "symmetric-changed": ("symmetric", ("heads", 0, "asymmetry"), estimated(9.0)),
    "flow-changed": ("flow", ("heads", 0, "w_v", "effective_rank"), 1.0),
    "transfer-changed": ("transfer", ("cells", 0, "accuracy"), estimated(900.0)),
    "model-changed": ("rank", ("provenance", "model", "weights_sha256"), "0"),
    "data-changed": ("depth", ("provenance", "data", "sha256"), "0"),
    "schema-changed": ("rank", ("schema",), 3),
    "setting-changed": ("rank", ("provenance", "seed"), 3),
    "any": ("rank", ("provenance", "seed"), 3),
}


def planted(rule: str, documents: Any) -> tuple[Any, Any]:
    """Old and new results on which a rule has to fire."""
    if rule == "missing":
        rank = {"rank": documents["rank"]}
        return {**rank, "depth": documents["depth"]}, rank
    command, path, value = PLANTED[rule]
    plain = documents[command]
    other = changed(plain, *path, to=value)
    return (other, plain) if rule == "role-lost" else (plain, other)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_fires_on_what_it_names_and_on_nothing_else(rule, documents):
    old, new = planted(rule, documents)
    assert fired(old, new, rule) == [rule]
    assert fired(old, old, rule) == []
    other_rules = [other for other in RULES if other not in {rule, "score-moved", "any"}]
    allowed = {
        "role-lost": {"role-changed"},
        "insight-lost": {"insight-changed"},
        "score-moved": {"spectrum-changed"},
        "missing": {"depth-changed"},
        "any": {"setting-changed"},
    }
    assert set(fired(old, new, *other_rules)) <= allowed.get(rule, set())


@pytest.mark.parametrize(
    ("metric", "old_value", "new_value", "fires", "passes", "refused"),
    [
        (
            "cosine",
            0.73,
            0.67,
            "2% 8.2% 0.5points 5.9points 0.05",
            "8.3% 6.1points 0.061 0.24 50%",
            "0.5 0.25 1 100% 100points",
        ),
        ("accuracy", 73.0, 67.0, "2% 0.5points 5.9 0.005", "9% 6 6points 24", "25 100points"),
        ("loss", 2.0, 2.5, "2% 24% 0.4 0", "26% 0.6 300%", "1 1points"),
    ],
)
def test_a_fall_in_every_unit(metric, old_value, new_value, fires, passes, refused, documents):
    """The unpruned model falls from 0.73 to 0.67 (x 100; in nats), and nothing else changes."""
    prune = changed(documents["prune"], "metric", to=metric)
    prune = changed(prune, "higher_is_better", to=metric != "loss")
    old = changed(prune, "baseline", "value", "value", to=old_value)
    new = changed(prune, "baseline", "value", "value", to=new_value)
    for limit in fires.split():
        assert fired(old, new, f"metric-drop={limit}") == [f"metric-drop={limit}"]
    for limit in passes.split():
        assert fired(old, new, f"metric-drop={limit}") == []
    for limit in refused.split():
        with pytest.raises(InputError, match=rf"metric-drop={limit} would guard nothing .*; give "):
            fired(old, new, f"metric-drop={limit}")


def test_a_drop_within_its_interval_is_no_regression_unless_a_bound_is_given(documents):
    point = ("curves", 0, "points", 1, "value")
    old = changed(documents["prune"], *point, to=lambda v: {**v, "low": 0.8, "high": 1.0})
    new = changed(old, *point, "value", to=lambda v: v - 0.05)
    assert fired(old, new, "metric-drop") == []
    assert fired(old, new, "metric-drop=0.01") == ["metric-drop=0.01"]


def test_random_heads_are_no_regression_and_another_metric_is_not_comparable(documents):
    prune = documents["prune"]
    random = changed(prune, "curves", 1, "points", 1, "value", "value", to=0.1)
    assert fired(prune, random, "metric-drop", "metric-drop=0.1") == []
    other_metric = changed(prune, "metric", to="accuracy")
    assert fired(prune, other_metric, "metric-drop=0.5%") == ["metric-drop=0.5%"]


def test_a_result_that_is_lost_fires_and_one_that_never_was_is_named(documents):
    rank = {"rank": documents["rank"]}
    old = {**rank, "classify": documents["classify"]}
    assert fired(old, rank, "role-changed") == ["role-changed"]
    diff = diff_of(rank, rank)
    rules = parse_rules(["role-changed", "rank-changed"])
    assert with_fired(diff, rules).fired == ()
    ((rule, why),) = undecided(diff, rules).items()
    assert rule == "role-changed"
    assert "no result of classify" in why


def test_rules_are_read_however_they_are_written():
    for text, limit in {
        "metric-drop=0.5": AllowedDrop(0.5),
        "Metric_Drop = 0.50": AllowedDrop(0.5),
        "metric-drop=2 %": AllowedDrop(2, "%"),
        "metric-drop=1 Point": AllowedDrop(1, "points"),
    }.items():
        (rule,) = parse_rules([text])
        assert rule == Rule("metric-drop", limit)
        assert parse_rules([str(rule)]) == (rule,)
        assert shlex.split(str(rule)) == [str(rule)]
        assert not set(str(rule)) & set("<>|&;()$`*?[]# ~!{}")  # a shell takes it as it stands
    assert parse_rules(["role-lost,any", "any"]) == (Rule("role-lost"), Rule("any"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("role-chnged", "did you mean 'role-changed'"),
        ("metric-drop=nan", "no number"),
        ("metric-drop>2%", "no rule"),
        ("metric-drop=2percent", "write metric-drop=2%"),
        ("role-changed=3", "has no limit"),
        ("min_positional=3", r"it is a limit on one report: write it in \[limits\]"),
    ],
)
def test_rules_that_are_none(text, words):
    with pytest.raises(InputError, match=words):
        parse_rules([text])


# --- limits: what a report lacks never passes


@pytest.fixture
def report(documents: Any) -> dict[str, Any]:
    classify = changed(documents["classify"], "heads", 0, "roles", to=["positional", "self"])
    return {"schema": 2, "provenance": {}, **documents, "classify": classify}


def limit_failures(
    new: Measurements, limits: Limits, baseline: Measurements | None = None
) -> tuple[str, ...]:
    outcomes, _ = judged(new, limits, baseline)
    return tuple(str(outcome) for outcome in outcomes if outcome.reason)


def failures(report: Any, **table: Any) -> tuple[str, ...]:
    return limit_failures(measured(report, "report.json"), Limits.parse(table))


CASES = [
    ({"validation": True}, None),
    ({"min_positional": 1}, None),
    ({"min_positional": 2}, "min_positional = 2: 1 head is positional"),
    ({"max_without_role": 7}, None),
    ({"max_without_role": 6}, "7 heads have no role"),
    ({"max_false_positives": 0}, None),
    ({"metric_min": 0.99}, None),
    ({"metric_min": 1.5}, "cosine is 1"),
    ({"metric_at_25_percent_drop": 0.1}, None),
    ({"metric_at_25_percent_drop": 0.05}, "cosine is 0.9439 by magnitude"),
    (
        {"metric_at_25_percent_drop": 0.5},
        "0.5 would guard nothing here: cosine goes up to 1; give less than 0.25",
    ),
    ({"metric_at_25_percent_min": 0.96}, "0.9439 by magnitude, 1 unpruned"),
    ({"metric_at_40_percent_min": 0.1}, "no method was measured with 40%"),
    ({"insights": {"7": ["holds", "mixed"]}}, None),
    ({"insights": {"7": "holds"}}, "insight 7 must be holds: it is mixed"),
    ({"insights": {"3": "holds"}}, "not in the report"),
]


@pytest.mark.parametrize(("table", "reason"), CASES, ids=lambda value: str(value)[:40])
def test_limits_pass_and_fail(table, reason, report):
    reasons = failures(report, **table)
    if reason is None:
        assert reasons == ()
    else:
        assert len(reasons) == 1
        assert reason in reasons[0]
    empty = measurements_of(Results("empty"))
    (missing,) = limit_failures(empty, Limits.parse(table))
    assert "no result" in missing


def test_results_that_are_not_validated_and_labels_of_random_weights(report):
    for passed, words in ((None, "depth is not validated"), (False, "depth failed")):
        bad = changed(report, "depth", "validation", "passed", to=passed)
        (reason,) = failures(bad, validation=True)
        assert words in reason
    bad = changed(report, "classify", "control", "false_positives", to=["L0H1 rare"])
    assert "1 with random weights (L0H1 rare)" in failures(bad, max_false_positives=0)[0]
    assert failures(bad, max_false_positives=1) == ()
    without = changed(report, "classify", "control", to=None)
    assert "control = true" in failures(without, max_false_positives=0)[0]


def test_a_loss_is_better_when_it_is_smaller(report):
    loss = changed(report, "prune", "higher_is_better", to=False)
    assert failures(loss, metric_min=2.0) == ()
    assert failures(loss, metric_min=0.5) != ()
    lucky = changed(report, "prune", "curves", 1, "points", 2, "value", "value", to=1.0)
    best = failures(lucky, metric_at_50_percent_min=0.9)[0]
    assert "by magnitude" in best, "random heads are not the best method"
    # Of all methods the one with the smallest loss, and it fell: nothing dropped.
    assert failures(loss, metric_at_50_percent_drop=0.0) == ()
    assert failures(loss, metric_at_50_percent_min=0.5) != ()


def test_a_share_of_one_guards_nothing_of_a_metric_up_to_100(report):
    accuracy = changed(report, "prune", "metric", to="accuracy")
    accuracy = changed(accuracy, "prune", "baseline", "value", "value", to=91.0)
    words = "would guard nothing here: accuracy goes up to 100; give"
    assert f"0.9 {words} 90" in failures(accuracy, metric_min=0.9)[0]
    assert failures(accuracy, metric_min=90.0) == failures(report, metric_min=0.9) == ()
    pruned = failures(accuracy, metric_at_25_percent_min=0.5)  # its value there is still 0.94
    assert f"0.5 {words} 50" in pruned[0]


def test_the_baseline(report):
    limits = Limits.parse({"baseline": "reports/demo", "fail_on": ["role-lost", "metric-drop=0.1"]})
    assert limits.baseline == "reports/demo"
    assert [str(rule) for rule in limits.fail_on] == ["role-lost", "metric-drop=0.1"]
    old = measured(report, "reports/demo")
    assert limit_failures(old, limits, old) == ()
    new = changed(report, "classify", "heads", 0, "roles", to=[])
    new = changed(new, "prune", "baseline", "value", "value", to=0.5)
    reasons = limit_failures(measured(new, "out"), limits, old)
    assert [reason.partition(" ")[0] for reason in reasons] == ["role-lost", "metric-drop=0.1"]
    with pytest.raises(InputError, match="metric-drop=50 would guard nothing"):
        check_rules(parse_rules(["metric-drop=50"]), old.metric)
    check_rules(limits.fail_on, old.metric)
    assert "was not read" in limit_failures(old, limits)[0]
    partial = measured({"rank": report["rank"]}, "partial")
    assert "had nothing to compare" in limit_failures(partial, limits, partial)[0]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"validaton": True}, r"\[limits\] has no limit 'validaton'; did you mean 'validation'"),
        ({"metric_at_150_percent_drop": 1}, "has no limit"),
        ({"role-lost": True}, r"it is a rule for changes: write baseline and fail_on"),
        ({"validation": "yes"}, "must be true or false, not 'yes'"),
        ({"min_positional": -1}, "must be a whole number of 0 or more"),
        ({"metric_at_50_percent_drop": float("nan")}, "must be a number"),
        ({"insights": {"11": "holds"}}, "no insight 11"),
        ({"insights": {"0": "hold"}}, "must be one of holds, does not hold"),
        ({"baseline": "x"}, "needs both baseline and fail_on"),
        ({"baseline": "x", "fail_on": ["anny"]}, "fail_on: There is no rule 'anny'"),
        ({"tolerance": -1}, "tolerance must be a number of 0 or more"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_tables_that_are_wrong(table, words):
    with pytest.raises(InputError, match=words):
        Limits.parse(table)
