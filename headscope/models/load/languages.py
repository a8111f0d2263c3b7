"""Tell a multilingual encoder-decoder (NLLB, mBART, M2M100) which languages it reads and writes.

Such a model is told each language by a *code*, a token of its vocabulary such as ``eng_Latn`` that
the tokenizer puts before or behind a text. ``codes`` are token ids by code throughout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.utils import GENERATION_CONFIG_NAME

from headscope.core.errors import CheckpointError, nearest
from headscope.core.options import OptionError
from headscope.data.languages import SOURCE, TARGET, language_codes
from headscope.models.load.safe_files import read_json
from headscope.models.load.source import Source

#: Families whose targets end in the code of their language, with which the decoder starts.
_START_WITH_LAST = ("mbart", "plbart")
#: Settings that may name the target's language by its token id.
_LANGUAGE_SETTINGS = ("forced_bos_token_id", "decoder_start_token_id")


def name_languages(
    network: Any, tokenizer: Any, origin: Source, *, source: str | None, target: str | None
) -> None:
    """Let a tokenizer put the right codes around sources and targets, in place.

    ``source`` and ``target`` are the codes that the user names, or None: then those that the
    folder's files name. A language that neither names stays None in ``tokenizer.init_kwargs``, and
    whoever needs it refuses.

    Raises
    ------
    InputError
        If a language is named that the model does not know, or it knows none at all.
    CheckpointError
        If the folder's files name another language than the model knows, or two different ones.
    """
    codes: Mapping[str, int] = {}
    if getattr(network.config, "is_encoder_decoder", False):
        codes = language_codes(tokenizer)
    _check_option("source_language", source, codes, origin)
    _check_option("target_language", target, codes, origin)
    if len(codes) < 2:
        return

    # The code around a source.
    codes_before, codes_after = _codes_around(tokenizer, codes)
    codes_around = [*codes_before, *codes_after]
    present_code = codes_around[0] if codes_around else None
    if source is None:
        source = _stated_source(origin.folder, codes, present_code, tokenizer)
    if target is None:
        target = _stated_target(origin.folder, codes)
    if source is not None:
        _set_source(tokenizer, source, present_code, codes)
    tokenizer.init_kwargs[SOURCE] = source
    tokenizer.init_kwargs[TARGET] = target
    if target is None:
        return

    # The code that a target starts with.
    tokenizer.tgt_lang = target
    for settings in (network.config, getattr(network, "generation_config", None)):
        for key in _LANGUAGE_SETTINGS:
            if getattr(settings, key, None) in codes.values():
                setattr(settings, key, codes[target])
    # Other decoders start with a token of their own, and write the code first.
    if codes_after and network.config.model_type in _START_WITH_LAST:
        network.config.decoder_start_token_id = codes[target]


def _check_option(
    option: str, language: str | None, codes: Mapping[str, int], origin: Source
) -> None:
    """Refuse a language that the user names and the model does not know.

    In the text of an OptionError ``$option`` stands for the option as the user spells it, and
    ``$$`` for a dollar sign.
    """
    if language is None:
        return
    if len(codes) < 2:
        name = origin.name.replace("$", "$$")
        raise OptionError(
            f"{name} is no encoder-decoder model of several languages, so ${option} has no use; "
            "leave it out."
        )
    if language not in codes:
        near = nearest(language, codes, "it knows")
        shown = repr(language[:40]).replace("$", "$$")
        raise OptionError(f"${option} is {shown}, which the model does not know; {near}")


def _codes_around(tokenizer: Any, codes: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Return the language codes that a tokenizer puts before a text, and those behind it.

    ``eng_Latn a </s>`` -> (["eng_Latn"], []).
    """
    encoding = tokenizer("a").encodings[0]
    special = encoding.special_tokens_mask
    text_start = special.index(0) if 0 in special else len(special)
    before = [token for token in encoding.tokens[:text_start] if token in codes]
    after = [token for token in encoding.tokens[text_start:] if token in codes]
    return before, after


def _stated_source(
    folder: Path, codes: Mapping[str, int], present_code: str | None, tokenizer: Any
) -> str | None:
    """Return the source's language as the files name it, or None.

    Where tokenizer_config.json does not, ``present_code`` counts, which tokenizer.json puts around
    a text; but not that of a class that knows languages, which has a default of its own.
    """
    language = _settings(folder / "tokenizer_config.json").get(SOURCE)
    if language is None:
        return None if hasattr(tokenizer, SOURCE) else present_code
    return _known(language, SOURCE, folder / "tokenizer_config.json", codes)


def _stated_target(folder: Path, codes: Mapping[str, int]) -> str | None:
    """Return the target's language as the files name it, by its code or by the code's token id."""
    code_of = {token_id: code for code, token_id in codes.items()}
    stated: dict[str, str] = {}  # Codes, by the setting and the file that name them
    path = folder / "tokenizer_config.json"
    if (language := _settings(path).get(TARGET)) is not None:
        stated[f"{TARGET} of {path.name}"] = _known(language, TARGET, path, codes)
    for name in (GENERATION_CONFIG_NAME, "config.json"):
        settings = _settings(folder / name)
        for key in _LANGUAGE_SETTINGS:
            token_id = settings.get(key)
            if isinstance(token_id, int) and token_id in code_of:
                stated[f"{key} of {name}"] = code_of[token_id]
    if len({*stated.values()}) > 1:
        named = " and ".join(f"{where} names {code}" for where, code in stated.items())
        raise CheckpointError(
            f"The files in {folder} do not agree about the target's language ({named}); give "
            "target_language."
        )
    return next(iter(stated.values()), None)


def _settings(path: Path) -> Mapping[str, Any]:
    """Read a file of settings; none where it is missing or holds no object."""
    settings = read_json(path) if path.is_file() else None
    return settings if isinstance(settings, dict) else {}


def _known(language: object, key: str, path: Path, codes: Mapping[str, int]) -> str:
    """Return a language that a file names by ``key``, or refuse one that has no code."""
    if isinstance(language, str) and language in codes:
        return language
    near = nearest(str(language)[:40], codes, "it knows")
    raise CheckpointError(
        f"{path} names {str(language)[:40]!r} as its {key}, which the tokenizer does not know; "
        f"{near}"
    )


def _set_source(
    tokenizer: Any, source: str, present_code: str | None, codes: Mapping[str, int]
) -> None:
    """Let a tokenizer put the code ``source`` around a text, in place of ``present_code``."""
    if hasattr(tokenizer, SOURCE):
        tokenizer.src_lang = source
    elif present_code is None:
        raise OptionError(
            "The tokenizer puts no language code around a text, so $source_language has no use; "
            "leave it out."
        )
    elif present_code != source:
        # The template in tokenizer.json has the code and its token id: "eng_Latn" and [256047].
        # Its only way to another code is its JSON.
        processor = tokenizer.backend_tokenizer.post_processor
        state = processor.__getstate__().decode()
        state = state.replace(json.dumps(present_code), json.dumps(source))
        state = state.replace(f"[{codes[present_code]}]", f"[{codes[source]}]")
        processor.__setstate__(state.encode())
        tokenizer.backend_tokenizer.post_processor = processor
