"""Calibration text, and what heads put out on it on average.

A head that is removed by its mean leaves its mean z over these texts behind, special tokens apart.
They share no sentence with what is taken apart.
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
from headscope.data.examples import Examples, read_translations, without_shared
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
from headscope.models.run.intervene import Means, sums_of_z
from headscope.models.run.loaded import LoadedModel, ends_of

TEXTS = 64  # Texts that heads' means are taken over, spread evenly over the file.
GENERATED = 16  # Sources of a text without targets, which the model then generates.
_ROWS_AT_ONCE = 32

#: What stands in for removed heads' z in a text, (1, n_heads, pos, d_head) by row of the site.
Replacement = Callable[[Row], Means]


def spread(n: int, most: int) -> list[int]:
    """Return at most ``most`` indices below ``n``, evenly spread."""
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
    """Return the texts that heads' means are taken over, and what they are, as in the result.

    For a target they are pairs of the calibration file, else of the data, else sources of the
    built-in sample with what the model writes for them. ``texts`` are those that are taken apart,
    where there is no ``data``.
    """
    source = _calibration_source(kind, options, data)
    measured_texts = data or Examples("texts", "", first=tuple(texts))
    unshared = without_shared(source, measured_texts)
    generates = kind == "target" and source.second is None
    most = GENERATED if generates else TEXTS
    chosen = unshared.examples.pick(spread(len(unshared.examples), most))

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
    sums, counts = sums_of_z(loaded, _batches_with_kinds(loaded, rows), kinds=2)
    ordinary_means: dict[int, Tensor] = {}  # (n_heads, 1, d_head), by row of the site
    special_means: dict[int, Tensor] = {}
    for row, total in sums.items():
        # The ordinary mean stands in where no token is special.
        special = 1 if counts[row][1] else 0
        ordinary_means[row] = (total[0] / counts[row][0].clamp(min=1))[:, None]
        special_means[row] = (total[special] / counts[row][special].clamp(min=1))[:, None]

    def at_mean(text: Row) -> Means:
        """Give each position of a text the mean z of its kind."""
        replaced = {}
        for site in loaded.sites:
            ordinary = _ordinary_tokens([text], site.stack)[:, None, :, None]
            replaced[site.row] = torch.where(
                ordinary, ordinary_means[site.row], special_means[site.row]
            )
        return replaced

    return at_mean


def _batches_with_kinds(
    loaded: LoadedModel, rows: Sequence[Row]
) -> Iterator[tuple[Padded, dict[str, tuple[Tensor, Tensor]]]]:
    """Pad texts, with masks of their ordinary and of their special tokens by stack."""
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
    """Return which of a stack's queries are ordinary tokens, not special ones: (batch, pos)."""
    marks = []
    for row in rows:
        length = len(row.ids)
        content = row.content
        if stack != "encoder" and isinstance(row, PairRow):
            length = len(row.labels)
            content = row.decoder_content
        marks.append([int(position in content) for position in range(length)])
    return filled(marks, 0).bool()
