"""The modelling file of a compact folder, by which it opens where headscope is not installed.

A compact folder holds a model that has lost heads, neurons or layers. The file, Python code beside
the weights, builds the family's own model and gives every tensor that lost heads or neurons the
shape that config.json names; attributes of modules, such as the number of heads, likewise. Which
tensors and attributes those are is found by comparing the pruned network with a full one, so that
the file itself knows nothing of families.

First the parts of the file's text, then :func:`standalone_files`, the entry point. FAMILY, SHAPES,
SETTINGS and CODE are keys of config.json: the family's name, the shapes of tensors, the attributes
of modules, and which class of the file each auto class opens.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

import torch
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from headscope.artefacts.compact_classes import first_class
from headscope.core.errors import UnsupportedModelError
from headscope.core.saved_config import CODE, FAMILY, SETTINGS, SHAPES, STANDALONE_TYPE
from headscope.models.layouts.forwards import WithoutHeads
from headscope.models.layouts.relative import GivenBias
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.task_heads import TASK_HEADS, class_for

FILE = "modeling_headscope.py"
_CONFIG = "CompactConfig"  # Name of the configuration's class in the file
#: Attribute that lists a module's heads, in models that compute a bias of scores for all heads.
_KEPT = "kept_heads"

# Names in braces are filled in: keys of config.json, and names of transformers' classes.
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
        module_name, _, tensor_name = name.rpartition(".")
        module = base.get_submodule(module_name)
        old = getattr(module, tensor_name)
        new = torch.zeros(shape, dtype=old.dtype, device=old.device)
        setattr(module, tensor_name, nn.Parameter(new))
        if isinstance(module, nn.Linear) and tensor_name == "weight":
            module.out_features, module.in_features = shape
    for module_name, settings in model.config.{settings}.items():
        module = base.get_submodule(module_name)
        for name, value in settings.items():
            setattr(module, name, value)
'''
#: The end of ``shrink`` for models with such a bias.
_BIAS = '''        if "{kept}" in settings:
            module.register_forward_pre_hook(own_bias, with_kwargs=True)


def own_bias(module, args, kwargs):
    """Take the part of the bias by relative position that belongs to the module's heads."""
    hidden, mask, bias, *rest = args
    return (hidden, mask, None if bias is None else bias[:, module.{kept}], *rest), kwargs
'''
#: One class of the file.
_MODEL = """

class {name}({original}):
    config_class = {config}

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        shrink(self)
"""


def class_name(task_head: str | None) -> str:
    """Name the file's class for a task head: ``CompactModelForMaskedLM``; None for no head."""
    return "CompactModel" if task_head is None else f"CompactModel{TASK_HEADS[task_head]}"


def standalone_files(
    loaded: LoadedModel, family_settings: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return the text of a pruned model's modelling file, and what config.json must say for it.

    ``family_settings``: config.json as the family's own class would have it.

    Raises
    ------
    UnsupportedModelError
        If the family's modules cannot run with fewer heads, or layers, by themselves.
    """
    # how the pruned model differs from a full one, which needs no memory on the device meta
    all_stacks = loaded.with_all_stacks
    family = family_settings["model_type"]
    config = CONFIG_MAPPING[family].from_dict(dict(family_settings))
    with torch.device("meta"):
        full = all_stacks.auto_class.from_config(config)
    base = getattr(full, "base_model", full)
    shapes, settings = _differences(base, all_stacks)

    # the classes of the file, by the auto class that opens each, and the class each extends
    name_by_auto_class = {"AutoConfig": _CONFIG}
    originals: dict[str, str] = {}
    for head in dict.fromkeys((None, all_stacks.task_head)):
        auto_class = all_stacks.auto_class if head == all_stacks.task_head else class_for(head)
        name = class_name(head)
        name_by_auto_class[auto_class.__name__] = name
        originals[name] = first_class(auto_class._model_mapping[type(config)]).__name__
    # AutoModel is what sentence-transformers asks for
    name_by_auto_class.setdefault("AutoModel", class_name(None))

    # what config.json says
    module = FILE.removesuffix(".py")
    config_settings = {
        "model_type": STANDALONE_TYPE,
        FAMILY: family,
        SHAPES: shapes,
        SETTINGS: settings,
        CODE: {auto: f"{module}.{name}" for auto, name in name_by_auto_class.items()},
    }

    # the text
    family_config = type(config).__name__
    fields = {
        "family": family,
        "family_config": family_config,
        "config": _CONFIG,
        "imports": ", ".join([family_config, *originals.values()]),
        "model_type": STANDALONE_TYPE,
        "shapes": SHAPES,
        "settings": SETTINGS,
        "kept": _KEPT,
        "version": importlib.metadata.version("headscope"),
    }
    text = _HEADER.format(**fields)
    if any(_KEPT in changed for changed in settings.values()):
        text += _BIAS.format(**fields)
    for name, original in originals.items():
        text += _MODEL.format(name=name, original=original, **fields)
    return text, config_settings


def _differences(
    full: nn.Module, loaded: LoadedModel
) -> tuple[dict[str, list[int]], dict[str, dict[str, Any]]]:
    """Compare a pruned base model with a full one.

    Returns the pruned model's shapes of tensors that differ, by the tensor's name; and its
    attributes of modules that differ, by the module's name.
    """
    if _parameter_names(full) != _parameter_names(loaded.model):
        # only where layers were removed, and those of the family have different tensors
        raise UnsupportedModelError(
            f"standalone is not possible for {loaded.name}: the layers of {loaded.family} differ "
            "by place, and those that are left moved up; leave it out, and let users call "
            "headscope.register()."
        )
    decoders = {site.module for site in loaded.sites if site.stack != "encoder"}
    pruned_modules = dict(loaded.model.named_modules())
    shapes: dict[str, list[int]] = {}
    settings: dict[str, dict[str, Any]] = {}
    for name, module in full.named_modules():
        pruned = pruned_modules[name]
        for tensor_name, tensor in module.named_parameters(recurse=False):
            shape = pruned.get_parameter(tensor_name).shape
            if shape != tensor.shape:
                shapes[f"{name}.{tensor_name}"] = list(shape)
        changed = _changed_attributes(module, pruned)
        # Where a family's own forward cannot run with fewer heads, headscope has extended the
        # module's class. The file knows how to do without two of these extensions.
        for extension in _extensions(pruned):
            if extension is GivenBias:  # takes the bias of the heads that are left
                changed[_KEPT] = list(vars(pruned)["headscope_kept"])
            elif extension is not WithoutHeads or pruned in decoders:  # no head is left
                raise UnsupportedModelError(
                    f"standalone is not possible for {loaded.name}: the modules of "
                    f"{loaded.family} cannot run with fewer heads by themselves; leave it out, and "
                    "let users call headscope.register()."
                )
        if changed:
            settings[name] = changed
    return shapes, settings


def _parameter_names(network: nn.Module) -> set[str]:
    """Return the names of all parameters."""
    return {name for name, _ in network.named_parameters()}


def _changed_attributes(module: nn.Module, pruned: nn.Module) -> dict[str, Any]:
    """Return a pruned module's attributes, numbers or text, that differ from the full module's."""
    if isinstance(module, nn.Linear):  # whose attributes follow from its tensor
        return {}
    return {
        key: vars(pruned)[key]
        for key, value in vars(module).items()
        if isinstance(value, int | float | str) and vars(pruned)[key] != value
    }


def _extensions(module: nn.Module) -> list[type]:
    """List classes that headscope put before a module's own, so that it runs with fewer heads."""
    return [
        base
        for base in type(module).__mro__
        if "headscope_extends" in vars(base) and base.__bases__ == (object,)
    ]
