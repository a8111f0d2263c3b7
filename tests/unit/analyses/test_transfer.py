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
from headscope.analyses.transfer import TRAINED
from headscope.analyses.transfer.result import TransferResult
from headscope.analyses.transfer.view import blocks
from headscope.commands import COMMANDS
from headscope.core.errors import CorpusError, InputError
from headscope.core.serialise import SCHEMA, from_dict, to_dict
from headscope.data.reversed_phrases import reversed_phrases
from headscope.models.run.loaded import LoadedModel
from headscope.show.blocks import Table

Files = tuple[Path, Path]
Tune = Callable[..., TransferResult]
#: Little of everything.
FEW: dict[str, Any] = {
    "sizes": [32],
    "seeds": 2,
    "spread_seeds": 2,
    "random": [],
    "search": False,
    "validate": False,
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return headscope.load(str(tiny_bert(tmp_path_factory.mktemp("bert"))))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
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
            verb = rng.choice(("ran", "sat"))
            lines.append(f"{rest} {path.name[:2]} {i} {animal} {verb}\t{animal}\n")
        path.write_text("".join(lines))
    return paths


@pytest.fixture(scope="module")
def tune(bert: LoadedModel, files: Files) -> Tune:
    def call(model: LoadedModel = bert, **options: Any) -> TransferResult:
        return headscope.transfer(model, *files, **{**FEW, **options})

    return call


def test_the_model_stays_as_it_was_and_the_same_comes_twice(bert, tune):
    before = {name: p.clone() for name, p in bert.model.named_parameters()}
    options = {"random": ["weights"], "variants": ["layernorm", "weights"], "steps": 3}
    first = to_dict(tune(**options))
    second = to_dict(tune(**options))
    for name, p in bert.model.named_parameters():
        assert torch.equal(p, before[name])
        assert p.grad is None
    del first["provenance"]["created"]
    del second["provenance"]["created"]
    assert first == second
    other = tune(**options, seed=1)
    accuracies = [run["accuracy"]["value"] for run in first["runs"]]
    assert [run.accuracy.value for run in other.runs] != accuracies


def test_each_variant_trains_what_it_says(bert, tune):
    result = tune(steps=2, seeds=1, spread_seeds=1)
    sizes = {n: p.numel() for n, p in bert.model.named_parameters() if "pooler" not in n}
    assert {cell.variant: cell.parameters for cell in result.cells} == {
        "head": 0,
        **dict.fromkeys(("layernorm", "biases", "weights", "lora"), 2 * 32 * 5),
        "all_biases": sum(size for name, size in sizes.items() if "bias" in name),
        "attention": 2 * 4 * (32 * 32 + 32),
        "all": sum(sizes.values()),
    }
    assert result.schema == SCHEMA
    assert from_dict(COMMANDS["transfer"].result, to_dict(result)) == result
    assert len(result.to_frame()) == len(result.cells) + len(result.baselines)
    assert len(result.curves_frame()) == sum(len(run.curve) for run in result.runs)


def test_an_absurd_rate_diverges_and_is_counted(tune):
    """Far too large a rate for LayerNorm; attention keeps its own."""
    options = {"variants": ["layernorm", "attention"], "rates": {"layernorm": (1e3,)}}
    result = tune(**options, steps=12)
    assert result.cell("layernorm", "pretrained", 32).diverged == 2
    assert result.cell("attention", "pretrained", 32).diverged == 0
    (spread,) = result.spreads
    assert (spread.bad, spread.other_bad, spread.tries) == (0, 6, 6)
    counts = [(c.variant, c.factor, c.diverged) for c in result.divergence if c.diverged]
    assert counts == [("layernorm", factor, 2) for factor in (1.0, 3.0, 10.0)]
    assert all(c.runs == 2 for c in result.divergence)
    for run in result.runs:
        assert run.diverged == (run.curve[-1].train_loss > 1.1 * run.curve[0].train_loss)
    seeds = [run.seed for run in result.runs if run.variant == "attention"]
    assert sorted(seeds) == list(range(6))
    rates = {run.factor: run.rate for run in result.runs if run.variant == "layernorm"}
    assert rates == {1.0: 1e3, 3.0: 3e3, 10.0: 1e4}
    # A run that diverged and did no better than chance counts once.
    (table,) = [block for block in blocks(result) if isinstance(block, Table)]
    failed = {row[0]: row[5] for row in table.rows}
    assert failed["LayerNorm only"] == "2 of 2"


def test_losses_that_are_not_finite_end_a_run(tune):
    for run in tune(variants=["all"], rates={"all": (1e38,)}, steps=12).runs:
        assert run.diverged
        assert run.steps < 12
        assert (run.curve[-1].train_loss, run.kept_step) == (None, 0)


def test_the_search_keeps_the_lowest_validation_loss(tune):
    rates = {"head": (1e-6, 1e-2, 1e3)}
    result = tune(variants=["head"], rates=rates, steps=24, search=True)
    losses = {tried.rate: tried.validation_loss for tried in result.searched}
    assert set(losses) == {1e-6, 1e-2, 1e3}
    chosen = [tried.rate for tried in result.searched if tried.chosen]
    assert chosen == [min(losses, key=losses.__getitem__)] == [1e-2]
    assert {run.rate for run in result.runs} == {1e-2}
    assert result.cells[0].optimum == "inside"
    # What is separable in the frozen states needs no tuning, nor a model at all.
    accuracy_of_words = {row.name: row.accuracy.value for row in result.baselines}["words"]
    assert result.cells[0].accuracy.value > 90
    assert accuracy_of_words > 90
    assert (result.task, result.classes) == ("train.tsv -> test.tsv", ("cat", "dog"))


def test_a_model_whose_last_norm_passes_nothing_on_cannot_be_tuned_at_any_rate(bert, tune):
    dead = copy.deepcopy(bert)
    with torch.no_grad():
        dead.model.encoder.layer[-1].output.LayerNorm.weight.zero_()
    result = tune(dead, variants=["weights"], steps=10, search=True, seeds=1)
    assert result.cells[0].optimum == "lowest"
    assert len(result.searched) == 3


@pytest.mark.parametrize(
    ("rates", "optimum", "grown"),
    [
        ((1e-6, 3e-6, 1e-5), "edge", [5]),  # five rates more, and the best is still the highest
        ((3.0, 10.0, 30.0), "inside", [1, 2, 3, 4, 5]),
    ],
)
def test_a_grid_grows_while_its_best_rate_lies_at_an_edge(tune, rates, optimum, grown):
    result = tune(variants=["head"], rates={"head": rates}, search=True, seeds=1)
    (cell,) = result.cells
    tried = sorted(row.rate for row in result.searched)
    assert cell.optimum == optimum
    assert set(rates) <= set(tried)
    assert len(tried) - len(rates) in grown
    assert (cell.rate in (tried[0], tried[-1])) == (optimum != "inside")


def test_what_the_budget_does_not_reach_is_said(tune, monkeypatch):
    clock = itertools.count()  # goes on by one second each time it is read
    monkeypatch.setattr(
        "headscope.analyses.transfer.run.time.monotonic", lambda: float(next(clock))
    )
    result = tune(steps=6, budget=30.0, seeds=3, spread_seeds=3, random=["head"])
    assert result.missed
    assert result.runs

    # Every run of every cell was done or is said to be missed.
    cells = {*itertools.product(TRAINED, ["pretrained"]), ("head", "random")}
    runs = [run for run in result.runs if run.factor == 1]
    missed = [run for run in result.missed if run.factor == 1]
    listed = {((run.variant, run.weights), run.seed) for run in (*runs, *missed)}
    assert listed == set(itertools.product(cells, range(3)))
    assert len(listed) == len(runs) + len(missed)
    stressed = {(run.variant, run.seed) for run in (*result.runs, *result.missed) if run.factor > 1}
    assert stressed == set(itertools.product(("attention", "layernorm"), range(3, 9)))

    # Seeds are reached one after the other, by all variants that claims compare.
    last = max(run.seed for run in runs)
    reached = {(run.variant, run.weights) for run in runs if run.seed < last}
    not_compared = {("all_biases", "pretrained"), ("head", "random")}
    assert last == 0 or reached >= cells - not_compared


def test_test_examples_are_never_trained_on(bert, tmp_path):
    train, test = written(tmp_path)
    train.write_text(train.read_text() + "".join(test.read_text().splitlines(True)[1:]))
    result = headscope.transfer(bert, train, test, variants=["head"], steps=2, **FEW)
    assert (result.dropped, result.validation_examples) == (60, 20)
    with pytest.raises(CorpusError, match="has 0 examples that"):
        headscope.transfer(bert, test, test, **FEW)
    # A class that training lacks is refused.
    test.write_text(test.read_text() + "a bird\tbird\n")
    with pytest.raises(CorpusError, match="label 'bird'"):
        headscope.transfer(bert, train, test, **FEW)


@pytest.mark.parametrize(
    ("options", "words"),
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
def test_bad_input_is_one_sentence(bert, files, options, words):
    train, test = files
    with pytest.raises(InputError, match=words):
        headscope.transfer(bert, **{"train": train, "test": test, **FEW, **options})


def test_the_built_in_task_can_be_read_from_order_alone():
    """Both classes have the same words: without order nothing tells them apart."""
    train, test = reversed_phrases()
    other = reversed_phrases(seed=1)
    assert (len(train), len(test)) == (320, 192)
    for examples, again in zip((train, test), other, strict=True):
        assert examples.labels.count("reversed") == len(examples) // 2
        labelled = zip(examples.first, examples.labels, strict=True)
        labelled_again = zip(again.first, again.labels, strict=True)
        for (text, label), (text_again, label_again) in zip(labelled, labelled_again, strict=True):
            assert sorted(text.split()) == sorted(text_again.split())
            assert (text == text_again) is (label == label_again)
    # Train and test share no sentence and no near copy.
    train_words = [set(text.split()) for text in train.first]
    test_words = [set(text.split()) for text in test.first]
    for words, words_of_test in itertools.product(train_words, test_words):
        assert len(words & words_of_test) / len(words | words_of_test) < 0.6
    # By hand: The old lighthouse | blinked | twice | before the fog swallowed it.
    assert train.first[0] == "lighthouse old the blinked twice it swallowed fog the before ."
    assert train.labels[0] == "reversed"
