"""The experts that a mixture of experts chose in one run, for others to choose the same.

Which experts read a token is a comparison: of 2.001 and 2.000, the first. Where two experts are
about equal, rounding decides, and from there on two correct runs of a model go different ways. So
runs that are compared choose as the first of them did (:class:`ExpertChoices`), and how often
they would have chosen otherwise is counted.

A *choice* is whatever whole numbers or truth values a block of experts makes of a token's real
numbers: the indices of a ``topk``, an ``argmax``, a comparison with a threshold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headscope.models.run.hooks import first_tensor, replaced_forwards

#: The child by which transformers' blocks of experts are told from other modules.
_EXPERTS = "experts"


class ExpertChoices:
    """What a model's blocks of experts chose in one run, call by call."""

    def __init__(self, model: nn.Module) -> None:
        self._blocks = [module for module in model.modules() if hasattr(module, _EXPERTS)]
        #: By block, in the order in which they were made.
        self._made: dict[nn.Module, list[Tensor]] = defaultdict(list)
        self.count = 0  # How many were made
        #: The most that any later run would have made otherwise.
        self.otherwise = 0

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the choices of the run in the block."""
        self._made.clear()
        self.count = 0
        with self._watched(self._keep):
            yield

    @contextmanager
    def repeated(self, batch: int) -> Iterator[None]:
        """Let the run in the block, on the same ``batch`` texts, choose as the kept one did.

        Its texts may be padded further on the right.
        """
        made = {module: iter(choices) for module, choices in self._made.items()}
        changed = [0]

        def repeat(module: nn.Module, choice: Tensor) -> Tensor:
            kept = next(made.get(module, iter(())), None)
            if kept is None:
                return choice
            same = _in_place_of(choice, kept, batch)
            changed[0] += int((same != choice).sum())
            return same

        with self._watched(repeat):
            yield
        self.otherwise = max(self.otherwise, changed[0])

    def _keep(self, module: nn.Module, choice: Tensor) -> Tensor:
        self._made[module].append(choice)
        self.count += choice.numel()
        return choice

    @contextmanager
    def _watched(self, decide: Callable[[nn.Module, Tensor], Tensor]) -> Iterator[None]:
        """Put every choice of every block through ``decide``, which is given the block too."""
        forwards: dict[nn.Module, Callable[..., Any]] = {}
        for block in self._blocks:
            forwards[block] = _deciding(block, decide)
        with replaced_forwards(forwards):
            yield


def _deciding(
    block: nn.Module, decide: Callable[[nn.Module, Tensor], Tensor]
) -> Callable[..., Any]:
    """Return the forward of a block with its choices put through ``decide``."""
    forward = block.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        x = first_tensor(args, kwargs)  # (batch, pos, d_model) or (batch * pos, d_model)
        n_tokens = x.numel() // x.shape[-1]
        with _Choosing(n_tokens, lambda choice: decide(block, choice)):
            return forward(*args, **kwargs)

    return run


class _Choosing(TorchFunctionMode):
    """Puts through ``decide`` what torch's functions choose from the numbers of each token."""

    def __init__(self, n_tokens: int, decide: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._n_tokens = n_tokens
        self._decide = decide

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of torch: torch calls this for every function in the block."""
        options = dict(kwargs or {})
        result = func(*args, **options)
        numbers = args[0] if args else options.get("input")
        if not (isinstance(numbers, Tensor) and numbers.is_floating_point()):
            return result
        if isinstance(result, Tensor):
            return self._decide(result) if self._is_choice(result) else result
        indices = getattr(result, "indices", None)  # of topk, sort, max and min along an axis
        if not isinstance(indices, Tensor) or not self._is_choice(indices):
            return result
        decided = self._decide(indices)
        axis = _axis_of(func, args, options)
        if indices.dim() == numbers.dim():
            values = numbers.gather(axis, decided)
        else:  # an axis of one that is not kept
            values = numbers.gather(axis, decided.unsqueeze(axis)).squeeze(axis)
        return type(result)((values, decided))

    def _is_choice(self, result: Tensor) -> bool:
        """Whether a result is of whole numbers or truth values, and of every token."""
        if result.is_floating_point() or not result.dim():
            return False  # e.g. how many tokens each expert reads
        return self._n_tokens in (len(result), result.shape[:2].numel())


def _axis_of(func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> int:
    """Return the axis along which ``topk``, ``sort``, ``max`` or ``min`` chose; the last if unsaid.

    It is the first argument after the numbers, of topk after k.
    """
    position = 2 if getattr(func, "__name__", "") == "topk" else 1
    axis: int = args[position] if len(args) > position else options.get("dim", -1)
    return axis


def _in_place_of(choice: Tensor, kept: Tensor, batch: int) -> Tensor:
    """Return what was kept; where texts are padded further now, with the choices there behind it.

    Both are (batch * pos, ...) or (batch, pos, ...).
    """
    if choice.shape == kept.shape:
        return kept
    by_text = choice.reshape(batch, -1).clone()
    kept_by_text = kept.reshape(batch, -1)
    by_text[:, : kept_by_text.shape[1]] = kept_by_text
    return by_text.reshape(choice.shape)
