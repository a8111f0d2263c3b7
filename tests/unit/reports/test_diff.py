"""Planted differences in real results are found, named and nothing else is; equal is silent."""

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from result_files import changed
from rich.console import Console

from headscope.core.errors import InputError
from headscope.core.serialise import to_json
from headscope.reports.baseline import baseline_json, read_side
from headscope.reports.compare import changes_between
from headscope.reports.compare_view import diff_files, diff_report
from headscope.reports.limits import Limits, judged
from headscope.reports.reading import results_of
from headscope.reports.result import DiffResult
from headscope.reports.rules import RULES, parse_rules, undecided, with_fired

COMMANDS = ("validate", "classify", "rank", "spectrum", "depth", "prune")
KINDS = "missing added identity roles relations choices verdicts metrics scores curves within other"


def saved(results):
    """Keep results as baseline.json does, and read that again."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "baseline.json"
        path.write_text(baseline_json(results), "utf-8", "surrogatepass")
        return replace(read_side(path), name=results.name)


def diff_of(old: Any, new: Any, **options: Any) -> DiffResult:
    return changes_between(results_of(old, "old"), results_of(new, "new"), **options)


def parts(diff: DiffResult) -> set[str]:
    """The kinds of differences that were found."""
    return {name for name in KINDS.split() if getattr(diff, name)}


def head(document: Any, **values: Any) -> Any:
    """Change fields of the first head."""
    for name, value in values.items():
        document = changed(document, "heads", 0, name, to=value)
    return document


def label(role: str, detail: str = "", interval: Any = (0.94, 0.96)) -> dict[str, Any]:
    score = {"value": 0.95, "low": interval[0], "high": interval[1]}
    return {"role": role, "detail": detail, "score": score, "baseline": 0.1, "p_adjusted": 0.0}


def nodes(
    data: Any, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Everything in a document, with its path."""
    if path:
        yield path, data
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from nodes(value, (*path, key))


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_number_changes_in_silence(documents, data):
    """Whatever number of whatever result is another: it is equal to itself and to nothing else."""
    command = data.draw(st.sampled_from(COMMANDS))
    places = [
        path
        for path, value in nodes(documents[command])
        if type(value) in (int, float) and not {"provenance", "schema"} & {*path}
    ]
    place = data.draw(st.sampled_from(places))
    by = data.draw(st.sampled_from([1, 2, 50]))
    new = changed(documents[command], *place, to=lambda old: old + by)
    assert diff_of(new, new).equal
    assert not diff_of(documents[command], new).equal, place
    assert not diff_of(new, documents[command]).equal, place


def test_a_head_that_gains_or_loses_a_role(documents):
    plain = documents["classify"]
    roles = {"primary": "positional", "roles": ["positional"]}
    old = head(plain, **roles, labels=[label("positional", "-1")])
    found = diff_of(plain, old)
    assert parts(found) == {"roles"}
    (change,) = found.roles
    assert (change.where, change.gained, change.lost) == ("L0H0", ("positional -1",), ())
    assert (change.old, change.new) == ("none", "positional")
    (back,) = diff_of(old, plain).roles
    assert (back.gained, back.lost) == ((), ("positional -1",))

    other = head(plain, **roles, labels=[label("positional", "+1")])  # another offset
    (change,) = diff_of(old, other).roles
    assert (change.gained, change.lost) == (("positional +1",), ("positional -1",))
    found = diff_of(old, changed(old, "heads", 0, "syntactic", 5, "labelled", to=True))
    assert parts(found) == {"relations"}, "another relation is not another role"
    score = old["heads"][0]["syntactic"][5]
    assert found.relations[0].gained == (f"{score['relation']} {score['direction']}",)

    gone = {**old, "heads": old["heads"][1:]}
    found = diff_of(old, gone)
    lost = [("L0H0", ("positional -1",), "no such head")]
    assert [(c.where, c.lost, c.new) for c in found.roles] == lost
    assert found.missing == diff_of(gone, old).added == ("classify: L0H0",)


def test_whose_interval_it_is(documents):
    """A mean has an interval only while its role is earned; one side's serves both."""
    plain = head(documents["classify"], self_rate=0.85)
    near = head(documents["classify"], self_rate=0.92, labels=[label("self")])
    wide = head(near, labels=[label("self", interval=(0.8, 1.0))])
    assert [c.name for c in diff_of(plain, near).scores] == ["self rate"]
    assert diff_of(plain, wide).scores == diff_of(wide, plain).scores == ()
    # The score of broad is ``long_entropy``, a share; ``entropy`` is in nats, over all sentences.
    broad = label("broad", interval=(0.7, 0.9))
    old = head(documents["classify"], long_entropy=0.8, entropy=2.0, labels=[broad])
    assert diff_of(old, head(old, long_entropy=0.88)).scores == ()
    (change,) = diff_of(old, head(old, long_entropy=0.55, labels=[])).scores
    assert (change.name, change.old_interval) == ("long entropy", (0.7, 0.9))
    (change,) = diff_of(old, head(old, entropy=2.08)).scores
    assert (change.name, change.old_interval) == ("entropy", None)


def test_intervals_decide_and_the_tolerance_where_there_is_none(documents):
    def scored(value: float, ends: list[float]) -> Any:
        score = {"value": value, "low": ends[0], "high": ends[1]}
        return changed(documents["classify"], "heads", 2, "positional", "score", to=score)

    for interval, beyond in (
        ([0.59, 0.7], False),
        ([0.6, 0.7], False),
        ([0.61, 0.7], True),
        ([0.2, 0.29], True),
    ):
        found = diff_of(scored(0.5, [0.3, 0.6]), scored(sum(interval) / 2, interval))
        assert [(c.where, c.name) for c in found.scores] == [("L0H2", "positional score")] * beyond
        assert found.within == (not beyond)
    place = ("heads", 1, "ov", "effective_rank")
    for old, new, tolerance, beyond in (
        (0.5, 0.509, 0.01, False),
        (0.5, 0.511, 0.01, True),
        (30.0, 30.5, 0.01, True),
        (0.5, 0.5001, 0.0, True),
    ):
        sides = [changed(documents["rank"], *place, to=value) for value in (old, new)]
        found = diff_of(*sides, tolerance=tolerance)
        assert [(c.where, c.name) for c in found.scores] == [("L0H1", "ov effective")] * beyond
        assert found.within == (not beyond)


def test_a_curve_of_pruning(documents):
    place = ("curves", 0, "points", 2)
    old = documents["prune"]
    new = changed(old, *place, "value", to=lambda v: {end: v[end] - 0.2 for end in v})
    new = changed(new, *place, "metrics", "cosine", to=lambda v: v - 0.2)
    (change,) = diff_of(old, new).metrics
    assert (change.where, change.name) == ("magnitude, 50% removed", "cosine")
    assert change.beyond
    assert change.worsening == pytest.approx(0.2)
    (better,) = diff_of(new, old).metrics
    assert better.worsening == pytest.approx(-0.2)
    loss = changed(old, "higher_is_better", to=False)  # that rises is worse
    up = changed(loss, "baseline", "value", "value", to=lambda v: v + 0.5)
    assert diff_of(loss, up).metrics[0].worsening == pytest.approx(0.5)
    random = changed(loss, "curves", 1, "points", 1, "value", "value", to=0.1)
    assert diff_of(loss, random).metrics[0].worsening is None, "random heads are neither"

    removed = old["curves"][0]["points"][1]["heads_removed"]
    other = next([i, j] for i in range(2) for j in range(4) if [i, j] not in removed)
    place = ("curves", 0, "points", 1, "heads_removed")
    found = diff_of(old, changed(old, *place, to=lambda v: [other, *v[1:]]))
    assert parts(found) == {"choices"}
    assert found.choices[0].gained == ("L{}H{}".format(*other),)
    assert found.choices[0].lost == ("L{}H{}".format(*removed[0]),)


def test_a_depth_curve_names_its_farthest_point_beyond_its_standard_error(documents):
    curve = ("variants", "attention")
    new = changed(documents["depth"], *curve, 1, to=lambda v: v + 0.9)
    (change,) = diff_of(documents["depth"], changed(new, *curve, 2, to=lambda v: v + 0.5)).curves
    assert (change.where, change.beyond, change.points) == ("attention", 2, 3)
    assert change.worst.where == "attention, L0"
    # std / sqrt(9 windows) * 2.306 (Student's t) on both sides; 4 windows have no interval.
    four = changed(documents["depth"], "std", "full", 1, to=0.1)
    moved = changed(four, "variants", "full", 1, to=lambda v: v + 0.1)
    assert parts(diff_of(four, moved)) == {"curves"}
    old = changed(four, "sequences", to=9)
    for by, kind in ((0.15, "within"), (0.16, "curves")):
        moved = changed(old, "variants", "full", 1, to=lambda v, by=by: v + by)
        assert parts(diff_of(old, moved)) == {kind}


def test_verdicts_of_spectra_and_insights(documents):
    old = documents["spectrum"]
    new = changed(old, "heads", 4, "share_at_k", to={"value": 0.1, "low": 0.09, "high": 0.11})
    new = changed(new, "verdict", "low_rank", to=["L1H0"])
    found = diff_of(changed(old, "verdict", "low_rank", to=[]), new)
    assert [(c.where, c.name) for c in found.scores] == [("L1H0", "share at k")]
    assert [(v.where, v.new) for v in found.verdicts] == [("L1H0", "low rank")]
    new = changed(documents["insights"], "insights", 1, "verdict", to="holds")
    found = diff_of(documents["insights"], new)
    assert parts(found) == {"verdicts"}
    (verdict,) = found.verdicts
    assert (verdict.where, verdict.old, verdict.new) == ("insight 7", "mixed", "holds")


def test_model_data_and_schema_come_first(documents):
    old = documents["classify"]
    new = changed(old, "provenance", "seed", to=9)
    new = changed(new, "thresholds", "positional", to=0.8)
    new = changed(new, "provenance", "data", "sha256", to="0" * 64)
    new = changed(new, "provenance", "model", "weights_sha256", to="1" * 64)
    found = diff_of(old, changed(new, "schema", to=1))
    assert [row.what for row in found.identity][:3] == ["schema", "model", "data"]
    assert {row.name for row in found.identity[3:]} == {"seed", "threshold positional"}


def test_what_else_is_said_of_model_and_settings(documents):
    weights = ("provenance", "model", "weights_sha256")
    last_digit = changed(documents["rank"], *weights, to=lambda v: v[:-1] + "x")
    assert [row.what for row in diff_of(documents["rank"], last_digit).identity] == ["model"]
    elsewhere = changed(documents["rank"], "provenance", "model", "id", to="./elsewhere")
    (row,) = diff_of(documents["rank"], elsewhere).identity
    assert (row.what, row.name) == ("setting", "model id"), "another path to the same weights"
    place = ("provenance", "model", "pooling")
    old = changed(documents["prune"], *place, to=None)  # older results say nothing: the mean
    means = changed(old, *place, to="mean, normalize")
    assert diff_of(old, means).identity == ()
    (row,) = diff_of(means, changed(old, *place, to="cls, normalize")).identity
    assert (row.what, row.name, row.old, row.new) == ("setting", "pooling", "mean", "cls")
    several = {name: documents[name] for name in ("classify", "rank", "depth")}
    new = {name: changed(data, *weights, to="1" * 64) for name, data in several.items()}
    (row,) = diff_of(several, new).identity  # is said once
    assert row.sections == ("classify", "rank", "depth")


def test_what_cannot_be_compared(documents):
    rank = documents["rank"]
    with pytest.raises(InputError, match="nothing to compare"):
        diff_of(rank, documents["depth"])
    later = changed(rank, "schema", to=7)
    with pytest.raises(InputError, match="schemas 7 and 7"):
        diff_of(later, later)
    sides = ({"rank": rank, other: documents[other]} for other in ("depth", "prune"))
    found = diff_of(*sides)
    assert (found.missing, found.added, found.compared) == (("depth",), ("prune",), ("rank",))


JUNK: list[Any] = [
    None,
    [],
    {},
    "",
    1e149,
    -1e149,
    "x\x1b[2J|<b>\u202e",
    -1,
    0,
    3,
    1e308,
    -1e308,
    10**40,
    True,
    [[1]],
    {"a": [None]},
    [0.9, 0.1],
    [1e308, 1e308],
]
LIMITS = Limits.parse(
    {
        **{"validation": True, "min_self": 1, "max_false_positives": 0, "max_without_role": 1},
        **{"metric_min": 0.1, "metric_at_50_percent_drop": 0.1, "insights": {"0": "holds"}},
        **{"baseline": "old", "fail_on": list(RULES)},
    }
)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), junk=st.sampled_from(JUNK), reverse=st.booleans())
def test_junk_anywhere(documents, data, junk, reverse):
    command = data.draw(st.sampled_from(sorted(documents)))
    place = data.draw(st.sampled_from([path for path, _ in nodes(documents[command])]))
    whole = copy.deepcopy(documents[command])
    sides = [whole, changed(whole, *place, to=copy.deepcopy(junk))]
    if reverse:
        sides.reverse()
    try:
        old, new = (results_of(side, name) for side, name in zip(sides, "ab", strict=True))
        found = with_fired(changes_between(old, new), parse_rules(RULES))
    except InputError:
        return
    finally:
        assert whole == documents[command], "what is compared is not changed"
    judged(new, LIMITS, old)
    again = changes_between(saved(old), saved(new))
    assert (again.roles, again.verdicts) == (found.roles, found.verdicts)
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


def test_a_baseline_says_what_the_results_say(documents):
    """Whatever moves, a comparison with the small file is that with the results themselves."""
    new = changed(documents["classify"], "heads", 0, "roles", to=["rare"])
    new = changed(new, "heads", 1, "entropy", to=lambda value: value + 1)
    new = changed(new, "provenance", "seed", to=9)
    prune = changed(documents["prune"], "baseline", "value", "value", to=0.5)
    new = {**documents, "classify": new, "prune": prune}
    old = results_of(documents, "old")
    new = results_of(new, "new")
    rules = parse_rules(RULES)
    plain, small = (with_fired(changes_between(side, new), rules) for side in (old, saved(old)))
    assert replace(small, metrics=(), scores=()) == replace(plain, metrics=(), scores=())
    for mine, other in zip(
        sorted((*small.metrics, *small.scores), key=str),
        sorted((*plain.metrics, *plain.scores), key=str),
        strict=True,
    ):
        assert (mine.where, mine.name, mine.beyond) == (other.where, other.name, other.beyond)
        assert mine.old == pytest.approx(other.old, rel=1e-6)
    assert {fired.rule for fired in small.fired} >= {"role-changed", "metric-drop", "any"}
    assert len(baseline_json(old)) < len(to_json(documents)) / 4


def test_a_baseline_that_is_damaged_or_of_a_later_version(documents, tmp_path):
    text = baseline_json(results_of(documents, "old"))
    path = tmp_path / "x.json"
    for bad, words in (
        (text.replace('"baseline":3', '"baseline":7'), "version 3, not 7. Another version"),
        (text.replace('"metric":', '"metrik":'), "has no field 'metric'"),
        (text.replace('"facts":{', '"facts":[{', 1), "not whole"),
        (text.replace('"certificate":"passed"', '"certificate":7', 1), "not an object"),
        (
            text.replace('"certificate":"passed"', '"certificate":{"value":"x"}', 1),
            "is not a number",
        ),
    ):
        path.write_text(bad)
        with pytest.raises(InputError, match=re.escape(str(path))) as caught:
            read_side(path)
        assert words in str(caught.value)
