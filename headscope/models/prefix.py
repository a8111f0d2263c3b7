"""The layers before the first change, run once: many changed models begin alike.

A model that is changed in layer l computes the same as the unchanged one up to there. So what each
layer returned in the unchanged pass is kept, for one batch, and given again in place of running it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from headscope.models.hooks import hooked
from headscope.models.layouts import AttentionSite
from headscope.models.routing import Router


@dataclass
class Prefix:
    """What the layers of a model returned in one pass, in the order of their calls.

    A layer is a member of a list of modules that an attention site lies in. Where a model keeps its
    sites in no list, nothing is kept, and every pass runs whole.

    Parameters
    ----------
    model : nn.Module
        The base model.
    sites : sequence of AttentionSite
        Those that a router counts, in order of execution.
    """

    model: nn.Module
    sites: Sequence[AttentionSite]
    _outputs: list[tuple[int, Any]] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        self._layers = _layers(self.model, self.sites)

    @contextmanager
    def recording(self, router: Router) -> Iterator[None]:
        """Keep what the layers return while the block runs one pass of the unchanged model."""
        self._outputs = []

        def keep(_: nn.Module, args: object, output: Any) -> None:
            self._outputs.append((router.calls.total(), output))

        with hooked(layer.register_forward_hook(keep) for layer in self._layers):
            yield

    @contextmanager
    def replaying(self, router: Router, row: int) -> Iterator[None]:
        """Give again what the layers before the site of this row returned, for one pass.

        The sites in them count as called. The batch must be that of :meth:`recording`.
        """
        given = [(done, output) for done, output in self._outputs if done <= row]
        router.skip(max((done for done, _ in given), default=0))
        kept = iter([output for _, output in given])
        before = {layer: vars(layer).get("forward") for layer in self._layers}
        for layer in self._layers:
            vars(layer)["forward"] = _given_or(kept, layer.forward)
        try:
            yield
        finally:
            for layer, forward in before.items():
                if forward is None:
                    del vars(layer)["forward"]
                else:
                    vars(layer)["forward"] = forward


def _given_or(kept: Iterator[Any], forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return the next kept output while there is one, then run the layer."""

    def answer(*args: Any, **kwargs: Any) -> Any:
        for output in kept:
            return output
        return forward(*args, **kwargs)

    return answer


def _layers(model: nn.Module, sites: Sequence[AttentionSite]) -> list[nn.Module]:
    """List the innermost members of module lists that hold a site; each once."""
    found: dict[nn.Module, None] = {}
    names = {module: name for name, module in model.named_modules()}
    for site in sites:
        parts = names[site.module].split(".")
        for end in range(len(parts) - 1, 0, -1):
            if isinstance(model.get_submodule(".".join(parts[: end - 1])), nn.ModuleList):
                found[model.get_submodule(".".join(parts[:end]))] = None
                break
    return list(found)
