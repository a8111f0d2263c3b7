"""Write a pruned model so that it loads again: without its parts, or with zeros in their place."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from headscope.artefacts.compact_classes import FILE, check_opens, standalone_files
from headscope.artefacts.sentence_transformers import sentence_copy
from headscope.artefacts.tokenizer_files import name_tokenizer_class, write_tokenizer
from headscope.core.errors import InputError, UnsupportedModelError
from headscope.core.files import replace_folder
from headscope.core.saved_config import (
    BEFORE,
    COMPACT_TYPE,
    FAMILY,
    KEPT,
    MANIFEST,
    SETTINGS_BEFORE,
    family_config,
)
from headscope.models.anatomy.feed_forward import feed_forwards
from headscope.models.load.manifest import (
    COMPACT,
    DENSE,
    SCHEMA,
    VOCABULARY,
    neurons_and_layers,
    vocabulary_record,
)
from headscope.models.run.intervene import shared_layers
from headscope.models.run.loaded import LoadedModel, origin_of
from headscope.models.run.outputs import computes_the_same
from headscope.models.run.routing import quiet_transformers
from headscope.models.surgery.copies import expand_all, original_heads, removed_heads
from headscope.models.surgery.layers import (
    kept_layers,
    layer_words,
    layers_before,
    removed_layers,
    settings_before,
)
from headscope.models.surgery.neurons import record_of, removed_neurons

#: What opens a compact folder: transformers by itself, transformers with the folder's own code, or
#: transformers after :func:`headscope.register`.
TRANSFORMERS = "transformers"
REMOTE = "trust_remote_code"
HEADSCOPE = "import headscope"


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
        If the folder holds anything else, or cannot be written.
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
    origin: dict[str, Any] = {"method": method, "repair": repair, "provenance": provenance}
    with whole_folder(folder) as temporary:
        write_model(loaded, temporary, COMPACT, standalone=standalone, **origin)
    return Path(folder)


def save_dense(
    loaded: LoadedModel,
    folder: str | Path,
    *,
    method: str | None = None,
    repair: str | None = None,
    provenance: dict[str, Any] | None = None,
) -> Path:
    """Write a plain checkpoint of the original shape, zeros where heads and neurons were removed.

    Layers that were removed stay so: no weights make a layer return its input.

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
    method: str | None = None,
    repair: str | None = None,
    provenance: dict[str, Any] | None = None,
    standalone: bool = False,
) -> str:
    """Write a model as ``compact`` or ``dense`` into an empty folder of :func:`whole_folder`.

    Returns what opens the folder: :data:`TRANSFORMERS`, :data:`REMOTE` or :data:`HEADSCOPE`.
    """
    all_stacks = loaded.whole or loaded
    sentences = sentence_copy(loaded.folder)
    network = loaded.network if form == COMPACT else expand_all(loaded)
    with quiet_transformers():
        # Some families store q, k and v fused and have them apart in memory. A compact folder
        # keeps the names in memory, by which the parts that are gone are identified.
        half = all(map(_is_half, network.parameters()))
        state = _half_state(network) if half else None
        stored = form == DENSE and not removed_layers(all_stacks)
        network.save_pretrained(temporary, state_dict=state, save_original_format=stored)
        if loaded.tokenizer is not None:
            write_tokenizer(loaded.tokenizer, temporary)
    attention = []
    for rows in shared_layers(all_stacks.sites):
        site = all_stacks.sites[rows[0]]
        removed = [head for head in range(site.heads_before) if head not in site.head_ids]
        layers = [all_stacks.sites[row].layer for row in rows]
        heads = {"kept": list(site.head_ids), "removed": removed}
        attention.append({"module": site.name, "stack": site.stack, "layers": layers, **heads})
    opens, original = _write_config(loaded, temporary, form == COMPACT, standalone)
    sentences.write(temporary)
    if loaded.tokenizer is not None:
        name_tokenizer_class(loaded.tokenizer, temporary)
    manifest = {
        "schema": SCHEMA,
        "form": form,
        "headscope": importlib.metadata.version("headscope"),
        "n_heads": original_heads(all_stacks),
        "d_head": all_stacks.sites[0].d_head,
        "attention": attention,
        **what_is_left(all_stacks),
        VOCABULARY: vocabulary_record(all_stacks.model),
        "method": method,
        "repair": repair,
        "source": origin_of(loaded),
        "provenance": provenance,
        "opens": opens,
        "config": original,
    }
    text = json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False)
    (temporary / MANIFEST).write_text(text + "\n", encoding="utf-8")
    check_opens(loaded, temporary)
    if opens == REMOTE:
        check_opens(loaded, temporary, standalone=True)
    return opens


def _write_config(
    loaded: LoadedModel, folder: Path, compact: bool, standalone: bool
) -> tuple[str, dict[str, Any]]:
    """Let config.json describe the weights; return what opens the folder, and settings replaced.

    A dense folder has zeros where heads were removed, so its config.json stays plain.
    """
    path = folder / "config.json"
    all_stacks = loaded.whole or loaded
    before = settings_before(all_stacks.model)
    stated = all_stacks.model.config.to_dict()
    now = {key: stated[key] for key in before}
    family = {**family_config(json.loads(path.read_text(encoding="utf-8"))), **before}
    family.pop("pruned_heads", None)
    opens = TRANSFORMERS
    more: dict[str, Any] = {}
    original = before
    left = what_is_left(all_stacks)
    if compact and (removed_heads(all_stacks) or left):
        with quiet_transformers():
            plain = _plain_settings(all_stacks, {**family, **now})
        heads = {site.name: list(site.head_ids) for site in all_stacks.sites}
        parts = {BEFORE: original_heads(all_stacks), KEPT: heads, **left}
        parts |= {SETTINGS_BEFORE: before} if before else {}
        if plain is not None:
            more = plain
            original = {key: family.get(key) for key in (*before, *plain)}
        else:
            try:
                code, more = standalone_files(loaded, {**family, **now})
            except UnsupportedModelError:
                if standalone:
                    raise
                opens = HEADSCOPE
                more = {"model_type": COMPACT_TYPE, FAMILY: family["model_type"]}
            else:
                opens = REMOTE
                (folder / FILE).write_text(code, encoding="utf-8")
            more |= parts
    elif before and not _is_plain(all_stacks, {**family, **now}, expand_all(all_stacks)):
        raise UnsupportedModelError(
            f"{loaded.name} without {', '.join(map(layer_words, removed_layers(loaded)))} cannot "
            f"be written as a plain {loaded.family} checkpoint, whose layers differ by place; save "
            "it compact."
        )
    text = json.dumps({**family, **now, **more}, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
    return opens, original


#: Settings that state how many neurons a feed-forward network has, and of which stack.
_WIDTHS = {
    **dict.fromkeys(("intermediate_size", "hidden_dim", "d_ff", "ffn_dim", "n_inner")),
    **{"encoder_ffn_dim": "encoder", "decoder_ffn_dim": "decoder"},
}


def _plain_settings(loaded: LoadedModel, family: dict[str, Any]) -> dict[str, Any] | None:
    """Return config.json settings that make the family's own class build the pruned model.

    A family whose configuration has one number of heads for all layers, and apart from it the
    width of a head, can describe a model that lost equally many heads in every layer; most can
    describe one that lost equally many neurons. Which families those are is not listed but tried: a
    model is built and compared. None where layers differ, or the family cannot express it.
    ``family`` states the layers that are left.
    """
    original = CONFIG_MAPPING[family["model_type"]].from_dict(dict(family))
    settings: dict[str, Any] = {}
    if removed_heads(loaded):
        counts = {site.n_heads for site in loaded.sites}
        if len(counts) != 1 or min(counts) == 0 or loaded.stacks != ("encoder",):
            return None
        site = loaded.sites[0]
        heads = "num_attention_heads"
        keys = "num_key_value_heads"
        settings |= {original.attribute_map.get(heads, heads): site.n_heads}
        settings |= {"head_dim": site.d_head}
        if hasattr(original, keys):
            settings[keys] = site.projections.k.out_features // site.d_head
    if removed_neurons(loaded):
        items = feed_forwards(loaded)
        for stack in dict.fromkeys(item.stack for item in items):
            networks = [item for item in items if item.stack == stack]
            if len({item.width for item in networks}) != 1:
                return None
            for name, of_stack in _WIDTHS.items():
                stated = getattr(original, name, 0)
                # GPT-2 states None for four times the width of the states.
                if of_stack in (stack, None) and stated in (networks[0].width_before, None):
                    settings[original.attribute_map.get(name, name)] = networks[0].width
    return settings if _is_plain(loaded, {**family, **settings}, loaded.network) else None


def _is_plain(loaded: LoadedModel, stated: dict[str, Any], network: Any) -> bool:
    """Whether the family's class, built from ``stated``, has these weights and the same outputs."""
    kind = loaded.auto_class
    state = network.state_dict()
    try:
        config = CONFIG_MAPPING[stated["model_type"]].from_dict(dict(stated))
        with torch.device("meta"):
            shell = kind.from_config(config)
    except Exception:  # families refuse impossible settings with all kinds of errors
        return False
    shapes = [{k: v.shape for k, v in part.items()} for part in (shell.state_dict(), state)]
    if shapes[0] != shapes[1]:
        return False
    how = {"attn_implementation": loaded.network.config._attn_implementation}  # same rounding
    plain = kind.from_config(config, dtype=getattr(torch, loaded.dtype), **how)
    plain.load_state_dict(state)
    return computes_the_same(loaded, plain.to(loaded.device))


def what_is_left(loaded: LoadedModel) -> dict[str, Any]:
    """Describe the remaining neurons and layers, for both files; empty if none was removed."""
    layers = kept_layers(loaded) if removed_layers(loaded) else None
    return neurons_and_layers(record_of(loaded.model), layers, layers_before(loaded))


def check_target(folder: str | Path) -> None:
    """Refuse a folder whose files a save would destroy; called before a long run."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder to save the model in.")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise InputError(
            f"The folder {folder} holds other files; give a new one to save the model in."
        )


def check_saves(loaded: LoadedModel) -> None:
    """Refuse, before a long run, a model whose folder could not be copied once it is pruned."""
    sentence_copy(loaded.folder)


def _is_half(tensor: Tensor) -> bool:
    """Whether every number is a float16 number, as those of a checkpoint stored so are."""
    wide = tensor.dtype in (torch.float32, torch.float64)
    return wide and bool((tensor == tensor.half().to(tensor.dtype)).all())


def _half_state(network: nn.Module) -> dict[str, Tensor]:
    """Cast the state; tensors that are tied stay tied, so that they are written once."""
    cast: dict[int, Tensor] = {}
    state: dict[str, Tensor] = {}
    for name, tensor in network.state_dict().items():
        half = tensor.half() if _is_half(tensor) else tensor
        # Empty tensors all lie at address 0.
        state[name] = cast.setdefault(tensor.data_ptr(), half) if tensor.numel() else half
    return state


@contextmanager
def whole_folder(folder: str | Path) -> Iterator[Path]:
    """Yield a temporary folder, which takes the folder's name once everything is there.

    If the block fails, it is deleted, and what the folder held before is still there.
    """

    def remove_if_empty(path: Path) -> None:
        with suppress(OSError):
            path.rmdir()

    folder = Path(folder)
    check_target(folder)
    made = [path for path in folder.parents if not path.exists()]
    with ExitStack() as stack:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            for path in reversed(made):  # a save that fails leaves no parent folders behind
                stack.callback(remove_if_empty, path)
            temporary = stack.enter_context(replace_folder(folder))
        except OSError as error:
            raise InputError(
                f"The folder {folder} cannot be made ({error.strerror}); choose another."
            ) from None
        yield temporary
        for path in (temporary, *temporary.rglob("*")):  # temporary files are private until here
            path.chmod(0o755 if path.is_dir() else 0o644)


@contextmanager
def trial_folder(folder: str | Path) -> Iterator[Path]:
    """Yield a temporary folder where :func:`whole_folder` would, and delete it in any case."""
    with suppress(_TrialOverError), whole_folder(folder) as temporary:
        yield temporary
        raise _TrialOverError


class _TrialOverError(Exception):
    """Makes :func:`whole_folder` delete everything."""
