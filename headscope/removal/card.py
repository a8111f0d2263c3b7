"""What all model cards (README.md of a saved folder) share: header, text, code that opens it.

The cards themselves are in :mod:`headscope.pruning.card` and :mod:`headscope.shrinking.card`.
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
#: What the hub calls the use of a model, by the task that it was measured by.
HUB_TASKS = {
    "similarity": "sentence-similarity",
    "classification": "text-classification",
    "mlm": "fill-mask",
    "lm": "text-generation",
    "lm-accuracy": "text-generation",
    "retrieval": "sentence-similarity",
    "rerank": "text-ranking",
    "token-classification": "token-classification",
    "question-answering": "question-answering",
    "seq2seq": "translation",
    "fidelity": "feature-extraction",
}
#: The same by the model's task head, for one that was measured by no task.
_HUB_TASKS_OF_HEADS = {
    "classification": "text-classification",
    "mlm": "fill-mask",
    "token-classification": "token-classification",
    "question-answering": "question-answering",
    "causal": "text-generation",
}
MADE_BY = "Made by [headscope](https://pypi.org/project/headscope/)."
#: Fields of the source's own card that still hold for a copy with fewer heads.
_INHERITED = ("language", "license", "license_name", "license_link", "pipeline_tag")
#: An absolute path; its group is the last part: ``/home/ann/a.csv`` -> ``a.csv``.
_ABSOLUTE = re.compile(r"(?<![\w.])(?:/[^\s/'\"]+)+/([^\s/'\"]+)")


def hub_task(task: str, loaded: LoadedModel) -> str:
    """Return what the hub calls a model's use, from its task head and the task of the run."""
    if task == "similarity" and gives_one_score(loaded):
        return HUB_TASKS["rerank"]
    if task == "fidelity" and loaded.task_head in _HUB_TASKS_OF_HEADS:
        return _HUB_TASKS_OF_HEADS[loaded.task_head]
    return HUB_TASKS[task]


def base_model(source: str) -> str | None:
    """Return the hub id of a source; None for a folder, which the hub would not know."""
    if source == "demo":
        return DEMO
    on_hub = is_hub_id(source) and "/" in source and not Path(source).exists()
    return source if on_hub else None


def card_text(
    header: ModelCardData,
    title: str,
    *opening: str,
    codes: Iterable[str],
    sections: Mapping[str, str],
    command: str,
) -> str:
    """Put a card together: header, title, opening paragraphs, code, sections, command.

    ``codes`` are pieces of Python that open the folder, whose path is FOLDER in them. ``sections``
    go by their titles. ``command`` is the one that made the folder; it is shown without this
    machine's folders.
    """
    paragraphs = [f"---\n{header.to_yaml().strip()}\n---", f"# {title}", *opening, "## Opening it"]
    paragraphs += [f"```python\n{in_folder(code, 'path/to/this')}\n```" for code in codes]
    for name, text in sections.items():
        paragraphs += [f"## {name}", text]
    shown_command = without_folders(visible(command).replace("```", ""))
    paragraphs.append(f"```sh\n{shown_command}\n```")
    return "\n\n".join(paragraphs) + "\n"


def sentence_tags(loaded: LoadedModel) -> list[str]:
    """Return the hub's tags for a model that sentence-transformers opens."""
    kind = "cross-encoder" if is_cross_encoder(loaded) else "sentence-similarity"
    return ["sentence-transformers", kind]


def is_cross_encoder(loaded: LoadedModel) -> bool:
    """Whether sentence-transformers opens the model as a CrossEncoder: it pools no states."""
    return loaded.task_head == "classification" and loaded.pooling.origin != MODULES


def sentence_code(loaded: LoadedModel, options: str = "") -> str:
    """Return three lines that open FOLDER by sentence-transformers and run a sentence.

    ``options`` are further arguments of the class, with a comma before them.
    """
    name = "SentenceTransformer"
    call = 'encode(["A sentence."]).shape'
    if is_cross_encoder(loaded):
        name = "CrossEncoder"
        call = 'predict([("A sentence.", "Another one.")])'
    return (
        f"from sentence_transformers import {name}\n"
        f'model = {name}("FOLDER"{options})\n'
        f"print(model.{call})"
    )


def transformers_code(loaded: LoadedModel, opens: str) -> str:
    """Return three lines that open FOLDER by transformers and run a sentence.

    ``opens`` is :data:`REMOTE` if the folder has a modelling file of its own.
    """
    head = loaded.task_head
    name = loaded.auto_class.__name__
    trust = ", trust_remote_code=True" if opens == REMOTE else ""
    run = "model"
    output = ".logits"
    if head is None:
        output = ".last_hidden_state"
    elif head == "question-answering":
        output = ".start_logits"
    elif head == "seq2seq":
        run = "model.generate"
        output = ""
    texts = '"A sentence."'
    if gives_one_score(loaded):
        texts = f'{texts}, "Another one."'
    return (
        f"from transformers import {name}, AutoTokenizer\n"
        f'model = {name}.from_pretrained("FOLDER"{trust})\n'
        f'print({run}(**AutoTokenizer.from_pretrained("FOLDER")({texts}, '
        f'return_tensors="pt")){output})'
    )


def in_folder(code: str, folder: str) -> str:
    """Put a path in place of FOLDER."""
    return code.replace("FOLDER", visible(Path(folder).as_posix()))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table of Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def without_folders(text: str) -> str:
    """Shorten absolute paths of this machine to their last part."""
    return _ABSOLUTE.sub(r"\1", text)


def inherited_header(loaded: LoadedModel) -> dict[str, Any]:
    """Return the language and license that the source's card states; empty if it has none."""
    card = None if loaded.folder is None else loaded.folder / CARD
    if card is None or not card.is_file():
        return {}
    try:
        header = metadata_load(card)
    except Exception:  # a card is prose: whatever is wrong with its header is no error of ours
        return {}
    if not isinstance(header, Mapping):
        return {}
    inherited = {}
    for name in _INHERITED:
        value = header.get(name)
        texts = value if isinstance(value, list) else [value]
        if texts and all(isinstance(text, str) for text in texts):  # nothing else is valid there
            inherited[name] = value
    return inherited
