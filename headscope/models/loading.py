"""Open a checkpoint: the base model in eval mode, its tokenizer and its attention sites."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from headscope.core.errors import CheckpointError, HeadscopeError, InputError, UnsupportedModelError
from headscope.core.widest import widest_type
from headscope.models.checkpoint import Checkpoint
from headscope.models.families import refuse
from headscope.models.feed_forward import check_neurons
from headscope.models.layouts import find_sites
from headscope.models.loaded import FileWeights, LoadedModel, fingerprint
from headscope.models.manifest import kept_parts
from headscope.models.network import (
    check_finite,
    load_network,
    load_tokenizer,
    lower_case,
    read_config,
)
from headscope.models.pooling import chosen
from headscope.models.routing import quiet_transformers
from headscope.models.sentence_folder import lower_cases, read_pooling, transformer_folder
from headscope.models.sizes import check_stated
from headscope.models.source import find_source
from headscope.models.task_heads import HeadWeights, task_head_of
from headscope.models.vocabulary_record import recall_rows

__all__ = ["DTYPES", "load", "pick_device", "widest_dtype", "wrap"]

#: What a model can compute in.
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name) for name in ("float64", "float32", "bfloat16", "float16")
}


def load(
    model: str,
    *,
    dtype: str = "float32",
    device: str = "auto",
    revision: str | None = None,
    need_tokenizer: bool = True,
    task_head: str | None = None,
    pooling: str | None = None,
) -> LoadedModel:
    """Open ``demo``, a folder or a hub id.

    Parameters
    ----------
    model : str
        What the command line calls MODEL.
    dtype : str
        What to compute in, whatever the checkpoint stores: ``float64``, ``float32``, ``bfloat16``
        or ``float16``.
    device : str
        ``auto`` (a CUDA device if there is one, else the CPU), ``cpu``, ``cuda``, ``cuda:1`` and so
        on, or ``mps``.
    revision : str, optional
        Of a hub id: branch, tag or commit.
    need_tokenizer : bool
        If False, a folder without tokenizer files gives ``tokenizer=None``.
    task_head : str, optional
        The task head to keep: ``mlm``, ``classification``, ``seq2seq``, ``token-classification``,
        ``question-answering``, ``auto`` (what the checkpoint has, if it is one of these) or None
        for the base model alone.
    pooling : str, optional
        How a text's last states become one embedding: ``mean``, ``cls``, ``max`` or ``weighted``;
        by default what the modules.json of a sentence-transformers folder says, else the mean.

    Raises
    ------
    InputError
        If the checkpoint lacks the task head, or there is no such pooling, device or type.
    ModelNotFoundError, CheckpointError, UnsupportedModelError
    """
    if pooling is not None:
        chosen(pooling)  # refuses before anything is read
    where = pick_device(device)
    computed_in = _dtype_on(dtype, where)
    found = find_source(model, revision=revision)
    source = replace(found, folder=transformer_folder(found.folder))
    checkpoint = Checkpoint(source.folder)
    refuse(str(checkpoint.config.get("model_type")), source.name)
    if need_tokenizer and not checkpoint.has_tokenizer:
        raise CheckpointError(
            f"{source.folder} has no tokenizer (tokenizer.json); save the model's fast tokenizer "
            "beside it with tokenizer.save_pretrained."
        )
    with quiet_transformers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.captureWarnings(False)
        check_stated(checkpoint)
        read_config(source, checkpoint)
        kept = kept_parts(checkpoint)
        tokenizer = load_tokenizer(source) if checkpoint.has_tokenizer else None
        if tokenizer is not None and lower_cases(found.folder):
            lower_case(tokenizer)
        network, head_weights = load_network(source, checkpoint, computed_in, task_head, kept)
    check_finite(network, source)
    network = network.to(where).eval()
    loaded = wrap(network, tokenizer, name=source.name)
    recall_rows(loaded.model, source.folder)
    if kept is not None:
        kept.check_layers(loaded.sites)
        check_neurons(loaded, kept)
        loaded.origin = kept.origin
    loaded.revision, loaded.folder, loaded.head_weights = found.revision, found.folder, head_weights
    sha256 = source.sha256 or checkpoint.weights_sha256()
    loaded.file = FileWeights(sha256, fingerprint(network))
    loaded.stored_dtype = checkpoint.stored_dtype()
    loaded.remarks = tuple(_remarks(loaded, checkpoint, head_weights))
    width = getattr(loaded.model.config, "hidden_size", None)
    loaded.pooling = read_pooling(found.folder, width, tokenizer)
    return loaded if pooling is None else loaded.pooled_by(pooling)


def _remarks(loaded: LoadedModel, checkpoint: Checkpoint, head: HeadWeights) -> Iterator[str]:
    """Say what users may not expect of how a checkpoint was read."""
    name, settings = loaded.name, checkpoint.stated.get("sentence_transformers")
    activation = checkpoint.stated.get("sbert_ce_default_activation_function")
    if isinstance(settings, dict):
        activation = settings.get("activation_fn", activation)
    kind = str(activation or "Identity").rpartition(".")[2][:40]
    if loaded.task_head == "classification" and kind != "Identity":
        yield (
            f"CrossEncoder of sentence-transformers puts {kind} after the logits of {name}; "
            "headscope measures the logits themselves."
        )
    if checkpoint.pickled:
        yield (
            f"The weights of {name} are pickled ({checkpoint.weight_files[0].name}): only tensors "
            "were read of them, and nothing was run."
        )
    if head.partly:
        yield (
            f"{name} was opened as a base model: its config.json names {head.architecture}, but "
            f"the weights lack {head}."
        )


def wrap(network: Any, tokenizer: Any | None = None, *, name: str = "in memory") -> LoadedModel:
    """Make a transformers model that is already in memory ready to be measured.

    Raises
    ------
    UnsupportedModelError
        If it is of a family that cannot be covered, wants more than text, or is no model of text.
    """
    config = network.config
    refuse(config.model_type, name)
    whole, network = network.eval(), getattr(network, "base_model", network)
    task_head = task_head_of(type(whole).__name__)
    if getattr(network.get_input_embeddings(), "num_embeddings", None) is None:
        raise UnsupportedModelError(f"{name} ({config.model_type}) is not a model of text.")
    parameter = next(network.parameters())
    dtype, device = str(parameter.dtype).removeprefix("torch."), str(parameter.device)
    outer = whole if task_head else network
    loaded = LoadedModel(name, network, outer, tokenizer, (), task_head, dtype, device)
    encoder = network.get_encoder() if loaded.encoder_decoder else None
    try:
        loaded.sites = find_sites(network, loaded.run_tiny, encoder)
    except HeadscopeError:
        raise
    except Exception as error:  # whatever a family raises that wants more than token ids
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise UnsupportedModelError(
            f"{name} ({config.model_type}) does not run on token ids alone, and headscope feeds "
            f"nothing else; transformers says: {said}"
        ) from error
    return loaded


def pick_device(device: str) -> torch.device:
    """Turn ``auto`` into the best device there is, or check that the named one is there.

    ``auto`` is a CUDA device or the CPU: an Apple GPU has no float64, so it has to be asked for.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    there = ("cpu", *(["cuda"] if cuda else []), *(["mps"] if mps else []))
    if device == "auto":
        return torch.device("cuda" if "cuda" in there else "cpu")
    name, _, place = device.partition(":")
    count = torch.cuda.device_count() if name == "cuda" and name in there else 1
    if name not in there or (place and not (place.isdecimal() and int(place) < count)):
        raise InputError(
            f"device {device} is not available: this torch sees {' and '.join(there)} here."
        )
    return torch.device(device)


def widest_dtype(device: str = "auto") -> str:
    """Return the widest type that ``device``, as :func:`load` takes it, can compute in."""
    return str(widest_type(pick_device(device))).removeprefix("torch.")


def _dtype_on(dtype: str, device: torch.device) -> torch.dtype:
    """Look up a type by name, and check that the device can compute in it."""
    names = [name for name in DTYPES if name != "float64" or widest_dtype(str(device)) == name]
    if dtype not in names:
        raise InputError(
            f"dtype {dtype} is not available on {device.type}; give {', '.join(names[:-1])} or "
            f"{names[-1]}."
        )
    return DTYPES[dtype]
