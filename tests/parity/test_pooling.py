"""Embeddings against those of sentence-transformers, and folders that cannot be followed."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import save_file
from tiny_models import D_MODEL, OLD, by_hand, tiny_bert

import headscope
from headscope.core.errors import CheckpointError
from headscope.data.examples import Examples
from headscope.models.load.source import _FILES
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.pooling import Pooling
from headscope.models.surgery.copies import cast, random_twin
from headscope.tasks.making import make_task

TEXTS = ("the cat sat on the mat", "a dog", "he saw the big red house and she ran to it", "x")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def oracle(bert: Path) -> Callable[..., Any]:
    """Write a folder as the package does; returns the package's model of it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules as parts

    def make(folder: Path, after: Callable[[Any], Sequence[Any]], **settings: Any) -> Any:
        torch.manual_seed(1)
        start = parts.Transformer(str(bert))
        model = SentenceTransformer(modules=[start, *after(parts)], device="cpu", **settings)
        model.save(str(folder), create_model_card=False)
        return SentenceTransformer(str(folder), device="cpu")

    return make


def embedded(loaded: LoadedModel, texts: Sequence[str]) -> np.ndarray:
    """Embed texts in one padded batch."""
    rows = [loaded.tokenizer(loaded.pooling.prompt + text)["input_ids"] for text in texts]
    ids, mask = loaded.pad(rows)
    with torch.no_grad():
        return loaded.pooling.embed(loaded.forward(ids, mask), mask).numpy()


def same(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6 * abs(expected).max())


def modes(modules: Any, *names: str) -> Any:
    return modules.Pooling(D_MODEL, names if len(names) > 1 else names[0])


CASES: dict[str, Callable[[Any], Sequence[Any]]] = {
    "weighted": lambda p: [modes(p, "weightedmean")],
    "mean-sqrt": lambda p: [modes(p, "mean_sqrt_len_tokens")],
    "last": lambda p: [modes(p, "lasttoken")],
    "mean+cls+max": lambda p: [modes(p, "mean", "cls", "max")],
    "cls, dense 32x8 tanh, normalize": lambda p: [
        modes(p, "cls"),
        p.Dense(D_MODEL, 8),
        p.Normalize(),
    ],
    "cls+mean, dense 64x6 identity": lambda p: [
        modes(p, "cls", "mean"),
        p.Dense(2 * D_MODEL, 6, bias=False, activation_function=torch.nn.Identity()),
        p.Dropout(0.5),
    ],
    "mean, dense 32x32 gelu residual, dense 32x5 relu residual": lambda p: [
        modes(p, "mean"),
        p.Dense(D_MODEL, D_MODEL, activation_function=torch.nn.GELU(), use_residual=True),
        p.Dense(D_MODEL, 5, activation_function=torch.nn.ReLU(), use_residual=True),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_embeddings_are_those_of_sentence_transformers(name, oracle, tmp_path):
    expected = oracle(tmp_path, CASES[name]).encode(list(TEXTS), batch_size=2)
    loaded = headscope.load(str(tmp_path))
    assert (str(loaded.pooling), loaded.pooling.origin) == (name, "modules.json")
    same(embedded(loaded, TEXTS), expected)
    same(np.concatenate([embedded(loaded, [text]) for text in TEXTS]), expected)


def test_settings_of_encode_are_applied(oracle, tmp_path):
    """The default prompt, fewer dimensions, and lower case that the tokenizer does not make."""
    settings = {"prompts": {"q": "the big "}, "default_prompt_name": "q", "truncate_dim": 5}
    oracle(tmp_path, lambda p: [modes(p, "cls")], **settings)
    changes = (("sentence_bert_config", "do_lower_case", True), ("tokenizer", "normalizer", None))
    for name, key, value in changes:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    from sentence_transformers import SentenceTransformer

    texts = ["A Dog SAT", *TEXTS]
    expected = SentenceTransformer(str(tmp_path), device="cpu").encode(texts)
    loaded = headscope.load(str(tmp_path))
    assert str(loaded.pooling) == "cls, first 5"
    same(embedded(loaded, texts), expected)
    bare = dataclasses.replace(loaded, pooling=dataclasses.replace(loaded.pooling, prompt=""))
    assert abs(embedded(bare, texts) - expected).max() > 0.01


def test_the_older_format_of_the_pooling_config(bert, tmp_path):
    from sentence_transformers import SentenceTransformer

    folder = by_hand(bert, tmp_path / "old", ["Pooling", "Normalize"])
    keys = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")
    for switches, name in (
        (["lasttoken", "max_tokens", "cls_token"], "cls+max+last"),
        ([], "mean"),
    ):
        values = {f"pooling_mode_{key}": key in switches for key in keys}
        config = {"word_embedding_dimension": D_MODEL, **values}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
        loaded = headscope.load(str(folder))
        assert str(loaded.pooling) == f"{name}, normalize"
        expected = SentenceTransformer(str(folder), device="cpu").encode(list(TEXTS))
        same(embedded(loaded, TEXTS), expected)


def test_copies_of_a_model_embed_as_it_does_and_an_option_replaces_its_way(bert, tmp_path):
    folder = str(by_hand(bert, tmp_path / "m", ["Pooling"]))
    loaded = headscope.load(folder)
    pruned = headscope.remove_heads(loaded, [(0, 1)])
    for copy in (loaded.only("encoder"), pruned, cast(loaded, "float64"), random_twin(loaded, 0)):
        assert copy.pooling is loaded.pooling
    assert headscope.load(str(bert)).pooling == Pooling()
    with pytest.raises(headscope.HeadscopeError, match=r"no pooling 'sum'; choose mean, cls, max"):
        headscope.load(folder, pooling="sum")


def test_tasks_measure_the_embedding_of_the_model(bert, tmp_path):
    """Cosines of a CLS model's pairs are those of its first states, not of means."""
    loaded = headscope.load(str(by_hand(bert, tmp_path / "m", ["Pooling"])))
    pairs = Examples("pairs", "", first=TEXTS[:3], second=TEXTS[1:], scores=(1.0, 2.0, 5.0))
    task = make_task("similarity", pairs, loaded)
    similarity = task.outputs(loaded)["similarity"]
    with torch.no_grad():
        ids = [loaded.tokenizer(text)["input_ids"] for text in TEXTS]
        first = [loaded.forward(*loaded.pad([row]))[0, 0] for row in ids]
    expected = [float(torch.cosine_similarity(first[i], first[i + 1], dim=0)) for i in range(3)]
    np.testing.assert_allclose(similarity, expected, atol=1e-6)
    means = make_task("similarity", pairs, loaded.pooled_by("mean")).outputs(loaded)["similarity"]
    assert abs(similarity - means).max() > 1e-3


def test_notes_say_what_is_read_otherwise(bert, tmp_path):
    folder = by_hand(bert, tmp_path / "m", ["Pooling"])
    _write(folder, _READING, '{"max_seq_length": 9}')
    _write(folder, _SETTINGS, '{"prompts": {"q": "a dog "}, "default_prompt_name": "q"}')
    loaded = headscope.load(str(folder))
    task = make_task("fidelity", Examples("texts", "", first=TEXTS), loaded)
    prompt, longer = task.notes
    assert "'a dog '" in prompt
    assert longer.startswith("2 of 4 texts are longer than the 9 tokens")
    assert [len(row) for row in task.rows] == [10, 6, 15, 5]


def _module(folder: Path, index: int, **values: str) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[index].update(values)
    (folder / "modules.json").write_text(json.dumps(modules))


def _dense(
    folder: Path, out: int = 4, wide: int = D_MODEL, weights: Any = None, **values: Any
) -> None:
    config = {"in_features": wide, "out_features": out, "bias": False, **values}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(config))
    if weights is not None:
        save_file({"linear.weight": weights}, folder / _WEIGHTS)


def _pickled(folder: Path) -> None:
    _dense(folder)
    torch.save({"linear.weight": torch.ones(4, D_MODEL)}, folder / "2_Dense/pytorch_model.bin")


def _write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)


_SETTINGS = "config_sentence_transformers.json"
_READING = "sentence_bert_config.json"
_WEIGHTS = "2_Dense/model.safetensors"


def _prompt(folder: Path, name: str) -> None:
    if (folder / "2_Dense").is_dir():
        _dense(folder, weights=torch.zeros(4, D_MODEL))
    _write(folder, _SETTINGS, json.dumps({"prompts": {"q": "a "}, "default_prompt_name": name}))


_POOLED = '{"modality_config": {"text": {"method_output_name": "pooler_output"}}}'
#: How a folder with Transformer, Pooling and Dense is broken, and what the sentence says.
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "deep": (lambda f: _write(f, "modules.json", "[" * 100_000), "not known"),
    "no transformer": (lambda f: _module(f, 0, type=OLD + "BoW"), "starts with BoW"),
    "drive": (lambda f: _module(f, 1, path="C:\\x"), "outside of the folder"),
    "mode": (lambda f: _write(f, "1_Pooling/config.json", '{"pooling_mode": "sum"}'), "mode sum"),
    "size": (lambda f: _write(f, "1_Pooling/config.json", '{"embedding_dimension": 7}'), "size 7"),
    "no weights": (_dense, "no weights"),
    "activation": (lambda f: _dense(f, activation_function="os.system"), "activation os.system"),
    "wide": (lambda f: _dense(f, wide=9, weights=torch.zeros(4, 9)), "takes 9"),
    "NaN": (lambda f: _dense(f, weights=torch.full((4, D_MODEL), torch.nan)), "finite"),
    "damaged": (lambda f: (_dense(f), _write(f, _WEIGHTS, "x")), "damaged"),
    "output": (lambda f: _write(f, _READING, _POOLED), "pools pooler_output"),
    "prompt": (lambda f: _prompt(f, "x"), "no prompt x"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_followed_is_refused_in_time(case, bert, tmp_path):
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


def test_commands_refuse_it_and_take_another(bert, tmp_path):
    loaded = headscope.load(str(by_hand(bert, tmp_path / "m", ["Pooling", "CNN"])))
    few: dict[str, Any] = {"length": 8, "sequences": 4}
    for command, options in (
        (headscope.spectrum, {**few, "efficient": True}),
        (headscope.rank, {"share_projections": [4]}),
        (headscope.insights, {}),
        (headscope.report, {}),
        (headscope.prune, {}),
    ):
        with pytest.raises(CheckpointError, match=r"CNN \(2_CNN\)"):
            command(loaded, **options)
    assert headscope.spectrum(loaded, **few).sequences == 4


@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken"])
def test_a_prompt_that_is_not_pooled(mode, oracle, tmp_path):
    """Its tokens are read and left out, as SentenceTransformer does."""
    settings = {"prompts": {"q": "the big red "}, "default_prompt_name": "q"}
    make = lambda p: [p.Pooling(D_MODEL, mode, include_prompt=False)]  # noqa: E731
    expected = oracle(tmp_path, make, **settings).encode(list(TEXTS))
    loaded = headscope.load(str(tmp_path))
    assert loaded.pooling.skipped == 4
    same(embedded(loaded, TEXTS), expected)
    included = dataclasses.replace(loaded, pooling=dataclasses.replace(loaded.pooling, skipped=0))
    assert (abs(embedded(included, TEXTS) - expected).max() > 0.01) == (mode != "lasttoken")


def test_prompts_pickled_weights_and_cross_encoders(bert, tmp_path):
    """A prompt that a weighted mean leaves out is refused; of pickles, tensors are read."""
    folder = by_hand(bert, tmp_path / "prompt", ["Pooling"])
    _prompt(folder, "q")
    values = '{"pooling_mode": "weightedmean", "include_prompt": false}'
    _write(folder, "1_Pooling/config.json", values)
    assert "include_prompt" in str(headscope.load(str(folder)).pooling.problem)
    folder = by_hand(bert, tmp_path / "pickle", ["Pooling", "Dense"])
    _pickled(folder)
    pooling = headscope.load(str(folder)).pooling
    assert str(pooling) == "cls, dense 32x4 tanh"
    # A cross-encoder says nothing about embeddings.
    folder = by_hand(bert, tmp_path / "cross", [])
    assert headscope.load(str(folder)).pooling == Pooling()
    _write(folder, _SETTINGS, '{"model_type": "CrossEncoder"}')
    assert headscope.load(str(folder)).pooling == Pooling()


def test_a_download_takes_the_modules_and_nothing_large_besides():
    needed = [
        "modules.json",
        "config_sentence_transformers.json",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
    ]
    not_needed = [
        "onnx/model.onnx",
        "2_Dense/pytorch_model.bin",
        "openvino/model.bin",
        "tf_model.h5",
    ]
    assert list(filter_repo_objects([*needed, *not_needed], allow_patterns=_FILES)) == needed
