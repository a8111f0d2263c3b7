"""A smaller model for one budget, by the command line: what is cut, saved, opened and said."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from outcomes import Command, refused
from sentence_transformers import SentenceTransformer

import headscope
from headscope.core.serialise import from_dict
from headscope.pruning.result import PruneResult
from headscope.reports.diff_facts import facts_of
from headscope.reports.reading import Results

WORDS = ["the", "cat", "dog", "mat", "house", "sat", "ran", "saw", "big", "red", "he", "she", "it"]


def lines(seed: int, n: int) -> str:
    draw = np.random.default_rng(seed)
    texts = [" ".join(draw.choice(WORDS, size=draw.integers(4, 9))) for _ in range(n)]
    return "".join(f"{text}\n" for text in dict.fromkeys(texts))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("mix")
    for name, seed in (("test.txt", 1), ("train.txt", 2)):
        (folder / name).write_text(lines(seed, 80))
    return ("--data", str(folder / "test.txt"), "--calibration", str(folder / "train.txt"))


def result_of(run: Command, *words: Any) -> PruneResult:
    ended = run("prune", *words, "--no-roles", "--format", "json")
    assert ended.code == 0, ended.stderr
    return from_dict(PruneResult, json.loads(ended.stdout))


def test_half_of_the_arithmetic_goes_and_the_folder_is_the_model(run, model, data, tmp_path):
    folder = tmp_path / "small"
    words = (
        "--units",
        "heads,neurons",
        "--fraction",
        "0.5",
        "--save",
        folder,
        "-o",
        tmp_path / "o",
    )
    result = result_of(run, model, *data, *words)
    mix = result.smaller
    assert mix is not None
    assert mix.mix.arithmetic <= 0.5
    assert mix.reached
    assert mix.zeroed_difference < 1e-5
    again = headscope.load(str(folder))
    widths = {f.layer: f.width for f in headscope.feed_forwards(again)}
    for layer in mix.layers:
        assert again.sites[layer.layer].head_ids == layer.heads
        assert widths[layer.layer] == layer.neurons
    assert headscope.validate(again).passed
    # Opened by somebody else: the same embeddings, and the fidelity that was promised.
    small, whole = (SentenceTransformer(str(path), device="cpu") for path in (folder, model))
    texts = Path(data[1]).read_text().splitlines()
    pairs = [
        torch.nn.functional.normalize(torch.tensor(m.encode(texts)), dim=-1) for m in (small, whole)
    ]
    cosine = float((pairs[0] * pairs[1]).sum(-1).mean())
    assert cosine == pytest.approx(mix.mix.value, abs=1e-4)
    # Random units at the same counts are farther away; every rival is in table and picture.
    names = [m.name for m in mix.models]
    assert {"whole", "mix", "heads", "neurons", "random", "layers"} <= set(names)
    assert mix.mix.value > max(m.value for m in mix.models if m.name == "random")
    card = (folder / "README.md").read_text()
    assert "50% of the layers' arithmetic gone" in card
    assert "![" in card
    assert (folder / "mix.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "o" / "mix.csv").read_text().count("\n") == len(names) + 1
    # diff knows what stays where.
    facts = facts_of(Results(name="a", prune=result), ["prune"])
    assert "neurons kept" in repr(facts)


def test_megabytes_take_the_vocabulary_too_and_the_folder_reads_other_words(
    run, model, data, tmp_path
):
    whole = headscope.load(str(model))
    size = sum(p.numel() for p in whole.network.parameters()) * 4 / 1e6
    folder = tmp_path / "small"
    words = ("--target-mb", f"{0.6 * size:.4f}", "--save", folder, "--no-controls")
    mix = result_of(run, model, *data, *words).smaller
    assert mix is not None
    assert mix.mix.megabytes <= 0.6 * size * 1.001
    weights = (folder / "model.safetensors").stat().st_size / 1e6
    assert weights <= 0.6 * size * 1.05 + 0.01  # names and shapes beside the numbers
    again = headscope.load(str(folder))
    assert mix.vocabulary is not None
    assert again.vocab_size == mix.vocabulary.after
    assert "layers" not in {m.name for m in mix.models}


def test_the_vocabulary_can_go_alone(run, model, data, tmp_path):
    whole = headscope.load(str(model))
    size = sum(p.numel() for p in whole.network.parameters()) * 4 / 1e6
    words = ("--units", "vocabulary", "--target-mb", f"{size:.4f}", "--save", tmp_path / "small")
    mix = result_of(run, model, *data, *words).smaller
    assert mix is not None
    assert mix.vocabulary is not None
    assert headscope.load(str(tmp_path / "small")).vocab_size == mix.vocabulary.after
    assert mix.mix.value == pytest.approx(1.0, abs=1e-5)  # every word of the test is known


def test_a_largest_drop_of_a_mix_is_tested_in_order(run, model, data):
    words = ("--units", "heads,neurons", "--max-drop", "0.3", "--no-controls")
    mix = result_of(run, model, *data, *words).smaller
    assert mix is not None
    allowed = [look for look in mix.looks if look.allowed]
    assert [look.allowed for look in mix.looks] == sorted(
        [look.allowed for look in mix.looks], reverse=True
    )
    assert mix.mix.arithmetic == pytest.approx(allowed[-1].arithmetic)
    assert all(look.most_lost <= 0.3 for look in allowed)
    refused(run("prune", model, *data, "--units", "neurons", "--max-drop", "1e-9"), "Even with 10%")


def test_tuning_says_what_it_read_and_looks_at_other_text(run, model, data, tmp_path):
    words = (
        "--units",
        "neurons",
        "--fraction",
        "0.3",
        "--tune",
        "--tune-minutes",
        "0.03",
        "--no-controls",
    )
    result = result_of(run, model, *data, *words)
    mix = result.smaller
    assert mix is not None
    assert mix.tuned is not None
    assert mix.tuned.after <= mix.tuned.before
    assert mix.tuned.other_after.interval is not None
    ended = run("prune", model, *data, *words, "--no-roles")
    assert "no labels read" in " ".join(ended.stdout.split())


def test_a_speed_is_confirmed_or_the_nearest_is_named(run, model, data, monkeypatch):
    from headscope.pruning import confirm_speed, latency

    monkeypatch.setattr(latency, "_SECONDS", 0.1)
    monkeypatch.setattr(confirm_speed, "_SECONDS", 0.1)
    ended = run("prune", model, *data, "--target-speed", "1.01", "--no-controls", "--no-roles")
    said = " ".join(ended.stdout.split())
    if ended.code == 0:
        assert "times as fast" in said
        assert "Confirmed by" in said
    else:  # a model of 32 dimensions has next to nothing to save
        refused(ended, "No mix of heads and neurons", "the nearest is")
