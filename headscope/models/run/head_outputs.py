"""What the outputs of a task head are: a choice of one, independent labels, or numbers.

Code that turns logits into probabilities, a distance, an agreement or a loss does so by the kind
that :func:`head_outputs` returns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.models.run.loaded import LoadedModel

#: Names of the distance between the outputs of two models, as metrics have them.
DIVERGENCE = "kl"
SQUARED_CHANGE = "squared_change"


class HeadOutputs(Enum):
    """A kind of outputs; every tensor of logits has the outputs on its last axis."""

    CHOICE = "choice of one"  # One class, token or position: a softmax
    LABELS = "independent labels"  # Any number of labels at once: a sigmoid each
    NUMBERS = "numbers"  # A score, or several numbers: the logits themselves

    @property
    def distance_name(self) -> str:
        """Name of the metric that :meth:`distance` is: ``kl`` or ``squared_change``."""
        return SQUARED_CHANGE if self is HeadOutputs.NUMBERS else DIVERGENCE

    def shares(self, logits: Tensor) -> Tensor:
        """Turn logits into probabilities, or leave numbers as they are; the shape stays."""
        if self is HeadOutputs.CHOICE:
            return logits.softmax(dim=-1)
        return logits.sigmoid() if self is HeadOutputs.LABELS else logits

    def distance(self, reference: Tensor, other: Tensor, spread: Tensor | None = None) -> Tensor:
        """Return how far the outputs of two models are apart: logits (..., outputs) -> (...,).

        Of probabilities the Kullback-Leibler divergence KL(reference || other) in nats, summed over
        labels that are independent. Of numbers the mean squared change; with ``spread`` (outputs,),
        the standard deviations that :func:`spread_of` returns, each number is in units of its own.
        """
        if self is HeadOutputs.NUMBERS:
            change = other - reference
            if spread is not None:
                change = change / spread
            return change.square().mean(dim=-1)
        if self is HeadOutputs.CHOICE:
            return _divergence(reference.log_softmax(dim=-1), other.log_softmax(dim=-1))
        return _divergence(_label_and_not(reference), _label_and_not(other)).sum(dim=-1)

    def coordinates(self, logits: Tensor, spread: Tensor | None = None) -> Tensor:
        """Return vectors (..., d) whose half squared distance is :meth:`distance`, to second order.

        For probabilities, twice the root of each (a label has two: that it holds, and that it does
        not), since KL(p || p + dp) = sum of dp^2 / 2p up to terms of third order.
        """
        if self is HeadOutputs.NUMBERS:
            scaled = logits if spread is None else logits / spread
            n_outputs = logits.shape[-1]
            return scaled * math.sqrt(2 / n_outputs)  # half of its square is then the mean square
        if self is HeadOutputs.CHOICE:
            return 2 * (logits.log_softmax(dim=-1) / 2).exp()
        return 2 * (_label_and_not(logits) / 2).exp().flatten(-2)  # (..., labels * 2)


def _divergence(reference: Tensor, other: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence over the last axis, of log-probabilities."""
    return (reference.exp() * (reference - other)).sum(dim=-1)


def _label_and_not(logits: Tensor) -> Tensor:
    """Return log-probabilities that each label holds, and that it does not: (..., labels, 2)."""
    return torch.stack([F.logsigmoid(logits), F.logsigmoid(-logits)], dim=-1)


def spread_of(logits: Tensor) -> Tensor:
    """Return the standard deviation of each number over texts, (outputs,); 1 where it is constant.

    ``logits`` (texts, outputs).
    """
    spread = logits.double().std(dim=0, correction=0)
    largest = logits.double().abs().amax(dim=0)
    return spread.where(spread > 1e-6 * largest, torch.ones_like(spread)).to(logits)


def head_outputs(loaded: LoadedModel) -> HeadOutputs:
    """Say what a model's head puts out; a choice of one for a model without a head.

    A sequence-classification head follows its configuration's ``problem_type``. Where that is not
    set, one output is a number, and several are a choice of one, unless the settings of
    sentence-transformers put a Sigmoid after them.
    """
    config = loaded.network.config
    if loaded.task_head == "token-classification":
        return HeadOutputs.NUMBERS if config.num_labels == 1 else HeadOutputs.CHOICE
    if loaded.task_head != "classification":
        return HeadOutputs.CHOICE
    if config.problem_type == "multi_label_classification":
        return HeadOutputs.LABELS
    if config.problem_type == "regression" or config.num_labels == 1:
        return HeadOutputs.NUMBERS
    independent = config.problem_type is None and activation_of(vars(config)) == "Sigmoid"
    return HeadOutputs.LABELS if independent else HeadOutputs.CHOICE


def activation_of(settings: Mapping[str, Any]) -> str:
    """Return the class of the activation that CrossEncoder puts after a model's logits.

    ``settings`` are those of config.json, such as ``{"sentence_transformers": {"activation_fn":
    "torch.nn.modules.activation.Sigmoid"}}`` -> ``Sigmoid``. By default ``Identity``.
    """
    stated = settings.get("sbert_ce_default_activation_function")
    newer = settings.get("sentence_transformers")
    if isinstance(newer, Mapping):
        stated = newer.get("activation_fn", stated)
    return str(stated or "Identity").rpartition(".")[2][:40]


def gives_one_score(loaded: LoadedModel) -> bool:
    """Whether the model is a cross-encoder: it reads two texts together and gives them one score.

    A model whose folder, or whose user, says how a text is embedded is none: it is used for its
    embeddings.
    """
    has_one_output = loaded.task_head == "classification" and loaded.network.config.num_labels == 1
    no_pooling_stated = loaded.pooling.origin == "default"
    return has_one_output and no_pooling_stated and not loaded.encoder_decoder
