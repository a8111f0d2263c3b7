"""``headscope flow`` on the command line: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from families import tiny
from tiny_models import tiny_tokenizer
from transformers import GPT2Config, GPT2Model

import headscope
from headscope.data.sentence import Sentence
from headscope.results import FlowResult, to_json
from headscope.show.flow.figures import tree_map
from headscope.show.view import view_of

Run = Callable[..., Any]

#: Different sentences of a tiny vocabulary; every second word hangs on the one before.
WORDS = ("the", "big", "dog", "saw", "a", "red", "cat", "on", "the", "mat", "and", "she", "ran")


def sentences(n: int = 60) -> list[Sentence]:
    found = []
    for i in range(n):
        words = (*WORDS[i % 5 : i % 5 + 5 + i % 4], WORDS[i % 6], WORDS[i % 11], ".")
        heads = (-1, *range(len(words) - 1))
        relations = ("root", *["dep"] * (len(words) - 2), "punct")
        found.append(Sentence(words, heads, relations))
    return found


@pytest.fixture(scope="module")
def measured() -> FlowResult:
    loaded = headscope.wrap(tiny("bert"), tiny_tokenizer())
    loaded.model.resize_token_embeddings(len(tiny_tokenizer()))
    return headscope.flow(loaded, sentences(), seed=3)


def test_every_head_has_every_number(measured: FlowResult) -> None:
    assert [head.name for head in measured.heads] == [
        f"L{i}H{j}" for i in range(3) for j in range(4)
    ]
    read = measured.sentences
    assert read.chosen_on == 30
    assert read.measured_on + read.repeated == 30
    assert measured.not_measured == {}
    for head in measured.heads:
        assert head.d_head == 8
        assert 0 < (head.wide() or 0) <= 1
        assert all(
            found.value is not None and found.value <= 1 for found in vars(head.recovery).values()
        )
        assert head.trees is not None
        assert 0 <= (head.graph.top_share.value or 0) <= 1
    assert measured.control is not None
    assert measured.control.seed == 3
    assert set(measured.spectra) == {"gaussian", "fresh"}
    assert measured.trees is not None
    assert measured.trees.strongest == "previous"  # the planted trees are chains
    assert measured.trees.baselines["previous"].value == 1.0
    assert measured.trees.combination.over_baseline.value < 0
    assert measured.to_frame().shape[0] == 12


def test_spectra_are_those_of_the_weights(measured: FlowResult) -> None:
    model = tiny("bert")
    weight = model.encoder.layer[1].attention.self.value.weight.detach().double()
    sigma = torch.linalg.svdvals(weight[8:16])
    assert measured.heads[5].w_v.singular_values == pytest.approx(sigma.tolist(), rel=1e-5)
    out = model.encoder.layer[1].attention.output.dense.weight.detach().double()
    sigma = torch.linalg.svdvals(out[:, 8:16] @ weight[8:16])[:8]
    assert measured.heads[5].ov.singular_values == pytest.approx(sigma.tolist(), rel=1e-5)


def test_the_same_run_gives_the_same_values(measured: FlowResult) -> None:
    loaded = headscope.wrap(tiny("bert"), tiny_tokenizer())
    loaded.model.resize_token_embeddings(len(tiny_tokenizer()))
    again = headscope.flow(loaded, sentences(), seed=3)

    for part in ("heads", "control", "trees", "graph"):
        assert json.loads(to_json(again))[part] == json.loads(to_json(measured))[part]


def test_text_and_folder(run: Run, model: Path, tmp_path: Path) -> None:
    lines = "\n".join(sentence.text for sentence in sentences())
    (tmp_path / "text.txt").write_text(lines)
    out = tmp_path / "out"
    found = run("flow", model, "--text", tmp_path / "text.txt", "--no-control", "-o", out)
    assert (found.code, found.stderr) == (0, "")
    assert max(map(len, found.stdout.splitlines())) <= 80
    assert "Trees: not measured" in found.stdout
    assert {path.name for path in out.iterdir()} == {
        *("flow.json", "flow.csv", "flow_hubs.csv", "flow.png", "flow.svg")
    }
    assert json.loads((out / "flow.json").read_text())["trees"] is None


def test_treebank_in_eighty_columns(run: Run, model: Path) -> None:
    found = run("flow", model, "--limit", 30)
    assert (found.code, found.stderr) == (0, "")
    assert max(map(len, found.stdout.splitlines())) <= 80
    assert "heads added up" in found.stdout or "head added up" in found.stdout


def test_map_and_page_hold_every_head(measured: FlowResult) -> None:
    assert measured.trees is not None
    figure = tree_map(measured, measured.trees)
    assert len(figure.axes[0].texts) == 12
    view = view_of("flow")
    cards = list(view.facts(measured, []))
    assert [card.name for card in cards] == [head.name for head in measured.heads]
    assert all(set(card.values) == {scale.key for scale in view.scales} for card in cards)
    part = view.section(measured)
    assert part is not None
    assert part.chart is not None
    assert "random weights" in " ".join(part.texts)
    assert all(found.control != "-" for found in view.key_numbers(measured))


def test_one_sentence_leaves_everything_but_the_weights_unknown() -> None:
    loaded = headscope.wrap(tiny("bert"), tiny_tokenizer())
    loaded.model.resize_token_embeddings(len(tiny_tokenizer()))
    found = headscope.flow(loaded, sentences(1))
    assert found.sentences.measured_on == 0
    assert found.recovery.value.value is None
    assert found.trees is None
    assert found.graph.top_share.value is None
    assert found.heads[0].wide() is not None
    judged = headscope.insights(loaded, sections=headscope.results.Sections(flow=found))
    assert judged[1].verdict == "not measured"


def test_a_decoder_has_no_trees_and_looks_back_only() -> None:
    config = GPT2Config(
        vocab_size=len(tiny_tokenizer()), n_positions=64, n_embd=32, n_layer=2, n_head=4
    )
    torch.manual_seed(0)
    loaded = headscope.wrap(GPT2Model(config).eval(), tiny_tokenizer())
    found = headscope.flow(loaded, sentences(), control=False)
    assert found.trees is None
    assert found.heads[0].stack == "decoder"
    assert found.heads[0].recovery.whole.value is not None


def test_pruned_models_keep_the_names_of_their_heads() -> None:
    loaded = headscope.wrap(tiny("distilbert"), tiny_tokenizer())
    loaded.model.resize_token_embeddings(len(tiny_tokenizer()))
    small = headscope.remove_heads(loaded, [(0, 1), (1, 0), (1, 1), (1, 2), (1, 3), (2, 3)])
    found = headscope.flow(small, sentences())
    names = ["L0H0", "L0H2", "L0H3", "L2H0", "L2H1", "L2H2"]
    assert [head.name for head in found.heads] == names
    assert found.control is not None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--limit", "0"), "1 sentence"),
        (("--control-seeds", "1"), "2 or more"),
        (("--treebank", "nowhere.conllu"), "no file"),
    ],
)
def test_bad_input_is_one_sentence(
    run: Run, model: Path, options: tuple[str, ...], words: str
) -> None:
    found = run("flow", model, *options)
    assert found.code != 0
    assert found.stdout == ""
    assert words in found.stderr
    assert found.stderr.count("\n") == 1
