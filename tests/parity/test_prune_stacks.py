"""Pruning the stacks of tiny encoder-decoder models, against plain loops through transformers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import (
    OTHERS,
    SOURCES,
    framed_tokenizer,
    own_pairs,
    tiny_bert,
    tiny_tokenizer,
    translator,
    write_pairs,
)
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, GPT2Config, GPT2Model

import headscope
from headscope.errors import InputError
from headscope.models.loaded import LoadedModel
from headscope.pipeline.prune.calibrating import make_given
from headscope.pipeline.prune.repairing import _solve, _sums
from headscope.pipeline.tasks import make_task, read_examples
from headscope.pruning.methods import METHODS, rank
from headscope.results import ClassifyResult, PruneResult, from_dict, to_dict

KINDS = ("bart", "marian", "t5")
STACKS = ("encoder", "decoder", "cross")
each_kind = pytest.mark.parametrize("kind", KINDS)
each_view = pytest.mark.parametrize("stack", [*STACKS, "all"])
#: A head, as prune names it.
Place = tuple[str, int, int]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Evaluation and calibration pairs of each kind of model."""
    folder = tmp_path_factory.mktemp("pairs")
    return {
        kind: (
            write_pairs(folder / f"{kind}.tsv", own_pairs(translator(kind), SOURCES)),
            write_pairs(folder / f"{kind}-others.tsv", own_pairs(translator(kind), OTHERS)),
        )
        for kind in KINDS
    }


def opened(kind: str) -> LoadedModel:
    return headscope.wrap(translator(kind).double(), framed_tokenizer("$A [SEP]"), name=kind)


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
    found = {}
    for i in range(2):
        if kind == "t5":
            found["encoder", i] = network.encoder.block[i].layer[0].SelfAttention.o
            found["decoder", i] = network.decoder.block[i].layer[0].SelfAttention.o
            found["cross", i] = network.decoder.block[i].layer[1].EncDecAttention.o
        else:
            found["encoder", i] = network.model.encoder.layers[i].self_attn.out_proj
            found["decoder", i] = network.model.decoder.layers[i].self_attn.out_proj
            found["cross", i] = network.model.decoder.layers[i].encoder_attn.out_proj
    return found


def hits_without(kind: str, places: Sequence[Place], path: Path) -> list[tuple[int, int]]:
    """Guessed tokens and tokens of every pair, with zeros in W_O where heads are gone."""
    network = translator(kind).double()
    maps = output_maps(kind, network)
    for stack, layer, head in places:
        maps[stack, layer].weight.data[:, 4 * head : 4 * head + 4] = 0.0
    found = []
    with torch.no_grad():
        for source, target in pairs_of(path):
            guess = logits_of(network, source, target).argmax(dim=-1)
            found.append((int((guess == target[0]).sum()), target.shape[1]))
    return found


def value_without(kind: str, places: Sequence[Place], path: Path) -> float:
    """Token accuracy, times 100."""
    hits = hits_without(kind, places, path)
    return 100 * sum(hit for hit, _ in hits) / sum(size for _, size in hits)


# --- scores -------------------------------------------------------------------------------------


def slopes(kind: str, path: Path) -> dict[tuple[str, int], list[Tensor]]:
    """z . dL/dz of every head and query, pair by pair: each (n_heads, pos)."""
    network = translator(kind).double()
    found: dict[tuple[str, int], list[Tensor]] = {}
    for source, target in pairs_of(path):
        seen: dict[tuple[str, int], Tensor] = {}
        maps = output_maps(kind, network)
        hooks = [
            out.register_forward_pre_hook(partial(_keep, seen, place))
            for place, out in maps.items()
        ]
        log_p = logits_of(network, source, target).log_softmax(dim=-1)
        (-log_p[range(target.shape[1]), target[0]].mean()).backward()
        for hook in hooks:
            hook.remove()
        for place, z in seen.items():
            by_head = (z.detach() * z.grad)[0].reshape(-1, 4, 4).sum(dim=-1)
            found.setdefault(place, []).append(by_head.t())
    return found


def _keep(seen: dict[Any, Tensor], place: Any, _: Any, args: tuple[Tensor, ...]) -> None:
    args[0].retain_grad()
    seen[place] = args[0]


@each_kind
@each_view
@pytest.mark.parametrize("method", ["importance-token", "importance-example", "fisher"])
def test_scores_are_those_of_a_loop_over_single_pairs(
    kind: str, stack: str, method: str, files: Mapping[str, tuple[Path, Path]]
) -> None:
    """The pairs are padded together on our side; sources and targets differ in length."""
    path = files[kind][0]
    lengths = [(a.shape[1], b.shape[1]) for a, b in pairs_of(path)]
    assert len(set(lengths)) > 2
    assert any(a != b for a, b in lengths)
    view = opened(kind).only(stack)
    task = make_task("seq2seq", read_examples("seq2seq", path), view)
    given = make_given(view, task, roles={}, use_labels=True, budget=1, largest=1, seed=0)
    found = given.units.expand(rank(method, given, normalise=False).values)
    assert found.shape == (6 if stack == "all" else 2, 4)
    by_layer = slopes(kind, path)
    for site in view.sites:
        pairs = by_layer[site.stack, site.layer]
        expected = {
            "importance-token": torch.cat(pairs, dim=1).abs().mean(dim=1),
            "importance-example": torch.stack([p.sum(dim=1) for p in pairs]).abs().mean(dim=0),
            "fisher": (torch.stack([p.sum(dim=1) for p in pairs]) ** 2).sum(dim=0),
        }[method]
        torch.testing.assert_close(found[site.row], expected, rtol=1e-6, atol=1e-12)


@each_view
def test_scores_of_a_stack_are_public(stack: str, files: Mapping[str, tuple[Path, Path]]) -> None:
    found = headscope.scores(
        opened("bart"), "magnitude", task="seq2seq", calibration=files["bart"][1], stack=stack
    )
    every = [(name, layer) for name in STACKS for layer in range(2)]
    assert list(found.places) == [place for place in every if stack in (place[0], "all")]
    maps = output_maps("bart", translator("bart"))
    for (name, layer), row in zip(found.places, found.values, strict=True):
        out = maps[name, layer]
        assert len(row) == 4
        parts = out.weight.detach().reshape(-1, 4, 4).norm(dim=(0, 2)).tolist()
        assert all(value > part for value, part in zip(row, parts, strict=True))
    if stack == "cross":
        assert found.names == ("cross:L0", "cross:L1")


# --- curves -------------------------------------------------------------------------------------


#: Every method on one layout, every repair on another: they do not depend on each other.
REPAIRS = {"bart": ["none"], "t5": ["none", "scale", "mean", "refit"]}


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_every_method_and_repair_runs_on_every_stack(
    kind: str, files: Mapping[str, tuple[Path, Path]]
) -> None:
    data, chosen = files[kind]
    methods = [name for name, info in METHODS.items() if not info.needs_roles]
    if kind == "t5":
        methods = ["fisher-joint", "random"]
    found = headscope.prune(
        opened(kind),
        task="seq2seq",
        data=data,
        calibration=chosen,
        methods=methods,
        repairs=REPAIRS[kind],
        fractions=[0.5],
        ablation=True,
    )
    assert (found.stack, found.roles, found.metric) == ("all", (), "token_accuracy")
    assert [stack.stack for stack in found.stacks] == list(STACKS)
    every = [(found.curves, found.n_heads, "all")]
    every += [(stack.curves, stack.n_heads, stack.stack) for stack in found.stacks]
    assert [n_heads for _, n_heads, _ in every] == [24, 8, 8, 8]
    for curves, n_heads, name in every:
        assert len(curves) == len(REPAIRS[kind]) * (len(methods) - 1) + 1
        for curve in curves:
            whole, half = curve.points
            assert whole.value == found.baseline.value
            assert len(half.heads_removed) == n_heads / 2
            assert name == "all" or {place[0] for place in half.heads_removed} == {name}
            if curve.method == "random":
                assert half.metrics is None
                continue
            assert list(half.metrics) == ["token_accuracy", "exact_match", "bleu"]
            if curve.repair == "none":
                assert half.value == pytest.approx(value_without(kind, half.heads_removed, data))
    places = [(row.stack, row.layer, row.head) for row in found.ablation]
    assert places == [(s, layer, head) for s in STACKS for layer in range(2) for head in range(4)]
    for row, place in zip(found.ablation, places, strict=True):
        assert row.value == pytest.approx(value_without(kind, [place], data))
    layers = [(stack, layer) for stack in STACKS for layer in range(2)]
    assert [(row.stack, row.layer) for row in found.kept_alone] == layers
    for row in found.kept_alone:
        gone = [(row.stack, row.layer, head) for head in range(4) if head != row.head]
        assert row.value == pytest.approx(value_without(kind, gone, data))
    assert from_dict(PruneResult, to_dict(found)) == found


@each_kind
@pytest.mark.parametrize("stack", STACKS)
def test_refit_solves_the_regression_of_single_pairs(
    kind: str, stack: str, files: Mapping[str, tuple[Path, Path]]
) -> None:
    """W_O of layer 1 after head 1 of both layers is gone; every fourth pair is left out."""
    view, path = opened(kind).only(stack), files[kind][0]
    task = make_task("seq2seq", read_examples("seq2seq", path), view)
    gates = torch.ones(2, 4)
    gates[:, 1] = 0.0
    found = _solve(view.sites[1], _sums(view, task, gates, {}, [1]), gates[1], 2.0)
    whole, cut = translator(kind).double(), translator(kind).double()
    for layer in range(2):
        output_maps(kind, cut)[stack, layer].weight.data[:, 4:8] = 0.0
    parts = []
    for i, (source, target) in enumerate(pairs_of(path)):
        if i % 4 != 3:
            x, _, out = around(kind, whole, (stack, 1), source, target)
            x_cut, z, _ = around(kind, cut, (stack, 1), source, target)
            left = z[:, [0, 1, 2, 3, *range(8, 16)]]
            parts.append((left, x + out - x_cut, torch.full((len(z),), 1 / len(z))))
    z, wanted, weight = (torch.cat(each) for each in zip(*parts, strict=True))
    weight = (weight / weight.sum()).double()
    spread = ((weight @ z**2) - (weight @ z) ** 2).mean()
    now = output_maps(kind, whole)[stack, 1].weight.detach().t()[[0, 1, 2, 3, *range(8, 16)]]
    root, pull = weight.sqrt()[:, None], (2.0 * spread).sqrt() * torch.eye(12).double()
    left = torch.cat(
        [root * torch.cat([z, torch.ones(len(z), 1)], 1), torch.cat([pull, pull[:, :1] * 0], 1)]
    )
    solved = torch.linalg.lstsq(left, torch.cat([root * wanted, pull @ now])).solution
    torch.testing.assert_close(
        found.W[[0, 1, 2, 3, *range(8, 16)]], solved[:12], rtol=1e-6, atol=1e-8
    )
    torch.testing.assert_close(found.b, solved[12], rtol=1e-6, atol=1e-8)


def around(
    kind: str, network: Any, place: tuple[str, int], source: Tensor, target: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What queries of one layer are made from, its z, and what W_O makes of it: each (pos, ...)."""
    seen: dict[str, Tensor] = {}
    out = output_maps(kind, network)[place]
    query = next(
        module.q_proj if hasattr(module, "q_proj") else module.q
        for module in network.modules()
        if out in (getattr(module, "out_proj", None), getattr(module, "o", None))
    )
    hooks = [
        query.register_forward_pre_hook(lambda _, args: seen.update(x=args[0])),
        out.register_forward_hook(lambda _, args, y: seen.update(z=args[0], out=y)),
    ]
    with torch.no_grad():
        logits_of(network, source, target)
    for hook in hooks:
        hook.remove()
    return seen["x"][0], seen["z"][0], seen["out"][0]


def test_areas_and_gaps_are_those_of_plain_loops(files: Mapping[str, tuple[Path, Path]]) -> None:
    data, chosen = files["bart"]
    found = headscope.prune(
        opened("bart"),
        task="seq2seq",
        data=data,
        calibration=chosen,
        methods=["magnitude", "random"],
        repairs=["none"],
        step=0.25,
        seed=3,
    )
    assert len(found.areas) == 6
    assert len(found.gaps) == 12
    rng = np.random.default_rng(3)
    drawn = rng.integers(0, len(SOURCES), size=(1000, len(SOURCES))).tolist()
    areas, resampled = {}, {}
    for stack in found.stacks:
        (curve,) = (c for c in stack.curves if c.method == "magnitude")
        assert [point.fraction for point in curve.points] == [0.0, 0.25, 0.5, 0.75, 1.0]
        hits = [hits_without("bart", point.heads_removed, data) for point in curve.points]

        def value(at: list[tuple[int, int]], rows: Any) -> float:
            return 100 * sum(at[i][0] for i in rows) / sum(at[i][1] for i in rows)

        def area(rows: Any, hits: Any = hits) -> float:
            ends = [value(at, rows) for at in hits]
            return sum(0.25 * (a + b) / 2 for a, b in pairwise(ends))

        areas[stack.stack] = area(range(len(SOURCES)))
        resampled[stack.stack] = [area(rows) for rows in drawn]
    for one in (a for a in found.areas if a.method == "magnitude"):
        assert one.value == pytest.approx(areas[one.stack], abs=1e-9)
        ends = np.percentile(resampled[one.stack], [2.5, 97.5])
        assert one.ci == pytest.approx(tuple(ends), abs=1e-9)
    for gap in (g for g in found.gaps if g.method == "magnitude"):
        assert gap.difference == pytest.approx(areas[gap.stack] - areas[gap.other], abs=1e-9)
        both = zip(resampled[gap.stack], resampled[gap.other], strict=True)
        ends = np.percentile([a - b for a, b in both], [2.5, 97.5])
        assert gap.ci == pytest.approx(tuple(ends), abs=1e-9)


def test_areas_of_random_heads_vary_over_draws(files: Mapping[str, tuple[Path, Path]]) -> None:
    found = headscope.prune(
        opened("bart"),
        task="seq2seq",
        data=files["bart"][0],
        methods=["random"],
        repairs=["none"],
        step=0.5,
        draws=6,
    )
    by_draw = {}
    for stack in found.stacks:
        start, middle, end = stack.curves[0].points
        by_draw[stack.stack] = [
            (start.value + 2 * draw.value + end.value) / 4 for draw in middle.draws
        ]
    assert len(set(by_draw["cross"])) > 1
    t = 2.5706  # of 5 degrees of freedom, two-sided 5%
    for area in found.areas:
        values = by_draw[area.stack]
        half = t * np.std(values, ddof=1) / 6**0.5
        assert area.value == pytest.approx(np.mean(values))
        assert area.ci == pytest.approx((np.mean(values) - half, np.mean(values) + half), abs=1e-3)
    for gap in found.gaps:
        gaps = np.subtract(by_draw[gap.stack], by_draw[gap.other])
        half = t * gaps.std(ddof=1) / 6**0.5
        assert gap.ci == pytest.approx((gaps.mean() - half, gaps.mean() + half), abs=1e-3)


def test_a_stack_alone_is_what_it_is_beside_the_others(
    files: Mapping[str, tuple[Path, Path]],
) -> None:
    data, chosen = files["t5"]
    options = {"task": "seq2seq", "data": data, "calibration": chosen, "step": 0.5}
    together = headscope.prune(opened("t5"), **options)
    for stack in together.stacks:
        alone = headscope.prune(opened("t5"), **options, stack=stack.stack)
        assert (alone.curves, alone.scores) == (stack.curves, stack.scores)
        assert (alone.stacks, alone.areas, alone.gaps) == ((), (), ())


def test_the_bar_never_jumps_back(files: Mapping[str, tuple[Path, Path]]) -> None:
    seen: list[tuple[str, int, int]] = []
    headscope.prune(
        opened("bart"),
        task="seq2seq",
        data=files["bart"][0],
        calibration=files["bart"][1],
        methods=["fisher-joint", "ablation", "random"],
        step=0.5,
        progress=lambda *told: seen.append(told),
    )
    bars: dict[str, list[tuple[int, int]]] = {}
    for name, done, total in seen:
        bars.setdefault(name, []).append((done, total))
    assert set(bars) == {"seconds", "ablation", *(f"{stack}, ablation" for stack in STACKS)}
    for name, steps in bars.items():
        done = [step for step, _ in steps]
        assert done == sorted(done)
        assert name == "seconds" or len({total for _, total in steps}) == 1
    assert bars["seconds"][-1][0] == bars["seconds"][-1][1]


# --- roles --------------------------------------------------------------------------------------


def classified(loaded: LoadedModel) -> ClassifyResult:
    """A classification in which the first head of every layer is positional."""
    encoder = headscope.classify(loaded.only("encoder"), limit=40)
    heads = []
    for site, head in itertools.product(loaded.sites, range(4)):
        roles = ("positional",) if head == 0 else ()
        made = dataclasses.replace(
            encoder.heads[head],
            stack=site.stack,
            layer=site.layer,
            head=head,
            roles=roles,
            primary=next(iter(roles), "none"),
            confidence=head / 4,
        )
        heads.append(made)
    return dataclasses.replace(encoder, heads=tuple(heads))


def test_roles_are_given_or_asked_for(files: Mapping[str, tuple[Path, Path]]) -> None:
    loaded = opened("bart")
    options = {"task": "seq2seq", "data": files["bart"][0], "calibration": files["bart"][1]}
    for choice in ({"methods": ["confidence"]}, {"keep_roles": ["positional"]}):
        with pytest.raises(InputError, match="what the heads do, and for the task seq2seq"):
            headscope.prune(loaded, **options, **choice)
    known = classified(loaded)
    found = headscope.prune(
        loaded, **options, methods=["confidence"], repairs=["none"], fractions=[0.25], roles=known
    )
    assert {head for _, _, head in found.curves[0].points[1].heads_removed} == {0}
    assert found.curves[0].points[1].roles_left == {"positional": 0}
    for stack in found.stacks:
        point = stack.curves[0].points[1]
        assert point.heads_removed == ((stack.stack, 0, 0), (stack.stack, 1, 0))
        assert point.roles_left == {"positional": 0}
        assert stack.curves[0].points[0].roles_left == {"positional": 2}
    kept = headscope.prune(loaded, **options, keep_roles=["positional"], roles=known)
    assert {head for _, _, head in kept.curves[0].points[0].heads_removed} == {1, 2, 3}


# --- kept ---------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("stack", ["cross", "all"])
def test_what_is_saved_is_what_was_measured(
    kind: str, stack: str, files: Mapping[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    data, chosen = files[kind]
    folder = tmp_path / "model"
    translator(kind).save_pretrained(folder)
    framed_tokenizer("$A [SEP]").save_pretrained(folder)
    found = headscope.prune(
        str(folder),
        task="seq2seq",
        data=data,
        calibration=chosen,
        stack=stack,
        methods=["fisher"],
        repairs=["scale"],
        fractions=[0.5],
        save=tmp_path / "small",
        save_dense=tmp_path / "dense",
        dtype="float64",
    )
    point = found.curve("fisher", "scale").points[1]
    assert [saved.measured for saved in found.saved] == [pytest.approx(point.value)] * 2
    for name in ("small", "dense"):
        again = headscope.measure(str(tmp_path / name), "seq2seq", data, dtype="float64")
        assert again.metrics == pytest.approx(point.metrics)
    small = headscope.load(str(tmp_path / "small"), task_head="auto", dtype="float64")
    assert sum(site.n_heads for site in small.sites) == 24 - len(point.heads_removed)
    assert headscope.validate(small).passed
    dense = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "dense", dtype="float64").eval()
    hits = 0
    with torch.no_grad():
        for source, target in pairs_of(data):
            hits += int((logits_of(dense, source, target).argmax(-1) == target[0]).sum())
    tokens = sum(target.shape[1] for _, target in pairs_of(data))
    assert point.value == pytest.approx(100 * hits / tokens, abs=1e-4)
    cut = headscope.prune(small, task="seq2seq", data=data, heads=_first_left(small))
    (gone,) = cut.curves[0].points[0].heads_removed
    assert gone not in point.heads_removed


def _first_left(loaded: LoadedModel) -> str:
    site = next(site for site in loaded.sites if site.stack == "cross" and site.n_heads)
    return f"cross:L{site.layer}H{site.head_ids[0]}"


def test_heads_by_hand_are_named_with_their_stack(files: Mapping[str, tuple[Path, Path]]) -> None:
    data = files["bart"][0]
    found = headscope.prune(
        opened("bart"), task="seq2seq", data=data, heads="cross:L0H1,encoder:L1H*,decoder:L1H2"
    )
    (point,) = found.curves[0].points
    removed = (*(("encoder", 1, h) for h in range(4)), ("decoder", 1, 2), ("cross", 0, 1))
    assert point.heads_removed == removed
    assert point.value == pytest.approx(value_without("bart", removed, data))
    assert found.stacks == ()
    with pytest.raises(InputError, match="the model has several stacks; write cross:L0H1"):
        headscope.prune(opened("bart"), task="seq2seq", data=data, heads="L0H1")
    with pytest.raises(InputError, match="heads are removed from cross here"):
        headscope.prune(
            opened("bart"), task="seq2seq", data=data, stack="cross", heads="decoder:L0H1"
        )


def test_the_benchmark_runs_both_sides(
    files: Mapping[str, tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headscope.pipeline.prune.speed._SECONDS", 0.0)
    found = headscope.prune(
        opened("bart"),
        task="seq2seq",
        data=files["bart"][0],
        stack="cross",
        methods=["magnitude"],
        repairs=["none"],
        fractions=[0.5],
        benchmark=True,
    )
    assert found.speed is not None
    assert (found.speed.heads_full, found.speed.heads_pruned) == (8, 4)
    for row in found.speed.rows:
        assert row.attention_predicted_ratio == pytest.approx(0.5)
        assert row.attention_predicted_ratio < row.predicted_ratio < 1


# --- tasks and stacks ---------------------------------------------------------------------------


def test_fidelity_prunes_the_encoder(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(SOURCES) + "\n")
    options = {"data": lines, "calibration": lines, "roles": False, "step": 0.5}
    found = headscope.prune(opened("bart"), **options)
    assert (found.stack, found.n_heads, found.stacks) == ("encoder", 8, ())
    half = found.curve("fisher-joint").points[1]
    network, full = translator("bart").double(), translator("bart").double()
    maps = output_maps("bart", network)
    for stack, layer, head in half.heads_removed:
        assert stack == "encoder"
        maps[stack, layer].weight.data[:, 4 * head : 4 * head + 4] = 0.0
    cosines = []
    with torch.no_grad():
        for text in SOURCES:
            ids = torch.tensor([framed_tokenizer("$A [SEP]")(text).input_ids])
            ours, theirs = (
                model.get_encoder()(ids).last_hidden_state[0].mean(dim=0)
                for model in (network, full)
            )
            cosines.append(float(torch.cosine_similarity(ours, theirs, dim=0)))
    assert half.value == pytest.approx(np.mean(cosines), abs=1e-9)
    with pytest.raises(InputError, match="runs the encoder of bart only; choose the stack encoder"):
        headscope.prune(opened("bart"), **options, stack="cross")


def test_a_decoder_alone_is_pruned_by_fidelity(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    torch.manual_seed(1)
    network = GPT2Model(GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=2, n_head=4))
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(SOURCES) + "\n")
    loaded = headscope.wrap(network, tokenizer, name="gpt2")
    found = headscope.prune(
        loaded,
        data=lines,
        calibration=lines,
        repairs=["none", "scale", "refit"],
        step=0.5,
        ablation=True,
    )
    assert (found.stack, found.n_heads) == ("decoder", 8)
    point = found.curve("fisher-joint", "scale").points[1]
    assert {stack for stack, _, _ in point.heads_removed} == {"decoder"}
    assert 0.0 < point.value < 1.0
    assert found.ablation[0].name == "decoder:L0H0"


@pytest.mark.parametrize(("stack", "said"), [("decoder", "'decoder'"), ("cross", "'cross'")])
def test_an_encoder_has_no_other_stack(stack: str, said: str, tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path)
    with pytest.raises(InputError, match=f"has no stack {said}; it has encoder"):
        headscope.prune(str(folder), heads="L0H0", stack=stack)
    found = headscope.prune(str(folder), heads="L0H0", stack="encoder", limit=4)
    assert found.curves[0].points[0].heads_removed == ((0, 0),)


def test_slips_of_the_task_are_named(
    tmp_path: Path, files: Mapping[str, tuple[Path, Path]]
) -> None:
    data, chosen = files["bart"]
    with pytest.raises(InputError, match="needs a file with sources and targets"):
        headscope.prune(opened("bart"), task="seq2seq", calibration=chosen)
    with pytest.raises(InputError, match=r"pairs of source and target: give a calibration file"):
        headscope.prune(opened("bart"), task="seq2seq", data=data)
    with pytest.raises(InputError, match="is no encoder-decoder model"):
        headscope.measure(str(tiny_bert(tmp_path / "bert")), "seq2seq", data)
    translator("bart").model.save_pretrained(tmp_path / "base")
    framed_tokenizer("$A [SEP]").save_pretrained(tmp_path / "base")
    with pytest.raises(InputError, match="no sequence-to-sequence head"):
        headscope.measure(str(tmp_path / "base"), "seq2seq", data, dtype="float64")
    found = headscope.prune(
        opened("bart"), task="seq2seq", data=data, calibration=data, fractions=[0.5], stack="cross"
    )
    assert "among those that heads were chosen on" in found.warnings[0]
