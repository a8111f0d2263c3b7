"""How a model's last states become the embedding of a text: pooled, and mapped step by step.

:class:`Pooling` says which of the functions here a model uses, and what steps follow. Every
function that pools takes ``hidden`` (batch, pos, d), the last states, and ``real`` (batch, pos), 0
or False at padding, and returns (batch, d). Half-precision states are summed in float32. A sequence
needs one real token or more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.core.errors import CheckpointError, InputError
from headscope.core.widest import exact, wide

# --- one vector of the states of a text -----------------------------------------------------------


def mean_pooled(hidden: Tensor, real: Tensor) -> Tensor:
    """Average the states of a sequence's real tokens, special ones included.

    NaN for a sequence without real tokens.
    """
    total, count = _sum_and_count(hidden, real)
    return total / count


def mean_sqrt_pooled(hidden: Tensor, real: Tensor) -> Tensor:
    """Return the sum of the real tokens' states over the root of their number."""
    total, count = _sum_and_count(hidden, real)
    return total / count.sqrt()


def cls_pooled(hidden: Tensor, real: Tensor) -> Tensor:
    """Return the state of the first real token, wherever the padding is."""
    return _state_at(hidden, real.to(torch.int32).argmax(dim=1))


def last_pooled(hidden: Tensor, real: Tensor) -> Tensor:
    """Return the state of the last real token, wherever the padding is."""
    # argmax finds the first 1: real 1 1 1 0 0, flipped 0 0 1 1 1, has two of padding behind.
    n_behind = real.to(torch.int32).flip(1).argmax(dim=1)
    last_position = hidden.shape[1] - 1
    return _state_at(hidden, last_position - n_behind)


def max_pooled(hidden: Tensor, real: Tensor) -> Tensor:
    """Return the largest value of each dimension over the real tokens."""
    return wide(hidden).masked_fill(~real.bool()[..., None], float("-inf")).amax(dim=1)


def weighted_pooled(hidden: Tensor, real: Tensor) -> Tensor:
    """Average the states of the real tokens, weighted 1, 2, 3 and so on.

    References
    ----------
    Muennighoff 2022, arXiv:2202.08904.
    """
    states = wide(hidden)
    numbers = real.to(states.dtype).cumsum(dim=1)  # real 0 1 1 1 0 -> 0 1 2 3 3
    weight = (numbers * real)[..., None]  # -> 0 1 2 3 0
    return (states * weight).sum(1) / weight.sum(1)


def _sum_and_count(hidden: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the real tokens' states, and their number (batch, 1)."""
    states = wide(hidden)
    weight = real.to(states.dtype)[..., None]
    return (states * weight).sum(1), weight.sum(1)


def _state_at(hidden: Tensor, position: Tensor) -> Tensor:
    """Pick the state at one ``position`` (batch,) of each sequence: (batch, d)."""
    index = position[:, None, None].expand(-1, 1, hidden.shape[-1])
    return wide(hidden).gather(1, index)[:, 0]


#: Every way to pool, by the name that users and results have for it.
MODES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": mean_pooled,
    "cls": cls_pooled,
    "max": max_pooled,
    "weighted": weighted_pooled,
    "mean-sqrt": mean_sqrt_pooled,
    "last": last_pooled,
}
#: Modes that users can choose by name; the others are read from folders only.
CHOICES = ("mean", "cls", "max", "weighted")


# --- steps from the pooled vector to the embedding ------------------------------------------------

#: What is done to a pooled vector: (batch, d) to (batch, d of the next step), differentiable.
Step = Callable[[Tensor], Tensor]

#: Activations of a dense module by the name of their class in torch.nn.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": torch.relu,
    "GELU": F.gelu,
    "SiLU": F.silu,
    "Sigmoid": torch.sigmoid,
}


@dataclass(frozen=True, eq=False)
class Dense:
    """activation(x W^T + b), plus x or x R^T where it is residual."""

    weight: Tensor  # W (out, in)
    bias: Tensor | None = None  # b (out,)
    activation: str = "Tanh"  # A name of :data:`ACTIVATIONS`
    residual: bool | Tensor = False  # True to add x, or R (out, in) to add x R^T

    def __call__(self, x: Tensor) -> Tensor:
        """Map (batch, in) to (batch, out), in the type and on the device of ``x``."""
        bias = None if self.bias is None else self.bias.to(x)
        y = ACTIVATIONS[self.activation](F.linear(x, self.weight.to(x), bias))
        if isinstance(self.residual, Tensor):
            return y + F.linear(x, self.residual.to(x))
        return y + x if self.residual else y

    def __str__(self) -> str:
        n_out, n_in = self.weight.shape
        residual = "" if self.residual is False else " residual"
        return f"dense {n_in}x{n_out} {self.activation.lower()}{residual}"


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """(x - mean) / deviation, times a factor and plus a summand for each dimension."""

    weight: Tensor  # (d,)
    bias: Tensor  # (d,)

    def __call__(self, x: Tensor) -> Tensor:
        """Map (batch, d) to (batch, d), in the type and on the device of ``x``."""
        return F.layer_norm(x, self.weight.shape, self.weight.to(x), self.bias.to(x))

    def __str__(self) -> str:
        return "layer norm"


@dataclass(frozen=True)
class Normalize:
    """Scale to unit length."""

    def __call__(self, x: Tensor) -> Tensor:
        """Map (batch, d) to (batch, d)."""
        return F.normalize(x, dim=-1)

    def __str__(self) -> str:
        return "normalize"


@dataclass(frozen=True)
class Truncate:
    """Keep the first dimensions."""

    width: int  # How many

    def __call__(self, x: Tensor) -> Tensor:
        """Map (batch, d) to (batch, width)."""
        return x[..., : self.width]

    def __str__(self) -> str:
        return f"first {self.width}"


# --- all of it together ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Pooling:
    """How a model's last hidden states become one embedding for each text."""

    #: Names of :data:`MODES`; the vectors of several modes are concatenated.
    modes: tuple[str, ...] = ("mean",)
    steps: tuple[Step, ...] = ()  # Run one after the other on what was pooled
    #: Who says so: ``modules.json`` of the model's folder, ``option`` (the user) or ``default``.
    origin: str = "default"
    prompt: str = ""  # Put before every text that is embedded, but for those of a retrieval
    query_prompt: str = ""  # Put before what is searched for, in retrieval
    document_prompt: str = ""  # Put before what is searched, in retrieval
    #: Tokens, special ones included, at which SentenceTransformer cuts a text of this model;
    #: headscope cuts none.
    max_length: int | None = None
    #: How many tokens at the beginning are read and not pooled: those of a prompt, where the folder
    #: says that its states do not count.
    skipped: int = 0
    pools_prompt: bool = True  # Whether the states of a prompt count
    #: Sentences about settings of the model's folder that headscope does not use.
    notes: tuple[str, ...] = field(default=(), repr=False)
    #: Why the folder's embedding cannot be made; :meth:`embed` refuses with it.
    problem: str | None = None

    def embed(self, hidden: Tensor, real: Tensor) -> Tensor:
        """Turn the last hidden states of a batch into its embeddings; differentiable.

        ``hidden`` (batch, pos, d_model), ``real`` (batch, pos); returns (batch, d).

        Notes
        -----
        No control flow depends on numbers, so that it can be traced and exported.
        """
        self.check()
        if self.skipped:
            token_number = real.cumsum(dim=1)  # from 1
            real = real.bool() & (token_number > self.skipped)
        pooled = torch.cat([MODES[mode](hidden, real) for mode in self.modes], dim=-1)
        for step in self.steps:
            pooled = step(pooled)
        return pooled

    def check(self) -> None:
        """Refuse what :meth:`embed` would refuse, before anything is run."""
        if self.problem is not None:
            raise CheckpointError(
                f"{self.problem} Give pooling (such as mean) to compare pooled last states instead."
            )

    def reads_after(self, *, retrieves: bool) -> str | None:
        """Say what prompts texts are read after, ``retrieves`` as queries and documents.

        None for none; a sentence without its stop.
        """
        if not retrieves or self.query_prompt == self.document_prompt == self.prompt:
            if not self.prompt:
                return None
            unread = ", which is not pooled" if self.skipped else ""
            return f"Every text is read after the default prompt {self.prompt!r}{unread}"
        query = f"after the prompt {self.query_prompt!r}" if self.query_prompt else "as it is"
        document = "as it is"
        if self.document_prompt:
            document = f"after {self.document_prompt!r}"
        return f"A query is read {query}, a document {document}"

    def __str__(self) -> str:
        """Name modes and steps, such as ``mean`` or ``cls, dense 384x128 tanh, normalize``."""
        if self.problem is not None:
            return "unknown"
        return ", ".join(["+".join(self.modes), *map(str, self.steps)])


def chosen_pooling(mode: str, stated: Pooling | None = None) -> Pooling:
    """Return the pooling that a user chose by name, without the steps that the folder states."""
    if mode not in CHOICES:
        raise InputError(f"There is no pooling {mode!r}; choose {', '.join(CHOICES)}.")
    return replace(stated or Pooling(), modes=(mode,), steps=(), origin="option", problem=None)


# --- comparing embeddings -------------------------------------------------------------------------


def cosine(embeddings: Tensor, references: Tensor, *, precise: bool = True) -> Tensor:
    """Return the cosine of corresponding rows, (..., d) -> (...), in [-1, 1]; differentiable.

    Two rows of zeros are equal, so their cosine is 1; a row of zeros and another one have 0. In
    float64, unless ``precise`` is False: then in the type of the rows.
    """
    if precise:
        embeddings = exact(embeddings)
        references = exact(references)
    # Detached: which rows are zero is no matter of gradients.
    both_zero = ~(embeddings.detach().any(dim=-1) | references.detach().any(dim=-1))
    similarity = torch.cosine_similarity(embeddings, references, dim=-1)
    return similarity.masked_fill(both_zero, 1.0)
