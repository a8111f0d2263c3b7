"""Whatever a file holds: a comparison, or one clear sentence."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from result_files import changed
from rich.console import Console

from headscope.errors import InputError
from headscope.results import to_json
from headscope.show.diff.tables import diff_files, diff_report
from headscope.verdicts.diff.compare import compare
from headscope.verdicts.diff.rules import RULES, parse_rules, undecided, with_fired
from headscope.verdicts.limits import Limits, limit_failures
from headscope.verdicts.reading import results_of

JUNK: list[Any] = [
    *(None, [], {}, "", 1e149, -1e149, "x\x1b[2J|<b>\u202e", -1, 0, 3, 1e308, -1e308, 10**40, True),
    *([[1]], {"a": [None]}, [0.9, 0.1], [1e308, 1e308]),
]
LIMITS = Limits.parse(
    {
        **{"validation": True, "min_self": 1, "max_false_positives": 0, "max_without_role": 1},
        **{"metric_min": 0.1, "metric_at_50_percent_drop": 0.1, "insights": {"0": "holds"}},
        **{"baseline": "old", "fail_on": list(RULES)},
    }
)


def nodes(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths of everything in a document."""
    if path:
        yield path
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from nodes(value, (*path, key))


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), junk=st.sampled_from(JUNK), reverse=st.booleans())
def test_junk_anywhere(documents, data, junk, reverse):
    command = data.draw(st.sampled_from(sorted(documents)))
    place = data.draw(st.sampled_from(list(nodes(documents[command]))))
    whole = copy.deepcopy(documents[command])
    sides = [whole, changed(whole, *place, to=copy.deepcopy(junk))]
    if reverse:
        sides.reverse()
    try:
        old, new = (results_of(side, name) for side, name in zip(sides, "ab", strict=True))
        found = with_fired(compare(old, new), parse_rules(RULES))
    except InputError:
        return
    finally:
        assert whole == documents[command], "what is compared is not changed"
    limit_failures(new, LIMITS, old)
    undecided(found, parse_rules(RULES))
    with open("/dev/null", "w") as nowhere:
        Console(file=nowhere, width=80).print(*diff_report(found))
    for text in diff_files(found).values():
        assert b"\x1b" not in text
    json.loads(to_json(found))
    assert whole == documents[command], "what is shown is not changed"


@pytest.mark.parametrize("junk", [[], [{"name": "heads", "shape": [], "rows": [], "columns": []}]])
def test_a_step_without_its_matrix_is_refused(junk, documents):
    steps = documents["explain"]["steps"]
    mix = [step["key"] for step in steps].index("mix")
    document = changed(documents["explain"], "steps", mix, "matrices", to=junk)
    with pytest.raises(InputError, match=r"new \(explain\) is damaged"):
        results_of(document, "new")


def test_provenance_of_another_shape(documents):
    for command in ("classify", "rank", "spectrum", "depth", "prune"):
        old = results_of(documents[command], "old")
        for junk in ({}, {"model": 3, "data": "x"}, {"model": {"removed_heads": 7}, "data": []}):
            document = changed(documents[command], "provenance", to=junk)
            found = compare(old, results_of(document, "new"))
            assert found.identity
            assert list(diff_report(found))
