"""``headscope linear`` and ``headscope symmetric`` from the command line, on a tiny model."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headscope
from headscope.results import LinearResult, SymmetricResult, from_dict, to_dict
from headscope.results.estimated import Estimated
from headscope.show.linear import words as linear_words
from headscope.show.symmetric import words as symmetric_words
from headscope.show.view import view_of
from headscope.verdicts.diff.facts import collector_of
from headscope.verdicts.diff.facts.fact import Facts

Run = Callable[..., Any]
KINDS = {"linear": LinearResult, "symmetric": SymmetricResult}
FILES = {
    "linear": {"linear_coherence.png", "linear_memory.svg", "linear_forms.csv"},
    "symmetric": {"symmetric_curves.svg", "symmetric_sets.csv"},
}
each = pytest.mark.parametrize("name", KINDS)


@pytest.fixture(scope="module")
def results(model: Path) -> dict[str, Any]:
    loaded = headscope.load(str(model))
    return {name: getattr(headscope, name)(loaded, sentences=4) for name in KINDS}


@each
def test_every_format_and_file(run: Run, model: Path, tmp_path: Path, name: str) -> None:
    options = ("--sentences", 3, "--no-alone", "--task", "fidelity", "--limit", 20)
    done = run(name, model, *options, "-o", tmp_path / "out", "--format", "json")
    assert (done.code, done.stderr) == (0, "")
    found = from_dict(KINDS[name], json.loads(done.stdout))
    assert found.text["lines"] == 3
    assert 0 < found.task.examples <= 20  # but the longer ones
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {f"{name}.json", f"{name}.csv", *FILES[name]}
    text = run(name, model, *options).stdout
    assert "fidelity on built-in sample" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


@each
def test_a_result_survives_its_json(results: dict[str, Any], name: str) -> None:
    result = results[name]
    assert from_dict(KINDS[name], json.loads(json.dumps(to_dict(result)))) == result


@each
def test_the_report_has_a_part_a_card_a_head_and_key_numbers(
    results: dict[str, Any], name: str
) -> None:
    view, result = view_of(name), results[name]
    rows = view.csv(result)
    assert rows.startswith("layer,head,stack,")
    assert len(rows.splitlines()) == 9
    assert {"symmetric": "symmetric_map.png"}.get(name, "linear.csv") in view.files(result)
    part = view.section(result)
    assert part.texts
    assert part.rows
    assert "circle" in part.chart.svg
    cards = list(view.facts(result, ()))
    assert len(cards) == len(result.heads)
    assert {scale.key for scale in view.scales} == set(cards[0].values)
    assert all(found.text != "-" for found in view.key_numbers(result))


@each
def test_diff_finds_what_changed(results: dict[str, Any], name: str) -> None:
    collector, result = collector_of(name), results[name]
    facts = Facts().of(name)
    collector.collect(result, facts)
    assert collector.settings(result)["lines"] == 4
    head = result.heads[3]
    moved = {"linear": "coherence", "symmetric": "asymmetry"}[name]
    changed = dataclasses.replace(head, **{moved: Estimated(0.123)})
    heads = (*result.heads[:3], changed, *result.heads[4:])
    other = Facts().of(name)
    collector.collect(dataclasses.replace(result, heads=heads), other)
    differ = [key for key in facts.numbers if facts.numbers[key] != other.numbers[key]]
    assert [key[1] for key in differ] == [head.name]
    cosines = [key for key in facts.numbers if "cosine" in key[2]]
    assert all(facts.numbers[key].sign == 1 for key in cosines)
    assert len(cosines) > len(result.heads)


def test_sentences_say_which_way_it_came_out(results: dict[str, Any]) -> None:
    linear, symmetric = results["linear"], results["symmetric"]
    for interval, words in (
        ((0.2, 0.6), "they rise together"),
        ((-0.6, -0.2), "one falls as the other rises"),
        ((-0.2, 0.2), "no relation shows"),
        ((None, None), "no interval from 2 layers): not measured"),
    ):
        row = dataclasses.replace(linear.correlations[0], spearman=Estimated(0.0, *interval))
        changed = dataclasses.replace(linear, correlations=(row, *linear.correlations[1:]))
        assert words in linear_words.correlation_sentence(changed)
    assert "random heads of 8" in symmetric_words.whole_sentence(symmetric)
    beyond = dataclasses.replace(symmetric, equivalent_heads=Estimated(None))
    assert "further than removing every head" in symmetric_words.whole_sentence(beyond)
    crossed = dataclasses.replace(symmetric, left_out=("decoder", "cross"), causal=True)
    notes = " ".join(symmetric_words.notes(crossed))
    assert "cross-attention has no square of scores" in notes
    assert "A mask hides later tokens" in notes
    biased = dataclasses.replace(linear, bias_left_out=True)
    assert "the lost bias" in " ".join(linear_words.notes(biased))


@each
def test_slips_are_one_sentence(run: Run, model: Path, tmp_path: Path, name: str) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    for options, words in (
        (("--sentences", 0), "sentences is 0; give 1 or more."),
        (("--data", "x.csv"), "name the task too"),
        (("--text", empty), "holds no text"),
        (("--task", "similarity"), "needs a file"),
    ):
        done = run(name, model, *options)
        assert done.code == 1
        assert done.stderr.startswith("headscope: ")
        assert words in done.stderr
        assert done.stderr.count("\n") == 1
