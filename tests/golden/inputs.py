"""What the cases read: tiny models with numpy's random weights, and small texts."""

import random
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import VOCABULARY, WORDS, framed_tokenizer, tiny_tokenizer
from transformers.utils.logging import disable_progress_bar

#: Folders of real models below ../shared/models, by the name that they have here.
SHARED = {"sst2": "minilm-sst2", "transliteration": "ar-en-transliteration"}
_HERE = Path(__file__).parent


def write_inputs(folder: Path, shared: Path) -> None:
    """Write the tiny models and all files; link to what is shared."""
    disable_progress_bar()
    shutil.copytree(_HERE / "files", folder)
    for name, sizes in tomllib.loads((_HERE / "models.toml").read_text("utf-8")).items():
        _write_model(folder / sizes.pop("folder"), getattr(transformers, name), sizes)
    for name in ("damaged", "pickled", "nan"):  # models that are refused
        shutil.copytree(folder / "bert", folder / name)
    weights = folder / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    tensors = load_file(folder / "bert" / "model.safetensors")
    (folder / "pickled" / "model.safetensors").unlink()
    torch.save(tensors, folder / "pickled" / "pytorch_model.bin")
    next(iter(tensors.values())).view(-1)[0] = float("nan")
    save_file(tensors, folder / "nan" / "model.safetensors", metadata={"format": "pt"})
    rng = random.Random(3)
    for name, lines in _texts(rng):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    if shared.is_dir():
        (folder / "shared").symlink_to(shared / "data")
        for name, real in SHARED.items():
            (folder / name).symlink_to(shared / "models" / real)


def _write_model(folder: Path, build: Any, sizes: dict[str, int]) -> None:
    """Write a model whose weights are the same on every machine: torch's depend on its vectors."""
    network = build(build.config_class(vocab_size=len(VOCABULARY), pad_token_id=0, **sizes))
    rng = np.random.default_rng(7)
    for name, parameter in sorted(network.named_parameters()):
        drawn = torch.from_numpy(rng.standard_normal(parameter.shape))
        norm = parameter.dim() == 1 and name.endswith("weight")
        parameter.data = (1 + 0.1 * drawn if norm else 0.3 * drawn).to(torch.float32)
    network.tie_weights()
    network.save_pretrained(folder)
    bert = "hidden_size" in sizes
    (tiny_tokenizer() if bert else framed_tokenizer("$A [SEP]")).save_pretrained(folder)


def _texts(rng: random.Random) -> Iterator[tuple[str, list[str]]]:
    words = [word for word in WORDS if not word.startswith("##")]
    lines = _lines(words, rng)
    other_lines = _lines(words, rng)
    targets = _lines(words, rng)
    other_targets = _lines(words, rng)
    yield "lines.txt", lines
    yield "others.txt", other_lines
    yield "labels.tsv", ["sentence\tlabel", *map(_labelled, lines)]
    yield "more.tsv", ["sentence\tlabel", *map(_labelled, other_lines)]
    yield "pairs.tsv", [f"{a}\t{b}" for a, b in zip(lines, targets, strict=True)]
    yield "other-pairs.tsv", [f"{a}\t{b}" for a, b in zip(other_lines, other_targets, strict=True)]
    yield "counts.tsv", [f"{word}\t{1000 - 30 * i}" for i, word in enumerate(words)]
    yield "trees.conllu", [_tree(rng) for _ in range(80)]


def _lines(words: list[str], rng: random.Random) -> list[str]:
    return [" ".join(rng.choices(words, k=rng.randint(3, 14))) for _ in range(60)]


def _labelled(text: str) -> str:
    """Label a text by whether it speaks of an animal."""
    label = int("cat" in text or "dog" in text)
    return f"{text}\t{label}"


def _tree(rng: random.Random) -> str:
    """Make "the (big) cat saw a (red) dog" with its heads."""
    adjectives = [rng.choice(["", "big", "red"]) for _ in range(2)]
    verb = 4 if adjectives[0] else 3
    rows: list[tuple[str, int, str]] = []
    for adjective, relation in zip(adjectives, ("nsubj", "obj"), strict=True):
        noun = len(rows) + (3 if adjective else 2)
        rows.append((rng.choice(["the", "a"]), noun, "det"))
        if adjective:
            rows.append((adjective, noun, "amod"))
        rows.append((rng.choice(["cat", "dog", "mat", "house"]), verb, relation))
        if relation == "nsubj":
            rows.append((rng.choice(["saw", "ran"]), 0, "root"))
    cells = [
        [i, form, *"____", head, relation, *"__"]
        for i, (form, head, relation) in enumerate(rows, 1)
    ]
    return "\n".join("\t".join(map(str, row)) for row in cells) + "\n"
