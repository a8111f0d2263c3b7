"""Folders of embedders and rerankers built on decoders, as they are published, of tiny weights.

Which files there are and what they say is that of Qwen3-Embedding and EmbeddingGemma, of E5-Mistral
and SGPT, and of Qwen3-Reranker as sentence-transformers 5.4 and later write it; the sizes are
small, and the words those of ``tiny_models``.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tiny_models import VOCABULARY, framed_tokenizer
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

D_MODEL = 32
_SIZES: dict[str, Any] = {
    **{"vocab_size": len(VOCABULARY), "hidden_size": D_MODEL, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48},
    **{"max_position_embeddings": 128, "initializer_range": 0.3, "tie_word_embeddings": True},
}
_NEW = "sentence_transformers.base.modules."
_OLD = "sentence_transformers.models."
QUERY = "Instruct: Given a web search query, retrieve passages\nQuery:"
#: Some prompts of EmbeddingGemma.
GEMMA_PROMPTS = {
    "query": "task: search result | query: ",
    "document": "title: none | text: ",
    "STS": "task: sentence similarity | query: ",
}


def _json(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=2), encoding="utf-8")


def _model(
    folder: Path, kind: str, *, template: str, side: str, auto: Any = AutoModel, **config: Any
) -> None:
    """Write weights of a kind and a tokenizer that puts a template around texts."""
    torch.manual_seed(3)
    sizes = {name: value for name, value in {**_SIZES, **config}.items() if value is not None}
    network = auto.from_config(AutoConfig.for_model(kind, **sizes))
    for name, parameter in network.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.normal_(parameter, mean=float(parameter.data.mean()), std=0.1)
    network.save_pretrained(folder)
    tokenizer = framed_tokenizer(template)
    tokenizer.model_max_length = 128
    tokenizer.save_pretrained(folder)
    changed(folder / "tokenizer_config.json", padding_side=side)


def _listed(folder: Path, *kinds: tuple[str, str]) -> None:
    """Write modules.json with (path, type) of each module."""
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": kind}
        for i, (path, kind) in enumerate(kinds)
    ]
    _json(folder / "modules.json", modules)


def _pooling(folder: Path, mode: str) -> None:
    names = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    switches = {f"pooling_mode_{name}": False for name in (*names, "weightedmean_tokens")}
    switches |= {"pooling_mode_lasttoken": False, f"pooling_mode_{mode}": True}
    values = {"word_embedding_dimension": D_MODEL, **switches, "include_prompt": True}
    _json(folder / "1_Pooling/config.json", values)


def _settings(folder: Path, **values: Any) -> None:
    versions = {"sentence_transformers": "2.7.0", "transformers": "4.51.2", "pytorch": "2.6.0"}
    shared = {"__version__": versions, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    _json(folder / "config_sentence_transformers.json", {**shared, **values})


def as_qwen3_embedding(folder: Path, kind: str = "qwen3", **config: Any) -> Path:
    """Causal, last token, a token at the end of each text that pads too, padded on the left."""
    ends = {"pad_token_id": None, "bos_token_id": 3, "eos_token_id": 3}
    _model(folder, kind, template="$A [SEP]", side="left", **{**ends, **config})
    # As published: the causal class is named, and the weights are those of the base model.
    changed(folder / "config.json", architectures=[f"{kind.capitalize()}ForCausalLM"])
    changed(folder / "tokenizer_config.json", pad_token="[SEP]", eos_token="[SEP]")
    _listed(
        folder, ("", _OLD + "Transformer"), ("1_Pooling", _OLD + "Pooling"),
        ("2_Normalize", _OLD + "Normalize"),
    )  # fmt: skip
    _pooling(folder, "lasttoken")
    _settings(folder, prompts={"query": QUERY, "document": ""})
    return folder


def as_embeddinggemma(folder: Path, kind: str = "gemma3_text", **config: Any) -> Path:
    """Bidirectional, mean, two Dense modules without bias and activation, padded on the right."""
    asked = {"use_bidirectional_attention": True, "sliding_window": 8, "pad_token_id": 0}
    asked |= {"layer_types": ["sliding_attention", "full_attention"]}
    _model(folder, kind, template="[CLS] $A [SEP]", side="right", **{**asked, **config})
    _listed(
        folder, ("", _OLD + "Transformer"), ("1_Pooling", _OLD + "Pooling"),
        ("2_Dense", _OLD + "Dense"), ("3_Dense", _OLD + "Dense"),
        ("4_Normalize", _OLD + "Normalize"),
    )  # fmt: skip
    _pooling(folder, "mean_tokens")
    for path, n_in, n_out in (("2_Dense", D_MODEL, 64), ("3_Dense", 64, D_MODEL)):
        values = {"in_features": n_in, "out_features": n_out, "bias": False}
        identity = "torch.nn.modules.linear.Identity"
        _json(folder / path / "config.json", {**values, "activation_function": identity})
        save_file({"linear.weight": torch.randn(n_out, n_in)}, folder / path / "model.safetensors")
    _json(folder / "sentence_bert_config.json", {"max_seq_length": 100, "do_lower_case": False})
    _settings(folder, prompts=GEMMA_PROMPTS)
    return folder


def as_e5_mistral(folder: Path, kind: str = "mistral", **config: Any) -> Path:
    """Causal with a window, last token, instructions, padded on the right (as E5-Mistral does)."""
    ends = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "sliding_window": 9}
    _model(folder, kind, template="[CLS] $A [SEP]", side="right", **{**ends, **config})
    _listed(
        folder, ("", _OLD + "Transformer"), ("1_Pooling", _OLD + "Pooling"),
        ("2_Normalize", _OLD + "Normalize"),
    )  # fmt: skip
    _pooling(folder, "lasttoken")
    _json(folder / "sentence_bert_config.json", {"max_seq_length": 90, "do_lower_case": False})
    prompts = {"web_search_query": QUERY, "sts_query": "Instruct: Retrieve similar text\nQuery: "}
    _settings(folder, prompts=prompts)
    return folder


def as_sgpt(folder: Path) -> Path:
    """Causal, absolute positions, a mean that weighs later tokens more."""
    _model(folder, "gpt2", template="$A", side="right", pad_token_id=0, bos_token_id=2)
    _listed(folder, ("", _OLD + "Transformer"), ("1_Pooling", _OLD + "Pooling"))
    _pooling(folder, "weightedmean_tokens")
    _json(folder / "sentence_bert_config.json", {"max_seq_length": 75, "do_lower_case": False})
    return folder


def as_modernbert(folder: Path) -> Path:
    """Bidirectional with windows and rotation, mean, prompts (as nomic's ModernBERT has them)."""
    _model(
        folder, "modernbert", template="[CLS] $A [SEP]", side="right", num_key_value_heads=None,
        head_dim=None, local_attention=8, global_attn_every_n_layers=2, pad_token_id=0,
        cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    _listed(folder, ("", _OLD + "Transformer"), ("1_Pooling", _OLD + "Pooling"))
    _pooling(folder, "mean_tokens")
    _json(folder / "sentence_bert_config.json", {"max_seq_length": 100, "do_lower_case": False})
    _settings(folder, prompts={"query": "search_query: ", "document": "search_document: "})
    return folder


#: With the roles that CrossEncoder gives the two texts, and what a judge has to be told.
TEMPLATE = (
    "{%- for m in messages if m.role == 'system' %}{% set s = m.content %}"
    "[CLS] {{ s }} {% endfor %}the cat {% for m in messages if m.role == 'query' %}"
    "{{ m.content }}{% endfor %} and {% for m in messages if m.role == 'document' %}"
    "{{ m.content }}{% endfor %} is it\n"
)


def as_qwen3_reranker(
    folder: Path, kind: str = "qwen3", *, template: str | None = TEMPLATE, **config: Any
) -> Path:
    """Causal language model whose score is the log-odds of a token for yes and one for no."""
    ends = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    auto = AutoModelForCausalLM
    _model(folder, kind, template="$A [SEP]", side="left", auto=auto, **{**ends, **config})
    text = {"method": "forward", "method_output_name": "logits"}
    by_input = {"text": text}
    if template is not None:
        by_input["message"] = {**text, "format": "flat"}
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    _listed(
        folder, ("", _NEW + "transformer.Transformer"),
        ("1_LogitScore", "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"),
    )  # fmt: skip
    yes, no = VOCABULARY.index("big"), VOCABULARY.index("red")
    _json(folder / "1_LogitScore/config.json", {"true_token_id": yes, "false_token_id": no})
    reading = {"transformer_task": "text-generation", "modality_config": by_input}
    _json(folder / "sentence_bert_config.json", {**reading, "module_output_name": "causal_logits"})
    prompts = {"web_search": "she saw", "query": "a dog"}
    settings = {"model_type": "CrossEncoder", "prompts": prompts, "default_prompt_name": "query"}
    _settings(folder, **settings, activation_fn="torch.nn.modules.activation.Sigmoid")
    return folder


def changed(path: Path, **values: Any) -> None:
    _json(path, {**json.loads(path.read_text()), **values})
