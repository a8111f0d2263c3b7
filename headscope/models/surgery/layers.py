"""Removing whole layers for real: the model computes as if each of them returned its input.

A layer goes with its attention, its feed-forward network and their norms; a norm behind the last
layer stays. A layer of a decoder that reads an encoder goes with its cross-attention too.

The layers that are left keep their original numbers. So the modules are marked: the base model
remembers how many layers each stack had, and what its configuration said of them; every attention
module remembers the original number of its layer. Of 6 layers without L2, the last attention module
lies at index 4 of the list and is marked 5.

Nothing is taken for granted of how a family's layers depend on their position: the shorter model is
run, and compared with the full one in which the same layers return their input.

:func:`remove_layers` is the entry point; the sections after it are its steps.
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

#: Attribute of a base model that has lost layers: the settings that say something of layers, as
#: they were, by their names in config.json. Beside it stands BEFORE, the number of layers.
_SETTINGS = "headscope_settings_before"
_COUNT = "num_hidden_layers"  # The setting that counts layers
#: Settings of an encoder-decoder as a whole that count the layers of one stack.
_COUNTS_OF_STACK = {
    "encoder": (_COUNT, "num_layers", "encoder_layers"),
    "decoder": ("num_decoder_layers", "decoder_layers"),
}
_LISTS = ("layer_types",)  # Settings that list something for each layer
_COUNTERS = (_COUNT, "n_layers", "num_layers")  # Attributes of modules that count layers
_INDICES = ("layer_idx", "layer_id")  # Attributes of a layer that hold its own number
#: T5's table of biases by relative position, which the first layer of a stack keeps for all.
_TABLE = "relative_attention_bias"


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
    # what is asked for
    all_stacks = loaded.with_all_stacks
    stacks = _checked_stacks(all_stacks)
    removed = _numbers_to_remove(all_stacks, stacks, list(layers))

    # a copy without these layers, proven to be the full model with them bypassed
    network = copied_network(loaded, share=share)
    remaining = [number for number in kept_layers(all_stacks) if number not in removed]
    try:
        drop_layers(network, remaining)
        shorter = as_before(wrap(network, loaded.tokenizer, name=loaded.name), loaded)
        same = not removed or _equals_bypassed(all_stacks, stacks, removed, shorter)
    except InputError:
        raise
    except Exception as error:  # families raise many kinds where a layer is missing
        raise _unsupported(all_stacks, removed, f"it does not run without them: {error}") from error
    if not same:
        raise _unsupported(all_stacks, removed, "other layers would compute something else")
    if _generates(loaded) and not _generates(shorter):
        raise _unsupported(
            all_stacks,
            removed,
            "transformers cannot generate with fewer layers in this encoder than in the decoder",
        )
    return shorter


# --- what is asked for, checked -------------------------------------------------------------------


def layer_words(layer: Any) -> str:
    """Name a layer as :func:`remove_layers` takes it: ``L3``, ``decoder:L3``."""
    return layer_name(layer) if isinstance(layer, int) else layer_name(layer[1], layer[0])


def _checked_stacks(loaded: LoadedModel) -> list[Stack]:
    """Find the stacks of a model; refuse one whose layers cannot be removed one by one."""
    modules = [site.module for site in loaded.sites]
    stacks = stacks_of(loaded.model)
    if len(set(modules)) < len(modules):
        why = "share their weights, so that none can be removed by itself"
    elif not stacks:
        why = (
            "cannot be told apart: attention lies in no list of layers, in some of them only, or "
            "in modules of which headscope has no layout"
        )
    else:
        return stacks
    raise UnsupportedModelError(
        f"The layers of {loaded.name} ({loaded.family}) {why}; remove heads with headscope prune."
    )


def _numbers_to_remove(
    loaded: LoadedModel, stacks: Sequence[Stack], layers: Sequence[Layer]
) -> set[int]:
    """Check the layers to remove and return their numbers, counted across both stacks.

    With six layers in the encoder: ``[("encoder", 1), ("decoder", 2)] -> {1, 8}``.
    """
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


# --- what a model has, and has lost ---------------------------------------------------------------


def removed_layers(loaded: LoadedModel) -> tuple[Layer, ...]:
    """List the layers that a model has lost, as :func:`remove_layers` names them."""
    before = layers_before(loaded)
    if not before:
        return ()
    remaining = set(kept_layers(loaded))
    stacks = stacks_of(loaded.with_all_stacks.model)
    return tuple(layer_of(stacks, number) for number in range(before) if number not in remaining)


def kept_layers(loaded: LoadedModel) -> list[int]:
    """List the original numbers of the remaining layers, counted across both stacks."""
    stacks = stacks_of(loaded.with_all_stacks.model)
    return list(chain.from_iterable(stack.numbers for stack in stacks))


def layers_before(loaded: LoadedModel) -> int:
    """Return how many layers a model had before any was removed; 0 where none was."""
    layers_of_stacks: dict[str, int] = getattr(loaded.with_all_stacks.model, BEFORE, {})
    return sum(layers_of_stacks.values())


def count_layers(base: nn.Module) -> int:
    """Return how many layers a base model has, of both stacks."""
    return sum(stack.n_layers for stack in stacks_of(base))


def settings_before(base: nn.Module) -> dict[str, Any]:
    """Return settings of the configuration as they were before layers were removed."""
    return dict(getattr(base, _SETTINGS, {}))


def restore(config: Any, settings: Mapping[str, Any]) -> None:
    """Set settings of a configuration to what they were, by their names in config.json."""
    for name, value in settings.items():
        setattr(config, name, value)


# --- in place -------------------------------------------------------------------------------------


def drop_layers(network: Any, remaining: Collection[int]) -> None:
    """Leave only some layers of a network, in place.

    ``remaining`` are their original numbers, counted across both stacks.
    """
    base: Any = getattr(network, "base_model", network)
    stacks = stacks_of(base)
    # A model that has lost layers before keeps what it remembers of the full one.
    if not hasattr(base, BEFORE):
        setattr(base, BEFORE, {stack.name: stack.n_layers for stack in stacks})
        setattr(base, _SETTINGS, {})
    for stack in stacks:
        stays = [number in remaining for number in stack.numbers]
        _drop_modules(stack, stays)
        _change_configurations(network, stack, stays)


def _drop_modules(stack: Stack, stays: Sequence[bool]) -> None:
    """Leave only some layers of one stack; the modules then count the layers that are left.

    ``stays`` says of each layer whether it stays.
    """
    for number, attentions in zip(stack.numbers, stack.attentions, strict=True):
        for attention in attentions:
            setattr(attention.module, LAYER, number - stack.start)
    if any(stays):
        first = stack.attentions[0][0].module
        new_first = stack.attentions[stays.index(True)][0].module
        _move_table(first, new_first)
    for layers in stack.lists:
        for index in reversed(range(stack.n_layers)):
            if not stays[index]:
                del layers[index]
        for index, layer in enumerate(layers):
            _set_numbers(layer, _INDICES, index)
    _set_numbers(stack.owner, _COUNTERS, sum(stays), only_from=stack.n_layers)


def _change_configurations(network: Any, stack: Stack, stays: Sequence[bool]) -> None:
    """Let every configuration in a network describe the layers of a stack that stay.

    The base model remembers the old settings of the model as a whole.
    """
    base: Any = getattr(network, "base_model", network)
    modules = network.modules()
    if stack.one_of_two:  # the other stack's own configuration says nothing of these layers
        modules = (network, base, *stack.owner.modules())
    for config in _configurations(modules):
        # In an encoder-decoder's configuration, the counts of both stacks have names of their own.
        of_both = stack.one_of_two and config.is_encoder_decoder
        of_model = of_both or not stack.one_of_two
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
            if of_model:
                name_in_file = config.attribute_map.get(name, name)
                getattr(base, _SETTINGS).setdefault(name_in_file, getattr(config, name))
            setattr(config, name, new)


def _configurations(modules: Iterable[nn.Module]) -> list[Any]:
    """List the configurations that modules hold, each once; most modules hold the model's own."""
    configs: list[Any] = []
    for module in modules:
        config = getattr(module, "config", None)
        if config is not None and not any(config is listed for listed in configs):
            configs.append(config)
    return configs


def _move_table(first: Any, new_first: Any) -> None:
    """Give the new first layer the table of positions that only the first one has (T5)."""
    table = getattr(first, _TABLE, None)
    has_own = getattr(new_first, _TABLE, None) is not None
    if first is new_first or table is None or has_own:
        return
    delattr(first, _TABLE)
    setattr(new_first, _TABLE, table)
    first.has_relative_attention_bias = False
    new_first.has_relative_attention_bias = True


def _set_numbers(
    module: nn.Module, names: Iterable[str], new: int, *, only_from: int | None = None
) -> None:
    """Set attributes of a module and its submodules that are integers, where they have them.

    With ``only_from`` only those that are equal to it.
    """
    for submodule in module.modules():
        for name in names:
            value = vars(submodule).get(name)  # stored, not computed by a property
            if isinstance(value, int) and (only_from is None or value == only_from):
                setattr(submodule, name, new)


# --- the proof ------------------------------------------------------------------------------------


def _equals_bypassed(
    loaded: LoadedModel, stacks: Sequence[Stack], removed: Collection[int], shorter: LoadedModel
) -> bool:
    """Whether a shorter model puts out what the full model does with these layers bypassed.

    A layer is bypassed by returning its input. A family that keeps attention, feed-forward networks
    and norms in lists side by side adds what its modules return: there norms return their input,
    and the others 0.
    """

    def bypass(module: Any, returns_input: bool) -> Callable[..., Any]:
        original = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            x = args[0] if args else next(iter(kwargs.values()))
            output = original(*args, **kwargs)  # the state, or a tuple that begins with it
            return with_first(output, x if returns_input else torch.zeros_like(x))

        return forward

    forwards: dict[nn.Module, Callable[..., Any]] = {}
    for stack in stacks:
        for layers in stack.lists:
            for number, layer in zip(stack.numbers, layers, strict=True):
                if number in removed:
                    returns_input = len(stack.lists) == 1 or isinstance(layer, nn.LayerNorm)
                    forwards[layer] = bypass(layer, returns_input)
    with replaced_forwards(forwards):
        expected = outputs(loaded)
    # both compute the same products, so the limit is strict in every dtype
    return agree(expected, outputs(shorter), 1e-5)


def _generates(loaded: LoadedModel) -> bool:
    """Whether transformers can generate with a model: its cache counts layers in its own way."""
    if not loaded.encoder_decoder or loaded.task_head != "seq2seq":
        return False
    ids, mask = loaded.pad([[loaded.vocab_size // 2, 0]])
    try:
        with quiet_transformers(), torch.no_grad():
            loaded.network.generate(input_ids=ids, attention_mask=mask, max_new_tokens=2)
    except Exception:  # whatever a family raises
        return False
    return True
