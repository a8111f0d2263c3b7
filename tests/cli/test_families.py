"""The commands on models of other families, and on models that have lost heads."""

import json

from families import BY_NAME, tiny
from outcomes import refused
from tiny_models import VOCABULARY, tiny_bert, tiny_tokenizer

import headscope

SIZES = {"vocab_size": len(VOCABULARY), "max_position_embeddings": 64}


def test_a_report_of_layers_that_share_their_weights(run, quick, tmp_path):
    folder = tmp_path / "model"
    tiny("albert", **SIZES).save_pretrained(folder)
    tiny_tokenizer(max_length=48).save_pretrained(folder)
    few = ("--skip", "transfer,flow,symmetric,linear,spectrum")
    done = run("report", folder, "--config", quick, *few, "-o", tmp_path / "out")
    assert done.code == 0, done.stderr
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert document["left_out"] == {}
    assert len(document["insights"]["insights"]) == 11
    assert len(document["samples"]) == 2


def test_a_model_without_some_heads_keeps_their_numbers(run, quick, tmp_path):
    """Two of a layer, all of another, none of the third."""
    loaded = headscope.load(str(tiny_bert(tmp_path / "whole", layers=3)))
    smaller = headscope.remove_heads(loaded, [(0, 0), (0, 2), *((1, head) for head in range(4))])
    headscope.save(smaller, tmp_path / "smaller")
    out = tmp_path / "out"
    quick.write_text(quick.read_text().replace("[spectrum]", "[spectrum]\nefficient = true"))
    few = ("--only", "classify,rank,spectrum,flow")
    done = run("report", tmp_path / "smaller", "--config", quick, *few, "-o", out)
    assert done.code == 0, done.stderr
    assert (out / "report.html").read_text().count('class="cell gone"') == 6
    shown = {f"L{layer}H{head}" for layer, heads in ((0, (1, 3)), (2, range(4))) for head in heads}
    document = json.loads((out / "report.json").read_text())
    for sample in document["samples"]:
        assert set(sample["patterns"]) == shown
    sections = {name: document[name] for name in ("classify", "rank", "spectrum", "flow")}
    sections["efficient"] = document["spectrum"]["efficient"]
    for name, section in sections.items():
        assert {f"L{h['layer']}H{h['head']}" for h in section["heads"]} == shown, name


def test_padded_queries_without_a_key_in_their_window_warn_of_nothing(tmp_path, run):
    ids = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "mask_token_id": 4}
    folder = tmp_path / "model"
    family = BY_NAME["modernbert"]
    family.model(**SIZES, bos_token_id=2, eos_token_id=3, **ids).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    outcome = run("classify", folder, "--limit", "8")
    assert (outcome.code, outcome.stderr) == (0, "")
    assert "no key" not in outcome.stdout
    ranks = run("rank", folder, "--no-fresh")
    assert "W_QW_Kᵀ at distance 0" in ranks.flat
    assert "At distances of 1 to 512 positions a layer needs" in ranks.flat
    sections = "classify,spectrum,depth,flow,transfer,linear,symmetric"
    claims = run("insights", folder, "--skip", sections, "--verbose")
    assert "dimensions that hold 90% of W_QW_Kᵀ at distance 0:" in claims.flat
    assert "layers need fewer dimensions at every distance" in claims.flat
    share = ("--share-projections", "4")
    refused(run("rank", folder, *share), "rotates queries and keys by their positions")
    config = tmp_path / "headscope.toml"
    config.write_text("[rank]\nshare_projections = [4]\n")
    claims = run("insights", folder, "--skip", sections, "--config", config)
    assert "Warning: rank is left out" in claims.flat
