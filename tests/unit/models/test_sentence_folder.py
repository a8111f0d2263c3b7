"""Folders of sentence-transformers that are not what they should be: one sentence, when needed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import save_file
from tiny_models import tiny_bert
from tiny_sentence_folders import D_MODEL, OLD, by_hand

import headscope
from headscope.errors import CheckpointError
from headscope.models.pooling import Pooling
from headscope.models.source import _FILES


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("bert"))


def _module(folder: Path, place: int, **values: str) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[place].update(values)
    (folder / "modules.json").write_text(json.dumps(modules))


def _dense(
    folder: Path, out: int = 4, wide: int = D_MODEL, weights: Any = None, **values: Any
) -> None:
    config = {"in_features": wide, "out_features": out, "bias": False, **values}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(config))
    if weights is not None:
        save_file({"linear.weight": weights}, folder / "2_Dense" / "model.safetensors")


def _linked(folder: Path) -> None:
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "config.json").write_text('{"pooling_mode": "cls"}')
    shutil.rmtree(folder / "1_Pooling")
    (folder / "1_Pooling").symlink_to(outside)


def _pickled(folder: Path) -> None:
    _dense(folder)
    torch.save({"linear.weight": torch.zeros(4, D_MODEL)}, folder / "2_Dense/pytorch_model.bin")


def _damaged(folder: Path) -> None:
    _dense(folder)
    _write(folder, "2_Dense/model.safetensors", "x")


def _write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)


_SETTINGS, _READING = "config_sentence_transformers.json", "sentence_bert_config.json"


def _prompt(folder: Path, name: str) -> None:
    if (folder / "2_Dense").is_dir():
        _dense(folder, weights=torch.zeros(4, D_MODEL))
    _write(folder, _SETTINGS, json.dumps({"prompts": {"q": "a "}, "default_prompt_name": name}))


_POOLED = '{"modality_config": {"text": {"method_output_name": "pooler_output"}}}'
#: How a folder with Transformer, Pooling and Dense is broken, and what the sentence says.
BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "no json": (lambda f: _write(f, "modules.json", "["), "not valid JSON"),
    "deep": (lambda f: _write(f, "modules.json", "[" * 100_000), "not known"),
    "no list": (lambda f: _write(f, "modules.json", "{}"), "lists no modules"),
    "no type": (lambda f: _write(f, "modules.json", "[{}]"), "without type and path"),
    "own code": (lambda f: _module(f, 0, type="modeling.Net"), "code of its own (modeling.Net)"),
    "no transformer": (lambda f: _module(f, 0, type=OLD + "BoW"), "starts with BoW"),
    "unknown module": (lambda f: _module(f, 2, type=OLD + "LayerNorm"), "LayerNorm (2_Dense)"),
    "no pooling": (lambda f: _module(f, 1, type=OLD + "WordWeights"), "WordWeights (1_Pooling)"),
    "up": (lambda f: _module(f, 1, path="../outside"), "outside of the folder"),
    "absolute": (lambda f: _module(f, 1, path="/etc"), "outside of the folder"),
    "drive": (lambda f: _module(f, 1, path="C:\\x"), "outside of the folder"),
    "link": (_linked, "leads out of the model's folder"),
    "elsewhere": (lambda f: _module(f, 0, path="0_Transformer"), "not beside it"),
    "missing": (lambda f: _module(f, 1, path="9_Pooling"), "is not there"),
    "mode": (lambda f: _write(f, "1_Pooling/config.json", '{"pooling_mode": "sum"}'), "mode sum"),
    "modes": (lambda f: _write(f, "1_Pooling/config.json", '{"pooling_mode": [1]}'), "mode [1]"),
    "size": (lambda f: _write(f, "1_Pooling/config.json", '{"embedding_dimension": 7}'), "size 7"),
    "no weights": (_dense, "no weights"),
    "pickle": (_pickled, "pickled"),
    "activation": (lambda f: _dense(f, activation_function="os.system"), "activation os.system"),
    "input": (lambda f: _dense(f, module_input_name="token_embeddings"), "token_embeddings"),
    "wide": (lambda f: _dense(f, wide=9, weights=torch.zeros(4, 9)), "takes 9"),
    "shape": (lambda f: _dense(f, weights=torch.zeros(3, D_MODEL)), "(3, 32)"),
    "NaN": (lambda f: _dense(f, weights=torch.full((4, D_MODEL), torch.nan)), "finite"),
    "damaged": (_damaged, "damaged"),
    "output": (lambda f: _write(f, _READING, _POOLED), "pools pooler_output"),
    "prompt": (lambda f: _prompt(f, "x"), "no prompt x"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_followed_is_refused_in_time(case: str, bert: Path, tmp_path: Path) -> None:
    folder = by_hand(bert, tmp_path / "m", ["Pooling", "Dense"])
    breaks, said = BROKEN[case]
    breaks(folder)
    loaded = headscope.load(str(folder))  # measuring attention needs no embedding
    assert str(loaded.pooling) == "unknown"
    with pytest.raises(CheckpointError) as refused:
        loaded.pooling.check()
    message = str(refused.value)
    assert said in message
    assert message.endswith("Give pooling (such as mean) to compare pooled last states instead.")


def test_commands_refuse_it_and_take_another(bert: Path, tmp_path: Path) -> None:
    loaded = headscope.load(str(by_hand(bert, tmp_path / "m", ["Pooling", "LayerNorm"])))
    for command in (headscope.measure, headscope.scores):
        with pytest.raises(CheckpointError, match=r"LayerNorm \(2_LayerNorm\)"):
            command(loaded, limit=4)
    for measure in (
        lambda: headscope.spectrum(loaded, length=8, sequences=4, efficient=True),
        lambda: headscope.rank(loaded, share_projections=[4]),
        lambda: headscope.insights(loaded),
        lambda: headscope.report(loaded),
        lambda: headscope.prune(loaded),
    ):
        with pytest.raises(CheckpointError, match="LayerNorm"):
            measure()
    assert headscope.measure(loaded, limit=4, pooling="mean").value == pytest.approx(1.0)
    assert headscope.spectrum(loaded, length=8, sequences=4).sequences == 4


def test_a_prompt_that_pooling_leaves_out_is_refused(bert: Path, tmp_path: Path) -> None:
    folder = by_hand(bert, tmp_path / "m", ["Pooling"])
    _prompt(folder, "q")
    _write(folder, "1_Pooling/config.json", '{"pooling_mode": "cls", "include_prompt": false}')
    assert "include_prompt" in str(headscope.load(str(folder)).pooling.problem)


def test_pickled_weights_are_read_for_who_trusts_them(bert: Path, tmp_path: Path) -> None:
    folder = by_hand(bert, tmp_path / "m", ["Pooling", "Dense"])
    _pickled(folder)
    pooling = headscope.load(str(folder), allow_pickle=True).pooling
    assert str(pooling) == "cls, dense 32x4 tanh"
    assert "2_Dense/pytorch_model.bin" in pooling.files


def test_a_cross_encoder_says_nothing_about_embeddings(bert: Path, tmp_path: Path) -> None:
    folder = by_hand(bert, tmp_path / "m", [])
    assert headscope.load(str(folder)).pooling == Pooling()
    _write(folder, _SETTINGS, '{"model_type": "CrossEncoder"}')
    assert headscope.load(str(folder)).pooling == Pooling()


def test_a_snapshot_of_the_hubs_cache_is_read_through_its_links(bert: Path, tmp_path: Path) -> None:
    """Files of a snapshot are links to blobs beside it; its folders are real."""
    source = by_hand(bert, tmp_path / "m", ["Pooling"])
    repo = tmp_path / "models--org--name"
    snapshot = repo / "snapshots" / ("0" * 40)
    (repo / "blobs").mkdir(parents=True)
    for i, file in enumerate(sorted(path for path in source.rglob("*") if path.is_file())):
        blob, link = repo / "blobs" / str(i), snapshot / file.relative_to(source)
        blob.write_bytes(file.read_bytes())
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    assert str(headscope.load(str(snapshot)).pooling) == "cls"


def test_a_download_takes_the_modules_and_nothing_large_besides() -> None:
    wanted = [
        *("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"),
        *("1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"),
    ]
    others = ["onnx/model.onnx", "2_Dense/pytorch_model.bin", "openvino/model.bin", "tf_model.h5"]
    assert list(filter_repo_objects([*wanted, *others], allow_patterns=_FILES)) == wanted
