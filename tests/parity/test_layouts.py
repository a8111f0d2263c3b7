"""Folders as the hub, older tools and users leave them are read as the plain folder is.

Each layout of tests/layouts.py is opened once and has the plain folder's states, from
which every command starts; one goes through classify, prune and attribute. What cannot be read is
refused with one sentence.
"""

from pathlib import Path
from typing import Any

import layouts as made
import numpy as np
import pytest
import torch
from families import network, tiny
from safetensors.torch import load_file
from tiny_models import SOURCES
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

import headscope
from headscope.core.errors import CheckpointError, CorpusError, InputError
from headscope.models.certificate.certificate import validate_model
from headscope.models.run.loaded import LoadedModel
from headscope.session.opening import open_for_tasks


def opened(folder: Path | str) -> LoadedModel:
    return headscope.load(str(folder), task_head="auto")


def states(loaded: LoadedModel) -> torch.Tensor:
    """The last states of some lines, from which every command starts."""
    ids, mask = loaded.pad(loaded.tokenizer(list(SOURCES))["input_ids"])
    with torch.no_grad():
        return loaded.forward(ids, mask)[mask.bool()]


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


def attributed(loaded: LoadedModel) -> np.ndarray:
    frame = headscope.attribute(loaded, "a cat", "a dog", calibration=list(SOURCES)).to_frame()
    numbers: np.ndarray = frame[["direct", "removed", "removed_mean"]].to_numpy(float)
    return numbers


@pytest.fixture(scope="module")
def plain() -> torch.Tensor:
    return states(opened(made.source()))


@pytest.mark.parametrize("name", made.SAME)
def test_a_layout_has_the_states_of_the_plain_folder(name, plain, tmp_path):
    layout = made.SAME[name]
    folder = made.plain(tmp_path / "model")
    layout.change(folder)
    loaded = opened(folder)
    assert (loaded.task_head, str(loaded.pooling)) == (layout.head, layout.pooling)
    assert layout.remarks == len(loaded.remarks), loaded.remarks
    if layout.compared or layout.says:
        result = headscope.validate(loaded)
        assert result.passed, result.reasons
        assert {*loaded.remarks} <= {*result.provenance["warnings"]}
        assert result.embedding is not None
        said = " ".join((*loaded.remarks, *result.embedding.settings))
        for words in layout.says:
            assert words in said
    if layout.compared:
        assert result.embedding.not_compared is None
        assert result.embedding.max_abs <= 2e-6
        assert result.embedding.cut_alike
    expected = plain
    if layout.rounded is not None:
        reference = opened(made.source())
        for parameter in reference.network.parameters():
            parameter.data = parameter.data.to(layout.rounded).float()
        expected = states(reference)
    same(states(loaded), expected)


def test_commands_have_the_numbers_of_the_plain_folder(tmp_path):
    """Of one with other names in its weights, and half of a head."""
    folder = made.plain(tmp_path / "model")
    numbers_of_folders = []
    made.SAME["half a head"].change(folder)
    (tmp_path / "lines.txt").write_text("\n".join(SOURCES))
    few = {"heads": "L0H1,L1H3"}
    for loaded in map(opened, (folder, made.source())):
        heads = headscope.classify(loaded, list(SOURCES)).to_frame()
        curve = headscope.prune(loaded, data=tmp_path / "lines.txt", **few).curves[0]
        values = [point.value.value for point in curve.points]
        numbers_of_folders.append(
            (heads.select_dtypes("number").to_numpy(float), values, attributed(loaded))
        )
    for ours, plain in zip(*numbers_of_folders, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", made.REFUSED)
def test_a_layout_is_refused_with_its_mend(name, tmp_path):
    change, words = made.REFUSED[name]
    folder = made.plain(tmp_path / "model")
    change(folder)
    with pytest.raises(CheckpointError) as refused:
        opened(folder)
    said = str(refused.value)
    assert said.count(". ") <= 1
    assert "\n" not in said
    for word in (str(folder), *words):
        assert word in said


def test_a_model_of_the_hubs_cache_by_its_id_and_by_its_path(plain, tmp_path, monkeypatch):
    snapshot = made.hub_cache(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    by_id = opened("org/demo")
    assert (by_id.revision, by_id.folder) == (snapshot.name, snapshot)
    for loaded in (by_id, opened(f"{snapshot}/")):
        assert str(loaded.pooling) == "mean, normalize"
        same(states(loaded), plain)


def test_what_names_no_row_of_the_embedding_is_refused_where_a_text_has_it(plain, tmp_path):
    folder = made.plain(tmp_path / "model")
    made.too_few_rows(folder)
    loaded = opened(folder)
    n = made.ROWS
    same(states(loaded), plain)
    with pytest.raises(CorpusError, match=rf"token id {n}, but .* has {n} rows"):
        headscope.attribute(loaded, "The cat zzz.", "A dog ran.")


def test_the_heads_of_a_cross_encoder_and_its_activation(plain, tmp_path):
    """One label: the logit is compared and ranked by, whatever activation comes after it."""
    attributions = []
    for i, values in enumerate(made.ACTIVATIONS):
        folder = made.plain(tmp_path / str(i))
        made.cross_encoder(**values)(folder)
        loaded = opened(folder)
        assert (loaded.task_head, loaded.network.config.num_labels) == ("classification", 1)
        assert ("puts Sigmoid after the logits" in " ".join(loaded.remarks)) == bool(i)
        same(states(loaded), plain)
        attributions.append(attributed(loaded))
    np.testing.assert_allclose(attributions[0], attributions[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForPreTraining"])
def test_a_whole_head_is_read(head, tmp_path):
    """As bert-base-uncased stores it, whatever class config.json names."""
    folder = made.plain(tmp_path / "model")
    change = made.prefixed("bert.", more=made.head_of_mlm())
    made.tensors(lambda t: made.old_names(change(t)), architectures=[f"Bert{head}"])(folder)
    assert opened(folder).task_head == ("mlm" if head == "ForMaskedLM" else None)
    assert open_for_tasks(str(folder), task="mlm").task_head == "mlm"
    network = headscope.load(str(folder), task_head="mlm").network
    bias = made.head_of_mlm()["cls.predictions.bias"]
    assert torch.equal(network.get_output_embeddings().bias, bias)


def test_layer_norm_after_pooling_and_an_embedding_that_differs(tmp_path, monkeypatch):
    """The embedding is that of sentence-transformers; another one fails validate."""
    folder = made.plain(tmp_path / "model")
    made.with_norm(folder)
    loaded = opened(folder)
    assert str(loaded.pooling) == "mean, layer norm"
    check = headscope.validate(loaded).embedding
    assert check is not None
    assert check.max_abs is not None
    assert check.max_abs < 2e-6
    assert check.texts == 6
    object.__setattr__(loaded.pooling.steps[0], "weight", loaded.pooling.steps[0].weight + 1e-3)
    failed = headscope.validate(loaded)
    assert not failed.passed
    assert failed.reasons[0].startswith("embeddings differ from those of SentenceTransformer")
    monkeypatch.setattr("headscope.artefacts.sentence_outputs.find_spec", lambda name: None)
    without = headscope.validate(loaded)
    assert without.passed
    assert "sentence-transformers is not installed" in str(without.embedding)


AUTO = {
    "mlm": AutoModelForMaskedLM,
    "classification": AutoModelForSequenceClassification,
    "token-classification": AutoModelForTokenClassification,
    "question-answering": AutoModelForQuestionAnswering,
}
OTHERS = ("roberta", "distilbert", "albert", "electra", "mpnet", "deberta-v2, as v3", "modernbert")


def without_words(folder: Path, head: str | None = "auto") -> LoadedModel:
    return headscope.load(str(folder), need_tokenizer=False, task_head=head, device="cpu")


@pytest.mark.parametrize(
    ("family", "head"), [*(("bert", head) for head in AUTO), *((name, "mlm") for name in OTHERS)]
)
def test_a_class_without_its_head_is_a_base_model(family, head, tmp_path):
    """And with its head it has it; what is missing is named, and is of the head."""
    network = tiny(family, auto=AUTO[head])
    folder = tmp_path / "whole"
    bare = tmp_path / "bare"
    network.save_pretrained(folder)
    assert without_words(folder).task_head == head
    tiny(family).save_pretrained(bare)
    made.edit(bare, made.CONFIG, architectures=[type(network).__name__])
    loaded = without_words(bare)
    assert (loaded.task_head, loaded.network is loaded.model) == (None, True)
    with pytest.raises(InputError) as refused:
        without_words(bare, head)
    said = str(refused.value)
    assert f"config.json names {type(network).__name__}, but the weights lack " in said
    assert "checkpoint holds" not in said
    first = said.partition("weights lack ")[2].split(",")[0].split(" and ")[0].split(";")[0]
    assert first in network.state_dict()
    assert first not in load_file(bare / made.WEIGHTS)


def test_a_head_of_another_size_is_none(tmp_path):
    tiny("bert", auto=AutoModelForSequenceClassification).save_pretrained(tmp_path)
    made.edit(tmp_path, made.CONFIG, id2label={str(i): f"LABEL_{i}" for i in range(5)})
    assert without_words(tmp_path).task_head is None
    with pytest.raises(InputError, match=r"weights lack classifier\.bias and classifier\.weight"):
        without_words(tmp_path, "classification")


def test_a_base_model_whose_weights_are_missing_is_refused(tmp_path):
    tiny("bert", auto=AutoModelForMaskedLM).save_pretrained(tmp_path)
    held = load_file(tmp_path / made.WEIGHTS)
    made.store(tmp_path, made.without("layer.1.attention.self.query")(held))
    for head in ("auto", None, "mlm"):
        with pytest.raises(CheckpointError, match=r"lacks 2 of the model's tensors \(.*query"):
            without_words(tmp_path, head)


def test_a_missing_pooler_is_the_same_in_every_run(tmp_path):
    network = tiny("bert")
    network.pooler = None
    network.save_pretrained(tmp_path)
    first = dict(without_words(tmp_path).model.named_parameters())
    second = dict(without_words(tmp_path).model.named_parameters())
    assert all(torch.equal(first[name], second[name]) for name in first)


# --- what transformers saves of encoder-decoders: tied heads, and tables that modules compute -----

#: A tensor of each family that nothing else can stand for.
NEEDED = {
    "marian": "model.decoder.layers.1.encoder_attn.k_proj.weight",
    "bart": "model.encoder.embed_positions.weight",  # learned, not computed
    "t5": "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
}
TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
GIVEN = {
    "input_ids": torch.tensor([[7, 8, 9, 10, 11]]),
    "attention_mask": torch.ones(1, 5, dtype=torch.long),
    "decoder_input_ids": torch.tensor([[2, 12, 13]]),
}


def saved(kind: str, folder: Path, without: tuple[str, ...] = ()) -> tuple[Any, made.Tensors]:
    """Let transformers save a model, then take tensors out of the file."""
    model = network(kind)
    model.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    made.store(folder, {name: tensor for name, tensor in state.items() if name not in without})
    return model, state


@pytest.mark.parametrize(
    ("kind", "task_head"),
    [*((kind, "auto") for kind in ("bart", "marian", "pegasus", "t5")), ("marian", None)],
)
def test_what_transformers_saved_opens(kind, task_head, tmp_path):
    model, state = saved(kind, tmp_path, TABLES if kind in ("marian", "pegasus") else ())
    assert not any(name.startswith("lm_head") for name in state)  # tied to the embeddings
    loaded = without_words(tmp_path, task_head)
    assert loaded.task_head == (task_head and "seq2seq")
    with torch.no_grad():
        expected = model(**GIVEN, output_hidden_states=True)
        hidden, logits = loaded.run(**GIVEN)
    torch.testing.assert_close(hidden, expected.decoder_hidden_states[-1], rtol=0, atol=1e-5)
    if task_head:
        torch.testing.assert_close(logits, expected.logits, rtol=0, atol=1e-5)
        head = loaded.network.get_output_embeddings()
        words = loaded.model.get_input_embeddings()
        assert head.weight is words.weight
    result = validate_model(loaded)
    assert result.passed, result.reasons


def test_a_table_that_is_stored_counts_as_it_stands(tmp_path):
    model, state = saved("marian", tmp_path, TABLES)
    # Marian itself does not store them, or the test above would prove nothing.
    assert not {*TABLES} & state.keys()
    tables = {name: model.state_dict()[name] + 0.25 for name in TABLES}
    made.store(tmp_path, {**state, **tables})
    loaded = without_words(tmp_path, "seq2seq")
    for name, tensor in tables.items():
        assert torch.equal(loaded.network.state_dict()[name], tensor)


@pytest.mark.parametrize(("kind", "task_head"), [*((k, "auto") for k in NEEDED), ("bart", None)])
def test_a_tensor_that_is_really_missing(kind, task_head, tmp_path):
    saved(kind, tmp_path, (NEEDED[kind],))
    name = NEEDED[kind] if task_head else NEEDED[kind].removeprefix("model.")
    with pytest.raises(CheckpointError, match=f"lacks 1 of the model's tensors.*{name}"):
        without_words(tmp_path, task_head)
