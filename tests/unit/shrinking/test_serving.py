"""A model in every runtime and precision: its outputs, its file, and the code that opens it."""

import dataclasses
import json
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from shrinking_models import sentences
from tiny_models import D_MODEL, by_hand, tiny_bert

import headscope
from headscope.artefacts.runtime_files import without_telemetry
from headscope.core.errors import InputError, UnsupportedModelError
from headscope.data.token_rows import encode_rows, padded
from headscope.shrinking import serving
from headscope.shrinking.card import snippets


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    model = headscope.load(str(tiny_bert(folder / "model")))
    rows = encode_rows(model, sentences(20), None)
    texts = [padded([row], model.pad_id, model.device) for row in rows]
    return serving.Files(model, folder, texts)


@pytest.mark.parametrize("form", serving.FORMS, ids=str)
def test_every_form_puts_out_what_the_model_does(form, files):
    rows = list(encode_rows(files.model, sentences(5), None))
    batch = padded(rows, files.model.pad_id, files.model.device)
    try:
        served = files.served(form)
    except UnsupportedModelError:
        if form.precision != "bfloat16":
            raise
        pytest.skip("this processor does not multiply bfloat16")
    if form != serving.TORCH:
        hidden, logits = served(*batch.inputs)
        assert logits is None
        real = batch.attention_mask.bool()
        expected, _ = files.model.run(*batch.inputs)
        limit = 1e-5 if form.precision == "float32" else 0.25
        if form.precision.startswith("int8") and serving.lacks_vnni():
            limit = 1.0  # such a processor cuts off sums of two 8-bit products at 16 bits
        assert (hidden[real] - expected[real]).abs().max() < limit
        assert files.path(form).is_file()
        assert files.megabytes(form) < 1.3 * files.megabytes(serving.TORCH) + 0.5


def test_nobody_is_told_that_a_runtime_is_used():
    """Neither finds the package that reports; nncf asks for it once, as it is imported."""
    assert without_telemetry("openvino").convert_model
    assert without_telemetry("nncf").quantize
    assert sys.modules["openvino_telemetry"] is None
    assert not hasattr(sys.modules["nncf.telemetry.wrapper"], "Telemetry")


def test_a_runtime_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setattr(serving.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"openvino needs .*nncf.*headscope\[export,openvino\]"):
        serving.need_runtimes(["torch", "openvino"])
    assert serving.installed_runtimes() == ("torch",)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    """A folder of sentence-transformers, with the file of every form, by the form's own name."""
    folder = tmp_path_factory.mktemp("embedder")
    bert = tiny_bert(folder / "bert")
    by_hand(bert, folder / "model", ["Pooling", "Normalize"])
    pooling = {"word_embedding_dimension": D_MODEL, "pooling_mode_mean_tokens": True}
    (folder / "model" / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    model = headscope.load(str(folder / "model"))
    rows = encode_rows(model, sentences(20), None)
    texts = [padded([row], model.pad_id, model.device) for row in rows]
    return serving.Files(model, folder / "model", texts)


def names_after(code, folder):
    """Run a snippet as it is printed, but for the folder; returns the names it defined."""
    names = {}
    exec(code.replace("FOLDER", str(folder)), names)
    return names


@pytest.mark.parametrize("form", serving.FORMS, ids=str)
def test_the_snippets_give_what_sentence_transformers_gives(form, embedder, capsys):
    model = embedder.model
    expected = SentenceTransformer(str(model.folder)).encode(["A sentence."])
    if form == serving.TORCH:
        code, _ = snippets(form, model, sentences=True)
        names_after(code, model.folder)
        assert f"(1, {expected.shape[1]})" in capsys.readouterr().out
        return
    try:
        file = embedder.path(form).relative_to(model.folder)
        embedder.served(form)
    except UnsupportedModelError:
        if form.precision != "bfloat16":
            raise
        pytest.skip("this processor does not multiply bfloat16")
    code, _ = snippets(form, model, sentences=True, file=str(file))
    given = names_after(code, model.folder)["embeddings"]
    if form.precision == "float32":
        np.testing.assert_allclose(given, expected, atol=1e-5)
    else:
        assert (given * expected).sum() > 0.95  # both have length 1


@pytest.mark.parametrize("form", serving.FORMS, ids=str)
def test_a_folder_with_several_files_names_the_one_to_open(form, bert):
    if form == serving.TORCH:
        return
    alone, by_backend = snippets(form, bert, sentences=True, file=form.file)
    assert f'"FOLDER/{form.file}"' in alone
    assert f'"file_name": "{form.file}"' in by_backend
    assert "environment of its own" in by_backend
    _, of_a_saved_folder = snippets(form, bert, sentences=True)
    assert "file_name" not in of_a_saved_folder  # it has one file only


def test_the_snippet_of_a_reranker_scores_a_pair(tmp_path):
    tiny_bert(tmp_path / "model", task_head="classification", num_labels=1)
    path = tmp_path / "model" / "tokenizer_config.json"
    names = ["input_ids", "token_type_ids", "attention_mask"]  # which of two texts a token is of
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_input_names": names}))
    model = headscope.load(str(tmp_path / "model"), task_head="auto")
    rows = [
        dataclasses.replace(row, types=(0,) * len(row))
        for row in encode_rows(model, sentences(4), None)
    ]
    texts = [padded([row], model.pad_id, model.device) for row in rows]
    files = serving.Files(model, tmp_path / "model", texts)
    files.path(serving.GRAPH)
    code, by_backend = snippets(serving.GRAPH, model, sentences=True, file=serving.GRAPH.file)
    expected = CrossEncoder(str(tmp_path / "model")).predict(
        [("A sentence.", "Another one.")], activation_fn=torch.nn.Identity()
    )
    np.testing.assert_allclose(
        names_after(code, tmp_path / "model")["logits"][0], expected, atol=1e-5
    )
    compile(by_backend, "snippet", "exec")
    assert "CrossEncoder" in by_backend


@pytest.mark.parametrize(("labels", "texts"), [(1, 2), (2, 1)])
def test_a_reranker_reads_two_texts_and_a_classifier_one(labels, texts, tmp_path):
    tiny_bert(tmp_path / "model", task_head="classification", num_labels=labels)
    model = headscope.load(str(tmp_path / "model"), task_head="auto")
    for form in serving.FORMS:
        (code,) = snippets(form, model, sentences=False)
        compile(code, str(form), "exec")
        assert code.count('"A sentence."') + code.count('"Another one."') == texts


@pytest.mark.parametrize("form", serving.FORMS, ids=str)
def test_float32_is_asked_for_where_openvino_would_compute_in_bfloat16(form, bert):
    codes = snippets(form, bert, sentences=True)
    for code in codes:
        compile(code, str(form), "exec")
    asks_for_float32 = "f32" in codes[0] and "f32" in codes[1]
    assert asks_for_float32 is (str(form) == "openvino float32")
