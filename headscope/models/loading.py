"""Open a checkpoint: the base model in eval mode, its tokenizer, and what it can be trusted for."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headscope.errors import CheckpointError, InputError, UnsupportedModelError
from headscope.models.checkpoint import Checkpoint, open_checkpoint
from headscope.models.layouts import AttentionSite, find_sites
from headscope.models.routing import quiet_transformers
from headscope.models.source import Source, find_source

__all__ = ["DTYPES", "LoadedModel", "load", "pick_device", "wrap"]

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
#: Tokenizers without a limit of their own report an astronomically large one.
_NO_LIMIT = 10**9
#: Parts that a base model may lack in the checkpoint of a model with another head.
_OPTIONAL_PARTS = ("pooler.",)


@dataclass
class LoadedModel:
    """A model that is ready to be measured.

    Attributes
    ----------
    name : str
        What the user called it.
    model : nn.Module
        The base model (no task head), in eval mode.
    tokenizer : object or None
        A fast tokenizer; None where the folder has none and the caller allowed it.
    sites : tuple of AttentionSite
        Where its attention runs.
    weights_sha256 : str or None
        None for a model that was handed over in memory.
    """

    name: str
    model: Any
    tokenizer: Any | None
    sites: tuple[AttentionSite, ...]
    revision: str | None = None
    weights_sha256: str | None = None
    dtype: str = "float32"
    device: str = "cpu"
    #: Floating-point type of the checkpoint's file, where it is known.
    stored_dtype: str | None = None
    #: The certificate of this run, filled by the first validation.
    certificate: Any | None = field(default=None, repr=False)

    @property
    def n_layers(self) -> int:
        """Layers of attention that were seen running."""
        return len(self.sites)

    @property
    def n_heads(self) -> int:
        """Most heads that any layer has (layers can differ once heads are removed)."""
        return max((site.n_heads for site in self.sites), default=0)

    @property
    def family(self) -> str:
        """The architecture's model_type."""
        return str(self.model.config.model_type)

    @property
    def pad_id(self) -> int:
        """Token id that fills up short sequences."""
        for owner, name in ((self.model.config, "pad_token_id"), (self.tokenizer, "pad_token_id")):
            if (pad := getattr(owner, name, None)) is not None:
                return int(pad)
        return 0

    @property
    def vocab_size(self) -> int:
        """Rows of the input embedding."""
        return int(self.model.get_input_embeddings().num_embeddings)

    @property
    def max_length(self) -> int:
        """Longest sequence, special tokens included, that model and tokenizer allow."""
        limits = [_position_limit(self.model), getattr(self.tokenizer, "model_max_length", None)]
        known = [int(limit) for limit in limits if limit is not None and limit < _NO_LIMIT]
        return min(known, default=_NO_LIMIT)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Run the model; returns the last hidden state (batch, pos, d_model)."""
        hidden: Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask, return_dict=True
        ).last_hidden_state
        return hidden

    def pad(self, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Right-pad token ids: (input_ids, attention_mask), both (batch, longest)."""
        longest = max(map(len, sequences))
        ids = torch.full((len(sequences), longest), self.pad_id, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = torch.as_tensor(sequence)
            mask[row, : len(sequence)] = 1
        return ids.to(self.device), mask.to(self.device)


def load(
    model: str,
    *,
    dtype: str = "float32",
    device: str = "auto",
    revision: str | None = None,
    allow_pickle: bool = False,
    need_tokenizer: bool = True,
) -> LoadedModel:
    """Open ``demo``, a folder or a hub id.

    Parameters
    ----------
    model : str
    dtype : str
        What to compute in, whatever the checkpoint stores.
    device : str
        ``auto``, ``cpu``, ``cuda`` or ``mps``.
    revision : str, optional
        Of a hub id: branch, tag or commit.
    allow_pickle : bool
        Accept a checkpoint that has only pickled weights.
    need_tokenizer : bool
        If False, a folder without tokenizer files gives ``tokenizer=None``.

    Raises
    ------
    ModelNotFoundError, CheckpointError, UnsupportedModelError
    """
    source = find_source(model, revision=revision, allow_pickle=allow_pickle)
    checkpoint = open_checkpoint(source.folder, allow_pickle=allow_pickle)
    if need_tokenizer and not checkpoint.has_tokenizer:
        raise CheckpointError(
            f"{source.folder} has no tokenizer (tokenizer.json); save the model's fast tokenizer "
            "beside it with tokenizer.save_pretrained."
        )
    where = pick_device(device)
    with quiet_transformers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.captureWarnings(False)
        _check_config(source)
        tokenizer = _load_tokenizer(source) if checkpoint.has_tokenizer else None
        network = _load_network(source, checkpoint, DTYPES[dtype])
    network = network.to(where).eval()
    _check_finite(network, source)
    loaded = wrap(network, tokenizer, name=source.name)
    loaded.revision = source.revision
    loaded.weights_sha256 = checkpoint.weights_sha256()
    loaded.stored_dtype = checkpoint.stored_dtype()
    return loaded


def wrap(network: Any, tokenizer: Any | None = None, *, name: str = "in memory") -> LoadedModel:
    """Make a transformers model that is already in memory ready to be measured.

    Raises
    ------
    UnsupportedModelError
        If it is an encoder-decoder model or not an encoder at all.
    """
    config = network.config
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(
            f"{name} is an encoder-decoder model ({config.model_type}); headscope covers "
            "encoders so far."
        )
    network = getattr(network, "base_model", network).eval()
    if getattr(network.get_input_embeddings(), "num_embeddings", None) is None:
        raise UnsupportedModelError(f"{name} ({config.model_type}) is not a text encoder.")
    parameter = next(network.parameters())
    loaded = LoadedModel(
        name=name,
        model=network,
        tokenizer=tokenizer,
        sites=(),
        dtype=str(parameter.dtype).removeprefix("torch."),
        device=str(parameter.device),
    )
    ids, mask = loaded.pad([[loaded.vocab_size - 1, 0, loaded.vocab_size // 2]])
    loaded.sites = find_sites(network, lambda: loaded.forward(ids, mask))
    return loaded


def pick_device(device: str) -> torch.device:
    """Turn ``auto`` into the best device there is, or check that the named one is there."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: this torch sees no CUDA device; use cpu or auto.")
    if device == "mps" and not torch.backends.mps.is_available():
        raise InputError("--device mps: this machine has no Apple GPU; use cpu or auto.")
    return torch.device(device)


def _load_tokenizer(source: Source) -> Any:
    from transformers import AutoTokenizer

    # Words are fed one by one; RoBERTa's tokenizer refuses that unless a space precedes each.
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source.folder, add_prefix_space=True, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:  # transformers raises many kinds here
        raise CheckpointError(
            f"The tokenizer in {source.folder} cannot be read ({_in_one_line(error)}); save it "
            "again with tokenizer.save_pretrained."
        ) from error
    if not getattr(tokenizer, "is_fast", False):
        raise CheckpointError(
            f"{source.folder} has no fast tokenizer (tokenizer.json), which is needed to align "
            "words with pieces; convert it and save it beside the model."
        )
    return tokenizer


def _check_config(source: Source) -> None:
    """Read config.json as transformers does, before the tokenizer is blamed for a slip in it."""
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(source.folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # transformers raises many kinds here
        raise CheckpointError(
            f"{source.folder / 'config.json'} is not a config that transformers understands: "
            f"{_in_one_line(error)}"
        ) from error


def _load_network(source: Source, checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    from transformers import AutoModel

    try:
        network, info = AutoModel.from_pretrained(
            source.folder,
            dtype=dtype,
            attn_implementation="eager",
            use_safetensors=not checkpoint.pickled,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # so that _check_complete can name them
        )
    except Exception as error:  # transformers raises many kinds here
        raise CheckpointError(
            f"{source.folder} cannot be loaded as a {checkpoint.config['model_type']} model: "
            f"{_in_one_line(error)}"
        ) from error
    _check_complete(info, source)
    return network


def _check_complete(info: dict[str, Any], source: Source) -> None:
    missing = [key for key in sorted(info["missing_keys"]) if not key.startswith(_OPTIONAL_PARTS)]
    mismatched = sorted(str(key[0]) for key in info.get("mismatched_keys", []))
    for keys, what in ((missing, "lacks"), (mismatched, "has the wrong shape for")):
        if keys:
            raise CheckpointError(
                f"The checkpoint in {source.folder} {what} {len(keys)} of the model's tensors "
                f"({keys[0]}, ...); it is not a whole model."
            )


def _check_finite(network: nn.Module, source: Source) -> None:
    for name, parameter in network.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise CheckpointError(
                f"The weights in {source.folder} are not finite: {name} holds NaN or infinity; "
                "the checkpoint is broken (or overflows the chosen --dtype)."
            )


def _position_limit(network: nn.Module) -> int | None:
    """Positions that a learned position table has room for."""
    for name, module in network.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa and its kin count positions from padding_idx + 1.
            skipped = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - skipped
    limit = getattr(network.config, "max_position_embeddings", None)
    return int(limit) if isinstance(limit, int) and limit > 0 else None


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
