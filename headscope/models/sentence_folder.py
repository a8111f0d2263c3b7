"""What the folder of a sentence-transformers model says about embeddings.

``modules.json`` names the modules in their order, each with a folder of its own. What cannot be
followed does not keep a model from being opened, since most commands need no embedding of a text:
it becomes the :attr:`Pooling.problem`, which is said where embeddings are compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from headscope.errors import CheckpointError
from headscope.models.pooling import ACTIVATIONS, Dense, Normalize, Pooling, Step, Truncate
from headscope.models.sentence_files import MODULES, SETTINGS, SentenceFiles, short

#: Our names of the modes.
_MODES = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean-sqrt",
    "weightedmean": "weighted",
    "lasttoken": "last",
}
#: The older format has a switch for each mode; what is on is concatenated in this order.
_SWITCHES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
#: Modules of models that score pairs of texts and embed nothing.
_SCORES = {"LogitScore"}
_ONE = "sentence_embedding"
#: Steps of a module, and how wide what it puts out is, where that is known.
_Read = tuple[list[Step], int | None]


def read_pooling(folder: Path, width: int | None, *, allow_pickle: bool = False) -> Pooling:
    """Read how a model makes embeddings; the mean where its folder does not say."""
    if not (folder / MODULES).is_file():
        return Pooling()
    try:
        return _pooling(SentenceFiles(folder, allow_pickle), width)
    except (CheckpointError, OSError, RecursionError) as error:
        said = str(error).rstrip(".")
        return Pooling(origin=MODULES, problem=f"How texts are embedded is not known: {said}.")


def lower_cases(folder: Path) -> bool:
    """Whether the folder wants texts in lower case, whatever its tokenizer does."""
    if not (folder / MODULES).is_file():
        return False
    try:
        return SentenceFiles(folder, False).reading().get("do_lower_case") is True
    except (CheckpointError, OSError, RecursionError):
        return False


def _pooling(files: SentenceFiles, width: int | None) -> Pooling:
    """Follow ``modules.json``."""
    modules = files.modules()
    settings, reading = files.optional(SETTINGS), files.reading()
    scores = settings.get("model_type") == "CrossEncoder"
    if scores or {kind for kind, _ in modules[1:]} <= _SCORES:
        return Pooling()
    _check_model(files, *modules[0], reading)
    if modules[1][0] != "Pooling":
        raise _unknown(files, *modules[1])
    modes, size = _modes(files, modules[1][1], width)
    steps = list[Step]()
    for kind, path in modules[2:]:
        if kind not in _READERS:
            raise _unknown(files, kind, path)
        found, size = _READERS[kind](files, path, size)
        steps += found
    steps += _truncation(files, settings)
    prompt = _prompt(files, settings, modules[1][1])
    length = reading.get("max_seq_length")
    longest = None if length is None else _count(files, "max_seq_length", length)
    return Pooling(modes, tuple(steps), MODULES, tuple(files.used), prompt, longest)


def _unknown(files: SentenceFiles, kind: str, path: str) -> CheckpointError:
    return CheckpointError(
        f"{files.folder / MODULES} has the module {short(kind)} ({short(path) or '.'}) after the "
        "model, and headscope follows Pooling, then Dense, Normalize and Dropout"
    )


def _check_model(files: SentenceFiles, kind: str, path: str, reading: Mapping[str, Any]) -> None:
    """Refuse a model of which something else than the last hidden states is pooled."""
    start = files.folder / MODULES
    if path not in ("", "."):
        raise CheckpointError(f"{start} has the model itself in {short(path)}, not beside it.")
    by_input = reading.get("modality_config")
    text = by_input.get("text") if isinstance(by_input, Mapping) else None
    stated = text.get("method_output_name") if isinstance(text, Mapping) else None
    output = stated[0] if isinstance(stated, list) and len(stated) == 1 else stated
    if not kind.endswith("Transformer") or kind.startswith("MLM"):
        raise CheckpointError(f"{start} starts with {short(kind)}, not with a Transformer.")
    if output not in (None, "last_hidden_state"):
        raise CheckpointError(f"{start} pools {short(output)}, not the last hidden states.")


def _modes(
    files: SentenceFiles, module: str, width: int | None
) -> tuple[tuple[str, ...], int | None]:
    """Read a pooling module: our names of its modes, and how wide what it puts out is."""
    path, values = files.path(module, "config.json"), files.config(module)
    on = [mode for switch, mode in _SWITCHES.items() if values.get(switch) is True]
    stated = values.get("pooling_mode", on or "mean")
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
    return tuple(_MODES[mode] for mode in modes), None if width is None else width * len(modes)


# --- what follows the pooling -----------------------------------------------------------------


def _dense(files: SentenceFiles, module: str, width: int | None) -> _Read:
    path, values = files.path(module, "config.json"), files.config(module)
    _check_ends(path, values)
    activation = _activation(path, values)
    tensors, sha256 = files.weights(module)
    wide, out = values.get("in_features"), values.get("out_features")
    if width is not None and wide != width:
        raise CheckpointError(f"{path} takes {short(wide)} numbers and gets {width}.")
    adds = bool(values.get("use_residual", False))
    expected: dict[str, tuple[Any, ...]] = {"linear.weight": (out, wide)}
    expected |= {"linear.bias": (out,)} if values.get("bias", True) else {}
    expected |= {"residual.weight": (out, wide)} if adds and wide != out else {}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found != expected:
        raise CheckpointError(f"{path} needs weights {expected}, and those beside it are {found}.")
    residual: bool | Tensor = tensors.get("residual.weight", adds)
    weight, bias = tensors["linear.weight"], tensors.get("linear.bias")
    return [Dense(weight, bias, activation, residual, sha256)], int(weight.shape[0])


def _activation(path: Path, values: Mapping[str, Any]) -> str:
    name = str(values.get("activation_function", "torch.nn.modules.activation.Tanh"))
    found = re.fullmatch(r"torch\.nn\.(?:modules\.\w+\.)?(\w+)", name)
    if found is None or found[1] not in ACTIVATIONS:
        raise CheckpointError(
            f"{path} has the activation {short(name)}; known are {', '.join(ACTIVATIONS)}."
        )
    return found[1]


def _normalize(files: SentenceFiles, module: str, width: int | None) -> _Read:
    """Older versions wrote no file for this module."""
    _check_ends(files.path(module, "config.json"), files.optional("config.json", module))
    return [Normalize()], width


def _dropout(files: SentenceFiles, module: str, width: int | None) -> _Read:
    """It does nothing outside training."""
    files.optional("config.json", module)
    return [], width


_READERS: dict[str, Callable[[SentenceFiles, str, int | None], _Read]] = {
    "Dense": _dense,
    "Normalize": _normalize,
    "Dropout": _dropout,
}


def _check_ends(path: Path, values: Mapping[str, Any]) -> None:
    for name in ("module_input_name", "module_output_name"):
        if (values.get(name) or _ONE) != _ONE:
            raise CheckpointError(f"{path} has a {name} of {short(values[name])}, not {_ONE}.")


# --- settings ---------------------------------------------------------------------------------


def _truncation(files: SentenceFiles, settings: Mapping[str, Any]) -> Iterator[Step]:
    width = settings.get("truncate_dim")
    if width is not None:
        yield Truncate(_count(files, "truncate_dim", width))


def _count(files: SentenceFiles, name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(
            f"{files.folder} sets {name} to {short(value)}; it must be a number from 1."
        )
    return value


def _prompt(files: SentenceFiles, settings: Mapping[str, Any], module: str) -> str:
    """Return what SentenceTransformer puts before a text unless it is told otherwise."""
    name, prompts = settings.get("default_prompt_name"), settings.get("prompts")
    if name is None:
        return ""
    prompt = prompts.get(str(name)) if isinstance(prompts, Mapping) else None
    path = files.folder / SETTINGS
    if not isinstance(prompt, str):
        raise CheckpointError(f"{path} has no prompt {short(name)}, its default.")
    if prompt and files.config(module).get("include_prompt", True) is not True:
        raise CheckpointError(
            f"{path} has a default prompt that the pooling leaves out (include_prompt), which "
            "headscope does not follow."
        )
    return prompt
