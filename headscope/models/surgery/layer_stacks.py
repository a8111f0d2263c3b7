"""Where a model keeps its layers: an encoder's, a decoder's, or both, by stack and number.

The names of the attention modules say it: ``encoder.layer.3.attention.self`` lies in layer 3 of the
list ``encoder.layer``. XLM keeps attention, norms and feed-forward networks in lists side by side.

An encoder-decoder has a list for each stack. A layer then has two numbers: its own in the stack,
and one counted across both stacks, the decoder's after the encoder's: with six layers each, layer 2
of the decoder is number 8. A layer keeps its numbers when others are removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import nn

from headscope.models.layouts.layout import AttentionModule
from headscope.models.layouts.sites import LAYER, attention_modules, layer_lists

#: Attribute of a base model that has lost layers: how many each stack had.
BEFORE = "headscope_layers_before"
STACKS = ("encoder", "decoder")

#: An original number, or (``encoder`` or ``decoder``, original number) of an encoder-decoder.
Layer = int | tuple[str, int]


@dataclass(frozen=True)
class Stack:
    """The layers of an encoder, or of a decoder."""

    name: str  # ``encoder`` or ``decoder``
    start: int  # Number of its first layer, counted across both stacks
    one_of_two: bool  # Whether the model has an encoder and a decoder
    owner: nn.Module  # The module that the layers lie in: the base model, or one stack of it
    lists: list[nn.ModuleList]  # One list of layers, or several of equal length (XLM)
    #: The attention modules of each layer that is left: one, or two where it has cross-attention
    attentions: list[list[AttentionModule]]

    @property
    def n_layers(self) -> int:
        """How many it has now."""
        return len(self.attentions)

    @property
    def numbers(self) -> list[int]:
        """Original numbers of the layers, counted across both stacks."""
        numbers: list[int] = []
        for index, attentions in enumerate(self.attentions):
            # where layers were removed, the module is marked with its original number
            number_in_stack = getattr(attentions[0].module, LAYER, index)
            numbers.append(self.start + number_in_stack)
        return numbers

    def layer(self, number: int) -> Layer:
        """Return a layer as :func:`remove_layers` takes it, by its number across both stacks."""
        return (self.name, number - self.start) if self.one_of_two else number


def stacks_of(base: Any) -> list[Stack]:
    """Find the layers of a base model by stack.

    An empty list where attention lies outside a list of layers, or not every layer has equally many
    attention modules.
    """
    modules = attention_modules(base)
    by_list = layer_lists(base, modules)  # attention modules by layer, by the list's dotted path
    n_listed = sum(map(len, chain(*by_list.values())))
    if n_listed != len(modules) or len(by_list) > len(STACKS):
        return []
    one_of_two = len(by_list) == 2
    owners = [base.get_encoder(), base.get_decoder()] if one_of_two else [base]
    n_before: dict[str, int] = getattr(base, BEFORE, {})
    stacks: list[Stack] = []
    start = 0
    for name, (path, attentions), owner in zip(STACKS, by_list.items(), owners, strict=False):
        if len(set(map(len, attentions))) > 1:
            return []
        stack = Stack(
            name=name,
            start=start,
            one_of_two=one_of_two,
            owner=owner,
            lists=_lists_beside(base, path, len(attentions)),
            attentions=attentions,
        )
        stacks.append(stack)
        start += n_before.get(name, stack.n_layers)
    return stacks


def _lists_beside(base: nn.Module, path: str, n_layers: int) -> list[nn.ModuleList]:
    """Return a list of modules and the lists of the same length that lie beside it."""
    parent, _, _ = path.rpartition(".")
    siblings = base.get_submodule(parent).children()
    return [
        module
        for module in siblings
        if isinstance(module, nn.ModuleList) and len(module) == n_layers
    ]


def layer_of(stacks: Sequence[Stack], number: int) -> Layer:
    """Return a layer as :func:`remove_layers` takes it, by its number across both stacks."""
    stack = next(stack for stack in reversed(stacks) if stack.start <= number)
    return stack.layer(number)
