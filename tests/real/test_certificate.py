"""The certificate of real models: it holds, and one percent in one layer fails, in every type."""

import pytest
import torch
from families_faults import READINGS

import headscope
from headscope.models.certificate.certificate import validate_model

pytestmark = pytest.mark.usefixtures("fresh_certificate")

#: A model, the type it runs in, the layer that is read wrongly, and how.
FAULTS = [
    ("demo", "float32", 3, "scale"),
    ("demo", "bfloat16", 3, "norm"),
    ("mpnet", "float32", 7, "scale"),
    ("smollm2", "float32", 12, "rotation"),
    ("smollm2", "bfloat16", 12, "rotation"),
    ("smollm2", "bfloat16", 25, "scale"),
]


def opened(name, dtype, request):
    if name == "mpnet":
        request.getfixturevalue("all_of_it")  # takes 15 s
    path = "demo" if name == "demo" else str(request.getfixturevalue(name))
    return headscope.load(path, dtype=dtype)


@pytest.mark.parametrize(("name", "dtype", "layer", "fault"), FAULTS)
def test_one_percent_in_one_layer_of_a_trained_model_fails(
    name, dtype, layer, fault, request, monkeypatch
):
    loaded = opened(name, dtype, request)
    assert validate_model(loaded).passed
    loaded.certificate = None
    READINGS[fault](monkeypatch, layer)
    result = validate_model(loaded)
    assert not result.passed
    assert result.layers[layer].local_pattern > 100 * result.tolerance["local"]
    others = [check.local_pattern for check in result.layers if check.layer != layer]
    assert max(others) < result.tolerance["local"]


def test_states_of_a_real_decoder_are_large(smollm2):
    """A fixed bound alone refused it: two right runs differ by more than 1e-4 in a layer."""
    loaded = headscope.load(str(smollm2), dtype="float32")
    ids = torch.tensor([loaded.tokenizer("The capital of France is")["input_ids"]])
    with torch.no_grad():
        states = loaded.model(ids, output_hidden_states=True).hidden_states
    assert max(float(state.abs().max()) for state in states[1:-1]) > 2e4
    result = validate_model(loaded)
    assert result.passed, result.reasons
    assert len(result.layers) == 30
    assert max(check.local_out for check in result.layers) < 4
