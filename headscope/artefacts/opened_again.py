"""Open a folder that was just written as a user would, by transformers, and compare the model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from headscope.artefacts.compact_classes import register
from headscope.artefacts.modelling_file import FILE, class_name
from headscope.core.errors import ArtefactError, reason
from headscope.models.run.implementation import quiet_transformers
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.outputs import computes_the_same

_NAME = "headscope_written_modelling_file"  # Of the folder's modelling file, imported as a module


def check_opens(loaded: LoadedModel, folder: Path, standalone: bool = False) -> None:
    """Open a written folder by transformers, and compare its states and logits with the model's.

    With ``standalone`` the classes of the folder's own modelling file are used, as on a machine
    without headscope. The file is run where it lies: transformers would copy it into its cache.

    Raises
    ------
    ArtefactError
        If it does not open, or computes something else.
    """
    register()
    all_stacks = loaded.with_all_stacks
    options: dict[str, Any] = {
        "dtype": getattr(torch, all_stacks.dtype),
        "local_files_only": True,
        # the same attention, so that both round alike
        "attn_implementation": all_stacks.network.config._attn_implementation,
    }
    with quiet_transformers(), ExitStack() as stack:
        try:
            model_class = all_stacks.auto_class
            if standalone:
                module = stack.enter_context(_imported(folder / FILE))
                model_class = getattr(module, class_name(all_stacks.task_head))
            same = computes_the_same(all_stacks, model_class.from_pretrained(folder, **options))
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
    """Import a modelling file as a module while a block runs; no bytecode is left beside it."""
    spec = spec_from_file_location(_NAME, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    writes_no_bytecode = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    sys.modules[_NAME] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.dont_write_bytecode = writes_no_bytecode
        del sys.modules[_NAME]
