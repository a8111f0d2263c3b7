"""Models that are no single model of text are refused in one sentence that names their own case."""

from pathlib import Path
from typing import Any

import pytest
from families import ENCODER, ENCODER_DECODER
from transformers import (
    BertConfig,
    CLIPConfig,
    CLIPModel,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    ViTConfig,
    ViTModel,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import headscope
from headscope.core.errors import UnsupportedModelError

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES["intermediate_size"] = 16
IMAGE = {"image_size": 8, "patch_size": 4, **SIZES}
TOGETHER = "save the one that reads text by itself with save_pretrained and give that"


def bert2bert() -> Any:
    one = BertConfig(**ENCODER)
    other = BertConfig(**ENCODER)
    config = EncoderDecoderConfig.from_encoder_decoder_configs(one, other)
    return EncoderDecoderModel(config=config)


def clip() -> Any:
    text = {"vocab_size": 61, "max_position_embeddings": 16, **SIZES}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=IMAGE, projection_dim=8))


def whisper() -> Any:
    sizes = {"num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 16}
    return WhisperForConditionalGeneration(WhisperConfig(**{**ENCODER_DECODER, **sizes}))


MODELS = {
    "bert2bert": (bert2bert, ("an encoder-decoder model", "put together of two models", TOGETHER)),
    "clip": (clip, ("(clip) is not a model of text", "(text, vision)", TOGETHER)),
    "vit": (lambda: ViTModel(ViTConfig(**IMAGE)), ("not a model of text", "reads pixel_values")),
    "whisper": (whisper, ("token ids alone", "reads input_features")),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("task_head", [None, "auto"])
def test_what_is_no_model_of_text_is_called_by_its_name(name, task_head, tmp_path: Path):
    make, words = MODELS[name]
    make().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError) as refused:
        headscope.load(str(tmp_path), need_tokenizer=False, task_head=task_head)
    said = str(refused.value)
    for word in (str(tmp_path), *words):
        assert word in said
    assert said.count(". ") == 0
    assert "Config" not in said
