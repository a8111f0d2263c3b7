"""Parts of a residual stream: what their sum should be, and an oracle that carries them on."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscope.models.anatomy.residual import Contributions


def error_of(contributions: Contributions, expected: Tensor) -> float:
    """The largest error of any row's sum, relative to the sum of absolute parts above 1."""
    terms = torch.cat(
        [
            contributions.embeddings.sum(1, keepdim=True),
            contributions.heads.sum(3).flatten(1),
            contributions.feed_forward.sum(2),
            contributions.biases[:, None],
        ],
        dim=1,
    )
    absolute = terms.abs().sum(1)
    return float(((terms.sum(1) - expected).abs() / absolute.clamp(min=1)).max())


def uneven(loaded: Any) -> Any:
    """Draw gains and biases of a BERT that matter."""
    torch.manual_seed(3)
    for name, parameter in loaded.model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=float("Norm.weight" in name), std=0.2)
    return loaded


class Carried:
    """States x of one text, (pos, d_model), and the parts that add up to them, by name.

    From the weights of a network that norms after its sums: what a norm does to the whole, it does
    to every part. Names of maps are those of the weights, those of an attention q, k, v and out.
    """

    def __init__(self, network: Any, x: np.ndarray, heads: int, eps: float) -> None:
        self.weights = {name: p.detach().numpy() for name, p in network.named_parameters()}
        self.x = x
        self.heads = heads
        self.eps = eps
        self.parts = {"embeddings": x, "biases": np.zeros_like(x)}

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, name: str) -> None:
        def centred(x: np.ndarray) -> np.ndarray:
            return x - x.mean(-1, keepdims=True)

        variance = (centred(self.x) ** 2).mean(-1, keepdims=True)
        gain = self.weights[f"{name}.weight"] / np.sqrt(variance + self.eps)
        shift = self.weights[f"{name}.bias"]
        self.parts = {key: centred(written) * gain for key, written in self.parts.items()}
        self.parts["biases"] = self.parts["biases"] + shift
        self.x = centred(self.x) * gain + shift

    def attend(
        self, name: str, maps: Sequence[str], keys: np.ndarray | None = None, causal: bool = False
    ) -> None:
        """Add every head under ``name`` and its number; ``keys`` are another text's states."""
        keys = self.x if keys is None else keys
        q_map, k_map, v_map, o_map = maps
        q = self.linear(self.x, q_map)
        k = self.linear(keys, k_map)
        v = self.linear(keys, v_map)
        W_O = self.weights[f"{o_map}.weight"]
        b_O = self.weights[f"{o_map}.bias"]
        width = q.shape[-1] // self.heads
        self.x = self.x + b_O
        self.parts["biases"] = self.parts["biases"] + b_O
        for head in range(self.heads):
            columns = slice(head * width, (head + 1) * width)
            scores = q[:, columns] @ k[:, columns].T / math.sqrt(width)
            if causal:
                scores[np.triu_indices(len(q), 1)] = -np.inf
            pattern = np.exp(scores - scores.max(-1, keepdims=True))
            pattern /= pattern.sum(-1, keepdims=True)
            self.parts[f"{name}{head}"] = pattern @ v[:, columns] @ W_O[:, columns].T
            self.x = self.x + self.parts[f"{name}{head}"]

    def feed_forward(self, name: str, up: str, down: str) -> None:
        u = self.linear(self.x, up)
        gelu = u * (1 + np.vectorize(math.erf)(u / math.sqrt(2))) / 2
        self.parts[name] = self.linear(gelu, down)
        self.x = self.x + self.parts[name]
