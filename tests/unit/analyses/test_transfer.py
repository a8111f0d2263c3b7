"""Fine-tuning on tiny models: planted winners, budgets, divergence, the same twice."""

import copy
import itertools
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import tiny_bert

import headscope
from headscope.analyses.transfer.result import TransferResult
from headscope.analyses.transfer.view import blocks
from headscope.commands import COMMANDS
from headscope.core.errors import CorpusError, InputError
from headscope.core.serialise import SCHEMA, from_dict, to_dict
from headscope.data.annotated import reversed_phrases
from headscope.models.run.loaded import LoadedModel
from headscope.show.blocks import Table

Files = tuple[Path, Path]
Tune = Callable[..., TransferResult]
#: Little of everything.
FEW: dict[str, Any] = {
    **{"sizes": [32], "seeds": 2, "spread_seeds": 2},
    **{"random": [], "search": False, "validate": False},
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return headscope.load(str(tiny_bert(tmp_path_factory.mktemp("bert"))))


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Sentences with a cat, or with a dog: linearly separable from the frozen states."""
    return written(tmp_path_factory.mktemp("words"))


def written(folder: Path) -> Files:
    rng = random.Random(0)
    paths = (folder / "train.tsv", folder / "test.tsv")
    for path, n in zip(paths, (100, 60), strict=True):
        lines = ["sentence\tlabel\n"]
        for i in range(n):
            animal = rng.choice(("cat", "dog"))
            rest = " ".join(rng.choices(["the", "a", "big", "red", "mat", "house"], k=5))
            end = rng.choice(("ran", "sat"))
            lines.append(f"{rest} {path.name[:2]} {i} {animal} {end}\t{animal}\n")
        path.write_text("".join(lines))
    return paths


@pytest.fixture(scope="module")
def tune(bert: LoadedModel, words: Files) -> Tune:
    def call(model: LoadedModel = bert, **options: Any) -> TransferResult:
        return headscope.transfer(model, *words, **{**FEW, **options})

    return call


def test_the_model_stays_as_it_was_and_the_same_comes_twice(bert, tune):
    before = {name: p.clone() for name, p in bert.model.named_parameters()}
    options = {"random": ["weights"], "variants": ["layernorm", "weights"], "steps": 3}
    first, second = (to_dict(tune(**options)) for _ in range(2))
    for name, p in bert.model.named_parameters():
        assert torch.equal(p, before[name])
        assert p.grad is None
    for found in (first, second):
        del found["provenance"]["created"]
    assert first == second
    other = tune(**options, seed=1)
    accuracies = [run["accuracy"]["value"] for run in first["runs"]]
    assert [run.accuracy.value for run in other.runs] != accuracies


def test_each_variant_trains_what_it_says(bert, tune):
    found = tune(steps=2, seeds=1, spread_seeds=1)
    whole = {n: p.numel() for n, p in bert.model.named_parameters() if "pooler" not in n}
    assert {c.variant: c.parameters for c in found.cells} == {
        "head": 0,
        **dict.fromkeys(("layernorm", "biases", "weights", "lora"), 2 * 32 * 5),
        "all_biases": sum(size for name, size in whole.items() if "bias" in name),
        "attention": 2 * 4 * (32 * 32 + 32),
        "all": sum(whole.values()),
    }
    assert found.schema == SCHEMA
    assert from_dict(COMMANDS["transfer"].result, to_dict(found)) == found
    assert len(found.to_frame()) == len(found.cells) + len(found.baselines)
    assert len(found.curves_frame()) == sum(len(run.curve) for run in found.runs)


def test_an_absurd_rate_diverges_and_is_counted(tune):
    """Far too large a rate for LayerNorm; attention keeps its own."""
    options = {"variants": ["layernorm", "attention"], "rates": {"layernorm": (1e3,)}}
    found = tune(**options, steps=12)
    assert found.cell("layernorm", "pretrained", 32).diverged == 2
    assert found.cell("attention", "pretrained", 32).diverged == 0
    (spread,) = found.spreads
    assert (spread.bad, spread.other_bad, spread.tries) == (0, 6, 6)
    counts = [(c.variant, c.factor, c.diverged) for c in found.divergence if c.diverged]
    assert counts == [("layernorm", factor, 2) for factor in (1.0, 3.0, 10.0)]
    assert all(c.runs == 2 for c in found.divergence)
    for run in found.runs:
        assert run.diverged == (run.curve[-1].train_loss > 1.1 * run.curve[0].train_loss)
    seeds = [run.seed for run in found.runs if run.variant == "attention"]
    assert sorted(seeds) == list(range(6))
    rates = {run.factor: run.rate for run in found.runs if run.variant == "layernorm"}
    assert rates == {1.0: 1e3, 3.0: 3e3, 10.0: 1e4}
    # A run that diverged and did no better than chance counts once.
    (table,) = (block for block in blocks(found) if isinstance(block, Table))
    assert {row[0]: row[5] for row in table.rows}["LayerNorm only"] == "2 of 2"
    # Losses that are not finite end a run.
    for run in tune(variants=["all"], rates={"all": (1e38,)}, steps=12).runs:
        assert run.diverged
        assert run.steps < 12
        assert (run.curve[-1].train_loss, run.kept_step) == (None, 0)


def test_the_search_keeps_the_lowest_validation_loss(bert, tune):
    rates = {"head": (1e-6, 1e-2, 1e3)}
    found = tune(variants=["head"], rates=rates, steps=24, search=True)
    losses = {t.rate: t.validation_loss for t in found.searched}
    assert set(losses) == {1e-6, 1e-2, 1e3}
    chosen = [t.rate for t in found.searched if t.chosen]
    assert chosen == [min(losses, key=losses.__getitem__)] == [1e-2]
    assert {run.rate for run in found.runs} == {1e-2}
    # What is separable in the frozen states needs no tuning, nor a model at all.
    assert found.cells[0].accuracy.value > 90
    assert {b.name: b.accuracy.value for b in found.baselines}["words"] > 90
    assert (found.task, found.classes) == ("train.tsv -> test.tsv", ("cat", "dog"))
    assert found.cells[0].optimum == "inside"
    # A model whose last norm passes nothing on cannot be tuned by other weights, at any rate.
    dead = copy.deepcopy(bert)
    with torch.no_grad():
        dead.model.encoder.layer[-1].output.LayerNorm.weight.zero_()
    found = tune(dead, variants=["weights"], steps=10, search=True, seeds=1)
    assert found.cells[0].optimum == "lowest"
    assert len(found.searched) == 3


@pytest.mark.parametrize(
    ("rates", "optimum", "grown"),
    [
        ((1e-6, 3e-6, 1e-5), "edge", [5]),  # five rates more, and the best is still the highest
        ((3.0, 10.0, 30.0), "inside", [1, 2, 3, 4, 5]),
    ],
)
def test_a_grid_grows_while_its_best_rate_lies_at_an_edge(tune, rates, optimum, grown):
    found = tune(variants=["head"], rates={"head": rates}, search=True, seeds=1)
    (cell,) = found.cells
    tried = sorted(t.rate for t in found.searched)
    assert cell.optimum == optimum
    assert set(rates) <= set(tried)
    assert len(tried) - len(rates) in grown
    assert (cell.rate in (tried[0], tried[-1])) == (optimum != "inside")


def test_what_the_budget_does_not_reach_is_said(tune, monkeypatch):
    clock = itertools.count()  # goes on by one second with every look at it
    monkeypatch.setattr(
        "headscope.analyses.transfer.run.time.monotonic", lambda: float(next(clock))
    )
    found = tune(steps=6, budget=30.0, seeds=3, spread_seeds=3, random=["head"])
    variants = ("head", "layernorm", "biases", "weights", "attention", "lora", "all_biases", "all")
    wanted = {*((variant, "pretrained") for variant in variants), ("head", "random")}
    missed = [(m.variant, m.weights, m.seed) for m in found.missed if m.factor == 1]
    runs = [run for run in found.runs if run.factor == 1]
    seen = [*((r.variant, r.weights, r.seed) for r in runs), *missed]
    assert sorted(seen) == sorted((*pair, seed) for pair in wanted for seed in range(3))
    stressed = [(m.variant, m.seed) for m in found.missed if m.factor > 1]
    stressed += [(run.variant, run.seed) for run in found.runs if run.factor > 1]
    assert sorted(stressed) == [(v, s) for v in ("attention", "layernorm") for s in range(3, 9)]
    assert found.missed
    assert found.runs
    # Seeds are reached one after the other, by all variants that claims compare.
    last = max((run.seed for run in runs), default=0)
    reached = {(r.variant, r.weights) for r in runs if r.seed < last}
    beside = {("all_biases", "pretrained"), ("head", "random")}
    assert not last or reached >= wanted - beside


def test_test_examples_are_never_trained_on(bert, tmp_path):
    train, test = written(tmp_path)
    train.write_text(train.read_text() + "".join(test.read_text().splitlines(True)[1:]))
    found = headscope.transfer(bert, train, test, variants=["head"], steps=2, **FEW)
    assert (found.dropped, found.validation_examples) == (60, 20)
    with pytest.raises(CorpusError, match="has 0 examples that"):
        headscope.transfer(bert, test, test, **FEW)
    # A class that training lacks is refused.
    test.write_text(test.read_text() + "a bird\tbird\n")
    with pytest.raises(CorpusError, match="label 'bird'"):
        headscope.transfer(bert, train, test, **FEW)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sizes": [5000]}, "5000, but the training part holds 80"),
        ({"variants": ["layer"]}, "no variant 'layer'"),
        ({"seeds": 0}, "one seed or more"),
        ({"budget": 0.0}, "budget is 0"),
        ({"budget": math.inf}, "budget is inf"),
        ({"train_limit": -5}, "train_limit is -5; give 10 examples or more"),
        ({"rates": {"all": (-1.0,)}}, "positive"),
        ({"test": None}, "both train and test"),
    ],
)
def test_bad_input_is_one_sentence(bert, words, options, said):
    with pytest.raises(InputError, match=said):
        headscope.transfer(bert, **{"train": words[0], "test": words[1], **FEW, **options})


def test_the_built_in_task_can_be_read_from_order_alone():
    """Both classes have the same words: without order nothing tells them apart."""
    train, test = reversed_phrases()
    other = reversed_phrases(seed=1)
    assert (len(train), len(test)) == (320, 192)
    for part, again in zip((train, test), other, strict=True):
        assert part.labels.count("reversed") == len(part) // 2
        for one, two, a, b in zip(part.first, again.first, part.labels, again.labels, strict=True):
            assert sorted(one.split()) == sorted(two.split())
            assert one == two if a == b else one != two
    # Train and test share no sentence and no near copy.
    train_words, test_words = ([set(text.split()) for text in part.first] for part in (train, test))
    assert max(len(a & b) / len(a | b) for a in train_words for b in test_words) < 0.6
    # By hand: The old lighthouse | blinked | twice | before the fog swallowed it.
    assert train.first[0] == "lighthouse old the blinked twice it swallowed fog the before ."
    assert train.labels[0] == "reversed"
