"""What is special to depth, explain, rank and transfer, and to the runs of several."""

import re

from outcomes import refused, strict_json
from rich.cells import cell_len
from safetensors.torch import load_file, save_file
from tiny_models import tiny_bert

import headscope
from headscope.analyses.explain import measure

VARIANTS = {"attention", "attention+ffn", "attention+skip", "full", "full-without-layernorm"}


def test_every_variant_at_every_point(run, model, lines, tmp_path):
    call = ("depth", model, "--text", lines, "--length", 32, "-o", tmp_path)
    done = run(*call)
    assert (done.code, done.stderr) == (0, "")
    result = strict_json((tmp_path / "depth.json").read_text())
    for curves in (result, result["control"]):
        assert set(curves["variants"]) == set(curves["std"]) == VARIANTS
        assert len({curves["variants"][name][0] for name in VARIANTS}) == 1  # the embeddings
        assert all(p["mean"][0] == 0 for p in curves["protected"])
    assert (result["layer_norm"], result["length"]) == ("post", 32)
    assert 10 <= result["sequences"] == result["available"] <= 20
    # Another seed is another control of the same model.
    other = run(*call, "--seed", 1, "--format", "csv").rows
    assert len(other) == 2 * 6 * 3  # model and control, variants, points
    for weights, curves in (("model", result), ("control", result["control"])):
        rows = (r for r in other if (r["weights"], r["variant"]) == (weights, "full"))
        full = [float(row["ratio"]) for row in rows]
        assert (full == curves["variants"]["full"]) is (weights == "model")


def test_states_that_overflow_are_null(run, tmp_path, lines):
    """Without LayerNorm the feed-forward network of this model multiplies by 10^16 a layer."""
    folder = tiny_bert(tmp_path / "model", layers=5)
    out = tmp_path / "out"
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        if name.endswith(("intermediate.dense.weight", "output.dense.weight")):
            weights[name] *= 1.0 if "attention" in name else 1e8
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    options = ("--text", lines, "--length", 32, "--dtype", "float32")
    shown = run("depth", folder, *options, "-o", out)
    assert (shown.code, shown.stderr) == (0, "")
    assert "nan" not in shown.stdout
    assert "overflow" in shown.stdout
    result = strict_json((out / "depth.json").read_text())
    assert result["variants"]["full-without-layernorm"][-1] is None
    assert all(value is not None for value in result["variants"]["full"])


SENTENCE = "the big dog saw a red cat"


def test_long_sentences_odd_tokens_and_markup(run, model, tmp_path):
    odd = "\u732b\u304c \U0001f600 [bold]a[/bold] <b>the</b> & " + "cat dog " * 12
    done = run("explain", model, odd, "-o", tmp_path)
    assert done.code == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if "read_results(" not in line]
    assert max(map(cell_len, lines)) <= 80
    page = (tmp_path / "explain.html").read_text(encoding="utf-8")
    assert "<b>the" not in page
    assert not re.search(r"""(?:src|href)=["'](?!#|data:,)""", page)


def test_removed_heads_and_long_models(run, tmp_path):
    encoder = headscope.load(str(tiny_bert(tmp_path / "whole", max_position_embeddings=128)))
    cut = headscope.remove_heads(encoder, [(0, 1), *((1, h) for h in range(4))])
    folder = headscope.save(cut, tmp_path / "cut")
    refused(run("explain", folder, "a cat", "--layer", 0, "--head", 1), "has no head 1")
    refused(run("explain", folder, "a cat", "--layer", 1), "Every head of layer 1")
    refused(run("explain", folder, "cat " * 70), "explain reads at most 64")
    assert run("explain", folder, "a cat").code == 0


def test_a_step_that_differs_from_the_model_ends_with_exit_code_3(run, model, monkeypatch):
    monkeypatch.setattr(measure, "layer_norm", lambda x, norm: x)
    refused(run("explain", model, SENTENCE), "Step 11 of explain", "tolerance", code=3)


def test_shared_projections(run, model, tmp_path):
    text = tmp_path / "lines.txt"
    text.write_text("the cat sat on the mat\n\nhe saw a dog\n" + "a b " * 50 + "\n")
    out = tmp_path / "out"
    config = tmp_path / "run.toml"
    few = ("--no-fresh", "-o")
    config.write_text("[rank]\nshare_projections = [4, 8, 16]\n")
    done = run("rank", model, "--config", config, "--text", text, "-v", *few, out)
    assert done.code == 0, done.stderr
    data = strict_json((out / "rank.json").read_text())
    assert [width["width"] for width in data["shared"]["widths"]] == [4, 8, 16]
    assert (data["text"]["lines"], data["text"]["skipped"]) == (2, 1)
    assert "1 skipped" in done.flat
    more = {f"shared_projections.{kind}" for kind in ("csv", "png", "svg")}
    assert more < {path.name for path in out.iterdir()}
    # What a later run without widths does not write must not be left over.
    assert run("rank", model, *few, out).code == 0
    assert not more & {path.name for path in out.iterdir()}


#: A few seconds' worth on a tiny model.
FEW = ("--sizes", "16,32", "--steps", 4, "--seeds", 2, "--spread-seeds", 2, "--no-search")
FEW += ("--random", "head,layernorm", "--train-limit", 120, "--test-limit", 30)


def test_a_budget_that_ends_is_said(run, model):
    done = run("transfer", model, *FEW, "--budget", 1e-6)
    assert done.code == 0
    assert "The budget of 1e-06 s did not reach 36 of 36 runs" in done.flat
    assert "LayerNorm only (random, 32 examples): 2 runs" in done.flat


def test_one_budget_for_all_of_it_of_which_the_last_section_has_what_is_left(run, model):
    skip = "classify,rank,spectrum,depth,flow,linear,symmetric"
    done = run("insights", model, "--skip", skip, "--budget", 0.01, "--format", "json")
    assert done.code == 0, done.stderr
    verdicts = {i["number"]: i["verdict"] for i in strict_json(done.stdout)["insights"]}
    assert {verdicts[n] for n in (8, 9, 10)} == {"not measured"}
