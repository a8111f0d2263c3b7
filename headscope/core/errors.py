"""Every failure that headscope expects, as one tree of exceptions; and helpers for their messages.

Each exception is a sentence for the user and has the exit code of the command line. The helpers
shorten another program's error (:func:`reason`) and find what a user meant (:func:`nearest`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class HeadscopeError(Exception):
    """A known failure; its text is one sentence for the user (what, where, how to mend it)."""

    exit_code = 1


class InputError(HeadscopeError):
    """The user's file, folder or option cannot be used."""


class WrongOptionError(InputError):
    """An option has a value that it does not take, or two do not go together."""

    exit_code = 2


class ModelNotFoundError(InputError):
    """There is no such folder, package or hub id."""


class UnusedOptionError(InputError, TypeError):
    """A function was given an argument that it has no use for; Python's own TypeError as well."""


class CheckpointError(InputError):
    """The folder is there but is not a complete, safe checkpoint with finite weights."""


class CorpusError(InputError):
    """A text, treebank or frequency file cannot be read."""


class TooFewExamplesError(CorpusError):
    """A file holds fewer than two examples."""


class UnsupportedModelError(HeadscopeError):
    """The model's attention has a form that headscope does not cover."""


class ResumeError(HeadscopeError):
    """The saved state belongs to another run, or is damaged."""


class ArtefactError(HeadscopeError):
    """A file or folder could not be written, or computes something else when opened again.

    ``result`` is what was measured before.
    """

    def __init__(self, text: str, result: object | None = None) -> None:
        super().__init__(text)
        self.result = result


class UnwrittenError(ArtefactError):
    """A file or folder was not written: no room, no right, or a disk that is read only."""


class InterruptedRunError(KeyboardInterrupt):
    """The user ended a run; ``result`` is what was measured by then."""

    def __init__(self, result: object) -> None:
        super().__init__("interrupted")
        self.result = result


class LostProcessError(HeadscopeError):
    """Another process of the same run has failed, or no longer responds."""


class CheckFailedError(HeadscopeError):
    """A check failed: validation, a limit of a report, a rule of ``diff``."""

    exit_code = 3


class ValidationFailedError(CheckFailedError):
    """The re-run attention does not equal the model's."""


class UnsavedStateWarning(UserWarning):
    """The state of a run could not be saved; the run goes on without one."""


class MaskedRowWarning(UserWarning):
    """Some query may attend to no key at all; its pattern row and its output are zeros."""


#: Characters that are shown of another program's error.
_SHOWN = 200
#: What lies between two sentences; a dot in a name such as ``models.bert`` ends no sentence.
_BETWEEN_SENTENCES = re.compile(r"(?<=[.!?]) +")
#: Five words or more with commas between them, and all that follows: ``a, b, c, d, e and so on``.
_LIST = re.compile(r"\S+(, \S+){4,}.*")


def reason(error: object) -> str:
    """Return what an error says on one line: its first sentences, or its type if it says nothing.

    A first sentence that is too long loses its list of names, and then its end.
    """
    on_one_line = " ".join(str(error).split())
    first, *later_sentences = _BETWEEN_SENTENCES.split(on_one_line)
    if len(first) > _SHOWN:
        first = _LIST.sub("...", first)
    if len(first) > _SHOWN:
        cut = first[:_SHOWN]
        whole_words, _, _ = cut.rpartition(" ")  # empty where there is no space
        first = f"{whole_words or cut} ..."
    shown = first
    for sentence in later_sentences:
        if len(shown) + 1 + len(sentence) > _SHOWN:
            break
        shown = f"{shown} {sentence}"
    return shown or type(error).__name__


def nearest(name: str, known: Iterable[str], all_of_them: str) -> str:
    """Return the end of a message: ``did you mean 'bert'?``, or else ``choose from bert, gpt2.``.

    ``all_of_them`` is what stands before all names, such as ``choose from``.
    """
    names = list(known)
    return did_you_mean(name, names) or f"{all_of_them} {', '.join(names)}."


def did_you_mean(name: str, known: Iterable[str], form: str = "{!r}") -> str:
    """Return ``did you mean 'NAME'?`` if a known name is near, else an empty string.

    ``form`` is how the name is written.
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {form.format(near[0])}?" if near else ""
