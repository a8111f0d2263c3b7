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
    heads = contributions.heads.sum(3)
    networks = contributions.feed_forward.sum(2)
    each = (contributions.embeddings.sum(1), *heads.flatten(1).T, *networks.T, contributions.biases)
    total = sum(each)
    absolute = sum(contribution.abs() for contribution in each)
    return float(((total - expected).abs() / absolute.clamp(min=1)).max())


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
        self.parts = {key: centred(contribution) * gain for key, contribution in self.parts.items()}
        self.parts["biases"] = self.parts["biases"] + shift
        self.x = centred(self.x) * gain + shift

    def attend(
        self, name: str, maps: Sequence[str], keys: np.ndarray | None = None, causal: bool = False
    ) -> None:
        """Add every head under ``name`` and its number; ``keys`` are those of another side."""
        keys = self.x if keys is None else keys
        query_map, key_map, value_map, output_map = maps
        q = self.linear(self.x, query_map)
        k = self.linear(keys, key_map)
        v = self.linear(keys, value_map)
        W_O = self.weights[f"{output_map}.weight"]
        b_O = self.weights[f"{output_map}.bias"]
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
        gelu = [
            [u * (1 + math.erf(u / math.sqrt(2))) / 2 for u in x] for x in self.linear(self.x, up)
        ]
        self.parts[name] = self.linear(np.array(gelu), down)
        self.x = self.x + self.parts[name]
