"""Layers before a change need not run again: what they returned is played back.

One pass is recorded, and later passes that differ from some site on get the recorded output of
every layer that had returned before that site ran. :class:`Replay` records and plays back single
passes; :class:`Rerun` runs versions of a model over many batches.

A layer is the outermost member of a list of modules that an attention site lies in. Where a model
keeps its sites in no list, or calls its layers past hooks (SqueezeBERT), nothing is recorded, and
every pass runs in full. A module that serves several layers (ALBERT) answers each call in its turn.
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

#: Bytes of states that :class:`Rerun` records at most; beyond, every layer runs every time.
RECORDED = 1 << 28


@dataclass(frozen=True)
class LayerCall:
    """What one call of a layer returned, and which sites had run by then."""

    seen: frozenset[tuple[str, int]]  # Sites as (stack, layer)
    output: Any
    chained: bool  # Whether the layer was given the very tensor that the call before returned


@dataclass
class Recorded:
    """One recorded pass."""

    calls: list[LayerCall] = field(default_factory=list)  # In their order

    def calls_before(self, site: AttentionSite) -> int:
        """Count the layers that had returned before a site ran."""
        return len([call for call in self.calls if (site.stack, site.layer) not in call.seen])

    def only_before(self, site: AttentionSite) -> Recorded:
        """Return what a pass that differs from this site on needs: less memory, for many batches.

        A layer that is played back ignores what it is given. Of four layers in a chain that come
        before the site, only the fourth's output is read, by the layer that runs; those of the
        first three are handed to layers that ignore them. So the fourth's stands in place of all
        three, and one state is held.
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

    The model runs through our attention in the block, as in
    :func:`~headscope.models.run.intervene.intervene`.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._sites = loaded.sites
        self._layers: list[nn.Module] = []
        for name, layers in layer_lists(loaded.model, loaded.sites).items():
            for index, sites in enumerate(layers):
                if sites:
                    self._layers.append(loaded.model.get_submodule(f"{name}.{index}"))

    @contextmanager
    def recording(self) -> Iterator[Recorded]:
        """Keep what the layers return while the block runs one pass."""
        recorded = Recorded()

        def keep(_: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            before = first_tensor(recorded.calls[-1].output) if recorded.calls else None
            chained = before is not None and first_tensor(args, kwargs) is before
            recorded.calls.append(LayerCall(frozenset(current_router().calls), output, chained))

        with hooked(layer.register_forward_hook(keep, with_kwargs=True) for layer in self._layers):
            yield recorded

    @contextmanager
    def playing(self, recorded: Recorded, row: int, copies: int = 1) -> Iterator[None]:
        """Play back, for one pass, what the layers before the site of this row returned.

        The sites in them count as called. The batch must be the recorded one, or so many copies of
        it, one after the other.
        """
        before = recorded.calls[: recorded.calls_before(self._sites[row])]
        if not before:
            yield
            return
        outputs = deque([_repeated(call.output, copies) for call in before])

        def with_outputs(forward: Callable[..., Any]) -> Callable[..., Any]:
            def played(*args: Any, **kwargs: Any) -> Any:
                return outputs.popleft() if outputs else forward(*args, **kwargs)

            return played

        forwards = {layer: with_outputs(layer.forward) for layer in self._layers}
        with current_router().skipping(before[-1].seen), replaced_forwards(forwards):
            yield


class Rerun:
    """Runs versions of a model again and again on the same batches, changed from some site on.

    What is played back is first compared, on one batch, with the model itself, bit by bit.
    ``select`` picks the little that the task head gets in recorded passes.
    """

    def __init__(
        self, loaded: LoadedModel, batches: Iterable[Padded], select: Select | None = None
    ) -> None:
        self.loaded = loaded
        self.batches = list(batches)
        self._select = select
        self._replay = Replay(loaded)
        self._row = 0
        self._recorded: dict[int, Recorded] = {}  # By the identity of a batch's token ids
        table = loaded.model.get_input_embeddings().weight
        # A layer has a state for each token, and a decoder's layer one for each of its own tokens.
        tokens = [batch.inputs[0] for batch in self.batches]
        tokens += [batch.hidden_mask for batch in self.batches if batch.decoder_inputs]
        n_states = sum(ids.numel() for ids in tokens)
        self._fits = n_states * table.shape[-1] * table.element_size() <= RECORDED

    def start_at(self, row: int) -> None:
        """Continue with versions that equal the model before the site of this row."""
        self._row = row
        self._recorded = {}
        if not (row and self._fits):
            return
        recorded: dict[int, Recorded] = {}
        with gated(self.loaded) as run:
            for batch in self.batches:
                with self._replay.recording() as full_pass:
                    states = self._last_states(run, batch)
                needed = full_pass.only_before(self.loaded.sites[row])
                if not recorded and not self._plays_back(run, batch, needed, states):
                    return
                recorded[id(batch.inputs[0])] = needed
        self._recorded = recorded

    def _plays_back(self, run: Run, batch: Padded, recorded: Recorded, states: Tensor) -> bool:
        """Whether a pass with recorded layers gives the model's own states, bit by bit."""
        with self._replay.playing(recorded, self._row):
            return torch.equal(self._last_states(run, batch), states)

    def again(self, run: Run, version: LoadedModel) -> Run:
        """Let ``run``, of the model or of a changed copy, play back layers for its batches."""
        replay = self._replay if version is self.loaded else Replay(version)

        def played(*inputs: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
            with replay.playing(self._recorded.get(id(inputs[0]), Recorded()), self._row):
                return run(*inputs, **options)

        return played

    def _last_states(self, run: Run, batch: Padded) -> Tensor:
        return run(*batch.inputs, **batch.decoder_inputs, select=self._select)[0]


def _repeated(output: Any, copies: int) -> Any:
    """Return what a layer would return for so many copies of its batch, one after the other.

    Tensors with a row for each text are repeated; T5's bias has one row, which all texts share.
    """
    if copies == 1:
        return output
    n_texts = len(first_tensor(output))

    def repeated(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(repeated, value))
        if not torch.is_tensor(value) or value.shape[:1] != (n_texts,):
            return value
        return value.repeat(copies, *[1] * (value.dim() - 1))

    return repeated(output)
