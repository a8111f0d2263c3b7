"""Planted differences in real results are found, named and nothing else is; equal is silent."""

import copy
import itertools
import json
import re
from collections.abc import Iterable, Iterator
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
from headscope.reports.baseline import (
    Measurements,
    baseline_json,
    measurements_of,
    read_measurements,
)
from headscope.reports.changes import changes_between
from headscope.reports.diff_view import diff_files, diff_report
from headscope.reports.limits import Limits, judged
from headscope.reports.reading import results_of
from headscope.reports.result import DiffResult
from headscope.reports.rules import RULES, parse_rules, undecided, with_fired

COMMANDS = ("validate", "classify", "rank", "spectrum", "depth", "prune")
DIFFERENCES = (
    "missing added identity roles relations choices verdicts metrics scores curves within other"
)


def saved(measurements: Measurements) -> Measurements:
    """Keep measurements as baseline.json does, and read that again."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "baseline.json"
        path.write_text(baseline_json(measurements), "utf-8", "surrogatepass")
        return replace(read_measurements(path), name=measurements.name)


def measured(document: Any, name: str) -> Measurements:
    return measurements_of(results_of(document, name))


def diff_of(old: Any, new: Any, **options: Any) -> DiffResult:
    return changes_between(measured(old, "old"), measured(new, "new"), **options)


def kinds_of(diff: DiffResult) -> set[str]:
    """The kinds of differences that were found."""
    return {name for name in DIFFERENCES.split() if getattr(diff, name)}


def with_head(document: Any, **values: Any) -> Any:
    """Change fields of the first head."""
    for name, value in values.items():
        document = changed(document, "heads", 0, name, to=value)
    return document


def label(role: str, detail: str = "", low: float = 0.94, high: float = 0.96) -> dict[str, Any]:
    score = {"value": 0.95, "low": low, "high": high}
    return {"role": role, "detail": detail, "score": score, "baseline": 0.1, "p_adjusted": 0.0}


def nodes(
    data: Any, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Everything in a document, with its path."""
    if path:
        yield path, data
    inner: Iterable[tuple[str | int, Any]] = ()
    if isinstance(data, dict):
        inner = data.items()
    elif isinstance(data, list):
        inner = enumerate(data)
    for key, value in inner:
        yield from nodes(value, (*path, key))


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_number_changes_in_silence(documents, data):
    """Whatever number of whatever result is another: it is equal to itself and to nothing else."""
    command = data.draw(st.sampled_from(COMMANDS))
    paths = [
        path
        for path, value in nodes(documents[command])
        if type(value) in (int, float) and not {"provenance", "schema"} & {*path}
    ]
    path = data.draw(st.sampled_from(paths))
    shift = data.draw(st.sampled_from([1, 2, 50]))
    new = changed(documents[command], *path, to=lambda old: old + shift)
    assert diff_of(new, new).equal
    assert not diff_of(documents[command], new).equal, path
    assert not diff_of(new, documents[command]).equal, path


def test_a_head_that_gains_or_loses_a_role(documents):
    plain = documents["classify"]
    roles = {"primary": "positional", "roles": ["positional"]}
    old = with_head(plain, **roles, labels=[label("positional", "-1")])
    diff = diff_of(plain, old)
    assert kinds_of(diff) == {"roles"}
    (change,) = diff.roles
    assert (change.where, change.gained, change.lost) == ("L0H0", ("positional -1",), ())
    assert (change.old, change.new) == ("none", "positional")
    (back,) = diff_of(old, plain).roles
    assert (back.gained, back.lost) == ((), ("positional -1",))

    other_offset = with_head(plain, **roles, labels=[label("positional", "+1")])
    (change,) = diff_of(old, other_offset).roles
    assert (change.gained, change.lost) == (("positional +1",), ("positional -1",))
    diff = diff_of(old, changed(old, "heads", 0, "syntactic", 5, "labelled", to=True))
    assert kinds_of(diff) == {"relations"}, "another relation is not another role"
    score = old["heads"][0]["syntactic"][5]
    assert diff.relations[0].gained == (f"{score['relation']} {score['direction']}",)


def test_a_head_that_is_gone_has_lost_its_roles(documents):
    roles = {"primary": "positional", "roles": ["positional"]}
    old = with_head(documents["classify"], **roles, labels=[label("positional", "-1")])
    gone = {**old, "heads": old["heads"][1:]}
    diff = diff_of(old, gone)
    (change,) = diff.roles
    assert (change.where, change.lost, change.new) == ("L0H0", ("positional -1",), "no such head")
    assert diff.missing == diff_of(gone, old).added == ("classify: L0H0",)


def test_whose_interval_it_is(documents):
    """A mean has an interval only while its role is earned; that of one result serves the other."""
    plain = with_head(documents["classify"], self_rate=0.85)
    near = with_head(documents["classify"], self_rate=0.92, labels=[label("self")])
    wide = with_head(near, labels=[label("self", low=0.8, high=1.0)])
    assert [change.name for change in diff_of(plain, near).scores] == ["self rate"]
    assert diff_of(plain, wide).scores == diff_of(wide, plain).scores == ()
    # The score of broad is ``long_entropy``, a share; ``entropy`` is in nats, over all sentences.
    broad = label("broad", low=0.7, high=0.9)
    old = with_head(documents["classify"], long_entropy=0.8, entropy=2.0, labels=[broad])
    assert diff_of(old, with_head(old, long_entropy=0.88)).scores == ()
    (change,) = diff_of(old, with_head(old, long_entropy=0.55, labels=[])).scores
    assert (change.name, change.old_interval) == ("long entropy", (0.7, 0.9))
    (change,) = diff_of(old, with_head(old, entropy=2.08)).scores
    assert (change.name, change.old_interval) == ("entropy", None)


@pytest.mark.parametrize(
    ("low", "high", "beyond"),
    [(0.59, 0.7, False), (0.6, 0.7, False), (0.61, 0.7, True), (0.2, 0.29, True)],
)
def test_a_number_has_moved_when_its_intervals_lie_apart(low, high, beyond, documents):
    path = ("heads", 2, "positional", "score")
    old_score = {"value": 0.5, "low": 0.3, "high": 0.6}
    new_score = {"value": (low + high) / 2, "low": low, "high": high}
    old = changed(documents["classify"], *path, to=old_score)
    diff = diff_of(old, changed(old, *path, to=new_score))
    scores = [(change.where, change.name) for change in diff.scores]
    assert scores == ([("L0H2", "positional score")] if beyond else [])
    assert diff.within == (0 if beyond else 1)


@pytest.mark.parametrize(
    ("old", "new", "tolerance", "beyond"),
    [
        (0.5, 0.509, 0.01, False),
        (0.5, 0.511, 0.01, True),
        (30.0, 30.5, 0.01, True),
        (0.5, 0.5001, 0.0, True),
    ],
)
def test_without_intervals_the_tolerance_decides(old, new, tolerance, beyond, documents):
    path = ("heads", 1, "ov", "effective_rank")
    old_rank = changed(documents["rank"], *path, to=old)
    new_rank = changed(documents["rank"], *path, to=new)
    diff = diff_of(old_rank, new_rank, tolerance=tolerance)
    scores = [(change.where, change.name) for change in diff.scores]
    assert scores == ([("L0H1", "ov effective")] if beyond else [])
    assert diff.within == (0 if beyond else 1)


def test_a_point_of_a_pruning_curve(documents):
    point = ("curves", 0, "points", 2)
    old = documents["prune"]
    new = changed(old, *point, "value", to=lambda v: {name: v[name] - 0.2 for name in v})
    new = changed(new, *point, "metrics", "cosine", to=lambda v: v - 0.2)
    (change,) = diff_of(old, new).metrics
    assert (change.where, change.name) == ("magnitude, 50% removed", "cosine")
    assert change.beyond
    assert change.worsening == pytest.approx(0.2)
    (better,) = diff_of(new, old).metrics
    assert better.worsening == pytest.approx(-0.2)


def test_a_loss_that_rises_is_worse_and_random_heads_are_neither(documents):
    loss = changed(documents["prune"], "higher_is_better", to=False)
    risen = changed(loss, "baseline", "value", "value", to=lambda v: v + 0.5)
    assert diff_of(loss, risen).metrics[0].worsening == pytest.approx(0.5)
    random = changed(loss, "curves", 1, "points", 1, "value", "value", to=0.1)
    assert diff_of(loss, random).metrics[0].worsening is None


def test_a_head_that_pruning_chooses_in_place_of_another(documents):
    old = documents["prune"]
    removed = old["curves"][0]["points"][1]["heads_removed"]
    heads = [list(head) for head in itertools.product(range(2), range(4))]
    new_head = next(head for head in heads if head not in removed)
    path = ("curves", 0, "points", 1, "heads_removed")
    diff = diff_of(old, changed(old, *path, to=[new_head, *removed[1:]]))
    assert kinds_of(diff) == {"choices"}
    assert diff.choices[0].gained == ("L{}H{}".format(*new_head),)
    assert diff.choices[0].lost == ("L{}H{}".format(*removed[0]),)


def test_a_depth_curve_names_its_farthest_point(documents):
    curve = ("variants", "attention")
    new = changed(documents["depth"], *curve, 1, to=lambda v: v + 0.9)
    new = changed(new, *curve, 2, to=lambda v: v + 0.5)
    (change,) = diff_of(documents["depth"], new).curves
    assert (change.where, change.beyond, change.points) == ("attention", 2, 3)
    assert change.worst.where == "attention, L0"


@pytest.mark.parametrize(
    ("sequences", "shift", "kind"),
    [
        (9, 0.15, "within"),  # 0.1 / sqrt(9 windows) * 2.306 (Student's t), on both sides
        (9, 0.16, "curves"),
        (4, 0.1, "curves"),  # too few windows for an interval
    ],
)
def test_a_point_of_a_depth_curve_has_the_interval_of_its_deviation(
    sequences, shift, kind, documents
):
    old = changed(documents["depth"], "std", "full", 1, to=0.1)
    old = changed(old, "sequences", to=sequences)
    new = changed(old, "variants", "full", 1, to=lambda v: v + shift)
    assert kinds_of(diff_of(old, new)) == {kind}


def test_verdicts_of_spectra_and_insights(documents):
    old = documents["spectrum"]
    new = changed(old, "heads", 4, "share_at_k", to={"value": 0.1, "low": 0.09, "high": 0.11})
    new = changed(new, "verdict", "low_rank", to=["L1H0"])
    diff = diff_of(changed(old, "verdict", "low_rank", to=[]), new)
    assert [(change.where, change.name) for change in diff.scores] == [("L1H0", "share at k")]
    assert [(change.where, change.new) for change in diff.verdicts] == [("L1H0", "low rank")]
    new = changed(documents["insights"], "insights", 1, "verdict", to="holds")
    diff = diff_of(documents["insights"], new)
    assert kinds_of(diff) == {"verdicts"}
    (verdict,) = diff.verdicts
    assert (verdict.where, verdict.old, verdict.new) == ("insight 7", "mixed", "holds")


def test_model_data_and_schema_come_first(documents):
    old = documents["classify"]
    new = changed(old, "provenance", "seed", to=9)
    new = changed(new, "thresholds", "positional", to=0.8)
    new = changed(new, "provenance", "data", "sha256", to="0" * 64)
    new = changed(new, "provenance", "model", "weights_sha256", to="1" * 64)
    diff = diff_of(old, changed(new, "schema", to=1))
    assert [row.what for row in diff.identity][:3] == ["schema", "model", "data"]
    assert {row.name for row in diff.identity[3:]} == {"seed", "threshold positional"}


def test_what_tells_one_model_from_another(documents):
    rank = documents["rank"]
    weights = ("provenance", "model", "weights_sha256")
    last_digit = changed(rank, *weights, to=lambda v: v[:-1] + "x")
    assert [row.what for row in diff_of(rank, last_digit).identity] == ["model"]
    elsewhere = changed(rank, "provenance", "model", "id", to="./elsewhere")
    (row,) = diff_of(rank, elsewhere).identity
    assert (row.what, row.name) == ("setting", "model id"), "another path to the same weights"
    # A difference that several results share is said once.
    old = {name: documents[name] for name in ("classify", "rank", "depth")}
    new = {name: changed(document, *weights, to="1" * 64) for name, document in old.items()}
    (row,) = diff_of(old, new).identity
    assert row.sections == ("classify", "rank", "depth")


def test_pooling_that_older_results_do_not_state_is_the_mean(documents):
    path = ("provenance", "model", "pooling")
    old = changed(documents["prune"], *path, to=None)
    means = changed(old, *path, to="mean, normalize")
    assert diff_of(old, means).identity == ()
    (row,) = diff_of(means, changed(old, *path, to="cls, normalize")).identity
    assert (row.what, row.name, row.old, row.new) == ("setting", "pooling", "mean", "cls")


def test_what_cannot_be_compared(documents):
    rank = documents["rank"]
    with pytest.raises(InputError, match="nothing to compare"):
        diff_of(rank, documents["depth"])
    later = changed(rank, "schema", to=7)
    with pytest.raises(InputError, match="schemas 7 and 7"):
        diff_of(later, later)
    old = {"rank": rank, "depth": documents["depth"]}
    new = {"rank": rank, "prune": documents["prune"]}
    diff = diff_of(old, new)
    assert (diff.missing, diff.added, diff.compared) == (("depth",), ("prune",), ("rank",))


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
        "validation": True,
        "min_self": 1,
        "max_false_positives": 0,
        "max_without_role": 1,
        "metric_min": 0.1,
        "metric_at_50_percent_drop": 0.1,
        "insights": {"0": "holds"},
        "baseline": "old",
        "fail_on": list(RULES),
    }
)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), junk=st.sampled_from(JUNK), reverse=st.booleans())
def test_junk_anywhere(documents, data, junk, reverse):
    """Whatever stands anywhere in a result, it is compared, judged, shown and kept, or refused."""
    command = data.draw(st.sampled_from(sorted(documents)))
    path = data.draw(st.sampled_from([path for path, _ in nodes(documents[command])]))
    intact = copy.deepcopy(documents[command])
    old_document = intact
    new_document = changed(intact, *path, to=copy.deepcopy(junk))
    if reverse:
        old_document, new_document = new_document, old_document
    try:
        old = measured(old_document, "old")
        new = measured(new_document, "new")
        diff = with_fired(changes_between(old, new), parse_rules(RULES))
    except InputError:
        return
    finally:
        assert intact == documents[command], "what is compared is not changed"
    judged(new, LIMITS, old)
    again = changes_between(saved(old), saved(new))
    assert (again.roles, again.verdicts) == (diff.roles, diff.verdicts)
    undecided(diff, parse_rules(RULES))
    with open("/dev/null", "w") as nowhere:
        Console(file=nowhere, width=80).print(*diff_report(diff))
    for text in diff_files(diff).values():
        assert b"\x1b" not in text
    json.loads(to_json(diff))
    assert intact == documents[command], "what is shown is not changed"


@pytest.mark.parametrize("junk", [[], [{"name": "heads", "shape": [], "rows": [], "columns": []}]])
def test_a_step_without_its_matrix_is_refused(junk, documents):
    steps = documents["explain"]["steps"]
    mix = [step["key"] for step in steps].index("mix")
    document = changed(documents["explain"], "steps", mix, "matrices", to=junk)
    with pytest.raises(InputError, match=r"new \(explain\) is damaged"):
        results_of(document, "new")


def test_a_baseline_says_what_the_results_say(documents):
    """Whatever moves, a comparison with the small file is that with the results themselves."""
    classify = changed(documents["classify"], "heads", 0, "roles", to=["rare"])
    classify = changed(classify, "heads", 1, "entropy", to=lambda value: value + 1)
    classify = changed(classify, "provenance", "seed", to=9)
    prune = changed(documents["prune"], "baseline", "value", "value", to=0.5)
    old = measured(documents, "old")
    new = measured({**documents, "classify": classify, "prune": prune}, "new")
    rules = parse_rules(RULES)
    direct = with_fired(changes_between(old, new), rules)
    by_file = with_fired(changes_between(saved(old), new), rules)
    assert replace(by_file, metrics=(), scores=()) == replace(direct, metrics=(), scores=())
    numbers = sorted((*direct.metrics, *direct.scores), key=str)
    numbers_by_file = sorted((*by_file.metrics, *by_file.scores), key=str)
    for change, by_file_change in zip(numbers, numbers_by_file, strict=True):
        assert by_file_change == replace(
            change,
            old=pytest.approx(change.old, rel=1e-6),
            worsening=by_file_change.worsening,
            old_interval=by_file_change.old_interval,
        )
    assert {fired.rule for fired in by_file.fired} >= {"role-changed", "metric-drop", "any"}
    assert len(baseline_json(old)) < len(to_json(documents)) / 4


def test_a_row_that_serves_limits_alone_is_neither_kept_nor_compared(documents):
    """A baseline of an earlier version has none of these rows, and must not differ by them."""
    control = ("control", "false_positives")
    old = changed(documents["classify"], *control, to=[])
    new = changed(documents["classify"], *control, to=["L0H1 rare"])
    (row,) = (row for row in measured(new, "new").rows if row.name == "false positives")
    assert row.labels == ("L0H1 rare",)
    assert kinds_of(diff_of(old, new)) == {"other"}
    assert "false positives" not in baseline_json(measured(new, "new"))


@pytest.mark.parametrize(
    ("intact", "damaged", "words"),
    [
        ('"baseline":3', '"baseline":7', "version 3, not 7. Another version"),
        ('"metric":', '"metrik":', "has no field 'metric'"),
        ('"facts":{', '"facts":[{', "not whole"),
        ('"certificate":"passed"', '"certificate":7', "not an object"),
        ('"certificate":"passed"', '"certificate":{"value":"x"}', "is not a number"),
        ('["schema"', '["sschema"', "no condition is called 'sschema'"),
    ],
)
def test_a_baseline_that_is_damaged_or_of_a_later_version(
    intact, damaged, words, documents, tmp_path
):
    text = baseline_json(measured(documents, "old"))
    assert intact in text
    path = tmp_path / "x.json"
    path.write_text(text.replace(intact, damaged, 1))
    with pytest.raises(InputError, match=re.escape(str(path))) as caught:
        read_measurements(path)
    assert words in str(caught.value)
