"""Read what is attributed in an encoder-decoder: logits of a target's tokens given its source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headscope.analyses.attribute.measure import Example, spread, with_next
from headscope.analyses.attribute.options import AttributeOptions
from headscope.core.errors import CorpusError, InputError
from headscope.data.corpus import as_plain
from headscope.data.examples import Examples, read_translations, without_shared
from headscope.data.files import TABLES
from headscope.data.token_rows import Ends, PairRow, encode_pairs, encode_rows, padded
from headscope.models.run.intervene import intervene
from headscope.models.run.loaded import LoadedModel, ends_of
from headscope.session.texts import handy_sentences
from headscope.tasks.seq2seq import decode_greedily

CALIBRATION = 64  # Pairs that heads' means are taken over, spread evenly over the file
OTHERS = 16  # Sources that one target is given as a control
WRITTEN = 16  # Sources read from a text without targets, which the model then generates.
MORE = 10  # Tokens that a generated target may have more than its source


def target_examples(
    loaded: LoadedModel, options: AttributeOptions
) -> tuple[list[Example], tuple[str, ...], int, Examples | None]:
    """Return the examples, the texts of a single one, how many were left out, and the data."""
    ends = ends_of(loaded)
    if options.data is not None:
        data = read_translations(options.data).draw(options.limit, options.seed)
        rows = list(encode_pairs(loaded, data.first, data.second or (), ends))
        kept = [row for row in rows if row is not None and row.content]
        if not kept:
            raise InputError(
                f"Every pair of {data.name} is longer than the {loaded.max_length} tokens that "
                f"{loaded.name} reads on either side; give others (nothing is ever cut)."
            )
        return [_example(row) for row in kept], (), len(rows) - len(kept), data
    source = options.first
    if source is None:
        handy = handy_sentences(loaded.only("encoder"), 1)
        if not handy:
            raise InputError(f"No sentence of the built-in sample fits {loaded.name}; give a text.")
        source = handy[0][0]
    if options.target is None:
        row = next(_written(loaded, [source], ends), None)
    else:
        row = next(encode_pairs(loaded, [source], [options.target], ends))
    if row is None or not row.content:
        raise InputError(
            f"The source or the target has no token, or more than the {loaded.max_length} that "
            f"{loaded.name} reads; give others (nothing is ever cut)."
        )
    if options.target is not None and loaded.tokenizer.unk_token_id in row.labels:
        raise InputError(
            f"The tokenizer of {loaded.name} has no token for a part of the target, so the model "
            "cannot write it; give another target."
        )
    target = options.target or str(loaded.tokenizer.decode(row.labels, skip_special_tokens=True))
    example = _example(row)
    if options.at is not None:
        if options.at > len(row.labels):
            raise InputError(
                f"The target has {len(row.labels)} tokens, its end token included, so none is "
                f"number {options.at}; give 'at' from 1 to {len(row.labels)}."
            )
        example = replace(example, positions=(options.at - 1,))
    return [example], (source, target), 0, None


def _example(row: PairRow) -> Example:
    return Example("target", (row,), positions=tuple(range(len(row.labels))))


def calibration_pairs(
    loaded: LoadedModel, options: AttributeOptions, data: Examples | None, texts: Sequence[str]
) -> tuple[list[PairRow], dict[str, Any]]:
    """Return pairs that heads' means are taken over, and what they are.

    They are pairs of the calibration file that share no text with what is taken apart, else of the
    data, else sources of the built-in sample with what the model writes for them. ``texts`` are
    those of a single example.
    """
    measured = data or Examples("texts", "", first=tuple(texts))
    ends, given = ends_of(loaded), options.calibration
    pairs = data if given is None else None
    if isinstance(given, str | Path) and Path(given).suffix.lower() in TABLES:
        pairs = read_translations(given)
    if pairs is not None:
        unshared = without_shared(pairs, measured)
        pairs = unshared.examples
        chosen = spread(len(pairs.first), CALIBRATION)
        sources, targets = ([side[i] for i in chosen] for side in (pairs.first, pairs.second or ()))
        found = encode_pairs(loaded, sources, targets, ends)
        name, sha256 = pairs.name, pairs.sha256
    else:
        plain = as_plain(given)
        read = Examples(plain.name, plain.sha256, first=tuple(plain))
        unshared = without_shared(read, measured)
        lines = unshared.examples.first
        found = _written(loaded, [lines[i] for i in spread(len(lines), WRITTEN)], ends)
        name, sha256 = plain.name, plain.sha256
    rows = [row for row in found if row is not None and row.content]
    if len(rows) < 2:
        raise CorpusError(
            f"{name} has fewer than two lines that fit {loaded.name}; give calibration pairs, "
            "source and target."
        )
    counts = {"lines": len(rows), "dropped": unshared.dropped, "same": unshared.same}
    return rows, {"name": name, "sha256": sha256, **counts}


def with_other_sources(examples: Sequence[Example], rows: Sequence[PairRow]) -> list[Example]:
    """Give each target a source that it does not belong to: the next example's, or others."""
    if len(examples) > 1:
        return [_with_source(e, other.pair) for e, other in with_next(examples)]
    own = examples[0]
    return [_with_source(own, row) for row in rows if row.ids != own.pair.ids][:OTHERS]


def _with_source(example: Example, other: PairRow) -> Example:
    row = replace(example.pair, ids=other.ids, content=other.content)
    return replace(example, rows=(row,))


def searched_targets(
    loaded: LoadedModel, own: Example, rows: Sequence[PairRow], options: AttributeOptions
) -> list[Example]:
    """Return the example and others to compare with, the model's predictions as their labels.

    The decoder reads the target itself (teacher forcing). The others' targets are about as long;
    where only one token of the target counts, only one of theirs does.
    """
    near = sorted(rows, key=lambda row: abs(len(row.labels) - len(own.pair.labels)))
    near = near[: max(options.shuffles, len(rows) // 2)]
    order = torch.randperm(len(near), generator=torch.Generator().manual_seed(abs(options.seed)))
    others = [_example(near[i]) for i in order.tolist()[: options.shuffles]]
    if options.at is not None:
        others = [replace(e, positions=e.positions[: options.at][-1:]) for e in others]
    found = []
    for example in (own, *others):
        batch = padded([example.pair], loaded.pad_id, loaded.device)
        with intervene(loaded) as router, torch.no_grad():
            run = partial(loaded.run, select=None)
            logits = router.checked(run, *batch.inputs, **batch.decoder_inputs)[1]
        assert logits is not None
        labels = tuple(logits[0].argmax(-1).tolist())
        found.append(replace(example, rows=(replace(example.pair, labels=labels),)))
    return found


def _written(loaded: LoadedModel, sources: Sequence[str], ends: Ends) -> Iterator[PairRow]:
    """Yield each source that is not too long, with the target that greedy decoding gives it."""
    special = set(loaded.tokenizer.all_special_ids)
    for row in encode_rows(loaded, sources, None):
        if row is None or not row.ids:
            continue
        batch = padded([row], loaded.pad_id, loaded.device)
        (ids,) = decode_greedily(
            loaded.network,
            batch.input_ids,
            batch.attention_mask,
            ends=ends,
            pad_id=loaded.pad_id,
            max_new_tokens=min(len(row.ids) + MORE, loaded.max_length - 1),
        )
        yield PairRow(
            index=row.index,
            ids=row.ids,
            types=None,
            content=row.content,
            decoder_ids=(ends.start, *ids),
            labels=(*ids, ends.stop),
            decoder_content=tuple(i for i, token in enumerate(ids, 1) if token not in special),
        )
