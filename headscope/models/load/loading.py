"""Open a checkpoint: the base model in eval mode, its tokenizer and its attention sites.

A :class:`~headscope.models.load.source.Source` is where a model was found: its name and its folder.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from headscope.core.progress import say
from headscope.core.safe_text import visible
from headscope.data.pieces import PAIR_READING
from headscope.models.layouts.families import refuse
from headscope.models.load.checkpoint import Checkpoint
from headscope.models.load.languages import name_languages
from headscope.models.load.manifest import kept_parts
from headscope.models.load.network import check_config, check_finite, load_network
from headscope.models.load.reranker import fit_padding, pair_reading, score_tokens, scoring_network
from headscope.models.load.sentence_files import SentenceFiles
from headscope.models.load.sentence_folder import (
    cross_encoder_activation,
    lower_cases,
    read_pooling,
    transformer_folder,
)
from headscope.models.load.sizes import check_stated
from headscope.models.load.source import DEMO, find_source
from headscope.models.load.tokenizer import OpenedTokenizer, no_tokenizer, open_tokenizer
from headscope.models.run.devices import dtype_on, pick_device
from headscope.models.run.fingerprints import FileWeights, fingerprint
from headscope.models.run.head_outputs import HeadOutputs, activation_of, head_outputs
from headscope.models.run.implementation import quiet_transformers
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.pooling import chosen_pooling
from headscope.models.run.task_heads import HeadWeights
from headscope.models.run.wrapping import wrap


def load(
    model: str,
    *,
    dtype: str = "float32",
    device: str = "auto",
    revision: str | None = None,
    need_tokenizer: bool = True,
    task_head: str | None = None,
    pooling: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> LoadedModel:
    """Open ``demo``, a folder or a hub id.

    Parameters
    ----------
    model : str
        What the command line calls MODEL.
    dtype : str
        What to compute in, whatever the checkpoint stores: ``float64``, ``float32``, ``bfloat16``
        or ``float16``.
    device : str
        ``auto`` (a CUDA device if there is one, else the CPU), ``cpu``, ``cuda``, ``cuda:1`` and so
        on, or ``mps``.
    revision : str, optional
        Of a hub id: branch, tag or commit.
    need_tokenizer : bool
        If False, a folder without tokenizer files gives ``tokenizer=None``.
    task_head : str, optional
        The task head to keep: ``mlm``, ``classification``, ``seq2seq``, ``token-classification``,
        ``question-answering``, ``causal`` (the next token), ``auto`` (what the checkpoint has, if
        it is one of these) or None for the base model alone. With ``auto`` a decoder in a
        sentence-transformers folder, which is used for its embeddings, is a base model.
    pooling : str, optional
        How a text's last states become one embedding: ``mean``, ``cls``, ``max`` or ``weighted``;
        by default what the modules.json of a sentence-transformers folder says, else the mean.
    source_language, target_language : str, optional
        Codes of the languages that a multilingual encoder-decoder reads and writes, such as
        ``eng_Latn``; by default what the folder's files say.

    Raises
    ------
    InputError
        If the checkpoint lacks the task head, or there is no such pooling, device or type.
    ModelNotFoundError, CheckpointError, UnsupportedModelError
    """
    # Find the folder, and check it before anything of it is loaded.
    if pooling is not None:
        chosen_pooling(pooling)  # refuses a name that is not known
    shown_name = DEMO if model == "demo" else model
    say(f"loading {visible(Path(shown_name).name)}")
    torch_device = pick_device(device)
    torch_dtype = dtype_on(dtype, torch_device)
    model_source = find_source(model, revision=revision)
    sentence_files = SentenceFiles.of(model_source.folder)
    scores_pairs = task_head in ("auto", "classification")
    tokens_of_score = score_tokens(sentence_files) if scores_pairs else None
    source = model_source
    if sentence_files is not None:  # the transformer may lie in a folder of its own
        source = replace(model_source, folder=transformer_folder(sentence_files))
    checkpoint = Checkpoint(source.folder)
    refuse(str(checkpoint.config.get("model_type")), source.name)
    if need_tokenizer and not checkpoint.has_tokenizer:
        raise no_tokenizer(source.folder)

    # Load the tokenizer and the network.
    with quiet_transformers(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.captureWarnings(False)
        check_stated(checkpoint)
        check_config(source, checkpoint)
        remaining = kept_parts(checkpoint)  # of a pruned checkpoint; else None
        opened = OpenedTokenizer(tokenizer=None, class_differs=False, remarks=())
        if checkpoint.has_tokenizer:
            opened = open_tokenizer(source, lower=lower_cases(sentence_files))
        tokenizer = opened.tokenizer
        network, head_weights = load_network(
            source,
            checkpoint,
            dtype=torch_dtype,
            task_head=task_head if tokens_of_score is None else None,
            embeds=sentence_files is not None,
            remaining=remaining,
        )
        if tokens_of_score is not None:
            network = scoring_network(network, tokens_of_score, checkpoint, source.name)
    check_finite(network, source)
    activation = cross_encoder_activation(sentence_files)
    if activation is not None:
        # Put into config.json, where older folders have it: so copies of the model keep it.
        network.config.sentence_transformers = {"activation_fn": activation}
    network = network.to(torch_device).eval()
    name_languages(network, tokenizer, source, source=source_language, target=target_language)

    # Make them one model, which knows where it comes from.
    loaded = wrap(network, tokenizer, name=source.name)
    if remaining is not None:
        loaded.origin = remaining.origin
    loaded.revision = model_source.revision
    loaded.folder = model_source.folder
    loaded.head_weights = head_weights
    sha256 = source.sha256
    if sha256 is None:
        sha256 = checkpoint.weights_sha256()
    loaded.file = FileWeights(sha256, fingerprint(network))
    loaded.stored_dtype = checkpoint.stored_dtype()
    loaded.remarks = (*loaded.remarks, *_remarks(loaded, checkpoint, head_weights), *opened.remarks)
    loaded.class_reads_otherwise = opened.class_differs
    width = getattr(loaded.model.config, "hidden_size", None)
    reading = pair_reading(sentence_files)
    if tokenizer is not None and reading is not None:
        setattr(tokenizer, PAIR_READING, reading)  # kept by every copy of the model
    if tokens_of_score is not None:
        fit_padding(loaded)
    loaded.pooling = read_pooling(sentence_files, width, tokenizer)
    return loaded if pooling is None else loaded.pooled_by(pooling)


def _remarks(loaded: LoadedModel, checkpoint: Checkpoint, head: HeadWeights) -> Iterator[str]:
    """Yield sentences about how a checkpoint was read that users may not expect."""
    name = loaded.name
    activation = activation_of(vars(loaded.network.config))
    if loaded.task_head == "classification" and activation != "Identity":
        measured = "headscope measures the logits themselves"
        if head_outputs(loaded) is HeadOutputs.LABELS:
            measured = "its labels are independent of each other, each with its own probability"
        yield (
            f"CrossEncoder of sentence-transformers puts {activation} after the logits of {name}; "
            f"{measured}."
        )
    if checkpoint.pickled:
        yield (
            f"The weights of {name} are pickled ({checkpoint.weight_files[0].name}): only tensors "
            "were read of them, and nothing was run."
        )
    if head.partly:
        yield (
            f"{name} was opened as a base model: its config.json names {head.architecture}, but "
            f"the weights lack {head}."
        )
