"""How often words occur: from a user's file, from wordfreq, or in the corpus itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headscope.core.errors import CorpusError, InputError
from headscope.core.files import sha256_of_file
from headscope.data.columns import plain
from headscope.data.corpus import Corpus
from headscope.data.files import read_filled

#: Sentences whose rarest word is among this many most frequent words say nothing about rarity.
N_FREQUENT = 500
#: What the second column of a frequency file may be called in a heading.
_HEADINGS = ("count", "freq", "frequency")
#: Languages that wordfreq counts in a list of another code.
_SAME_LIST = {"no": "nb", "tl": "fil", "hr": "sh", "sr": "sh", "bs": "sh"}


@dataclass(frozen=True)
class Frequencies:
    """Word frequencies and where they come from."""

    source: str  # Named in every output: the file, ``wordfreq VERSION, language xx`` or the corpus
    #: From a lower-cased word to its count or relative frequency; 0 for an unseen word
    frequency: Callable[[str], float]
    frequent: frozenset[str]  # The 500 most frequent words
    sha256: str | None = None  # Of the user's file; None of another source


def find_frequencies(corpus: Corpus, path: str | Path | None, language: str | None) -> Frequencies:
    """Take the first source there is: the user's file, wordfreq for the language, the corpus."""
    if path is not None:
        return _from_file(Path(path))
    code = corpus.language if language is None else language
    list_code = None if code is None else wordfreq_list(code)
    if list_code is not None:
        try:
            return _from_wordfreq(list_code)
        except ModuleNotFoundError as error:
            # A language that is only read off the file's name was not asked for: go on without.
            if language is not None:
                raise InputError(
                    f"wordfreq needs the package {error.name} to look up words of the language "
                    f"{list_code}; install it (pip install 'wordfreq[cjk]') or give a file of "
                    "frequencies."
                ) from None
    counts: Counter[str] = Counter()
    for sentence in corpus:
        counts.update(word.lower() for word in sentence.words)
    source = f"the corpus itself ({corpus.name})"
    if language is not None:
        source += f", since wordfreq has no list of the language {language}"
    return _from_counts(source, counts)


def _from_file(path: Path) -> Frequencies:
    """Read a list of words and counts, a word a line; a heading is passed over."""
    counts: dict[str, float] = {}
    for number, line in read_filled(path):
        word, tab, cell = line.rpartition("\t")
        if number == 1 and tab and plain(cell) in _HEADINGS:
            continue
        is_word = bool(word) and "\t" not in word
        try:
            count = float(cell)
        except ValueError:
            count = math.nan
        if not is_word or not math.isfinite(count) or count < 0:
            raise CorpusError(
                f"{path}, line {number}: not 'word<TAB>count' with a count of 0 or more."
            )
        # Lists that tell upper from lower case are added up: scores look words up in lower case.
        counts[word.lower()] = counts.get(word.lower(), 0.0) + count
    if not counts:
        raise CorpusError(f"{path} holds no 'word<TAB>count' line.")
    return replace(_from_counts(f"file {path}", counts), sha256=sha256_of_file(path))


def wordfreq_list(language: str) -> str | None:
    """Return the code of wordfreq's list of this very language; None where there is none.

    wordfreq itself would take the list of another language (English for Irish, Spanish for
    Basque); only another spelling of the same language will do.
    """
    import wordfreq
    from langcodes import Language
    from langcodes.tag_parser import LanguageTagError

    try:
        tag = Language.get(language)
    except LanguageTagError:
        raise InputError(
            f"The language {language!r} is not a language code; give an ISO code such as en or de."
        ) from None
    lists = wordfreq.available_languages()
    code = tag.language or ""
    list_code = code if code in lists else _SAME_LIST.get(code)
    return list_code if list_code in lists else None


def _from_wordfreq(code: str) -> Frequencies:
    """Use a list of wordfreq; ModuleNotFoundError where it needs another package to split words."""
    import importlib.metadata

    import wordfreq

    frequent = wordfreq.top_n_list(code, N_FREQUENT)
    wordfreq.word_frequency("a", code)  # a package that is missing is missed here already

    def frequency(word: str) -> float:  # wordfreq keeps a bounded cache of its own
        return float(wordfreq.word_frequency(word, code))

    version = importlib.metadata.version("wordfreq")
    return Frequencies(f"wordfreq {version}, language {code}", frequency, frozenset(frequent))


def _from_counts(source: str, counts: Mapping[str, float]) -> Frequencies:
    """Make frequencies of counts; where they tie at the 500th word, the first ones count."""
    top = sorted(counts, key=lambda word: -counts[word])[:N_FREQUENT]
    return Frequencies(source, lambda word: counts.get(word, 0.0), frozenset(top))
