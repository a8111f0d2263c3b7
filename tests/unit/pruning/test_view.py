"""What is shown of a result: one point, settled beforehand; and of a loss how much at most."""

import dataclasses
import io
import json
import re

import pytest
from rich.console import Console
from tiny_models import tiny_bert

import headscope
from headscope.core.serialise import from_dict, to_json
from headscope.models.certificate.validation import ValidationSummary
from headscope.pruning import result as results
from headscope.pruning.result import PruneResult
from headscope.pruning.sentences import leading_point, short_verdict, verdict
from headscope.pruning.view import blocks, key_numbers
from headscope.removal.metric_words import change_words
from headscope.show.blocks import Text
from headscope.show.view import view_of
from headscope.stats.estimate import Estimate

MODEL = {"id": "m", "family": "bert", "n_layers": 1}


def result(half_width: float) -> PruneResult:
    """Return two curves of eight heads; ``half_width`` is that of the changes' intervals."""

    def curve(repair: str, *values: float) -> results.Curve:
        points = []
        for count, value in zip((0, 2, 4, 8), values, strict=True):
            point = results.Point(
                fraction=count / 8,
                heads_removed=tuple((0, head) for head in range(count)),
                value=Estimate.around(value, 9),
                difference=Estimate.around(value - 80.0, half_width if count else 0.0),
                p_value=0.4,
            )
            points.append(point)
        return results.Curve("fisher", repair, tuple(points))

    return PruneResult(
        schema=1,
        provenance={"model": MODEL, "command": "headscope prune m"},
        validation=ValidationSummary(None),
        task="similarity",
        metric="spearman",
        higher_is_better=True,
        n_heads=8,
        shared_layers=False,
        calibration=None,
        baseline=results.Baseline(Estimate(80.0, 71.0, 89.0), {"spearman": 80.0}),
        data=results.DataInfo("x.csv", "0", "similarity", 16, 0),
        curves=(curve("none", 80.0, 79.0, 70.0, 9), curve("scale", 80.0, 81.0, 79.5, 9)),
    )


def test_intervals_that_say_nothing_are_no_leave_to_remove_all():
    """With 16 examples no loss was significant, and it was said that all heads can go."""
    wide = result(75.0)
    assert verdict(wide) == (
        "With 4 of 8 heads removed (fisher): Spearman 80.00 -> 70.00; at most 85.00 points are "
        "lost (95%); random heads were not measured."
    )
    texts = [block.text for block in blocks(wide) if isinstance(block, Text)]
    said = " ".join(texts) + str(list(key_numbers(wide)))
    assert "significant" not in said
    assert "can go" not in said


@pytest.mark.parametrize(("heads", "words"), [(1, "this one of 8"), (2, "these 2 of 8")])
def test_heads_that_were_named_are_counted(heads, words):
    (plain, _) = result(1.0).curves
    point = dataclasses.replace(plain.points[1], heads_removed=((0, 0), (0, 1))[:heads])
    manual = results.Curve("manual", "none", (point,))
    said = verdict(dataclasses.replace(result(1.0), curves=(manual,)))
    assert said.startswith(f"Without {words} heads: Spearman 80.00 -> 79.00")


def test_the_point_that_is_spoken_of_is_not_picked_by_its_value():
    """The other repair and the smaller number are better, and were named later."""
    leading = leading_point(result(1.0))
    assert leading is not None
    assert (leading[0].repair, leading[1].value.value) == ("none", 70.0)
    (key,) = key_numbers(result(1.0))
    assert key.text.startswith("70.00")


def test_of_several_repairs_the_answer_is_that_of_a_run_which_names_none():
    """Whatever its value: the report, its limits and prune speak of one number."""
    measured = result(1.0)
    plain, repaired = measured.curves
    both = dataclasses.replace(
        measured, curves=(plain, dataclasses.replace(repaired, repair="surgeon"))
    )
    leading = leading_point(both)
    assert leading is not None
    assert leading[0].repair == "surgeon"
    random = dataclasses.replace(plain, method="random")
    assert short_verdict(dataclasses.replace(both, curves=(*both.curves, random))) == (
        "4 of 8 heads removed by fisher, repair surgeon: Spearman 79.50 [70.50, 88.50]; "
        "all heads 80.00; random heads 70.00"
    )


def test_seven_examples_tell_no_interval_and_every_output_says_so(tmp_path):
    few = {"methods": ["magnitude"], "repairs": ["none"], "fractions": [0.25, 0.5], "limit": 7}
    few |= {"calibration_limit": 8}
    pruned = headscope.prune(str(tiny_bert(tmp_path / "model")), **few, validate=False)
    document = json.loads(to_json(pruned))
    points = document["curves"][0]["points"]
    assert all(item["value"]["low"] is None for item in [document["baseline"], *points])
    assert {point["p_value"] for point in points} == {1.0}
    assert from_dict(PruneResult, document) == pruned
    intervals = pruned.to_frame()[["low", "high", "difference_low", "difference_high"]]
    assert intervals.isna().all(axis=None)

    console = Console(width=100, record=True, file=io.StringIO())
    console.print(*view_of("prune").human(pruned))
    text = console.export_text()
    assert "no interval" in text
    assert not re.search(r"\b(inf|nan|None)\b", text)


def test_the_largest_seed_can_be_used(tmp_path):
    few = {"fractions": [0.5], "limit": 8, "calibration_limit": 8}
    few |= {"methods": ["fisher", "random"], "repairs": ["surgeon"]}
    few |= {"seed": 2**63 - 1, "validate": False}
    pruned = headscope.prune(str(tiny_bert(tmp_path / "model")), **few)
    assert [len(curve.points) for curve in pruned.curves] == [2, 2]


@pytest.mark.parametrize(
    ("metric", "difference", "ci", "says"),
    [
        ("spearman", -0.33, (-1.1, 0.4), "at most 1.10 points are lost (95%)"),
        ("spearman", 0.73, (0.07, 1.5), "Spearman rises by 0.73 points [0.07, 1.50]"),
        ("accuracy", 0.0, (-0.004, 0.4), "less than 0.01 points are lost (95%)"),
        ("accuracy", 0.0, (), "what is lost at most is not known"),
        ("loss", 0.05, (0.03, 0.19), "the loss rises by at most 0.190 nats (95%)"),
        ("cosine", -0.02, (-0.031, -0.01), "at most 0.0310 of the cosine is lost (95%)"),
    ],
)
def test_a_change_is_told_by_the_bad_end_of_its_interval(metric, difference, ci, says):
    assert change_words(metric, Estimate(difference, *ci)) == says
