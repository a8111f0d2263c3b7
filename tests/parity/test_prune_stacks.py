"""Pruning the stacks of tiny encoder-decoder models, against plain loops through transformers."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import out_name
from measuring import measured
from tiny_models import (
    OTHERS,
    SOURCES,
    framed_tokenizer,
    own_pairs,
    tiny_bert,
    translator,
    write_pairs,
)
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

import headscope
from headscope.core.errors import CorpusError, InputError
from headscope.core.serialise import from_dict, to_dict
from headscope.models.run.loaded import LoadedModel
from headscope.pruning.result import PruneResult
from headscope.tasks.seq2seq import Seq2Seq

STACKS = ("encoder", "decoder", "cross")
KINDS = ("bart", "t5")
#: A head, as prune names it; evaluation and calibration pairs of each kind of model.
Place = tuple[str, int, int]
Files = Mapping[str, tuple[Path, Path]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("pairs")
    return {
        kind: (
            write_pairs(folder / f"{kind}.tsv", own_pairs(translator(kind), SOURCES)),
            write_pairs(folder / f"{kind}-others.tsv", own_pairs(translator(kind), OTHERS)),
        )
        for kind in KINDS
    }


@functools.cache
def opened(kind: str) -> LoadedModel:
    """A model that no test changes."""
    return headscope.wrap(translator(kind).double(), framed_tokenizer("$A [SEP]"), name=kind)


@pytest.fixture
def unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is decoded: it takes longest, and no token accuracy hangs on it."""
    monkeypatch.setattr(Seq2Seq, "decode", lambda task, *_: list(task._targets))


def pruned(kind: str, files: Files, **options: Any) -> PruneResult:
    data, chosen = files[kind]
    options = {"task": "seq2seq", "data": data, "calibration": chosen, **options}
    return headscope.prune(opened(kind), **options)


def without(kind: str, places: Sequence[Place]) -> Any:
    """The network with zeros in W_O where heads are gone."""
    network = translator(kind).double()
    maps = output_maps(kind, network)
    for stack, layer, head in places:
        maps[stack, layer].weight.data[:, 4 * head : 4 * head + 4] = 0.0
    return network


@functools.cache
def pairs_of(path: Path) -> list[tuple[Tensor, Tensor]]:
    """Token ids of each source and target, without padding."""
    tokenizer = framed_tokenizer("$A [SEP]")
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    ids = [[torch.tensor([tokenizer(text).input_ids]) for text in line] for line in lines]
    return [(source, target) for source, target in ids]


def logits_of(network: Any, source: Tensor, target: Tensor) -> Tensor:
    start = torch.full((1, 1), network.config.decoder_start_token_id)
    return network(
        input_ids=source, decoder_input_ids=torch.cat([start, target[:, :-1]], dim=1)
    ).logits[0]


def output_maps(kind: str, network: Any) -> dict[tuple[str, int], torch.nn.Linear]:
    """W_O of every layer of every stack, by the names of transformers."""
    return {
        (stack, layer): network.get_submodule(out_name(kind, stack, layer).removesuffix(".weight"))
        for stack, layer in itertools.product(STACKS, range(2))
    }


@torch.no_grad()
def hits_of(network: Any, path: Path) -> list[tuple[int, int]]:
    """Guessed tokens and tokens of every pair."""
    hits = []
    for source, target in pairs_of(path):
        guess = logits_of(network, source, target).argmax(dim=-1)
        hits.append((int((guess == target[0]).sum()), target.shape[1]))
    return hits


@functools.cache
def hits_without(kind: str, places: tuple[Place, ...], path: Path) -> list[tuple[int, int]]:
    return hits_of(without(kind, places), path)


def value_without(kind: str, places: Sequence[Place], path: Path) -> float:
    """Token accuracy, times 100."""
    hits = hits_without(kind, tuple(places), path)
    return 100 * sum(hit for hit, _ in hits) / sum(size for _, size in hits)


@pytest.mark.usefixtures("unwritten")
@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_every_repair_runs_on_every_stack(kind, files):
    """Methods on one layout, every repair on another: they do not depend on each other."""
    data = files[kind][0]
    methods = {"bart": ["fisher", "magnitude", "random"], "t5": ["surgeon", "random"]}[kind]
    repairs = {"bart": ["none"], "t5": ["none", "scale", "surgeon"]}[kind]
    options = {"methods": methods, "repairs": repairs, "fractions": [0.5]}
    result = pruned(kind, files, **options)
    assert (result.stack, result.roles, result.metric) == ("all", (), "token_accuracy")
    assert [stack.stack for stack in result.stacks] == list(STACKS)
    curves_of_stacks = [(result.curves, result.n_heads, "all")]
    curves_of_stacks += [(stack.curves, stack.n_heads, stack.stack) for stack in result.stacks]
    assert [n_heads for _, n_heads, _ in curves_of_stacks] == [24, 8, 8, 8]
    for curves, n_heads, name in curves_of_stacks:
        assert len(curves) == len(repairs) * (len(methods) - 1) + 1
        for curve in curves:
            unpruned, half = curve.points
            assert unpruned.value == result.baseline.value
            assert len(half.heads_removed) == n_heads / 2
            assert name == "all" or {head[0] for head in half.heads_removed} == {name}
            if curve.method == "random":
                assert half.metrics is None
                continue
            assert list(half.metrics) == ["token_accuracy", "exact_match", "bleu"]
            if curve.repair == "none":
                assert half.value.value == pytest.approx(
                    value_without(kind, half.heads_removed, data)
                )
    assert from_dict(PruneResult, to_dict(result)) == result
    # The scores of each stack name its layers.
    assert list(result.scores[0].layers) == list(itertools.product(STACKS, range(2)))
    assert result.stacks[2].scores[0].names == ("cross:L0", "cross:L1")


@pytest.mark.usefixtures("unwritten")
def test_areas_and_gaps_are_those_of_plain_loops(files):
    """Of a method over resampled examples, of random heads over draws."""
    result = pruned(
        "bart", files, methods=["magnitude", "random"], repairs=["none"], step=0.25, seed=3
    )
    assert (len(result.areas), len(result.gaps)) == (6, 12)
    n = len(SOURCES)
    drawn = np.random.default_rng(3).integers(0, n, size=(1000, n)).tolist()
    areas: dict[tuple[str, str], Any] = {}
    resampled: dict[tuple[str, str], Any] = {}

    def area(values: Sequence[float]) -> float:
        """From the first to the last head removed: from a quarter of them to three quarters."""
        return sum(0.25 * (a + b) / 2 for a, b in itertools.pairwise(values)) / 0.5

    for stack in result.stacks:
        magnitude, chance = stack.curves
        assert (magnitude.method, chance.method) == ("magnitude", "random")
        assert [point.fraction for point in magnitude.points] == [0.0, 0.25, 0.5, 0.75, 1.0]
        hits = [
            hits_without("bart", point.heads_removed, files["bart"][0])
            for point in magnitude.points[1:-1]
        ]

        def of_rows(rows: Any, hits: Any = hits) -> float:
            values = []
            for hits_at_point in hits:
                correct = sum(hits_at_point[i][0] for i in rows)
                tokens = sum(hits_at_point[i][1] for i in rows)
                values.append(100 * correct / tokens)
            return area(values)

        by_draw = [area([p.draws[i].value for p in chance.points[1:-1]]) for i in range(5)]
        areas["magnitude", stack.stack] = of_rows(range(n))
        resampled["magnitude", stack.stack] = np.array([of_rows(rows) for rows in drawn])
        areas["random", stack.stack] = np.mean(by_draw)
        resampled["random", stack.stack] = np.array(by_draw)
    assert len(set(resampled["random", "cross"])) > 1

    def interval(method: str, values: Any) -> Any:
        if method == "magnitude":
            return pytest.approx(np.percentile(values, [2.5, 97.5]), abs=1e-9)
        half = 2.7764 * values.std(ddof=1) / 5**0.5  # t of 4 degrees of freedom, two-sided 5%
        return pytest.approx((values.mean() - half, values.mean() + half), abs=1e-3)

    for one in result.areas:
        key = (one.method, one.stack)
        assert one.inner.value == pytest.approx(areas[key], abs=1e-9)
        assert one.inner.interval == interval(one.method, resampled[key])
    for gap in result.gaps:
        key = (gap.method, gap.stack)
        other = (gap.method, gap.other)
        assert gap.inner.value == pytest.approx(areas[key] - areas[other], abs=1e-9)
        assert gap.inner.interval == interval(gap.method, resampled[key] - resampled[other])


@pytest.mark.usefixtures("unwritten")
def test_a_stack_alone_is_what_it_is_beside_the_others(files):
    options = {"methods": ["surgeon", "random"], "repairs": ["none"], "fractions": [0.5]}
    together = pruned("t5", files, **options)
    for stack in together.stacks[1:]:
        alone = pruned("t5", files, **options, stack=stack.stack)
        assert (alone.curves, alone.scores) == (stack.curves, stack.scores)
        assert (alone.stacks, alone.areas, alone.gaps) == ((), (), ())


@pytest.mark.usefixtures("unwritten")
def test_roles_are_given_or_asked_for(files):
    for choice in ({"methods": ["roles"]}, {"keep_roles": ["positional"]}):
        with pytest.raises(InputError, match="what the heads do, and for the task seq2seq"):
            pruned("bart", files, **choice)
    # A classification in which the first head of every layer is positional.
    loaded = opened("bart")
    encoder = headscope.classify(loaded.only("encoder"), limit=8)
    heads = []
    for site, head in itertools.product(loaded.sites, range(4)):
        roles, primary = (("positional",), "positional") if head == 0 else ((), "none")
        address = {"stack": site.stack, "layer": site.layer, "head": head}
        labels = {"roles": roles, "primary": primary, "confidence": head / 4, "labels": ()}
        heads.append(dataclasses.replace(encoder.heads[head], **address, **labels))
    known = dataclasses.replace(encoder, heads=tuple(heads))
    result = pruned(
        "bart", files, methods=["roles"], repairs=["none"], fractions=[0.25], roles=known
    )
    assert {head for _, _, head in result.curves[0].points[1].heads_removed} == {0}
    assert result.curves[0].points[1].roles_left == {"positional": 0}
    for stack in result.stacks:
        unpruned, point = stack.curves[0].points
        assert point.heads_removed == ((stack.stack, 0, 0), (stack.stack, 1, 0))
        assert (unpruned.roles_left, point.roles_left) == ({"positional": 2}, {"positional": 0})
    by_roles = pruned("bart", files, keep_roles=["positional"], roles=known)
    assert {head for _, _, head in by_roles.curves[0].points[0].heads_removed} == {1, 2, 3}


def test_the_saved_model_is_the_measured(files, tmp_path):
    kind = "bart"
    folder = tmp_path / "model"
    data, chosen = files[kind]
    translator(kind).save_pretrained(folder)
    framed_tokenizer("$A [SEP]").save_pretrained(folder)
    texts = {"task": "seq2seq", "data": data, "calibration": chosen, "dtype": "float64"}
    options = {"stack": "cross", "methods": ["fisher"], "repairs": ["scale"], "fractions": [0.5]}
    result = headscope.prune(str(folder), **texts, **options, save=tmp_path / "small")
    point = result.curve("fisher", "scale").points[1]
    assert result.saved.measured == pytest.approx(point.value.value)
    again = measured(str(tmp_path / "small"), "seq2seq", data, dtype="float64")
    assert again.metrics == pytest.approx(point.metrics)
    small = headscope.load(str(tmp_path / "small"), task_head="auto", dtype="float64")
    assert sum(site.n_heads for site in small.sites) == 24 - len(point.heads_removed)
    assert headscope.validate(small).passed
    network = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "small", dtype="float64").eval()
    hits = hits_of(network, data)
    correct = sum(correct_tokens for correct_tokens, _ in hits)
    tokens = sum(n_tokens for _, n_tokens in hits)
    assert point.value.value == pytest.approx(100 * correct / tokens, abs=1e-4)


def test_heads_by_hand_are_named_with_their_stack(files):
    result = pruned("bart", files, heads="cross:L0H1,encoder:L1H*,decoder:L1H2")
    (point,) = result.curves[0].points
    removed = (*(("encoder", 1, h) for h in range(4)), ("decoder", 1, 2), ("cross", 0, 1))
    assert point.heads_removed == removed
    assert point.value.value == pytest.approx(value_without("bart", removed, files["bart"][0]))


def test_slips_of_stack_and_task_are_named(tmp_path, files):
    bert = str(tiny_bert(tmp_path / "bert"))
    with pytest.raises(InputError, match="has no stack 'cross'; it has encoder"):
        headscope.prune(bert, heads="L0H0", stack="cross")
    with pytest.raises(InputError, match="runs the encoder of bart only; choose the stack encoder"):
        headscope.prune(opened("bart"), stack="cross")
    data = files["bart"][0]
    with pytest.raises(InputError, match=r"pairs of source and target: give a calibration file"):
        pruned("bart", files, calibration=None)
    with pytest.raises(InputError, match="is no encoder-decoder model"):
        measured(bert, "seq2seq", data)
    (tmp_path / "one.tsv").write_text("the cat\ta dog\n")
    with pytest.raises(CorpusError, match="one example"):
        pruned("bart", {"bart": (tmp_path / "one.tsv", data)}, heads="cross:L0H0")
    result = pruned("bart", files, calibration=data, fractions=[0.5], stack="cross")
    assert "heads are chosen on what they are measured on" in result.warnings[0]
