"""What the folder of a sentence-transformers model says about embeddings.

``modules.json`` names the modules in their order, each with a folder of its own: a Transformer,
its Pooling, and what follows, such as Dense. :func:`read_pooling` turns those after the Transformer
into a :class:`~headscope.models.run.pooling.Pooling`. A module that headscope cannot follow does
not keep a model from being opened, since most commands need no embedding of a text: it becomes the
pooling's ``problem``, an error that is raised where embeddings are compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from headscope.core.errors import CheckpointError
from headscope.models.load.sentence_files import MODULES, SETTINGS, SentenceFiles, short
from headscope.models.run.pooling import (
    ACTIVATIONS,
    Dense,
    LayerNorm,
    Normalize,
    Pooling,
    Step,
    Truncate,
)


def transformer_folder(files: SentenceFiles) -> Path:
    """Return where the model itself lies: ``0_Transformer`` in folders of old versions.

    Raises
    ------
    CheckpointError
        If there is no transformer at all, such as in a folder of static embeddings.
    """
    folder = files.folder
    try:
        kind, module = files.modules()[0]
        inner = files.path(module, "config.json").parent
    except (CheckpointError, OSError, RecursionError):
        return folder  # what is wrong is reported where embeddings are made
    if (inner / "config.json").is_file() and kind.endswith("Transformer"):
        return inner
    if (folder / "config.json").is_file() or kind.endswith("Transformer"):
        return folder
    raise CheckpointError(
        f"{folder / MODULES} starts with {short(kind)}, not with a Transformer, so there are no "
        "attention heads; give a model that has a transformer alone before its pooling."
    )


def read_pooling(files: SentenceFiles | None, width: int | None, tokenizer: Any = None) -> Pooling:
    """Read how a model makes embeddings; the mean where its folder does not say.

    ``width`` is that of the model's states. Its ``tokenizer`` counts the tokens of a prompt that
    the pooling leaves out.
    """
    if files is None:
        return Pooling()
    try:
        return _stated_pooling(files, width, tokenizer)
    except (CheckpointError, OSError, RecursionError) as error:
        said = str(error).rstrip(".")
        return Pooling(origin=MODULES, problem=f"How texts are embedded is not known: {said}.")


def lower_cases(files: SentenceFiles | None) -> bool:
    """Whether the folder wants texts in lower case, whatever its tokenizer does."""
    if files is None:
        return False
    try:
        return files.reading().get("do_lower_case") is True
    except (CheckpointError, OSError, RecursionError):
        return False


def cross_encoder_settings(files: SentenceFiles | None) -> dict[str, Any]:
    """Return the settings of a CrossEncoder's folder; none of any other folder."""
    if files is None:
        return {}
    try:
        settings = files.optional(SETTINGS)
    except (CheckpointError, OSError, RecursionError):
        return {}
    return settings if settings.get("model_type") == "CrossEncoder" else {}


def cross_encoder_activation(files: SentenceFiles | None) -> str | None:
    """Return the class of the activation after a CrossEncoder's logits; None if none is stated."""
    stated = cross_encoder_settings(files).get("activation_fn")
    return stated if isinstance(stated, str) else None


# --- the pooling, and what follows it -------------------------------------------------------------

_SCORES = {"LogitScore"}  # Modules of models that score pairs of texts and embed nothing


def _stated_pooling(files: SentenceFiles, width: int | None, tokenizer: Any) -> Pooling:
    """Build the pooling that ``modules.json`` describes."""
    settings = files.optional(SETTINGS)
    reading = files.reading()  # Settings of how texts are read
    if settings.get("model_type") == "CrossEncoder":
        return Pooling()

    # The Transformer, and what follows it: for a model that embeds nothing, scores or no module.
    (model_kind, _), *following = files.modules()
    _check_model(files, model_kind, reading)
    if {kind for kind, _ in following} <= _SCORES:
        return Pooling()

    # The pooling itself, and the modules after it; each reads vectors of the width before it.
    (pooling_kind, pooling_path), *later = following
    if pooling_kind != "Pooling":
        raise _unknown(files, pooling_kind, pooling_path)
    modes, width = _pooling_modes(files, pooling_path, width)
    steps: list[Step] = []
    for kind, path in later:
        if kind not in _READERS:
            raise _unknown(files, kind, path)
        module_steps, width = _READERS[kind](files, path, width)
        steps += module_steps
    if (truncated := settings.get("truncate_dim")) is not None:
        steps.append(Truncate(_count(files, "truncate_dim", truncated)))

    # What stands before a text, and whether it is pooled.
    prompt = _prompt(files, settings)
    query_prompt, document_prompt = _prompts_of_retrieval(settings, prompt)
    pools_prompt = files.config(pooling_path).get("include_prompt", True) is True
    skipped = 0
    if prompt and not pools_prompt:
        skipped = _tokens_left_out(prompt, modes, tokenizer)
    return Pooling(
        modes=modes,
        steps=tuple(steps),
        origin=MODULES,
        prompt=prompt,
        query_prompt=query_prompt,
        document_prompt=document_prompt,
        max_length=_max_length(files, reading),
        skipped=skipped,
        pools_prompt=pools_prompt,
        notes=tuple(_notes(settings, reading)),
    )


def _check_model(files: SentenceFiles, kind: str, reading: Mapping[str, Any]) -> None:
    """Refuse a model that pools something other than the last hidden states.

    Its settings say so as ``{"modality_config": {"text": {"method_output_name": ...}}}``.
    """
    modules = files.folder / MODULES
    by_input = reading.get("modality_config")
    text = by_input.get("text") if isinstance(by_input, Mapping) else None
    output = text.get("method_output_name") if isinstance(text, Mapping) else None
    if isinstance(output, list) and len(output) == 1:
        output = output[0]
    if not kind.endswith("Transformer") or kind.startswith("MLM"):
        raise CheckpointError(f"{modules} starts with {short(kind)}, not with a Transformer.")
    if isinstance(by_input, Mapping) and "message" in by_input:
        raise CheckpointError(
            f"{modules} starts with a Transformer that puts each text into a chat template (the "
            "modality message), which headscope does for pairs of a CrossEncoder alone"
        )
    if output not in (None, "last_hidden_state"):
        raise CheckpointError(f"{modules} pools {short(output)}, not the last hidden states.")


def _unknown(files: SentenceFiles, kind: str, path: str) -> CheckpointError:
    """Return the error for a module that headscope cannot follow."""
    return CheckpointError(
        f"{files.folder / MODULES} has the module {short(kind)} ({short(path) or '.'}) after the "
        "model, and headscope follows Pooling, then Dense, LayerNorm, Normalize and Dropout"
    )


#: Our names of sentence-transformers' pooling modes.
_MODES = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean-sqrt",
    "weightedmean": "weighted",
    "lasttoken": "last",
}
#: The older format has a switch for each mode; modes that are on are concatenated in this order.
_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def _pooling_modes(
    files: SentenceFiles, module: str, width: int | None
) -> tuple[tuple[str, ...], int | None]:
    """Read a pooling module: our names of its modes, and the width of its output.

    ``width`` is that of the model's states, where it is known.
    """
    path = files.path(module, "config.json")
    values = files.config(module)
    switched_on = [mode for switch, mode in _SWITCHES.items() if values.get(switch) is True]
    stated = values.get("pooling_mode", switched_on or "mean")
    modes = [stated] if isinstance(stated, str) else stated
    if not isinstance(modes, list) or not modes or not {*map(str, modes)} <= _MODES.keys():
        raise CheckpointError(
            f"{path} has the pooling mode {short(stated)}; known are {', '.join(_MODES)}."
        )
    size = values.get("embedding_dimension", values.get("word_embedding_dimension"))
    if size is not None and width is not None and size != width:
        raise CheckpointError(
            f"{path} pools states of size {short(size)}, and those of the model have {width}."
        )
    pooled_width = None if width is None else width * len(modes)
    return tuple(_MODES[mode] for mode in modes), pooled_width


# --- the modules after the pooling ----------------------------------------------------------------

#: Steps from a pooled vector to the next that a module makes, and the width of its output, where
#: that is known.
_ModuleSteps = tuple[list[Step], int | None]
_EMBEDDING = "sentence_embedding"  # sentence-transformers' name of the vector of a text


def _dense(files: SentenceFiles, module: str, width: int | None) -> _ModuleSteps:
    """Return the step of a Dense module: a linear map and an activation."""
    path = files.path(module, "config.json")
    values = files.config(module)
    _check_input_and_output(path, values)
    named = str(values.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = re.fullmatch(r"torch\.nn\.(?:modules\.\w+\.)?(\w+)", named)
    if activation is None or activation[1] not in ACTIVATIONS:
        raise CheckpointError(
            f"{path} has the activation {short(named)}; known are {', '.join(ACTIVATIONS)}."
        )
    tensors = files.weights(module)
    n_in = values.get("in_features")
    n_out = values.get("out_features")
    if width is not None and n_in != width:
        raise CheckpointError(f"{path} takes {short(n_in)} numbers and gets {width}.")
    adds_input = bool(values.get("use_residual", False))
    expected: dict[str, tuple[Any, ...]] = {"linear.weight": (n_out, n_in)}
    if values.get("bias", True):
        expected["linear.bias"] = (n_out,)
    if adds_input and n_in != n_out:
        expected["residual.weight"] = (n_out, n_in)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != expected:
        raise CheckpointError(f"{path} needs weights {expected}, and those beside it are {shapes}.")
    weight = tensors["linear.weight"]
    step = Dense(
        weight=weight,
        bias=tensors.get("linear.bias"),
        activation=activation[1],
        residual=tensors.get("residual.weight", adds_input),
    )
    return [step], int(weight.shape[0])


def _layer_norm(files: SentenceFiles, module: str, width: int | None) -> _ModuleSteps:
    """Return the step of a LayerNorm module."""
    path = files.path(module, "config.json")
    values = files.config(module)
    size = values.get("dimension")
    if width is not None and size != width:
        raise CheckpointError(f"{path} takes {short(size)} numbers and gets {width}.")
    tensors = files.weights(module)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    expected = {"norm.weight": (size,), "norm.bias": (size,)}
    if shapes != expected:
        raise CheckpointError(f"{path} needs weights {expected}, and those beside it are {shapes}.")
    return [LayerNorm(tensors["norm.weight"], tensors["norm.bias"])], width


def _normalize(files: SentenceFiles, module: str, width: int | None) -> _ModuleSteps:
    """Return the step of a Normalize module, whose file older versions did not write."""
    _check_input_and_output(
        files.path(module, "config.json"), files.optional("config.json", module)
    )
    return [Normalize()], width


def _dropout(files: SentenceFiles, module: str, width: int | None) -> _ModuleSteps:
    """Return no step: dropout does nothing outside training."""
    files.optional("config.json", module)
    return [], width


#: Readers of modules by their class: (files, the module's folder, width of its input) -> steps.
_READERS: dict[str, Callable[[SentenceFiles, str, int | None], _ModuleSteps]] = {
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Normalize": _normalize,
    "Dropout": _dropout,
}


def _check_input_and_output(path: Path, values: Mapping[str, Any]) -> None:
    """Refuse a module that reads or writes anything but the embedding."""
    for name in ("module_input_name", "module_output_name"):
        if (values.get(name) or _EMBEDDING) != _EMBEDDING:
            raise CheckpointError(
                f"{path} has a {name} of {short(values[name])}, not {_EMBEDDING}."
            )


# --- what stands before a text, and where a text is cut -------------------------------------------

_OF_TOKENIZER = ("processor_kwargs", "tokenizer_args")  # Newer and older name of these settings


def _prompt(files: SentenceFiles, settings: Mapping[str, Any]) -> str:
    """Return what SentenceTransformer puts before a text by default."""
    name = settings.get("default_prompt_name")
    prompts = settings.get("prompts")
    if name is None:
        return ""
    prompt = prompts.get(str(name)) if isinstance(prompts, Mapping) else None
    if not isinstance(prompt, str):
        raise CheckpointError(
            f"{files.folder / SETTINGS} has no prompt {short(name)}, its default."
        )
    return prompt


#: What folders call the prompt of a document; the first that is there counts.
_DOCUMENT_NAMES = ("document", "passage", "corpus")


def _prompts_of_retrieval(settings: Mapping[str, Any], default: str) -> tuple[str, str]:
    """Return what stands before a query and before a document.

    As the documentation of ``encode_query`` and ``encode_document`` has it: a folder that names a
    prompt of one kind has none for the other if it does not name that too; one that names neither
    has its default prompt for both.
    """
    prompts = _named_prompts(settings)
    query = prompts.get("query")
    document = next((prompts[name] for name in _DOCUMENT_NAMES if name in prompts), None)
    if query is None and document is None:
        return default, default
    return query or "", document or ""


def _named_prompts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the prompts of a folder by their names; what is no text is left out."""
    prompts = settings.get("prompts")
    stated = prompts if isinstance(prompts, Mapping) else {}
    return {str(name): text for name, text in stated.items() if isinstance(text, str)}


def _tokens_left_out(prompt: str, modes: tuple[str, ...], tokenizer: Any) -> int:
    """Count the tokens of a prompt that the pooling leaves out.

    Of the prompt "query:", read as [CLS] query : [SEP], the first three.
    """
    if tokenizer is None or "weighted" in modes:
        raise CheckpointError(
            "the pooling leaves its default prompt out (include_prompt), which headscope follows "
            "with a tokenizer and for no weighted mean"
        )
    ids = tokenizer(prompt)["input_ids"]
    ends_special = ids[-1] in tokenizer.all_special_ids
    return len(ids) - 1 if ends_special else len(ids)


def _max_length(files: SentenceFiles, reading: Mapping[str, Any]) -> int | None:
    """Return at how many tokens a text is cut; None where the folder does not say."""
    length = _settings_under(reading, _OF_TOKENIZER).get("model_max_length")
    if length is None:
        length = reading.get("max_seq_length")
    return None if length is None else _count(files, "max_seq_length", length)


def _count(files: SentenceFiles, name: str, value: object) -> int:
    """Return a setting that must be a whole number from 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(
            f"{files.folder} sets {name} to {short(value)}; it must be a number from 1."
        )
    return value


# --- settings that headscope does not use ---------------------------------------------------------

#: Settings with keywords of the Transformer, by newer and older names.
_KEYWORDS = ("model_kwargs", "model_args", "config_kwargs", "config_args")
#: Keywords that change no number.
_HARMLESS = {"trust_remote_code", "torch_dtype", "dtype", "attn_implementation", "model_max_length"}


def _notes(settings: Mapping[str, Any], reading: Mapping[str, Any]) -> Iterator[str]:
    """Name settings of the folder that headscope does not use."""
    default = settings.get("default_prompt_name")
    read = {default, "query", *_DOCUMENT_NAMES}
    prompts = _named_prompts(settings)
    if unread_prompts := [name for name, text in prompts.items() if text and name not in read]:
        yield (
            f"The model's folder has prompts for other uses ({short(', '.join(unread_prompts))}), "
            f"which headscope does not read: name one as the default_prompt_name of {SETTINGS} to "
            "have it before every text."
        )
    similarity = settings.get("similarity_fn_name") or "cosine"
    if similarity != "cosine":
        yield (
            f"The model's folder compares embeddings by {short(similarity)}; here they are "
            "compared by their cosine."
        )
    keywords = _settings_under(reading, (*_KEYWORDS, *_OF_TOKENIZER))
    if unread := sorted(keywords.keys() - _HARMLESS):
        yield (
            f"The model's folder gives its Transformer {short(', '.join(unread))}, which headscope "
            "does not read."
        )


def _settings_under(reading: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Merge what the Transformer's settings have under several names."""
    merged: dict[str, Any] = {}
    for name in names:
        settings = reading.get(name)
        if isinstance(settings, Mapping):
            merged |= settings
    return merged
