"""A model in every runtime and precision: its outputs, its file, and the code that opens it."""

import dataclasses
import sys

import pytest
from shrinking_models import sentences
from tiny_models import tiny_bert

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


@pytest.mark.parametrize("form", serving.FORMS, ids=str)
def test_the_snippets_of_a_card_are_python(form, bert):
    codes = snippets(form, bert, sentences=True)
    cross_encoder = dataclasses.replace(bert, task_head="classification")
    codes_of_pairs = snippets(form, cross_encoder, sentences=True)
    assert "CrossEncoder" in codes_of_pairs[0]
    assert len(codes) == 2
    for code in (*codes, *codes_of_pairs):
        compile(code, str(form), "exec")
    asks_for_float32 = "f32" in codes[0] and "f32" in codes[1]
    # Unasked openvino computes in bfloat16.
    assert asks_for_float32 is (str(form) == "openvino float32")
