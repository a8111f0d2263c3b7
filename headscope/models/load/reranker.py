"""Rerankers of sentence-transformers: which score they give, and how they read two texts.

A causal language model can be a cross-encoder without a head of its own (Qwen3-Reranker): its score
of a query and a document is the logit of one token after both, such as "yes", minus that of
another, such as "no". ``modules.json`` says so by a module LogitScore. A difference of two logits
is one linear map of the last state, so the model is opened with a sequence-classification head of
one output, whose weights are the difference of the two rows of its output embedding; whether that
is the same score is tried on three tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from headscope.core.errors import CheckpointError, UnsupportedModelError
from headscope.data.pieces import PairReading, tokenise
from headscope.models.load.checkpoint import Checkpoint
from headscope.models.load.sentence_files import SentenceFiles, short
from headscope.models.load.sentence_folder import cross_encoder_settings
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.task_heads import class_for

_TOLERANCE = 1e-3  # Of the score of three tokens, relative to the largest logit; more in half types
#: Settings by which families bound or scale their logits, which half precision might not show.
_SCALES = ("final_logit_softcapping", "logits_scaling", "logit_scale", "lm_head_multiplier")
_REMEDY = "open it by CrossEncoder of sentence-transformers instead"


@dataclass(frozen=True)
class ScoreTokens:
    """The tokens whose logits are a reranker's score."""

    true: int  # Token id for a document that answers the query
    false: int | None  # Token id for one that does not; None: the score is the logit of ``true``


def score_tokens(files: SentenceFiles | None) -> ScoreTokens | None:
    """Return the tokens of a folder's LogitScore; None for a folder without that module.

    Raises
    ------
    CheckpointError
        If the module's settings name no token.
    """
    if files is None:
        return None
    try:
        modules = files.modules()
    except (CheckpointError, OSError, RecursionError):
        return None  # what is wrong is reported where embeddings are made
    folders = [folder for kind, folder in modules if kind == "LogitScore"]
    if not folders:
        return None
    values = files.config(folders[0])
    true = values.get("true_token_id")
    false = values.get("false_token_id")
    if len(modules) != 2 or type(true) is not int or type(false) not in (int, type(None)):
        raise CheckpointError(
            f"{files.path(folders[0], 'config.json')} names the tokens {short(true)} and "
            f"{short(false)}, in a chain of {len(modules)} modules; headscope follows a "
            "Transformer and a LogitScore whose true_token_id and false_token_id are whole numbers."
        )
    return ScoreTokens(true, false)


def pair_reading(files: SentenceFiles | None) -> PairReading | None:
    """Return how a CrossEncoder's folder wants two texts to be read; None for any other folder."""
    settings = cross_encoder_settings(files)
    if files is None or not settings:
        return None
    prompts = settings.get("prompts")
    prompt = prompts.get(settings.get("default_prompt_name")) if isinstance(prompts, dict) else None
    reading = files.reading()
    message = _inner(reading, "modality_config", "message")
    if message.get("format") not in (None, "flat", "structured"):
        raise CheckpointError(
            f"{files.folder} has messages of the format {short(message['format'])}; known are flat "
            "and structured."
        )
    options = _inner(reading, "processing_kwargs", "chat_template")
    return PairReading(
        prompt=prompt if isinstance(prompt, str) else "",
        templated=bool(message),
        in_parts=message.get("format") == "structured",
        options={name: value for name, value in options.items() if name != "restore_suffix"},
    )


def _inner(values: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return an object within an object of a JSON file; empty where there is none."""
    for name in names:
        inner = values.get(name)
        values = inner if isinstance(inner, Mapping) else {}
    return values


def fit_padding(loaded: LoadedModel) -> None:
    """Let a scoring model find the last token of each pair: the last that does not pad.

    Raises
    ------
    CheckpointError
        If pairs end in the very token that pads.
    """
    config = loaded.network.config
    tokenizer = loaded.tokenizer
    if tokenizer is None:
        return
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id
    pair = next(tokenise(loaded, ["a"], pairs=["a"], check=False))
    if pair.ids[-1] == config.pad_token_id:
        raise CheckpointError(
            f"{loaded.name} ends every pair in the token that pads "
            f"({tokenizer.pad_token!r}), so its last state cannot be told from padding; name "
            "another pad_token in tokenizer_config.json and as pad_token_id in config.json."
        )


def scoring_network(base: Any, tokens: ScoreTokens, checkpoint: Checkpoint, name: str) -> Any:
    """Put a head of one output on a base model: the score that LogitScore takes of its logits.

    Raises
    ------
    UnsupportedModelError
        If transformers has no such head for the family, or the logits are no linear map of the last
        state.
    CheckpointError
        If a token is none of the model's.
    """
    # The network without weights: only its head needs some besides the base model's.
    builder = class_for("classification")
    config = base.config
    if type(config) not in builder._model_mapping:
        raise UnsupportedModelError(
            f"{name} scores pairs by the logit of a token (LogitScore), and transformers has no "
            f"sequence-classification model of its family {config.model_type} to hold that score; "
            f"{_REMEDY}."
        )
    config.num_labels = 1
    with torch.device("meta"):
        network = builder.from_config(copy.deepcopy(config))
        causal = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config))

    # The head: the row of one token minus the row of another.
    logits = _output_embedding(base, causal, checkpoint)
    row = _row(logits, tokens.true, name)
    if tokens.false is not None:
        row = row - _row(logits, tokens.false, name)
    score = nn.Linear(row.shape[0], 1, bias=False, dtype=row.dtype)
    score.weight.data = row[None].clone()
    for model in (network, causal):
        setattr(model, model.base_model_prefix, base)
    network.score = score
    network.config = config
    network.config.architectures = [type(network).__name__]
    causal.set_output_embeddings(logits)
    _check_same_score(network, causal, tokens, name)
    return network


def _output_embedding(base: Any, causal: Any, checkpoint: Checkpoint) -> nn.Linear:
    """Return the map from last states to logits, tied to the input embedding or of its own.

    ``causal`` is the language model without its weights.
    """
    output = causal.get_output_embeddings()
    logits = nn.Linear(output.in_features, output.out_features, bias=False, device="meta")
    if base.config.tie_word_embeddings:
        logits.weight = base.get_input_embeddings().weight
        return logits
    name = next(name for name, module in causal.named_modules() if module is output)
    tensors = checkpoint.tensors()
    if f"{name}.weight" not in tensors:
        raise CheckpointError(
            f"The checkpoint in {checkpoint.folder} lacks {name}.weight, whose rows its LogitScore "
            "needs."
        )
    like = base.get_input_embeddings().weight
    logits.weight = nn.Parameter(tensors[f"{name}.weight"].to(like), requires_grad=False)
    return logits


def _row(logits: nn.Linear, token: int, name: str) -> Tensor:
    """Return the output embedding of a token, (d_model,)."""
    if not 0 <= token < len(logits.weight):
        raise CheckpointError(
            f"The LogitScore of {name} names the token id {token}, and the model has "
            f"{len(logits.weight):,} tokens."
        )
    return logits.weight.data[token]


def _check_same_score(network: Any, causal: Any, tokens: ScoreTokens, name: str) -> None:
    """Refuse a model whose score is not LogitScore's of its logits, on three tokens."""
    n_tokens = len(causal.get_output_embeddings().weight)
    ids = torch.tensor([[n_tokens // 3, tokens.true, n_tokens // 2]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        logits = causal.eval()(**inputs).logits[0, -1]
        score = network.eval()(**inputs).logits[0, 0]
    expected = logits[tokens.true]
    if tokens.false is not None:
        expected = expected - logits[tokens.false]
    tolerance = max(_TOLERANCE, 16 * torch.finfo(logits.dtype).eps)
    is_scaled = any(getattr(network.config, scale, None) not in (None, 1.0) for scale in _SCALES)
    if is_scaled or not (score - expected).abs() <= tolerance * logits.abs().max():
        raise UnsupportedModelError(
            f"{name} bounds, scales or shifts its logits ({network.config.model_type}), so their "
            f"difference is no linear map of the last state; {_REMEDY}."
        )
