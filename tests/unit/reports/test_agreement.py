"""Labels that two classifications share, Cohen's kappa and counts of roles, by plain loops too."""

import dataclasses
import random

import numpy as np
import pytest
from scipy import stats
from tiny_models import tiny_bert

import headscope
from headscope.analyses.classify.result import ClassifyResult
from headscope.core.serialise import to_dict
from headscope.reports.compare import can_differ, compare, is_apart
from headscope.reports.compare_view import answer, compare_markdown


@pytest.fixture(scope="module")
def classified(tmp_path_factory) -> ClassifyResult:
    folder = tiny_bert(tmp_path_factory.mktemp("agreement") / "bert", layers=3)
    return headscope.classify(str(folder), limit=120)


def relabelled(result, seed, share=0.1):
    """Give every head other labels, drawn at random; a tenth of all relations, a third of roles."""
    draw = random.Random(seed)
    heads = []
    for head in result.heads:
        syntactic = tuple(
            dataclasses.replace(score, labelled=draw.random() < share) for score in head.syntactic
        )
        roles = tuple(key for key in ("positional", "broad", "own_token") if draw.random() < 0.3)
        heads.append(dataclasses.replace(head, syntactic=syntactic, roles=roles))
    return dataclasses.replace(result, heads=tuple(heads), untestable={"broad": "too short"})


def every_label(result):
    """(head, group, label, whether it has it) of all that a head could be called."""
    for head in result.heads:
        for score in head.syntactic:
            name = f"{score.relation} {score.direction}"
            yield head.name, score.relation, name, score.labelled
        for role in result.possible_roles:
            if role.key not in ("broad", "syntactic"):  # not testable; counted by relation
                yield head.name, role.name, role.key, role.key in head.roles


def slow_kappa(pairs):
    agreed = sum(a == b for a, b in pairs) / len(pairs)
    first = sum(a for a, _ in pairs) / len(pairs)
    other = sum(b for _, b in pairs) / len(pairs)
    chance = first * other + (1 - first) * (1 - other)
    return (agreed - chance) / (1 - chance) if chance < 1 else np.nan


def slowly(first, other):
    """By group: labels of both, shared ones, and kappa with the jackknife over heads."""
    rows = [
        (head, group, had, has)
        for (head, group, _, had), (_, _, _, has) in zip(
            every_label(first), every_label(other), strict=True
        )
    ]
    table = {}
    for group in ["all labels", *dict.fromkeys(group for _, group, _, _ in rows)]:
        mine = [row for row in rows if group in ("all labels", row[1])]
        pairs = [(had, has) for _, _, had, has in mine]
        counts = [sum(a for a, _ in pairs), sum(b for _, b in pairs), pairs.count((True, True))]
        if not counts[0] and not counts[1]:
            continue
        without = [
            slow_kappa([(had, has) for name, _, had, has in mine if name != head.name])
            for head in first.heads
        ]
        n = len(without)
        error = np.sqrt((n - 1) / n * np.square(np.array(without) - np.mean(without)).sum())
        half = stats.t.ppf(0.975, n - 1) * error
        table[group] = (*counts, slow_kappa(pairs), half)
    return table


def test_shared_labels_and_kappa_by_group(classified):
    first = relabelled(classified, 1)
    other = relabelled(classified, 2)
    (agreement,) = compare([first, other]).agreement
    assert (agreement.first, agreement.other, agreement.heads) == ("A", "B", 12)
    expected = slowly(first, other)
    rows = {row.what: row for row in (agreement.labels, *agreement.groups)}
    assert rows.keys() == expected.keys()
    for name, (n_first, n_other, shared, kappa, half) in expected.items():
        row = rows[name]
        assert (row.first, row.other, row.shared) == (n_first, n_other, shared)
        assert row.kappa.value == pytest.approx(kappa)
        if np.isnan(half) or half == 0:
            assert row.kappa.interval is None
        else:
            assert row.kappa.low == pytest.approx(max(kappa - half, -1))
            assert row.kappa.high == pytest.approx(min(kappa + half, 1))
    assert agreement.labels.kappa.interval is not None
    said = f"A and B share {agreement.labels.shared} labels of {agreement.labels.first} and "
    assert said in compare_markdown(compare([first, other]))


def test_kappa_is_unknown_where_it_says_nothing(classified):
    first = relabelled(classified, 1)
    (same,) = compare([first, first]).agreement
    assert (same.labels.kappa.value, same.labels.kappa.interval) == (1.0, None)  # never zero wide
    none = relabelled(classified, 1, share=0.0)
    none = dataclasses.replace(
        none, heads=tuple(dataclasses.replace(head, roles=()) for head in none.heads)
    )
    (without,) = compare([none, none]).agreement
    assert without.labels.kappa.value is None
    assert without.groups == ()
    # Short JSON has no relation without a label, so nothing is known of the others.
    brief = [
        dataclasses.replace(
            result,
            heads=tuple(
                dataclasses.replace(
                    head, syntactic=tuple(score for score in head.syntactic if score.labelled)
                )
                for head in result.heads
            ),
        )
        for result in (first, relabelled(classified, 2))
    ]
    (short,) = compare(brief).agreement
    assert short.labels.kappa.value is None
    fewer = dataclasses.replace(first, heads=first.heads[:8])
    assert compare([first, fewer]).agreement == ()  # other heads


def test_counts_of_roles_are_tested_over_heads(classified):
    first = relabelled(classified, 1)
    gains = [
        dataclasses.replace(head, roles=("positional",) if i < 10 else ())
        for i, head in enumerate(first.heads)
    ]
    losses = [dataclasses.replace(head, roles=()) for head in first.heads]
    more = dataclasses.replace(first, heads=tuple(gains))
    fewer = dataclasses.replace(first, heads=tuple(losses))
    rows = {row.what: row for row in compare([fewer, more]).rows}
    n_testable = sum(row.p_adjusted is not None for row in rows.values())
    p = stats.binomtest(10, 10, 0.5).pvalue  # ten heads gain the role, and none loses it
    positional = rows["positional heads"]
    assert positional.p_adjusted == pytest.approx(p * n_testable)
    assert is_apart(positional)
    assert rows["self heads"].p_adjusted == 1.0
    assert not is_apart(rows["self heads"])
    assert not can_differ(rows["broad heads"])  # not testable in either
    assert not can_differ(rows["heads with no role on this corpus"])
    assert answer(compare([fewer, more])).startswith(f"1 of {n_testable} numbers and verdicts")


def test_of_different_heads_nothing_is_counted_that_cannot_differ(classified):
    fewer = dataclasses.replace(classified, heads=classified.heads[:8])
    compared = compare([classified, fewer])
    assert all(row.p_adjusted is None for row in compared.rows)
    assert "could be called clearly different" in answer(compared)
    assert to_dict(compared)["agreement"] == []
