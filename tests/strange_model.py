"""A made-up decoder that no layout of headscope describes, as any model of tomorrow may be.

Its names are its own, its queries and keys are normed, its scale is no root of anything, and two
heads share a key. All that it has in common with others is that it asks transformers for its
attention.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

N_HEADS = 4
WIDTH = 8
SCALE = 0.3


class StrangeConfig(PretrainedConfig):
    model_type = "strange"

    def __init__(self, vocab_size: int = 61, num_hidden_layers: int = 3, **more: Any) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = N_HEADS * WIDTH
        self.num_hidden_layers = num_hidden_layers
        super().__init__(**{"pad_token_id": 0, **more})


def plain(
    module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float, **more: Any
) -> tuple[Tensor, Tensor]:
    """Attend as transformers' eager functions do, and let the module keep its pattern."""
    k = k.repeat_interleave(2, dim=1)
    v = v.repeat_interleave(2, dim=1)
    scores = q @ k.transpose(2, 3) * scaling
    if "softcap" in more:
        scores = torch.tanh(scores / more["softcap"]) * more["softcap"]
    if mask is not None:
        scores = scores + mask
    pattern = module.change_pattern(torch.softmax(scores, dim=-1))
    module.last_pattern = pattern
    return (pattern @ v).transpose(1, 2).contiguous(), pattern


class Stirrer(nn.Module):
    """The attention; ``extra`` are arguments that it hands over besides."""

    def __init__(self, config: StrangeConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.asks = nn.Linear(width, width)
        self.offers = nn.Linear(width, width)  # keys and values, of two groups each
        self.mixes = nn.Linear(width, width)
        self.extra: dict[str, Any] = {}
        self.num_key_value_groups = 2

    def change_pattern(self, pattern: Tensor) -> Tensor:
        return pattern

    def forward(self, stream: Tensor, veil: Tensor | None) -> Tensor:
        batch, n_pos, _ = stream.shape
        q = self.asks(stream).view(batch, n_pos, N_HEADS, WIDTH).transpose(1, 2)
        both = self.offers(stream).view(batch, n_pos, 2, 2, WIDTH)
        k = both[:, :, :, 1].transpose(1, 2)
        v = both[:, :, :, 0].transpose(1, 2)
        q = nn.functional.normalize(q, dim=-1) * 3
        k = nn.functional.normalize(k, dim=-1) * 3
        attend: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, plain
        )
        z, _ = attend(self, q, k, v, veil, scaling=SCALE, **self.extra)
        out: Tensor = self.mixes(z.reshape(batch, n_pos, -1))
        return out


class Storey(nn.Module):
    def __init__(self, config: StrangeConfig) -> None:
        super().__init__()
        self.calms = nn.LayerNorm(config.hidden_size)
        self.stirs = Stirrer(config)
        self.thinks = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, stream: Tensor, veil: Tensor | None) -> Tensor:
        stream = stream + self.stirs(self.calms(stream), veil)
        thought: Tensor = self.thinks(stream)
        return stream + torch.tanh(thought)


class StrangeModel(PreTrainedModel):
    config_class = StrangeConfig
    base_model_prefix = "strange"
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(self, config: StrangeConfig) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.storeys = nn.ModuleList(Storey(config) for _ in range(config.num_hidden_layers))
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> BaseModelOutput:
        stream = self.words(input_ids)
        veil = create_causal_mask(
            config=self.config,
            inputs_embeds=stream,
            attention_mask=attention_mask,
            past_key_values=None,
        )
        for storey in self.storeys:
            stream = storey(stream, veil)
        return BaseModelOutput(last_hidden_state=stream)


def strange(dtype: str = "float32", **sizes: int) -> StrangeModel:
    torch.manual_seed(5)
    model = StrangeModel(StrangeConfig(**sizes))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    return model.to(getattr(torch, dtype)).eval()
