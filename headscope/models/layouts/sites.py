"""Attention sites: where attention runs in a model, found by watching one tiny forward pass.

A site is one attention module as one layer of one stack (``encoder``, ``decoder`` or ``cross``).
Which modules run, in which order, how often (ALBERT runs one module in every layer) and on which
sequences (cross-attention) is not guessed but watched.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from headscope.models.layouts.layout import AttentionModule, AttentionSite
from headscope.models.layouts.maps import HEAD_IDS, HEADS_BEFORE
from headscope.models.layouts.registry import LAYOUTS

#: Attribute of an attention module whose model has lost layers: the original number of its layer.
LAYER = "headscope_layer"
#: The stacks that a model may have, in the order of their sites.
STACKS = ("encoder", "decoder", "cross")


def find_sites(
    model: nn.Module,
    run: Callable[[], object],
    encoder: nn.Module | None = None,
    modules: Sequence[AttentionModule] | None = None,
) -> tuple[AttentionSite, ...]:
    """List the attention sites of a base model: stack by stack, in the order of execution.

    ``run`` runs the model once. ``encoder`` is the part of an encoder-decoder that is its encoder;
    in other models, the direction of a module alone tells its stack. ``modules`` are those that may
    run; by default the ones of a known layout.
    """
    if modules is None:
        modules = attention_modules(model)
    known = {attention.module: attention for attention in modules}
    in_encoder = set(known if encoder is None else encoder.modules())
    by_stack: dict[str, list[AttentionModule]] = {stack: [] for stack in STACKS}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note, as a module is called, in which stack it runs."""
        attention = known[module]
        inputs = attention.layout.read(module, args, kwargs)
        if inputs.crossed:
            stack = "cross"
        elif attention.layout.causal(module) or module not in in_encoder:
            stack = "decoder"
        else:
            stack = "encoder"
        by_stack[stack].append(attention)

    with ExitStack() as hooks, torch.no_grad():
        for module in known:
            hooks.enter_context(module.register_forward_pre_hook(note, with_kwargs=True))
        run()
    sites: list[AttentionSite] = []
    numbers = attending_layers(getattr(model, "config", None))
    for stack, modules in by_stack.items():
        for index, attention in enumerate(modules):
            number = index if numbers is None or index >= len(numbers) else numbers[index]
            layer = getattr(attention.module, LAYER, number)
            site = AttentionSite(**vars(attention), stack=stack, layer=layer, row=len(sites))
            sites.append(site)
    return tuple(sites)


def attending_layers(config: Any) -> list[int] | None:
    """List the layers that have heads, where a model has layers of other kinds too; else None.

    ``layer_types`` of linear attention, attention, linear attention, attention -> [1, 3].
    """
    kinds: Sequence[str] = getattr(config, "layer_types", None) or ()
    numbers = [number for number, kind in enumerate(kinds) if _attends(kind)]
    return None if len(numbers) == len(kinds) else numbers


def _attends(kind: str) -> bool:
    """Whether a layer of a kind that transformers names has a softmax over pairs of tokens."""
    return kind == "hybrid" or ("attention" in kind and "linear" not in kind)


def numbered(sites: Sequence[AttentionSite]) -> tuple[AttentionSite, ...]:
    """Give sites their rows in the arrays of measurements: 0, 1, 2, ..."""
    return tuple(dataclasses.replace(site, row=row) for row, site in enumerate(sites))


def layer_lists(
    model: nn.Module, modules: Iterable[AttentionModule]
) -> dict[str, list[list[AttentionModule]]]:
    """Group attention modules by the list of layers that they lie in, and by layer.

    ``encoder.layer.0.attention.self`` -> ``{"encoder.layer": [[that module], ...]}``. Of lists
    within lists the outermost counts; modules that lie in no list are left out.
    """
    lists: dict[str, list[list[AttentionModule]]] = {}
    for module in modules:
        path = module.name.split(".")
        for depth in range(1, len(path)):
            name = ".".join(path[:depth])
            parent = model.get_submodule(name)
            if isinstance(parent, nn.ModuleList):
                layers = lists.setdefault(name, [[] for _ in parent])
                layers[int(path[depth])].append(module)
                break
    return lists


def attention_modules(model: nn.Module) -> list[AttentionModule]:
    """List the modules of ``model`` that have a known layout, in the order of registration."""
    config = getattr(model, "config", None)
    modules = []
    for name, module in model.named_modules():
        if next(module.children(), None) is None:  # no map of its own
            continue
        parent = model.get_submodule(name.rpartition(".")[0])
        attention = _attention_module(name, module, parent, config)
        if attention is not None:
            modules.append(attention)
    return modules


def _attention_module(
    name: str, module: nn.Module, parent: nn.Module, config: Any
) -> AttentionModule | None:
    """Describe a module by the first layout that fits; None where none does."""
    for layout in LAYOUTS:
        projections = layout.match(module, parent)
        if projections is None:
            continue
        d_head = layout.d_head(module, projections)
        all_heads = tuple(range(projections.q.out_features // d_head))
        return AttentionModule(
            name=name,
            module=module,
            layout=layout.under(config),
            projections=projections,
            d_head=d_head,
            head_ids=getattr(module, HEAD_IDS, all_heads),
            heads_before=getattr(module, HEADS_BEFORE, len(all_heads)),
        )
    return None
