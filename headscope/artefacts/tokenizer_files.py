"""Write a tokenizer so that whatever opens the folder tokenises texts as headscope does.

headscope follows ``tokenizer.json``. ``AutoTokenizer`` opens the tokenizer's class, which may build
its own tokenizer from the vocabulary instead, and tokenise otherwise.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers

from headscope.artefacts.compact_classes import register
from headscope.models.load.network import SAFE
from headscope.models.load.tokenizer import (
    FOLLOWS_FILE_NAME,
    SETTINGS,
    switches_language,
)
from headscope.models.load.tokenizer_differences import first_difference
from headscope.models.run.implementation import quiet_transformers


def write_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write a tokenizer's files, with a tokenizer.json that neither cuts nor pads a text."""
    if tokenizer.is_fast:
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(folder)


def name_tokenizer_class(tokenizer: Any, folder: Path) -> None:
    """Name a class in a folder that follows tokenizer.json, if AutoTokenizer would not follow it.

    The folder has all other files by now: which class AutoTokenizer opens depends on config.json
    too. A translator of many languages keeps its own class, which alone can switch between them.
    """
    if not tokenizer.is_fast or switches_language(tokenizer):
        return

    # what AutoTokenizer opens now
    register()  # AutoTokenizer reads config.json, whose model_type may be headscope's
    with quiet_transformers():
        try:
            again = transformers.AutoTokenizer.from_pretrained(folder, **SAFE)
        except Exception:  # whatever a class raises that does not fit its vocabulary
            again = None
        if again is not None and first_difference(tokenizer, again) is None:
            return

    # another class in tokenizer_config.json
    path = folder / SETTINGS
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["tokenizer_class"] = FOLLOWS_FILE_NAME
    settings["model_input_names"] = list(tokenizer.model_input_names)
    prefix = getattr(tokenizer.backend_tokenizer.pre_tokenizer, "add_prefix_space", None)
    if prefix is not None:  # unless it is stated here, transformers 4 sets it to False
        settings["add_prefix_space"] = prefix
    text = json.dumps(settings, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
