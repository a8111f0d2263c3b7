"""Read what is taken apart: one text or pair, or a file of examples, and its controls' texts.

An output has one of five kinds: ``cosine``, ``class``, ``token``, ``next`` or ``target``.
:func:`choose_output` chooses it, and refuses what does not fit it before the model is proven. Then
:func:`open_examples` tokenises the texts (``Row``), and each becomes an ``Example``: the rows of
one output, with the class or token whose logit it is, for which the model may have to predict it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headscope.analyses.attribute import AttributeOptions
from headscope.analyses.attribute.calibration import calibration_rows
from headscope.analyses.attribute.controls import shuffled_examples
from headscope.analyses.attribute.next_tokens import (
    NextTokenNames,
    names_of,
    with_own_tokens,
    with_tokens,
)
from headscope.analyses.attribute.outputs import Example, predicted
from headscope.analyses.attribute.targets import target_of_text, targets_of_data
from headscope.core.errors import InputError, UnsupportedModelError
from headscope.data.examples import (
    Examples,
    read_labelled,
    read_pairs,
    read_texts,
    read_translations,
)
from headscope.data.labels import class_number
from headscope.data.long_texts import left_out_notes
from headscope.data.prompts import read_prompts
from headscope.data.readable_pieces import readable_pieces
from headscope.data.token_rows import Row, encode_rows, unended_rows
from headscope.models.run.head_outputs import HeadOutputs, head_outputs
from headscope.models.run.loaded import LoadedModel
from headscope.session.texts import short_sentences

#: The first sentence of the built-in sample in other words.
_REWORDED = "The lighthouse , an old one , flashed two times and then vanished in the fog ."
#: How a file of examples of each kind is read.
_READERS = {
    "cosine": read_pairs,
    "class": read_labelled,
    "token": read_texts,
    "next": read_prompts,
    "target": read_translations,
}
#: The task head that each kind of output needs; a cosine needs none.
_TASK_HEADS = {"class": "classification", "token": "mlm", "next": "causal", "target": "seq2seq"}


@dataclass(frozen=True)
class Chosen:
    """What is taken apart, before the model has run."""

    loaded: LoadedModel  # The part of the model that runs it
    kind: str
    data: Examples | None  # The file of examples, if there is one


@dataclass(frozen=True)
class Opened:
    """The examples that are run, with their controls and the calibration texts."""

    loaded: LoadedModel  # As it was chosen
    kind: str
    texts: tuple[str, ...]  # The texts of the one example; empty with data
    label: str  # The class or token by name; empty for a cosine, and where examples have their own
    examples: list[Example]
    skipped: int  # How many examples of the data cannot be read
    shuffled: list[Example]  # The control: examples whose texts do not belong together
    calibration_rows: list[Row]  # The texts that heads' mean outputs are taken over
    calibration: dict[str, Any]  # What the result says of them
    data: Examples | None  # The file of examples, if there is one
    next_token: NextTokenNames | None  # Of one text of a causal language model

    @property
    def own_tokens(self) -> str:
        """What a table names for each prompt: its target, and a token to compare it with."""
        if self.kind != "next" or self.data is None or self.data.labels is None:
            return ""
        return "target" if self.data.against is None else "target and against"

    @property
    def notes(self) -> tuple[str, ...]:
        """What of the data is not read, and which of two tokens was taken."""
        if self.next_token is not None:
            return self.next_token.notes
        if self.data is None:
            return ()
        left_out = left_out_notes(
            self.skipped,
            self.skipped + len(self.examples),
            self.data.name,
            self.loaded.max_length,
            mask=self.loaded.tokenizer.mask_token if self.kind == "token" else None,
        )
        return (*self.data.notes, *left_out)


def choose_output(loaded: LoadedModel, options: AttributeOptions) -> Chosen:
    """Choose the output, and read the file of examples.

    Of an encoder-decoder model whose target is not taken apart the encoder alone runs.
    """
    kind = _kind(loaded, options)
    _refuse_for_kind(loaded, kind, options)
    if kind != "target" and loaded.encoder_decoder:
        loaded = loaded.only("encoder")
    data = None
    if options.data is not None:
        data = _READERS[kind](options.data).draw(options.limit, options.seed)
    return Chosen(loaded, kind, data)


def open_examples(chosen: Chosen, options: AttributeOptions) -> Opened:
    """Tokenise the texts or the data, and name each example's class or token."""
    loaded = chosen.loaded
    kind = chosen.kind
    data = chosen.data
    texts: tuple[str, ...] = ()
    label = ""
    next_token = None
    if kind == "target":
        if data is not None:
            examples, skipped = targets_of_data(loaded, data)
        else:
            skipped = 0
            source = options.first or _sample(loaded.only("encoder"))[0]
            target, example = target_of_text(loaded, source, options)
            texts = (source, target)
            examples = [example]
            if options.at is not None:
                label = _label_name(
                    loaded, "token", example.source_and_target.labels[options.at - 1]
                )
    else:
        if data is None:
            texts = _texts(loaded, kind, options)
        examples, skipped = _encoded(loaded, kind, data, texts)
        if kind == "next" and data is None:
            example = with_tokens(loaded, examples[0], texts[0], options)
            next_token = names_of(loaded, example, texts[0], options)
            examples = [example]
            label = next_token.label
        elif kind == "next" and data is not None and data.labels is not None:
            examples = with_own_tokens(loaded, examples, data)
        else:
            examples, label = _labelled(loaded, kind, examples, options.label)
    rows, calibration = calibration_rows(loaded, kind, options, data, texts)
    return Opened(
        loaded=loaded,
        kind=kind,
        texts=texts,
        label=label,
        examples=examples,
        skipped=skipped,
        shuffled=shuffled_examples(loaded, examples, rows),
        calibration_rows=rows,
        calibration=calibration,
        data=data,
        next_token=next_token,
    )


# --- which output ---------------------------------------------------------------------------------


def _kind(loaded: LoadedModel, options: AttributeOptions) -> str:
    """Choose the output: as the options say, else by the model's task head and the text."""
    if options.of is not None:
        _require_task_head(loaded, options.of)
        return options.of
    if loaded.task_head == "classification":
        return "class"
    mask = getattr(loaded.tokenizer, "mask_token", None)
    if loaded.task_head == "mlm" and mask and mask in (options.first or ""):
        return "token"
    if loaded.task_head == "causal" and options.second is None:
        return "next"
    if loaded.task_head == "seq2seq":
        asks_for_target = (
            options.target is not None or options.at is not None or options.data is not None
        )
        single_text = options.first is not None and options.second is None
        if asks_for_target or single_text:
            return "target"
    return "cosine"


def _require_task_head(loaded: LoadedModel, kind: str) -> None:
    """Refuse a kind of output for which the model has no head."""
    needed = _TASK_HEADS.get(kind)
    if needed is None or loaded.task_head == needed:
        return
    weights = loaded.head_weights
    broken = None if weights is None else weights.broken_promise(needed)
    why = "" if broken is None else f" ({broken})"
    raise InputError(
        f"{loaded.name} has no {needed} head{why}, so it gives no {kind}; leave 'of' out, or give "
        "a model that was trained for it."
    )


def _refuse_for_kind(loaded: LoadedModel, kind: str, options: AttributeOptions) -> None:
    """Refuse options that are for another output, and outputs that have no meaning."""

    def first_given(*names: str) -> str | None:
        """Return the first of these options that the user gave."""
        return next((name for name in names if getattr(options, name)), None)

    if kind not in ("cosine", "next") and options.against:
        raise InputError(
            "against compares cosines, or tokens after a text; give two texts to a model without a "
            "classifier, or one to a causal language model."
        )
    if kind == "cosine" and options.against and options.second is None:
        raise InputError("against compares a third text with the second; give two texts.")
    if kind == "next" and (name := first_given("second", "label", "at")):
        raise InputError(
            f"{loaded.name} predicts the token after one text; name it by 'target', and leave "
            f"'{name}' out (of = cosine compares two texts)."
        )
    if kind == "cosine" and options.label:
        raise InputError("label is for a class or a masked token, and this output is a cosine.")
    if kind == "target" and (name := first_given("second", "label")):
        raise InputError(
            f"{loaded.name} writes a target for one source: give what it writes as 'target', "
            f"and leave '{name}' out (of = cosine compares two texts by its encoder)."
        )
    if kind not in ("target", "next") and (name := first_given("target", "at")):
        raise InputError(
            f"{name} is for what an encoder-decoder or a causal language model writes, and "
            f"{loaded.name} gives a {kind} here; leave it out."
        )
    if kind == "class":
        _refuse_unnamed_class(loaded, options.label)


def _refuse_unnamed_class(loaded: LoadedModel, label: str | None) -> None:
    """Refuse the class of an encoder-decoder, and several numbers of which none is named."""
    if loaded.encoder_decoder:
        raise UnsupportedModelError(
            f"{loaded.name} is an encoder-decoder model, whose class cannot be taken apart; give "
            "two texts and of = cosine, which compares them by its encoder."
        )
    n_outputs = int(loaded.network.config.num_labels)
    numbers = head_outputs(loaded) is HeadOutputs.NUMBERS
    if numbers and n_outputs > 1 and label is None:
        names = ", ".join(map(str, loaded.network.config.id2label.values()))
        raise InputError(
            f"{loaded.name} puts out {n_outputs} numbers, none of which is its prediction; name "
            f"one of them by label ({names})."
        )


# --- texts ----------------------------------------------------------------------------------------


def _texts(loaded: LoadedModel, kind: str, options: AttributeOptions) -> tuple[str, ...]:
    """Return the texts of the one example, from the built-in sample where there is none."""
    third = options.against if kind == "cosine" else None
    texts = tuple(text for text in (options.first, options.second, third) if text is not None)
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
    sample = _sample(loaded)
    if kind == "next":  # without its last word and the full stop
        words = sample[0].split()
        return (" ".join(words[: max(1, len(words) - 2)]),)
    if kind != "cosine":
        return sample[:1]
    # Two texts that belong together, so that there is a likeness to take apart.
    if sample[0].startswith("The old lighthouse"):
        return sample[0], _REWORDED
    return sample[0], sample[-1]


def _sample(loaded: LoadedModel) -> tuple[str, ...]:
    """Return one or two sentences of the built-in sample."""
    sentences = short_sentences(loaded, 2)
    if not sentences:
        raise InputError(f"No sentence of the built-in sample fits {loaded.name}; give a text.")
    return tuple(text for text, _ in sentences)


# --- embeddings, classes and masked tokens --------------------------------------------------------


def _encoded(
    loaded: LoadedModel, kind: str, data: Examples | None, texts: Sequence[str]
) -> tuple[list[Example], int]:
    """Return the examples that fit the model, without labels, and how many do not."""
    # Texts by column: the first texts of all examples, then the second ones.
    columns = [[text] for text in texts]
    if data is not None:
        columns = [list(data.first)]
        if data.second is not None:
            columns.append(list(data.second))
    if kind == "cosine":
        examples = _encoded_cosines(loaded, columns)
    else:
        examples = _encoded_logits(loaded, kind, columns)
    if not examples:
        longer = "A text is" if data is None else f"Every example of {data.name} is"
        lacks = f" or lacks the mask {loaded.tokenizer.mask_token}" if kind == "token" else ""
        raise InputError(
            f"{longer} longer than the {loaded.max_length} tokens that {loaded.name} reads{lacks}; "
            "give another (nothing is ever cut)."
        )
    if not all(all(row.content for row in example.rows) for example in examples):
        raise InputError(f"The tokenizer of {loaded.name} makes no token of a text; give another.")
    return examples, len(columns[0]) - len(examples)


def _encoded_cosines(loaded: LoadedModel, columns: Sequence[Sequence[str]]) -> list[Example]:
    """Encode texts that are compared; an example has one text of every column."""
    prompt = loaded.pooling.prompt
    encoded = [
        list(encode_rows(loaded, [prompt + text for text in column], None)) for column in columns
    ]
    examples = []
    for rows in zip(*encoded, strict=True):
        fitting = tuple(row for row in rows if row is not None)
        if len(fitting) == len(columns):
            examples.append(Example("cosine", fitting))
    return examples


def _encoded_logits(
    loaded: LoadedModel, kind: str, columns: Sequence[Sequence[str]]
) -> list[Example]:
    """Encode texts whose class or token is read; with two columns, pairs of texts."""
    if kind == "next":
        fitting = [row for row in unended_rows(loaded, columns[0]) if row is not None]
        return [Example(kind, (row,), position=len(row) - 1) for row in fitting]
    second = columns[1] if len(columns) > 1 else None
    mask = getattr(loaded.tokenizer, "mask_token_id", None)
    examples = []
    for row in encode_rows(loaded, columns[0], second):
        if row is None:
            continue
        if kind == "class":
            examples.append(Example(kind, (row,)))
        elif mask in row.ids:
            examples.append(Example(kind, (row,), position=row.ids.index(mask)))
    return examples


def _labelled(
    loaded: LoadedModel, kind: str, examples: list[Example], label: str | None
) -> tuple[list[Example], str]:
    """Give each example the label of this name, or the one that the model predicts.

    Also returns the label's name, empty where examples differ.
    """
    if kind == "cosine":
        return examples, ""
    if label is not None:
        number = _label_number(loaded, kind, label)
        named = [replace(example, label=number) for example in examples]
        return named, _label_name(loaded, kind, number)
    examples = predicted(loaded, examples)
    labels = {example.label for example in examples}
    if len(labels) > 1:
        return examples, ""
    return examples, _label_name(loaded, kind, labels.pop())


def _label_number(loaded: LoadedModel, kind: str, label: str) -> int:
    """Return the number of a class, or of a token of the vocabulary."""
    if kind == "class":
        names = {int(n): str(name) for n, name in loaded.network.config.id2label.items()}
        return class_number(label, names, loaded.name)
    token = loaded.tokenizer.convert_tokens_to_ids(label)
    if token in (None, loaded.tokenizer.unk_token_id):
        raise InputError(
            f"{label!r} is no single token of {loaded.name}; give one of its vocabulary."
        )
    return int(token)


def _label_name(loaded: LoadedModel, kind: str, number: int) -> str:
    """Return the name of a class, or a token as a reader may see it."""
    if kind == "class":
        return str(loaded.network.config.id2label[number])
    return readable_pieces(loaded.tokenizer, [number])[0]
