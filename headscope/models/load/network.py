"""Load the network of a checked checkpoint, by transformers.

:func:`load_network` is the entry: choose a task head, load, check that no weight was missing, mend.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import GENERATION_CONFIG_NAME

from headscope.core.errors import CheckpointError, UnsupportedModelError, reason
from headscope.core.saved_config import is_ours
from headscope.models.load.checkpoint import Checkpoint
from headscope.models.load.manifest import KeptParts
from headscope.models.load.sizes import check_built
from headscope.models.load.source import Source
from headscope.models.run.task_heads import HeadWeights, class_for, missing_task_head, task_head_of

#: Parts of a base model that the checkpoint of a model with a task head may lack.
_OPTIONAL_PARTS = ("pooler.",)
#: Every reader of transformers gets these: files of this machine, no code of the checkpoint.
SAFE = {"trust_remote_code": False, "local_files_only": True}


def check_config(source: Source, checkpoint: Checkpoint) -> None:
    """Refuse a config.json of which transformers cannot make the family's configuration.

    Done first of all: the tokenizers of transformers fail on a bad config.json, too, and say less.
    """
    path = source.folder / "config.json"
    with explained(f"{path} is not a config that transformers understands: "):
        if is_ours(checkpoint.stated):
            _family_config(checkpoint, {})
        else:
            transformers.AutoConfig.from_pretrained(source.folder, **SAFE)


def load_network(
    source: Source,
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    task_head: str | None,
    embeds: bool,
    remaining: KeptParts | None,
) -> tuple[Any, HeadWeights]:
    """Build the network with its weights, complete, or cut down to the ``remaining`` parts.

    ``task_head`` is as :func:`headscope.load` takes it. With ``auto`` the network has the head that
    config.json names if the weights hold it, else it is the base model; so it is for a decoder in a
    folder that says how it ``embeds`` texts. Returns the network, and which weights of the head the
    checkpoint holds.
    """
    head = _buildable_head(source, checkpoint, task_head, embeds)

    # Load it, without the head where the weights do not hold it.
    options: dict[str, Any] = {
        "dtype": dtype,
        "attn_implementation": "eager",
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,  # so that _check_complete can name them
    }
    network, info = _load(source, checkpoint, head, remaining, options)
    weights = HeadWeights(_architecture(checkpoint) or "a base model")
    lacking = () if head is None else _lacking_head(network, info)
    if head is not None and lacking:
        weights = replace(weights, lacking=lacking, partly=_holds_other_parts(network, lacking))
        if task_head != "auto":
            raise missing_task_head(source.folder, head, weights.architecture, weights)
        network, info = _load(source, checkpoint, None, remaining, options)
    _check_complete(network, info, source, checkpoint)

    _mend(network, dtype, info["missing_keys"])
    return network, replace(weights, unread=tuple(sorted(info["unexpected_keys"])))


def _buildable_head(
    source: Source, checkpoint: Checkpoint, task_head: str | None, embeds: bool
) -> str | None:
    """Choose a task head that transformers has for the checkpoint's family; None for none.

    A decoder that ``embeds`` texts keeps the head that predicts tokens only if that is asked for.
    """
    architecture = _architecture(checkpoint)
    head = task_head_of(architecture) if task_head == "auto" else task_head
    if task_head == "auto" and head == "causal" and embeds:
        head = None
    if head is not None and not _builds(class_for(head), checkpoint):
        if task_head != "auto":
            raise missing_task_head(source.folder, head, architecture or "a base model")
        head = None
    if not _builds(class_for(head, architecture), checkpoint):
        family = checkpoint.config["model_type"]
        raise UnsupportedModelError(
            f"{source.name} is a model of the family {family}, which transformers does not open as "
            "a plain model of text (AutoModel), so headscope cannot either; give another model."
        )
    return head


def _mend(network: Any, dtype: torch.dtype, missing_keys: Sequence[str]) -> None:
    """Mend what would keep a loaded network from computing exactly, at every length, in place."""
    # A pooler that the checkpoint lacks, and no state depends on, is zeros and not noise.
    for key in missing_keys:
        if key.startswith(_OPTIONAL_PARTS):
            network.get_parameter(key).data.zero_()

    # These biases of DeBERTa are float32, whatever the dtype.
    for name, bias in network.named_parameters():
        if name.endswith((".self.q_bias", ".self.v_bias")):
            bias.data = bias.data.to(dtype)

    # Feed-forward networks that run in chunks save memory, and refuse some lengths.
    for module in network.modules():
        if getattr(module, "chunk_size_feed_forward", 0):
            module.chunk_size_feed_forward = 0


def _load(
    source: Source,
    checkpoint: Checkpoint,
    task_head: str | None,
    remaining: KeptParts | None,
    options: Mapping[str, Any],
) -> tuple[Any, dict[str, Any]]:
    """Load the base model or one with a head; return also transformers' ``output_loading_info``.

    That has the names of tensors: ``missing_keys`` (of the network, not in the checkpoint),
    ``unexpected_keys`` (the reverse) and ``mismatched_keys`` (name and both shapes).
    """
    family = checkpoint.config["model_type"]
    builder = class_for(task_head, _architecture(checkpoint))
    with explained(f"{source.folder} cannot be loaded as a {family} model: "):
        config = _family_config(checkpoint, {} if remaining is None else remaining.config)
        check_built(checkpoint, lambda: builder.from_config(config))
        if remaining is None and not checkpoint.pickled:
            loaded: tuple[Any, dict[str, Any]] = builder.from_pretrained(
                source.folder, use_safetensors=True, **SAFE, **options
            )
            return loaded

        # transformers builds a model and loads its weights in one call. To cut the model between
        # the two, it is given a subclass whose __init__ builds the full model and cuts it.
        with torch.device("meta"):
            network_class: Any = type(builder.from_config(copy.deepcopy(config)))

        def build_and_cut(self: Any, *args: Any, **kwargs: Any) -> None:
            network_class.__init__(self, *args, **kwargs)
            if remaining is not None:
                remaining.cut(self)

        # Under the name and module of the family's class, which transformers looks up and shows.
        namespace = {"__init__": build_and_cut, "__module__": network_class.__module__}
        cutting_class = type(network_class)(network_class.__name__, (network_class,), namespace)
        network, info = cutting_class.from_pretrained(
            None, config=config, state_dict=checkpoint.tensors(), **options
        )
        network.__class__ = network_class  # no longer the subclass
        if network.can_generate():
            network.generation_config = _generation_config(source)
        return network, info


def _generation_config(source: Source) -> Any:
    """Read how a model writes, as transformers does; older folders say so in config.json."""
    if (source.folder / GENERATION_CONFIG_NAME).is_file():
        return transformers.GenerationConfig.from_pretrained(source.folder, local_files_only=True)
    return transformers.GenerationConfig.from_pretrained(
        source.folder,
        config_file_name="config.json",
        local_files_only=True,
        _from_model_config=True,
    )


def _builds(auto_class: Any, checkpoint: Checkpoint) -> bool:
    """Whether an auto class of transformers builds models of the checkpoint's family."""
    return CONFIG_MAPPING[checkpoint.config["model_type"]] in auto_class._model_mapping


def _architecture(checkpoint: Checkpoint) -> str | None:
    """Return the class that config.json names."""
    stated = checkpoint.config.get("architectures")
    first = stated[0] if isinstance(stated, list) and stated else None
    return first if isinstance(first, str) else None


def _family_config(checkpoint: Checkpoint, before_pruning: Mapping[str, Any]) -> Any:
    """Make the family's configuration, with some settings as they were before pruning.

    A setting that config.json did not state then is None in ``before_pruning``.
    """
    settings = {**checkpoint.config, **before_pruning}
    for key, value in before_pruning.items():
        if value is None:
            del settings[key]
    return CONFIG_MAPPING[settings["model_type"]].from_dict(settings)


@contextmanager
def explained(before: str, after: str = "") -> Iterator[None]:
    """Turn whatever transformers raises, and it raises many kinds, into one sentence.

    ``before`` and ``after`` stand around the reason.
    """
    try:
        yield
    except CheckpointError:
        raise
    except BaseException as error:
        # A panic of Rust, which reads tokenizers, is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise CheckpointError(f"{before}{reason(error)}{after}") from error


def _lacking_head(network: Any, info: dict[str, Any]) -> tuple[str, ...]:
    """Name the weights of a task head that the checkpoint lacks; they would be random."""
    absent = {*info["missing_keys"], *_mismatched(info)}
    return tuple(
        key
        for key in sorted(absent)
        if _in_task_head(network, key) and not _is_computed(network, key)
    )


def _mismatched(info: dict[str, Any]) -> list[str]:
    """Return the names of tensors that the checkpoint has in another shape."""
    return sorted(str(name_and_shapes[0]) for name_and_shapes in info.get("mismatched_keys", ()))


def _holds_other_parts(network: Any, lacking: Sequence[str]) -> bool:
    """Whether the checkpoint has weights of a task head besides those that it lacks."""
    for name, _ in network.named_parameters():  # weights tied to the base model's have its names
        in_head = _in_task_head(network, name) and ".pooler." not in name
        if in_head and name not in lacking:
            return True
    return False


def _in_task_head(network: Any, key: str) -> bool:
    """Whether a tensor is of the task head; a pooler is, where a head reads it.

    ``classifier.weight`` is, ``bert.encoder.layer.0.output.dense.weight`` is not.
    """
    if network.base_model is not network:
        return not key.startswith(f"{network.base_model_prefix}.") or ".pooler." in key
    # T5: a base model and its head are one module.
    owner: object = network.get_submodule(key.rpartition(".")[0])
    return owner is network.get_output_embeddings()


def _check_complete(
    network: nn.Module, info: dict[str, Any], source: Source, checkpoint: Checkpoint
) -> None:
    """Refuse a checkpoint that lacks tensors of the network, or has them in another shape."""
    optional = [key for key in info["missing_keys"] if key.startswith(_OPTIONAL_PARTS)]
    computed = [key for key in info["missing_keys"] if _is_computed(network, key)]
    missing = sorted({*info["missing_keys"]}.difference(optional, computed))
    mismatched = _mismatched(info)
    if not missing and not mismatched:
        return
    fault = "lacks" if missing else "has the wrong shape for"
    keys = missing or mismatched
    unread = sorted(info.get("unexpected_keys", ()))
    why = "it is not a whole model"
    if is_ours(checkpoint.stated):
        why = "its headscope.json, its config.json and its weights do not belong together"
    elif checkpoint.stated.get("auto_map"):
        why = "its config.json asks for code of its own (auto_map), which headscope never runs"
    elif missing and len(unread) >= len(missing):
        why = f"what is there has other names, such as {unread[0]}: save it by save_pretrained"
    raise CheckpointError(
        f"The checkpoint in {source.folder} {fault} {len(keys)} of the model's tensors "
        f"({keys[0]}, ...); {why}."
    )


def _is_computed(network: nn.Module, key: str) -> bool:
    """Whether a tensor is a table that its module computes, such as sinusoidal positions.

    Checkpoints need not store such a table (Marian, Pegasus); what the network now holds must be
    what the module computes.
    """
    owner = network.get_submodule(key.rpartition(".")[0])
    compute = getattr(owner, "create_weight", None)
    if compute is None or not key.endswith(".weight"):
        return False
    table = compute()
    held = network.get_parameter(key)
    return table.shape == held.shape and bool(torch.allclose(table.to(held), held))


def check_finite(network: nn.Module, source: Source) -> None:
    """Refuse weights that are NaN or infinite."""
    for name, parameter in network.named_parameters():
        # A NaN makes both extremes NaN; ten times as fast as testing every number.
        if not parameter.numel():
            continue
        smallest, largest = parameter.detach().aminmax()
        if not (smallest.isfinite() and largest.isfinite()):
            raise CheckpointError(
                f"The weights in {source.folder} are not finite: {name} holds NaN or infinity; "
                "the checkpoint is broken (or overflows the chosen dtype)."
            )
