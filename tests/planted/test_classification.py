"""Classification recovers every role that was planted by hand, and labels nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted_models import Planted, build_planted, random_bert

import headscope
from headscope.results import ClassifyResult, HeadResult


@pytest.fixture(scope="module", params=[False, True], ids=["short", "long"])
def planted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    folder = tmp_path_factory.mktemp("planted")
    return build_planted(folder, long=request.param)


@pytest.fixture(scope="module")
def result(planted: Planted) -> ClassifyResult:
    return headscope.classify(
        str(planted.folder), planted.treebank, frequencies=planted.frequencies
    )


def _expected(planted: Planted) -> dict[tuple[int, int], tuple[str, str]]:
    """What each head must be called: (role, detail), ("", "") for none."""
    expected = {}
    for place, role in planted.roles.items():
        detail = {
            "positional": lambda role=role: f"{role.offset:+d}",
            "syntactic": lambda role=role: f"{role.relation} {role.direction}",
            "special": lambda: "last",
        }.get(role.kind, lambda: "")()
        expected[place] = ("", "") if role.kind == "none" else (role.kind, detail)
    return expected


def _found(head: HeadResult) -> list[tuple[str, str]]:
    return [(label.role, label.detail) for label in head.labels]


def test_recovers_every_planted_role_and_nothing_else(
    planted: Planted, result: ClassifyResult
) -> None:
    expected = _expected(planted)
    assert len(result.heads) == len(expected)
    for head in result.heads:
        role, detail = expected[head.layer, head.head]
        assert _found(head) == ([(role, detail)] if role else []), head.name
        assert head.primary == (role or "none")


def test_random_weights_earn_no_label(planted: Planted, tmp_path: Path) -> None:
    heads: list[HeadResult] = []
    for seed in range(3):
        folder = random_bert(tmp_path / str(seed), seed=seed)
        heads += headscope.classify(
            str(folder), planted.treebank, frequencies=planted.frequencies
        ).heads
    labelled = [head.name for head in heads if {"syntactic", "rare"} & set(head.roles)]
    assert len(labelled) <= 0.01 * len(heads)
