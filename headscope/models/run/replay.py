"""Layers that come before a change need not run again: what they returned is played back.

:class:`Replay` serves many changes at one site over many batches, :class:`Prefix` many sites on
one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from headscope.data.token_rows import Padded
from headscope.models.layouts.layout import AttentionSite
from headscope.models.run.hooks import hooked, replaced_forwards
from headscope.models.run.intervene import Run, gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import Router
from headscope.models.run.task_heads import Select
from headscope.models.run.watched import watch

#: The batch that runs, by the identity of its token ids: each thread has one of its own.
_now: ContextVar[int] = ContextVar("headscope_replayed")


class Replay:
    """Runs a model again and again on the same batches, with changes from some site on.

    A model without a single list of layers (an encoder-decoder model), or with one module in
    several layers (ALBERT), runs as a whole. What is played back is first compared with the model
    itself, bit by bit; ``select`` picks the little that the task head gets in this comparison.
    """

    def __init__(
        self, loaded: LoadedModel, batches: Iterable[Padded], select: Select | None = None
    ) -> None:
        self._loaded, self.batches, self._select = loaded, list(batches), select
        self._below = _layers_below(loaded)
        self._kept: dict[int, Any] = {}

    @contextmanager
    def before(self, row: int) -> Iterator[int]:
        """Play back the layers before a site's while the block runs.

        Yields the first row that runs, for ``start`` of
        :func:`~headscope.models.run.intervene.gated`: 0 where everything has to. What runs in the
        block goes through :meth:`following`.
        """
        start = self.keep(row)
        with self.answering(self._loaded, start):
            yield start

    def keep(self, row: int) -> int:
        """Keep what the layers before a site's return; gives the first row that has to run."""
        return row if self._below and row and self._recorded(row) else 0

    @contextmanager
    def playing(
        self, start: int, changed: LoadedModel, gates: Tensor | None = None
    ) -> Iterator[Run]:
        """Yield a function that runs the model or a copy, changed from the row ``start`` on."""
        with self.answering(changed, start), gated(changed, gates, start=start) as run:
            yield self.following(run)

    def answering(self, changed: LoadedModel, start: int) -> AbstractContextManager[None]:
        """Play back the layers before a row of the model, or of a copy of it, in the block.

        ``start`` is what :meth:`keep` gave last. What runs goes through :meth:`following`.
        """
        answer: Callable[..., Any] = lambda *_, **__: self._kept[_now.get()]  # noqa: E731
        layers = self._below[start] if start else []
        return replaced_forwards(dict.fromkeys(map(changed.model.get_submodule, layers), answer))

    def following(self, run: Run) -> Run:
        """Return ``run``, wrapped so that it notes which batch it runs."""

        def noted(*args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
            _now.set(id(args[0]))
            return run(*args, **options)

        return noted

    def _recorded(self, row: int) -> bool:
        """Keep the output of the layer before a row; return whether it can replace all before."""

        def keep(_: nn.Module, args: object, output: object) -> None:
            self._kept[_now.get()] = output

        self._kept.clear()
        last = self._loaded.model.get_submodule(self._below[row][-1])
        with hooked([last.register_forward_hook(keep)]):
            wanted = [self._last_states(batch, 0) for batch in self.batches]
        same = len(self._kept) == len(self.batches)  # SqueezeBERT calls its layers past hooks
        if same:
            with self.answering(self._loaded, row):
                again = [self._last_states(batch, row) for batch in self.batches]
            same = all(map(torch.equal, wanted, again))
        if not same:
            self._below = []
        return same

    def _last_states(self, batch: Padded, start: int) -> Tensor:
        with gated(self._loaded, start=start) as run:
            options = {**batch.decoder_inputs, "select": self._select}
            return self.following(run)(*batch.inputs, **options)[0]


def _layers_below(loaded: LoadedModel) -> list[list[str]]:
    """Return the names of the layers before each site's; none where they are not a single list."""
    if loaded.encoder_decoder:
        return []
    seen, names = watch(loaded), {module: name for name, module in loaded.model.named_modules()}
    layers = [names[seen.around([site])[-1].place.module] for site in loaded.sites]
    one_row = len(set(layers)) == len(layers)
    return [layers[:row] for row in range(len(layers))] if one_row else []


class Prefix:
    """What the layers of a base model returned in one pass, in the order of their calls.

    A layer is the innermost member of a list of modules that an attention site lies in. Where a
    model keeps its sites in no list, nothing is kept, and every pass runs whole. Queries, keys and
    values of the first layer that runs again are kept too.
    """

    def __init__(self, model: nn.Module, sites: Sequence[AttentionSite]) -> None:
        #: Each layer's output, and the sites, as (stack, layer), that had run when it returned.
        self._outputs: list[tuple[set[tuple[str, int]], Any]] = []
        #: Projected queries, keys and values, with the layers and sites that had run before.
        self._projected: list[tuple[int, set[tuple[str, int]], Any]] = []
        self._sites = sites
        layers: dict[nn.Module, None] = {}
        names = {module: name for name, module in model.named_modules()}
        for site in sites:
            parts = names[site.module].split(".")
            for end in range(len(parts) - 1, 0, -1):
                if isinstance(model.get_submodule(".".join(parts[: end - 1])), nn.ModuleList):
                    layers[model.get_submodule(".".join(parts[:end]))] = None
                    break
        self._layers = list(layers)
        maps = [getattr(site.projections, name).module for site in sites for name in "qkv"]
        self._maps = list(dict.fromkeys(maps))

    @contextmanager
    def recording(self, router: Router) -> Iterator[None]:
        """Keep what the layers return while the block runs one pass of the unchanged model."""
        self._outputs, self._projected = [], []

        def keep(_: nn.Module, args: object, output: Any) -> None:
            self._outputs.append((set(router.calls), output))

        def keep_projected(_: nn.Module, args: object, output: Any) -> None:
            self._projected.append((len(self._outputs), set(router.calls), output))

        hooks = [layer.register_forward_hook(keep) for layer in self._layers]
        hooks += [linear.register_forward_hook(keep_projected) for linear in self._maps]
        with hooked(hooks):
            yield

    def before(self, row: int) -> int:
        """Count the layers that had returned before the site of this row ran."""
        site = self._sites[row]
        return sum((site.stack, site.layer) not in seen for seen, _ in self._outputs)

    @contextmanager
    def replaying(self, router: Router, row: int, copies: int = 1) -> Iterator[None]:
        """Play back what the layers before the site of this row returned, for one pass.

        The sites in them count as called. The batch must be that of :meth:`recording`, or so many
        copies of it, one after the other.
        """
        before = self._outputs[: self.before(row)]
        skipped = before[-1][0] if before else set()
        router.skip(skipped)
        kept = iter([_repeated(output, copies) for _, output in before])
        # Positions are projected too, in some families: these have no copies.
        at = (len(before), skipped)
        projected = iter([x for *seen, x in self._projected if (*seen,) == at and copies == 1])

        def kept_or(kept: Iterator[Any], forward: Callable[..., Any]) -> Callable[..., Any]:
            def answer(*args: Any, **kwargs: Any) -> Any:
                for output in kept:
                    return output
                return forward(*args, **kwargs)

            return answer

        answers = {layer: kept_or(kept, layer.forward) for layer in self._layers}
        answers |= {linear: kept_or(projected, linear.forward) for linear in self._maps}
        with replaced_forwards(answers):
            yield


def _repeated(output: Any, copies: int) -> Any:
    """Repeat the rows of every tensor that a layer returned."""
    if copies == 1:
        return output
    if isinstance(output, tuple):
        return tuple(_repeated(part, copies) for part in output)
    return output.repeat(copies, *[1] * (output.dim() - 1)) if torch.is_tensor(output) else output
