"""Read the texts whose outputs are attributed: one text or pair, or a file, and the controls'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from headscope.analyses.attribute.measure import (
    Example,
    batches,
    select_read,
    spread,
    vectors,
    with_next,
)
from headscope.analyses.attribute.options import AttributeOptions
from headscope.analyses.attribute.targets import (
    calibration_pairs,
    searched_targets,
    target_examples,
    with_other_sources,
)
from headscope.core.errors import CorpusError, InputError
from headscope.data.corpus import as_plain
from headscope.data.examples import Examples, read_labelled, read_pairs, read_texts, without_shared
from headscope.data.token_rows import Row, encode_rows, padded
from headscope.models.run.intervene import intervene
from headscope.models.run.loaded import LoadedModel
from headscope.session.texts import handy_sentences

CALIBRATION = 64  # Sentences that heads' means are taken over, spread evenly over the text.
OTHERS = 16  # Unrelated texts that a single example is compared with as a control.


@dataclass(frozen=True)
class Opened:
    """The examples that are run, with their controls and the calibration texts."""

    kind: str
    texts: tuple[str, ...]
    label: str
    examples: tuple[Example, ...]
    skipped: int
    shuffled: tuple[Example, ...]
    #: The example whose heads are searched, and others for comparison; empty unless asked for.
    searched: tuple[Example, ...]
    calibration_rows: tuple[Row, ...]
    calibration: dict[str, Any]
    data: Examples | None


def open_examples(loaded: LoadedModel, options: AttributeOptions) -> tuple[LoadedModel, Opened]:
    """Read texts or data; return the view of the model that they run, and what to run."""
    kind = _kind(loaded, options)
    if kind != "cosine" and options.against is not None:
        raise InputError(
            "against compares cosines; give two texts to a model without a classifier."
        )
    if kind == "target":
        return loaded, _open_targets(loaded, options)
    for name in ("target", "at"):
        if getattr(options, name) is not None:
            raise InputError(
                f"{name} is for what an encoder-decoder model writes, and {loaded.name} gives "
                f"a {kind} here; leave it out."
            )
    loaded = loaded.only("encoder") if loaded.encoder_decoder else loaded
    if kind == "cosine" and (options.label is not None or options.flip):
        name = "flip" if options.flip else "label"
        raise InputError(f"{name} is for a class or a masked token, and this output is a cosine.")
    data = _read(kind, options)
    if data is None:
        texts = _texts(loaded, kind, options)
        first, second = [texts[0]], [texts[1]] if len(texts) > 1 else None
    else:
        texts, first, second = (), list(data.first), list(data.second or ()) or None
    source = as_plain(options.calibration)
    read = Examples(source.name, source.sha256, first=tuple(source))
    found = without_shared(read, Examples("texts", "", first=(*texts, *first, *(second or ()))))
    lines = [found.examples.first[i] for i in spread(len(found.examples), CALIBRATION)]
    prompt = loaded.pooling.prompt if kind == "cosine" else ""
    rows = tuple(_rows(loaded, [prompt + line for line in lines]))
    if len(rows) < 2:
        raise CorpusError(
            f"{source.name} has fewer than two lines that fit {loaded.name}; give another text for "
            "calibration."
        )
    calibration = {
        "name": source.name,
        "sha256": source.sha256,
        "lines": len(rows),
        "dropped": found.dropped,
        "same": found.same,
    }
    pooled = [prompt + text for text in first]
    examples: list[Example] = []
    if kind == "cosine":
        assert second is not None
        sides = [
            list(encode_rows(loaded, [prompt + t for t in side], None)) for side in (first, second)
        ]
        for a, b in zip(*sides, strict=True):
            if a is not None and b is not None:
                examples.append(Example(kind, (a, b)))
    else:
        mask = getattr(loaded.tokenizer, "mask_token_id", None)
        for row in encode_rows(loaded, pooled, second):
            if row is None or (kind == "token" and mask not in row.ids):
                continue
            position = row.ids.index(mask) if kind == "token" and mask is not None else 0
            examples.append(Example(kind, (row,), position=position))
    _check_found(loaded, kind, examples, data)
    examples, label = _labelled(loaded, kind, examples, options.label)
    opened = Opened(
        kind=kind,
        texts=texts,
        label=label,
        examples=tuple(examples),
        skipped=len(first) - len(examples),
        shuffled=tuple(_shuffled(loaded, examples, rows, second is not None)),
        searched=tuple(_searched(loaded, examples, rows, options)),
        calibration_rows=rows,
        calibration=calibration,
        data=data,
    )
    return loaded, opened


def _open_targets(loaded: LoadedModel, options: AttributeOptions) -> Opened:
    """Read a source and its target, or many."""
    for name in ("second", "label"):
        if getattr(options, name) is not None:
            raise InputError(
                f"{loaded.name} writes a target for one source: give what it writes as 'target', "
                f"and leave '{name}' out (of = cosine compares two texts by its encoder)."
            )
    examples, texts, skipped, data = target_examples(loaded, options)
    rows, calibration = calibration_pairs(loaded, options, data, texts)
    own = examples[0]
    label = ""
    if options.at is not None:
        label = _label_name(loaded, "token", own.pair.labels[own.positions[0]])
    return Opened(
        kind="target",
        texts=texts,
        label=label,
        examples=tuple(examples),
        skipped=skipped,
        shuffled=tuple(with_other_sources(examples, rows)),
        searched=tuple(searched_targets(loaded, own, rows, options)) if options.flip else (),
        calibration_rows=tuple(rows),
        calibration=calibration,
        data=data,
    )


def _read(kind: str, options: AttributeOptions) -> Examples | None:
    if options.data is None:
        return None
    read = {"cosine": read_pairs, "class": read_labelled, "token": read_texts}[kind]
    return read(options.data).draw(options.limit, options.seed)


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


def _texts(loaded: LoadedModel, kind: str, options: AttributeOptions) -> tuple[str, ...]:
    """Return the texts of the one example, from the built-in sample where none was given."""
    given = tuple(t for t in (options.first, options.second, options.against) if t is not None)
    if kind == "cosine" and len(given) == 1:
        raise InputError(
            f"{loaded.name} has no classifier, and the text has no mask, so two texts are "
            "compared: give a second one."
        )
    if given:
        return given
    if kind == "token":
        raise InputError(
            f"Give a text with the mask of {loaded.name}, {loaded.tokenizer.mask_token}."
        )
    handy = handy_sentences(loaded, 2 if kind == "cosine" else 1)
    if not handy:
        raise InputError(f"No sentence of the built-in sample fits {loaded.name}; give a text.")
    return tuple(text for text, _ in (handy * 2)[: 2 if kind == "cosine" else 1])


def _rows(loaded: LoadedModel, texts: Sequence[str]) -> list[Row]:
    return [row for row in encode_rows(loaded, texts, None) if row is not None and row.content]


def _check_found(
    loaded: LoadedModel, kind: str, examples: Sequence[Example], data: Examples | None
) -> None:
    if not examples:
        mask = f" or lacks the mask {loaded.tokenizer.mask_token}" if kind == "token" else ""
        raise InputError(
            f"{'A text' if data is None else f'Every example of {data.name}'} is longer than the "
            f"{loaded.max_length} tokens that {loaded.name} reads{mask}; give another (nothing is "
            "ever cut)."
        )
    for example in examples:
        if not all(row.content for row in example.rows):
            raise InputError(
                f"The tokenizer of {loaded.name} makes no token of a text; give another."
            )


def _labelled(
    loaded: LoadedModel, kind: str, examples: list[Example], label: str | None
) -> tuple[list[Example], str]:
    """Give each example the label that was asked for, or the one that the model predicts."""
    if kind == "cosine":
        return examples, ""
    if label is not None:
        number = _label_id(loaded, kind, label)
        return [replace(e, label=number) for e in examples], _label_name(loaded, kind, number)
    labels = [0] * len(examples)
    for part in batches([len(example) for example in examples]):
        chosen = [examples[i] for i in part]
        batch = padded([e.rows[0] for e in chosen], loaded.pad_id, loaded.device)
        with intervene(loaded) as router, torch.no_grad():
            hidden, logits = router.checked(
                loaded.run, *batch.inputs, select=select_read(loaded, chosen)
            )
        found = vectors(loaded, kind, batch, hidden, logits).argmax(-1)
        for i, number in zip(part, found.tolist(), strict=True):
            labels[i] = number
    examples = [replace(e, label=n) for e, n in zip(examples, labels, strict=True)]
    one = len(set(labels)) == 1
    return examples, _label_name(loaded, kind, labels[0]) if one else ""


def _label_id(loaded: LoadedModel, kind: str, label: str) -> int:
    if kind == "class":
        names = {int(n): str(name) for n, name in loaded.network.config.id2label.items()}
        for number, name in names.items():
            if label.lower() == name.lower() or label == str(number):
                return number
        raise InputError(
            f"{loaded.name} has no class {label!r}; it knows {', '.join(names.values())}."
        )
    number = loaded.tokenizer.convert_tokens_to_ids(label)
    if number is None or number == loaded.tokenizer.unk_token_id:
        raise InputError(
            f"{label!r} is no single token of {loaded.name}; give one of its vocabulary."
        )
    return int(number)


def _label_name(loaded: LoadedModel, kind: str, number: int) -> str:
    if kind == "class":
        return str(loaded.network.config.id2label[number])
    return str(loaded.tokenizer.convert_ids_to_tokens(number))


def _shuffled(
    loaded: LoadedModel, examples: Sequence[Example], rows: Sequence[Row], paired: bool
) -> list[Example]:
    """Pair texts that do not belong together; exchange a single text for others."""
    if examples[0].kind == "cosine":
        if len(examples) > 1:
            return [replace(e, rows=(e.rows[0], other.rows[1])) for e, other in with_next(examples)]
        return [replace(examples[0], rows=(examples[0].rows[0], row)) for row in rows[:OTHERS]]
    if len(examples) > 1:
        return [replace(other, label=e.label) for e, other in with_next(examples)]
    return _others(loaded, examples[0], rows)[:OTHERS]


def _others(loaded: LoadedModel, example: Example, rows: Sequence[Row]) -> list[Example]:
    """Return the same logit of other texts; a token's logit is read at a masked middle token."""
    if example.kind == "class":
        typed = example.rows[0].types is not None
        return [
            replace(example, rows=(replace(r, types=(0,) * len(r)) if typed else r,)) for r in rows
        ]
    mask, found = int(loaded.tokenizer.mask_token_id), []
    for row in rows:
        position = row.content[len(row.content) // 2]
        ids = (*row.ids[:position], mask, *row.ids[position + 1 :])
        found.append(replace(example, rows=(replace(row, ids=ids),), position=position))
    return found


def _searched(
    loaded: LoadedModel,
    examples: Sequence[Example],
    rows: Sequence[Row],
    options: AttributeOptions,
) -> list[Example]:
    """Return the example whose heads are searched, and random triples or texts to compare with."""
    own = examples[0]
    length = sum(map(len, own.rows)) / len(own.rows)
    near = sorted(rows, key=lambda row: abs(len(row) - length))
    near = near[: max(3 * options.shuffles, len(rows) // 2)]
    order = torch.randperm(len(near), generator=torch.Generator().manual_seed(abs(options.seed)))
    drawn = [near[i] for i in order.tolist()]
    if options.against is not None:
        prompt = loaded.pooling.prompt
        third = next(encode_rows(loaded, [prompt + options.against], None))
        if third is None or not third.content:
            raise InputError(f"The text of against does not fit {loaded.name}; give another.")
        triples = [tuple(drawn[i : i + 3]) for i in range(0, len(drawn) - 2, 3)]
        return [
            replace(own, rows=(*own.rows, third)),
            *(replace(own, rows=triple) for triple in triples[: options.shuffles]),
        ]
    if not options.flip:
        return []
    others = _others(loaded, own, drawn)[: options.shuffles]
    return _labelled(loaded, own.kind, [own, *others], None)[0]
