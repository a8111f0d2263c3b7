"""Open the tokenizer of a folder so that it reads texts as the folder's tokenizer.json says.

transformers 5 builds the tokenizer of a named class, such as BertTokenizer, anew from its
vocabulary: the normaliser, the pre-tokenizer, lower case and the special tokens around a text are
then those of the class, whatever tokenizer.json says. Only PreTrainedTokenizerFast follows the
file.

So a tokenizer is opened twice here, ``by_class`` (as AutoTokenizer does) and ``by_file``. The one
that is returned reads as the file does; where the class would read a text otherwise, a remark says
so. It must be a *fast* one, whose reading is done by a ``backend_tokenizer`` of the package
tokenizers, which knows the characters of each piece.

:func:`open_tokenizer` is the entry. :func:`explained` makes one sentence of whatever transformers
raises in its block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import transformers
from tokenizers import normalizers
from transformers.convert_slow_tokenizer import SLOW_TO_FAST_CONVERTERS
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from headscope.core.errors import CheckpointError, reason
from headscope.core.safe_text import listed, visible
from headscope.models.load.checkpoint import TOKENIZER_FILES
from headscope.models.load.network import SAFE, explained
from headscope.models.load.safe_files import read_json, refuse_pointer
from headscope.models.load.source import Source
from headscope.models.load.tokenizer_differences import Difference, first_difference

FILE = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
#: The class that follows the file; its name here is also that of transformers 4.
FOLLOWS_FILE = transformers.PreTrainedTokenizerFast
FOLLOWS_FILE_NAME = "PreTrainedTokenizerFast"
_REMEDY = "save it again with tokenizer.save_pretrained."
#: Pieces that are no words: one byte, or a token with brackets around it.
_NO_WORD = re.compile(r"<0x[0-9A-F]{2}>|[\[<].*[\]>]")


class OpenedTokenizer(NamedTuple):
    """A tokenizer, and remarks on how it reads texts."""

    tokenizer: Any  # None for a folder without one
    #: Whether AutoTokenizer and SentenceTransformer read some texts of the folder otherwise.
    class_differs: bool
    remarks: tuple[str, ...]  # Sentences for every output


def open_tokenizer(source: Source, *, lower: bool) -> OpenedTokenizer:
    """Open the fast tokenizer of a folder, or say what is wrong with it.

    Where there is a tokenizer.json, texts are read as it says, whatever class the folder names.
    ``lower``: sentence-transformers is to read every text of the folder in lower case.
    """
    for name in TOKENIZER_FILES:
        if (source.folder / name).is_file():
            refuse_pointer(source.folder / name)
    with explained(f"The tokenizer in {source.folder} cannot be used (", f"); {_REMEDY}"):
        return _opened(source, lower)


def _opened(source: Source, lower: bool) -> OpenedTokenizer:
    """Open a tokenizer by its class and by its file, and let it follow the file."""
    # Open both. ``problem`` is why the class cannot be opened; where there is a tokenizer.json that
    # is no reason to give up.
    by_class, problem = _opened_by_class(source)
    by_file = None
    has_file = (source.folder / FILE).is_file()
    if has_file and type(by_class) is FOLLOWS_FILE:
        by_file = by_class
    elif has_file:
        by_file = _opened_by_file(source, by_class, problem)
    if by_file is None and problem is not None:
        raise _refusal_of_slow_class(source.folder) or problem
    remarks: list[str] = []
    if by_file is not None:
        remarks += _without_dropout(source, by_file)
    for opened in (by_class, by_file):
        if lower and opened is not None and opened.is_fast:
            lower_case(opened)

    # Make one of the two, and note where the class would read a text otherwise.
    tokenizer = by_class
    class_note: str | None = None  # How the class differs from the file; None where it does not
    if problem is not None:
        tokenizer = by_file
        class_note = _class_fails(source, problem)
    elif by_file is not None and by_file is not by_class:
        tokenizer, class_note = _reconciled(source, by_class, by_file)

    # Check it, and note which of its pieces no text can ever give.
    if not tokenizer.is_fast:
        raise CheckpointError(_no_fast_class(source.folder, type(tokenizer)))
    _check_length(source, tokenizer)
    if class_note is not None:
        remarks.append(class_note)
    remarks += _cased_pieces(source, tokenizer, lower)
    return OpenedTokenizer(tokenizer, class_note is not None, tuple(remarks))


def _reconciled(source: Source, by_class: Any, by_file: Any) -> tuple[Any, str | None]:
    """Return the tokenizer that follows the file; a sentence, too, if its class reads otherwise."""
    # The special tokens around a text are compared (``framed``), but for a class that changes them
    # with the language.
    knows_languages = _knows_languages(by_class, by_file)
    difference = first_difference(by_file, by_class, framed=not knows_languages)
    tokenizer = _following_file(by_class, by_file, knows_languages)
    if difference is None:
        return tokenizer, None
    return tokenizer, _class_reads_otherwise(source, type(by_class).__name__, difference)


def no_tokenizer(folder: Path) -> CheckpointError:
    """Return the error for a folder without a file that a tokenizer can be read from."""
    return _refusal_of_slow_class(folder) or CheckpointError(
        f"{folder} has no tokenizer ({FILE}); save the model's fast tokenizer beside it with "
        "tokenizer.save_pretrained."
    )


def _refusal_of_slow_class(folder: Path) -> CheckpointError | None:
    """Return the error for a folder whose class is a slow one; None for any other."""
    named_class = _class_of(folder)
    if named_class is None or issubclass(named_class, FOLLOWS_FILE):
        return None
    return CheckpointError(_no_fast_class(folder, named_class))


def lower_case(tokenizer: Any) -> None:
    """Let a fast tokenizer read every text in lower case, in place."""
    backend = tokenizer.backend_tokenizer
    if not _lowers(backend):
        steps = [normalizers.Lowercase()]
        if backend.normalizer is not None:
            steps.append(backend.normalizer)
        backend.normalizer = normalizers.Sequence(steps)


def _lowers(backend: Any) -> bool:
    """Whether the normaliser of a backend turns capitals into lower case."""
    return backend.normalizer is not None and "ab" in backend.normalizer.normalize_str("AB")


# --- by the class that the folder names, and by the file ------------------------------------------


def _opened_by_class(source: Source) -> tuple[Any, CheckpointError | None]:
    """Open the tokenizer that AutoTokenizer makes of a folder; on failure None and the error."""
    try:
        with explained(f"The tokenizer in {source.folder} cannot be read (", f"); {_REMEDY}"):
            return transformers.AutoTokenizer.from_pretrained(source.folder, **SAFE), None
    except CheckpointError as error:
        return None, error


def _opened_by_file(source: Source, by_class: Any, problem: CheckpointError | None) -> Any:
    """Open tokenizer.json as it is, with the inputs (token types or not) that its class returns.

    ``problem`` is the error of opening it by its class; where the file fails too, that is raised.
    """
    named_class = type(by_class) if by_class is not None else _class_of(source.folder)
    options: dict[str, Any] = {}
    if named_class is not None:
        options["model_input_names"] = list(named_class.model_input_names)
    try:
        with explained(f"{source.folder / FILE} cannot be read (", f"); {_REMEDY}"):
            return FOLLOWS_FILE.from_pretrained(source.folder, **SAFE, **options)
    except CheckpointError:
        if problem is not None:
            raise problem from None
        raise


def _following_file(by_class: Any, by_file: Any, knows_languages: bool) -> Any:
    """Return a tokenizer that has the class's special tokens and reads as the file says.

    A fast class is kept, with the file's backend: it knows which inputs the model takes, and, for a
    translator of many languages, which codes stand around a source and a target.
    """
    # Special tokens of the class that the vocabulary does not have are dropped.
    backend = by_file.backend_tokenizer
    special = by_class.all_special_tokens
    known = [token for token in special if backend.token_to_id(token) is not None]
    backend.add_special_tokens([t for t in known if t not in by_file.added_tokens_encoder])

    # The names of the others, such as mask_token, are those of the class.
    class_fits = knows_languages or not switches_language(by_class)
    tokenizer = by_class if by_class.is_fast and class_fits else by_file
    for name in by_class.SPECIAL_TOKENS_ATTRIBUTES:
        token = getattr(by_class, name)
        if token not in known:
            setattr(tokenizer, name, None)
        elif tokenizer is by_file:
            setattr(tokenizer, name, token)

    # The backend, which does the reading.
    if tokenizer is by_class:
        extra = by_class.extra_special_tokens
        by_class.extra_special_tokens = [token for token in extra if token in known]
        by_class._tokenizer = backend
        if knows_languages:
            by_class._switch_to_input_mode()
    return tokenizer


def switches_language(tokenizer: Any) -> bool:
    """Whether a class changes the special tokens around a text with the language."""
    return hasattr(tokenizer, "_switch_to_target_mode")


def _knows_languages(by_class: Any, by_file: Any) -> bool:
    """Whether a class changes with the language, and the file has a token of its source language.

    A class whose language the file does not know is one that the folder's model does not use.
    """
    if not switches_language(by_class):
        return False
    return by_file.backend_tokenizer.token_to_id(str(by_class.src_lang)) is not None


def _class_of(folder: Path) -> Any:
    """Return the class of transformers that a folder names, or else that of its family, or None."""
    files = [folder / SETTINGS, folder / "config.json"]
    contents = [read_json(file) for file in files if file.is_file()]
    stated = [settings for settings in contents if isinstance(settings, dict)]
    names = [settings.get("tokenizer_class") for settings in stated]
    families = [str(settings.get("model_type")) for settings in stated]
    names += [TOKENIZER_MAPPING_NAMES.get(family) for family in families]
    name = next((name for name in names if isinstance(name, str)), "")
    named_class = getattr(transformers, name.removesuffix("Fast"), None)
    is_tokenizer = hasattr(named_class, "model_input_names")
    return named_class if is_tokenizer else None


def _check_length(source: Source, tokenizer: Any) -> None:
    """Refuse a longest text that is no number, or below 1."""
    longest = tokenizer.model_max_length
    if isinstance(longest, bool) or not isinstance(longest, int | float) or not longest >= 1:
        raise CheckpointError(
            f"{source.folder / SETTINGS} has the model_max_length {str(longest)[:60]!r}, which is "
            f"no number of tokens; {_REMEDY}"
        )


# --- what is said ---------------------------------------------------------------------------------


def _class_reads_otherwise(source: Source, class_name: str, difference: Difference) -> str:
    """Say that the run follows the file, and how the class would have read a text."""
    return (
        f"Texts are read by the {FILE} of {source.name}: {visible(repr(difference.text))} is read "
        f"as {difference.first}; {class_name} of transformers {transformers.__version__}, which "
        f"AutoTokenizer and SentenceTransformer open, would read {difference.second}."
    )


def _class_fails(source: Source, problem: CheckpointError) -> str:
    """Say that the run follows the file, since transformers cannot open the class."""
    named_class = _class_of(source.folder)
    name = "another class" if named_class is None else named_class.__name__
    why = reason(problem.__cause__).rstrip(".")
    return (
        f"Texts are read by the {FILE} of {source.name}; AutoTokenizer and SentenceTransformer of "
        f"transformers {transformers.__version__} fail on it, as they take {name} ({why}): name "
        f"{FOLLOWS_FILE_NAME} in its {SETTINGS}."
    )


def _no_fast_class(folder: Path, slow_class: type) -> str:
    """Say that a tokenizer is a slow one, and what can be done."""
    name = slow_class.__name__
    lacks = "no fast class"
    if name not in SLOW_TO_FAST_CONVERTERS:
        lacks += " and no converter"
    return (
        f"{folder} has no fast tokenizer ({FILE}), which is needed to align words with pieces, and "
        f"transformers has {lacks} for its {name}: build {FILE} with the package tokenizers and "
        "put it into the folder (docs/troubleshooting.md shows how)."
    )


def _without_dropout(source: Source, tokenizer: Any) -> Iterator[str]:
    """Read texts without the dropout of merges that a file may state, and say so."""
    model = tokenizer.backend_tokenizer.model
    if dropout := getattr(model, "dropout", None):
        model.dropout = None
        yield (
            f"The {FILE} of {source.name} leaves out merges at random (dropout {dropout:g}), which "
            "is for training; texts are read with all of them."
        )


def _cased_pieces(source: Source, tokenizer: Any, lower: bool) -> Iterator[str]:
    """Say how many pieces have capitals that a lower-casing tokenizer never gives.

    Of the pieces ``the``, ``The`` and ``Zürich`` the last two, where every text is lower-cased.
    """
    backend = tokenizer.backend_tokenizer
    if not _lowers(backend):
        return
    # The pieces of words, and the capitals in them.
    added = tokenizer.added_tokens_encoder
    vocabulary = backend.get_vocab(with_added_tokens=False)
    words = [p for p in vocabulary if p not in added and not _NO_WORD.fullmatch(p)]
    capitals = {char for char in set("".join(words)) if char != char.lower()}
    if "ByteLevel" in repr(backend.pre_tokenizer):  # single characters stand for all bytes
        capitals = {char for char in capitals if char.isascii()}
        words = [piece for piece in words if len(piece) > 1]

    # The capitals that the normaliser never puts out, and the pieces that have one of them.
    never_given = set(capitals)
    for char in capitals:
        for text in (char, char.lower()):
            never_given.difference_update(backend.normalizer.normalize_str(text))
    lost = [piece for piece in words if not never_given.isdisjoint(piece)]
    lost.sort(key=vocabulary.__getitem__)
    if lost:
        remedy = f"set do_lower_case to false in its {SETTINGS}"
        if (source.folder / FILE).is_file():
            remedy = f"take lower case out of the normalizer of its {FILE}"
        if lower:
            remedy = "set do_lower_case to false in its sentence_bert_config.json"
        yield (
            f"In the vocabulary of {source.name}, {len(lost):,} of {len(vocabulary):,} pieces can "
            f"never be given because of capitals ({visible(listed(lost))}), since its tokenizer "
            f"turns every text into lower case; if the model was trained on cased text, {remedy}."
        )
