"""The repair ``mean`` against networks of transformers whose z is replaced in slow loops."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from families import tiny
from tiny_models import (
    SOURCES,
    VOCABULARY,
    framed_tokenizer,
    own_pairs,
    tiny_tokenizer,
    translator,
    write_pairs,
)
from torch import Tensor

import headscope
from headscope.models.output_maps import replaced_outputs
from headscope.pruning.measure import compact_model
from headscope.pruning.options import Repair
from headscope.pruning.ranking import Context
from headscope.pruning.repair import Repaired, repair
from headscope.tasks.making import make_task, read_examples

LINES = ["the cat sat on the mat", "a big red dog ran", "she saw it", "he was in the house of dogs"]
OTHERS = ["it is a red house", "the dog and the cat"]


def _network(family: str) -> Any:
    if family == "bart":
        return translator("bart").double()
    sizes = {"hidden_size": 16, "intermediate_size": 32, "vocab_size": len(VOCABULARY)}
    return tiny(family, "float64", initializer_range=0.4, **sizes)


def _output_maps(family: str, network: Any) -> list[torch.nn.Linear]:
    """W_O in the order of the sites; of ALBERT the one that all layers share."""
    if family == "bert":
        return [layer.attention.output.dense for layer in network.encoder.layer]
    if family == "albert":
        return [network.encoder.albert_layer_groups[0].albert_layers[0].attention.dense]
    encoder, decoder = network.model.encoder.layers, network.model.decoder.layers
    own = [layer.self_attn.out_proj for layer in (*encoder, *decoder)]
    return own + [layer.encoder_attn.out_proj for layer in decoder]


def _hidden(network: Any, text: str) -> Tensor:
    ids = torch.tensor([tiny_tokenizer()(text).input_ids])
    with torch.no_grad():
        return network(input_ids=ids).last_hidden_state[0]


def _logits(network: Any, pair: tuple[str, str]) -> Tensor:
    tokenizer = framed_tokenizer("$A [SEP]")
    ids, wanted = (torch.tensor([tokenizer(text).input_ids]) for text in pair)
    start = torch.full((1, 1), network.config.decoder_start_token_id)
    decoded = torch.cat([start, wanted[:, :-1]], dim=1)
    with torch.no_grad():
        return network(input_ids=ids, decoder_input_ids=decoded).logits[0]


def _by_hand(family: str, made: Repaired, run: Any, examples: Sequence[Any]) -> Any:
    """z by hand: gates multiply what it differs by from its mean over all calibration tokens."""
    full, network = _network(family), _network(family)
    seen: dict[int, list[Tensor]] = {}
    for row, dense in enumerate(_output_maps(family, full)):
        dense.register_forward_pre_hook(
            lambda _, args, row=row: seen.setdefault(row, []).append(args[0].reshape(-1, 16))
        )
    for example in examples:
        run(full, example)
    for row, dense in enumerate(_output_maps(family, network)):
        gates, mean = made.gates[row].double().repeat_interleave(4), torch.cat(seen[row]).mean(0)
        dense.register_forward_pre_hook(lambda _, args, g=gates, m=mean: (m + g * (args[0] - m),))
    return network


@pytest.mark.parametrize(
    ("family", "removed"), [("bert", [0, 2, 8, 9, 10, 11]), ("albert", [1, 3])]
)
def test_mean_replaces_z_by_its_mean_and_is_what_is_saved(family, removed, tmp_path):
    (tmp_path / "lines.txt").write_text("\n".join(LINES) + "\n")
    loaded = headscope.wrap(_network(family), tiny_tokenizer(), name=family)
    task = make_task("fidelity", read_examples("fidelity", tmp_path / "lines.txt"), loaded)
    given = Context.of_task(loaded, task, roles={}, use_labels=False, budget=0, largest=0, seed=0)
    made = repair(Repair.mean, loaded, task, given, removed)
    kept = made.gates[made.gates != 0]
    assert float((kept - 1).abs().max()) > 0.01  # the gates that stay are scaled, too
    compact = compact_model(loaded, given.units, made)
    expected = _by_hand(family, made, _hidden, LINES)
    for text in OTHERS:
        torch.testing.assert_close(
            _hidden(compact.model, text), _hidden(expected, text), rtol=0, atol=1e-9
        )
    # What was minimised is the distance of this very model.
    unit_gates = given.units.contract(made.gates) / len(given.units.members[0])
    with replaced_outputs(loaded, made.maps):
        folded = given.distance(unit_gates)
    assert given.leaving_means().distance(unit_gates) == pytest.approx(folded, rel=1e-6)
    # The full model is as it was.
    for text in OTHERS:
        torch.testing.assert_close(_hidden(loaded.model, text), _hidden(_network(family), text))


def test_mean_of_every_stack_is_over_its_own_queries(tmp_path):
    """The encoder's tokens are the source's, those of the decoder and cross-attention its own."""
    pairs = own_pairs(translator("bart"), SOURCES)
    path = write_pairs(tmp_path / "pairs.tsv", pairs)
    loaded = headscope.wrap(_network("bart"), framed_tokenizer("$A [SEP]"), name="bart")
    assert [site.stack for site in loaded.sites] == [
        stack for stack in ("encoder", "decoder", "cross") for _ in range(2)
    ]
    task = make_task("seq2seq", read_examples("seq2seq", path), loaded)
    given = Context.of_task(loaded, task, roles={}, use_labels=False, budget=0, largest=0, seed=0)
    made = repair(Repair.mean, loaded, task, given, [4 * row + row % 4 for row in range(6)])
    expected = _by_hand("bart", made, _logits, pairs)
    compact = compact_model(loaded, given.units, made)
    for pair in pairs[:3]:
        found = _logits(compact.network, pair)
        torch.testing.assert_close(found, _logits(expected, pair), rtol=0, atol=1e-8)
