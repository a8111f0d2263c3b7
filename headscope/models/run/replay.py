"""Layers before a change need not run again: their recorded outputs are played back.

To see the effect of removing a head in layer 3, layers 0, 1 and 2 are run once and recorded; every
later pass takes their outputs from the record and computes from layer 3 on. :class:`Replay` records
and plays back single passes; :class:`Rerun`, at the end, does so for many batches. A *site* is a
layer's attention, and its *row* its place among the sites of the model.

A layer is the outermost member of a list of modules that an attention site lies in. Where a model
keeps its sites in no list, or calls its layers past hooks (SqueezeBERT), nothing is recorded, and
every pass runs in full. A module that serves several layers (ALBERT) is recorded once a call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from headscope.data.token_rows import Padded
from headscope.models.layouts.layout import AttentionSite
from headscope.models.layouts.sites import layer_lists
from headscope.models.run.hooks import first_tensor, hooked, replaced_forwards, with_first
from headscope.models.run.intervene import Run, gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.routing import current_router
from headscope.models.run.task_heads import Select

#: Bytes of states that :class:`Rerun` records at most; for more, every layer runs every time.
MOST_RECORDED = 1 << 28


@dataclass(frozen=True)
class LayerCall:
    """One call of a layer: its output, and which sites had run when it returned."""

    sites_run: frozenset[tuple[str, int]]  # As (stack, layer)
    output: Any
    chained: bool  # Whether the layer was given the very tensor that the call before returned


@dataclass
class Recorded:
    """One recorded pass; without calls, nothing can be played back."""

    calls: list[LayerCall] = field(default_factory=list)  # In their order

    def calls_before(self, site: AttentionSite) -> int:
        """Count the layers that had returned before a site ran."""
        return len([call for call in self.calls if (site.stack, site.layer) not in call.sites_run])

    def only_before(self, site: AttentionSite) -> Recorded:
        """Return the calls before a site, holding one state in place of one for each layer.

        A layer that is played back ignores its input. So of chained layers A, B and C before the
        site only C's output c is read, by the layer that runs next; A and B may as well "return"
        it: outputs a, b, c -> c, c, c, and the memory of a and b is free.
        """
        calls = self.calls[: self.calls_before(site)]
        for index in reversed(range(len(calls) - 1)):
            following = calls[index + 1]
            if following.chained:
                state = first_tensor(following.output)
                output = with_first(calls[index].output, state)
                calls[index] = replace(calls[index], output=output)
        return Recorded(calls)


class Replay:
    """Records passes of one model, and plays back the layers before a change.

    Both are for use inside a block of :func:`~headscope.models.run.intervene.intervene`, whose
    router counts the sites that have run.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._sites = loaded.sites
        self._layers: list[nn.Module] = []  # Those that attention lies in
        for name, layers in layer_lists(loaded.model, loaded.sites).items():
            for index, sites in enumerate(layers):
                if sites:
                    self._layers.append(loaded.model.get_submodule(f"{name}.{index}"))

    @contextmanager
    def recording(self) -> Iterator[Recorded]:
        """Record the outputs of the layers while the block runs one pass."""
        recorded = Recorded()

        def keep(_: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            previous = first_tensor(recorded.calls[-1].output) if recorded.calls else None
            chained = previous is not None and first_tensor(args, kwargs) is previous
            sites_run = frozenset(current_router().calls)
            recorded.calls.append(LayerCall(sites_run, output, chained))

        with hooked(layer.register_forward_hook(keep, with_kwargs=True) for layer in self._layers):
            yield recorded

    @contextmanager
    def playing(self, recorded: Recorded, row: int, copies: int = 1) -> Iterator[None]:
        """Play back, for one pass, the layers before ``self.sites[row]``.

        The router counts the sites in them as called. The batch must be the recorded one, or
        ``copies`` of it, one after the other.
        """
        calls = recorded.calls[: recorded.calls_before(self._sites[row])]
        if not calls:
            yield
            return
        outputs = deque([_repeated(call.output, copies) for call in calls])

        def playing_first(forward: Callable[..., Any]) -> Callable[..., Any]:
            """Return a forward that takes the next recorded output, and computes when none is left.

            All layers share ``outputs``: layers run in the order in which they were recorded.
            """

            def played(*args: Any, **kwargs: Any) -> Any:
                return outputs.popleft() if outputs else forward(*args, **kwargs)

            return played

        forwards = {layer: playing_first(layer.forward) for layer in self._layers}
        with current_router().skipping(calls[-1].sites_run), replaced_forwards(forwards):
            yield


class Rerun:
    """Runs changed versions of a model again and again on the same batches.

    Set :meth:`start_at` to the first site that the next versions change, then run each of them by
    the function that :meth:`again` returns.

    ``batches`` hold the token ids and masks that the model is called with. ``select`` picks what
    the task head gets in the recorded passes, whose logits nobody reads: one position, say.
    """

    def __init__(
        self, loaded: LoadedModel, batches: Iterable[Padded], select: Select | None = None
    ) -> None:
        self.loaded = loaded
        self.batches = list(batches)
        self._select = select
        self._replay = Replay(loaded)
        self._first_changed_row = 0
        #: By the batch's ``input_ids``; a tensor is hashed by its identity, not by its numbers.
        self._recorded: dict[Tensor, Recorded] = {}

    def start_at(self, row: int) -> None:
        """Continue with versions that change nothing before the site of this row.

        The first batch is run twice: where the recorded layers do not give the model's own last
        states, bit by bit, nothing is played back.
        """
        self._first_changed_row = row
        self._recorded = {}
        if row == 0 or self._bytes_of_states() > MOST_RECORDED:
            return
        recorded: dict[Tensor, Recorded] = {}
        with gated(self.loaded) as run:
            for batch in self.batches:
                with self._replay.recording() as full_pass:
                    states = self._last_states(run, batch)
                needed = full_pass.only_before(self.loaded.sites[row])
                is_first = not recorded
                if is_first and not self._plays_back(run, batch, needed, states):
                    return
                recorded[batch.input_ids] = needed
        self._recorded = recorded

    def again(self, run: Run, version: LoadedModel) -> Run:
        """Return ``run``, of the model or of a changed copy, with the recorded layers played back.

        Batches that were not recorded run in full.
        """
        replay = self._replay if version is self.loaded else Replay(version)

        def played(input_ids: Tensor, *inputs: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
            recorded = self._recorded.get(input_ids, Recorded())
            with replay.playing(recorded, self._first_changed_row):
                return run(input_ids, *inputs, **options)

        return played

    def _bytes_of_states(self) -> int:
        """Return the memory of one state for each token, and for each that a decoder reads."""
        table = self.loaded.model.get_input_embeddings().weight
        n_states = 0
        for batch in self.batches:
            n_states += batch.input_ids.numel()
            if batch.decoder_ids is not None:
                n_states += batch.decoder_ids.numel()
        return n_states * int(table.shape[-1]) * int(table.element_size())

    def _plays_back(self, run: Run, batch: Padded, recorded: Recorded, states: Tensor) -> bool:
        """Whether a pass with recorded layers gives the model's own last states, bit by bit."""
        with self._replay.playing(recorded, self._first_changed_row):
            return torch.equal(self._last_states(run, batch), states)

    def _last_states(self, run: Run, batch: Padded) -> Tensor:
        """Run one batch, and return its last hidden states (batch, pos, d_model)."""
        return run(*batch.inputs, **batch.decoder_inputs, select=self._select)[0]


def _repeated(output: Any, copies: int) -> Any:
    """Return what a layer would return for ``copies`` of its batch, one after the other.

    Of texts a, b and two copies: states of a, b -> states of a, b, a, b. T5's bias, which follows
    its states, has one row for all texts and stays as it is.
    """
    if copies == 1:
        return output
    n_texts = len(first_tensor(output))

    def repeated(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(repeated, value))
        if not torch.is_tensor(value) or value.shape[:1] != (n_texts,):
            return value
        return torch.cat([value] * copies)

    return repeated(output)
