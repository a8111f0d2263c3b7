"""The trained transliteration model writes names as it is known to."""

import pytest
import torch

import headscope
from headscope.data.examples import read_translations
from headscope.pipeline.tasks.seq2seq import seq2seq_task


def test_arabic_names_in_latin_letters(shared):
    """Greedy decoding is known to write 22.0% of the first 600 names exactly."""
    loaded = headscope.load(str(shared / "models/ar-en-transliteration"), task_head="auto")
    pairs = shared / "data/ar-en-test.tsv"
    found = headscope.measure(loaded, "seq2seq", pairs, limit=600)
    assert found.metrics["exact_match"] == 22.0
    assert found.metrics["token_accuracy"] == pytest.approx(80.72, abs=0.02)
    assert 50 < found.metrics["bleu_characters"] < 65
    assert "bleu" not in found.metrics  # single words have no 4-gram
    assert found.ci[0] < found.value < found.ci[1]

    task = seq2seq_task(read_translations(pairs, 100), loaded)
    assert (task.n_examples, task.skipped) == (100, 0)
    # The tokenizer puts no end token after a source; a target has one all the same.
    assert all(row.content == tuple(range(len(row.ids))) for row in task.rows)
    assert "BLEU is of characters" in task.notes[0]
    assert task.degenerate(task.outputs(loaded, all_metrics=True)) is None
    # Without cross-attention the decoder cannot know its source.
    view = loaded.only("cross")
    blind = task.outputs(view, torch.zeros(view.n_layers, view.n_heads), all_metrics=True)
    assert task.metrics(blind)["token_accuracy"] < 20
    assert task.degenerate(blind) == "writes the same text for every source"


def test_cross_attention_is_the_most_fragile(shared):
    """As in Michel et al. 2019, section 4: its curve is the lowest, by more than its interval."""
    found = headscope.prune(
        str(shared / "models/ar-en-transliteration"),
        task="seq2seq",
        data=shared / "data/ar-en-test.tsv",
        calibration=shared / "data/ar-en-train.tsv",
        methods=["fisher-joint"],
        repairs=["none"],
        step=0.5,
        limit=200,
        calibration_limit=128,
    )
    areas = {area.stack: area.value for area in found.areas}
    assert areas["cross"] < areas["decoder"] < areas["encoder"]
    gaps = {(gap.stack, gap.other): gap for gap in found.gaps}
    assert gaps["encoder", "cross"].ci[0] > 5
    assert gaps["decoder", "cross"].ci[0] > 3
    assert "BLEU is of characters" in found.warnings[0]
    half = found.stacks[0].curves[0].points[1]
    assert half.metrics["exact_match"] > found.stacks[2].curves[0].points[1].metrics["exact_match"]
