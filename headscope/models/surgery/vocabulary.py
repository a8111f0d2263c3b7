"""Remove the rows of a vocabulary that are never used: plan which, cut them, say what it costs.

A row stays if a text of the calibration or a word to keep needs its piece, if reading characters
needs it (:mod:`headscope.models.surgery.tokenizer_file`), or if anything names it: special and
added tokens, the frame that is put around a text, ids in the configuration. The rows that are left
keep their order and get new ids, and calibration texts are read as before, piece by piece. Any
other text that needs a removed piece is spelled by smaller ones, which the model may read less
well: :func:`tokens_removed` counts how often. A model that puts out its vocabulary loses the same
rows there; its loss over fewer rows falls for free, so it cannot be compared with the whole one's.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn

from headscope.core.errors import (
    ArtefactError,
    HeadscopeError,
    InputError,
    UnsupportedModelError,
    reason,
)
from headscope.data.frequencies import COMMON_WORDS, common_words
from headscope.data.pieces import encodings_of, tokenise
from headscope.models.run.loaded import LoadedModel, as_before, copied_network, wrap
from headscope.models.run.outputs import TOLERANCES, agree, outputs
from headscope.models.surgery.cutting import cut_outputs
from headscope.models.surgery.tokenizer_file import KINDS, TokenizerFile

#: Attributes of an input embedding: the original numbers of its rows, and how many there were.
ROW_IDS = "headscope_row_ids"
ROWS_BEFORE = "headscope_rows_before"
#: Texts on which a cut model's outputs are compared with the whole one's, and most tokens of each.
_PROOF_TEXTS = 32
_PROOF_TOKENS = 128
_SIZES = ("vocab_size", "decoder_vocab_size")  # Settings that count the rows.
_AT_ONCE = 256  # Texts handed to a tokenizer at a time.
#: Settings of a configuration, or attributes of a module, that hold token ids.
_TOKEN_SETTING = re.compile(
    r"_token_ids?$|^padding_idx$|^(pad|bos|eos|unk|mask|sep|cls)_index$|^bad_words_ids$|suppress_tokens$"
)


@dataclass(frozen=True)
class VocabularyPlan:
    """Which rows of an input embedding stay, and why."""

    kept: tuple[int, ...]  # Old ids, in the order of the new ones
    rows_before: int
    #: Rows of ``kept`` by what they stay for; a row counts once, for the first of these.
    named: int  # Special and added tokens, and ids in the configuration
    spelling: int  # What reading single characters needs
    texts: int  # Pieces of the calibration texts, and for BPE what is made on the way to them
    words: int  # The same for the words to keep
    #: The new tokenizer.json.
    tokenizer: str = field(repr=False, compare=False)
    #: Some calibration texts, on which the outputs of a cut model are compared.
    proof: tuple[str, ...] = field(repr=False, compare=False)

    @cached_property
    def new_ids(self) -> Mapping[int, int]:
        """Old id to new id, of the rows that stay."""
        return {old: new for new, old in enumerate(self.kept)}

    @property
    def rows(self) -> int:
        """Rows that stay."""
        return len(self.kept)


@dataclass(frozen=True)
class RemovedTokens:
    """How often texts need a piece that a plan removes."""

    texts: int
    texts_affected: int  # Those with at least one such token
    tokens: int  # Special tokens aside, as the whole tokenizer cuts them
    tokens_affected: int

    @property
    def share_texts(self) -> float | None:
        """Share of the texts; None where there is none."""
        return self.texts_affected / self.texts if self.texts else None

    def __str__(self) -> str:
        if not self.texts or not self.tokens:
            return "no text was looked at for pieces that were removed"
        return (
            f"{100 * self.texts_affected / self.texts:.1f}% of {self.texts:,} texts "
            f"({100 * self.tokens_affected / self.tokens:.2f}% of their tokens) need a piece that "
            "was removed, and are spelled by smaller ones"
        )


def plan_vocabulary(
    loaded: LoadedModel,
    texts: Iterable[str],
    *,
    targets: Iterable[str] = (),
    keep: Iterable[str] = (),
    common: int = COMMON_WORDS,
    language: str = "en",
) -> VocabularyPlan:
    """Decide which rows of a vocabulary stay.

    Parameters
    ----------
    loaded : LoadedModel
        Left as it is.
    texts : iterable of str
        Of the calibration; for an encoder-decoder its sources.
    targets : iterable of str
        What the decoder of an encoder-decoder is to write, in the calibration.
    keep : iterable of str
        Further words or texts whose pieces stay.
    common : int
        How many of the most common words of the language stay too, by wordfreq; also capitalised
        where the tokenizer tells upper from lower case. 0 for none.
    language : str
        Its ISO code.

    Raises
    ------
    InputError
        If there is no text (of an encoder-decoder: no target), or the tokenizer is missing or
        cannot be renumbered.
    UnsupportedModelError
        If a smaller tokenizer would read a calibration text otherwise.
    """
    old, file = _opened(loaded)
    sources = [text for text in texts if text.strip()]
    if not sources:
        raise InputError(
            "There is no calibration text to tell which pieces of the vocabulary are used; give at "
            "least one sentence."
        )
    written = [text for text in targets if text.strip()]
    if loaded.encoder_decoder and not written:
        raise InputError(
            f"{loaded.name} writes pieces of its vocabulary too, and there is no target to tell "
            "which; give pairs of source and target."
        )
    groups = [_named(loaded, file), file.spelling()]
    both = chain(tokenise(loaded, sources, special=False), tokenise(loaded, written, targets=True))
    read = (encoding.ids for encoding in both)
    words = _words(loaded, keep, common, language, file)
    groups += [file.with_steps(chain.from_iterable(ids)) for ids in (read, words)]
    counts: list[int] = []
    stay: set[int] = set()
    for rows in groups:
        before = len(stay)
        stay |= {row for row in rows if 0 <= row < loaded.vocab_size}
        counts.append(len(stay) - before)
    # Rows without a piece go last: the ids of a tokenizer have no gaps.
    order = sorted(stay, key=lambda row: (row not in file.pieces, row))
    new_ids = {row: new for new, row in enumerate(order)}
    tokenizer = file.renumbered(new_ids)
    _check_ids(loaded, old, tokenizer, new_ids, [*sources, *written])
    proof = sources[:: max(1, len(sources) // _PROOF_TEXTS)][:_PROOF_TEXTS]
    named, spelling, from_texts, from_words = counts
    return VocabularyPlan(
        kept=tuple(order),
        rows_before=loaded.vocab_size,
        named=named,
        spelling=spelling,
        texts=from_texts,
        words=from_words,
        tokenizer=tokenizer,
        proof=tuple(proof),
    )


def cut_vocabulary(
    loaded: LoadedModel, plan: VocabularyPlan, *, share: bool = False
) -> LoadedModel:
    """Copy a model with the rows of a plan alone, and a tokenizer of their pieces.

    Parameters
    ----------
    loaded : LoadedModel
        The model that the plan was made for, or a copy of it without some heads. Left as it is.
    plan : VocabularyPlan
        From :func:`plan_vocabulary`.
    share : bool
        Let the copy use the model's own weights elsewhere: less memory, for a copy that is measured
        or saved but never trained.

    Raises
    ------
    InputError
        If the plan was made for another vocabulary.
    ArtefactError
        If states, or logits of what stays, differ by more than 1e-5 (relative to the largest above
        1) from the whole model's on calibration texts.
    UnsupportedModelError
        If encoder and decoder have a vocabulary each, or the model does not run without the rows.
    """
    _opened(loaded)
    _check_plan(loaded, plan)
    table = loaded.model.get_input_embeddings()
    network = copied_network(loaded, share=share)
    ids = vars(table).get(ROW_IDS, range(plan.rows_before))
    cut = {}
    for old in _input_tables(loaded, network):
        left = old.detach()[torch.tensor(plan.kept, device=old.device)]
        cut[id(old)] = nn.Parameter(left, requires_grad=old.requires_grad)
    cut_outputs(network, plan.kept, plan.rows_before, cut)
    for module in network.modules():
        if isinstance(module, nn.Embedding) and id(module.weight) in cut:
            module.weight = cut[id(module.weight)]
            module.num_embeddings = plan.rows
            if module.padding_idx is not None:
                module.padding_idx = plan.new_ids.get(module.padding_idx)
            vars(module)[ROW_IDS] = tuple(ids[row] for row in plan.kept)
            vars(module)[ROWS_BEFORE] = vars(table).get(ROWS_BEFORE, plan.rows_before)
        elif not isinstance(module, nn.Embedding):  # a table of positions counts its own rows
            _renumber(module, plan)
    for settings in _settings(network):
        _renumber(settings, plan)
    tokenizer = copy.deepcopy(loaded.tokenizer)
    tokenizer._tokenizer = Tokenizer.from_str(plan.tokenizer)
    try:
        smaller = as_before(wrap(network, tokenizer, name=loaded.name), loaded)
        _check_outputs(loaded, smaller, plan)
    except HeadscopeError:
        raise
    except Exception as error:  # whatever a family raises that cannot do without some rows
        raise UnsupportedModelError(
            f"{loaded.name} ({loaded.family}) does not run without rows of its vocabulary: "
            f"{reason(error)}; leave the vocabulary whole."
        ) from error
    return smaller


def tokens_removed(
    loaded: LoadedModel,
    plan: VocabularyPlan,
    texts: Iterable[str],
    targets: Iterable[str] = (),
) -> RemovedTokens:
    """Count how often texts, and targets that a decoder writes, need a piece that a plan removes.

    ``loaded`` is the model that the plan was made for, before anything was cut.
    """
    _check_plan(loaded, plan)
    n = affected = tokens = gone = 0
    for encoding in chain(
        tokenise(loaded, texts, special=False), tokenise(loaded, targets, targets=True)
    ):
        marked = zip(encoding.ids, encoding.special_tokens_mask, strict=True)
        ids = [row for row, special in marked if not special]
        missing = sum(row not in plan.new_ids for row in ids)
        n = n + 1
        affected = affected + bool(missing)
        tokens = tokens + len(ids)
        gone = gone + missing
    return RemovedTokens(n, affected, tokens, gone)


def _opened(loaded: LoadedModel) -> tuple[Any, TokenizerFile]:
    """Return the tokenizer's backend and its file, of a model whose vocabulary can be cut."""
    if loaded.tokenizer is None:
        raise InputError(
            f"{loaded.name} has no tokenizer, so it is not known which rows its texts use; save "
            "the model's fast tokenizer beside it."
        )
    backend = getattr(loaded.tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise InputError(
            f"The tokenizer of {loaded.name} is not a fast one (tokenizer.json), and only these "
            "can be renumbered; convert it and save it beside the model."
        )
    file = TokenizerFile(backend.to_str())
    if file.kind not in KINDS:
        raise InputError(
            f"The tokenizer of {loaded.name} is of the kind {file.kind}; only the vocabularies of "
            f"{', '.join(KINDS[:-1])} and {KINDS[-1]} can lose rows."
        )
    return backend, file


def _named(loaded: LoadedModel, file: TokenizerFile) -> set[int]:
    """Return the ids of tokens that tokenizer and configuration name."""
    ids = {token: row for row, token in file.pieces.items()}
    tokens = [*loaded.tokenizer.all_special_tokens, *([] if (u := file.unknown) is None else [u])]
    rows = file.named() | {ids.get(token, -1): token for token in tokens}
    for row, token in rows.items():
        if not 0 <= row < loaded.vocab_size or file.pieces.get(row) != token:
            raise InputError(
                f"The tokenizer of {loaded.name} names the special token {token}, for which the "
                f"vocabulary of {loaded.vocab_size:,} rows has none; save the tokenizer that "
                "belongs to the model beside it."
            )
    named = set(rows)
    for settings in _settings(loaded.network):
        named.update(row for _, value in _token_settings(settings) for row in _numbers(value))
    pad = loaded.model.get_input_embeddings().padding_idx
    named.update(() if pad is None else (pad,))
    positions = (
        m for name, m in loaded.model.named_modules() if name.endswith("position_embeddings")
    )
    if any(getattr(module, "padding_idx", None) is not None for module in positions):
        named.update(range(loaded.pad_id + 1))  # RoBERTa counts positions from this number
    return named


def _settings(network: Any) -> list[Any]:
    """Return every configuration of a network and its parts, each once."""
    owners: list[Any] = [getattr(module, "config", None) for module in network.modules()]
    configs = [config for config in owners if hasattr(config, "get_text_config")]
    inner = [config.get_text_config() for config in configs]
    every = [*configs, *inner, getattr(network, "generation_config", None)]
    return list({id(settings): settings for settings in every if settings is not None}.values())


def _token_settings(settings: Any) -> Iterator[tuple[str, Any]]:
    for name, value in vars(settings).items():
        if _TOKEN_SETTING.search(name) and value is not None:
            yield name, value


def _numbers(value: Any) -> Iterator[int]:
    if isinstance(value, int) and not isinstance(value, bool):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item)


def _renumber(settings: Any, plan: VocabularyPlan) -> None:
    """Write new ids, and the new number of rows, into a configuration or a module in place."""

    def new(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(new, value))
        known = isinstance(value, int) and not isinstance(value, bool)
        return plan.new_ids.get(value, value) if known else value

    for name, value in list(_token_settings(settings)):
        setattr(settings, name, new(value))
    for name in _SIZES:
        if getattr(settings, name, None) == plan.rows_before:
            setattr(settings, name, plan.rows)


def _words(
    loaded: LoadedModel, keep: Iterable[str], common: int, language: str, file: TokenizerFile
) -> Iterator[list[int]]:
    """Yield the ids of each word to keep; those that the tokenizer does not know do no harm."""
    words = [*keep]
    backend = loaded.tokenizer.backend_tokenizer
    listed = common_words(language, common) if common else []
    if backend.encode("The").ids != backend.encode("the").ids:  # it tells upper from lower case
        listed = [x for w in listed for x in dict.fromkeys((w, w[:1].upper() + w[1:]))]
    words += listed
    if loaded.pooling.prompt:
        words.append(loaded.pooling.prompt)
    if file.kind != "WordPiece":  # others spell the space before a word with it
        words = [form for word in words for form in (word, f" {word}")]
    for start in range(0, len(words), _AT_ONCE):
        chunk = words[start : start + _AT_ONCE]
        yield from (e.ids for e in encodings_of(loaded, chunk, add_special_tokens=False))


def _check_plan(loaded: LoadedModel, plan: VocabularyPlan) -> None:
    if loaded.vocab_size != plan.rows_before:
        raise InputError(
            f"The plan was made for a vocabulary of {plan.rows_before:,} rows, and {loaded.name} "
            f"has {loaded.vocab_size:,}; make a plan for this model."
        )


def _input_tables(loaded: LoadedModel, network: Any) -> list[nn.Parameter]:
    """Return the tables that a network reads its tokens by: an untied decoder has its own."""
    base = getattr(network, "base_model", network)
    parts = [base, base.get_encoder(), base.get_decoder()] if loaded.encoder_decoder else [base]
    tables = {id(w): w for w in (part.get_input_embeddings().weight for part in parts)}
    apart = getattr(base.config, "share_encoder_decoder_embeddings", True) is False
    if apart or any(len(weight) != loaded.vocab_size for weight in tables.values()):
        raise UnsupportedModelError(
            f"Encoder and decoder of {loaded.name} ({loaded.family}) have a vocabulary each, and "
            "only one that both share can lose rows; leave the vocabulary whole."
        )
    return list(tables.values())


def _check_ids(
    loaded: LoadedModel, old: Any, tokenizer: str, new_ids: Mapping[int, int], texts: list[str]
) -> None:
    """Prove that every piece has its new id, and that the texts are read as before."""
    try:
        new = Tokenizer.from_str(tokenizer)
    except BaseException as error:  # tokenizers raises no more special kind, and panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        same = False
    else:
        for backend in (old, new):  # a file may ask for every text to be padded or cut
            backend.no_padding()
            backend.no_truncation()
        same = all(old.id_to_token(row) == new.id_to_token(to) for row, to in new_ids.items())
        for start in range(0, len(texts) if same else 0, _AT_ONCE):
            chunk = texts[start : start + _AT_ONCE]
            for before, after in zip(old.encode_batch(chunk), new.encode_batch(chunk), strict=True):
                same = same and [new_ids.get(row) for row in before.ids] == after.ids
    if not same:
        raise UnsupportedModelError(
            f"Without its unused pieces, the tokenizer of {loaded.name} cuts calibration texts "
            "into other pieces, so its vocabulary is left whole; please report this."
        )


def _check_outputs(full_model: LoadedModel, cut: LoadedModel, plan: VocabularyPlan) -> None:
    """Prove that states and logits of calibration texts are the full model's."""
    read = [encoding.ids[:_PROOF_TOKENS] for encoding in tokenise(full_model, plan.proof)]
    rows = [row for row in read if row]  # a tokenizer may pass over a text
    if not rows:
        return
    expected = outputs(full_model, rows)
    actual = outputs(cut, [[plan.new_ids[row] for row in text] for text in rows])
    if len(expected) > 1 and expected[1].shape[-1] == plan.rows_before:  # logits of the vocabulary
        expected[1] = expected[1][..., list(plan.kept)]
    if not agree(expected, actual, min(1e-2, TOLERANCES[full_model.dtype])):
        raise ArtefactError(
            f"Without its unused rows {full_model.name} computes something else for calibration "
            "texts, so its vocabulary is left whole; please report this."
        )
