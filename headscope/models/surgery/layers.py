"""Removing whole layers for real: the model computes as if each of them returned its input.

Its attention, its feed-forward network and their norms go; a norm behind the last layer stays. The
layers that are left keep their original numbers in every name. That nothing else depends on their
number is not taken for granted: the shorter model is run and compared with the whole one with these
layers bypassed.

A layer of an encoder-decoder's decoder is self-attention, cross-attention and feed-forward network
together. A table that only the first layer keeps (the relative bias of T5) moves to the new first
one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn

from headscope.core.errors import InputError, UnsupportedModelError, reason
from headscope.core.heads import layer_name
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.sites import LAYER
from headscope.models.run.hooks import replaced_forwards, with_first
from headscope.models.run.implementation import quiet_transformers
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.outputs import agree, outputs
from headscope.models.run.wrapping import as_before, copied_network, wrap
from headscope.models.surgery.layer_stacks import BEFORE, Layer, Stack, layer_of, stacks_of

#: Attribute of a base model that has lost layers: its settings before.
_SETTINGS = "headscope_settings_before"
#: Settings and attributes that count layers, settings that list something for each, and numbers
#: that each layer has of its own.
_COUNT = "num_hidden_layers"
_COUNTS = (_COUNT, "n_layers", "num_layers")
#: Settings of an encoder-decoder as a whole that count the layers of one stack.
_COUNTS_OF_STACK = {
    "encoder": (_COUNT, "num_layers", "encoder_layers"),
    "decoder": ("num_decoder_layers", "decoder_layers"),
}
_LISTS = ("layer_types",)
_INDICES = ("layer_idx", "layer_id")
_TABLE = "relative_attention_bias"  # Kept by the first layer of T5, for all layers


def remove_layers(
    loaded: LoadedModel, layers: Iterable[Layer], *, share: bool = False
) -> LoadedModel:
    """Copy a model without some of its layers: each of them returns its input.

    Parameters
    ----------
    loaded : LoadedModel
        A model whose layers have weights of their own; left as it is.
    layers : iterable of int or (stack, int)
        By their original numbers; of an encoder-decoder with the stack, ``encoder`` or ``decoder``
        (whose cross-attention goes too). At least one layer of each stays.
    share : bool
        Let the copy use the model's own weights: less memory, for a copy that is measured or saved
        but never trained.

    Returns
    -------
    LoadedModel
        Its sites remember the original number of each layer that is left.

    Raises
    ------
    InputError
        If a layer does not exist or is gone already, or if none would be left.
    UnsupportedModelError
        If the model shares layers, computes something else without them, or cannot generate.
    """
    all_stacks = loaded.with_all_stacks
    stacks = _checked(all_stacks)
    removed = _numbers_to_remove(all_stacks, stacks, list(layers))
    network = copied_network(loaded, share=share)
    try:
        remaining = [number for number in kept_layers(all_stacks) if number not in removed]
        drop_layers(network, remaining)
        shorter = as_before(wrap(network, loaded.tokenizer, name=loaded.name), loaded)
        same = not removed or _as_bypassed(all_stacks, stacks, removed, shorter)
    except InputError:
        raise
    except Exception as error:  # whatever a family raises that cannot do without them
        raise _unsupported(all_stacks, removed, f"it does not run without them: {error}") from error
    if not same:
        raise _unsupported(all_stacks, removed, "other layers would compute something else")
    if _writes(loaded) and not _writes(shorter):
        raise _unsupported(
            all_stacks,
            removed,
            "transformers cannot generate with fewer layers in this encoder than in the decoder",
        )
    return shorter


def layer_words(layer: Any) -> str:
    """Name a layer as :func:`remove_layers` takes it: ``L3``, ``decoder:L3``."""
    return layer_name(layer) if isinstance(layer, int) else layer_name(layer[1], layer[0])


def _checked(loaded: LoadedModel) -> list[Stack]:
    """Find the stacks of a model; refuse one whose layers cannot be removed one by one."""
    modules = [site.module for site in loaded.sites]
    stacks = stacks_of(loaded.model)
    if len(set(modules)) < len(modules) or not stacks:
        raise UnsupportedModelError(
            f"The layers of {loaded.name} ({loaded.family}) share their weights or do not lie in a "
            "list, so that none can be removed by itself; remove heads with headscope prune."
        )
    return stacks


def _numbers_to_remove(
    loaded: LoadedModel, stacks: Sequence[Stack], layers: Sequence[Layer]
) -> set[int]:
    """Check the layers to remove and return their numbers across both stacks."""
    numbers: dict[Layer, int] = {}
    for stack in stacks:
        numbers |= {stack.layer(number): number for number in stack.numbers}
    removed: set[int] = set()
    for layer in layers:
        key = tuple(layer) if isinstance(layer, list) else layer
        if key not in numbers:
            raise InputError(_no_such_layer(loaded, stacks, layer))
        removed.add(numbers[key])
    for stack in stacks:
        if removed.issuperset(stack.numbers):
            owner = f"the {stack.name} of {loaded.name}" if stack.one_of_two else loaded.name
            raise InputError(f"That would remove every layer of {owner}; keep at least one.")
    return removed


def _no_such_layer(loaded: LoadedModel, stacks: Sequence[Stack], layer: Layer) -> str:
    """Say which layers there are."""
    existing: list[str] = []
    for stack in stacks:
        words = numbered_layers(loaded.only(stack.name).sites)
        existing.append(f"{words} in its {stack.name}" if len(stacks) > 1 else words)
    hint = ""
    if len(stacks) > 1 and isinstance(layer, int):
        hint = "; name one as ('decoder', 1)"
    return f"{loaded.name} has no layer {layer!r}{hint}; it has {' and '.join(existing)}."


def _unsupported(model: LoadedModel, removed: Collection[int], why: str) -> UnsupportedModelError:
    """Say which layers cannot be removed, and why."""
    stacks = stacks_of(model.model)
    layers = [layer_of(stacks, number) for number in sorted(removed)]
    names = ", ".join(str(n) if isinstance(n, int) else layer_words(n) for n in layers)
    noun = "Layer" if len(removed) == 1 else "Layers"
    return UnsupportedModelError(
        f"{noun} {names} of {model.name} ({model.family}) cannot be removed: {reason(why)}; choose "
        "others."
    )


def numbered_layers(sites: Sequence[AttentionSite]) -> str:
    """Say which numbers the layers of one stack have: ``layers 0 to 5``, or a list with gaps."""
    numbers = [site.layer for site in sites]
    if numbers == list(range(len(numbers))):
        return f"layers 0 to {len(numbers) - 1}"
    noun = "layers" if len(numbers) > 1 else "layer"
    return f"{noun} {', '.join(map(str, numbers))}"


def removed_layers(loaded: LoadedModel) -> tuple[Layer, ...]:
    """List the layers that a model has lost, as :func:`remove_layers` names them."""
    base = loaded.with_all_stacks.model
    if not (before := layers_before(loaded)):
        return ()
    remaining = set(kept_layers(loaded))
    stacks = stacks_of(base)
    return tuple(layer_of(stacks, number) for number in range(before) if number not in remaining)


def kept_layers(loaded: LoadedModel) -> list[int]:
    """List the original numbers of the remaining layers, counted across both stacks."""
    stacks = stacks_of(loaded.with_all_stacks.model)
    return list(chain.from_iterable(stack.numbers for stack in stacks))


def layers_before(loaded: LoadedModel) -> int:
    """Return how many layers a model had before any was removed; 0 where none was."""
    return sum(vars(loaded.with_all_stacks.model).get(BEFORE, {}).values())


def count_layers(base: nn.Module) -> int:
    """Return how many layers a base model has, of both stacks."""
    return sum(stack.n_layers for stack in stacks_of(base))


def settings_before(base: nn.Module) -> dict[str, Any]:
    """Return settings of the configuration as they were before layers were removed."""
    return dict(vars(base).get(_SETTINGS, {}))


def restore(config: Any, settings: Mapping[str, Any]) -> None:
    """Set settings of a configuration to what they were, by their names in config.json."""
    for name, value in settings.items():
        setattr(config, name, value)


def drop_layers(network: Any, remaining: Collection[int]) -> None:
    """Leave only the layers ``remaining``, by original number across both stacks, in place."""
    base: Any = getattr(network, "base_model", network)
    stacks = stacks_of(base)
    marks = vars(base)
    marks.setdefault(BEFORE, {stack.name: stack.n_layers for stack in stacks})
    marks.setdefault(_SETTINGS, {})
    for stack in stacks:
        stays = [number in remaining for number in stack.numbers]
        _drop(stack, stays)
        _state_layers(network, stack, stays)


def _drop(stack: Stack, stays: Sequence[bool]) -> None:
    """Leave only some layers of one stack; those that stay remember their original numbers."""
    for number, items in zip(stack.numbers, stack.attentions, strict=True):
        for item in items:
            vars(item.module)[LAYER] = number - stack.start
    if any(stays):
        first = stack.attentions[0][0].module
        new_first = stack.attentions[stays.index(True)][0].module
        _move_table(first, new_first)
    for layers in stack.lists:
        for index in reversed(range(stack.n_layers)):
            if not stays[index]:
                del layers[index]
        for index, layer in enumerate(layers):
            _set_numbers(layer, _INDICES, None, index)
    _set_numbers(stack.owner, _COUNTS, stack.n_layers, sum(stays))


def _state_layers(network: Any, stack: Stack, stays: Sequence[bool]) -> None:
    """Let the configurations of a network state the layers of a stack that stay.

    The base model remembers what the settings of the model as a whole were.
    """
    base: Any = getattr(network, "base_model", network)
    settings_before = vars(base)[_SETTINGS]
    modules = network.modules()
    if stack.one_of_two:  # the configurations of the other stack speak of other layers
        modules = (network, base, *stack.owner.modules())
    configs = [vars(module).get("config") for module in modules]
    for config in {id(config): config for config in configs if config}.values():
        of_both = stack.one_of_two and config.is_encoder_decoder
        counts = _COUNTS_OF_STACK[stack.name] if of_both else (_COUNT,)
        changed: dict[str, Any] = {}
        for name in counts:
            if getattr(config, name, None) == stack.n_layers:
                changed[name] = sum(stays)
        for name in _LISTS:
            listed = getattr(config, name, None)
            if isinstance(listed, list | tuple) and len(listed) == stack.n_layers:
                changed[name] = [value for value, stay in zip(listed, stays, strict=True) if stay]
        for name, new in changed.items():
            if of_both or not stack.one_of_two:
                stated_name = config.attribute_map.get(name, name)
                settings_before.setdefault(stated_name, getattr(config, name))
            setattr(config, name, new)


def _move_table(first: Any, new: Any) -> None:
    """Give the new first layer the table of positions that only the first one has (T5)."""
    table = getattr(first, _TABLE, None)
    if first is not new and table is not None and getattr(new, _TABLE, None) is None:
        delattr(first, _TABLE)
        setattr(new, _TABLE, table)
        first.has_relative_attention_bias = False
        new.has_relative_attention_bias = True


def _set_numbers(module: nn.Module, names: Iterable[str], old: int | None, new: int) -> None:
    """Set integer attributes (those equal to ``old``, if given) of a module and its submodules."""
    for submodule in module.modules():
        for name in names:
            value = vars(submodule).get(name)
            if isinstance(value, int) and old in (None, value):
                setattr(submodule, name, new)


# --- the proof ------------------------------------------------------------------------------------


def _as_bypassed(
    loaded: LoadedModel, stacks: Sequence[Stack], removed: Collection[int], shorter: LoadedModel
) -> bool:
    """Whether a shorter model puts out what the full model does with these layers bypassed."""

    def bypass(module: Any, returns_input: bool) -> Callable[..., Any]:
        original = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            x = args[0] if args else next(iter(kwargs.values()))
            output = original(*args, **kwargs)
            return with_first(output, x if returns_input else torch.zeros_like(x))

        return forward

    forwards: dict[nn.Module, Callable[..., Any]] = {}
    for stack in stacks:
        for layers in stack.lists:
            for number, layer in zip(stack.numbers, layers, strict=True):
                if number in removed:
                    # where lists stand side by side, norms return their input, other modules add 0
                    returns_input = len(stack.lists) == 1 or isinstance(layer, nn.LayerNorm)
                    forwards[layer] = bypass(layer, returns_input)
    with replaced_forwards(forwards):
        expected = outputs(loaded)
    return agree(expected, outputs(shorter), 1e-5)  # the same products, whatever their dtype


def _writes(loaded: LoadedModel) -> bool:
    """Whether transformers can generate with a model, whose cache counts layers its own way."""
    if not loaded.encoder_decoder or loaded.task_head != "seq2seq":
        return False
    ids, mask = loaded.pad([[loaded.vocab_size // 2, 0]])
    try:
        with quiet_transformers(), torch.no_grad():
            loaded.network.generate(input_ids=ids, attention_mask=mask, max_new_tokens=2)
    except Exception:  # whatever a family raises
        return False
    return True
