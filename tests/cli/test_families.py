"""The commands on models of other families, and on models that have lost heads."""

import json

import pytest
from families import COVERED, tiny
from outcomes import refused
from tiny_models import VOCABULARY, tiny_bert, tiny_deberta, tiny_mpnet, tiny_tokenizer

import headscope


def test_a_report_of_layers_that_share_their_weights(run, quick, tmp_path):
    folder = tmp_path / "model"
    tiny("albert", vocab_size=len(VOCABULARY), max_position_embeddings=64).save_pretrained(folder)
    tiny_tokenizer(max_length=48).save_pretrained(folder)
    done = run("report", folder, "--config", quick, "-o", tmp_path / "out")
    assert done.code == 0, done.stderr
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert document["left_out"] == {}
    assert len(document["insights"]["insights"]) == 11
    assert len(document["samples"]) == 2


def test_a_model_without_some_heads_keeps_their_numbers(run, quick, tmp_path):
    loaded = headscope.load(str(tiny_bert(tmp_path / "whole", layers=3)))
    smaller = headscope.remove_heads(loaded, [(0, 0), (0, 2), *((1, head) for head in range(4))])
    headscope.save(smaller, tmp_path / "smaller")
    out = tmp_path / "out"
    done = run("report", tmp_path / "smaller", "--config", quick, "-o", out)
    assert done.code == 0, done.stderr
    assert (out / "report.html").read_text().count('class="cell gone"') == 6
    shown = {f"L{layer}H{head}" for layer, heads in ((0, (1, 3)), (2, range(4))) for head in heads}
    document = json.loads((out / "report.json").read_text())
    for sample in document["samples"]:
        assert set(sample["patterns"]) == shown
    for section in ("classify", "rank", "spectrum"):
        heads = document[section]["heads"]
        assert {f"L{head['layer']}H{head['head']}" for head in heads} == shown, section


@pytest.mark.parametrize("maker", [tiny_mpnet, tiny_deberta])
def test_relative_positions_whose_modules_never_ask_for_our_attention(maker, run, tmp_path):
    relative, quiet = maker(tmp_path / "model"), ("--format", "json", "-q")
    found = run("classify", relative, "--limit", 3, *quiet).json
    assert found["validation"]["passed"]
    assert len(found["heads"]) == 8
    options = ("-n", 4, "--length", 8, "--efficient", "-q", "-o", tmp_path / "x")
    shown = run("spectrum", relative, *options)
    assert shown.code == 0
    assert "Left out: pooled keys." in shown.flat
    found = json.loads((tmp_path / "x" / "spectrum.json").read_text())
    assert len(found["heads"]) == 8
    assert found["efficient"]["left_out"] == ["pooled"]
    # Two heads removed, repaired and saved; the saved folder passes.
    options = ("--task", "fidelity", "--limit", 6, "--fraction", 0.25, "--no-roles")
    more = ("--no-ablation", "--draws", 5, "--save", tmp_path / "small")
    found = run("prune", relative, *options, *more, *quiet).json
    assert found["validation"]["passed"]
    assert found["baseline"]["value"]["value"] == pytest.approx(1.0)
    assert run("validate", tmp_path / "small", *quiet).json["passed"]


@pytest.mark.parametrize("kind", ["modernbert", "eurobert", "gpt2"])
def test_rotary_positions_windows_shared_keys_and_a_causal_model(kind, tmp_path, run):
    (family,) = (family for family in COVERED if family.kind == kind)
    ids = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "mask_token_id": 4}
    more = {"bos_token_id": 2, "eos_token_id": 3, **ids}
    folder, pruned, text = tmp_path / "model", tmp_path / "pruned", tmp_path / "text.txt"
    size = {"vocab_size": len(VOCABULARY), "max_position_embeddings": 64}
    family.model(**size, **more).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    text.write_text("the cat sat on the mat\nhe saw a big red dog in the house\n" * 20)
    options = ("--limit", "12", "--method", "magnitude", "--fraction", "0.5", "--repair", "none")
    spectrum = ("--text", text, "--length", "32", "--sequences", 4)
    for arguments in (
        ("validate", folder),
        ("classify", folder, "--limit", "8"),
        ("spectrum", folder, *spectrum),
        ("prune", folder, *options, "--save", pruned),
        ("validate", pruned),
        ("spectrum", pruned, *spectrum),
    ):
        outcome = run(*arguments)
        assert outcome.code == 0, outcome.stderr
        # Padded queries of ModernBERT have no key in their window; nobody looks at them.
        assert "Warning" not in outcome.stderr
        assert "no key" not in outcome.stderr
    removed = json.loads((pruned / "headscope.json").read_text())["attention"]
    assert sum(len(entry["removed"]) for entry in removed) == 2 * len(removed)
    ranked = ("rank", folder, "--control-seeds", "2")
    if kind == "gpt2":
        assert run(*ranked).code == 0
    else:
        refused(run(*ranked), "rotates queries and keys by their positions")
