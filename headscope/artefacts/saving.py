"""Write a pruned model into a folder that opens again, whole or not at all.

:func:`save` is the entry point, :func:`write_model` its steps; :func:`whole_folder` makes sure that
nothing half-written stays behind. The manifest, ``headscope.json``, says which heads, neurons and
layers are left, and what the model was made from.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headscope.artefacts.config_json import REMOTE, what_is_left, write_config
from headscope.artefacts.opened_again import check_opens
from headscope.artefacts.sentence_transformers import sentence_copy
from headscope.artefacts.tokenizer_files import name_tokenizer_class, write_tokenizer
from headscope.core.disk import need_room
from headscope.core.errors import ArtefactError, HeadscopeError, InputError, reason
from headscope.core.files import UNFINISHED, locked, replace_folder
from headscope.core.safe_text import listed, visible
from headscope.core.saved_config import MANIFEST
from headscope.models.load.manifest import COMPACT, SCHEMA
from headscope.models.load.tokenizer import FILE as TOKENIZER
from headscope.models.run.implementation import quiet_transformers
from headscope.models.run.intervene import shared_layers
from headscope.models.run.loaded import LoadedModel, origin_of
from headscope.models.surgery.copies import need_weights, original_heads

_MOST_NAMED = 6  # Files that an error names
#: Bytes of what describes a saved model, at most: configuration, manifest, modelling file, card.
_PAPERS = 500_000


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
        As :func:`headscope.remove_heads`, :func:`headscope.remove_neurons`,
        :func:`headscope.remove_layers` or :func:`headscope.load` gave it; its task head is saved
        with it.
    folder : path
        New, empty, or an earlier save of headscope, which is replaced.
    method, repair : str, optional
        How the heads were chosen, and how those that are left were adjusted; recorded.
    provenance : dict, optional
        Recorded.
    standalone : bool
        Refuse a family that cannot have a modelling file of its own.

    Returns
    -------
    Path
        The folder: :func:`headscope.load` and every command take it.

    Raises
    ------
    InputError
        If the folder holds anything else, or cannot be made.
    UnwrittenError
        If the disk has no room for it.
    UnsupportedModelError
        If ``standalone`` is not possible for the model's family.
    ArtefactError
        If transformers does not open what was written as the same model.

    Notes
    -----
    A modelling file comes with the weights where the family allows it: ``AutoModel`` and
    ``SentenceTransformer`` open the folder with ``trust_remote_code=True`` where headscope is not
    installed. They need none where every layer keeps equally many heads and neurons and the
    family's own configuration can say so; else :func:`headscope.register` comes first.

    Nothing half-written stays behind: the folder is filled under another name, then renamed.
    Weights that float16 holds exactly are stored so, else in the type they are computed in.
    """
    with whole_folder(folder, by="save") as temporary:
        write_model(
            loaded,
            temporary,
            method=method,
            repair=repair,
            provenance=provenance,
            standalone=standalone,
        )
    return Path(folder)


def write_model(
    loaded: LoadedModel,
    temporary: Path,
    *,
    method: str | None = None,
    repair: str | None = None,
    provenance: dict[str, Any] | None = None,
    standalone: bool = False,
) -> str:
    """Write a model into an empty folder of :func:`whole_folder`; parameters as for :func:`save`.

    Returns what opens the folder: TRANSFORMERS, REMOTE or HEADSCOPE of
    :mod:`~headscope.artefacts.config_json`.
    """
    all_stacks = loaded.with_all_stacks
    # the source's files of sentence-transformers: a damaged one is refused before any is written
    has_head = loaded.task_head == "classification"
    sentences = sentence_copy(loaded.folder, has_head=has_head)

    # weights and tokenizer
    network = loaded.network
    with quiet_transformers():
        # Weights that float16 or bfloat16 holds exactly are stored in it.
        half = _half_type(network)
        state = None if half is None else _half_state(network, half)
        # Some families have q, k and v apart in memory, and fused in their checkpoints. The
        # manifest names parts as they are called in memory, so tensors keep these names too.
        network.save_pretrained(temporary, state_dict=state, save_original_format=False)
        if loaded.tokenizer is not None:
            write_tokenizer(loaded.tokenizer, temporary)

    # what describes them
    config = write_config(loaded, temporary, standalone=standalone)
    sentences.write(temporary)
    if loaded.tokenizer is not None:
        name_tokenizer_class(loaded.tokenizer, temporary)
    manifest = {
        "schema": SCHEMA,
        "form": COMPACT,
        "headscope": importlib.metadata.version("headscope"),
        "n_heads": original_heads(all_stacks),
        "d_head": all_stacks.sites[0].d_head,
        "attention": _heads_of_modules(all_stacks),
        **what_is_left(all_stacks),
        "method": method,
        "repair": repair,
        "source": origin_of(loaded),
        "provenance": provenance,
        "opens": config.opens,
        "config": config.replaced,
    }
    text = json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False)
    (temporary / MANIFEST).write_text(text + "\n", encoding="utf-8")

    # opened as a user would
    check_opens(loaded, temporary)
    if config.opens == REMOTE:
        check_opens(loaded, temporary, standalone=True)
    return config.opens


def _heads_of_modules(loaded: LoadedModel) -> list[dict[str, Any]]:
    """List which heads every attention module has and has lost, for the manifest."""
    modules: list[dict[str, Any]] = []
    for rows in shared_layers(loaded.sites):
        site = loaded.sites[rows[0]]
        module = {
            "module": site.name,
            "stack": site.stack,
            "layers": [loaded.sites[row].layer for row in rows],
            "kept": list(site.head_ids),
            "removed": [head for head in range(site.heads_before) if head not in site.head_ids],
        }
        modules.append(module)
    return modules


def check_target(folder: str | Path, *, by: str) -> None:
    """Refuse a folder whose files a save would destroy; called before a long run.

    A command replaces what it has saved itself, and nothing else. ``by`` is its name: ``prune``,
    ``shrink``, or ``save`` of Python.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder to save the model in.")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / MANIFEST).is_file():
        raise InputError(
            f"The folder {folder} holds other files; give a new one to save the model in."
        )
    manifest = _manifest_of(folder)
    saved_by = manifest.get("saved_by", by)  # unknown of folders of older versions
    if saved_by != by:
        raise InputError(
            f"The folder {folder} holds a model that {visible(saved_by)} saved, and {by} would "
            "replace it; "
            "give a new folder, or delete that one first."
        )
    written = manifest.get("files")
    if isinstance(written, list):
        added = [name for name in _files_in(folder) if name not in written]
        if added:
            raise InputError(
                f"The folder {folder} holds files that {by} did not write "
                f"({visible(listed(added, _MOST_NAMED))}) and would delete; give a new folder, or "
                "delete that one first."
            )


def _manifest_of(folder: Path) -> dict[str, Any]:
    """Return the manifest of a saved folder; empty where it cannot be read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _files_in(folder: Path) -> list[str]:
    """List the files below a folder by their paths in it; Python's own caches do not count."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )


def _sign(folder: Path, by: str) -> None:
    """Let the manifest say who wrote which files, so that what is added later is known."""
    manifest = _manifest_of(folder)
    if manifest:
        manifest |= {"saved_by": by, "files": _files_in(folder)}
        text = json.dumps(manifest, indent=1, ensure_ascii=False)
        (folder / MANIFEST).write_text(f"{text}\n", encoding="utf-8")


def check_saves(loaded: LoadedModel) -> None:
    """Refuse, before a long run, a model that could not be cut, or its folder not be copied."""
    need_weights(loaded)
    sentence_copy(loaded.folder)


def _half_type(network: nn.Module) -> torch.dtype | None:
    """Return a type of two bytes that holds all weights exactly, as after such a file was read."""
    for half in (torch.bfloat16, torch.float16):  # the coarser first, as its numbers may fit both
        if all(_fits(parameter, half) for parameter in network.parameters()):
            return half
    return None


def _fits(tensor: Tensor, half: torch.dtype) -> bool:
    """Whether a type of two bytes holds every number of a wider tensor exactly."""
    wide = tensor.dtype in (torch.float32, torch.float64)
    return wide and bool((tensor == tensor.to(half).to(tensor.dtype)).all())


def _half_state(network: nn.Module, half: torch.dtype) -> dict[str, Tensor]:
    """Cast a network's state to a type of two bytes, but for tensors that it cannot hold.

    Tied tensors share their memory, and so do their casts, so that they are written once.
    """
    cast_at: dict[int, Tensor] = {}  # by the address of the tensor that was cast
    state: dict[str, Tensor] = {}
    for name, tensor in network.state_dict().items():
        cast = tensor.to(half) if _fits(tensor, half) else tensor
        if tensor.numel() > 0:  # empty tensors all lie at address 0, and are not tied
            cast = cast_at.setdefault(tensor.data_ptr(), cast)
        state[name] = cast
    return state


@contextmanager
def whole_folder(folder: str | Path, *, by: str) -> Iterator[Path]:
    """Yield a temporary folder, which takes the folder's name once everything is there.

    ``by`` is the name of the command that saves, which replaces its own folders alone. If the
    block fails, it is deleted, and what the folder held before is still there. Parents of
    the folder that were made for it go again if they are empty.
    """
    folder = Path(folder)
    check_target(folder, by=by)
    with _made_parents(folder), ExitStack() as stack:
        with _refusing(folder):
            temporary = stack.enter_context(replace_folder(folder))
        yield temporary
        _sign(temporary, by)
        for path in (temporary, *temporary.rglob("*")):  # temporary files are private until here
            path.chmod(0o755 if path.is_dir() else 0o644)


@contextmanager
def reserved(folder: str | Path | None, *, by: str) -> Iterator[None]:
    """Keep the folder of a save for this run while the block runs, which may take long.

    What would fail at its end is refused now: a folder that cannot be made, whose files a save
    would destroy, or that another run is to save into. Without a folder nothing is kept.
    """
    if folder is None:
        yield
        return
    folder = Path(folder)
    check_target(folder, by=by)
    mark = folder.with_name(f".{folder.name}.reserved{UNFINISHED}")
    with _made_parents(folder), ExitStack() as stack:
        with _refusing(folder):
            mark.mkdir(exist_ok=True)
            is_ours = stack.enter_context(locked(mark))
        if not is_ours:
            raise InputError(
                f"Another run of headscope is to save a model in {folder}; wait until it has "
                "ended, or name another folder."
            )
        stack.callback(_remove_if_empty, mark)
        yield


@contextmanager
def _made_parents(folder: Path) -> Iterator[None]:
    """Make the folders above a folder; those that are new and empty go again after the block."""
    new_parents = [path for path in folder.parents if not path.exists()]
    with ExitStack() as stack:
        with _refusing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
        for path in reversed(new_parents):
            stack.callback(_remove_if_empty, path)
        yield


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    """Turn what the system says of a folder that cannot be made into one sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"The folder {folder} cannot be made ({error.strerror}); choose another."
        ) from None


@contextmanager
def failure_with(result: object) -> Iterator[None]:
    """Let a failure of the block, which saves a model, carry what was measured before to the user.

    Raises
    ------
    ArtefactError
        Whatever fails; its ``result`` is the one given here.
    """
    try:
        yield
    except Exception as error:  # torch and safetensors raise many kinds
        why = f"{type(error).__name__}: {reason(error)}; please report this."
        if isinstance(error, HeadscopeError):
            why = str(error)
        elif isinstance(error, OSError):
            why = f"The system refused: {error}."
        raise ArtefactError(
            f"The model could not be saved, and everything else that was found is kept: {why}",
            result=result,
        ) from error


def _remove_if_empty(path: Path) -> None:
    """Delete a folder, unless something lies in it."""
    with suppress(OSError):
        path.rmdir()


def need_room_for(loaded: LoadedModel, folder: str | Path | None, *, changes_weights: bool) -> None:
    """Refuse, before a long run, a disk that may lack the room for a save of the whole model.

    ``changes_weights`` says that the weights that stay are repaired or trained.
    """
    if folder is None:
        return
    largest_file = bytes_in_memory(loaded) if changes_weights else bytes_of_weights(loaded)
    need_room(
        Path(folder),
        room_of_save(loaded, changes_weights=changes_weights),
        "the model that is to be saved",
        largest_file=largest_file,
    )


def room_of_save(loaded: LoadedModel, *, changes_weights: bool) -> int:
    """Return the most bytes that a folder takes in which a model, or a smaller one, is saved.

    Weights that were repaired or trained count as they lie in memory: float16 does not hold them.
    """
    n_bytes = bytes_in_memory(loaded) if changes_weights else bytes_of_weights(loaded)
    return n_bytes + _bytes_beside_weights(loaded) + _PAPERS


def bytes_in_memory(loaded: LoadedModel) -> int:
    """Return the size of a model's parameters in memory; tied ones count once.

    So large is the file of a model that was trained, whose weights float16 does not hold.
    """
    parameters = loaded.network.parameters()
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def _bytes_beside_weights(loaded: LoadedModel) -> int:
    """Return the size of a tokenizer, and of what sentence-transformers needs besides.

    A slow tokenizer is written as the files that it was read from.
    """
    n_bytes = 0
    tokenizer = loaded.tokenizer
    if tokenizer is not None and tokenizer.is_fast:
        n_bytes += len(tokenizer.backend_tokenizer.to_str(pretty=True).encode())
    if loaded.folder is not None:
        names = getattr(tokenizer, "vocab_files_names", {}).values()
        files = {loaded.folder / name for name in names if name != TOKENIZER}
        files.update(sentence_copy(loaded.folder).files.values())
        n_bytes += sum(file.stat().st_size for file in files if file.is_file())
    return n_bytes


def bytes_of_weights(loaded: LoadedModel) -> int:
    """Return how large a save makes the file of a model's weights; tied ones count once.

    Weights that a type of two bytes holds exactly are stored in it: of a checkpoint in float16 or
    bfloat16 that is the size of the user's own file, and half of what the weights take in memory.
    """
    half = _half_type(loaded.network)
    n_bytes = 0
    for parameter in loaded.network.parameters():
        n_bytes += parameter.numel() * (parameter.element_size() if half is None else 2)
    return n_bytes


def megabytes_of_folder(folder: Path) -> float:
    """Return the size of all files below a folder in megabytes (1e6 bytes)."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
