"""Each limit passes and fails on planted reports; what a report lacks never passes."""

import re
from typing import Any

import pytest
from result_files import changed

from headscope.core.errors import InputError
from headscope.reports.baseline import side_of
from headscope.reports.limits import Limits, judged
from headscope.reports.reading import Results, results_of
from headscope.reports.rules import check_rules, parse_rules


@pytest.fixture
def report(documents: Any) -> dict[str, Any]:
    classify = changed(documents["classify"], "heads", 0, "roles", to=["positional", "self"])
    return {"schema": 2, "provenance": {}, **documents, "classify": classify}


def limit_failures(new: Results, limits: Limits, baseline: Any = None) -> tuple[str, ...]:
    return tuple(str(outcome) for outcome in judged(new, limits, baseline)[0] if outcome.reason)


def failures(report: Any, **table: Any) -> tuple[str, ...]:
    return limit_failures(results_of(report, "report.json"), Limits.parse(table))


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
    ({"metric_at_25_percent_drop": 0.05}, "cosine is 0.9438 by magnitude"),
    ({"metric_at_25_percent_drop": 0.5}, "so much of cosine guards nothing; give less than 0.25"),
    ({"metric_at_25_percent_min": 0.96}, "0.9438 by magnitude, 1 unpruned"),
    ({"metric_at_40_percent_min": 0.1}, "no method was measured with 40%"),
    ({"insights": {"7": ["holds", "mixed"]}}, None),
    ({"insights": {"7": "holds"}}, "insight 7 must be holds: it is mixed"),
    ({"insights": {"3": "holds"}}, "not in the report"),
]


@pytest.mark.parametrize(("table", "reason"), CASES, ids=lambda value: str(value)[:40])
def test_limits_pass_and_fail(table, reason, report):
    found = failures(report, **table)
    assert len(found) == (reason is not None)
    assert reason is None or reason in found[0]
    (missing,) = limit_failures(Results("empty"), Limits.parse(table))
    assert re.search("no result|no insights", missing)


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
    assert "so 0.9 guards nothing; give 90" in failures(accuracy, metric_min=0.9)[0]
    assert failures(accuracy, metric_min=90.0) == failures(report, metric_min=0.9) == ()
    found = failures(accuracy, metric_at_25_percent_min=0.5)  # its value there is still 0.94
    assert "so 0.5 guards nothing; give 50" in found[0]


def test_the_baseline(report):
    limits = Limits.parse({"baseline": "reports/demo", "fail_on": ["role-lost", "metric-drop=0.1"]})
    assert limits.baseline == "reports/demo"
    assert [str(rule) for rule in limits.fail_on] == ["role-lost", "metric-drop=0.1"]
    old = results_of(report, "reports/demo")
    assert limit_failures(old, limits, old) == ()
    new = changed(report, "classify", "heads", 0, "roles", to=[])
    new = changed(new, "prune", "baseline", "value", "value", to=0.5)
    found = limit_failures(results_of(new, "out"), limits, old)
    assert [reason.partition(" ")[0] for reason in found] == ["role-lost", "metric-drop=0.1"]
    with pytest.raises(InputError, match="metric-drop=50 would guard nothing"):
        check_rules(parse_rules(["metric-drop=50"]), side_of(old).metric)
    check_rules(limits.fail_on, side_of(old).metric)
    assert "was not read" in limit_failures(old, limits)[0]
    partial = results_of({"rank": report["rank"]}, "partial")
    assert "had nothing to compare" in limit_failures(partial, limits, partial)[0]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"validaton": True}, r"\[limits\] has no limit 'validaton'; did you mean 'validation'"),
        ({"metric_at_150_percent_drop": 1}, "has no limit"),
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
