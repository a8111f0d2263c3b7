"""Whole layers, removed for real: such a layer returns its input.

Its attention, its feed-forward network and their norms go; a norm behind the last layer stays. The
layers that are left keep their original numbers in every name. Where a model keeps its layers is
looked up by structure: a list of modules, one for each attention module, or several such lists side
by side (XLM). That nothing else depends on their number is not taken for granted: the shorter model
is run and held against the whole one with these layers bypassed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headscope.core.errors import InputError, UnsupportedModelError
from headscope.models.hooks import replaced_forwards
from headscope.models.layouts import LAYER, AttentionSite, attention_modules
from headscope.models.loaded import LoadedModel

#: Attributes of a base model that has lost layers: how many it had, and its settings then.
_BEFORE, _SETTINGS = "headscope_layers_before", "headscope_settings_before"
#: Settings and attributes that count layers, settings that list something for each, and numbers
#: that each layer has of its own.
_COUNT = "num_hidden_layers"
_COUNTS = (_COUNT, "n_layers", "num_layers")
_LISTS = ("layer_types",)
_PLACES = ("layer_idx", "layer_id")


def remove_layers(
    loaded: LoadedModel, layers: Iterable[int], *, share: bool = False
) -> LoadedModel:
    """Copy a model without some of its layers: each of them returns its input.

    Parameters
    ----------
    loaded : LoadedModel
        A model of one stack (an encoder, or GPT-2) whose layers have weights of their own; left as
        it is.
    layers : iterable of int
        By their original numbers. At least one layer stays.
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
        If the model has several stacks or shared layers, or computes something else without them.
    """
    from headscope.models.compact import as_before
    from headscope.models.loading import wrap

    check_single(loaded)
    there = [site.layer for site in loaded.sites]
    gone = set(layers)
    if missing := sorted(gone.difference(there), key=str):
        raise InputError(
            f"{loaded.name} has no layer {missing[0]!r}; it has {numbered_layers(loaded.sites)}."
        )
    if len(gone) == len(there):
        raise InputError(f"That would remove every layer of {loaded.name}; keep at least one.")
    tensors = (*loaded.network.parameters(), *loaded.network.buffers()) if share else ()
    network = copy.deepcopy(loaded.network, {id(tensor): tensor for tensor in tensors})
    try:
        drop_layers(network, [number for number in there if number not in gone])
        shorter = as_before(wrap(network, loaded.tokenizer, name=loaded.name), loaded)
        same = not gone or _close(_states(shorter), _bypassed(loaded, gone))
    except InputError:
        raise
    except Exception as error:  # whatever a family raises that cannot do without them
        raise _unsupported(loaded, gone, f"it does not run without them: {error}") from error
    if not same:
        raise _unsupported(loaded, gone, "other layers would compute something else")
    return shorter


def check_single(loaded: LoadedModel) -> None:
    """Refuse a model whose layers cannot be removed one by one."""
    if loaded.encoder_decoder or len(loaded.stacks) > 1:
        raise UnsupportedModelError(
            f"{loaded.name} ({loaded.family}) has several stacks, and layers are removed from "
            "models of one stack only (encoders and GPT-2); choose the units heads or neurons."
        )
    modules = [site.module for site in loaded.sites]
    if len(set(modules)) < len(modules) or not _lists(loaded.model):
        raise UnsupportedModelError(
            f"The layers of {loaded.name} ({loaded.family}) share their weights or do not lie in a "
            "list, so that none can be removed by itself; choose the units heads or neurons."
        )


def _unsupported(loaded: LoadedModel, gone: Collection[int], why: str) -> UnsupportedModelError:
    numbers = ", ".join(map(str, sorted(gone)))
    what = f"Layer {numbers}" if len(gone) == 1 else f"Layers {numbers}"
    said = " ".join(why.split())[:200]
    return UnsupportedModelError(
        f"{what} of {loaded.name} ({loaded.family}) cannot be removed: {said}; choose others."
    )


def numbered_layers(sites: Sequence[AttentionSite]) -> str:
    """Say which numbers the layers of one stack have: ``layers 0 to 5``, or a list with gaps."""
    numbers = [site.layer for site in sites]
    if numbers == list(range(len(numbers))):
        return f"layers 0 to {len(numbers) - 1}"
    return f"layer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def removed_layers(loaded: LoadedModel) -> tuple[int, ...]:
    """List the original numbers of the layers that a model has lost."""
    before = layers_before(loaded)
    there = {site.layer for site in loaded.sites}
    return tuple(n for n in range(before) if n not in there) if before else ()


def layers_before(loaded: LoadedModel) -> int:
    """Return how many layers a model had before any was removed; 0 where none was."""
    return int(vars((loaded.whole or loaded).model).get(_BEFORE, 0))


def settings_before(base: nn.Module) -> dict[str, Any]:
    """Return settings of the configuration as they were before layers were removed."""
    return dict(vars(base).get(_SETTINGS, {}))


def restore(config: Any, settings: Mapping[str, Any]) -> None:
    """Set settings of a configuration to what they were, by their names in config.json."""
    for name, value in settings.items():
        setattr(config, name, value)


def drop_layers(network: Any, kept: Collection[int]) -> None:
    """Leave only the layers ``kept``, by original number, in place."""
    base: Any = getattr(network, "base_model", network)
    lists, modules = _lists(base), attention_modules(base)
    numbers = [getattr(item.module, LAYER, place) for place, item in enumerate(modules)]
    before, left = len(numbers), [number for number in numbers if number in kept]
    for number, item in zip(numbers, modules, strict=True):
        vars(item.module)[LAYER] = number
    for layers in lists:
        for place in reversed(range(before)):
            if numbers[place] not in kept:
                del layers[place]
        for place, layer in enumerate(layers):
            _set_numbers(layer, _PLACES, None, place)
    _set_numbers(base, _COUNTS, before, len(left))
    marks = vars(base)
    marks.setdefault(_BEFORE, before)
    originals = marks.setdefault(_SETTINGS, {})
    for config in {id(c): c for m in network.modules() if (c := vars(m).get("config"))}.values():
        for name in (_COUNT, *_LISTS):
            old = getattr(config, name, None)
            if name == _COUNT and old == before:
                new: Any = len(left)
            elif isinstance(old, list | tuple) and len(old) == before:
                new = [value for n, value in zip(numbers, old, strict=True) if n in kept]
            else:
                continue
            originals.setdefault(config.attribute_map.get(name, name), old)
            setattr(config, name, new)


def _set_numbers(module: nn.Module, names: Iterable[str], old: int | None, new: int) -> None:
    """Set attributes of a module and those inside it that are numbers (equal to ``old``)."""
    for part in module.modules():
        for name in names:
            value = vars(part).get(name)
            if isinstance(value, int) and old in (None, value):
                setattr(part, name, new)


def list_names(base: nn.Module) -> tuple[str, ...]:
    """Name the lists that hold the layers of a base model."""
    lists = _lists(base)
    return tuple(name for name, module in base.named_modules() if module in lists)


def _lists(base: nn.Module) -> list[nn.ModuleList]:
    """Find the list of layers, and others of its length beside it; none where there is none."""
    attentions = [item.module for item in attention_modules(base)]
    for parent in base.modules():
        beside = [
            child
            for child in parent.children()
            if isinstance(child, nn.ModuleList) and len(child) == len(attentions)
        ]
        for layers in beside:
            pairs = zip(layers, attentions, strict=True)
            if all(attention in set(layer.modules()) for layer, attention in pairs):
                return beside
    return []


# --- the proof ------------------------------------------------------------------------------------


def _bypassed(loaded: LoadedModel, gone: Collection[int]) -> Tensor:
    """Run a model with some layers returning their input."""
    lists = _lists(loaded.model)
    places = [site.layer for site in loaded.sites]

    def bypass(module: Any, returns: bool) -> Callable[..., Any]:
        own = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            given = args[0] if args else next(iter(kwargs.values()))
            return _with_first(own(*args, **kwargs), given if returns else torch.zeros_like(given))

        return forward

    forwards = {}
    for layers in lists:
        for place in (places.index(number) for number in gone):
            # of lists side by side, norms return what they are given and the rest adds nothing
            norm = len(lists) == 1 or isinstance(layers[place], nn.LayerNorm)
            forwards[layers[place]] = bypass(layers[place], norm)
    with replaced_forwards(forwards):
        return _states(loaded)


def _with_first(output: Any, first: Tensor) -> Any:
    """Exchange the state in what a module returns."""
    if isinstance(output, dict):
        return {**output, next(iter(output)): first}
    return (first, *output[1:]) if isinstance(output, tuple) else first


def _states(loaded: LoadedModel) -> Tensor:
    """Run a model on two short texts, one of them padded; the states of their tokens."""
    long = min(24, loaded.max_length)
    rows = [[(7 + 31 * i * i) % loaded.vocab_size for i in range(n)] for n in (long, 1 + long // 3)]
    ids, mask = loaded.pad(rows)
    with torch.no_grad():
        return loaded.forward(ids, mask)[mask.bool()].double()


def _close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= 1e-4 * max(1.0, float(other.abs().max())))
