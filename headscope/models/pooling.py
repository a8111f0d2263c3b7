"""How a model makes one embedding of a text: it pools its last states, and may map them further."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from headscope.core.errors import CheckpointError, InputError
from headscope.measures.pooling import MODES

#: Modes that users can choose by name; the others are read from folders only.
CHOICES = ("mean", "cls", "max", "weighted")

#: Activations of a dense module by the name of their class in torch.nn.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": torch.relu,
    "GELU": F.gelu,
    "SiLU": F.silu,
    "Sigmoid": torch.sigmoid,
}


class Step(Protocol):
    """What is done to a pooled vector."""

    def __call__(self, x: Tensor) -> Tensor:
        """Map (batch, d) to (batch, d of the next step); differentiable."""


@dataclass(frozen=True, eq=False)
class Dense:
    """activation(x W^T + b), with x or R x added where it is residual.

    Attributes
    ----------
    weight : Tensor, (out, in)
        W.
    bias : Tensor, (out,), or None
        b.
    activation : str
        A name of :data:`ACTIVATIONS`.
    residual : bool or Tensor, (out, in)
        Whether x is added, or R.
    sha256 : str
        Of the file that the weights are from; empty where they are from none.
    """

    weight: Tensor
    bias: Tensor | None = None
    activation: str = "Tanh"
    residual: bool | Tensor = False
    sha256: str = ""

    def __call__(self, x: Tensor) -> Tensor:
        """Map (batch, in) to (batch, out), in the type and on the device of ``x``."""
        bias = None if self.bias is None else self.bias.to(x)
        found = ACTIVATIONS[self.activation](F.linear(x, self.weight.to(x), bias))
        if isinstance(self.residual, Tensor):
            return found + F.linear(x, self.residual.to(x))
        return found + x if self.residual else found

    def __str__(self) -> str:
        wide, narrow = self.weight.shape[1], self.weight.shape[0]
        residual = "" if self.residual is False else " residual"
        return f"dense {wide}x{narrow} {self.activation.lower()}{residual}"


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
    """Keep the first dimensions.

    Attributes
    ----------
    width : int
        How many.
    """

    width: int

    def __call__(self, x: Tensor) -> Tensor:
        """Map (batch, d) to (batch, width)."""
        return x[..., : self.width]

    def __str__(self) -> str:
        return f"first {self.width}"


@dataclass(frozen=True)
class Pooling:
    """How a model's last hidden states become one embedding for each text.

    Attributes
    ----------
    modes : tuple of str
        Names of :data:`headscope.measures.pooling.MODES`; what several give is concatenated.
    steps : tuple of Step
        Run one after the other on what was pooled.
    origin : str
        ``modules.json`` (the model's folder says it), ``option`` (the user does) or ``default``.
    files : tuple of str
        The files of the model's folder that say so, relative to it, with ``/``: what a copy of the
        folder needs for SentenceTransformer to make the same embeddings. Empty for an option or
        the default.
    prompt : str
        Put before every text that is embedded.
    max_length : int or None
        Tokens, special ones included, at which SentenceTransformer cuts a text of this model;
        headscope cuts none.
    problem : str or None
        Why the folder's embedding cannot be made; :meth:`embed` refuses with it.
    """

    modes: tuple[str, ...] = ("mean",)
    steps: tuple[Step, ...] = ()
    origin: str = "default"
    files: tuple[str, ...] = field(default=(), repr=False)
    prompt: str = ""
    max_length: int | None = None
    problem: str | None = None

    def embed(self, hidden: Tensor, real: Tensor) -> Tensor:
        """Turn the last hidden states of a batch into its embeddings; differentiable.

        Parameters
        ----------
        hidden : Tensor, (batch, pos, d_model)
            On any device, of any type.
        real : Tensor, (batch, pos)
            0 or False at padding, on either side.

        Returns
        -------
        Tensor, (batch, d)
            In float32, or in float64 where ``hidden`` is.

        Raises
        ------
        CheckpointError
            If the folder's way is one that headscope cannot follow.

        Notes
        -----
        No control flow depends on numbers, so that it can be traced and exported.
        """
        self.check()
        pooled = torch.cat([MODES[mode](hidden, real) for mode in self.modes], dim=-1)
        for step in self.steps:
            pooled = step(pooled)
        return pooled

    def check(self) -> None:
        """Refuse what :meth:`embed` would refuse, before anything is run.

        Raises
        ------
        CheckpointError
            Saying what the model's folder asks for, and the mend.
        """
        if self.problem is not None:
            raise CheckpointError(
                f"{self.problem} Give pooling (such as mean) to compare pooled last states instead."
            )

    @property
    def identity(self) -> dict[str, object]:
        """Everything that embeddings depend on besides the model itself, as plain values."""
        weights = [step.sha256 for step in self.steps if isinstance(step, Dense)]
        return {"pooling": str(self), "weights": weights, "prompt": self.prompt}

    def __str__(self) -> str:
        """``mean``, or such as ``cls, dense 384x128 tanh, normalize``."""
        if self.problem is not None:
            return "unknown"
        return ", ".join(["+".join(self.modes), *map(str, self.steps)])


def chosen(mode: str, text: Pooling | None = None) -> Pooling:
    """Return the pooling that a user chose by name; nothing follows it.

    Parameters
    ----------
    mode : str
        One of :data:`CHOICES`.
    text : Pooling, optional
        Whose prompt and longest text hold.

    Raises
    ------
    InputError
        If there is no such mode.
    """
    if mode not in CHOICES:
        raise InputError(f"There is no pooling {mode!r}; choose {', '.join(CHOICES)}.")
    text = text or Pooling()
    return Pooling((mode,), origin="option", prompt=text.prompt, max_length=text.max_length)
