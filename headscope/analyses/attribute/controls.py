"""What an attribution is compared with: texts that do not belong together, and random weights.

An ``Example`` is one output that is taken apart, with its tokenised texts (``rows``).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from headscope.analyses.attribute.calibration import evenly_spaced
from headscope.analyses.attribute.outputs import Example
from headscope.data.token_rows import Row
from headscope.models.run.loaded import LoadedModel
from headscope.models.run.wrapping import wrap
from headscope.models.surgery.copies import random_twin

UNRELATED = 16  # Unrelated texts that a single example is compared with.
SHUFFLED = 256  # Examples of the data that are paired with others.
_OF_ONE_TEXT = ("class", "token", "next")  # Kinds of outputs that are logits of a single text.


def shuffled_examples(
    loaded: LoadedModel, examples: Sequence[Example], calibration: Sequence[Row]
) -> list[Example]:
    """Return examples whose output should show nothing: texts that do not belong together.

    In a file the last text of each example is exchanged for that of the next one. A single example
    gets calibration texts. Of a class or a token, the same logits are read for another text.
    """
    first = examples[0]
    if len(examples) == 1:
        if first.kind in _OF_ONE_TEXT:
            return _same_output_of(loaded, first, calibration)[:UNRELATED]
        return _paired_with(first, calibration)
    n = len(examples)
    with_next = [(examples[i], examples[(i + 1) % n]) for i in evenly_spaced(n, SHUFFLED)]
    if first.kind in _OF_ONE_TEXT:
        return [
            replace(next_one, label=example.label, against=example.against)
            for example, next_one in with_next
        ]
    return [_exchanged(example, [next_one.rows[-1]]) for example, next_one in with_next]


def _paired_with(example: Example, calibration: Sequence[Row]) -> list[Example]:
    """Pair one example's first text, or its target, with calibration texts.

    For a difference of two cosines each calibration text stands in for the second text, and the
    next one for the third.
    """
    last_ids = example.rows[-1].ids
    unrelated = [row for row in calibration if row.ids != last_ids]
    if not unrelated:
        unrelated = list(calibration)
    if len(example.rows) < 3:
        return [_exchanged(example, [row]) for row in unrelated[:UNRELATED]]
    next_ones = [*unrelated[1:], unrelated[0]]  # the first text follows the last
    second_and_third = zip(unrelated[:UNRELATED], next_ones, strict=False)
    return [_exchanged(example, texts) for texts in second_and_third]


def _exchanged(example: Example, rows: Sequence[Row]) -> Example:
    """Exchange the texts after the first of a cosine for ``rows``, or the source of a target."""
    if example.kind == "cosine":
        return replace(example, rows=(example.rows[0], *rows))
    (source,) = rows
    exchanged = replace(example.source_and_target, ids=source.ids, content=source.content)
    return replace(example, rows=(exchanged,))


def _same_output_of(loaded: LoadedModel, example: Example, rows: Sequence[Row]) -> list[Example]:
    """Return the same logits of other texts.

    A token at a mask stands in for the middle token of each text, and a next token follows it.
    """
    if example.kind == "class":
        if example.rows[0].types is not None:  # the model reads token types: 0 for a single text
            rows = [
                replace(row, types=(0,) * len(row)) if row.types is None else row for row in rows
            ]
        return [replace(example, rows=(row,)) for row in rows]
    if example.kind == "next":
        middle = [row.content[(len(row.content) - 1) // 2] for row in rows]
        return [
            replace(example, rows=(row,), position=position)
            for row, position in zip(rows, middle, strict=True)
        ]
    mask = int(loaded.tokenizer.mask_token_id)
    masked_examples = []
    for row in rows:
        position = row.content[len(row.content) // 2]
        ids = (*row.ids[:position], mask, *row.ids[position + 1 :])
        masked = replace(row, ids=ids)
        masked_examples.append(replace(example, rows=(masked,), position=position))
    return masked_examples


def random_weights(loaded: LoadedModel, seed: int) -> LoadedModel:
    """Return the model with random weights in all layers, under its own task head."""
    twin = random_twin(loaded, seed)
    if loaded.network is loaded.model:  # there is no task head
        return twin
    network = copy.deepcopy(loaded.network)
    setattr(network, network.base_model_prefix, twin.model)
    return replace(wrap(network, loaded.tokenizer, name=twin.name), pooling=loaded.pooling)
