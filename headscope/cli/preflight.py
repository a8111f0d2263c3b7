"""What can be refused before torch is loaded: values, conflicts, missing files, models, heads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headscope.core.errors import CorpusError, HeadscopeError, InputError, WrongOptionError
from headscope.core.options import OptionError, options_of
from headscope.models.load.source import on_disk
from headscope.session.options import ModelOptions

#: Options that name a file to be read.
_INPUTS = ("treebank", "text", "data", "calibration", "train", "test", "frequencies")
#: Tasks that the built-in sample cannot show, and what their file holds.
_LABELLED = {
    **{"classification": "labels", "similarity": "labels", "seq2seq": "sources and targets"},
    **{"retrieval": "queries, documents and relevance", "rerank": "queries and documents"},
    "token-classification": "tagged words",
    "question-answering": "questions, contexts and answers",
}


def preflight(
    options: type[ModelOptions], values: Mapping[str, Any], arguments: Mapping[str, Any]
) -> None:
    """Raise at once what the run itself would raise after seconds of loading.

    ``values`` are the flags, ``arguments`` what they mean in Python.
    """
    try:
        options(**arguments)
    except HeadscopeError as error:
        raise usage_error(options, error) from None
    for name in _INPUTS:
        path = values.get(name)
        if isinstance(path, Path) and not path.exists():
            raise CorpusError(f"There is no file {path}; check the path.")
    if values.get("task") is not None and values.get("data") is None:
        task = str(getattr(values["task"], "value", values["task"]))
        if task in _LABELLED:
            raise WrongOptionError(
                f"The task {task} needs a file with {_LABELLED[task]}: give it with --data."
            )
    output, save = values.get("output"), values.get("save")
    if output and save and Path(save).resolve() in (output.resolve(), *output.resolve().parents):
        raise WrongOptionError(
            f"The folder of results {values['output']} is, or lies in, the one that the model is "
            "saved in; give each its own."
        )
    source = on_disk(str(values["model"]))
    named = str(values.get("head") or values.get("heads") or "")
    if named.isdigit():
        named = f"L{values.get('layer') or 0}H{named}"
    if source is not None and named:
        _check_heads(named, source.folder)


def usage_error(options: type[ModelOptions], error: HeadscopeError) -> HeadscopeError:
    """Turn what an options class refuses into a usage error that names flags."""
    declared = options_of(options)
    if isinstance(error, OptionError):
        option = declared.get(error.option)
        name = error.option if option is None else option.spelled_as
        return error.spelled(f"--{name.replace('_', '-')}")
    if isinstance(error, CorpusError) or not isinstance(error, InputError):
        return error
    names = {name: option.spelled_as for name, option in declared.items() if "_" in name}
    text = str(error)
    for name, spelled in names.items():
        text = re.sub(rf"\b{name}\b", f"--{spelled.replace('_', '-')}", text)
    first, _, rest = text.partition(" ")
    if first in declared:
        text = f"--{declared[first].spelled_as.replace('_', '-')} {rest}"
    return WrongOptionError(text)


def _check_heads(named: str, folder: Path) -> None:
    """Refuse heads that the model's config has no room for; other forms are checked later."""
    if (folder / "headscope.json").is_file():  # heads keep numbers that config.json may not have
        return
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        layers, heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    for layer, head in re.findall(r"(?<![\w:])L(\d+)H(\d+)", named):
        if int(layer) >= layers:
            last = f"the model has L0 to L{layers - 1}"
            raise InputError(f"L{layer}H{head}: there is no layer {layer}; {last}.")
        if int(head) >= heads:
            raise InputError(
                f"L{layer}H{head}: layer {layer} has no head {head}; it has H0 to H{heads - 1}."
            )
