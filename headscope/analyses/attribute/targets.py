"""What an encoder-decoder should write: targets whose logits are taken apart.

A ``PairRow`` is a tokenised source with its target: ``decoder_ids`` is what the decoder reads,
``labels`` what it should write at each of these positions. With the start token S and the end token
E, the target ``7 8`` has the decoder_ids S 7 8 and the labels 7 8 E.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from headscope.analyses.attribute import AttributeOptions
from headscope.analyses.attribute.outputs import Example
from headscope.core.errors import InputError
from headscope.data.examples import Examples
from headscope.data.pieces import special_ids
from headscope.data.token_rows import PairRow, encode_pairs, encode_rows, padded
from headscope.models.run.loaded import LoadedModel, ends_of
from headscope.tasks.seq2seq import decode_greedily

MORE = 10  # Tokens that a generated target may have more than its source


def targets_of_data(loaded: LoadedModel, data: Examples) -> tuple[list[Example], int]:
    """Return the pairs of a file that fit the model, and how many were left out."""
    rows = list(encode_pairs(loaded, data.first, data.second or (), ends_of(loaded)))
    examples = [example_of(row) for row in rows if row is not None and row.content]
    if not examples:
        raise InputError(
            f"Every pair of {data.name} is longer than the {loaded.max_length} tokens that "
            f"{loaded.name} reads on either side; give others (nothing is ever cut)."
        )
    return examples, len(rows) - len(examples)


def target_of_text(
    loaded: LoadedModel, source: str, options: AttributeOptions
) -> tuple[str, Example]:
    """Return the target of one source, and its mean logit as an output.

    The target is the one of the options, else what the model writes; with ``at``, only the logit of
    this one token counts.
    """
    if options.target is None:
        row = next(generated_pairs(loaded, [source]), None)
    else:
        row = next(encode_pairs(loaded, [source], [options.target], ends_of(loaded)))
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
    example = example_of(row)
    if options.at is not None:
        if options.at > len(row.labels):
            raise InputError(
                f"The target has {len(row.labels)} tokens, so none is number {options.at}; give "
                f"'at' from 1 to {len(row.labels)}."
            )
        example = replace(example, target_positions=(options.at - 1,))
    return target, example


def example_of(row: PairRow) -> Example:
    """Return the mean logit of all tokens of a target as an output."""
    return Example("target", (row,), target_positions=tuple(range(len(row.labels))))


def generated_pairs(loaded: LoadedModel, sources: Sequence[str]) -> Iterator[PairRow]:
    """Yield each source that is not too long, with the target that greedy decoding gives it."""
    special = special_ids(loaded.tokenizer)
    target_ends = ends_of(loaded)
    for row in encode_rows(loaded, sources, None):
        if row is None or not row.ids:
            continue
        batch = padded([row], loaded.pad_id, loaded.device)
        most = min(len(row.ids) + MORE, loaded.max_length - 1)
        (written,) = decode_greedily(
            loaded.network,
            batch.input_ids,
            batch.attention_mask,
            target_ends=target_ends,
            pad_id=loaded.pad_id,
            max_new_tokens=most,
        )
        labels = (*written, target_ends.stop)[:most]  # a text that was cut short has no end
        decoder_ids = (target_ends.start, *labels[:-1])
        content = [i for i, token in enumerate(decoder_ids) if i > 0 and token not in special]
        yield PairRow(
            index=row.index,
            ids=row.ids,
            types=None,
            content=row.content,
            decoder_ids=decoder_ids,
            labels=labels,
            decoder_content=tuple(content),
        )
