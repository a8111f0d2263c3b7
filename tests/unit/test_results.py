"""Results survive a JSON round trip, and never hold NaN."""

from __future__ import annotations

import json

import pytest

import headscope
from headscope.results import ClassifyResult, ValidationResult, from_dict, to_json


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
