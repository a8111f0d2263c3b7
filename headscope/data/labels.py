"""What the labels of a file are to a model: names of its classes, or their numbers.

For a model with the classes 0 (negative) and 1 (positive), labels are ``Negative`` and ``Positive``
or ``0`` and ``1``; all labels of a file are read in one of these ways. Where both fit, as for a
model whose first class is called "1", they have to agree. Names are compared without case, unless
two names differ in nothing else.

:func:`class_ids` and :func:`tag_ids` are what tasks call; at the end, examples without a label.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain

from headscope.core.errors import CorpusError, InputError
from headscope.data.examples import Examples

#: Cells of rows without a label: nobody agreed on one (SNLI), or it is kept back (GLUE).
NO_LABEL = ("", "-", "-1", "-1.0")
_NUMBER = re.compile(r"([+-]?[0-9]{1,9})(?:\.0*)?")
_TRUTH = {"false": 0, "true": 1}
_SHOWN = 20  # Most classes that a message names.


def class_ids(examples: Examples, names: Mapping[int, str]) -> tuple[int, ...]:
    """Return the model's class number of every example; the whole file decides how it is read."""
    numbers = read_labels(examples, examples.labels or (), names, kind="class")
    return tuple(numbers[label] for label in examples.labels or ())


def tag_ids(examples: Examples, names: Mapping[int, str], model: str) -> list[tuple[int, ...]]:
    """Return the model's numbers of the tags of every sentence; ``model`` is its name."""
    sentences = examples.tags or ()
    numbers = read_labels(examples, chain(*sentences), names, kind="tag", model=model)
    return [tuple(numbers[tag] for tag in sentence) for sentence in sentences]


def read_labels(
    examples: Examples,
    labels: Iterable[str],
    names: Mapping[int, str],
    *,
    kind: str,
    model: str = "the model",
) -> dict[str, int]:
    """Return the model's class number of every different label: ``{"negative": 0, ...}``.

    ``names`` are the names of the model's classes, by number; ``kind`` is what a message calls a
    label: class or tag. Raises :class:`InputError` for a label that is neither name nor number, for
    a file that mixes both, and where both fit and disagree.
    """
    different = tuple(dict.fromkeys((*labels, *examples.all_labels)))
    if kind != "tag":
        different = tuple(label for label in different if not is_missing(label, names))
    numbers = _numbers(different, names, where=f"{examples.name}: ", kind=kind, model=model)
    if numbers is not None:
        return numbers
    by_name = _by_name(different, names)
    by_number = _by_number(different, names)
    unknown = [label for label in different if label not in by_name and label not in by_number]
    if unknown:
        raise InputError(
            f"{_where(examples, unknown[0])}: {model} has no {kind} {unknown[0]!r}; it knows "
            f"{_known(names)}.{_hint(examples, unknown[0])}"
        )
    # Some labels are names alone, and others numbers alone.
    name = next(label for label in different if label not in by_number)
    number = next(label for label in different if label not in by_name)
    raise InputError(
        f"{_where(examples, number)}: {number!r} is the number of a {kind}, and {name!r} "
        f"({_where(examples, name)}) the name of one; write names throughout, or numbers."
    )


def class_number(label: str, names: Mapping[int, str], model: str) -> int:
    """Return the number of the one class that a user names, by its name or number."""
    numbers = _numbers((label,), names, where="label ", kind="class", model=model)
    if numbers is None:
        raise InputError(f"{model} has no class {label!r}; it knows {_known(names)}.")
    return numbers[label]


def _numbers(
    labels: tuple[str, ...], names: Mapping[int, str], *, where: str, kind: str, model: str
) -> dict[str, int] | None:
    """Return the number of each label if all are names or all are numbers, else None.

    Raises :class:`InputError` where both fit and disagree; ``where`` begins the sentence.
    """
    by_name = _by_name(labels, names)
    by_number = _by_number(labels, names)
    are_names = len(by_name) == len(labels)
    are_numbers = len(by_number) == len(labels)
    if are_names and are_numbers and by_name != by_number:
        means = f"mean other {kind} numbers" if len(labels) > 1 else f"means another {kind} number"
        raise InputError(
            f"{where}{_listed(labels)} {means} of {model} as names ({_pairs(by_name)}) than as "
            f"numbers; write numbers as 1.0, or give {model} names (id2label in its config.json) "
            "that are no numbers."
        )
    if are_names:
        return by_name
    return by_number if are_numbers else None


def _by_name(labels: Iterable[str], names: Mapping[int, str]) -> dict[str, int]:
    """Return the number of each label that is the name of one class, or of one but for case."""
    numbers_of_name: dict[str, list[int]] = {}
    numbers_without_case: dict[str, list[int]] = {}
    for number, name in names.items():
        numbers_of_name.setdefault(name, []).append(number)
        numbers_without_case.setdefault(name.casefold(), []).append(number)
    number_of_label = {}
    for label in labels:
        numbers = numbers_of_name.get(label)
        if numbers is None:
            numbers = numbers_without_case.get(label.casefold(), [])
        if len(numbers) == 1:
            number_of_label[label] = numbers[0]
    return number_of_label


def _by_number(labels: tuple[str, ...], names: Mapping[int, str]) -> dict[str, int]:
    """Return the number of each label that is the number of a class.

    Labels that all are true or false are 1 and 0 for a model with two classes without real names
    (LABEL_0 and LABEL_1).
    """
    truths = {label: _TRUTH[label.lower()] for label in labels if label.lower() in _TRUTH}
    are_nameless = all(
        name.lower() in (f"label_{number}", str(number)) for number, name in names.items()
    )
    if len(truths) == len(labels) and set(names) == {0, 1} and are_nameless:
        return truths
    matches = {label: _NUMBER.fullmatch(label) for label in labels}
    numbers = {label: int(match[1]) for label, match in matches.items() if match is not None}
    return {label: number for label, number in numbers.items() if number in names}


def is_missing(label: str, names: Mapping[int, str] | None) -> bool:
    """Whether a cell says that there is no label, unless it is the name of a model's class."""
    return label in NO_LABEL and (names is None or not _by_name((label,), names))


def with_labels(examples: Examples, names: Mapping[int, str] | None) -> Examples:
    """Leave out the examples without a label, and say how many in a note.

    ``names`` are those of a model's classes; None where there is no model yet. Then -1 beside other
    numbers is refused, since it may be a class.
    """
    labels = examples.labels or ()
    missing = [label for label in labels if is_missing(label, names)]
    if not missing:
        return examples
    other_labels = [label for label in labels if label not in NO_LABEL]
    may_be_class = names is None and any(label.startswith("-1") for label in missing)
    if may_be_class and all(map(_NUMBER.fullmatch, other_labels)):
        raise CorpusError(
            f"{_where(examples, missing[0])}: the label {missing[0]} may be a class or say that "
            "there is none; leave these rows out, or name the classes by words."
        )
    labelled_rows = [i for i, label in enumerate(labels) if not is_missing(label, names)]
    written = ", ".join(repr(label) for label in dict.fromkeys(missing))
    if len({labels[i] for i in labelled_rows}) < 2:
        raise CorpusError(
            f"{examples.name}: {len(missing)} of {len(labels)} examples have no label ({written}), "
            "and the others do not have two different ones; give examples of every class."
        )
    note = (
        f"{examples.name}: {len(missing):,} of {len(labels):,} examples have no label ({written}) "
        "and are left out."
    )
    return replace(examples.pick(labelled_rows), notes=(*examples.notes, note))


def read_alike(first: Examples, second: Examples) -> tuple[Examples, Examples]:
    """Let the labels of two files of one task be read in one way, as the labels of one file."""
    labels = tuple(dict.fromkeys((*first.labels_of_file, *second.labels_of_file)))
    return replace(first, all_labels=labels), replace(second, all_labels=labels)


def _where(examples: Examples, label: str) -> str:
    """Say where a label stands first.

    A label that is not in these examples stands in rows that were not drawn, or in other data that
    are read together with them (:func:`read_alike`).
    """
    if examples.labels is not None:
        rows = (i for i, other in enumerate(examples.labels) if other == label)
    else:
        rows = (i for i, tags in enumerate(examples.tags or ()) if label in tags)
    row = next(rows, None)
    return f"{examples.name} or calibration data" if row is None else examples.where(row)


def _hint(examples: Examples, label: str) -> str:
    """Say how a header is written, if the label stands in line 1 and may be a column's name."""
    if not examples.labels or not examples.lines:
        return ""
    if examples.lines[0] == 1 and examples.labels[0] == label:
        return " If line 1 is a header, call its columns sentence and label."
    return ""


def _known(names: Mapping[int, str]) -> str:
    """List a model's classes for a message: ``0 (negative), 1 (positive)``."""
    shown = sorted(names.items())[:_SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ", ".join(f"{number} ({name})" for number, name in shown) + more


def _listed(labels: Iterable[str]) -> str:
    """List labels for a message."""
    return ", ".join(sorted(labels)[:_SHOWN])


def _pairs(numbers: Mapping[str, int]) -> str:
    """List some labels with their numbers for a message: ``1 is 0, 2 is 1``."""
    return ", ".join(f"{label} is {n}" for label, n in sorted(numbers.items())[:3])
