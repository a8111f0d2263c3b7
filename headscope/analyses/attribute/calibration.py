"""Calibration text, and the mean output z of every head on it.

Where a head is removed "with its mean left", its z becomes its mean over these texts: one mean for
ordinary tokens and one for special tokens. The first token of a text that a causal model reads
counts as special: heads park their attention there, as elsewhere on [CLS] (arXiv:2309.17453). These
texts share no sentence with what is taken apart.

A ``Row`` is one tokenised text; a ``PairRow`` a source with the target that a decoder writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscope.analyses.attribute import AttributeOptions
from headscope.analyses.attribute.targets import generated_pairs
from headscope.core.errors import CorpusError
from headscope.data.corpus import as_plain
from headscope.data.examples import Examples, read_translations
from headscope.data.tables import TABLES
from headscope.data.token_rows import (
    Padded,
    PairRow,
    Row,
    encode_pairs,
    encode_rows,
    filled,
    padded,
)
from headscope.data.unshared import without_shared
from headscope.models.run.intervene import Means, sums_of_z
from headscope.models.run.loaded import LoadedModel, ends_of

TEXTS = 64  # Texts that heads' means are taken over, spread evenly over the file.
GENERATED = 16  # Fewer where the model has to write targets, since the text has sources alone.
_ROWS_AT_ONCE = 32

#: Called with a text; returns what stands in for the z of removed heads in it: (1, n_heads, pos,
#: d_head) for each attention layer, by its row.
Replacement = Callable[[Row], Means]


def evenly_spaced(n: int, most: int) -> list[int]:
    """Return at most ``most`` indices below ``n`` at even distances: 6, 3 -> [0, 2, 4]."""
    count = min(n, most)
    return [i * n // count for i in range(count)]


# --- the texts ------------------------------------------------------------------------------------


def calibration_rows(
    loaded: LoadedModel,
    kind: str,
    options: AttributeOptions,
    data: Examples | None,
    texts: Sequence[str],
) -> tuple[list[Row], dict[str, Any]]:
    """Return the texts that heads' means are taken over, and what the result says of them.

    For a target they are pairs of the calibration file, else of the data, else sources of the
    built-in sample with what the model writes for them. What is taken apart are the ``texts``, or
    the ``data``.
    """
    source = _calibration_source(kind, options, data)
    measured_texts = Examples("texts", "", first=tuple(texts)) if data is None else data
    unshared = without_shared(source, measured_texts)
    generates = kind == "target" and source.second is None
    most = GENERATED if generates else TEXTS
    chosen = unshared.examples.pick(evenly_spaced(len(unshared.examples), most))

    encoded: Iterator[Row | None]
    if generates:
        encoded = generated_pairs(loaded, chosen.first)
    elif kind == "target":
        encoded = encode_pairs(loaded, chosen.first, chosen.second or (), ends_of(loaded))
    else:
        prompt = loaded.pooling.prompt if kind == "cosine" else ""
        encoded = encode_rows(loaded, [prompt + line for line in chosen.first], None)
    rows = [row for row in encoded if row is not None and row.content]
    if len(rows) < 2:
        remedy = "another text for calibration"
        if kind == "target":
            remedy = "calibration pairs, source and target"
        raise CorpusError(
            f"{source.name} has fewer than two lines that fit {loaded.name}; give {remedy}."
        )
    description = {
        "name": source.name,
        "sha256": source.sha256,
        "lines": len(rows),
        "dropped": unshared.dropped,
        "same": unshared.same,
        "tokens": sum(len(row.ids) for row in rows),
    }
    return rows, description


def _calibration_source(kind: str, options: AttributeOptions, data: Examples | None) -> Examples:
    """Read the calibration text; for a target a table of pairs, else the pairs of the data."""
    text = options.calibration
    if kind == "target":
        if text is None and data is not None:
            return data
        if isinstance(text, str | Path) and Path(text).suffix.lower() in TABLES:
            return read_translations(text)
    plain = as_plain(text)
    return Examples(plain.name, plain.sha256, first=tuple(plain.lines()))


# --- heads' means over them -----------------------------------------------------------------------


def mean_outputs(loaded: LoadedModel, rows: Sequence[Row]) -> Replacement:
    """Average every head's z over the positions of some texts, special tokens apart.

    Returns what stands in for z in another text: at each position the mean of its kind, ordinary
    or special.
    """
    # By row of the attention layer: sums (2, n_heads, d_head), counts (2,); ordinary tokens first
    sums, counts = sums_of_z(loaded, _batches_with_kinds(loaded, rows), kinds=2)
    ordinary_means: dict[int, Tensor] = {}  # (n_heads, 1, d_head)
    special_means: dict[int, Tensor] = {}
    for layer_row, (ordinary_sum, special_sum) in sums.items():
        n_ordinary, n_special = counts[layer_row]
        ordinary_mean = (ordinary_sum / n_ordinary.clamp(min=1))[:, None]
        ordinary_means[layer_row] = ordinary_mean
        special_means[layer_row] = ordinary_mean
        if n_special > 0:
            special_means[layer_row] = (special_sum / n_special)[:, None]

    def means_for(text: Row) -> Means:
        """Give each position of a text the mean z of its kind."""
        means = {}
        for site in loaded.sites:
            is_ordinary = _ordinary_tokens([text], site.stack)[:, None, :, None]
            means[site.row] = torch.where(
                is_ordinary, ordinary_means[site.row], special_means[site.row]
            )
        return means

    return means_for


def _batches_with_kinds(
    loaded: LoadedModel, rows: Sequence[Row]
) -> Iterator[tuple[Padded, dict[str, tuple[Tensor, Tensor]]]]:
    """Yield padded texts with two masks for each stack: of ordinary, and of special tokens."""
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        batch_rows = rows[start : start + _ROWS_AT_ONCE]
        batch = padded(batch_rows, loaded.pad_id, loaded.device)
        masks = {}
        for stack in loaded.stacks:
            ordinary = _ordinary_tokens(batch_rows, stack).to(loaded.device)
            real = batch.queries_of(stack).bool()
            masks[stack] = (real & ordinary, real & ~ordinary)
        yield batch, masks


def _ordinary_tokens(rows: Sequence[Row], stack: str) -> Tensor:
    """Return where a stack's queries are ordinary tokens, (batch, pos): not special, no padding.

    A decoder's first token is none: the start token, or the first token of a text.
    """
    marks = []
    for row in rows:
        length = len(row.ids)
        content: Sequence[int] = row.content
        if stack != "encoder":
            if isinstance(row, PairRow):
                length = len(row.labels)
                content = row.decoder_content
            content = [position for position in content if position > 0]
        marks.append([int(position in content) for position in range(length)])
    return filled(marks, 0).bool()
