"""Planted differences in real results are found, named and nothing else is; equal is silent."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from result_files import changed

from headscope.errors import InputError
from headscope.results.diff import DiffResult
from headscope.show.diff.tables import diff_markdown, diff_report
from headscope.verdicts.diff.compare import compare
from headscope.verdicts.reading import results_of

COMMANDS = ("validate", "classify", "rank", "spectrum", "depth", "prune", "insights")


def diff_of(old: Any, new: Any, **options: Any) -> DiffResult:
    return compare(results_of(old, "old"), results_of(new, "new"), **options)


def parts(diff: DiffResult) -> set[str]:
    """The kinds of differences that were found."""
    names = (
        "missing",
        "added",
        "identity",
        "roles",
        "relations",
        "choices",
        "verdicts",
        "metrics",
        "scores",
        "curves",
        "within",
        "other",
    )
    return {name for name in names if getattr(diff, name)}


def head(document: Any, **values: Any) -> Any:
    """Change fields of the first head."""
    for name, value in values.items():
        document = changed(document, "heads", 0, name, to=value)
    return document


def label(role: str, detail: str = "") -> dict[str, Any]:
    return {
        "role": role,
        "detail": detail,
        "score": 0.95,
        "baseline": 0.1,
        "interval": [0.94, 0.96],
        "p_adjusted": 0.0,
    }


# --- equal --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_a_result_equals_itself_whenever_it_was_made(command: str, documents: Any) -> None:
    old = documents[command]
    new = copy.deepcopy(old)
    new["provenance"] |= {"created": "2031-01-01T00:00:00+00:00", "command": "headscope other"}
    found = diff_of({**old, "provenance": {**old["provenance"], "created": "2020"}}, new)
    assert found.equal
    assert list(diff_report(found)) == []
    assert diff_markdown(found) == ""


def leaves(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths of all numbers that are no identification of the run."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key not in ("provenance", "schema"):
                yield from leaves(value, (*path, key))
    elif isinstance(data, list):
        for i, value in enumerate(data):
            yield from leaves(value, (*path, i))
    elif isinstance(data, int | float) and not isinstance(data, bool):
        yield path


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_number_changes_in_silence(documents: Any, data: st.DataObject) -> None:
    """Whatever number of whatever result is another: it is equal to itself and to nothing else."""
    command = data.draw(st.sampled_from([name for name in COMMANDS if name != "insights"]))
    places = list(leaves(documents[command]))
    place = data.draw(st.sampled_from(places))
    by = data.draw(st.sampled_from([1, 2, 50]))
    new = changed(documents[command], *place, to=lambda old: old + by)
    assert diff_of(new, new).equal
    assert not diff_of(documents[command], new).equal, place
    assert not diff_of(new, documents[command]).equal, place


@pytest.mark.parametrize(("by", "equal"), [(1e-9, True), (1e-7, True), (1e-4, False)])
def test_what_agrees_to_six_digits_is_equal(by: float, equal: bool, documents: Any) -> None:
    new = changed(documents["rank"], "heads", 3, "qk", "stable_rank", to=lambda v: v + by)
    assert diff_of(documents["rank"], new).equal is equal


# --- roles --------------------------------------------------------------------------------------


def test_a_head_that_gains_a_role(documents: Any) -> None:
    old = documents["classify"]
    new = head(old, primary="positional", roles=["positional"], labels=[label("positional", "-1")])
    found = diff_of(old, new)
    assert parts(found) == {"roles"}
    (change,) = found.roles
    assert (change.where, change.gained, change.lost) == ("L0H0", ("positional -1",), ())
    assert (change.old, change.new) == ("none", "positional")
    (back,) = diff_of(new, old).roles
    assert (back.gained, back.lost) == ((), ("positional -1",))


def test_another_offset_is_another_role_and_another_relation_is_not(documents: Any) -> None:
    roles = {"primary": "positional", "roles": ["positional", "syntactic"]}
    old = head(documents["classify"], **roles, labels=[label("positional", "-1")])
    new = head(documents["classify"], **roles, labels=[label("positional", "+1")])
    (change,) = diff_of(old, new).roles
    assert (change.gained, change.lost) == (("positional +1",), ("positional -1",))
    relation = changed(old, "heads", 0, "syntactic", 5, "labelled", to=True)
    found = diff_of(old, relation)
    assert parts(found) == {"relations"}
    score = old["heads"][0]["syntactic"][5]
    assert found.relations[0].gained == (f"{score['relation']} {score['direction']}",)


def test_a_head_that_is_gone_has_lost_its_roles(documents: Any) -> None:
    old = head(documents["classify"], roles=["self"], labels=[label("self")])
    new = {**old, "heads": old["heads"][1:]}
    found = diff_of(old, new)
    assert [(c.where, c.lost, c.new) for c in found.roles] == [("L0H0", ("self",), "no such head")]
    assert found.missing == ("classify: L0H0",)
    assert diff_of(new, old).added == ("classify: L0H0",)


# --- numbers ------------------------------------------------------------------------------------


def scored(documents: Any, value: float, interval: list[float]) -> Any:
    return changed(
        changed(documents["classify"], "heads", 2, "positional", "score", to=value),
        "heads",
        2,
        "positional",
        "interval",
        to=interval,
    )


@pytest.mark.parametrize(
    ("interval", "beyond"),
    [([0.59, 0.7], False), ([0.6, 0.7], False), ([0.61, 0.7], True), ([0.2, 0.29], True)],
)
def test_intervals_decide(interval: list[float], beyond: bool, documents: Any) -> None:
    old = scored(documents, 0.5, [0.3, 0.6])
    found = diff_of(old, scored(documents, sum(interval) / 2, interval))
    assert [(c.where, c.name) for c in found.scores] == (
        [("L2", "")] * 0 if not beyond else [("L0H2", "positional score")]
    )
    assert found.within == (0 if beyond else 1)


def test_an_interval_on_one_side_serves_both(documents: Any) -> None:
    """A mean has an interval only while its role is earned."""
    plain = head(documents["classify"], self_rate=0.85)
    near = head(documents["classify"], self_rate=0.92, labels=[label("self")])
    wide = changed(near, "heads", 0, "labels", 0, "interval", to=[0.8, 1.0])
    assert [c.name for c in diff_of(plain, near).scores] == ["self rate"]
    assert diff_of(plain, wide).scores == ()
    assert diff_of(wide, plain).scores == ()


def test_the_interval_of_broad_belongs_to_the_entropy_of_long_sentences(documents: Any) -> None:
    """Its score is ``long_entropy``, a share; ``entropy`` is in nats, over all sentences."""
    broad = {**label("broad"), "interval": [0.7, 0.9]}
    old = head(documents["classify"], long_entropy=0.8, entropy=2.0, labels=[broad])
    assert diff_of(old, head(old, long_entropy=0.88)).scores == ()
    (change,) = diff_of(old, head(old, long_entropy=0.55, labels=[])).scores
    assert (change.name, change.old_interval) == ("long entropy", (0.7, 0.9))
    (change,) = diff_of(old, head(old, entropy=2.08)).scores
    assert (change.name, change.old_interval) == ("entropy", None)


@pytest.mark.parametrize(
    ("old", "new", "tolerance", "beyond"),
    [
        (0.5, 0.509, 0.01, False),
        (0.5, 0.511, 0.01, True),
        (30.0, 30.29, 0.01, False),
        (30.0, 30.5, 0.01, True),
        (30.0, 30.5, 0.05, False),
        (0.5, 0.5001, 0.0, True),
    ],
)
def test_the_tolerance_decides_where_there_is_no_interval(
    old: float, new: float, tolerance: float, beyond: bool, documents: Any
) -> None:
    place = ("heads", 1, "ov", "effective_rank")
    found = diff_of(
        changed(documents["rank"], *place, to=old),
        changed(documents["rank"], *place, to=new),
        tolerance=tolerance,
    )
    assert [(c.where, c.name) for c in found.scores] == [("L0H1", "ov effective")] * beyond
    assert found.within == (not beyond)


def test_a_number_that_appears_or_goes_has_moved(documents: Any) -> None:
    new = changed(documents["rank"], "heads", 1, "asymmetry", to=None)
    (change,) = diff_of(documents["rank"], new).scores
    assert change.new is None
    assert diff_of(new, documents["rank"]).scores[0].old is None


def test_dimensions_of_heads_and_layers(documents: Any) -> None:
    new = changed(documents["rank"], "heads", 7, "qk", "dims", "90", to=lambda v: v - 1)
    new = changed(new, "layers", 1, "w_q", "numerical_rank", "value", to=1)
    found = diff_of(documents["rank"], new)
    assert {(c.where, c.name) for c in found.scores} == {
        ("L1H3", "qk dims 90"),
        ("layer 1", "w_q numerical"),
    }


# --- metrics and curves -------------------------------------------------------------------------


def test_a_curve_of_pruning_that_sinks(documents: Any) -> None:
    place = ("curves", 0, "points", 2)
    old = documents["prune"]
    new = changed(old, *place, "value", to=lambda v: v - 0.2)
    new = changed(new, *place, "ci", to=lambda ci: [ci[0] - 0.2, ci[1] - 0.2])
    new = changed(new, *place, "metrics", "cosine", to=lambda v: v - 0.2)
    (change,) = diff_of(old, new).metrics
    assert (change.where, change.name) == ("magnitude, 50% removed", "cosine")
    assert change.beyond
    assert change.worsening == pytest.approx(0.2)
    (better,) = diff_of(new, old).metrics
    assert better.worsening == pytest.approx(-0.2)


def test_a_loss_that_rises_is_worse_and_random_heads_are_neither(documents: Any) -> None:
    old = changed(documents["prune"], "higher_is_better", to=False)
    up = changed(old, "baseline", "value", to=lambda v: v + 0.5)
    assert diff_of(old, up).metrics[0].worsening == pytest.approx(0.5)
    random = changed(old, "curves", 1, "points", 1, "value", to=0.1)
    assert diff_of(old, random).metrics[0].worsening is None


def test_other_heads_removed(documents: Any) -> None:
    removed = documents["prune"]["curves"][0]["points"][1]["heads_removed"]
    other = next([i, j] for i in range(2) for j in range(4) if [i, j] not in removed)
    place = ("curves", 0, "points", 1, "heads_removed")
    found = diff_of(
        documents["prune"], changed(documents["prune"], *place, to=lambda v: [other, *v[1:]])
    )
    assert parts(found) == {"choices"}
    assert found.choices[0].gained == ("L{}H{}".format(*other),)
    assert found.choices[0].lost == ("L{}H{}".format(*removed[0]),)


def test_a_depth_curve_names_its_farthest_point(documents: Any) -> None:
    curve = ("variants", "attention")
    old = documents["depth"]
    new = changed(old, *curve, 1, to=lambda v: v + 0.9)
    new = changed(new, *curve, 2, to=lambda v: v + 0.5)
    found = diff_of(old, new)
    (change,) = found.curves
    assert (change.where, change.beyond, change.points) == ("attention", 2, 3)
    assert change.worst.where == "attention, L0"


def test_a_depth_curve_within_its_standard_error(documents: Any) -> None:
    """std / sqrt(4 windows) * 1.96 on both sides: 0.9 of a standard deviation is within."""
    old = changed(documents["depth"], "std", "full", 1, to=0.1)
    new = changed(old, "variants", "full", 1, to=lambda v: v + 0.19)
    assert parts(diff_of(old, new)) == {"within"}
    far = changed(old, "variants", "full", 1, to=lambda v: v + 0.2)
    assert parts(diff_of(old, far)) == {"curves"}


def test_shares_and_verdicts_of_spectra(documents: Any) -> None:
    old = documents["spectrum"]
    new = changed(old, "heads", 4, "share_at_k", "mean", to=lambda v: v / 2)
    new = changed(new, "verdict", "low_rank", to=["L1H0"])
    found = diff_of(changed(old, "verdict", "low_rank", to=[]), new)
    assert [(c.where, c.name) for c in found.scores] == [("L1H0", "share at k")]
    assert [(v.where, v.new) for v in found.verdicts] == [("L1H0", "low rank")]


def test_verdicts_of_insights(documents: Any) -> None:
    new = changed(documents["insights"], "insights", 1, "verdict", to="holds")
    found = diff_of(documents["insights"], new)
    assert parts(found) == {"verdicts"}
    assert found.verdicts[0].where == "insight 7"
    assert (found.verdicts[0].old, found.verdicts[0].new) == ("mixed", "holds")


@pytest.mark.parametrize("command", COMMANDS[1:])
def test_a_certificate_that_is_lost(command: str, documents: Any) -> None:
    new = changed(documents[command], "validation", "passed", to=None)
    found = diff_of(documents[command], new)
    assert [v.name for v in found.verdicts] == ["certificate"]
    assert found.not_valid == (f"{command}: not validated",)


# --- what was measured --------------------------------------------------------------------------


def test_model_data_and_schema_come_first(documents: Any) -> None:
    old = documents["classify"]
    new = changed(old, "provenance", "seed", to=9)
    new = changed(new, "thresholds", "positional", to=0.8)
    new = changed(new, "provenance", "data", "sha256", to="0" * 64)
    new = changed(new, "provenance", "model", "weights_sha256", to="1" * 64)
    new = changed(new, "schema", to=1)
    found = diff_of(old, new)
    assert [row.what for row in found.identity][:3] == ["schema", "model", "data"]
    assert {row.name for row in found.identity[3:]} == {"seed", "threshold positional"}
    lines = diff_markdown(found).splitlines()
    words = ("DIFFERENT SCHEMA", "DIFFERENT MODEL", "DIFFERENT DATA", "Setting")
    at = [next(i for i, line in enumerate(lines) if word in line) for word in words]
    assert at == sorted(at)


def test_the_last_digit_of_a_checksum_counts(documents: Any) -> None:
    place = ("provenance", "model", "weights_sha256")
    new = changed(documents["rank"], *place, to=lambda v: v[:-1] + "x")
    assert [row.what for row in diff_of(documents["rank"], new).identity] == ["model"]


def test_another_path_to_the_same_weights_is_a_setting(documents: Any) -> None:
    new = changed(documents["rank"], "provenance", "model", "id", to="./elsewhere")
    found = diff_of(documents["rank"], new)
    assert [(row.what, row.name) for row in found.identity] == [("setting", "model id")]


def test_how_texts_were_embedded_is_a_setting(documents: Any) -> None:
    place = ("provenance", "model", "pooling")
    old = changed(documents["prune"], *place, to=None)  # older results say nothing: the mean
    means = changed(old, *place, to="mean, normalize")
    assert diff_of(old, means).identity == ()
    (row,) = diff_of(means, changed(old, *place, to="cls, normalize")).identity
    assert (row.what, row.name, row.old, row.new) == ("setting", "pooling", "mean", "cls")


def test_the_same_difference_of_several_results_is_said_once(documents: Any) -> None:
    old = {name: documents[name] for name in ("classify", "rank", "depth")}
    new = {
        name: changed(data, "provenance", "model", "weights_sha256", to="1" * 64)
        for name, data in old.items()
    }
    (row,) = diff_of(old, new).identity
    assert row.sections == ("classify", "rank", "depth")


def test_results_of_different_commands_cannot_be_compared(documents: Any) -> None:
    with pytest.raises(InputError, match="nothing to compare"):
        diff_of(documents["rank"], documents["depth"])


def test_two_results_of_a_later_schema_are_refused(documents: Any) -> None:
    later = changed(documents["rank"], "schema", to=7)
    with pytest.raises(InputError, match="schemas 7 and 7"):
        diff_of(later, later)


def test_sections_of_one_side_are_named(documents: Any) -> None:
    old = {"rank": documents["rank"], "depth": documents["depth"]}
    found = diff_of(old, {"rank": documents["rank"], "prune": documents["prune"]})
    assert (found.missing, found.added) == (("depth",), ("prune",))
    assert found.compared == ("rank",)
