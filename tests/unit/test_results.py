"""Results survive a JSON round trip, and never hold NaN."""

from __future__ import annotations

import json
from types import ModuleType

import pytest

import headscope
from headscope import results
from headscope.errors import InputError
from headscope.results import (
    ClassifyResult,
    Head,
    ValidationResult,
    from_dict,
    head_name,
    parse_head,
    to_json,
)
from headscope.results.heads import place_name
from headscope.results.thresholds import parse_pairs


@pytest.fixture(scope="module")
def result(demo: object) -> ClassifyResult:
    return headscope.classify(demo, limit=30, control=True)


def test_classification_round_trip(result: ClassifyResult) -> None:
    assert from_dict(ClassifyResult, json.loads(to_json(result))) == result


def test_validation_round_trip(demo: object) -> None:
    certificate = headscope.validate(demo)
    assert from_dict(ValidationResult, json.loads(to_json(certificate))) == certificate


def test_unknown_fields_of_later_versions_are_passed_over(demo: object) -> None:
    certificate = headscope.validate(demo)
    data = {**json.loads(to_json(certificate)), "of_a_later_version": 1}
    assert from_dict(ValidationResult, data) == certificate


def test_nan_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"rate": float("nan")})


def test_frames_have_a_row_per_head_and_per_relation(result: ClassifyResult) -> None:
    assert len(result.to_frame()) == len(result.heads) == 72
    relations = sum(len(head.syntactic) for head in result.heads)
    assert len(result.relations_frame()) == relations > 0


def test_rates_without_trials_are_null(demo: object) -> None:
    single = headscope.classify(demo, ["Yes"], language="en")
    head = single.heads[0]
    assert head.positional.score is None
    assert head.rare.rate is None
    assert head.labels == ()
    assert "NaN" not in to_json(single)


def test_no_two_modules_of_results_export_the_same_name() -> None:
    modules = [found for found in vars(results).values() if isinstance(found, ModuleType)]
    names = [name for module in modules for name in getattr(module, "__all__", ())]
    assert len(names) == len(set(names)) > 60
    for module in modules:
        for name in getattr(module, "__all__", ()):
            assert getattr(results, name) is getattr(module, name), name


def test_the_name_of_a_head_reads_back() -> None:
    assert head_name(3, 15) == Head(3, 15).name == "L3H15"
    assert parse_head("L3H15") == (3, 15)
    for text in ("", "L3", "3H1", "L3H*", "L-1H2", "L1H2 "):
        with pytest.raises(ValueError, match="not the name of a head"):
            parse_head(text)


def test_pairs_of_name_and_value() -> None:
    assert parse_pairs([" most = 0.6", "low_rank=1=2", "most=0.7"]) == {
        "most": "0.7",
        "low_rank": "1=2",
    }
    with pytest.raises(InputError) as error:
        parse_pairs(["most"], example="most=0.6")
    assert str(error.value) == "threshold 'most': write NAME=VALUE, such as most=0.6."


def test_names_of_places() -> None:
    assert place_name((3, 5)) == "L3H5"
    assert place_name(("cross", 3, 5)) == "cross:L3H5"
    assert [place_name(damaged) for damaged in ([], [1], ["a", 1, 2, 3])] == [
        *("[]", "[1]", "['a', 1, 2, 3]")
    ]
