"""Task heads: which one a model has, by its name and by its weights, and how it is run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from headscope.core.errors import InputError
from headscope.models.run.hooks import replaced_forwards

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
    elif task_head == "classification" and task_head_of(held) == "causal":
        remedy += (
            ", or, if it scores pairs by the logit of a token such as yes, the folder that "
            "CrossEncoder of sentence-transformers saves of it"
        )
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


#: Logits that are held at once where a head reads slices of positions: 16 MiB in float32.
LOGITS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class InSlices:
    """A selection of positions whose logits become a few numbers each, slice by slice.

    The logits of a causal language model at every position of a text are a hundred times as large
    as its states. So the head reads some positions at a time, and ``read`` turns their logits into
    numbers, such as losses, which take the place of the logits in what a run returns.
    """

    pick: Select  # Hidden states (batch, pos, d_model) to (picked, d_model)
    #: Turns the logits (n, vocabulary) of a slice of the picked positions into numbers: (n,), which
    #: may be differentiated, or (n, numbers)
    read: Callable[[Tensor, slice], Tensor]

    def of_states(
        self, hidden: Tensor, head: Callable[[Tensor], Tensor], vocabulary: int
    ) -> Tensor:
        """Read the logits that a ``head`` makes of hidden states: (picked,) or (picked, numbers).

        Gradients are taken while the logits of a slice are there. What is returned has the numbers
        as its value and these gradients as its derivative by the states; it has no second one.
        """
        states = self.pick(hidden)
        numbers = [
            self._of_slice(states[positions], positions, head)
            for positions in _slices(len(states), vocabulary)
        ]
        return torch.cat(numbers)

    def _of_slice(
        self, states: Tensor, positions: slice, head: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Read the logits of one slice, and take their gradient by its states where one is due."""
        if not (torch.is_grad_enabled() and states.requires_grad):
            return self.read(head(states), positions)
        leaf = states.detach().requires_grad_()
        numbers = self.read(head(leaf), positions)
        (gradient,) = torch.autograd.grad(numbers.sum(), leaf)  # each by its own position's state
        zero = states - states.detach()  # with the derivative of the states
        return numbers.detach() + (zero * gradient).sum(dim=-1)

    def of_logits(self, logits: Tensor) -> Tensor:
        """Read logits that are there already, (batch, pos, vocabulary)."""
        picked = self.pick(logits)
        slices = _slices(len(picked), vocabulary=picked.shape[-1])
        return torch.cat([self.read(picked[positions], positions) for positions in slices])


def _slices(n_positions: int, vocabulary: int) -> list[slice]:
    """Cut positions into slices with LOGITS_AT_ONCE logits at most; one slice at least."""
    size = max(1, LOGITS_AT_ONCE // vocabulary)
    return [slice(start, start + size) for start in range(0, max(n_positions, 1), size)]


def logits_of_states(network: Any, base: Any, states: Tensor) -> Tensor:
    """Let the task head of a causal language model read last hidden states.

    ``states`` (n, d_model); returns (n, vocabulary), with all that the family does to logits.
    """

    def given(*_args: Any, **_inputs: Any) -> _Given:
        return _Given(states[None])

    # OPT's network calls the decoder inside its base model.
    with replaced_forwards({base: given, _last_module(base): given}):
        ids = torch.zeros(1, len(states), dtype=torch.long, device=states.device)
        logits: Tensor = network(input_ids=ids, return_dict=True).logits
    return logits[0]


class _Given:
    """What a base model would return with these last states and nothing else."""

    def __init__(self, states: Tensor) -> None:
        self.last_hidden_state = states

    def __getattr__(self, name: str) -> None:
        return None  # no cache, no states of other layers, no attentions

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]


def run_with_task_head(
    network: Any,
    base: Any,
    inputs: dict[str, Tensor],
    select: Select | InSlices | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Run ``base``, and ``network`` around it where that has a task head.

    Returns the whole last hidden state (batch, pos, d_model), and the logits (None without a head)
    for the states that ``select`` picks: all, or the masked positions only, say, since the output
    embedding of a language model costs as much as the whole encoder. With :class:`InSlices` it
    returns the numbers that are read of them in place of logits.
    """
    if isinstance(select, InSlices):
        hidden = last_state(base, inputs)
        head = partial(logits_of_states, network, base)
        return hidden, select.of_states(hidden, head, int(network.config.vocab_size))
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
        output = network(**inputs, **_without_cache(network), return_dict=True)
    start_logits = getattr(output, "start_logits", None)
    if start_logits is not None:  # where an answer begins and ends: (batch, pos, 2)
        return states[0], torch.stack([start_logits, output.end_logits], dim=-1)
    return states[0], getattr(output, "logits", None)


def last_state(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Run a base model and return its last hidden state (batch, pos, d_model)."""
    if _last_module(model) is not model:
        return run_with_task_head(model, model, inputs)[0]
    hidden: Tensor = model(**inputs, **_without_cache(model), return_dict=True).last_hidden_state
    return hidden


def _without_cache(network: Any) -> dict[str, bool]:
    """Return the argument that keeps a network from storing keys and values: one pass needs none.

    Empty for a network that stores nothing.
    """
    kind: Any = type(network)
    return {"use_cache": False} if _may_cache(kind) else {}


@functools.cache
def _may_cache(kind: Any) -> bool:
    """Whether a class of networks stores keys and values, unless it is told not to."""
    return "use_cache" in inspect.signature(kind.forward).parameters


def _last_module(base: Any) -> Any:
    """Return the module that puts out the last hidden state: a decoder, or the base model.

    T5 has no base model apart from the one with its head; OPT's base model has a decoder inside,
    which its network with a head calls itself.
    """
    return base.get_decoder() if hasattr(base, "get_decoder") else base


def empty_cache() -> transformers.EncoderDecoderCache:
    """Return an empty cache of keys and values for a decoder with any number of layers.

    The cache that ``generate`` makes for a T5 has as many layers as its encoder.
    """
    return transformers.EncoderDecoderCache(
        transformers.DynamicCache(), transformers.DynamicCache()
    )
