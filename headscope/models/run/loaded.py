"""A model that is ready to be measured: network, tokenizer, attention sites, origin.

:func:`headscope.load` makes one of a checkpoint, :func:`~headscope.models.run.wrapping.wrap` one of
a network in memory. A *site* is one layer of attention in one *stack*: ``encoder``, ``decoder``, or
``cross`` for the decoder's attention to the encoder. A *view* of a model is the same network with
the sites of one stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from headscope.core.errors import InputError
from headscope.data.languages import Languages, languages_of
from headscope.data.token_rows import Ends
from headscope.data.token_types import TokenTypes, token_types
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.sites import attending_layers, numbered
from headscope.models.run.fingerprints import FileWeights, fingerprint
from headscope.models.run.pooling import Pooling, chosen_pooling
from headscope.models.run.task_heads import (
    HeadWeights,
    InSlices,
    Select,
    class_for,
    last_state,
    logits_of_states,
    run_with_task_head,
)

_NO_LIMIT = 10**9  # Tokenizers without a limit of their own report an astronomically large one.


@dataclass
class LoadedModel:
    """A model that is ready to be measured."""

    name: str  # What the user called it
    model: Any  # The base model (no task head), in eval mode
    #: The base model with its task head around it, or the base model itself where there is none.
    network: Any = field(repr=False)
    tokenizer: Any  # A fast one; None where the folder has none and the caller allowed it
    sites: tuple[AttentionSite, ...]  # Of all stacks, or of one in a view
    task_head: str | None  # Such as ``mlm``: a name of TASK_HEADS (models/run/task_heads.py)
    dtype: str  # The type of its weights in memory, such as ``float32``
    device: str  # Such as ``cpu`` or ``cuda:0``
    revision: str | None = None  # The hub's commit, where it is known
    #: Checksums of the weights as they were read; None for a model that was handed over in memory.
    file: FileWeights | None = field(default=None, repr=False)
    #: For a copy without some of its heads: id, revision and weights_sha256 of the model that it
    #: was cut from.
    origin: dict[str, Any] | None = field(default=None, repr=False)
    #: The type of the weights in the checkpoint's file, where it is known.
    stored_dtype: str | None = None
    #: The last proof that our attention is the model's, read and written by
    #: :mod:`headscope.models.certificate.certificate` alone.
    certificate: object = field(default=None, repr=False)
    #: For a view of one stack: the model that it is a view of.
    view_of: LoadedModel | None = field(default=None, repr=False)
    #: The folder that it, or the model that it was cut from, was read from; None for one that was
    #: handed over in memory.
    folder: Path | None = field(default=None, repr=False)
    #: How its last states become the embedding of a text.
    pooling: Pooling = field(default_factory=Pooling)
    #: What the checkpoint's weights hold of the task head that its config.json names.
    head_weights: HeadWeights | None = field(default=None, repr=False)
    #: Sentences about how its checkpoint was read, for every output.
    remarks: tuple[str, ...] = field(default=(), repr=False)
    #: Whether AutoTokenizer and SentenceTransformer, which build the tokenizer of a named class,
    #: would read some texts otherwise than this tokenizer, which follows tokenizer.json.
    class_reads_otherwise: bool = field(default=False, repr=False)

    # --- what it is ---------------------------------------------------------------------------

    def __repr__(self) -> str:
        """Say in one line which model it is and how large: what Python and notebooks show."""
        sizes = []
        for stack in self.stacks:
            sites = [site for site in self.sites if site.stack == stack]
            n_heads = max(site.n_heads for site in sites)
            prefix = "" if self.stacks == (stack,) else f"{stack} "
            layers = "layer" if len(sites) == 1 else "layers"
            sizes.append(f"{prefix}{len(sites)} {layers} x {n_heads} heads")
        head = f", with its {self.task_head} head" if self.task_head else ""
        where = f"{self.dtype} on {self.device}"
        return f"LoadedModel({self.name!r}: {self.family}, {', '.join(sizes)}{head}; {where})"

    @property
    def family(self) -> str:
        """The architecture's model_type."""
        return str(self.model.config.model_type)

    @property
    def encoder_decoder(self) -> bool:
        """Whether the model has a decoder that reads an encoder's states."""
        return bool(getattr(self.model.config, "is_encoder_decoder", False))

    @property
    def auto_class(self) -> Any:
        """The auto class of transformers that builds the network."""
        return class_for(self.task_head, type(self.network).__name__)

    @property
    def weights_sha256(self) -> str | None:
        """SHA-256 of the file, as long as the weights in memory are still what was read from it."""
        return None if self.file is None or self.changed else self.file.sha256

    @property
    def changed(self) -> bool:
        """Whether weights were overwritten after they had been read from a file."""
        return self.file is not None and self.file.network != fingerprint(self.network)

    def pooled_by(self, mode: str) -> LoadedModel:
        """Return the same model with another way to embed a text, whatever its folder says."""
        pooling = chosen_pooling(mode, self.pooling)
        view_of = None if self.view_of is None else replace(self.view_of, pooling=pooling)
        return replace(self, pooling=pooling, view_of=view_of)

    # --- its stacks, layers and heads ---------------------------------------------------------

    @property
    def stacks(self) -> tuple[str, ...]:
        """The stacks of its sites, in the order encoder, decoder, cross."""
        return tuple(dict.fromkeys(site.stack for site in self.sites))

    def only(self, stack: str) -> LoadedModel:
        """Return a view of one stack: the same model, measured and pruned there alone."""
        all_stacks = self.with_all_stacks
        if stack == "all":
            return all_stacks
        sites = numbered([site for site in all_stacks.sites if site.stack == stack])
        if not sites:
            raise InputError(
                f"{self.name} has no stack {stack!r}; it has {' and '.join(all_stacks.stacks)}."
            )
        if all_stacks.stacks == (stack,):
            return self
        return replace(self, sites=sites, view_of=all_stacks)

    @property
    def with_all_stacks(self) -> LoadedModel:
        """The whole model: of a view, the one that it was made of; else the model itself."""
        return self.view_of or self

    @property
    def unmeasured_sites(self) -> tuple[AttentionSite, ...]:
        """Sites of the stacks that a view leaves out."""
        all_sites = self.with_all_stacks.sites
        return tuple(site for site in all_sites if site.stack not in self.stacks)

    @property
    def n_layers(self) -> int:
        """Number of layers of attention that were seen running, all stacks together."""
        return len(self.sites)

    def layers_stated(self) -> int:
        """Return the number of layers of attention that the configuration states.

        All stacks together: a BART of 6 encoder and 6 decoder layers has 18. Layers of other kinds,
        such as linear attention, do not count.
        """
        config = self.model.config
        attending = attending_layers(config)
        if attending is not None:
            return len(attending)
        layers = int(getattr(config, "num_hidden_layers", len(self.sites)))
        if not self.encoder_decoder:
            return layers * int(getattr(config, "inner_group_num", 1))  # ALBERT: layers in a layer
        # T5Gemma has a configuration for each stack.
        encoder = getattr(config, "encoder", None)
        decoder = getattr(config, "decoder", None)
        encoder_layers = int(getattr(encoder, "num_hidden_layers", layers))
        encoder_layers = int(getattr(config, "encoder_layers", encoder_layers))
        decoder_layers = int(getattr(decoder, "num_hidden_layers", layers))
        for name in ("decoder_layers", "num_decoder_layers"):
            if stated := getattr(config, name, None):
                decoder_layers = int(stated)
                break
        return encoder_layers + 2 * decoder_layers  # self-attention and cross-attention

    @property
    def n_heads(self) -> int:
        """Number of heads of the layer with most (layers can differ once heads are removed)."""
        return max((site.n_heads for site in self.sites), default=0)

    # --- what it reads ------------------------------------------------------------------------

    @property
    def vocab_size(self) -> int:
        """Number of tokens that the input embedding has a row for."""
        return int(self.model.get_input_embeddings().num_embeddings)

    @property
    def max_length(self) -> int:
        """Longest sequence, special tokens included, that model and tokenizer allow."""
        limits = [self._position_limit, getattr(self.tokenizer, "model_max_length", None)]
        known = [int(limit) for limit in limits if limit is not None and limit < _NO_LIMIT]
        return min(known, default=_NO_LIMIT)

    @cached_property
    def _position_limit(self) -> int | None:
        """How many positions the learned position table has room for."""
        for name, module in self.model.named_modules():
            if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
                # RoBERTa and its kin count positions from padding_idx + 1.
                skipped = 0 if module.padding_idx is None else module.padding_idx + 1
                return module.num_embeddings - skipped
        limit = getattr(self.model.config, "max_position_embeddings", None)
        return int(limit) if isinstance(limit, int) and limit > 0 else None

    @property
    def pad_id(self) -> int:
        """Token id that pads short sequences; an id without an embedding row is ignored."""
        for owner in (self.model.config, self.tokenizer):
            pad = getattr(owner, "pad_token_id", None)
            if pad is not None and 0 <= int(pad) < self.vocab_size:
                return int(pad)
        return 0

    @property
    def start_id(self) -> int | None:
        """Token id that the decoder starts with; None for a model without an encoder-decoder."""
        if not self.encoder_decoder:
            return None
        for name in ("decoder_start_token_id", "bos_token_id"):
            start = getattr(self.model.config, name, None)
            if start is not None:
                return int(start)
        return self.pad_id

    @cached_property
    def token_types(self) -> TokenTypes:
        """The token types (segment ids) that the model is given beside its token ids."""
        return token_types(self, self.model)

    @cached_property
    def languages(self) -> Languages | None:
        """The languages that it reads and writes; None unless codes in its input name them."""
        return languages_of(self.tokenizer) if self.encoder_decoder else None

    @property
    def unreadable(self) -> str | None:
        """A sentence on why no text can be read, its language not being known; else None."""
        if self.languages is None or self.languages.source is not None:
            return None
        return _ask_for_languages(self, self.languages, {"source_language": self.languages.source})

    # --- running it ---------------------------------------------------------------------------

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Run the base model; returns the last hidden state (batch, pos, d_model).

        Of an encoder-decoder model that is the decoder's; without anything for the decoder to
        read, only the encoder runs.
        """
        encoder_only = self.encoder_decoder and decoder_input_ids is None
        inputs = _present(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=self.token_types.of_texts(attention_mask),
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
        )
        base = self.model.get_encoder() if encoder_only else self.model
        return last_state(base, inputs)

    def run(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        *,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        select: Select | InSlices | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the model with its task head: last hidden state and logits (None without one).

        ``select`` picks what the task head gets from the last hidden state; all of it by default.
        An encoder-decoder model without anything for its decoder to read runs its encoder only.
        """
        if self.encoder_decoder and decoder_input_ids is None:
            return self.forward(input_ids, attention_mask), None
        if token_type_ids is None:
            token_type_ids = self.token_types.of_texts(attention_mask)
        inputs = _present(
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
        )
        return run_with_task_head(self.network, self.model, inputs, select)

    def logits_of(self, states: Tensor) -> Tensor:
        """Let the head of a causal language model read last states: (n, d) to (n, vocabulary)."""
        return logits_of_states(self.network, self.model, states)

    def run_tiny(self, tokens: Sequence[int] | None = None) -> Tensor:
        """Run the base model on three tokens, for hooks that watch it; returns its last states.

        A decoder reads them too; a view of the encoder runs the encoder alone.
        """
        ids, mask = self.pad([tokens or [self.vocab_size - 1, 0, self.vocab_size // 2]])
        decodes = self.encoder_decoder and self.stacks != ("encoder",)
        with torch.no_grad():
            if decodes:
                return self.forward(ids, mask, ids, mask)
            return self.forward(ids, mask)

    def pad(self, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Right-pad token ids: (input_ids, attention_mask), both (batch, longest)."""
        rows = [torch.as_tensor(sequence, dtype=torch.long) for sequence in sequences]
        ids = pad_sequence(rows, batch_first=True, padding_value=self.pad_id)
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        return ids.to(self.device), mask.to(self.device)


def origin_of(loaded: LoadedModel) -> dict[str, Any]:
    """Return id, revision and weights of the model that this one is, or was made from."""
    return loaded.origin or {
        "id": loaded.name,
        "revision": loaded.revision,
        "weights_sha256": loaded.weights_sha256,
    }


def ends_of(loaded: LoadedModel) -> Ends:
    """Return the special tokens at the ends of what a model's decoder reads and writes."""
    if loaded.start_id is None:
        raise InputError(
            f"{loaded.name} ({loaded.family}) is no encoder-decoder model; the task seq2seq needs "
            "one, such as Marian, BART or T5."
        )
    languages = loaded.languages
    language_code = None
    if languages is not None:
        if languages.target is None:
            options = {"source_language": languages.source, "target_language": languages.target}
            raise InputError(_ask_for_languages(loaded, languages, options))
        language_code = languages.codes[languages.target]
    if (
        language_code == loaded.start_id
    ):  # the decoder of an mBART starts with it: read, not written
        language_code = None
    return Ends(start=loaded.start_id, stop=_stop_id(loaded), first=language_code)


def _stop_id(loaded: LoadedModel) -> int:
    """Return the token that ends a target, by config.json or else by generation_config.json."""
    network = loaded.network
    for settings in (network.config, getattr(network, "generation_config", None)):
        stop = getattr(settings, "eos_token_id", None)
        if isinstance(stop, list | tuple):
            stop = next(iter(stop), None)
        if stop is not None:
            return int(stop)
    raise InputError(
        f"The config of {loaded.name} has no eos_token_id, so it is not known where its targets "
        "end; add it to config.json."
    )


def _ask_for_languages(
    loaded: LoadedModel, languages: Languages, named: Mapping[str, str | None]
) -> str:
    """Return the sentence that asks for the languages that neither files nor options name.

    ``named`` has the options that are needed, each with its language, or None to be asked for:
    {"source_language": "eng_Latn", "target_language": None}.
    """
    options = " and ".join(option for option, language in named.items() if language is None)
    usual = [code for code in languages.codes if code.strip("_").startswith(("en", "fr"))]
    examples = " or ".join([*usual, *languages.codes][:2])
    return (
        f"{loaded.name} ({loaded.family}) reads and writes several languages, and its files do not "
        f"say which; give {options}, such as {examples}."
    )


def _present(**tensors: Tensor | None) -> dict[str, Tensor]:
    """Leave out the arguments that are None."""
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}
