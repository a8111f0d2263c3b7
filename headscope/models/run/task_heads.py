"""Task heads: which one a model has, by its name and by its weights, and how it is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from headscope.core.errors import InputError

# --- by name --------------------------------------------------------------------------------------

#: The task heads that headscope knows, by the ending of their transformers class.
TASK_HEADS = {
    "mlm": "ForMaskedLM",
    "classification": "ForSequenceClassification",
    "seq2seq": "ForConditionalGeneration",
    "token-classification": "ForTokenClassification",
    "question-answering": "ForQuestionAnswering",
    "causal": "ForCausalLM",  # predicts the next token at every position
}
_NAMES = {
    "mlm": "masked-language-model",
    "seq2seq": "sequence-to-sequence",
    "causal": "causal-language-model",
}
#: Classes of other names, by their endings; the first that fits.
_OTHER_NAMES = {"MTModel": "seq2seq", "WithLMHeadModel": "mlm", "LMHeadModel": "causal"}
#: The auto class that builds a model with the head, where it is called otherwise.
_AUTO = {"seq2seq": "AutoModelForSeq2SeqLM"}


def task_head_of(architecture: object) -> str | None:
    """Return the task head of a transformers class by its name, None if it has none of ours."""
    name = str(architecture or "")
    endings = {ending: head for head, ending in TASK_HEADS.items()} | _OTHER_NAMES
    return next((head for ending, head in endings.items() if name.endswith(ending)), None)


def class_for(task_head: str | None, architecture: str | None = None) -> Any:
    """Return the transformers auto class that builds a base model or one with this head.

    ``architecture`` is the class that config.json names: T5EncoderModel has no decoder.
    """
    if task_head is None and architecture is not None and architecture.endswith("EncoderModel"):
        return transformers.AutoModelForTextEncoding
    if task_head is None:
        return transformers.AutoModel
    return getattr(transformers, _AUTO.get(task_head, f"AutoModel{TASK_HEADS[task_head]}"))


# --- by what the weights hold ---------------------------------------------------------------------


@dataclass(frozen=True)
class HeadWeights:
    """What a checkpoint's weights hold of the task head that its config.json names."""

    architecture: str  # The class that config.json names
    #: Names of the head's weights that are missing or have another shape; empty where the head was
    #: not asked for.
    lacking: tuple[str, ...] = ()
    partly: bool = False  # Whether some are lacking and others are there
    unread: tuple[str, ...] = ()  # Weights that the network has no use for

    def __str__(self) -> str:
        """Name what is missing, two of several: ``a``, ``a and b`` or ``a, b and 3 more``."""
        more = len(self.lacking) - 2
        if more > 0:
            return f"{self.lacking[0]}, {self.lacking[1]} and {more} more"
        return " and ".join(self.lacking)

    def broken_promise(self, task_head: str) -> str | None:
        """Say that config.json names this head and the weights lack it; None if that is not so."""
        if not self.lacking or task_head_of(self.architecture) != task_head:
            return None
        return f"its config.json names {self.architecture}, but the weights lack {self}"


def missing_task_head(
    folder: object, task_head: str, held: str, weights: HeadWeights | None = None
) -> InputError:
    """Return the error for a checkpoint that lacks the wanted task head.

    ``held`` is the class that was opened instead, ``weights`` what is known of its file.
    """
    weights = weights or HeadWeights(held)
    named = f"...{TASK_HEADS[task_head]}"
    why = f"its checkpoint holds {held}"
    remedy = f"give a checkpoint that was trained as {named}"
    if (broken := weights.broken_promise(task_head)) is not None:
        why = broken
        remedy = "give a checkpoint that holds them"
    elif weights.lacking:
        why += f", without {weights}"
    head = _NAMES.get(task_head, task_head)
    return InputError(
        f"{folder} has no {head} head: {why}; choose a task that fits it, or {remedy}."
    )


# --- running a model with its task head -----------------------------------------------------------

#: Picks what the task head gets from the last hidden state (batch, pos, d_model): the states of the
#: masked tokens (picked, d_model), say.
Select = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Joined:
    """A selection that puts another model's states behind the picked ones: the head runs once.

    An exported graph has run its head before its states can be read: its logits are joined instead,
    by :meth:`of_logits`.
    """

    pick: Select
    other_states: Tensor  # (picked, d_model), of the other model
    other_logits: Callable[[], Tensor]  # Computes (picked, classes), the head's output for these

    def __call__(self, hidden: Tensor) -> Tensor:
        """Join states: (1, picked of both models, d_model)."""
        picked = self.pick(hidden)
        return torch.cat([picked, self.other_states.to(hidden.dtype)])[None]

    def of_logits(self, logits: Tensor) -> Tensor:
        """Join logits: (1, picked of both models, classes)."""
        picked = self.pick(logits)
        return torch.cat([picked, self.other_logits().to(logits)])[None]


def run_with_task_head(
    network: Any, base: Any, inputs: dict[str, Tensor], select: Select | None = None
) -> tuple[Tensor, Tensor | None]:
    """Run ``base``, and ``network`` around it where that has a task head.

    Returns the whole last hidden state (batch, pos, d_model), and the logits (None without a head)
    for the states that ``select`` picks: all, or the masked positions only, say, since the output
    embedding of a language model costs as much as the whole encoder.
    """
    last = _last_module(base)
    if network is base and last is base:
        return last_state(base, inputs), None
    states: list[Tensor] = []

    def keep_and_select(_module: nn.Module, _args: object, output: Any) -> Any:
        states.append(output.last_hidden_state)
        if select is not None:
            output.last_hidden_state = select(output.last_hidden_state)
        return output

    with last.register_forward_hook(keep_and_select):
        output = network(**inputs, return_dict=True)
    start_logits = getattr(output, "start_logits", None)
    if start_logits is not None:  # where an answer begins and ends: (batch, pos, 2)
        return states[0], torch.stack([start_logits, output.end_logits], dim=-1)
    return states[0], getattr(output, "logits", None)


def last_state(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Run a base model and return its last hidden state (batch, pos, d_model)."""
    if _last_module(model) is not model:
        return run_with_task_head(model, model, inputs)[0]
    hidden: Tensor = model(**inputs, return_dict=True).last_hidden_state
    return hidden


def _last_module(base: Any) -> Any:
    """Return the module that puts out the last hidden state: a decoder, or the base model.

    T5 has no base model apart from the one with its head, and OPT's head reads the decoder inside
    its base model.
    """
    return base.get_decoder() if hasattr(base, "get_decoder") else base


def empty_cache() -> transformers.EncoderDecoderCache:
    """Return an empty cache of keys and values for a decoder with any number of layers.

    The cache that ``generate`` makes for a T5 has as many layers as its encoder.
    """
    return transformers.EncoderDecoderCache(
        transformers.DynamicCache(), transformers.DynamicCache()
    )
