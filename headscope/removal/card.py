"""What the model cards (README.md of a saved folder) of ``prune`` and ``shrink`` share.

The hub's names, the text of a card, code that opens a folder, and what the source's card says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from huggingface_hub.repocard import metadata_load

from headscope.artefacts.config_json import REMOTE
from headscope.core.safe_text import visible
from headscope.models.load.sentence_files import MODULES
from headscope.models.load.source import DEMO, is_hub_id
from headscope.models.run.head_outputs import gives_one_score
from headscope.models.run.loaded import LoadedModel

CARD = "README.md"
#: The hub's name of each task of headscope.
HUB_TASKS = {
    "similarity": "sentence-similarity",
    "classification": "text-classification",
    "mlm": "fill-mask",
    "retrieval": "sentence-similarity",
    "rerank": "text-ranking",
    "token-classification": "token-classification",
    "question-answering": "question-answering",
    "seq2seq": "translation",
    "fidelity": "feature-extraction",
}
#: The hub's name of what a model with this head is used for, though measured by fidelity.
_HUB_TASK_OF_HEAD = {
    "classification": "text-classification",
    "mlm": "fill-mask",
    "token-classification": "token-classification",
    "question-answering": "question-answering",
}
MADE_BY = "Made by [headscope](https://pypi.org/project/headscope/)."
#: Fields of the source's own card that still hold for a copy with fewer heads.
_INHERITED = ("language", "license", "license_name", "license_link", "pipeline_tag")
#: A path of the machine that the command ran on; its last part is enough.
ABSOLUTE = re.compile(r"(?<![\w.])(?:/[^\s/'\"]+)+/([^\s/'\"]+)")


def hub_task(task: str, loaded: LoadedModel) -> str:
    """Return the hub's name of what a model is used for, by its task and its head."""
    if task == "similarity" and gives_one_score(loaded):
        return HUB_TASKS["rerank"]
    if task == "fidelity" and loaded.task_head in _HUB_TASK_OF_HEAD:
        return _HUB_TASK_OF_HEAD[loaded.task_head]
    return HUB_TASKS[task]


def base_model(source: str) -> str | None:
    """Return the hub id of a source; None for a folder, which the hub would not know."""
    if source == "demo":
        return DEMO
    return source if is_hub_id(source) and "/" in source and not Path(source).exists() else None


def card_text(
    header: ModelCardData,
    title: str,
    *opening: str,
    codes: Iterable[str],
    sections: Mapping[str, str],
    command: str,
) -> str:
    """Put a card together; FOLDER stands for the folder's path in code that opens it.

    The command that made the folder ends the card, without this machine's folders.
    """
    paragraphs = [f"---\n{header.to_yaml().strip()}\n---", f"# {title}", *opening, "## Opening it"]
    opening_code = [in_folder(code, "path/to/this") for code in codes]
    paragraphs += [f"```python\n{code}\n```" for code in opening_code]
    for name, text in sections.items():
        paragraphs += [f"## {name}", text]
    shown_command = nameless(visible(command).replace("```", ""))
    paragraphs.append(f"```sh\n{shown_command}\n```")
    return "\n\n".join(paragraphs) + "\n"


def sentence_tags(loaded: LoadedModel) -> list[str]:
    """Return the hub's tags of a model that sentence-transformers opens."""
    kind = "cross-encoder" if _is_cross_encoder(loaded) else "sentence-similarity"
    return ["sentence-transformers", kind]


def _is_cross_encoder(loaded: LoadedModel) -> bool:
    """Whether sentence-transformers reads a head of the model, and pools no states."""
    return loaded.task_head == "classification" and loaded.pooling.origin != MODULES


def sentence_code(loaded: LoadedModel, options: str = "") -> str:
    """Return three lines that open a folder by sentence-transformers.

    ``options`` of the class are appended to its first argument, with a comma before them.
    """
    name = "SentenceTransformer"
    call = 'encode(["A sentence."]).shape'
    if _is_cross_encoder(loaded):
        name = "CrossEncoder"
        call = 'predict([("A sentence.", "Another one.")])'
    return (
        f"from sentence_transformers import {name}\n"
        f'model = {name}("FOLDER"{options})\n'
        f"print(model.{call})"
    )


def transformers_code(loaded: LoadedModel, opens: str) -> str:
    """Return three lines that open a folder's weights and run a sentence through them."""
    head = loaded.task_head
    name = loaded.auto_class.__name__
    trust = ", trust_remote_code=True" if opens == REMOTE else ""
    run = "model.generate" if head == "seq2seq" else "model"
    output_of = {None: ".last_hidden_state", "question-answering": ".start_logits", "seq2seq": ""}
    output = output_of.get(head, ".logits")
    return (
        f"from transformers import {name}, AutoTokenizer\n"
        f'model = {name}.from_pretrained("FOLDER"{trust})\n'
        f'print({run}(**AutoTokenizer.from_pretrained("FOLDER")("A sentence.", '
        f'return_tensors="pt")){output})'
    )


def in_folder(code: str, folder: str) -> str:
    """Put the folder's path into code that opens it."""
    return code.replace("FOLDER", visible(Path(folder).as_posix()))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table of Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def nameless(text: str) -> str:
    """Leave the folders out of paths of this machine."""
    return ABSOLUTE.sub(r"\1", text)


def inherited_header(loaded: LoadedModel) -> dict[str, Any]:
    """Read what the source's card says of language and license; nothing if it cannot be read."""
    card = None if loaded.folder is None else loaded.folder / CARD
    if card is None or not card.is_file():
        return {}
    try:
        header = metadata_load(card)
    except Exception:  # a card is prose: whatever is wrong with its header is no error of ours
        return {}
    inherited = {}
    for name in _INHERITED:
        value = header.get(name) if isinstance(header, Mapping) else None
        names = value if isinstance(value, list) else [value]
        if names and all(isinstance(item, str) for item in names):
            inherited[name] = value
    return inherited
