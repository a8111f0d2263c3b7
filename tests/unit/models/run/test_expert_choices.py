"""Runs that are compared choose the same experts; what they would have chosen is counted."""

from typing import Any

import torch
from torch import Tensor, nn

from headscope.models.run.expert_choices import ExpertChoices


class Block(nn.Module):
    """Two experts of one token; the better logit is chosen, in several ways."""

    def __init__(self, choose: Any) -> None:
        super().__init__()
        self.experts = nn.ModuleList()
        self.choose = choose

    def forward(self, logits: Tensor) -> Any:
        return self.choose(logits)


def model(choose: Any) -> Any:
    network = nn.Module()
    network.block = Block(choose)
    return network


FIRST = torch.tensor([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0]])  # (tokens, experts)
OTHER = torch.tensor([[2.0, 2.1, 0.0], [1.0, 2.0, 0.0]])  # the first token would choose otherwise


def kept(network: Any, logits: Tensor) -> ExpertChoices:
    choices = ExpertChoices(network)
    with choices.kept():
        network.block(logits)
    return choices


def test_topk_keeps_its_indices_and_reads_its_values_there():
    network = model(lambda logits: torch.topk(logits, 2, dim=-1))
    choices = kept(network, FIRST)
    with choices.repeated(1):
        values, indices = network.block(OTHER)
    assert indices.tolist() == [[0, 1], [1, 0]]
    torch.testing.assert_close(values, OTHER.gather(-1, indices))
    assert (choices.count, choices.otherwise) == (4, 2)
    assert network.block(OTHER).indices.tolist() == [[1, 0], [1, 0]]  # the model is as before


def test_max_along_an_axis_with_and_without_it():
    for keepdim in (True, False):
        network = model(lambda logits, keepdim=keepdim: logits.max(dim=-1, keepdim=keepdim))
        choices = kept(network, FIRST)
        with choices.repeated(1):
            values, indices = network.block(OTHER)
        assert indices.flatten().tolist() == [0, 1]
        assert values.flatten().tolist() == [2.0, 2.0]
        assert choices.otherwise == 1


def test_an_argmax_and_a_threshold():
    for choose in (lambda logits: logits.argmax(-1), lambda logits: logits > 1.5):
        network = model(choose)
        choices = kept(network, FIRST)
        with choices.repeated(1):
            assert torch.equal(network.block(OTHER), choose(FIRST))


def test_what_is_no_choice_of_a_token_is_left_as_it_is():
    """Sums over experts, and how many tokens each of them reads."""
    network = model(lambda logits: (logits.sum(-1), logits.sum(0).to(torch.int32)))
    choices = kept(network, FIRST)
    with choices.repeated(1):
        sums, counts = network.block(OTHER)
    torch.testing.assert_close(sums, OTHER.sum(-1))
    assert torch.equal(counts, OTHER.sum(0).to(torch.int32))
    assert choices.count == 0


def test_texts_that_are_padded_further_keep_their_choices():
    """Two texts of one token, with one of padding behind each."""
    network = model(lambda logits: torch.topk(logits, 1, dim=-1).indices)
    choices = kept(network, FIRST)
    padding = torch.tensor([0.0, 0.0, 1.0])
    longer = torch.stack([OTHER[0], padding, OTHER[1], padding])
    with choices.repeated(2):
        assert network.block(longer).flatten().tolist() == [0, 2, 1, 2]
    assert choices.otherwise == 1


def test_a_model_without_experts_runs_as_it_is():
    network = nn.Linear(2, 2)
    choices = ExpertChoices(network)
    with choices.kept():
        network(torch.zeros(1, 2))
    assert (choices.count, choices.otherwise) == (0, 0)
