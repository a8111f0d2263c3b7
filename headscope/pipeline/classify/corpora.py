"""What is read, and which stacks of a model it runs."""

from __future__ import annotations

from headscope.data.corpus import Corpus, as_corpus
from headscope.data.pair_corpus import PairCorpus, open_pairs, pairs_in_memory
from headscope.errors import HeadscopeError, InputError
from headscope.models.loaded import LoadedModel
from headscope.session.corpus_options import AnyCorpus


def open_corpus(corpus: AnyCorpus) -> Corpus | PairCorpus:
    """Take sentences or pairs in any form.

    A table is taken for lines of text here; :func:`corpus_for` knows better once there is a model.

    Raises
    ------
    CorpusError
        If it holds nothing, or something that cannot be read.
    """
    if isinstance(corpus, PairCorpus):
        return corpus
    if (pairs := pairs_in_memory(corpus)) is not None:
        return pairs
    return as_corpus(corpus)  # type: ignore[arg-type]  # pairs are dealt with


def corpus_for(loaded: LoadedModel, corpus: Corpus | PairCorpus) -> Corpus | PairCorpus:
    """Return the corpus as a model reads it: to an encoder-decoder model a table holds pairs.

    Raises
    ------
    CorpusError
        If the table holds none.
    InputError
        For pairs and a model that reads only sentences.
    """
    if loaded.encoder_decoder and isinstance(corpus, Corpus) and corpus.table is not None:
        return open_pairs(corpus.table)
    if isinstance(corpus, PairCorpus) and not loaded.encoder_decoder:
        raise InputError(
            f"{loaded.name} ({loaded.family}) is no encoder-decoder model, so it cannot read pairs "
            "of source and target; give sentences."
        )
    return corpus


def stacks_for(loaded: LoadedModel, stack: str | None, *, pairs: bool) -> tuple[str, ...]:
    """Return the stacks that are measured: by default all that the corpus exercises.

    Parameters
    ----------
    loaded : LoadedModel
        The model, or a view of one stack: that one is measured by default.
    stack : str or None
        ``encoder``, ``decoder``, ``cross`` or ``all``.
    pairs : bool
        Whether pairs of source and target are read.

    Raises
    ------
    InputError
        If the model has no such stack, or the corpus does not run it.
    """
    whole = loaded.whole or loaded
    if not whole.sites:
        raise HeadscopeError(f"{loaded.name} has no attention that headscope recognises.")
    if stack is not None:
        chosen = whole.only(stack).stacks
    elif loaded.whole is None and whole.encoder_decoder and not pairs:
        chosen = ("encoder",)
    else:
        chosen = loaded.stacks
    if whole.encoder_decoder and not pairs and chosen != ("encoder",):
        named = " and ".join(name for name in chosen if name != "encoder")
        subject = f"stacks {named}" if " " in named else f"stack {named}"
        verb = "read" if " " in named else "reads"
        raise InputError(
            f"The {subject} of {loaded.name} {verb} pairs of source and target, and the corpus has "
            "sentences: give a table of pairs (.tsv, .csv or .jsonl), or choose the stack encoder."
        )
    return chosen
