"""The repair ``mean`` against networks of transformers whose z is replaced in slow loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import (
    SOURCES,
    framed_tokenizer,
    own_pairs,
    tiny_tokenizer,
    translator,
    write_pairs,
)
from torch import Tensor
from transformers import AlbertConfig, AlbertModel, BertConfig, BertModel

import headscope
from headscope.models.output_maps import OutputMap, output_map, replaced_outputs
from headscope.pipeline.prune.calibrating import make_given
from headscope.pipeline.prune.measuring import compact_model
from headscope.pipeline.prune.repairing import Repair, Repaired, repair
from headscope.pipeline.tasks import make_task, read_examples
from headscope.pruning.scale import distance

LINES = ["the cat sat on the mat", "a big red dog ran", "she saw it", "he was in the house of dogs"]
OTHERS = ["it is a red house", "the dog and the cat"]
SIZES = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 32}


def _network(family: str) -> Any:
    build, config = {"bert": (BertModel, BertConfig), "albert": (AlbertModel, AlbertConfig)}[family]
    torch.manual_seed(3)
    extra = {"embedding_size": 8} if family == "albert" else {}
    network = build(
        config(
            vocab_size=len(tiny_tokenizer()),
            num_hidden_layers=3,
            initializer_range=0.4,
            **SIZES,
            **extra,
        )
    )
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    return network.double().eval()


def _output_maps(family: str, network: Any) -> list[torch.nn.Linear]:
    if family == "bert":
        return [layer.attention.output.dense for layer in network.encoder.layer]
    return [network.encoder.albert_layer_groups[0].albert_layers[0].attention.dense]


def _hidden(network: Any, text: str) -> Tensor:
    ids = torch.tensor([tiny_tokenizer()(text).input_ids])
    with torch.no_grad():
        return network(input_ids=ids).last_hidden_state[0]


def _by_hand(family: str, made: Repaired) -> Any:
    """z by hand: gates multiply what it differs by from its mean over all calibration tokens."""
    network = _network(family)
    for row, dense in enumerate(_output_maps(family, network)):
        seen: list[Tensor] = []
        full = _telling(family, row, seen)
        for text in LINES:
            _hidden(full, text)
        mean = torch.cat(seen).mean(dim=0)
        gates = made.gates[row].double().repeat_interleave(4)
        dense.register_forward_pre_hook(
            lambda _, args, gates=gates, mean=mean: (mean + gates * (args[0] - mean),)
        )
    return network


def _telling(family: str, row: int, seen: list[Tensor]) -> Any:
    """The full network, which tells what enters one output map (ALBERT: in every layer)."""
    network = _network(family)
    _output_maps(family, network)[row].register_forward_pre_hook(
        lambda _, args: seen.append(args[0][0])
    )
    return network


@pytest.mark.parametrize(
    ("family", "removed"), [("bert", [0, 2, 8, 9, 10, 11]), ("albert", [1, 3])]
)
def test_mean_replaces_z_by_its_mean_and_is_what_is_saved(
    family: str, removed: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES) + "\n")
    loaded = headscope.wrap(_network(family), tiny_tokenizer(), name=family)
    task = make_task("fidelity", read_examples("fidelity", path), loaded)
    given = make_given(loaded, task, roles={}, use_labels=False, budget=0, largest=0, seed=0)
    made = repair(Repair.mean, loaded, task, given, removed)
    kept = made.gates[made.gates != 0]
    assert float((kept - 1).abs().max()) > 0.01  # the gates that stay are scaled, too
    compact, expected = compact_model(loaded, given.units, made), _by_hand(family, made)
    for text in OTHERS:
        torch.testing.assert_close(
            _hidden(compact.model, text), _hidden(expected, text), rtol=0, atol=1e-9
        )
    # What was minimised is the distance of this very model.
    unit_gates, targets = given.units.contract(made.gates) / len(given.units.members[0]), [None]
    with replaced_outputs(loaded, made.maps):
        folded = distance(given, unit_gates, targets)
    assert distance(given.leaving_means(), unit_gates, targets) == pytest.approx(folded, rel=1e-6)
    # The full model is as it was.
    for text in OTHERS:
        torch.testing.assert_close(_hidden(loaded.model, text), _hidden(_network(family), text))


def test_the_full_output_stays_that_of_the_full_model_while_maps_are_exchanged(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(LINES) + "\n")
    loaded = headscope.wrap(_network("bert"), tiny_tokenizer(), name="bert")
    task = make_task("fidelity", read_examples("fidelity", path), loaded)
    (batch,) = task.loss_batches(loaded, labels=False)
    before, own = batch.full(), output_map(loaded.sites[1])
    other = {1: OutputMap(own.W * 0.5, own.b + 1.0)}
    with replaced_outputs(loaded, other):
        changed = batch.embed(batch.gates().detach())
        with replaced_outputs(loaded, {1: OutputMap(own.W * 0.0, own.b)}):
            torch.testing.assert_close(batch.full(), before, rtol=0, atol=0)
        torch.testing.assert_close(batch.embed(batch.gates().detach()), changed, rtol=0, atol=0)
        assert float((changed - before).abs().max()) > 0.01
    torch.testing.assert_close(batch.embed(batch.gates().detach()), before, rtol=0, atol=0)


def _maps_of(network: Any) -> list[tuple[str, torch.nn.Linear]]:
    """W_O of each layer with its stack, in the order of the sites."""
    stacks = network.model.encoder.layers, network.model.decoder.layers
    own = [("encoder", layer.self_attn.out_proj) for layer in stacks[0]]
    own += [("decoder", layer.self_attn.out_proj) for layer in stacks[1]]
    return own + [("cross", layer.encoder_attn.out_proj) for layer in stacks[1]]


def _logits(network: Any, source: str, target: str) -> Tensor:
    tokenizer = framed_tokenizer("$A [SEP]")
    ids, wanted = (torch.tensor([tokenizer(text).input_ids]) for text in (source, target))
    start = torch.full((1, 1), network.config.decoder_start_token_id)
    with torch.no_grad():
        return network(
            input_ids=ids, decoder_input_ids=torch.cat([start, wanted[:, :-1]], dim=1)
        ).logits[0]


def test_mean_of_every_stack_is_over_its_own_queries(tmp_path: Path) -> None:
    """The encoder's tokens are the source's, those of the decoder and cross-attention its own."""
    pairs = own_pairs(translator("bart"), SOURCES)
    path = write_pairs(tmp_path / "pairs.tsv", pairs)
    loaded = headscope.wrap(translator("bart").double(), framed_tokenizer("$A [SEP]"), name="bart")
    task = make_task("seq2seq", read_examples("seq2seq", path), loaded)
    given = make_given(loaded, task, roles={}, use_labels=False, budget=0, largest=0, seed=0)
    places = [(site.stack, site.layer) for site in loaded.sites]
    removed = [4 * row + row % 4 for row in range(len(places))]
    made = repair(Repair.mean, loaded, task, given, removed)
    full, expected = translator("bart").double(), translator("bart").double()
    seen: dict[int, list[Tensor]] = {}
    names = [(stack, i % 2) for i, (stack, _) in enumerate(_maps_of(full))]
    for i, (_, dense) in enumerate(_maps_of(full)):
        dense.register_forward_pre_hook(
            lambda _, args, i=i: seen.setdefault(i, []).append(args[0].reshape(-1, 16))
        )
    for source, target in pairs:
        _logits(full, source, target)
    for i, (_, dense) in enumerate(_maps_of(expected)):
        gates = made.gates[places.index(names[i])].double().repeat_interleave(4)
        mean = torch.cat(seen[i]).mean(dim=0)
        dense.register_forward_pre_hook(lambda _, args, g=gates, m=mean: (m + g * (args[0] - m),))
    compact = compact_model(loaded, given.units, made)
    for source, target in pairs[:3]:
        torch.testing.assert_close(
            _logits(compact.network, source, target),
            _logits(expected, source, target),
            rtol=0,
            atol=1e-8,
        )


def test_a_layer_without_a_bias_has_nowhere_to_keep_a_mean(tmp_path: Path) -> None:
    path = write_pairs(tmp_path / "pairs.tsv", own_pairs(translator("t5"), SOURCES))
    loaded = headscope.wrap(translator("t5").double(), framed_tokenizer("$A [SEP]"), name="t5")
    task = make_task("seq2seq", read_examples("seq2seq", path), loaded)
    given = make_given(loaded, task, roles={}, use_labels=False, budget=0, largest=0, seed=0)
    made = [repair(kind, loaded, task, given, [0, 5]) for kind in (Repair.scale, Repair.mean)]
    assert not made[1].maps
    assert torch.equal(made[0].gates, made[1].gates)
