"""Multilingual encoder-decoders read and write the languages that files or options name.

The oracle is plain transformers: its tokenizer with ``src_lang`` and ``tgt_lang`` set, its labels
shifted by its own model, and ``generate`` with ``forced_bos_token_id``.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from families import tiny
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    MBart50Tokenizer,
    MBartTokenizer,
    NllbTokenizer,
    PreTrainedTokenizerFast,
)

import headscope
from headscope.core.errors import CheckpointError, InputError
from headscope.data.token_rows import encode_pairs
from headscope.models.run.loaded import LoadedModel, ends_of
from headscope.session.opening import open_for_tasks
from headscope.tasks.seq2seq import decode_greedily

SOURCE = "a bad cab"
TARGET = "abc da"
_LETTERS = ("\u2581", "a", "b", "c", "d")
_SCORED = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
_SCORED += [(letter, -2.0) for letter in _LETTERS]


def _nllb(**more: Any) -> Any:
    vocab = {token: i for i, (token, _) in enumerate(_SCORED)}
    return NllbTokenizer(vocab=vocab, merges=[], **more)


#: Tokenizer, family, and two languages that it knows.
KINDS: dict[str, tuple[Any, str, tuple[str, str]]] = {
    "nllb": (_nllb, "m2m_100", ("deu_Latn", "fra_Latn")),
    "mbart50": (
        lambda **more: MBart50Tokenizer(vocab=_SCORED, **more),
        "mbart",
        ("de_DE", "fr_XX"),
    ),
    "mbart": (lambda **more: MBartTokenizer(vocab=_SCORED, **more), "mbart", ("de_DE", "fr_XX")),
}


def write(folder: Path, kind: str, **languages: str | None) -> Path:
    """Save a tiny model with a tokenizer whose settings name these languages."""
    make, family, _ = KINDS[kind]
    tokenizer = make()
    special_ids = {
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
    }
    network = tiny(family, auto=AutoModelForSeq2SeqLM, vocab_size=len(tokenizer), **special_ids)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    unnamed = {"src_lang": None, "tgt_lang": None}
    edit(folder / "tokenizer_config.json", **{**unnamed, **languages})
    return folder


def edit(path: Path, **values: Any) -> None:
    settings = json.loads(path.read_text()) | values
    path.write_text(json.dumps({k: value for k, value in settings.items() if value is not None}))


def read(loaded: LoadedModel) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return the ids of a source, its labels, what the decoder reads, and what it writes."""
    target_ends = ends_of(loaded)
    (row,) = encode_pairs(loaded, [SOURCE], [TARGET], target_ends)
    assert row is not None
    assert len(row.target_spans) == len(row.labels) - 1
    for position in row.decoder_content:
        piece = loaded.tokenizer.convert_ids_to_tokens(row.decoder_ids[position])
        assert piece.strip("\u2581") in ("", TARGET[slice(*row.target_spans[position - 1])])
    assert len(row.decoder_content) == len(loaded.tokenizer.tokenize(TARGET))
    ids, mask = loaded.pad([row.ids])
    (written,) = decode_greedily(
        loaded.network,
        ids,
        mask,
        target_ends=target_ends,
        pad_id=loaded.pad_id,
        max_new_tokens=6,
    )
    return list(row.ids), list(row.labels), list(row.decoder_ids), written


def oracle(folder: Path, kind: str, source: str, target: str) -> tuple[list[int], ...]:
    tokenizer = AutoTokenizer.from_pretrained(folder, src_lang=source, tgt_lang=target)
    network = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    encoded = tokenizer(SOURCE, text_target=TARGET, return_tensors="pt")
    labels = encoded.pop("labels")
    code = tokenizer.convert_tokens_to_ids(target)
    seen: list[dict[str, Any]] = []
    hook = network.get_decoder().register_forward_pre_hook(
        lambda _module, _args, inputs: seen.append(inputs), with_kwargs=True
    )
    network(**encoded, labels=labels)
    hook.remove()
    read = seen[0]["input_ids"][0].tolist()
    how = {"forced_bos_token_id": code}
    if kind == "mbart":  # whose decoder starts with the code
        assert read[0] == code
        how = {"decoder_start_token_id": code}
    with torch.no_grad():
        written = network.generate(**encoded, **how, num_beams=1, do_sample=False, max_new_tokens=6)
    return encoded["input_ids"][0].tolist(), labels[0].tolist(), read, written[0, 1:].tolist()


def same(loaded: LoadedModel, folder: Path, kind: str, source: str, target: str) -> None:
    ids, labels, decoder_ids, written = read(loaded)
    their_ids, their_labels, their_decoder_ids, their_written = oracle(folder, kind, source, target)
    assert (ids, decoder_ids) == (their_ids, their_decoder_ids[: len(decoder_ids)])
    # Behind its end a target of mBART has the code once more, which nothing reads.
    assert labels == their_labels[: len(labels)]
    assert labels[-1] == 2
    stop = their_written.index(2) if 2 in their_written else len(their_written)
    assert written == their_written[:stop]


@pytest.mark.parametrize("kind", KINDS)
def test_languages_of_the_files_and_of_options(kind, tmp_path):
    source, target = KINDS[kind][2]
    folder = write(tmp_path, kind, src_lang=source, tgt_lang=target)
    same(open_for_tasks(str(folder)), folder, kind, source, target)
    # Options go before the files, and stand in for them.
    swapped = {"source_language": target, "target_language": source}
    same(open_for_tasks(str(folder), **swapped), folder, kind, target, source)
    edit(folder / "tokenizer_config.json", src_lang=None, tgt_lang=None)
    same(open_for_tasks(str(folder), **swapped), folder, kind, target, source)


@pytest.mark.parametrize("kind", KINDS)
def test_what_nobody_names_is_asked_for(kind, tmp_path):
    source, target = KINDS[kind][2]
    folder = write(tmp_path, kind)
    with pytest.raises(InputError, match="give source_language and target_language, such as en"):
        read(open_for_tasks(str(folder)))
    with pytest.raises(InputError, match="give target_language, such as en"):
        read(open_for_tasks(str(folder), source_language=source))
    with pytest.raises(InputError, match="give source_language, such as en"):
        read(open_for_tasks(str(folder), target_language=target))
    with pytest.raises(InputError, match=f"does not know; did you mean '{target}'"):
        open_for_tasks(str(folder), target_language=target[:-1])
    headscope.validate(open_for_tasks(str(folder)))  # needs no text of a language


def test_a_target_that_decoding_is_forced_to(tmp_path):
    """The target's language by a token id; two that differ are refused."""
    source, target = KINDS["nllb"][2]
    folder = write(tmp_path, "nllb", src_lang=source)
    code = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(target)
    edit(folder / "generation_config.json", forced_bos_token_id=code)
    same(open_for_tasks(str(folder)), folder, "nllb", source, target)
    edit(folder / "tokenizer_config.json", tgt_lang="ita_Latn")
    with pytest.raises(CheckpointError, match=r"names ita_Latn and forced.* names fra_Latn"):
        open_for_tasks(str(folder))
    loaded = open_for_tasks(str(folder), target_language=target)
    same(loaded, folder, "nllb", source, target)


@pytest.mark.parametrize("kind", ["nllb", "mbart"])
def test_a_tokenizer_of_the_general_class(kind, tmp_path):
    """Its template holds the source's language; the target's takes its place."""
    source, target = KINDS[kind][2]
    folder = write(tmp_path / "own", kind, src_lang=source, tgt_lang=target)
    general = write(tmp_path / "general", kind)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    backend = tokenizer.backend_tokenizer
    names = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>"}
    codes = [*KINDS[kind][2], "eng_Latn", "en_XX"]
    codes = [code for code in codes if code in tokenizer.get_vocab()]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, additional_special_tokens=codes, **names
    )
    fast.save_pretrained(general)
    edit(general / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    loaded = open_for_tasks(str(general), target_language=target)
    assert not hasattr(loaded.tokenizer, "src_lang")
    same(loaded, folder, kind, source, target)
    swapped = open_for_tasks(str(general), source_language=target, target_language=source)
    same(swapped, folder, kind, target, source)


def test_an_old_template_of_nllb_still_writes_the_code_first(tmp_path):
    """Its sources end in the code; decoding was always forced to begin with the target's."""
    source, target = KINDS["nllb"][2]
    folder = write(tmp_path, "nllb", src_lang=source, tgt_lang=target)
    edit(folder / "tokenizer_config.json", legacy_behaviour=True)
    loaded = open_for_tasks(str(folder))
    ids, labels, decoder_ids, written = read(loaded)
    code = loaded.tokenizer.convert_tokens_to_ids
    assert ids[-2:] == [2, code(source)]
    assert labels[0] == decoder_ids[1] == written[0] == code(target)


@pytest.mark.parametrize("kind", ["nllb", "mbart"])
def test_a_saved_model_keeps_its_languages(kind, tmp_path):
    source, target = KINDS[kind][2]
    folder = write(tmp_path / "model", kind)
    saved = tmp_path / "kept"
    # Where the files name another target, that goes too.
    other = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(source)
    key = "forced_bos_token_id" if kind == "nllb" else "decoder_start_token_id"
    edit(folder / "generation_config.json", **{key: other})
    named = {"source_language": source, "target_language": target}
    full = open_for_tasks(str(folder), **named)
    headscope.save(headscope.remove_heads(full, [("cross", 0, 1)]), saved)
    again = open_for_tasks(str(saved))
    assert again.languages is not None
    assert (again.languages.source, again.languages.target) == (source, target)
    assert read(again)[:3] == read(full)[:3]


def test_models_of_one_language_have_no_use_for_one(tmp_path):
    network = tiny("bart", auto=AutoModelForSeq2SeqLM)
    network.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"no encoder-decoder .* so target_language has no use"):
        headscope.load(str(tmp_path), need_tokenizer=False, target_language="fra_Latn")
