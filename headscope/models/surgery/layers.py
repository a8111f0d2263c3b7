"""Removing whole layers for real: the model computes as if each of them returned its input.

Its attention, its feed-forward network and their norms go; a norm behind the last layer stays. The
layers that are left keep their original numbers in every name. The names of the attention modules
say where a model keeps its layers: in one list of modules, or in several side by side (XLM). That
nothing else depends on their number is not taken for granted: the shorter model is run and compared
with the whole one with these layers bypassed.

An encoder-decoder has a list for each side, and a layer of its decoder is self-attention,
cross-attention and feed-forward network together. A table that only the first layer keeps (the
relative bias of T5) moves to the new first one. Files number the layers of
both sides in one sequence, the decoder's after the encoder's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn

from headscope.core.errors import InputError, UnsupportedModelError, reason
from headscope.core.heads import layer_name
from headscope.models.layouts.layout import AttentionModule, AttentionSite
from headscope.models.layouts.sites import LAYER, attention_modules, layer_lists
from headscope.models.run.hooks import replaced_forwards, with_first
from headscope.models.run.loaded import LoadedModel, as_before, copied_network, wrap
from headscope.models.run.outputs import agree, outputs
from headscope.models.run.routing import quiet_transformers

#: Attributes of a base model that has lost layers: how many each side had, and its settings then.
_BEFORE = "headscope_layers_before"
_SETTINGS = "headscope_settings_before"
#: Settings and attributes that count layers, settings that list something for each, and numbers
#: that each layer has of its own.
_COUNT = "num_hidden_layers"
_COUNTS = (_COUNT, "n_layers", "num_layers")
#: Settings of an encoder-decoder as a whole.
_OF_SIDE = {
    "encoder": (_COUNT, "num_layers", "encoder_layers"),
    "decoder": ("num_decoder_layers", "decoder_layers"),
}
_LISTS = ("layer_types",)
_INDICES = ("layer_idx", "layer_id")
_TABLE = "relative_attention_bias"  # Kept by the first layer of T5, for all layers


#: An original number, or (``encoder`` or ``decoder``, original number) of an encoder-decoder.
Layer = int | tuple[str, int]


@dataclass(frozen=True)
class _Side:
    """The layers of an encoder, or of a decoder."""

    stack: str
    start: int  # Number of its first layer in the one row of all
    one_of_two: bool  # Whether the model has an encoder and a decoder
    part: nn.Module  # What they lie in
    lists: list[nn.ModuleList]  # Of equal length
    attentions: list[list[AttentionModule]]  # Of each layer

    @property
    def n_layers(self) -> int:
        return len(self.attentions)

    @property
    def numbers(self) -> list[int]:
        """Original numbers of the layers, counted across both sides."""
        layers = enumerate(self.attentions)
        return [self.start + getattr(items[0].module, LAYER, i) for i, items in layers]

    def named(self, number: int) -> Layer:
        """Return a layer as :func:`remove_layers` takes it, by its number across both sides."""
        return (self.stack, number - self.start) if self.one_of_two else number


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
    all_stacks = loaded.whole or loaded
    sides = _checked(all_stacks)
    gone = _gone(all_stacks, sides, list(layers))
    network = copied_network(loaded, share=share)
    try:
        drop_layers(network, [number for number in kept_layers(all_stacks) if number not in gone])
        shorter = as_before(wrap(network, loaded.tokenizer, name=loaded.name), loaded)
        same = not gone or _as_bypassed(all_stacks, sides, gone, shorter)
    except InputError:
        raise
    except Exception as error:  # whatever a family raises that cannot do without them
        raise _unsupported(all_stacks, gone, f"it does not run without them: {error}") from error
    if not same:
        raise _unsupported(all_stacks, gone, "other layers would compute something else")
    if _writes(loaded) and not _writes(shorter):
        raise _unsupported(
            all_stacks,
            gone,
            "transformers cannot generate with fewer layers in this encoder than in the decoder",
        )
    return shorter


def layer_words(layer: Any) -> str:
    """Name a layer as :func:`remove_layers` takes it: ``L3``, ``decoder:L3``."""
    return layer_name(layer) if isinstance(layer, int) else layer_name(layer[1], layer[0])


def _checked(loaded: LoadedModel) -> list[_Side]:
    """Find the sides of a model; refuse one whose layers cannot be removed one by one."""
    modules = [site.module for site in loaded.sites]
    sides = _sides(loaded.model)
    if len(set(modules)) < len(modules) or not sides:
        raise UnsupportedModelError(
            f"The layers of {loaded.name} ({loaded.family}) share their weights or do not lie in a "
            "list, so that none can be removed by itself; remove heads with headscope prune."
        )
    return sides


def _gone(loaded: LoadedModel, sides: Sequence[_Side], layers: Sequence[Layer]) -> set[int]:
    """Check the layers to remove and return their numbers across both sides."""
    named = {side.named(number): number for side in sides for number in side.numbers}
    wanted = [tuple(layer) if isinstance(layer, list) else layer for layer in layers]
    for layer in wanted:
        if layer not in named:
            several = len(sides) > 1 and isinstance(layer, int)
            existing = [numbered_layers(loaded.only(side.stack).sites) for side in sides]
            it_has = " and ".join(
                f"{words} in its {side.stack}" if len(sides) > 1 else words
                for words, side in zip(existing, sides, strict=True)
            )
            how = "; name one as ('decoder', 1)" if several else ""
            raise InputError(f"{loaded.name} has no layer {layer!r}{how}; it has {it_has}.")
    gone = {named[layer] for layer in wanted}
    for side in sides:
        if gone.issuperset(side.numbers):
            of = f"the {side.stack} of " if len(sides) > 1 else ""
            raise InputError(
                f"That would remove every layer of {of}{loaded.name}; keep at least one."
            )
    return gone


def _unsupported(model: LoadedModel, gone: Collection[int], why: str) -> UnsupportedModelError:
    named = map(_namer(_sides(model.model)), sorted(gone))
    numbers = ", ".join(str(n) if isinstance(n, int) else layer_words(n) for n in named)
    what = f"Layer {numbers}" if len(gone) == 1 else f"Layers {numbers}"
    return UnsupportedModelError(
        f"{what} of {model.name} ({model.family}) cannot be removed: {reason(why)}; choose others."
    )


def numbered_layers(sites: Sequence[AttentionSite]) -> str:
    """Say which numbers the layers of one stack have: ``layers 0 to 5``, or a list with gaps."""
    numbers = [site.layer for site in sites]
    if numbers == list(range(len(numbers))):
        return f"layers 0 to {len(numbers) - 1}"
    return f"layer{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def removed_layers(loaded: LoadedModel) -> tuple[Layer, ...]:
    """List the layers that a model has lost, as :func:`remove_layers` names them."""
    base = (loaded.whole or loaded).model
    if not (before := layers_before(loaded)):
        return ()
    remaining = set(kept_layers(loaded))
    named = _namer(_sides(base))
    return tuple(named(n) for n in range(before) if n not in remaining)


def kept_layers(loaded: LoadedModel) -> list[int]:
    """List the original numbers of the remaining layers, counted across both sides."""
    return [number for side in _sides((loaded.whole or loaded).model) for number in side.numbers]


def layers_before(loaded: LoadedModel) -> int:
    """Return how many layers a model had before any was removed; 0 where none was."""
    return sum(vars((loaded.whole or loaded).model).get(_BEFORE, {}).values())


def count_layers(base: nn.Module) -> int:
    """Return how many layers a base model has, of both sides."""
    return sum(side.n_layers for side in _sides(base))


def _namer(sides: Sequence[_Side]) -> Callable[[int], Layer]:
    """Return a function that names a layer by its number across both sides."""
    return lambda number: next(s for s in reversed(sides) if s.start <= number).named(number)


def settings_before(base: nn.Module) -> dict[str, Any]:
    """Return settings of the configuration as they were before layers were removed."""
    return dict(vars(base).get(_SETTINGS, {}))


def restore(config: Any, settings: Mapping[str, Any]) -> None:
    """Set settings of a configuration to what they were, by their names in config.json."""
    for name, value in settings.items():
        setattr(config, name, value)


def drop_layers(network: Any, remaining: Collection[int]) -> None:
    """Leave only the layers ``remaining``, by original number across both sides, in place."""
    base: Any = getattr(network, "base_model", network)
    sides = _sides(base)
    marks = vars(base)
    marks.setdefault(_BEFORE, {side.stack: side.n_layers for side in sides})
    marks.setdefault(_SETTINGS, {})
    for side in sides:
        _drop(network, side, [number in remaining for number in side.numbers])


def _drop(network: Any, side: _Side, stays: Sequence[bool]) -> None:
    """Leave only some layers of one side."""
    before = side.n_layers
    one_of_two = side.one_of_two
    for index, number in enumerate(side.numbers):
        for item in side.attentions[index]:
            vars(item.module)[LAYER] = number - side.start
    if any(stays):
        _move_table(*(side.attentions[i][0].module for i in (0, stays.index(True))))
    for layers in side.lists:
        for index in reversed(range(before)):
            if not stays[index]:
                del layers[index]
        for index, layer in enumerate(layers):
            _set_numbers(layer, _INDICES, None, index)
    left = sum(stays)
    _set_numbers(side.part, _COUNTS, before, left)
    base: Any = getattr(network, "base_model", network)
    originals = vars(base)[_SETTINGS]
    owners = network.modules() if not one_of_two else (network, base, *side.part.modules())
    for config in {id(c): c for m in owners if (c := vars(m).get("config"))}.values():
        of_both = one_of_two and config.is_encoder_decoder
        for name in (*(_OF_SIDE[side.stack] if of_both else _COUNTS[:1]), *_LISTS):
            old = getattr(config, name, None)
            if name not in _LISTS and old == before:
                new: Any = left
            elif isinstance(old, list | tuple) and len(old) == before:
                new = [value for value, stay in zip(old, stays, strict=True) if stay]
            else:
                continue
            if of_both or not one_of_two:
                originals.setdefault(config.attribute_map.get(name, name), old)
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
    for part in module.modules():
        for name in names:
            value = vars(part).get(name)
            if isinstance(value, int) and old in (None, value):
                setattr(part, name, new)


def _sides(base: Any) -> list[_Side]:
    """Find the layers of a base model by side; an empty list where they cannot be told apart."""
    modules = attention_modules(base)
    sides: list[_Side] = []
    by_list = layer_lists(base, modules)
    if sum(map(len, chain(*by_list.values()))) != len(modules) or len(by_list) > len(_OF_SIDE):
        return []
    parts = [base] if len(by_list) < 2 else [base.get_encoder(), base.get_decoder()]
    for (name, attentions), stack, part in zip(by_list.items(), _OF_SIDE, parts, strict=False):
        if len(set(map(len, attentions))) > 1:  # a layer without attention, or with more
            return []
        beside = base.get_submodule(name.rpartition(".")[0]).children()
        lists = [x for x in beside if isinstance(x, nn.ModuleList) and len(x) == len(attentions)]
        start = sum(vars(base).get(_BEFORE, {}).get(s.stack, s.n_layers) for s in sides)
        sides.append(_Side(stack, start, len(by_list) > 1, part, lists, attentions))
    return sides


# --- the proof ------------------------------------------------------------------------------------


def _as_bypassed(
    loaded: LoadedModel, sides: Sequence[_Side], gone: Collection[int], shorter: LoadedModel
) -> bool:
    """Whether a shorter model puts out what the full model does with these layers bypassed."""

    def bypass(module: Any, returns: bool) -> Callable[..., Any]:
        original = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            x = args[0] if args else next(iter(kwargs.values()))
            return with_first(original(*args, **kwargs), x if returns else torch.zeros_like(x))

        return forward

    forwards = {}
    for side in sides:
        for layers in side.lists:
            for layer in (x for x, n in zip(layers, side.numbers, strict=True) if n in gone):
                # where lists stand side by side, norms return their input, other modules add zero
                norm = len(side.lists) == 1 or isinstance(layer, nn.LayerNorm)
                forwards[layer] = bypass(layer, norm)
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
