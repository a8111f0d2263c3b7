"""Folders of one model as the hub, older tools and their users leave it: a tiny BERT's files.

Each layout is a function that changes a copy of the folder, which is laid out as the hub has
all-MiniLM-L6-v2; files that it leaves alone are hard links. :data:`SAME` are read with the plain
folder's numbers, :data:`REFUSED` with one sentence.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny_models import D_MODEL, OLD, VOCABULARY, tiny_bert
from torch import Tensor

PIECES = len(VOCABULARY)
LAYERS = 2
NEW = "sentence_transformers.sentence_transformer.modules."
WEIGHTS = "model.safetensors"
PICKLE = "pytorch_model.bin"
CONFIG = "config.json"
SETTINGS = "config_sentence_transformers.json"
READING = "sentence_bert_config.json"
Change = Callable[[Path], object]
Tensors = dict[str, Tensor]


@functools.cache
def source() -> Path:
    """Write the model once, in the words of sentence-transformers 2 and transformers 4."""
    parent = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    folder = tiny_bert(Path(parent, "model"), layers=LAYERS)
    held = load_file(folder / WEIGHTS) | {"embeddings.position_ids": torch.arange(64)[None]}
    store(folder, held)
    edit(folder, CONFIG, _name_or_path="org/base", transformers_version="4.8.2", dtype=None)
    names = ("unk", "sep", "pad", "cls", "mask")
    special = {f"{name}_token": f"[{name.upper()}]" for name in names}
    write(folder, "special_tokens_map.json", special)
    stated = {"do_lower_case": True, "tokenizer_class": "BertTokenizer", "model_max_length": 64}
    write(folder, "tokenizer_config.json", {**special, **stated})
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    module_folders = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    modules(*((OLD + kind, path) for kind, path in module_folders))(folder)
    (folder / "1_Pooling").mkdir()
    modes = dict.fromkeys(("cls_token", "max_tokens", "mean_sqrt_len_tokens"), False)
    pooling = {f"pooling_mode_{mode}": on for mode, on in {**modes, "mean_tokens": True}.items()}
    write(folder, "1_Pooling/config.json", {"word_embedding_dimension": D_MODEL, **pooling})
    write(folder, SETTINGS, {"__version__": {"sentence_transformers": "2.0.0"}})
    write(folder, READING, {"max_seq_length": 32, "do_lower_case": False})
    return folder


@functools.cache
def weights() -> Tensors:
    """The model's weights as its file has them."""
    return load_file(source() / WEIGHTS)


def plain(folder: Path) -> Path:
    """Lay the model's files out in a new folder."""
    shutil.copytree(source(), folder, copy_function=_link)
    return folder


def bare(folder: Path) -> None:
    """Leave the transformer alone: without a word of sentence-transformers."""
    for name in ("modules.json", SETTINGS, READING):
        (folder / name).unlink()
    shutil.rmtree(folder / "1_Pooling")


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copyfile(source, target)


def write(folder: Path, name: str, values: object) -> None:
    """Put a new file into the place of a link."""
    (folder / name).unlink(missing_ok=True)
    (folder / name).write_text(json.dumps(values))


def edit(folder: Path, name: str, **values: Any) -> None:
    """Change some values of a JSON file; None takes one out."""
    old = json.loads((folder / name).read_text()) if (folder / name).is_file() else {}
    new = {key: value for key, value in {**old, **values}.items() if value is not None}
    write(folder, name, new)


def config(**values: Any) -> Change:
    return lambda folder: edit(folder, CONFIG, **values)


def store(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Put other weights into the place of the linked ones."""
    (folder / WEIGHTS).unlink(missing_ok=True)
    held = {name: tensor.clone() for name, tensor in tensors.items()}
    save_file(held, folder / WEIGHTS, metadata={"format": "pt"})


def tensors(change: Callable[[Tensors], Tensors], **values: Any) -> Change:
    """Store what ``change`` makes of the weights, and change config.json."""

    def made(folder: Path) -> None:
        store(folder, change(weights()))
        edit(folder, CONFIG, **values)

    return made


def prefixed(prefix: str, *, more: Tensors | None = None) -> Callable[[Tensors], Tensors]:
    return lambda t: {prefix + key: value for key, value in t.items()} | (more or {})


def old_names(t: Tensors) -> Tensors:
    """As TensorFlow called the factor and the summand of LayerNorm."""
    names = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
    return {functools.reduce(lambda k, n: k.replace(*n), names, key): t[key] for key in t}


def stored_as(dtype: torch.dtype) -> Callable[[Tensors], Tensors]:
    return lambda t: {k: v.to(dtype) if v.is_floating_point() else v for k, v in t.items()}


def without(*substrings: str) -> Callable[[Tensors], Tensors]:
    return lambda t: {
        k: v for k, v in t.items() if not any(substring in k for substring in substrings)
    }


def head_of_mlm(leave_out: str = "-") -> Tensors:
    """A random head of BertForMaskedLM, or of BertForPreTraining, with one sentence's relation."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return 0.02 * torch.randn(*shape, generator=generator)

    head = {
        "cls.predictions.bias": drawn(PIECES),
        "cls.predictions.transform.dense.weight": drawn(D_MODEL, D_MODEL),
        "cls.predictions.transform.dense.bias": drawn(D_MODEL),
        "cls.predictions.transform.LayerNorm.weight": torch.ones(D_MODEL),
        "cls.predictions.transform.LayerNorm.bias": drawn(D_MODEL),
        "cls.seq_relationship.weight": drawn(2, D_MODEL),
        "cls.seq_relationship.bias": drawn(2),
    }
    return {name: tensor for name, tensor in head.items() if leave_out not in name}


def classifier(labels: int) -> Tensors:
    generator = torch.Generator().manual_seed(0)
    weight = 0.05 * torch.randn(labels, D_MODEL, generator=generator)
    return {"classifier.weight": weight, "classifier.bias": torch.zeros(labels)}


def sharded(folder: Path) -> None:
    held = weights()
    where = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(held)}
    for file in set(where.values()):
        shard = {name: tensor for name, tensor in held.items() if where[name] == file}
        save_file(shard, folder / file, metadata={"format": "pt"})
    write(folder, f"{WEIGHTS}.index.json", {"metadata": {}, "weight_map": where})
    (folder / WEIGHTS).unlink()


def pickled(folder: Path) -> None:
    torch.save(weights(), folder / PICKLE)
    (folder / WEIGHTS).unlink()


def pickled_in_parts(folder: Path) -> None:
    held = weights()
    where = {name: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, name in enumerate(held)}
    for file in set(where.values()):
        torch.save({n: t for n, t in held.items() if where[n] == file}, folder / file)
    write(folder, f"{PICKLE}.index.json", {"metadata": {}, "weight_map": where})
    (folder / WEIGHTS).unlink()


def stray(*names: str) -> Change:
    """Put weights that are all zero beside the model's."""
    zeros = {name: torch.zeros_like(tensor) for name, tensor in weights().items()}

    def made(folder: Path) -> None:
        for name in names:
            if name.endswith(".bin"):
                torch.save(zeros, folder / name)
            else:
                save_file(zeros, folder / name, metadata={"format": "pt"})

    return made


def renamed(old: str, new: str) -> Change:
    return lambda folder: (folder / old).rename(folder / new)


def of_another_shard(folder: Path) -> None:
    """A shard of another version of the model: it holds a tensor that the index does not name."""
    sharded(folder)
    file = folder / "model-00001-of-00002.safetensors"
    save_file({**load_file(file), "other": torch.ones(2)}, file, metadata={"format": "pt"})


def only_words(folder: Path) -> None:
    """The vocabulary alone, as before there were fast tokenizers."""
    (folder / "tokenizer.json").unlink()
    (folder / "special_tokens_map.json").unlink()
    write(folder, "tokenizer_config.json", {"do_lower_case": True})


def left_over(folder: Path) -> None:
    """Files of other frameworks beside the weights, each of them useless."""
    (folder / "onnx").mkdir()
    for name in (PICKLE, "tf_model.h5", "flax_model.msgpack", "rust_model.ot", "onnx/model.onnx"):
        (folder / name).write_bytes(b"not read")


def file_links(folder: Path) -> None:
    """Every file a link to one elsewhere, as a user makes them to save space."""
    elsewhere = folder.parent / f"{folder.name}-elsewhere"
    folder.rename(elsewhere)
    for file in sorted(path for path in elsewhere.rglob("*") if path.is_file()):
        link = folder / file.relative_to(elsewhere)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)


def folder_link(folder: Path) -> None:
    elsewhere = folder.parent / f"{folder.name}-elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)


def inner_folder_links(folder: Path) -> None:
    """The folder of a module is a link."""
    elsewhere = folder.parent / f"{folder.name}-pooling"
    (folder / "1_Pooling").rename(elsewhere)
    (folder / "1_Pooling").symlink_to(elsewhere)


def hub_cache(home: Path) -> Path:
    """Write the cache of the hub with the model of the id ``org/demo``; returns its snapshot."""
    repo = home / "models--org--demo"
    commit = "0123456789" * 4
    snapshot = repo / "snapshots" / commit
    (repo / "blobs").mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    for i, file in enumerate(sorted(p for p in source().rglob("*") if p.is_file())):
        link = snapshot / file.relative_to(source())
        link.parent.mkdir(parents=True, exist_ok=True)
        _link(str(file), str(repo / "blobs" / f"{i:040}"))
        link.symlink_to(os.path.relpath(repo / "blobs" / f"{i:040}", link.parent))
    return snapshot


def modules(*kinds: tuple[str, str]) -> Change:
    """List modules by their classes and folders."""

    def made(folder: Path) -> None:
        listed = [
            {"idx": i, "name": str(i), "path": path, "type": kind}
            for i, (kind, path) in enumerate(kinds)
        ]
        write(folder, "modules.json", listed)

    return made


def in_a_subfolder(folder: Path) -> None:
    """As sentence-transformers before version 2 wrote it: the transformer in 0_Transformer."""
    inside = folder / "0_Transformer"
    inside.mkdir()
    moved = ("config.json", WEIGHTS, "tokenizer", "vocab.txt", "special_tokens", READING)
    for file in list(folder.iterdir()):
        if file.name.startswith(moved):
            file.rename(inside / file.name)
    (folder / SETTINGS).unlink()
    modules((OLD + "Transformer", "0_Transformer"), (OLD + "Pooling", "1_Pooling"))(folder)


def of_version_6(folder: Path) -> None:
    """As sentence-transformers 6 writes a folder."""
    modules(
        ("sentence_transformers.base.modules.transformer.Transformer", ""),
        (NEW + "pooling.Pooling", "1_Pooling"),
        ("sentence_transformers.base.modules.normalize.Normalize", "2_Normalize"),
    )(folder)
    (folder / "2_Normalize").mkdir()
    write(folder, "2_Normalize/config.json", {"module_input_name": "sentence_embedding"})
    write(
        folder,
        "1_Pooling/config.json",
        {"embedding_dimension": D_MODEL, "pooling_mode": "mean", "include_prompt": True},
    )
    reading: dict[str, Any] = {"transformer_task": "feature-extraction"}
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    reading |= {"modality_config": {"text": text}, "module_output_name": "token_embeddings"}
    write(folder, READING, reading)
    prompts = {"query": "", "document": ""}
    values = {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    write(folder, SETTINGS, {**values, "model_type": "SentenceTransformer"})


def module_of_weights(folder: Path, path: str, held: Tensors, **values: Any) -> None:
    """Write a module with weights of its own."""
    (folder / path).mkdir()
    save_file(held, folder / path / WEIGHTS)
    write(folder, f"{path}/config.json", values)


def with_dense(folder: Path) -> None:
    """A map that changes nothing."""
    pooled = ((OLD + "Transformer", ""), (OLD + "Pooling", "1_Pooling"))
    modules(*pooled, (OLD + "Dense", "2_Dense"), (OLD + "Normalize", "3_Normalize"))(folder)
    values = {"in_features": D_MODEL, "out_features": D_MODEL, "bias": False}
    values["activation_function"] = "torch.nn.modules.linear.Identity"
    module_of_weights(folder, "2_Dense", {"linear.weight": torch.eye(D_MODEL)}, **values)


def with_norm(folder: Path) -> None:
    pooled = ((OLD + "Transformer", ""), (OLD + "Pooling", "1_Pooling"))
    modules(*pooled, (OLD + "LayerNorm", "2_LayerNorm"))(folder)
    held = {"norm.weight": torch.linspace(0.5, 2, D_MODEL), "norm.bias": torch.ones(D_MODEL)}
    module_of_weights(folder, "2_LayerNorm", held, dimension=D_MODEL)


def cross_encoder(**values: Any) -> Change:
    """A reranker with one label, as sentence-transformers saves it."""

    def made(folder: Path) -> None:
        bare(folder)
        store(folder, prefixed("bert.", more=classifier(1))(weights()))
        labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
        edit(folder, CONFIG, architectures=["BertForSequenceClassification"], **labels, **values)

    return made


#: Rows up to a piece that some words have; no word has one behind it.
ROWS = VOCABULARY.index("##z")


def too_few_rows(folder: Path) -> None:
    """The tokenizer has a token that the embedding has no row for."""
    name = "embeddings.word_embeddings.weight"
    tensors(lambda t: {**t, name: t[name][:ROWS]}, vocab_size=ROWS)(folder)


def adapter(folder: Path) -> None:
    """LoRA weights beside nothing, as PEFT saves them."""
    for name in (WEIGHTS, CONFIG):
        (folder / name).unlink()
    save_file(
        {"base_model.model.x.lora_A.weight": torch.ones(2, 4)}, folder / "adapter_model.safetensors"
    )
    write(
        folder, "adapter_config.json", {"base_model_name_or_path": "org/base", "peft_type": "LORA"}
    )


@dataclass(frozen=True)
class Layout:
    """A folder that is read, and what is seen of it besides the plain folder's numbers."""

    change: Change
    pooling: str = "mean, normalize"
    head: str | None = None
    rounded: torch.dtype | None = None  # the plain folder's weights are rounded to this type first
    compared: bool = False  # with what sentence-transformers makes of it
    says: tuple[str, ...] = ()
    remarks: int = 0


def both(*changes: Change) -> Change:
    return lambda folder: [change(folder) for change in changes]


MLM = {"architectures": ["BertForMaskedLM"]}
_PROMPTS = {"query": "query: ", "passage": "passage: "}
#: Layouts with the numbers of the plain folder.
SAME: dict[str, Layout] = {
    "headless ForMaskedLM": Layout(config(**MLM)),
    "half a head": Layout(
        tensors(prefixed("bert.", more=head_of_mlm("transform")), **MLM),
        says=("weights lack cls.predictions.transform",),
        remarks=1,
    ),
    "keys with bert.": Layout(tensors(prefixed("bert.")), compared=True),
    "gamma and beta": Layout(tensors(lambda t: prefixed("bert.")(old_names(t)))),
    "sharded": Layout(sharded),
    "float16": Layout(
        tensors(stored_as(torch.float16), torch_dtype="float16"), rounded=torch.float16
    ),
    "pytorch_model.bin": Layout(pickled, says=("pickled (pytorch_model.bin)",), remarks=1),
    "pytorch_model.bin in parts": Layout(pickled_in_parts, remarks=1),
    "other pickles beside": Layout(
        both(
            pickled,
            stray("pytorch_model_old.bin", "pytorch_model-00001-of-00002.bin", "optimizer.bin"),
        ),
        remarks=1,
    ),
    "other pickles beside those of an index": Layout(
        both(pickled_in_parts, stray("pytorch_model_old.bin", "pytorch_model-00003-of-00003.bin")),
        remarks=1,
    ),
    "shards and their index beside": Layout(
        both(
            sharded,
            lambda folder: store(folder, weights()),
            stray("model-00001-of-00002.safetensors", "model.fp16.safetensors"),
        )
    ),
    "transformers_weights": Layout(
        both(
            renamed(WEIGHTS, "encoder.safetensors"),
            stray(WEIGHTS),
            config(transformers_weights="encoder.safetensors"),
        )
    ),
    "no tokenizer.json": Layout(only_words, compared=True),
    "links to files": Layout(file_links),
    "a link to the folder": Layout(folder_link),
    "a link to a module": Layout(inner_folder_links, compared=True),
    "0_Transformer": Layout(
        in_a_subfolder, pooling="mean", says=("cuts a text of this model at 32",), compared=True
    ),
    "of version 6": Layout(of_version_6, compared=True),
    "Dense and Normalize": Layout(
        with_dense, pooling="mean, dense 32x32 identity, normalize", compared=True
    ),
    "paths of Windows": Layout(
        modules(
            (OLD + "Transformer", ".\\"),
            (OLD + "Pooling", ".\\1_Pooling"),
            (OLD + "Normalize", "2_Normalize\\"),
        ),
    ),
    "prompts without a default": Layout(
        lambda folder: edit(folder, SETTINGS, prompts=_PROMPTS, similarity_fn_name="euclidean"),
        says=("A query is read after the prompt", "by euclidean"),
        compared=True,
    ),
    "shorter than its positions, lower case": Layout(
        lambda folder: write(folder, READING, {"max_seq_length": 12, "do_lower_case": True}),
        says=("at 12 tokens", "in lower case"),
        compared=True,
    ),
    "keywords of the Transformer": Layout(
        lambda folder: write(
            folder, READING, {"tokenizer_args": {"model_max_length": 20}, "model_args": {"odd": 1}}
        ),
        says=("at 20 tokens", "gives its Transformer odd"),
    ),
    "ForPreTraining": Layout(
        tensors(prefixed("bert.", more=head_of_mlm()), architectures=["BertForPreTraining"])
    ),
    "a head that config.json does not name": Layout(tensors(lambda t: t | head_of_mlm())),
    "no pooler": Layout(tensors(without("pooler", "position_ids"))),
    "files of others beside": Layout(left_over),
    "a short config.json": Layout(
        config(
            **dict.fromkeys(
                ("architectures", "transformers_version", "_name_or_path", "use_cache"), None
            )
        )
    ),
    "the transformer alone": Layout(bare, pooling="mean"),
}


def _text(name: str, text: str) -> Change:
    def made(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text(text)

    return made


def _gone(*names: str) -> Change:
    return lambda folder: [(folder / name).unlink() for name in names]


def _int8(t: Tensors) -> Tensors:
    return {k: (100 * v).to(torch.int8) if "query.weight" in k else v for k, v in t.items()}


def _static(folder: Path) -> None:
    """Embeddings of words alone, as a StaticEmbedding lies in the root."""
    (folder / CONFIG).unlink()
    modules(("sentence_transformers.models.StaticEmbedding", ""))(folder)


#: Layouts that are refused, and what the sentence says.
REFUSED: dict[str, tuple[Change, tuple[str, ...]]] = {
    "adapter": (adapter, ("adapter (PEFT", "org/base", "merge")),
    "quantization_config": (
        config(quantization_config={"quant_method": "gptq", "bits": 4}),
        ("quantised weights", "gptq", "give the checkpoint that they were made from"),
    ),
    "int8": (tensors(_int8), ("quantised weights", "query.weight is stored as I8")),
    "float8": (
        tensors(lambda t: {**t, "pooler.dense.weight": torch.ones(2).to(torch.float8_e4m3fn)}),
        ("quantised weights", "F8_E4M3"),
    ),
    "code beside a known family": (
        tensors(without("intermediate"), auto_map={"AutoModel": "modeling.Own"}),
        (f"lacks {2 * LAYERS}", "code of its own (auto_map)"),
    ),
    "of DataParallel": (tensors(prefixed("module.")), ("module.embeddings", "save_pretrained")),
    "of a wrapper": (tensors(prefixed("0.auto_model.")), ("0.auto_model.", "save_pretrained")),
    "a pickled shard is missing": (
        both(
            pickled_in_parts,
            stray(PICKLE[:-4] + "_old.bin"),
            _gone("pytorch_model-00002-of-00002.bin"),
        ),
        ("pytorch_model.bin.index.json", "not there (pytorch_model-00002-of-00002.bin)"),
    ),
    "pickled shards without an index": (
        both(pickled_in_parts, _gone("pytorch_model.bin.index.json")),
        ("no weights by a name that transformers opens", "pytorch_model-00001-of-00002.bin"),
    ),
    "a variant alone": (
        renamed(WEIGHTS, "model.fp16.safetensors"),
        ("no weights by a name that transformers opens (there is model.fp16.safetensors)",),
    ),
    "a shard of another model": (of_another_shard, ("index.json describes", "differ in other")),
    "transformers_weights elsewhere": (
        config(transformers_weights="../model.safetensors"),
        ("names '../model.safetensors' as its transformers_weights",),
    ),
    "TensorFlow alone": (both(_gone(WEIGHTS), _text("tf_model.h5", "x")), ("tf_model.h5",)),
    "a checkpoint of training": (
        lambda folder: [pickled(folder), torch.save({"model": weights()}, folder / PICKLE)],
        ("does not map names to tensors", "save_pretrained"),
    ),
    "static embeddings": (_static, ("starts with StaticEmbedding", "no attention heads")),
}
#: What config.json says of the activation after a cross-encoder's one logit, new and old.
ACTIVATIONS: tuple[dict[str, Any], ...] = (
    {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
    {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"},
)
