"""Read the texts whose outputs are attributed: one text or pair, or a file, and the controls'.

In an encoder-decoder these are the logits of a target's tokens given its source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headscope.analyses.attribute import AttributeOptions
from headscope.analyses.attribute.measure import Example, predicted, spread
from headscope.core.errors import CorpusError, InputError, UnsupportedModelError
from headscope.data.corpus import as_plain
from headscope.data.examples import (
    Examples,
    read_labelled,
    read_pairs,
    read_texts,
    read_translations,
    without_shared,
)
from headscope.data.labels import class_number
from headscope.data.pieces import special_ids
from headscope.data.readable_pieces import readable_pieces
from headscope.data.tables import TABLES
from headscope.data.token_rows import PairRow, Row, encode_pairs, encode_rows, padded
from headscope.models.run.head_outputs import HeadOutputs, head_outputs
from headscope.models.run.loaded import LoadedModel, ends_of
from headscope.session.texts import handy_sentences
from headscope.tasks.seq2seq import decode_greedily

CALIBRATION = 64  # Texts that heads' means are taken over, spread evenly over the file.
WRITTEN = 16  # Sources read from a text without targets, which the model then generates.
MORE = 10  # Tokens that a generated target may have more than its source
#: The first sentence of the built-in sample in other words.
_REWORDED = "The lighthouse , an old one , flashed two times and then vanished in the fog ."
OTHERS = 16  # Unrelated texts that a single example is compared with as a control.
SHUFFLED = 256  # Examples that are paired with others as a control


@dataclass(frozen=True)
class Opened:
    """The examples that are run, with their controls and the calibration texts."""

    kind: str
    texts: tuple[str, ...]  # Of the one example; empty with data
    label: str
    examples: list[Example]
    skipped: int
    shuffled: list[Example]
    calibration_rows: list[Row]
    calibration: dict[str, Any]
    data: Examples | None

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the data is not read."""
        return () if self.data is None else self.data.notes


def open_examples(loaded: LoadedModel, options: AttributeOptions) -> tuple[LoadedModel, Opened]:
    """Read texts or data; return the view of the model that they run, and what to run."""
    kind = _kind(loaded, options)
    _refuse_for_kind(loaded, kind, options)
    if kind != "target":
        loaded = loaded.only("encoder") if loaded.encoder_decoder else loaded
    data = None
    if options.data is not None:
        read = {
            "cosine": read_pairs,
            "class": read_labelled,
            "token": read_texts,
            "target": read_translations,
        }[kind]
        data = read(options.data).draw(options.limit, options.seed)
    label = ""
    if kind == "target":
        texts, examples, skipped = _targets(loaded, options, data)
        if options.at is not None:
            written = examples[0].pair.labels[examples[0].positions[0]]
            label = _label_name(loaded, "token", written)
    else:
        texts = () if data is not None else _texts(loaded, kind, options)
        examples, skipped = _encoded(loaded, kind, data, texts)
        examples, label = labelled(loaded, kind, examples, options.label)
    rows, calibration = _calibrate(loaded, kind, options, data, texts)
    return loaded, Opened(
        kind=kind,
        texts=texts,
        label=label,
        examples=examples,
        skipped=skipped,
        shuffled=_shuffled(loaded, examples, rows),
        calibration_rows=rows,
        calibration=calibration,
        data=data,
    )


def _kind(loaded: LoadedModel, options: AttributeOptions) -> str:
    """Choose the output: as asked for, else by the model's task head and the text."""
    if options.of is not None:
        heads = {"class": "classification", "token": "mlm", "target": "seq2seq"}
        needed = heads.get(options.of)
        if needed is not None and loaded.task_head != needed:
            weights = loaded.head_weights
            broken = None if weights is None else weights.broken_promise(needed)
            why = "" if broken is None else f" ({broken})"
            raise InputError(
                f"{loaded.name} has no {needed} head{why}, so it gives no {options.of}; leave 'of' "
                "out, or give a model that was trained for it."
            )
        return options.of
    mask = getattr(loaded.tokenizer, "mask_token", None)
    if loaded.task_head == "classification":
        return "class"
    if loaded.task_head == "mlm" and mask and mask in (options.first or ""):
        return "token"
    wants_target = options.target is not None or options.at is not None or options.data is not None
    alone = options.first is not None and options.second is None
    return "target" if loaded.task_head == "seq2seq" and (wants_target or alone) else "cosine"


def _refuse_for_kind(loaded: LoadedModel, kind: str, options: AttributeOptions) -> None:
    """Refuse options that are for another output."""

    def first_set(*names: str) -> str | None:
        return next((name for name in names if getattr(options, name)), None)

    if kind != "cosine" and first_set("against"):
        raise InputError(
            "against compares cosines; give two texts to a model without a classifier."
        )
    if kind == "target" and (name := first_set("second", "label")):
        raise InputError(
            f"{loaded.name} writes a target for one source: give what it writes as 'target', "
            f"and leave '{name}' out (of = cosine compares two texts by its encoder)."
        )
    if kind != "target" and (name := first_set("target", "at")):
        raise InputError(
            f"{name} is for what an encoder-decoder model writes, and {loaded.name} gives "
            f"a {kind} here; leave it out."
        )
    if kind == "class" and loaded.encoder_decoder:
        raise UnsupportedModelError(
            f"{loaded.name} is an encoder-decoder model, whose class cannot be taken apart; give "
            "two texts and of = cosine, which compares them by its encoder."
        )
    if kind == "class" and head_outputs(loaded) is HeadOutputs.NUMBERS:
        n = int(loaded.network.config.num_labels)
        count = "one number" if n == 1 else f"{n} numbers"
        if options.flip:
            raise InputError(
                f"{loaded.name} has no class: it puts out {count}, so there is no prediction to "
                "change."
            )
        if n > 1 and options.label is None:
            names = ", ".join(map(str, loaded.network.config.id2label.values()))
            raise InputError(
                f"{loaded.name} puts out {count}, none of which is its prediction; name one of "
                f"them by label ({names})."
            )
    if kind == "cosine" and (name := first_set("flip", "label")):
        raise InputError(f"{name} is for a class or a masked token, and this output is a cosine.")


def _texts(loaded: LoadedModel, kind: str, options: AttributeOptions) -> tuple[str, ...]:
    """Return the texts of the one example, from the built-in sample where none was given."""
    texts = tuple(t for t in (options.first, options.second, options.against) if t is not None)
    if kind == "cosine" and len(texts) == 1:
        raise InputError(
            f"{loaded.name} has no classifier, and the text has no mask, so two texts are "
            "compared: give a second one."
        )
    if texts:
        return texts
    if kind == "token":
        raise InputError(
            f"Give a text with the mask of {loaded.name}, {loaded.tokenizer.mask_token}."
        )
    first, *others = _sample(loaded)
    if kind != "cosine":
        return (first,)
    # Two texts that belong together, so that there is a likeness to take apart.
    return first, _REWORDED if first.startswith("The old lighthouse") else (*others, first)[0]


def _sample(loaded: LoadedModel) -> tuple[str, ...]:
    """Return one or two sentences of the built-in sample."""
    handy = handy_sentences(loaded, 2)
    if not handy:
        raise InputError(f"No sentence of the built-in sample fits {loaded.name}; give a text.")
    return tuple(text for text, _ in handy)


# --- embeddings, classes and masked tokens --------------------------------------------------------


def _encoded(
    loaded: LoadedModel, kind: str, data: Examples | None, texts: Sequence[str]
) -> tuple[list[Example], int]:
    """Return the examples that fit the model, without labels, and how many do not."""
    first = list(texts[:1] if data is None else data.first)
    second = list(texts[1:2] if data is None else data.second or ()) or None
    examples: list[Example] = []
    if kind == "cosine":
        assert second is not None
        prompt = loaded.pooling.prompt
        sides = [encode_rows(loaded, [prompt + t for t in side], None) for side in (first, second)]
        for a, b in zip(*map(list, sides), strict=True):
            if a is not None and b is not None:
                examples.append(Example(kind, (a, b)))
    else:
        mask = getattr(loaded.tokenizer, "mask_token_id", None)
        for row in encode_rows(loaded, first, second):
            if row is None or (kind == "token" and mask not in row.ids):
                continue
            position = row.ids.index(mask) if kind == "token" and mask is not None else 0
            examples.append(Example(kind, (row,), position=position))
    if not examples:
        lacks = f" or lacks the mask {loaded.tokenizer.mask_token}" if kind == "token" else ""
        raise InputError(
            f"{'A text' if data is None else f'Every example of {data.name}'} is longer than the "
            f"{loaded.max_length} tokens that {loaded.name} reads{lacks}; give another (nothing is "
            "ever cut)."
        )
    if not all(row.content for example in examples for row in example.rows):
        raise InputError(f"The tokenizer of {loaded.name} makes no token of a text; give another.")
    return examples, len(first) - len(examples)


def labelled(
    loaded: LoadedModel, kind: str, examples: list[Example], label: str | None
) -> tuple[list[Example], str]:
    """Give each example the label that was asked for, or the one that the model predicts."""
    if kind == "cosine":
        return examples, ""
    if label is not None:
        if kind == "class":
            names = {int(n): str(name) for n, name in loaded.network.config.id2label.items()}
            number = class_number(label, names, loaded.name)
        else:
            token = loaded.tokenizer.convert_tokens_to_ids(label)
            if token in (None, loaded.tokenizer.unk_token_id):
                raise InputError(
                    f"{label!r} is no single token of {loaded.name}; give one of its vocabulary."
                )
            number = int(token)
        return [replace(e, label=number) for e in examples], _label_name(loaded, kind, number)
    examples = predicted(loaded, examples)
    first = examples[0].label
    same = all(example.label == first for example in examples)
    return examples, _label_name(loaded, kind, first) if same else ""


def _label_name(loaded: LoadedModel, kind: str, number: int) -> str:
    if kind == "class":
        return str(loaded.network.config.id2label[number])
    return readable_pieces(loaded.tokenizer, [number])[0]


# --- targets of an encoder-decoder ----------------------------------------------------------------


def _targets(
    loaded: LoadedModel, options: AttributeOptions, data: Examples | None
) -> tuple[tuple[str, ...], list[Example], int]:
    """Return the texts of a single example, the examples, and how many were left out."""
    ends = ends_of(loaded)
    if data is not None:
        rows = list(encode_pairs(loaded, data.first, data.second or (), ends))
        examples = [target_of(row) for row in rows if row is not None and row.content]
        if not examples:
            raise InputError(
                f"Every pair of {data.name} is longer than the {loaded.max_length} tokens that "
                f"{loaded.name} reads on either side; give others (nothing is ever cut)."
            )
        return (), examples, len(rows) - len(examples)
    source = options.first
    if source is None:
        source = _sample(loaded.only("encoder"))[0]
    if options.target is None:
        row = next(_generated(loaded, [source]), None)
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
    example = target_of(row)
    if options.at is not None:
        if options.at > len(row.labels):
            raise InputError(
                f"The target has {len(row.labels)} tokens, so none is number {options.at}; give "
                f"'at' from 1 to {len(row.labels)}."
            )
        example = replace(example, positions=(options.at - 1,))
    return (source, target), [example], 0


def target_of(row: PairRow) -> Example:
    """Make the mean logit of all tokens of a target an output."""
    return Example("target", (row,), positions=tuple(range(len(row.labels))))


def _generated(loaded: LoadedModel, sources: Sequence[str]) -> Iterator[PairRow]:
    """Yield each source that is not too long, with the target that greedy decoding gives it."""
    special = special_ids(loaded.tokenizer)
    ends = ends_of(loaded)
    for row in encode_rows(loaded, sources, None):
        if row is None or not row.ids:
            continue
        batch = padded([row], loaded.pad_id, loaded.device)
        most = min(len(row.ids) + MORE, loaded.max_length - 1)
        (ids,) = decode_greedily(
            loaded.network,
            batch.input_ids,
            batch.attention_mask,
            target_ends=ends,
            pad_id=loaded.pad_id,
            max_new_tokens=most,
        )
        labels = (*ids, ends.stop)[:most]  # a text that was cut short has no end
        yield PairRow(
            index=row.index,
            ids=row.ids,
            types=None,
            content=row.content,
            decoder_ids=(ends.start, *labels[:-1]),
            labels=labels,
            decoder_content=tuple(i for i, t in enumerate(labels[:-1], 1) if t not in special),
        )


# --- calibration, and controls --------------------------------------------------------------------


def _calibrate(
    loaded: LoadedModel,
    kind: str,
    options: AttributeOptions,
    data: Examples | None,
    texts: Sequence[str],
) -> tuple[list[Row], dict[str, Any]]:
    """Return the texts that heads' means are taken over, and what they are.

    They share no sentence with what is taken apart. For a target they are pairs of the calibration
    file, else of the data, else sources of the built-in sample with what the model writes for them.
    """
    wanted = options.calibration
    to_target = kind == "target"
    source = data if to_target and wanted is None else None
    if to_target and isinstance(wanted, str | Path) and Path(wanted).suffix.lower() in TABLES:
        source = read_translations(wanted)
    if source is None:
        plain = as_plain(wanted)
        source = Examples(plain.name, plain.sha256, first=tuple(plain.lines()))
    unshared = without_shared(source, data or Examples("texts", "", first=tuple(texts)))
    generates = to_target and source.second is None
    most = WRITTEN if generates else CALIBRATION
    left = unshared.examples.pick(spread(len(unshared.examples), most))
    encoded: Iterator[Row | None]
    if generates:
        encoded = _generated(loaded, left.first)
    elif to_target:
        encoded = encode_pairs(loaded, left.first, left.second or (), ends_of(loaded))
    else:
        prompt = loaded.pooling.prompt if kind == "cosine" else ""
        encoded = encode_rows(loaded, [prompt + line for line in left.first], None)
    rows = [row for row in encoded if row is not None and row.content]
    if len(rows) < 2:
        give = (
            "calibration pairs, source and target" if to_target else "another text for calibration"
        )
        raise CorpusError(
            f"{source.name} has fewer than two lines that fit {loaded.name}; give {give}."
        )
    counts = {"lines": len(rows), "dropped": unshared.dropped, "same": unshared.same}
    tokens = sum(len(row.ids) for row in rows)
    return rows, {"name": source.name, "sha256": source.sha256, **counts, "tokens": tokens}


def _shuffled(
    loaded: LoadedModel, examples: Sequence[Example], rows: Sequence[Row]
) -> list[Example]:
    """Pair texts that do not belong together; exchange a single text for others."""
    first = examples[0]
    n = len(examples)
    following = [(examples[i], examples[(i + 1) % n]) for i in spread(n, SHUFFLED)]
    if first.kind in ("class", "token"):
        if n == 1:
            return other_texts(loaded, first, rows)[:OTHERS]
        return [replace(other, label=e.label) for e, other in following]
    pairs = [(e, other.rows[-1]) for e, other in following]
    if n == 1:
        others = [row for row in rows if row.ids != first.rows[-1].ids] or rows
        pairs = [(first, row) for row in others[:OTHERS]]
    if first.kind == "cosine":
        return [replace(e, rows=(e.rows[0], row)) for e, row in pairs]
    return [
        replace(e, rows=(replace(e.pair, ids=row.ids, content=row.content),)) for e, row in pairs
    ]


def other_texts(loaded: LoadedModel, example: Example, rows: Sequence[Row]) -> list[Example]:
    """Return the same output of other texts; a token's logit is read at a masked middle token."""
    if example.kind == "class":
        typed = example.rows[0].types is not None
        if typed:
            rows = [replace(row, types=row.types or (0,) * len(row)) for row in rows]
        return [replace(example, rows=(row,)) for row in rows]
    mask = int(loaded.tokenizer.mask_token_id)
    others = []
    for row in rows:
        position = row.content[len(row.content) // 2]
        ids = (*row.ids[:position], mask, *row.ids[position + 1 :])
        others.append(replace(example, rows=(replace(row, ids=ids),), position=position))
    return others
