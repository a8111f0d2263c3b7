"""Layers that come before a change need not run again: what they put out is played back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headscope.data.token_rows import Padded
from headscope.models.gating import Run, gated
from headscope.models.hooks import hooked
from headscope.models.loaded import LoadedModel
from headscope.models.task_heads import Select

#: The layer that a site is in: its path up to the first number.
_LAYER = re.compile(r"(?P<list>.+?)\.(?P<index>\d+)(\.|$)")


class Replay:
    """Runs a model again and again on the same batches, with changes from some site on.

    Layers are found by name; where a model has no one list of them (an encoder-decoder model), or
    runs one module in several layers (ALBERT), everything runs. What is played back is first held
    against the model itself, bit by bit.

    Parameters
    ----------
    loaded : LoadedModel
        The model before any change.
    batches : iterable of Padded
        What it is run on.
    select : callable, optional
        What its task head gets while outputs are recorded: little.
    """

    def __init__(
        self, loaded: LoadedModel, batches: Iterable[Padded], select: Select | None = None
    ) -> None:
        self._loaded, self.batches, self._select = loaded, list(batches), select
        self._below = _layers_below(loaded)
        self._kept: dict[int, Any] = {}
        self._now = 0

    @contextmanager
    def before(self, row: int) -> Iterator[int]:
        """Play back the layers before a site's while the block runs.

        Yields the first row that runs, for ``start`` of :func:`~headscope.models.gating.gated`: 0
        where everything has to. What runs in the block goes through :meth:`following`.
        """
        layers = self._below[row] if self._below else []
        if not layers or not self._recorded(layers, row):
            yield 0
            return
        with self._answering(layers):
            yield row

    def following(self, run: Run) -> Run:
        """Return the same as ``run``, which notes what batch it is at."""

        def noted(*args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
            self._now = id(args[0])
            return run(*args, **options)

        return noted

    def _recorded(self, layers: Sequence[nn.Module], row: int) -> bool:
        """Keep what the last of some layers puts out, and say if that can stand in for them all."""
        self._kept.clear()
        hook = layers[-1].register_forward_hook(self._keep)
        with hooked([hook]):
            wanted = [self._last_states(batch, 0) for batch in self.batches]
        same = len(self._kept) == len(self.batches)  # SqueezeBERT calls its layers past hooks
        if same:
            with self._answering(layers):
                again = [self._last_states(batch, row) for batch in self.batches]
            same = all(map(torch.equal, wanted, again))
        if not same:
            self._below = []
        return same

    def _last_states(self, batch: Padded, start: int) -> Tensor:
        with gated(self._loaded, start=start) as run:
            given = {**batch.decoder_inputs, "select": self._select}
            return self.following(run)(*batch.inputs, **given)[0]

    def _keep(self, _: nn.Module, args: object, out: object) -> None:
        self._kept[self._now] = out

    @contextmanager
    def _answering(self, layers: Sequence[nn.Module]) -> Iterator[None]:
        """Let some layers return what was kept of the batch that runs."""

        def answer(*args: Any, **options: Any) -> Any:
            return self._kept[self._now]

        for layer in layers:
            vars(layer)["forward"] = answer
        try:
            yield
        finally:
            for layer in layers:
                del vars(layer)["forward"]


def _layers_below(loaded: LoadedModel) -> list[list[nn.Module]]:
    """List the layers before each site's; nothing where they are not one list."""
    found = [_LAYER.match(site.name) for site in loaded.sites]
    places = [(match["list"], int(match["index"])) for match in found if match]
    one_list = len({name for name, _ in places}) == 1 and len(set(places)) == len(loaded.sites)
    if loaded.encoder_decoder or not one_list or len(places) < len(found):
        return []
    container = loaded.model.get_submodule(places[0][0])
    return [list(container)[:index] for _, index in places]
