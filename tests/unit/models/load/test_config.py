"""What a config.json may say that is neither damaged nor too large."""

import json

import pytest
import torch
from families import _ENDS, ENCODER
from transformers import AutoConfig, AutoModelForCausalLM

import headscope
from headscope.core.saved_config import in_json
from headscope.models.load.safe_files import read_json


def test_numbers_that_json_does_not_have(tmp_path):
    """As transformers writes the infinite ``time_step_limit`` of Falcon-H1 and Granite 4."""
    path = tmp_path / "config.json"
    written = {"limit": [0.0, {"__float__": "Infinity"}], "other": {"__float__": "1", "n": 2}}
    path.write_text(json.dumps({**written, "low": {"__float__": "-Infinity"}}))
    read = {**written, "limit": [0.0, float("inf")], "low": -float("inf")}
    assert read_json(path) == read
    assert in_json(read) == json.loads(path.read_text())


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        # 262144 entries for each layer are no 262144 layers.
        ("gemma4_text", {"hidden_size_per_layer_input": 1, "num_kv_shared_layers": 0}),
        ("falcon_h1", {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64}),
    ],
)
def test_a_folder_that_transformers_opens_is_opened(kind, changes, tmp_path):
    torch.manual_seed(0)
    sizes = {**ENCODER, **_ENDS, "num_key_value_heads": 2, "head_dim": 8, **changes}
    config = AutoConfig.for_model(kind, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    loaded = headscope.load(str(tmp_path), need_tokenizer=False, device="cpu", task_head="auto")
    assert (loaded.family, loaded.stacks) == (kind, ("decoder",))
    if loaded.sites[0].has_weights:  # and saved again
        compact = headscope.remove_heads(loaded, [(0, 1)])
        headscope.save(compact, tmp_path / "compact")
        again = headscope.load(str(tmp_path / "compact"), need_tokenizer=False, device="cpu")
        assert again.sites[0].head_ids == (0, 2, 3)
