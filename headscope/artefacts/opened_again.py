"""Open a folder that was just written as a user would, and compare its outputs with the model's."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from headscope.artefacts.compact_classes import FILE, class_name, register
from headscope.core.errors import ArtefactError
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import quiet_transformers
from headscope.models.run.task_heads import class_for

#: Largest difference of a state or logit, relative to the largest if that exceeds 1.
TOLERANCES = {"float64": 1e-5, "float32": 1e-5, "bfloat16": 5e-2, "float16": 1e-2}
#: Read by every model that is written; of different lengths, so that there is padding.
TEXTS = (
    "The committee will publish its report on the new bridge in March.",
    "He said that nobody had seen the letters before they were sold.",
    "Rain again.",
)
#: Token ids as shares of the vocabulary, where a model has no tokenizer.
_IDS = ((0.9, 0.1, 0.5, 0.3, 0.7, 0.2), (0.4, 0.6, 0.8), (0.25,))
_NAME = "headscope_written_modelling_file"


def check_opens(loaded: LoadedModel, folder: Path, standalone: bool = False) -> None:
    """Open a written folder by transformers, and compare its states and logits with the model's.

    ``standalone`` uses the folder's own modelling file, and runs it where it lies: transformers
    would copy it into its cache.
    """
    register()
    whole = loaded.whole or loaded
    options: dict[str, Any] = {"dtype": getattr(torch, whole.dtype), "local_files_only": True}
    with quiet_transformers(), ExitStack() as stack:
        try:
            kind = class_for(whole.task_head)
            if standalone:
                module = stack.enter_context(_imported(folder / FILE))
                kind = getattr(module, class_name(whole.task_head))
            same = agrees(whole, kind.from_pretrained(folder, **options))
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


def reason(error: BaseException) -> str:
    """Return what an error says on one line of at most 200 characters; its type if nothing."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def agrees(loaded: LoadedModel, network: Any) -> bool:
    """Whether another network gives the states and logits of a model on a few texts."""
    network = network.to(loaded.device).eval()
    base = getattr(network, "base_model", network)
    other = dataclasses.replace(loaded, model=base, network=network, sites=())
    with torch.no_grad():
        pairs = list(zip(_outputs(loaded), _outputs(other), strict=True))
    return all(close(*pair, loaded.dtype) for pair in pairs)


def close(expected: Tensor, actual: Tensor, dtype: str) -> bool:
    """Whether two results of the same model are equal as far as its type of numbers allows."""
    return distance(expected, actual)[1] <= TOLERANCES[dtype]


def distance(expected: Tensor, actual: Tensor) -> tuple[float, float]:
    """Return the largest absolute difference, and its ratio to max(1, largest output).

    NaN where the shapes differ, which is below no limit.
    """
    if expected.shape != actual.shape:
        return math.nan, math.nan
    if not expected.numel():
        return 0.0, 0.0
    largest = float((expected.double() - actual.double()).abs().max())
    return largest, largest / max(1.0, float(expected.abs().max()))


def _outputs(loaded: LoadedModel) -> list[Tensor]:
    """Return states and logits of real positions, in float64."""
    if loaded.tokenizer is not None:
        rows: list[list[int]] = loaded.tokenizer(list(TEXTS))["input_ids"]
    else:
        rows = [[int(share * loaded.vocab_size) for share in row] for row in _IDS]
    rows = [row[: min(32, loaded.max_length - 1)] for row in rows]
    ids, mask = loaded.pad(rows)
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    real = mask.bool()
    if loaded.start_id is not None:
        starts = [[loaded.start_id, *row] for row in reversed(rows)]
        inputs["decoder_input_ids"], decoded = loaded.pad(starts)
        inputs["decoder_attention_mask"], real = decoded, decoded.bool()
    hidden, logits = loaded.run(**inputs)
    outputs = [hidden[real]]
    if logits is not None:
        outputs.append(logits[real] if logits.dim() == 3 else logits)
    return [tensor.cpu().double() for tensor in outputs]


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
