"""Write a pruned model so that it loads again: without its heads, or with zeros in their place."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headscope.atomic import replace_folder
from headscope.errors import InputError
from headscope.models.compact import (
    expand_all,
    origin_of,
    original_heads,
    remove_heads,
)
from headscope.models.deploy.forms import REMOTE, write_config
from headscope.models.deploy.opened import check_opens
from headscope.models.deploy.sentence_copy import sentence_copy
from headscope.models.deploy.standalone import standalone_files
from headscope.models.intervene import shared_layers
from headscope.models.loaded import LoadedModel
from headscope.models.manifest import COMPACT, DENSE, MANIFEST, SCHEMA
from headscope.models.routing import quiet_transformers

__all__ = [
    "check_saves",
    "check_target",
    "save",
    "save_dense",
    "trial_folder",
    "whole_folder",
    "write_model",
]


def save(
    loaded: LoadedModel,
    folder: str | Path,
    *,
    method: str | None = None,
    repair: str | None = None,
    provenance: dict[str, Any] | None = None,
    standalone: bool = False,
) -> Path:
    """Write a compact model: safetensors, config, tokenizer and the manifest ``headscope.json``.

    Parameters
    ----------
    loaded : LoadedModel
        As :func:`headscope.remove_heads` or :func:`headscope.load` gave it; its task head is saved
        with it.
    folder : path
        New, empty, or an earlier save of headscope, which is replaced.
    method, repair : str, optional
        How the heads were chosen, and how those that are left were adjusted; recorded.
    provenance : dict, optional
        Recorded.
    standalone : bool
        Write a modelling file too, so that ``AutoModel`` and ``SentenceTransformer`` open the
        folder with ``trust_remote_code=True`` where headscope is not installed.

    Returns
    -------
    Path
        The folder: :func:`headscope.load` and every command take it.

    Raises
    ------
    InputError
        If the folder holds anything else, or cannot be written.
    UnsupportedModelError
        If ``standalone`` is not possible for the model's family.
    ArtefactError
        If transformers does not open what was written as the same model.

    Notes
    -----
    transformers opens the folder after ``import headscope``; and without it where every layer keeps
    equally many heads and the family's own configuration can say so.

    Nothing half-written stays behind: the folder is filled under another name, then renamed.
    Weights that float16 holds exactly are stored so, else in the type they are computed in.
    """
    with whole_folder(folder) as temporary:
        write_model(
            loaded,
            temporary,
            COMPACT,
            method=method,
            repair=repair,
            provenance=provenance,
            standalone=standalone,
        )
    return Path(folder)


def save_dense(
    loaded: LoadedModel,
    folder: str | Path,
    *,
    method: str | None = None,
    repair: str | None = None,
    provenance: dict[str, Any] | None = None,
) -> Path:
    """Write a plain checkpoint of the original shape, zeros where heads were removed.

    Parameters, returns and errors as :func:`save`; ``AutoModel.from_pretrained`` loads the folder.
    """
    with whole_folder(folder) as temporary:
        write_model(loaded, temporary, DENSE, method=method, repair=repair, provenance=provenance)
    return Path(folder)


def write_model(
    loaded: LoadedModel,
    temporary: Path,
    form: str,
    *,
    method: str | None,
    repair: str | None,
    provenance: dict[str, Any] | None,
    standalone: bool = False,
) -> str:
    """Write a model as ``compact`` or ``dense`` into an empty folder of :func:`whole_folder`.

    What is recorded is what :func:`save` takes. Every form of a folder is made here.

    Returns
    -------
    str
        What opens the folder, one of the names in :mod:`headscope.models.deploy.forms`.
    """
    sentences = sentence_copy(loaded.folder)
    manifest = _manifest(loaded, form)
    manifest |= {"method": method, "repair": repair, "source": origin_of(loaded)}
    manifest["provenance"] = provenance
    network = loaded.network if form == COMPACT else expand_all(loaded)
    with quiet_transformers():
        _write_network(network, temporary, form)
        if loaded.tokenizer is not None:
            loaded.tokenizer.save_pretrained(temporary)
    manifest |= write_config(loaded, temporary, compact=form == COMPACT, standalone=standalone)
    sentences.write(temporary)
    text = json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False)
    (temporary / MANIFEST).write_text(text + "\n", encoding="utf-8")
    check_opens(loaded, temporary)
    opens = str(manifest["opens"])
    if opens == REMOTE:
        check_opens(loaded, temporary, standalone=True)
    return opens


def check_target(folder: str | Path) -> None:
    """Refuse a folder that a save would have to destroy; to be asked before a long run.

    Raises
    ------
    InputError
        If it is a file, or holds what no save of headscope wrote.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder to save the model in.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise InputError(
            f"The folder {folder} holds other files; give a new one to save the model in."
        )


def check_saves(loaded: LoadedModel, *, standalone: bool) -> None:
    """Refuse, before a long run, a model that could not be saved once it is pruned.

    Parameters
    ----------
    loaded : LoadedModel
        The model before it is pruned.
    standalone : bool
        Whether a modelling file is wanted.

    Raises
    ------
    CheckpointError
        If its ``modules.json`` cannot be copied.
    UnsupportedModelError
        If a modelling file is not possible for its family.
    """
    sentence_copy(loaded.folder)
    if standalone:
        site = next(site for site in loaded.sites if site.n_heads)
        one = (site.stack, site.layer, site.head_ids[0])
        standalone_files(remove_heads(loaded, [one], share=True), loaded.network.config.to_dict())


def _manifest(loaded: LoadedModel, form: str) -> dict[str, Any]:
    whole = loaded.whole or loaded
    return {
        "schema": SCHEMA,
        "form": form,
        "headscope": importlib.metadata.version("headscope"),
        "n_heads": original_heads(whole),
        "d_head": whole.sites[0].d_head,
        "attention": [_entry(whole, group) for group in shared_layers(whole.sites)],
    }


def _entry(loaded: LoadedModel, rows: Sequence[int]) -> dict[str, Any]:
    site = loaded.sites[rows[0]]
    removed = [head for head in range(site.heads_before) if head not in site.head_ids]
    return {
        "module": site.name,
        "stack": site.stack,
        "layers": [loaded.sites[row].layer for row in rows],
        "kept": list(site.head_ids),
        "removed": removed,
    }


def _write_network(network: Any, folder: Path, form: str) -> None:
    """Let transformers write weights and config."""
    state = _halved(network) if _fits_half(network) else None
    # Some families store q, k and v fused and have them apart in memory. Heads that are gone are
    # found by the names in memory.
    network.save_pretrained(folder, state_dict=state, save_original_format=form == DENSE)


def _fits_half(network: nn.Module) -> bool:
    """Whether every weight is a float16 number, as those of a checkpoint stored so are."""
    return all(map(_is_half, network.parameters()))


def _is_half(tensor: Tensor) -> bool:
    wide = tensor.dtype in (torch.float32, torch.float64)
    return wide and bool((tensor == tensor.half().to(tensor.dtype)).all())


def _halved(network: nn.Module) -> dict[str, Tensor]:
    """Cast the state; tensors that are tied stay tied, so that they are written once."""
    cast: dict[int, Tensor] = {}
    state: dict[str, Tensor] = {}
    for name, tensor in network.state_dict().items():
        wanted = tensor.half() if _is_half(tensor) else tensor
        # Empty tensors all lie at address 0.
        state[name] = cast.setdefault(tensor.data_ptr(), wanted) if tensor.numel() else wanted
    return state


@contextmanager
def whole_folder(folder: str | Path) -> Iterator[Path]:
    """Yield a temporary folder, which takes the folder's name once everything is there.

    If the block fails, it is deleted, and what the folder held before is still there.

    Raises
    ------
    InputError
        If the folder holds what no save of headscope wrote, or cannot be made.
    """
    folder = Path(folder)
    check_target(folder)
    made = [path for path in folder.parents if not path.exists()]
    with ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            for path in reversed(made):  # nothing stays of a save that fails
                stack.callback(_take_away, path)
            temporary = stack.enter_context(replace_folder(folder))
        except OSError as error:
            raise InputError(
                f"The folder {folder} cannot be made ({error.strerror}); choose another."
            ) from None
        yield temporary
        for path in (temporary, *temporary.rglob("*")):  # what is temporary is its owner's alone
            path.chmod(0o755 if path.is_dir() else 0o644)


@contextmanager
def trial_folder(folder: str | Path) -> Iterator[Path]:
    """Yield a temporary folder where :func:`whole_folder` would, and take it away in any case.

    Raises
    ------
    InputError
        As :func:`whole_folder`.
    """
    with suppress(_TrialOverError), whole_folder(folder) as temporary:
        yield temporary
        raise _TrialOverError


class _TrialOverError(Exception):
    """Lets :func:`whole_folder` take everything away."""


def _take_away(folder: Path) -> None:
    with suppress(OSError):  # it is not empty, or gone
        folder.rmdir()
