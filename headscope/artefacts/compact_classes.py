"""The classes that open a compact folder: a family's own model, with fewer parts.

With headscope: for each family two kinds are made when its first folder is opened: a configuration
that knows which heads, neurons and layers are there, and for each task head a model that is built
whole and cut before it gets weights. transformers looks the ``model_type`` of a folder up in a
table, to which :func:`register` adds headscope's.

Without headscope: the folder's own modelling file builds the family's own model and gives every
tensor that lost heads or neurons the shape that config.json names. Which tensors and which settings
those are is found by comparing the pruned network with a whole one, so that the file itself knows
nothing of families.
"""

from __future__ import annotations

import functools
import importlib.metadata
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from headscope.core.errors import ArtefactError, CheckpointError, UnsupportedModelError, reason
from headscope.core.saved_config import (
    CODE,
    COMPACT_TYPE,
    FAMILY,
    LEFT,
    SETTINGS,
    SETTINGS_BEFORE,
    SHAPES,
    STANDALONE_TYPE,
    family_config,
    is_ours,
)
from headscope.models.layouts.forwards import WithoutHeads
from headscope.models.layouts.relative import GivenBias
from headscope.models.load.manifest import parts_in_config
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.outputs import computes_the_same
from headscope.models.run.routing import quiet_transformers
from headscope.models.run.task_heads import TASK_HEADS, class_for
from headscope.models.surgery.layers import restore


def register() -> None:
    """Let transformers' own classes open the folders that headscope saved.

    >>> import headscope
    >>> headscope.register()

    A folder that has a modelling file of its own opens without this, with
    ``trust_remote_code=True``.
    """
    for name in (COMPACT_TYPE, STANDALONE_TYPE):
        CONFIG_MAPPING.register(name, _CompactFolder, exist_ok=True)


class _CompactFolder:
    """The entry of the table: makes the configuration of a folder when one is opened."""

    def __new__(cls, **settings: Any) -> Any:
        """Make a configuration from settings, as transformers calls a configuration's class."""
        return _config_of(settings)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Make a configuration from what config.json holds, as ``PreTrainedConfig`` does."""
        return _config_of(config_dict, **kwargs)


def _config_of(config_dict: dict[str, Any], **kwargs: Any) -> Any:
    path = Path(str(kwargs.get("name_or_path") or "")) / "config.json"
    family = config_dict.get(FAMILY)
    if (
        not isinstance(family, str)
        or family not in CONFIG_MAPPING
        or is_ours({"model_type": family})
    ):
        raise CheckpointError(f"{path} names {family!r} as {FAMILY}, which is no known family.")
    parts_in_config(config_dict, path)
    parts = {key: config_dict[key] for key in (FAMILY, *LEFT) if key in config_dict}
    # config.json states the number of layers left; the model is built with the original number
    now = {key: config_dict.get(key) for key in _settings_before(config_dict)}
    return _kinds(family).from_dict({**family_config(config_dict), **now, **parts}, **kwargs)


def _settings_before(settings: dict[str, Any]) -> dict[str, Any]:
    before = settings.get(SETTINGS_BEFORE)
    return before if isinstance(before, dict) else {}


class _CompactConfig:
    """A family's configuration that also says which heads, neurons and layers are there."""

    def to_dict(self) -> dict[str, Any]:
        """Return what config.json is to hold."""
        data: dict[str, Any] = super().to_dict()  # type: ignore[misc]
        return {**data, "model_type": COMPACT_TYPE}

    def __reduce__(self) -> Any:
        """Copy and pickle by naming the family: the class itself has no importable name."""
        return _blank_config, (vars(self)[FAMILY],), self.__dict__.copy()


class _CompactModel:
    """A family's model, cut to the parts that its configuration names."""

    config: Any
    headscope_kind: tuple[str, str]  # The family, and the auto class of transformers

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        restore(config, _settings_before(vars(config)))
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        path = Path(config.name_or_path or "") / "config.json"
        parts_in_config(vars(config), path).cut(self)

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Save as transformers does, but tensors under the names that they have in memory."""
        kwargs.setdefault("save_original_format", False)
        super().save_pretrained(save_directory, **kwargs)  # type: ignore[misc]

    def __reduce__(self) -> Any:
        """Copy and pickle by naming the family: the class itself has no importable name."""
        return _blank, self.headscope_kind, self.__dict__.copy()


def _blank_config(family: str) -> Any:
    kind = _kinds(family)
    return kind.__new__(kind)


def _blank(family: str, auto_class: str) -> Any:
    config_kind = _kinds(family)
    kind = getattr(transformers, auto_class)._model_mapping[config_kind]
    return kind.__new__(kind)


@functools.cache
def _kinds(family: str) -> Any:
    """Make a family's configuration class, and enter its models into transformers' tables."""
    original: Any = CONFIG_MAPPING[family]
    config_kind = _derived(_CompactConfig, original, {})
    for auto in (*map(class_for, (None, *TASK_HEADS)), transformers.AutoModelForTextEncoding):
        models = auto._model_mapping
        if original not in models:
            continue
        model = models[original][0] if isinstance(models[original], tuple) else models[original]
        attributes = {"config_class": config_kind, "headscope_kind": (family, auto.__name__)}
        auto.register(config_kind, _derived(_CompactModel, model, attributes), exist_ok=True)
    return config_kind


def _derived(part: type, original: Any, attributes: dict[str, Any]) -> Any:
    # transformers reads the source of a model's module, and saves the name of its class.
    return type(original)(
        original.__name__, (part, original), {"__module__": original.__module__, **attributes}
    )


# --- the folder's own modelling file ---

FILE = "modeling_headscope.py"
_CONFIG = "CompactConfig"
#: Setting that lists a module's heads, where the model computes a bias for all of them.
_KEPT = "kept_heads"

_HEADER = '''"""A {family} model without some of its parts, for transformers without headscope.

    AutoModel.from_pretrained(folder, trust_remote_code=True)

The model is built as its family has it. Then every tensor gets the shape that config.json names
for it ("{shapes}"), and every attention module its new number of heads ("{settings}").
Written by headscope {version}.
"""

import torch
from torch import nn
from transformers import {imports}


class {config}({family_config}):
    model_type = "{model_type}"


def shrink(model):
    base = getattr(model, model.base_model_prefix, model)
    for name, shape in model.config.{shapes}.items():
        place, _, own = name.rpartition(".")
        module = base.get_submodule(place)
        old = getattr(module, own)
        setattr(module, own, nn.Parameter(torch.zeros(shape, dtype=old.dtype, device=old.device)))
        if isinstance(module, nn.Linear) and own == "weight":
            module.out_features, module.in_features = shape
    for place, settings in model.config.{settings}.items():
        module = base.get_submodule(place)
        for name, value in settings.items():
            setattr(module, name, value)
'''
_BIAS = '''        if "{kept}" in settings:
            module.register_forward_pre_hook(own_bias, with_kwargs=True)


def own_bias(module, args, kwargs):
    """Take the part of the bias by relative position that belongs to the module's heads."""
    hidden, mask, bias, *rest = args
    return (hidden, mask, None if bias is None else bias[:, module.{kept}], *rest), kwargs
'''
_MODEL = """

class {name}({original}):
    config_class = {config}

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        shrink(self)
"""


def class_name(task_head: str | None) -> str:
    """Name the class of the modelling file that has a task head, or none."""
    return "CompactModel" + ("" if task_head is None else TASK_HEADS[task_head])


def standalone_files(loaded: LoadedModel, family: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Write the modelling file of a pruned model, and what config.json must say for it."""
    all_stacks = loaded.whole or loaded
    config = CONFIG_MAPPING[family["model_type"]].from_dict(dict(family))
    with torch.device("meta"):
        full = all_stacks.auto_class.from_config(config)
    base = getattr(full, "base_model", full)
    shapes, settings = _differences(base, all_stacks)
    code = {"AutoConfig": _CONFIG}  # class of the file by transformers' auto class
    originals: dict[str, str] = {}  # class of transformers by class of the file
    for head in dict.fromkeys((None, all_stacks.task_head)):
        auto = all_stacks.auto_class if head == all_stacks.task_head else class_for(head)
        code[auto.__name__] = name = class_name(head)
        models = auto._model_mapping[type(config)]
        originals[name] = (models[0] if isinstance(models, tuple) else models).__name__
    code.setdefault("AutoModel", class_name(None))  # which sentence-transformers asks for
    keys = {
        "model_type": STANDALONE_TYPE,
        FAMILY: family["model_type"],
        SHAPES: shapes,
        SETTINGS: settings,
        CODE: {auto: f"{FILE.removesuffix('.py')}.{name}" for auto, name in code.items()},
    }
    family_config = type(config).__name__
    words = {
        "family": family["model_type"],
        "family_config": family_config,
        "config": _CONFIG,
        "imports": ", ".join([family_config, *originals.values()]),
        "model_type": STANDALONE_TYPE,
        "shapes": SHAPES,
        "settings": SETTINGS,
        "kept": _KEPT,
        "version": importlib.metadata.version("headscope"),
    }
    text = _HEADER.format(**words)
    if any(_KEPT in changed for changed in settings.values()):
        text += _BIAS.format(**words)
    for name, original in originals.items():
        text += _MODEL.format(name=name, original=original, **words)
    return text, keys


def _differences(
    full: nn.Module, loaded: LoadedModel
) -> tuple[dict[str, list[int]], dict[str, dict[str, Any]]]:
    """Compare a pruned base model with a whole one: other shapes, other settings of modules."""
    shapes: dict[str, list[int]] = {}
    settings: dict[str, dict[str, Any]] = {}
    decoding = {site.module for site in loaded.sites if site.stack != "encoder"}
    mine = dict(loaded.model.named_modules())
    names = [{name for name, _ in network.named_parameters()} for network in (full, loaded.model)]
    if names[0] != names[1]:  # only layers that were removed change them
        raise UnsupportedModelError(
            f"standalone is not possible for {loaded.name}: the layers of {loaded.family} differ "
            "by place, and those that are left moved up; leave it out, and let users call "
            "headscope.register()."
        )
    for name, module in full.named_modules():
        other = mine[name]
        for tensor_name, tensor in module.named_parameters(recurse=False):
            if (shape := other.get_parameter(tensor_name).shape) != tensor.shape:
                shapes[f"{name}.{tensor_name}"] = list(shape)
        changed = {
            key: vars(other)[key]
            for key, value in vars(module).items()
            # the attributes of a linear map follow from its tensor
            if not isinstance(module, nn.Linear)
            and isinstance(value, int | float | str)
            and vars(other)[key] != value
        }
        for part in type(other).__mro__:
            # classes that headscope put before a module's own, so that it runs with fewer heads
            if "headscope_extends" not in vars(part) or part.__bases__ != (object,):
                continue
            if part is GivenBias:
                changed[_KEPT] = list(vars(other)["headscope_kept"])
            elif part is not WithoutHeads or other in decoding:
                raise UnsupportedModelError(
                    f"standalone is not possible for {loaded.name}: the modules of "
                    f"{loaded.family} cannot run with fewer heads by themselves; leave it out, and "
                    "let users call headscope.register()."
                )
        if changed:
            settings[name] = changed
    return shapes, settings


# --- opened as a user would ---

_NAME = "headscope_written_modelling_file"


def check_opens(loaded: LoadedModel, folder: Path, standalone: bool = False) -> None:
    """Open a written folder by transformers, and compare its states and logits with the model's.

    ``standalone`` uses the folder's own modelling file, and runs it where it lies: transformers
    would copy it into its cache.
    """
    register()
    all_stacks = loaded.whole or loaded
    options: dict[str, Any] = {"dtype": getattr(torch, all_stacks.dtype), "local_files_only": True}
    options["attn_implementation"] = all_stacks.network.config._attn_implementation  # same rounding
    with quiet_transformers(), ExitStack() as stack:
        try:
            kind = all_stacks.auto_class
            if standalone:
                module = stack.enter_context(_imported(folder / FILE))
                kind = getattr(module, class_name(all_stacks.task_head))
            same = computes_the_same(all_stacks, kind.from_pretrained(folder, **options))
        except Exception as error:  # transformers raises many kinds
            raise ArtefactError(
                f"transformers does not open what was written ({reason(error)}), so the folder was "
                "not kept; please report this."
            ) from error
    if not same:
        raise ArtefactError(
            "transformers opens what was written as a model that computes something else, so "
            "the folder was not kept; please report this."
        )


@contextmanager
def _imported(file: Path) -> Iterator[ModuleType]:
    """Run a modelling file; no bytecode is left beside it."""
    spec = spec_from_file_location(_NAME, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.modules[_NAME] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.dont_write_bytecode = written
        del sys.modules[_NAME]
