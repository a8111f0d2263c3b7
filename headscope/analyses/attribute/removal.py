"""Measure an output without some heads, in batches: their z are zeros, or their mean.

:class:`Versions` does it for one example and any sets of heads; :func:`remove_each` removes every
head of the model in turn. An ``Example`` is one output of the model, with its texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from headscope.analyses.attribute.calibration import Replacement
from headscope.analyses.attribute.outputs import Example, select_read, value_of, vectors
from headscope.core.accumulator import Array
from headscope.core.progress import Progress
from headscope.core.widest import exact
from headscope.data.token_rows import Row, padded
from headscope.models.run.intervene import Means, gated
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.replay import Recorded, Replay

VERSIONS_AT_ONCE = 12  # Versions of a text in a batch: a layer of heads in most models.
TOKENS_AT_ONCE = 4096
LOGITS_AT_ONCE = 20_000_000  # Entries of the logits of a batch, in an encoder-decoder.

#: A head: the row of its attention layer in arrays of all layers, and its index in the layer.
HeadIndex = tuple[int, int]
HeadSet = Sequence[HeadIndex]


class Versions:
    """Versions of one example that lack some heads, many at a time, each text without padding.

    The whole model's run of each text is recorded; for each version, the layers before its first
    missing head are played back from it.
    """

    def __init__(self, loaded: LoadedModel, example: Example) -> None:
        self._loaded = loaded
        self._example = example
        self._replay = Replay(loaded)
        self._at_once = _versions_at_once(loaded, example)
        self._recorded: list[Recorded] = []  # Of each text
        whole_model: list[Tensor] = []  # The vector of each text
        for text in example.rows:
            with self._replay.recording() as recorded:
                # One version, which lacks no head; nothing is played back.
                vector = self._run(text, [()], Recorded(), first_layer=0, means=None)
            whole_model.append(vector)
            self._recorded.append(recorded)
        #: The output of the whole model
        self.output = float(value_of(example, torch.cat(whole_model)[None])[0])

    def outputs(self, removed: Sequence[HeadSet], replacement: Replacement | None = None) -> Array:
        """Return the output without each of some sets of heads, (sets,).

        Removed heads have a z of zero, or what ``replacement`` puts in its place.
        """
        texts = self._example.rows
        means = [None if replacement is None else replacement(text) for text in texts]
        outputs = np.full(len(removed), self.output)  # what holds for a set without heads
        # Sets that change the model from the same layer on run together.
        first_layers = {i: self._first_layer(heads) for i, heads in enumerate(removed) if heads}
        earliest_first = sorted(first_layers, key=lambda i: self._layers_before(first_layers[i]))
        size = self._at_once
        for start in range(0, len(earliest_first), size):
            indices = earliest_first[start : start + size]
            head_sets = [removed[i] for i in indices]
            earliest_layer = first_layers[indices[0]]
            if len(earliest_first) > size:
                # All batches have one size, since matrix products are compiled for each shape: the
                # last set stands several times in a batch that would be smaller.
                head_sets += head_sets[-1:] * (size - len(indices))
            by_text = [
                self._run(text, head_sets, recorded, earliest_layer, text_means)
                for text, recorded, text_means in zip(texts, self._recorded, means, strict=True)
            ]
            vectors_of_sets = torch.stack(by_text, 1)  # (sets, texts, d)
            values = exact(value_of(self._example, vectors_of_sets))
            outputs[indices] = values[: len(indices)].cpu().numpy()
        return outputs

    def _first_layer(self, heads: HeadSet) -> int:
        """Return the row of the attention layer that runs first of those that the heads lie in."""
        return min((row for row, _ in heads), key=self._layers_before)

    def _layers_before(self, row: int) -> int:
        """Count the layers of the model that have returned before this attention layer runs."""
        return self._recorded[0].calls_before(self._loaded.sites[row])

    def _run(
        self,
        text: Row,
        removed: Sequence[HeadSet],
        recorded: Recorded,
        first_layer: int,
        means: Means | None,
    ) -> Tensor:
        """Return the vector without each set of heads, (sets, d); ``means`` replace their z.

        The layers before the attention layer with the row ``first_layer`` are played back from the
        recorded run.
        """
        loaded = self._loaded
        gates = torch.ones(len(removed), loaded.n_layers, loaded.n_heads)
        for i, heads in enumerate(removed):
            for row, head in heads:
                gates[i, row, head] = 0.0
        batch = padded([text] * len(removed), loaded.pad_id, loaded.device)
        select = select_read(loaded, [self._example], len(removed))
        playing = self._replay.playing(recorded, first_layer, len(removed))
        with gated(loaded, gates.to(loaded.device), means=means) as run, playing:
            hidden, logits = run(*batch.inputs, **batch.decoder_inputs, select=select)
        return vectors(loaded, self._example.kind, batch, hidden, logits)


def _versions_at_once(loaded: LoadedModel, example: Example) -> int:
    """Return how many versions of an example's longest text fit into a batch, at least one."""
    longest = max(map(len, example.rows))
    most = min(VERSIONS_AT_ONCE, TOKENS_AT_ONCE // longest)
    if example.kind == "target":
        most = min(most, LOGITS_AT_ONCE // (longest * loaded.vocab_size))
    return max(1, most)


def remove_each(
    loaded: LoadedModel,
    examples: Sequence[Example],
    heads: HeadSet,
    replacements: Mapping[str, Replacement | None],
    progress: Progress,
) -> dict[str, Array]:
    """Run every example without each head in turn, and return what the output loses.

    ``replacements`` has, by a name, what a removed head leaves behind; None is a z of zero. Returns
    the output minus the output without the head, (examples, heads), under the same names.
    """
    effects = {name: np.zeros((len(examples), len(heads))) for name in replacements}
    single_heads = [(head,) for head in heads]
    for i, example in enumerate(examples):
        versions = Versions(loaded, example)
        for name, replacement in replacements.items():
            effects[name][i] = versions.output - versions.outputs(single_heads, replacement)
        progress("heads removed", i + 1, len(examples))
    return effects
